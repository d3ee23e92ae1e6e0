//! The command line: one file per subcommand.

mod access;
mod caller;
mod cluster;
mod controller;
mod crds;
mod demo;
mod explain;
mod files;
mod get;
mod history;
mod hub;
mod journal;
mod lists;
mod logs;
mod output;
mod preview;
mod server;
mod simulate;
mod span;
mod steer;
mod stop;
mod tree;
mod verify;
mod wait;
mod why;

use std::process::ExitCode;

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
    /// Show what would change on one cluster
    Diff(preview::DiffArguments),
    /// Show groups, clusters, Syncs and what people said, as tables
    Get(get::GetArguments),
    /// Tell of the rollouts of a group: what became of them, who said what to them
    History(history::HistoryArguments),
    /// Show what would change on every cluster of a group
    Plan(preview::PlanArguments),
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
    /// Show how a rollout would go, in simulated time
    Simulate(simulate::SimulateArguments),
    /// Pass over a cluster or a stage in this rollout
    Skip(steer::SkipArguments),
    /// Show a group from its Sources to the Syncs on its clusters
    Tree(tree::TreeArguments),
    /// Replay the journal of a group: whether it is what was written, and no plan in it breaks a rule
    Verify(verify::VerifyArguments),
    /// Wait until a revision is on a whole group
    Wait(wait::WaitArguments),
    /// Tell why a group, a cluster or a Sync is not done, what ends that, and when; or how it stood in the past
    Why(why::WhyArguments),
}

/// Runs the program with the arguments of the process.
///
/// # Errors
/// What the subcommand could not do.
pub fn run() -> anyhow::Result<ExitCode> {
    let Arguments { logs, command } = Arguments::parse();
    let done = match command {
        Command::Crds(arguments) => crds::run(&arguments),
        Command::Cluster(arguments) => speak(&logs, cluster::run(arguments)),
        Command::Controller(arguments) => {
            logs::init(&logs, "info")?;
            runtime()?.block_on(controller::run(arguments))
        }
        Command::Diff(arguments) => {
            return Ok(preview::exit_code(speak(&logs, preview::diff(arguments))));
        }
        Command::Plan(arguments) => {
            return Ok(preview::exit_code(speak(&logs, preview::plan(arguments))));
        }
        Command::Wait(arguments) => {
            return Ok(wait::exit_code(speak(&logs, wait::run(arguments))));
        }
        Command::Verify(arguments) => {
            return Ok(verify::exit_code(speak(&logs, verify::run(arguments))));
        }
        Command::Get(arguments) => speak(&logs, get::run(arguments)),
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
        Command::Simulate(arguments) => speak(&logs, simulate::run(arguments)),
        Command::Skip(arguments) => speak(&logs, steer::skip(arguments)),
        Command::History(arguments) => speak(&logs, history::run(arguments)),
        Command::Why(arguments) => speak(&logs, why::run(arguments)),
        Command::Tree(arguments) => speak(&logs, tree::run(arguments)),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// Runs a command that signs in as the caller does, and whose output is not the log.
fn speak<T>(
    logs: &logs::LogArguments,
    command: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    logs::init(logs, "off")?;
    let runtime = runtime()?;
    let result = runtime.block_on(command);
    // A sign-in program that never ends must not keep this one from ending.
    runtime.shutdown_background();
    result
}

/// The last word of a command that failed. Not anyhow's own: that one says what kube quotes.
pub fn complain(error: &anyhow::Error) {
    say(&crate::chain(error.as_ref()));
}

/// What is said beside the output.
#[expect(clippy::print_stderr, reason = "what is said beside the output")]
fn say(text: &str) {
    eprintln!("starling: {text}");
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    files::allow_many();
    // rustls takes one provider for the whole process; this is the one that kube was built with.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}
