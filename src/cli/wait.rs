//! `starling wait`: for pipelines, until a revision is on the whole group, or is not going to be.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use futures::TryStreamExt as _;
use kube::Api;
use kube::runtime::watcher;
use starling_api::{RolloutDirection, RolloutPhase, SyncGroup, SyncGroupStatus};
use starling_core::revision::is_named;

use super::caller::{Caller, CallerArguments};
use super::{explain, lists};

/// It is done.
const DONE: u8 = 0;
/// It failed, was given up or gone back from, or something newer took its place.
const FAILED: u8 = 1;
/// It cannot be told: no such group, no rights, no answer.
const PROBLEM: u8 = 2;
/// It was neither done nor failed in time.
const TIMED_OUT: u8 = 3;

/// What is waited for.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 done, 1 failed, gone back from or overtaken, 2 it cannot be told, 3 not in time."
)]
pub(super) struct WaitArguments {
    /// The SyncGroup
    #[arg(value_name = "GROUP")]
    group: String,
    /// The revision: a tag, a commit or the beginning of one, or as `status` shows it
    #[arg(long, value_name = "REVISION")]
    revision: String,
    /// How long, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    timeout: u64,
    /// Something newer that has it in its past is not as good: wait for exactly this one. Without it, a release that takes its
    /// place and succeeds counts too
    #[arg(long)]
    exactly: bool,
    #[command(flatten)]
    caller: CallerArguments,
}

/// How far the revision is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Standing {
    /// Not rolled yet.
    Awaited,
    /// Under way; for people.
    Rolls(String),
    /// On the whole group.
    Done,
    /// Not going to be.
    Failed(String),
}

pub(super) fn exit_code(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        super::complain(&error);
        ExitCode::from(PROBLEM)
    })
}

pub(super) async fn run(arguments: WaitArguments) -> anyhow::Result<ExitCode> {
    let caller = Caller::sign_in(&arguments.caller).await?;
    // A group that is not there is a mistake, not something to wait for.
    lists::group(&caller, &arguments.group).await?;
    let limit = Duration::from_secs(arguments.timeout);
    let waited = tokio::time::timeout(limit, until_known(&caller, &arguments)).await;
    Ok(ExitCode::from(match waited {
        Err(_) => {
            super::say(&format!("not done after {} s", arguments.timeout));
            TIMED_OUT
        }
        Ok(standing) => match standing? {
            Standing::Failed(why) => {
                super::say(&why);
                FAILED
            }
            _ => DONE,
        },
    }))
}

async fn until_known(caller: &Caller, arguments: &WaitArguments) -> anyhow::Result<Standing> {
    let api: Api<SyncGroup> = Api::namespaced(caller.client.clone(), &caller.namespace);
    let config = watcher::Config::default().fields(&format!("metadata.name={}", arguments.group));
    let events = watcher(api, config);
    futures::pin_mut!(events);
    let (mut said, mut seen) = (String::new(), false);
    loop {
        let event = match events.try_next().await {
            Ok(event) => event.context("the watch ended")?,
            // A break heals by itself; a right that is missing does not.
            Err(error) if is_refused(&error) => return Err(explain::watch(error)),
            Err(_) => continue,
        };
        let group = match event {
            watcher::Event::Init | watcher::Event::InitDone => continue,
            watcher::Event::Delete(_) => return Ok(Standing::Failed("the group was deleted".into())),
            watcher::Event::InitApply(group) | watcher::Event::Apply(group) => group,
        };
        let status = group.status.unwrap_or_default();
        match standing(&status, &arguments.revision, seen, arguments.exactly) {
            Standing::Awaited => {}
            Standing::Rolls(text) => {
                seen = true;
                if text != said {
                    super::say(&text);
                    said = text;
                }
            }
            known => return Ok(known),
        }
    }
}

fn is_refused(error: &watcher::Error) -> bool {
    let status = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status)) => status.code,
        watcher::Error::WatchError(status) => status.code,
        _ => return false,
    };
    matches!(status, 401 | 403 | 404)
}

/// `seen`: it rolled when it was looked at before.
fn standing(status: &SyncGroupStatus, revision: &str, seen: bool, exactly: bool) -> Standing {
    let has = |revisions: &[starling_api::EntryRevision]| {
        revisions.iter().any(|entry| is_named(&entry.revision, revision))
    };
    if let Some(held) = status.held_release.as_ref().filter(|held| has(&held.revisions)) {
        return Standing::Failed(format!("gone back from: {}", held.reason));
    }
    let Some(rollout) = &status.rollout else {
        return Standing::Awaited;
    };
    if !has(&rollout.revisions) {
        let overtaken = seen && rollout.direction == RolloutDirection::Forward;
        return match rollout.phase {
            RolloutPhase::Succeeded if overtaken && !exactly => Standing::Done,
            _ if overtaken && exactly => Standing::Failed(format!("rollout {} took its place", rollout.id)),
            _ if seen && rollout.direction != RolloutDirection::Forward => {
                Standing::Failed(format!("rollout {} goes back from it", rollout.id))
            }
            _ => Standing::Awaited,
        };
    }
    let counts = status.clusters;
    let told = format!(
        "rollout {}: {:?}, {} of {} done, {} failed{}",
        rollout.id,
        rollout.phase,
        counts.updated,
        counts.total,
        counts.failed,
        if rollout.stage.is_empty() {
            String::new()
        } else {
            format!(", stage {}", rollout.stage)
        },
    );
    match rollout.phase {
        RolloutPhase::Succeeded => Standing::Done,
        RolloutPhase::Failed | RolloutPhase::Superseded => Standing::Failed(told),
        RolloutPhase::Paused => {
            // What a person paused, a person lets go on; what failed goes on only if somebody repairs it.
            let failed = rollout.blocked_by.iter().find(|blocker| {
                matches!(
                    blocker.reason.as_str(),
                    "TooManyFailures" | "GateFailed" | "Aborted"
                )
            });
            match failed {
                Some(blocker) => Standing::Failed(format!("{told}: {}: {}", blocker.reason, blocker.message)),
                None => Standing::Rolls(told),
            }
        }
        RolloutPhase::Pending | RolloutPhase::Progressing | RolloutPhase::RollingBack => {
            Standing::Rolls(told)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const REVISION: &str = "v2@sha1:8d1e2f3a00000000000000000000000000000000";

    #[expect(
        clippy::needless_pass_by_value,
        reason = "reads like the literals it is given"
    )]
    fn status(rollout: Value, more: Value) -> SyncGroupStatus {
        let mut status = json!({"clusters": {"total": 3, "updated": 1}, "rollout": rollout});
        status
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        serde_json::from_value(status).unwrap()
    }

    fn rollout(phase: &str, revision: &str) -> Value {
        json!({"id": 4, "phase": phase, "revisions": [{"sync": "app", "revision": revision}]})
    }

    fn of(status: &SyncGroupStatus, seen: bool) -> Standing {
        standing(status, "v2", seen, false)
    }

    #[test]
    fn a_revision_is_done_when_the_rollout_is() {
        assert_eq!(of(&SyncGroupStatus::default(), false), Standing::Awaited);
        assert_eq!(
            of(&status(rollout("Succeeded", REVISION), json!({})), false),
            Standing::Done
        );
        assert_eq!(
            of(&status(rollout("Succeeded", "v1@sha1:00"), json!({})), false),
            Standing::Awaited
        );
        let rolls = of(&status(rollout("Progressing", REVISION), json!({})), false);
        assert_eq!(
            rolls,
            Standing::Rolls("rollout 4: Progressing, 1 of 3 done, 0 failed".into())
        );
    }

    #[test]
    fn what_is_not_going_to_be_is_failed() {
        let with = |reason: &str| {
            let mut rollout = rollout("Paused", REVISION);
            rollout["blockedBy"] = json!([{"reason": reason, "message": "why"}]);
            of(&status(rollout, json!({})), false)
        };
        for reason in ["TooManyFailures", "GateFailed", "Aborted"] {
            assert!(
                matches!(with(reason), Standing::Failed(why) if why.contains(reason)),
                "{reason}"
            );
        }
        assert!(matches!(with("Paused"), Standing::Rolls(_)));
        assert!(matches!(
            of(&status(rollout("Failed", REVISION), json!({})), false),
            Standing::Failed(_)
        ));
        let held = json!({"heldRelease": {"release": "r", "revisions": [{"sync": "app", "revision": REVISION}], "reason": "2 failed"}});
        assert_eq!(
            of(&status(rollout("Progressing", "v1@sha1:00"), held), false),
            Standing::Failed("gone back from: 2 failed".into())
        );
    }

    #[test]
    fn something_newer_that_succeeds_counts_unless_exactly_this_is_wanted() {
        let newer = status(rollout("Succeeded", "v3@sha1:00"), json!({}));
        assert_eq!(standing(&newer, "v2", true, false), Standing::Done);
        assert!(matches!(standing(&newer, "v2", true, true), Standing::Failed(_)));
        let rolls = status(rollout("Progressing", "v3@sha1:00"), json!({}));
        assert_eq!(standing(&rolls, "v2", true, false), Standing::Awaited);
        let mut back = rollout("Progressing", "v1@sha1:00");
        back["direction"] = "Back".into();
        assert!(matches!(
            standing(&status(back, json!({})), "v2", true, false),
            Standing::Failed(_)
        ));
    }
}
