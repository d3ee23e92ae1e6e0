//! The command line: one file per subcommand.

mod cluster;
mod controller;
mod crds;
mod demo;
mod files;
mod hub;
mod logs;
mod server;
mod stop;

use clap::{Parser, Subcommand};

/// Keeps any number of Kubernetes clusters in step with git.
#[derive(Debug, Parser)]
#[command(name = "starling", version, about, max_term_width = 100)]
struct Arguments {
    #[command(flatten)]
    logs: logs::LogArguments,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Add member clusters to a management cluster
    Cluster(cluster::ClusterArguments),
    /// Run the controller
    Controller(controller::ControllerArguments),
    /// Print the CustomResourceDefinitions, or write them to a folder
    Crds(crds::CrdsArguments),
    /// Start control planes on this machine and roll two commits through them
    Demo(demo::DemoArguments),
    /// Run a management cluster of its own, in this process and one folder
    Server(server::ServerArguments),
}

/// Runs the program with the arguments of the process.
///
/// # Errors
/// What the subcommand could not do.
pub fn run() -> anyhow::Result<()> {
    let Arguments { logs, command } = Arguments::parse();
    match command {
        Command::Crds(arguments) => crds::run(&arguments),
        Command::Cluster(arguments) => {
            logs::init(&logs, "off")?;
            let runtime = runtime()?;
            let result = runtime.block_on(cluster::run(arguments));
            // A sign-in program that never ends must not keep this one from ending.
            runtime.shutdown_background();
            result
        }
        Command::Controller(arguments) => {
            logs::init(&logs, "info")?;
            runtime()?.block_on(controller::run(arguments))
        }
        Command::Demo(arguments) => {
            // The progress display is the output; the log stays out of its way unless it is asked for.
            logs::init(&logs, "off")?;
            runtime()?.block_on(demo::run(arguments))
        }
        Command::Server(arguments) => {
            logs::init(&logs, "info")?;
            runtime()?.block_on(server::run(arguments))
        }
    }
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    files::allow_many();
    // rustls takes one provider for the whole process; this is the one that kube was built with.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}
