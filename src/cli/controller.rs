//! `starling controller`: the controller of one management cluster.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{explain, hub};
use crate::controller::{Controller, Settings};
use crate::server::{self, Readiness};

/// What the controller is told.
#[derive(Debug, Args)]
pub(super) struct ControllerArguments {
    /// Kubeconfig of the management cluster; without it the configuration of the pod
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Folder for the ledger and the mirrors of repositories
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Address of /healthz and /readyz
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:8080")]
    listen: SocketAddr,
    #[command(flatten)]
    work: WorkArguments,
}

/// How the controller works, wherever its management cluster is.
#[derive(Debug, Args)]
pub(super) struct WorkArguments {
    /// Look at this namespace only
    #[arg(long, value_name = "NS")]
    namespace: Option<String>,
    /// Accept Sources with http:// and file://
    #[arg(long)]
    allow_insecure_sources: bool,
    /// Syncs that are worked on at the same time, over all groups
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
    concurrency: u16,
    /// The kustomize to use; without it the one on PATH, or `kubectl kustomize`
    #[arg(long, value_name = "FILE")]
    kustomize: Option<PathBuf>,
    /// The sops to use; without it the one on PATH
    #[arg(long, value_name = "FILE")]
    sops: Option<PathBuf>,
}

impl WorkArguments {
    pub(super) fn settings(self, data_dir: PathBuf) -> Settings {
        Settings {
            namespace: self.namespace,
            data_dir,
            allow_insecure_sources: self.allow_insecure_sources,
            concurrency: self.concurrency.into(),
            kustomize: self.kustomize,
            sops: self.sops,
        }
    }
}

pub(super) async fn run(arguments: ControllerArguments) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let listener = TcpListener::bind(arguments.listen)
        .await
        .with_context(|| format!("--listen {}", arguments.listen))?;
    let (readiness, stop) = (Readiness::default(), CancellationToken::new());
    let serving = tokio::spawn(server::serve(listener, readiness.clone(), stop.clone()));

    let client = hub_client(arguments.kubeconfig).await?;
    let settings = arguments.work.settings(arguments.data_dir);
    // A stop that comes while the start waits for the management cluster ends it there.
    let controller = tokio::select! {
        started = Controller::start(client, settings) => started?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    readiness.set(true);
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    readiness.set(false);
    controller.stop().await;
    stop.cancel();
    serving.await??;
    Ok(())
}

/// The management cluster's client.
pub(super) async fn hub_client(kubeconfig: Option<PathBuf>) -> anyhow::Result<Client> {
    let Some(path) = kubeconfig else {
        let config = Config::incluster().context("no --kubeconfig, and this is no pod of a cluster")?;
        return hub::client_of(config).map_err(explain::request);
    };
    let made = match Kubeconfig::read_from(&path) {
        Ok(read) => Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await,
        Err(error) => Err(error),
    };
    made.map_err(|error| explain::kubeconfig(&error))
        .and_then(|config| hub::client_of(config).map_err(explain::request))
        .with_context(|| format!("--kubeconfig {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_kubeconfig_that_cannot_be_used_is_named_and_not_quoted() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hub");
        for (text, told) in [
            ("users:\n- name: a\n  user: {token: [s3cret}\n", "line 3"),
            ("users: [{name: a, user: {token: s3cret}}]\n", "current context"),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = hub_client(Some(file.clone())).await.err().unwrap();
            let error = format!("{error:#}");
            assert!(
                error.starts_with(&format!("--kubeconfig {}: ", file.display())),
                "{error}"
            );
            assert!(error.contains(told) && !error.contains("s3cret"), "{error}");
        }
    }
}
