//! The clusters of the demo: embedded in this process, or real control planes.

use std::path::{Path, PathBuf};

use kube::Client;
use starling_apiserver::listen::Listening;
use starling_apiserver::server::{Options as ServerOptions, Server};
use starling_controlplane::{Assets, ControlPlanes, Options as PlanesOptions};

use super::display::Display;
use crate::cli::hub::{self, MANAGEMENT};

/// A cluster with the kubeconfig of its administrator.
pub(super) struct DemoCluster {
    pub(super) name: String,
    kubeconfig: String,
}

impl DemoCluster {
    /// A kubeconfig with one context. It holds a token.
    pub(super) fn kubeconfig(&self) -> &str {
        &self.kubeconfig
    }
}

/// The running clusters; they stop when this is dropped.
pub(super) struct DemoClusters {
    pub(super) management: DemoCluster,
    pub(super) members: Vec<DemoCluster>,
    /// Whether deployed workloads become healthy.
    pub(super) heals: bool,
    /// The kustomize of the control planes' assets, if there is one.
    pub(super) kustomize: Option<PathBuf>,
    /// The kubectl to print in the instructions.
    pub(super) kubectl: String,
    _running: Running,
}

/// Stops the clusters when dropped.
enum Running {
    Embedded { _listening: Listening },
    Real { _planes: Box<ControlPlanes> },
}

impl DemoClusters {
    /// Starts clusters in this process; clusters that a kept directory holds are members again.
    pub(super) async fn embedded(members: usize, directory: Option<&Path>) -> anyhow::Result<Self> {
        let options = ServerOptions::default();
        let server = match directory {
            Some(directory) => Server::open(options, directory).await?,
            None => Server::start(options)?,
        };
        let members = members.max(server.clusters().len().saturating_sub(1));
        let listening = listen(&server).await?;
        let make = |name: String| -> anyhow::Result<DemoCluster> {
            let cluster = match server.cluster(&name) {
                Some(cluster) => cluster,
                None => server.create_cluster(&name)?,
            };
            Ok(DemoCluster {
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

    /// Starts an etcd and a kube-apiserver for each cluster; builds them first if necessary.
    pub(super) async fn real(members: usize, directory: &Path, display: &Display) -> anyhow::Result<Self> {
        let assets = {
            let display = display.clone();
            tokio::task::spawn_blocking(move || Assets::find_or_build(|line| display.line(line))).await??
        };
        let members: Vec<String> = (0..members).map(member).collect();
        let names: Vec<&str> = std::iter::once(MANAGEMENT)
            .chain(members.iter().map(String::as_str))
            .collect();
        let options = PlanesOptions {
            dir: Some(directory.to_owned()),
            ..PlanesOptions::default()
        };
        let planes = ControlPlanes::start(&assets, &names, options).await?;
        let plane = |name: &str| -> anyhow::Result<DemoCluster> {
            Ok(DemoCluster {
                name: name.to_owned(),
                kubeconfig: planes.get(name)?.kubeconfig_yaml(),
            })
        };
        Ok(Self {
            management: plane(MANAGEMENT)?,
            members: members.iter().map(|name| plane(name)).collect::<Result<_, _>>()?,
            // API servers without nodes: no Deployment becomes available.
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
            self.members.iter().map(DemoCluster::kubeconfig),
        )
    }
}

/// Listens on the previous address, if it is free.
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
