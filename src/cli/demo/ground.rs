//! Where the demo's clusters run: in this process, or as real control planes.

use std::path::{Path, PathBuf};

use kube::Client;
use starling_apiserver::server::{Listening, Options as ServerOptions, Server};
use starling_controlplane::{Assets, ControlPlanes, Options as PlanesOptions};

use super::display::Display;
use crate::cli::hub::{self, MANAGEMENT};

/// A cluster and how to reach it as its administrator.
pub(super) struct Plane {
    pub(super) name: String,
    kubeconfig: String,
}

impl Plane {
    /// A kubeconfig with one context. It contains the token.
    pub(super) fn kubeconfig(&self) -> &str {
        &self.kubeconfig
    }
}

/// Running clusters. They end with this.
pub(super) struct Ground {
    pub(super) management: Plane,
    pub(super) members: Vec<Plane>,
    /// What is deployed becomes healthy.
    pub(super) heals: bool,
    /// A kustomize that came with the clusters.
    pub(super) kustomize: Option<PathBuf>,
    /// The kubectl to tell people of.
    pub(super) kubectl: String,
    _running: Running,
}

/// What ends when it is dropped.
enum Running {
    Embedded { _listening: Listening },
    Real { _planes: Box<ControlPlanes> },
}

impl Ground {
    /// Clusters in this process; those that a folder keeps are there again, and count as members.
    pub(super) async fn embedded(members: usize, folder: Option<&Path>) -> anyhow::Result<Self> {
        let options = ServerOptions::default();
        let server = match folder {
            Some(folder) => Server::open(options, folder).await?,
            None => Server::start(options)?,
        };
        let members = members.max(server.clusters().len().saturating_sub(1));
        let listening = listen(&server).await?;
        let make = |name: String| -> anyhow::Result<Plane> {
            let cluster = match server.cluster(&name) {
                Some(cluster) => cluster,
                None => server.create_cluster(&name)?,
            };
            Ok(Plane {
                kubeconfig: cluster.kubeconfig(),
                name,
            })
        };
        Ok(Self {
            management: make(MANAGEMENT.to_owned())?,
            members: (0..members)
                .map(|index| make(member(index)))
                .collect::<Result<_, _>>()?,
            heals: true,
            kustomize: None,
            kubectl: "kubectl".to_owned(),
            _running: Running::Embedded {
                _listening: listening,
            },
        })
    }

    /// An etcd and a kube-apiserver for each cluster, built first where that has not been done yet.
    pub(super) async fn real(members: usize, folder: &Path, display: &Display) -> anyhow::Result<Self> {
        let assets = {
            let display = display.clone();
            tokio::task::spawn_blocking(move || Assets::find_or_build(|line| display.line(line))).await??
        };
        let members: Vec<String> = (0..members).map(member).collect();
        let names: Vec<&str> = std::iter::once(MANAGEMENT)
            .chain(members.iter().map(String::as_str))
            .collect();
        let options = PlanesOptions {
            dir: Some(folder.to_owned()),
            ..PlanesOptions::default()
        };
        let planes = ControlPlanes::start(&assets, &names, options).await?;
        let plane = |name: &str| -> anyhow::Result<Plane> {
            Ok(Plane {
                name: name.to_owned(),
                kubeconfig: planes.get(name)?.kubeconfig_yaml(),
            })
        };
        Ok(Self {
            management: plane(MANAGEMENT)?,
            members: members.iter().map(|name| plane(name)).collect::<Result<_, _>>()?,
            // API servers without nodes: no Deployment ever becomes available.
            heals: false,
            kustomize: assets.kustomize().map(ToOwned::to_owned),
            kubectl: assets.kubectl().display().to_string(),
            _running: Running::Real {
                _planes: Box::new(planes),
            },
        })
    }

    /// A client of the management cluster.
    pub(super) async fn hub(&self) -> anyhow::Result<Client> {
        hub::client(self.management.kubeconfig()).await
    }

    /// One kubeconfig with a context for each cluster; the current one is the management cluster's.
    pub(super) fn kubeconfig(&self) -> anyhow::Result<String> {
        hub::merged(
            self.management.kubeconfig(),
            self.members.iter().map(Plane::kubeconfig),
        )
    }
}

/// Listens where it was before, if that is free.
async fn listen(server: &Server) -> anyhow::Result<Listening> {
    if let Some(address) = server.kept_address()
        && let Ok(listening) = server.listen(address).await
    {
        return Ok(listening);
    }
    Ok(server.listen(([127, 0, 0, 1], 0).into()).await?)
}

fn member(index: usize) -> String {
    format!("member-{index}")
}
