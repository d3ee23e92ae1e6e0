//! Logs: text or JSON on standard error.

use std::io::IsTerminal;

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

/// How the log is written.
#[derive(Debug, Args)]
pub(super) struct LogArguments {
    /// Format of the log on standard error
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    /// What is logged, as tracing's filters say it: info, debug, starling=debug
    #[arg(long, global = true, env = "STARLING_LOG")]
    log_filter: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

/// kube logs every failed request at ERROR; an unreachable member would flood the log with what its condition says.
const QUIET: &str = "kube_client::client::builder=off";

pub(super) fn init(arguments: &LogArguments, default: &str) -> anyhow::Result<()> {
    let filter = arguments.log_filter.as_deref().unwrap_or(default);
    let filter = EnvFilter::try_new(format!("{filter},{QUIET}"))?;
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // Colours are for people; in a file they are in the way of whoever searches it.
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    match arguments.log_format {
        LogFormat::Text => subscriber.init(),
        LogFormat::Json => subscriber.json().flatten_event(true).init(),
    }
    Ok(())
}
