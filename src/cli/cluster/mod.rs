//! `starling cluster`: member clusters, from the command line.

mod add;
mod grants;
mod manifest;
mod plan;

use clap::{Args, Subcommand};

/// What is done with clusters.
#[derive(Debug, Args)]
pub(super) struct ClusterArguments {
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(Debug, Subcommand)]
enum ClusterCommand {
    /// Add a member: an account with the rights that Starling needs there, a token that is renewed, and a Cluster
    Add(Box<add::AddArguments>),
}

pub(super) async fn run(arguments: ClusterArguments) -> anyhow::Result<()> {
    match arguments.command {
        ClusterCommand::Add(arguments) => add::run(*arguments).await,
    }
}
