//! `starling demo`.
use clap::Args;
/// Demo.
#[derive(Debug, Args)]
pub(super) struct DemoArguments {
    /// End after the second commit has been rolled out
    #[arg(long)]
    once: bool,
}
pub(super) async fn run(_arguments: DemoArguments) -> anyhow::Result<()> {
    anyhow::bail!("not wired")
}
