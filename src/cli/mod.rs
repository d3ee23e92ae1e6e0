//! The command line: one file per subcommand.

mod access;
mod caller;
mod cluster;
mod controller;
mod crds;
mod demo;
mod explain;
mod files;
mod history;
mod hub;
mod journal;
mod logs;
mod server;
mod steer;
mod stop;
mod verify;
mod why;

use clap::{Parser, Subcommand};
use starling_api::ActionType;

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
    /// Give a rollout up: nothing more of it starts
    Abort(steer::PlainArguments),
    /// Approve a stage of a rollout
    Approve(steer::ApproveArguments),
    /// Add member clusters to a management cluster
    Cluster(cluster::ClusterArguments),
    /// Run the controller
    Controller(controller::ControllerArguments),
    /// Print the CustomResourceDefinitions, or write them to a folder
    Crds(crds::CrdsArguments),
    /// Start control planes on this machine and roll two commits through them
    Demo(demo::DemoArguments),
    /// Tell of the rollouts of a group: what became of them, who said what to them
    History(history::HistoryArguments),
    /// Start nothing more of a rollout; what has started finishes
    Pause(steer::PlainArguments),
    /// Let the next stage go without this one being through
    Promote(steer::PromoteArguments),
    /// Let what was held back after a rollback start again
    Release(steer::PlainArguments),
    /// Go on with a rollout that was paused
    Resume(steer::PlainArguments),
    /// Try again at once what failed: clusters, and tasks of stages
    Retry(steer::RetryArguments),
    /// Go back to a release that was good
    Rollback(steer::RollbackArguments),
    /// Run a management cluster of its own, in this process and one folder
    Server(server::ServerArguments),
    /// Pass over a cluster or a stage in this rollout
    Skip(steer::SkipArguments),
    /// Replay the journal of a group: whether it is what was written, and no plan in it breaks a rule
    Verify(verify::VerifyArguments),
    /// Tell why a group, a cluster or a Sync is not done, what ends that, and when; or how it stood in the past
    Why(why::WhyArguments),
}

/// Runs the program with the arguments of the process.
///
/// # Errors
/// What the subcommand could not do.
pub fn run() -> anyhow::Result<()> {
    let Arguments { logs, command } = Arguments::parse();
    match command {
        Command::Crds(arguments) => crds::run(&arguments),
        Command::Cluster(arguments) => speak(&logs, cluster::run(arguments)),
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
        Command::Abort(arguments) => speak(&logs, steer::plain(ActionType::Abort, arguments)),
        Command::Approve(arguments) => speak(&logs, steer::approve(arguments)),
        Command::Pause(arguments) => speak(&logs, steer::plain(ActionType::Pause, arguments)),
        Command::Promote(arguments) => speak(&logs, steer::promote(arguments)),
        Command::Release(arguments) => speak(&logs, steer::plain(ActionType::Release, arguments)),
        Command::Resume(arguments) => speak(&logs, steer::plain(ActionType::Resume, arguments)),
        Command::Retry(arguments) => speak(&logs, steer::retry(arguments)),
        Command::Rollback(arguments) => speak(&logs, steer::rollback(arguments)),
        Command::Skip(arguments) => speak(&logs, steer::skip(arguments)),
        Command::History(arguments) => speak(&logs, history::run(arguments)),
        Command::Verify(arguments) => speak(&logs, verify::run(arguments)),
        Command::Why(arguments) => speak(&logs, why::run(arguments)),
    }
}

/// Runs a command that signs in as the caller does, and whose output is not the log.
fn speak(logs: &logs::LogArguments, command: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    logs::init(logs, "off")?;
    let runtime = runtime()?;
    let result = runtime.block_on(command);
    // A sign-in program that never ends must not keep this one from ending.
    runtime.shutdown_background();
    result
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    files::allow_many();
    // rustls takes one provider for the whole process; this is the one that kube was built with.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}
