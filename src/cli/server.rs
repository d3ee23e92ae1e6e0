//! `starling server --embedded`: a management cluster on its own, in one process and one folder.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;
use kube::Client;
use starling_apiserver::server::{ClusterHandle, Listening, Options, Server, ServerError};

use super::controller::WorkArguments;
use super::hub::{self, MANAGEMENT};
use super::stop::Stop;
use crate::controller::Controller;

/// What the server is told.
#[derive(Debug, Args)]
pub(super) struct ServerArguments {
    /// Run the embedded API server. There is no other; for a cluster that is there, use `starling controller`
    #[arg(long, required = true)]
    embedded: bool,
    /// Folder for everything: clusters, kubeconfig, the controller's ledger and mirrors
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Address of the API. Without it the one of before; the first time any port of 127.0.0.1
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// A further virtual cluster, besides `management`; may be given several times. Those of before are kept
    #[arg(long, value_name = "NAME")]
    cluster: Vec<String>,
    /// Serve the API only
    #[arg(long)]
    no_controller: bool,
    #[command(flatten)]
    work: WorkArguments,
}

pub(super) async fn run(arguments: ServerArguments) -> anyhow::Result<()> {
    let mut stop = Stop::new()?;
    if let Some(address) = arguments.listen {
        ensure!(
            !address.ip().is_unspecified(),
            "--listen {address}: it stands in kubeconfigs, so it has to be an address that clients can connect to"
        );
    }
    let server = open(&arguments).await?;
    let result = serve(&server, arguments, &mut stop).await;
    // After everybody who writes.
    server.close().await;
    result
}

/// Opens the folder, or makes it.
async fn open(arguments: &ServerArguments) -> anyhow::Result<Server> {
    let names = arguments.listen.iter().map(|address| address.ip().to_string());
    let options = Options {
        names: names.collect(),
        ..Options::default()
    };
    Server::open(options, &arguments.data_dir)
        .await
        .with_context(|| format!("--data-dir {}", arguments.data_dir.display()))
}

async fn serve(server: &Server, arguments: ServerArguments, stop: &mut Stop) -> anyhow::Result<()> {
    let before = server.kept_address();
    let listening = listen(server, arguments.listen, before).await?;
    let management = cluster(server, MANAGEMENT)?;
    for name in &arguments.cluster {
        cluster(server, name).with_context(|| format!("--cluster {name}"))?;
    }
    // A kubeconfig that people have is good for what is on the disk.
    server.durable().await?;
    let kubeconfig = arguments.data_dir.join("kubeconfig");
    hub::write_private(&kubeconfig, &all(server, &management)?)?;
    let client = hub::client(&management.kubeconfig()).await?;

    let controller = tokio::select! {
        started = start(client, &arguments.data_dir, arguments.work, arguments.no_controller) => started?,
        () = stop.asked() => return Ok(()),
    };
    tell(server, &listening, before, &kubeconfig, controller.is_some());
    stop.asked().await;
    if let Some(controller) = controller {
        controller.stop().await;
    }
    Ok(())
}

/// Installs the definitions, and starts the controller if there is to be one.
async fn start(
    hub: Client,
    folder: &Path,
    work: WorkArguments,
    no_controller: bool,
) -> anyhow::Result<Option<Controller>> {
    hub::install(&hub).await?;
    if no_controller {
        return Ok(None);
    }
    let settings = work.settings(folder.join("controller"));
    Ok(Some(Controller::start(hub, settings).await?))
}

/// Listens where it is told, else where it has been before, so that kubeconfigs stay valid.
async fn listen(
    server: &Server,
    wanted: Option<SocketAddr>,
    before: Option<SocketAddr>,
) -> anyhow::Result<Listening> {
    let address = wanted.or(before).unwrap_or_else(|| ([127, 0, 0, 1], 0).into());
    server.listen(address).await.with_context(|| match wanted {
        Some(_) => format!("--listen {address}"),
        None => format!(
            "the address of before, {address}, is in every kubeconfig of this server: free it, or name another one \
             with --listen"
        ),
    })
}

fn cluster(server: &Server, name: &str) -> Result<ClusterHandle, ServerError> {
    match server.cluster(name) {
        Some(cluster) => Ok(cluster),
        None => server.create_cluster(name),
    }
}

/// A kubeconfig of all clusters.
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
fn tell(
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
        println!("it was at {before} before: kubeconfigs that were copied have to be copied again");
    }
    println!("  export KUBECONFIG={}", kubeconfig.display());
    println!("  kubectl get starling -A");
}
