//! `starling controller`: runs the controller of one management cluster.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use jiff::Timestamp;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{hub, kube_errors};
use crate::controller::{Controller, Readiness, Settings};
use crate::server;

/// Options of `controller`.
#[derive(Debug, Args)]
pub(super) struct ControllerArguments {
    /// Kubeconfig of the management cluster. Default: the in-cluster configuration
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Directory of the ledger and the git mirrors
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Address that serves /healthz and /readyz
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:8080")]
    listen: SocketAddr,
    #[command(flatten)]
    work: WorkArguments,
}

/// Options of the controller, for every kind of management cluster.
#[derive(Debug, Args)]
pub(super) struct WorkArguments {
    /// Reconcile only this namespace. Default: all namespaces
    #[arg(long, value_name = "NS")]
    namespace: Option<String>,
    /// Allow Sources with http:// and file:// URLs
    #[arg(long)]
    allow_insecure_sources: bool,
    /// Maximum number of Syncs that are reconciled concurrently
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
    concurrency: u16,
    /// Path of kustomize. Default: kustomize on PATH, then `kubectl kustomize`
    #[arg(long, value_name = "FILE")]
    kustomize: Option<PathBuf>,
    /// Path of sops. Default: sops on PATH
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
    let reported = readiness.clone();
    let reasons = move || {
        let (now, reasons) = (Timestamp::now(), reported.reasons());
        reasons.iter().map(|reason| reason.describe(now)).collect()
    };
    let serving = tokio::spawn(server::serve(listener, reasons, stop.clone()));

    let client = hub_client(arguments.kubeconfig).await?;
    let settings = arguments.work.settings(arguments.data_dir);
    // A signal also ends a start that waits for the management cluster.
    let controller = tokio::select! {
        started = Controller::start(client, settings, readiness) => started?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    controller.stop().await;
    stop.cancel();
    serving.await??;
    Ok(())
}

/// The client of the management cluster.
pub(super) async fn hub_client(kubeconfig: Option<PathBuf>) -> anyhow::Result<Client> {
    let Some(path) = kubeconfig else {
        let config = Config::incluster().context("no --kubeconfig, and no in-cluster configuration")?;
        return hub::client_of(config).map_err(kube_errors::request);
    };
    let made = match Kubeconfig::read_from(&path) {
        Ok(read) => Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await,
        Err(error) => Err(error),
    };
    made.map_err(|error| kube_errors::kubeconfig(&error))
        .and_then(|config| hub::client_of(config).map_err(kube_errors::request))
        .with_context(|| format!("--kubeconfig {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_invalid_kubeconfig_is_named_and_not_quoted() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("hub");
        for (text, expected) in [
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
            assert!(error.contains(expected) && !error.contains("s3cret"), "{error}");
        }
    }
}
