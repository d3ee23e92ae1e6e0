//! `starling cluster`: member clusters, from the command line.

mod add;
mod grants;
mod manifest;
mod plan;

use clap::{Args, Subcommand};

/// Subcommands of `cluster`.
#[derive(Debug, Args)]
pub(super) struct ClusterArguments {
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(Debug, Subcommand)]
enum ClusterCommand {
    /// Add a member cluster: create its ServiceAccount, RBAC, token and Cluster object
    Add(Box<add::AddArguments>),
}

pub(super) async fn run(arguments: ClusterArguments) -> anyhow::Result<()> {
    match arguments.command {
        ClusterCommand::Add(arguments) => add::run(*arguments).await,
    }
}
