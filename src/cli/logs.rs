//! Logs: text or JSON on standard error.

use std::io::IsTerminal;

use anyhow::Context;
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

/// kube logs every failed request at ERROR; an unreachable member would flood the log with what its condition says. And it logs
/// every answer that it cannot read, whole, which may be a Secret.
const QUIET: &str = "kube_client::client=off";

pub(super) fn init(arguments: &LogArguments, default: &str) -> anyhow::Result<()> {
    let filter = filter(arguments.log_filter.as_deref().unwrap_or(default))?;
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

fn filter(text: &str) -> anyhow::Result<EnvFilter> {
    EnvFilter::try_new(format!("{text},{QUIET}"))
        .with_context(|| format!("--log-filter, or STARLING_LOG in the environment: {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_is_none_is_told_with_where_it_comes_from() {
        assert!(filter("info").is_ok() && filter("off,starling=debug").is_ok());
        let error = format!("{:#}", filter("starling=loud").unwrap_err());
        for told in ["--log-filter", "STARLING_LOG", "starling=loud"] {
            assert!(error.contains(told), "{told}: {error}");
        }
    }
}
