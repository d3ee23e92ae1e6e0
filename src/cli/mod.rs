//! The command line: one file or directory per subcommand.

mod access;
mod actions;
mod caller;
mod cluster;
mod controller;
mod crds;
mod demo;
mod duration;
mod get;
mod history;
mod hub;
mod install;
mod kube_errors;
mod lists;
mod logs;
mod open_files;
mod output;
mod preview;
mod removals;
mod server;
mod signals;
mod simulate;
mod tree;
mod undelete;
mod value;
mod verify;
mod wait;
mod why;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use starling_api::ActionType;

/// Keep any number of Kubernetes clusters in sync with git.
#[derive(Debug, Parser)]
#[command(name = "starling", version, max_term_width = 100)]
struct Arguments {
    #[command(flatten)]
    logs: logs::LogArguments,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Abort a rollout: no more clusters start
    Abort(actions::PlainArguments),
    /// Approve a stage of a rollout
    Approve(actions::ApproveArguments),
    /// Approve one list of held deletions
    ApproveDeletions(actions::ApproveDeletionsArguments),
    /// Manage member clusters
    Cluster(cluster::ClusterArguments),
    /// Run the controller
    Controller(controller::ControllerArguments),
    /// Print the CustomResourceDefinitions, or write them to a directory
    Crds(crds::CrdsArguments),
    /// Run a demo fleet on this machine and roll out two commits
    Demo(demo::DemoArguments),
    /// Show what a rollout would change on one cluster
    Diff(preview::DiffArguments),
    /// Display SyncGroups, Clusters, Syncs, Sources, approvals and operator actions
    Get(get::GetArguments),
    /// Show rollout history and operator actions
    History(history::HistoryArguments),
    /// Print the manifests of an installation, with permissions for named namespaces only
    Install(install::InstallArguments),
    /// Show what a rollout would change on every cluster of a group
    Plan(preview::PlanArguments),
    /// Pause a rollout: no more clusters start, clusters in flight finish
    Pause(actions::PlainArguments),
    /// Promote a stage: start the next stage before this stage completes
    Promote(actions::PromoteArguments),
    /// Allow a held release to roll out again
    Release(actions::PlainArguments),
    /// Show what a restored management cluster would write, and release its writes
    ReleaseRestore(preview::RestoreArguments),
    /// Resume a paused rollout
    Resume(actions::PlainArguments),
    /// Retry failed clusters and failed gates now
    Retry(actions::RetryArguments),
    /// Roll back to an earlier release
    Rollback(actions::RollbackArguments),
    /// Run an embedded management cluster and the controller in one process
    Server(server::ServerArguments),
    /// Simulate a rollout and forecast its duration
    Simulate(simulate::SimulateArguments),
    /// Skip a cluster or a stage in this rollout
    Skip(actions::SkipArguments),
    /// Show a group as a tree: Sources, stages, Clusters and Syncs
    Tree(tree::TreeArguments),
    /// Keep objects whose deletion is pending
    Undelete(undelete::UndeleteArguments),
    /// Verify the journal of a group: its hash chain and the rules of every plan
    Verify(verify::VerifyArguments),
    /// Wait until a revision has rolled out to a whole group
    Wait(wait::WaitArguments),
    /// Explain what blocks a group, cluster or Sync, and until when
    Why(why::WhyArguments),
}

/// Runs the program with the arguments of the process.
///
/// # Errors
/// If the subcommand fails.
pub fn run() -> anyhow::Result<ExitCode> {
    let Arguments { logs, command } = Arguments::parse();
    let done = match command {
        Command::Crds(arguments) => crds::run(&arguments),
        Command::Install(arguments) => install::run(&arguments),
        Command::Cluster(arguments) => run_as_caller(&logs, cluster::run(arguments)),
        Command::Controller(arguments) => {
            logs::init(&logs, "info")?;
            runtime()?.block_on(controller::run(arguments))
        }
        Command::Diff(arguments) => {
            return Ok(preview::exit_code(run_as_caller(&logs, preview::diff(arguments))));
        }
        Command::Plan(arguments) => {
            return Ok(preview::exit_code(run_as_caller(&logs, preview::plan(arguments))));
        }
        Command::ReleaseRestore(arguments) => {
            let done = run_as_caller(&logs, preview::release_restore(arguments));
            return Ok(preview::exit_code(done));
        }
        Command::Wait(arguments) => {
            return Ok(wait::exit_code(run_as_caller(&logs, wait::run(arguments))));
        }
        Command::Verify(arguments) => {
            return Ok(verify::exit_code(run_as_caller(&logs, verify::run(arguments))));
        }
        Command::Get(arguments) => run_as_caller(&logs, get::run(arguments)),
        Command::Demo(arguments) => {
            // The progress display is the output; the log is off unless it is requested.
            logs::init(&logs, "off")?;
            runtime()?.block_on(demo::run(arguments))
        }
        Command::Server(arguments) => {
            logs::init(&logs, "info")?;
            runtime()?.block_on(server::run(arguments))
        }
        Command::Abort(arguments) => run_as_caller(&logs, actions::plain(ActionType::Abort, arguments)),
        Command::Approve(arguments) => run_as_caller(&logs, actions::approve(arguments)),
        Command::ApproveDeletions(arguments) => run_as_caller(&logs, actions::approve_deletions(arguments)),
        Command::Pause(arguments) => run_as_caller(&logs, actions::plain(ActionType::Pause, arguments)),
        Command::Promote(arguments) => run_as_caller(&logs, actions::promote(arguments)),
        Command::Release(arguments) => run_as_caller(&logs, actions::plain(ActionType::Release, arguments)),
        Command::Resume(arguments) => run_as_caller(&logs, actions::plain(ActionType::Resume, arguments)),
        Command::Retry(arguments) => run_as_caller(&logs, actions::retry(arguments)),
        Command::Rollback(arguments) => run_as_caller(&logs, actions::rollback(arguments)),
        Command::Simulate(arguments) => run_as_caller(&logs, simulate::run(arguments)),
        Command::Skip(arguments) => run_as_caller(&logs, actions::skip(arguments)),
        Command::History(arguments) => run_as_caller(&logs, history::run(arguments)),
        Command::Why(arguments) => run_as_caller(&logs, why::run(arguments)),
        Command::Tree(arguments) => run_as_caller(&logs, tree::run(arguments)),
        Command::Undelete(arguments) => run_as_caller(&logs, undelete::run(arguments)),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// Runs a command that signs in as the caller, with the log off by default.
fn run_as_caller<T>(
    logs: &logs::LogArguments,
    command: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    logs::init(logs, "off")?;
    let runtime = runtime()?;
    let result = runtime.block_on(command);
    // A credential plugin that never exits must not keep this process alive.
    runtime.shutdown_background();
    result
}

/// Prints the error of a failed command. Not with anyhow's own format, which prints what kube quotes.
pub fn print_error(error: &anyhow::Error) {
    print_notice(&crate::chain(error.as_ref()));
}

/// Prints a message beside the output.
#[expect(clippy::print_stderr, reason = "messages beside the output")]
fn print_notice(text: &str) {
    eprintln!("starling: {text}");
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    open_files::allow_many();
    // rustls takes one provider per process; this is the one that kube was built with.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}
