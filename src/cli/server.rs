//! `starling server --embedded`: runs a management cluster and its controller in one process and one directory.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;
use kube::Client;
use starling_apiserver::controllers::Controllers;
use starling_apiserver::listen::Listening;
use starling_apiserver::rbac::AuthorizationMode;
use starling_apiserver::server::{ClusterHandle, Options, Server, ServerError};

use super::controller::WorkArguments;
use super::hub::{self, MANAGEMENT};
use super::signals::StopSignals;
use crate::controller::{Controller, Readiness};

/// Options of `server`.
#[derive(Debug, Args)]
pub(super) struct ServerArguments {
    /// Run the embedded API server (required). For an existing cluster, use `starling controller`
    #[arg(long, required = true)]
    embedded: bool,
    /// Directory of all data: clusters, kubeconfig, ledger and git mirrors
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Address of the API server. Default: the previous address; on the first start, any port of 127.0.0.1
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Allow addresses other than those of this machine's loopback interface
    #[arg(long)]
    allow_public: bool,
    /// Authorization of requests: `RBAC`, by roles and bindings, or `AlwaysAllow`, by which every valid token of a
    /// cluster may do everything there
    #[arg(long, value_name = "MODE", default_value_t = AuthorizationMode::Rbac)]
    authorization_mode: AuthorizationMode,
    /// Virtual cluster to create besides `management`; repeatable. Existing clusters are kept
    #[arg(long, value_name = "NAME")]
    cluster: Vec<String>,
    /// Controllers of Kubernetes that run in the clusters: `all`, `none`, or a list of `namespace`, `serviceaccount`,
    /// `clusterrole-aggregation`, `garbage-collector`, `workloads`. `none` leaves objects as clients write them, as a
    /// kube-apiserver without a controller manager does
    #[arg(long, value_name = "LIST", default_value = "all")]
    controllers: Controllers,
    /// Run the API server without the controller of Starling
    #[arg(long)]
    no_controller: bool,
    #[command(flatten)]
    work: WorkArguments,
}

pub(super) async fn run(arguments: ServerArguments) -> anyhow::Result<()> {
    let mut stop = StopSignals::new()?;
    if let Some(address) = arguments.listen {
        ensure!(
            !address.ip().is_unspecified(),
            "--listen {address}: clients connect to this address by their kubeconfigs; give an address that is not unspecified"
        );
        check_public(address, &arguments, "--listen")?;
    }
    let server = open(&arguments).await?;
    let result = serve(&server, arguments, &mut stop).await;
    // After every writer.
    server.close().await;
    result
}

/// Refuses an address that other machines reach, unless that is intended.
fn check_public(address: SocketAddr, arguments: &ServerArguments, origin: &str) -> anyhow::Result<()> {
    let open = match arguments.authorization_mode {
        AuthorizationMode::Rbac => "",
        AuthorizationMode::AlwaysAllow => {
            ", and with --authorization-mode AlwaysAllow every valid token of a cluster may do everything there"
        }
    };
    ensure!(
        arguments.allow_public || address.ip().to_canonical().is_loopback(),
        "{origin} {address}: other machines reach this address{open}; allow it with --allow-public"
    );
    Ok(())
}

/// Opens or creates the data directory.
async fn open(arguments: &ServerArguments) -> anyhow::Result<Server> {
    let names = arguments.listen.iter().map(|address| address.ip().to_string());
    let options = Options {
        names: names.collect(),
        controllers: arguments.controllers.clone(),
        authorization: arguments.authorization_mode,
        ..Options::default()
    };
    Server::open(options, &arguments.data_dir)
        .await
        .with_context(|| format!("--data-dir {}", arguments.data_dir.display()))
}

async fn serve(server: &Server, arguments: ServerArguments, stop: &mut StopSignals) -> anyhow::Result<()> {
    let before = server.kept_address();
    if let (None, Some(address)) = (arguments.listen, before) {
        check_public(address, &arguments, "the previous address")?;
    }
    let listening = listen(server, arguments.listen, before).await?;
    let management = cluster(server, MANAGEMENT)?;
    for name in &arguments.cluster {
        cluster(server, name).with_context(|| format!("--cluster {name}"))?;
    }
    // The kubeconfig must not name clusters that a crash would lose.
    server.durable().await?;
    let kubeconfig = arguments.data_dir.join("kubeconfig");
    hub::write_private(&kubeconfig, &all(server, &management)?)?;
    let client = hub::client(&management.kubeconfig()).await?;

    let controller = tokio::select! {
        started = start(client, &arguments.data_dir, arguments.work, arguments.no_controller) => started?,
        () = stop.received() => return Ok(()),
    };
    print_serving(server, &listening, before, &kubeconfig, controller.is_some());
    stop.received().await;
    if let Some(controller) = controller {
        controller.stop().await;
    }
    Ok(())
}

/// Installs the definitions, and starts the controller unless `--no-controller` is set.
async fn start(
    hub: Client,
    directory: &Path,
    work: WorkArguments,
    no_controller: bool,
) -> anyhow::Result<Option<Controller>> {
    hub::install(&hub).await?;
    if no_controller {
        return Ok(None);
    }
    let settings = work.settings(directory.join("controller"));
    Ok(Some(
        Controller::start(hub, settings, Readiness::default()).await?,
    ))
}

/// Listens on the given address, else on the previous one, so that kubeconfigs stay valid.
async fn listen(
    server: &Server,
    wanted: Option<SocketAddr>,
    before: Option<SocketAddr>,
) -> anyhow::Result<Listening> {
    let address = wanted.or(before).unwrap_or_else(|| ([127, 0, 0, 1], 0).into());
    server.listen(address).await.with_context(|| match wanted {
        Some(_) => format!("--listen {address}"),
        None => format!(
            "previous address {address}, which every kubeconfig of this server names: free it, or give another one with --listen"
        ),
    })
}

fn cluster(server: &Server, name: &str) -> Result<ClusterHandle, ServerError> {
    match server.cluster(name) {
        Some(cluster) => Ok(cluster),
        None => server.create_cluster(name),
    }
}

/// A kubeconfig with a context for each cluster.
fn all(server: &Server, management: &ClusterHandle) -> anyhow::Result<String> {
    let others: Vec<String> = server
        .clusters()
        .iter()
        .filter(|name| *name != MANAGEMENT)
        .filter_map(|name| Some(server.cluster(name)?.kubeconfig()))
        .collect();
    hub::merged(&management.kubeconfig(), others.iter().map(String::as_str))
}

#[expect(clippy::print_stdout, reason = "the output of this command")]
fn print_serving(
    server: &Server,
    listening: &Listening,
    before: Option<SocketAddr>,
    kubeconfig: &Path,
    controller: bool,
) {
    println!(
        "serving {} at https://{}{}",
        server.clusters().join(", "),
        listening.address(),
        if controller { ", with the controller" } else { "" }
    );
    if let Some(before) = before.filter(|before| *before != listening.address()) {
        println!("previous address: {before}; copy the kubeconfig again to where it is used");
    }
    println!("  export KUBECONFIG={}", kubeconfig.display());
    println!("  kubectl get starling -A");
}
