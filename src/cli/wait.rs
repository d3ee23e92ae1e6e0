//! `starling wait`: for pipelines, until a revision is on the whole group, or is not going to be.

use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use futures::TryStreamExt as _;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, ResourceExt};
use starling_api::conditions::{self, STALLED};
use starling_api::{
    Duration, EntryRevision, RolloutDirection, RolloutPhase, RolloutStatus, Source, SyncGroup,
    SyncGroupStatus,
};
use starling_core::revision::is_named;

use super::caller::{Caller, CallerArguments};
use super::get::shorts;
use super::span::span_or_seconds;
use super::{explain, lists};

/// It is done.
const DONE: u8 = 0;
/// It failed, was given up or gone back from, or something newer took its place.
const FAILED: u8 = 1;
/// It cannot be told: no such group, no rights, no answer, or a group that says that it cannot be rolled.
const PROBLEM: u8 = 2;
/// It was neither done nor failed in time.
const TIMED_OUT: u8 = 3;

/// What is waited for.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 it is on the whole group, or (without --exactly) a newer release took its place and succeeded; \
                  1 failed, given up or gone back from, or (with --exactly) overtaken; 2 it cannot be told; 3 not in time."
)]
pub(super) struct WaitArguments {
    /// The SyncGroup
    #[arg(value_name = "GROUP")]
    group: String,
    /// The revision: a tag, a commit or the beginning of one, or as `status` shows it. Not a branch: what rolled before has the
    /// name of the branch as well
    #[arg(long, value_name = "REVISION")]
    revision: String,
    /// How long: 30m, 90s, or a number of seconds
    #[arg(long, value_name = "DURATION", default_value = "30m", value_parser = limit)]
    timeout: Duration,
    /// Wait for exactly this one: a newer release that takes its place ends it with 1. Without it such a release counts as well, as
    /// soon as it succeeds
    #[arg(long)]
    exactly: bool,
    #[command(flatten)]
    caller: CallerArguments,
}

fn limit(text: &str) -> Result<Duration, String> {
    Ok(span_or_seconds(text)?.into())
}

/// How far the revision is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Standing {
    /// Not rolled yet, and nothing else is.
    Awaited,
    /// Something else rolls; for people.
    Other(String),
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
    let group = lists::group(&caller, &arguments.group).await?;
    // Not everybody who may look at groups may look at Sources; whoever may not is believed.
    let sources: Vec<Source> = lists::all(&caller).await.unwrap_or_default();
    refuse_branch(&group, &sources, &arguments.revision)?;
    let waited = tokio::time::timeout(arguments.timeout.as_std(), until_known(&caller, &arguments)).await;
    Ok(ExitCode::from(match waited {
        Err(_) => {
            super::say(&format!("not done after {}", arguments.timeout));
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

/// The head of a branch has the name of the branch before a push as it has after it: whoever waits for the name would be told of
/// the rollout before.
fn refuse_branch(group: &SyncGroup, sources: &[Source], revision: &str) -> anyhow::Result<()> {
    let is_ours = |source: &&Source| {
        let mut entries = group.spec.syncs.iter();
        entries.any(|entry| entry.template.source_ref.name == source.name_any())
    };
    let follows = |source: &&Source| source.spec.reference.branch.as_deref() == Some(revision);
    if let Some(source) = sources.iter().filter(is_ours).find(follows) {
        bail!(
            "--revision {revision}: that is the branch that Source {} follows, and what rolled before has that name too; \
             give the commit: --revision \"$(git rev-parse HEAD)\"",
            source.name_any()
        );
    }
    Ok(())
}

async fn until_known(caller: &Caller, arguments: &WaitArguments) -> anyhow::Result<Standing> {
    let api: Api<SyncGroup> = Api::namespaced(caller.client.clone(), &caller.namespace);
    let config = watcher::Config::default().fields(&format!("metadata.name={}", arguments.group));
    let events = watcher(api, config).default_backoff();
    futures::pin_mut!(events);
    let mut breaks = explain::Breaks::default();
    let (mut said, mut seen) = (String::new(), false);
    loop {
        let event = match events.try_next().await {
            Ok(event) => event.context("the watch ended")?,
            Err(error) => {
                if let Some(text) = breaks.one_more(error)? {
                    super::say(&text);
                }
                continue;
            }
        };
        breaks.observe(&event);
        let group = match event {
            watcher::Event::Init | watcher::Event::InitDone => continue,
            watcher::Event::Delete(_) => return Ok(Standing::Failed("the group was deleted".into())),
            watcher::Event::InitApply(group) | watcher::Event::Apply(group) => group,
        };
        let stalled = stalled(&group);
        let status = group.status.unwrap_or_default();
        let standing = standing(&status, &arguments.revision, seen, arguments.exactly);
        if let Standing::Done | Standing::Failed(_) = standing {
            return Ok(standing);
        }
        if let Some(why) = stalled {
            bail!("SyncGroup {} cannot be rolled: {why}", arguments.group);
        }
        let text = match standing {
            Standing::Awaited | Standing::Done | Standing::Failed(_) => continue,
            Standing::Other(text) => text,
            Standing::Rolls(text) => {
                seen = true;
                text
            }
        };
        if text != said {
            super::say(&text);
            said = text;
        }
    }
}

/// Why nothing changes until somebody edits something, if the group says so of what its spec is now.
fn stalled(group: &SyncGroup) -> Option<String> {
    let conditions = &group.status.as_ref()?.conditions;
    let generation = group.metadata.generation.unwrap_or_default();
    let stalled = conditions::find(conditions, STALLED)?;
    conditions::is_true(conditions, STALLED, generation)
        .then(|| format!("{}: {}", stalled.reason, stalled.message))
}

/// `seen`: it rolled when it was looked at before.
fn standing(status: &SyncGroupStatus, revision: &str, seen: bool, exactly: bool) -> Standing {
    let has = |revisions: &[EntryRevision]| revisions.iter().any(|entry| is_named(&entry.revision, revision));
    let rollout = status.rollout.as_ref();
    let rolls = rollout.filter(|rollout| has(&rollout.revisions));
    if let Some(rollout) = rolls {
        return under_way(status, rollout);
    }
    // One of several entries may have the same revision in what is gone back to, which is then under way.
    if let Some(held) = status.held_release.as_ref().filter(|held| has(&held.revisions)) {
        return Standing::Failed(format!("gone back from: {}", held.reason));
    }
    match rollout {
        None => Standing::Awaited,
        Some(other) => beside(other, revision, seen, exactly),
    }
}

/// What a rollout of something else means for the revision.
fn beside(other: &RolloutStatus, revision: &str, seen: bool, exactly: bool) -> Standing {
    let (id, rolled) = (other.id, shorts(&other.revisions));
    match (seen, other.direction) {
        (true, RolloutDirection::Forward) if exactly => {
            Standing::Failed(format!("rollout {id} took its place"))
        }
        (true, RolloutDirection::Forward) if other.phase == RolloutPhase::Succeeded => Standing::Done,
        (true, RolloutDirection::Forward) => Standing::Other(format!(
            "rollout {id} rolls {rolled} in the place of {revision}, and counts if it succeeds"
        )),
        (true, RolloutDirection::Back | RolloutDirection::BackAtOnce) => {
            Standing::Failed(format!("rollout {id} goes back from it"))
        }
        // One that has ended is not in the way.
        (false, _)
            if matches!(
                other.phase,
                RolloutPhase::Succeeded | RolloutPhase::Failed | RolloutPhase::Superseded
            ) =>
        {
            Standing::Awaited
        }
        (false, _) => Standing::Other(format!("rollout {id} rolls {rolled}; waiting for {revision}")),
    }
}

/// How far a rollout of the revision is.
fn under_way(status: &SyncGroupStatus, rollout: &RolloutStatus) -> Standing {
    let counts = status.clusters;
    let stage = match rollout.stage.as_str() {
        "" => String::new(),
        stage => format!(", stage {stage}"),
    };
    let told = format!(
        "rollout {}: {:?}, {} of {} done, {} failed{stage}",
        rollout.id, rollout.phase, counts.updated, counts.total, counts.failed,
    );
    let blocker = |is_final: &dyn Fn(&str) -> bool| {
        let blocker = rollout
            .blocked_by
            .iter()
            .find(|blocker| is_final(&blocker.reason))?;
        Some(format!("{told}: {}: {}", blocker.reason, blocker.message))
    };
    match rollout.phase {
        RolloutPhase::Succeeded => Standing::Done,
        RolloutPhase::Superseded => Standing::Failed(told),
        // Nothing is left to start. What failed may still heal, which a pipeline does not wait for.
        RolloutPhase::Failed => Standing::Failed(
            blocker(&|_| true).unwrap_or_else(|| format!("{told}; what failed is tried again by itself")),
        ),
        // What a person paused, a person lets go on; what failed goes on only if somebody repairs it.
        RolloutPhase::Paused => {
            match blocker(&|reason| matches!(reason, "TooManyFailures" | "GateFailed" | "Aborted")) {
                Some(why) => Standing::Failed(why),
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
    fn what_is_gone_back_to_may_share_a_revision_with_what_was_gone_back_from() {
        let held = json!({"heldRelease": {"release": "r", "revisions": [
            {"sync": "app", "revision": "v9@sha1:00"}, {"sync": "base", "revision": REVISION},
        ], "reason": "2 failed"}});
        let back = |phase: &str| {
            let mut rollout = rollout(phase, "v1@sha1:00");
            rollout["direction"] = "Back".into();
            let entries = rollout["revisions"].as_array_mut().unwrap();
            entries.push(json!({"sync": "base", "revision": REVISION}));
            of(&status(rollout, held.clone()), false)
        };
        assert!(matches!(back("RollingBack"), Standing::Rolls(_)));
        assert_eq!(back("Succeeded"), Standing::Done);
    }

    #[test]
    fn whether_what_failed_is_tried_again_is_told() {
        let mut failed = rollout("Failed", REVISION);
        let said = |rollout: &Value| match of(&status(rollout.clone(), json!({})), false) {
            Standing::Failed(why) => why,
            other => format!("{other:?}"),
        };
        assert!(said(&failed).ends_with("; what failed is tried again by itself"));
        failed["blockedBy"] = json!([{"reason": "Aborted", "message": "by jane"}]);
        assert!(said(&failed).ends_with(": Aborted: by jane"));
    }

    #[test]
    fn a_branch_is_refused_if_a_source_of_the_group_follows_it() {
        let group = group(json!({}));
        let source = |name: &str, reference: Value| -> Source {
            serde_json::from_value(json!({"apiVersion": "starling.dev/v1alpha1", "kind": "Source",
                "metadata": {"name": name}, "spec": {"url": "https://h/r", "ref": reference}}))
            .unwrap()
        };
        let sources = [
            source("s", json!({"branch": "main"})),
            source("t", json!({"tag": "v2"})),
            source("other", json!({"branch": "next"})),
        ];
        let error = refuse_branch(&group, &sources, "main").unwrap_err().to_string();
        assert!(
            error.contains("Source s") && error.contains("git rev-parse HEAD"),
            "{error}"
        );
        for revision in ["next", "v2", "8d1e2f3a"] {
            assert!(refuse_branch(&group, &sources, revision).is_ok(), "{revision}");
        }
        assert!(refuse_branch(&group, &[], "main").is_ok());
    }

    #[test]
    fn a_group_that_cannot_be_rolled_is_told_if_that_is_what_its_spec_is_now() {
        let condition = |status: &str, generation: i64| {
            let condition = json!({"type": "Stalled", "status": status, "reason": "BadStrategy", "message": "no",
                "observedGeneration": generation, "lastTransitionTime": "2026-11-21T11:00:00Z"});
            stalled(&group(json!({"conditions": [condition]})))
        };
        assert_eq!(condition("True", 2).as_deref(), Some("BadStrategy: no"));
        assert_eq!(
            (
                condition("True", 1),
                condition("False", 2),
                stalled(&group(json!({})))
            ),
            (None, None, None)
        );
    }

    #[test]
    fn limits_are_durations_or_seconds() {
        for (text, seconds) in [("1800", 1800), ("30m", 1800), ("90s", 90), ("1h30m", 5400)] {
            assert_eq!(limit(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert!(limit("soon").is_err() && limit("-1").is_err());
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "reads like the literals it is given"
    )]
    fn group(status: Value) -> SyncGroup {
        serde_json::from_value(json!({"apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup",
        "metadata": {"name": "shop", "generation": 2}, "status": status,
        "spec": {"clusterSelector": {}, "syncs": [
            {"name": "app", "sourceRef": {"name": "s"}}, {"name": "base", "sourceRef": {"name": "t"}},
        ]}}))
        .unwrap()
    }

    #[test]
    fn something_newer_that_succeeds_counts_unless_exactly_this_is_wanted() {
        let newer = status(rollout("Succeeded", "v3@sha1:00"), json!({}));
        assert_eq!(standing(&newer, "v2", true, false), Standing::Done);
        assert!(matches!(standing(&newer, "v2", true, true), Standing::Failed(_)));
        let rolls = status(rollout("Progressing", "v3@sha1:00"), json!({}));
        let said = |seen: bool| match standing(&rolls, "v2", seen, false) {
            Standing::Other(text) => text,
            other => format!("{other:?}"),
        };
        assert_eq!(said(false), "rollout 4 rolls v3@00; waiting for v2");
        assert_eq!(
            said(true),
            "rollout 4 rolls v3@00 in the place of v2, and counts if it succeeds"
        );
        let mut back = rollout("Progressing", "v1@sha1:00");
        back["direction"] = "Back".into();
        assert!(matches!(
            standing(&status(back, json!({})), "v2", true, false),
            Standing::Failed(_)
        ));
    }
}
