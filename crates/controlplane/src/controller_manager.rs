//! The kube-controller-manager of one control plane.

use std::time::Duration;

use crate::assets::Assets;
use crate::control_plane::ControlPlane;
use crate::error::ControlPlaneError;
use crate::etcd::PORT_ATTEMPTS;
use crate::ports::free_port;
use crate::process::{Launch, Process};
use crate::readiness::{await_ready, probe_path};

/// The controllers that make an API server behave like a cluster without nodes: they delete namespaces, collect garbage
/// by owner, aggregate ClusterRoles and create service accounts and their tokens.
///
/// Workload controllers are disabled, so that a test writes the status of its Deployments itself.
pub const DEFAULT_CONTROLLERS: &[&str] = &[
    "namespace-controller",
    "garbage-collector-controller",
    "clusterrole-aggregation-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "root-ca-certificate-publisher-controller",
];

/// Starts a controller manager and waits until it is healthy.
pub(crate) async fn start(
    assets: &Assets,
    plane: &ControlPlane,
    controllers: &[String],
    within: Duration,
) -> Result<Process, ControlPlaneError> {
    let mut attempt = 1;
    loop {
        match try_start(assets, plane, controllers, within).await {
            Err(error) if error.is_port_clash() && attempt < PORT_ATTEMPTS => attempt += 1,
            outcome => return outcome,
        }
    }
}

async fn try_start(
    assets: &Assets,
    plane: &ControlPlane,
    controllers: &[String],
    within: Duration,
) -> Result<Process, ControlPlaneError> {
    let name = format!("{}/kube-controller-manager", plane.name());
    let program = assets
        .kube_controller_manager()
        .ok_or_else(|| ControlPlaneError::MissingProgram {
            name: name.clone(),
            program: "kube-controller-manager",
            folder: assets.folder().to_owned(),
        })?;
    let port = free_port().map_err(|source| ControlPlaneError::Port {
        name: name.clone(),
        source,
    })?;
    let dir = plane.dir();
    let flag = |flag: &str, file: &str| format!("--{flag}={}", dir.join(file).display());
    let launch = Launch::new(&name, program, dir.join("kube-controller-manager.log")).args([
        flag("kubeconfig", "kubeconfig"),
        flag("tls-cert-file", "tls.crt"),
        flag("tls-private-key-file", "tls.key"),
        flag("root-ca-file", "ca.crt"),
        flag("service-account-private-key-file", "service-account.key"),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        format!("--controllers={}", controllers.join(",")),
        "--leader-elect=false".to_owned(),
        // The profile is not used.
        "--profiling=false".to_owned(),
    ]);
    let process = Process::start(&launch).map_err(ControlPlaneError::process(&name))?;
    let client = plane.client_for(&format!("https://127.0.0.1:{port}")).await?;
    await_ready(&process, within, || probe_path(&client, "/healthz")).await?;
    Ok(process)
}
