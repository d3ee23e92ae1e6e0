//! Logs: text or JSON on standard error.

use std::io::IsTerminal;

use anyhow::Context;
use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

/// Options of the log.
#[derive(Debug, Args)]
pub(super) struct LogArguments {
    /// Log format on standard error
    #[arg(long, global = true, help_heading = "Global options", value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    /// Log filter in tracing syntax, such as info, debug or starling=debug
    #[arg(
        long,
        global = true,
        help_heading = "Global options",
        value_name = "FILTER",
        env = "STARLING_LOG"
    )]
    log_filter: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

/// kube logs every failed request at ERROR; an unreachable member would flood the log with what its condition says.
/// kube also logs every response that it cannot parse, which may be a Secret.
const QUIET: &str = "kube_client::client=off";

pub(super) fn init(arguments: &LogArguments, default: &str) -> anyhow::Result<()> {
    let filter = filter(arguments.log_filter.as_deref().unwrap_or(default))?;
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // Colours are for terminals; in a file they break a search.
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
        .with_context(|| format!("--log-filter or STARLING_LOG: invalid filter {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_filter_is_named_with_its_origin() {
        assert!(filter("info").is_ok() && filter("off,starling=debug").is_ok());
        let error = format!("{:#}", filter("starling=loud").unwrap_err());
        for expected in ["--log-filter", "STARLING_LOG", "starling=loud"] {
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }
}
