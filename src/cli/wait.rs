//! `starling wait`: waits until a revision has rolled out to a group, for pipelines.

use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use futures::TryStreamExt as _;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, ResourceExt};
use starling_api::{Duration, Source, SyncGroup};

use super::caller::{Caller, CallerArguments};
use super::duration::duration_or_seconds;
use super::value::InvalidValue;
use super::{kube_errors, lists};
use crate::read_model::revision_progress::{FollowedRevision, RevisionProgress, source_of_branch, stalled};

/// The revision has rolled out.
const DONE: u8 = 0;
/// The rollout failed, was aborted, rolled back or superseded.
const FAILED: u8 = 1;
/// Unknown: no such group, no permission, no response, or a stalled group.
const PROBLEM: u8 = 2;
/// Timed out.
const TIMED_OUT: u8 = 3;

/// Options of `wait`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 the revision has rolled out to the whole group, or (without --exactly) a newer release superseded it and \
                  succeeded; 1 failed, aborted or rolled back, or (with --exactly) superseded; 2 unknown: group not found, no \
                  permission, or group stalled; 3 timed out."
)]
pub(super) struct WaitArguments {
    /// Name of the SyncGroup
    #[arg(value_name = "GROUP")]
    group: String,
    /// Revision to wait for: a tag, a commit, a commit prefix, or a revision as in `.status` and `starling get`. Not
    /// a branch: earlier rollouts have the name of the branch, too
    #[arg(long, value_name = "REVISION")]
    revision: String,
    /// Maximum time to wait, such as 30m, 90s or a number of seconds
    #[arg(long, value_name = "DURATION", default_value = "30m", value_parser = timeout)]
    timeout: Duration,
    /// Exit with 1 if a newer release supersedes this revision. Default: a newer release counts as soon as it succeeds
    #[arg(long)]
    exactly: bool,
    #[command(flatten)]
    caller: CallerArguments,
}

fn timeout(text: &str) -> Result<Duration, InvalidValue> {
    Ok(duration_or_seconds(text)?.into())
}

pub(super) fn exit_code(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        super::print_error(&error);
        ExitCode::from(PROBLEM)
    })
}

pub(super) async fn run(arguments: WaitArguments) -> anyhow::Result<ExitCode> {
    let caller = Caller::sign_in(&arguments.caller).await?;
    // A missing group is an error, not something to wait for.
    let group = lists::group(&caller, &arguments.group).await?;
    // The caller may lack permission to list Sources; then the revision is not checked.
    let sources: Vec<Source> = lists::all(&caller).await.unwrap_or_default();
    refuse_branch(&group, &sources, &arguments.revision)?;
    let waited = tokio::time::timeout(arguments.timeout.as_std(), follow(&caller, &arguments)).await;
    Ok(ExitCode::from(match waited {
        Err(_) => {
            super::print_notice(&format!("timed out after {}", arguments.timeout));
            TIMED_OUT
        }
        Ok(progress) => match progress? {
            RevisionProgress::Failed(why) => {
                super::print_notice(&why);
                FAILED
            }
            _ => DONE,
        },
    }))
}

/// Refuses the name of a branch: the rollout before a push has the same name, so the wait would end at once.
fn refuse_branch(group: &SyncGroup, sources: &[Source], revision: &str) -> anyhow::Result<()> {
    if let Some(source) = source_of_branch(group, sources, revision) {
        bail!(
            "--revision {revision} is the branch of Source {}, and earlier rollouts have that name, too; give the commit: \
             --revision \"$(git rev-parse HEAD)\"",
            source.name_any()
        );
    }
    Ok(())
}

/// Watches the group until the rollout of the revision ends.
async fn follow(caller: &Caller, arguments: &WaitArguments) -> anyhow::Result<RevisionProgress> {
    let api: Api<SyncGroup> = Api::namespaced(caller.client.clone(), &caller.namespace);
    let config = watcher::Config::default().fields(&format!("metadata.name={}", arguments.group));
    let events = watcher(api, config).default_backoff();
    futures::pin_mut!(events);
    let mut failures = kube_errors::WatchFailures::default();
    let (mut printed, mut was_in_progress) = (String::new(), false);
    loop {
        let event = match events.try_next().await {
            Ok(event) => event.context("watch closed")?,
            Err(error) => {
                if let Some(text) = failures.record(error)? {
                    super::print_notice(&text);
                }
                continue;
            }
        };
        failures.observe(&event);
        let group = match event {
            watcher::Event::Init | watcher::Event::InitDone => continue,
            watcher::Event::Delete(_) => return Ok(RevisionProgress::Failed("SyncGroup deleted".into())),
            watcher::Event::InitApply(group) | watcher::Event::Apply(group) => group,
        };
        let stalled = stalled(&group);
        let status = group.status.unwrap_or_default();
        let followed = FollowedRevision {
            revision: &arguments.revision,
            was_in_progress,
            exactly: arguments.exactly,
        };
        let progress = followed.progress(&status);
        if let RevisionProgress::Succeeded | RevisionProgress::Failed(_) = progress {
            return Ok(progress);
        }
        if let Some(why) = stalled {
            bail!("SyncGroup {} is stalled: {why}", arguments.group);
        }
        let text = match progress {
            RevisionProgress::Pending | RevisionProgress::Succeeded | RevisionProgress::Failed(_) => continue,
            RevisionProgress::OtherRollout(text) => text,
            RevisionProgress::InProgress(text) => {
                was_in_progress = true;
                text
            }
        };
        if text != printed {
            super::print_notice(&text);
            printed = text;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_timeout_is_a_duration_or_a_number_of_seconds() {
        for (text, seconds) in [("1800", 1800), ("30m", 1800), ("90s", 90), ("1h30m", 5400)] {
            assert_eq!(timeout(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert!(timeout("soon").is_err() && timeout("-1").is_err());
    }

    #[test]
    fn the_name_of_a_branch_is_refused_with_what_to_give() {
        let group: SyncGroup =
            serde_json::from_value(json!({"apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup",
            "metadata": {"name": "shop"},
            "spec": {"clusterSelector": {}, "syncs": [{"name": "app", "sourceRef": {"name": "s"}}]}}))
            .unwrap();
        let source: Source =
            serde_json::from_value(json!({"apiVersion": "starling.dev/v1alpha1", "kind": "Source",
            "metadata": {"name": "s"}, "spec": {"url": "https://h/r", "ref": {"branch": "main"}}}))
            .unwrap();
        let sources = [source];
        let error = refuse_branch(&group, &sources, "main").unwrap_err().to_string();
        assert!(
            error.contains("Source s") && error.contains("git rev-parse HEAD"),
            "{error}"
        );
        assert!(refuse_branch(&group, &sources, "8d1e2f3a").is_ok());
    }
}
