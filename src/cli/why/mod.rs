//! `starling why`: why something is not done yet, what ends that, and when it may be done; or how it stood in the past.
//!
//! The present is told from the objects on the management cluster, with the rights of whoever asks: the planner is asked what the
//! controller asks it. The past is told from the controller's journal.

mod past;
mod present;
mod tell;

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::bail;
use clap::Args;
use jiff::Timestamp;

use super::caller::CallerArguments;
use super::output::Form;

/// What is asked.
#[derive(Debug, Args)]
pub(super) struct WhyArguments {
    /// GROUP, sync/NAME or cluster/NAME
    #[arg(value_name = "SUBJECT")]
    subject: Subject,
    /// How it stood then, such as 2026-11-21T16:00:00Z; without it now. Needs --data-dir
    #[arg(long, value_name = "TIME", requires = "data_dir", value_parser = time)]
    at: Option<Timestamp>,
    /// Folder of the controller, or of `starling server`: its journal knows the past, and how long clusters took before
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// How it is printed
    #[arg(long, short, value_enum, default_value_t)]
    output: Form,
    #[command(flatten)]
    caller: CallerArguments,
}

/// What it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Subject {
    Group(String),
    Sync(String),
    Cluster(String),
}

impl FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (kind, name) = text.split_once('/').unwrap_or(("syncgroup", text));
        let name = name.to_owned();
        match kind.to_ascii_lowercase().as_str() {
            "syncgroup" | "syncgroups" | "group" | "sg" => Ok(Self::Group(name)),
            "sync" | "syncs" => Ok(Self::Sync(name)),
            "cluster" | "clusters" => Ok(Self::Cluster(name)),
            other => Err(format!(
                "{other} is none of these: GROUP, sync/NAME, cluster/NAME"
            )),
        }
    }
}

fn time(text: &str) -> Result<Timestamp, String> {
    text.parse().map_err(|_| {
        "write it with its offset, such as 2026-11-21T16:00:00Z or 2026-11-21T17:00:00+01:00".to_owned()
    })
}

pub(super) async fn run(arguments: WhyArguments) -> anyhow::Result<()> {
    let told = match (&arguments.at, &arguments.data_dir) {
        (Some(at), Some(data_dir)) => {
            past::tell(&arguments.subject, *at, data_dir, &arguments.caller).await?
        }
        (Some(_), None) => bail!("--at needs --data-dir: the past stands in the controller's journal"),
        (None, data_dir) => present::tell(&arguments.subject, data_dir.as_deref(), &arguments.caller).await?,
    };
    tell::print(&told, arguments.output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_a_group_a_sync_or_a_cluster() {
        for (text, expected) in [
            ("web", Subject::Group("web".into())),
            ("syncgroup/web", Subject::Group("web".into())),
            ("sync/web-eu-1", Subject::Sync("web-eu-1".into())),
            ("clusters/eu-1", Subject::Cluster("eu-1".into())),
        ] {
            assert_eq!(text.parse(), Ok(expected));
        }
        let error = "pod/x".parse::<Subject>().unwrap_err();
        assert_eq!(error, "pod is none of these: GROUP, sync/NAME, cluster/NAME");
        assert!(time("yesterday").is_err() && time("2026-11-21T17:00:00+01:00").is_ok());
    }
}
