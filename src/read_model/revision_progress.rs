//! Progress of a revision in a group.

use kube::ResourceExt;
use serde::Serialize;
use starling_api::conditions::{self, STALLED};
use starling_api::{
    EntryRevision, RolloutDirection, RolloutPhase, RolloutStatus, Source, SyncGroup, SyncGroupStatus,
};
use starling_core::revision::is_named;

use super::revisions::shorts;

/// Progress of a revision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", content = "message", rename_all = "camelCase")]
pub enum RevisionProgress {
    /// The rollout has not started, and no other is in progress.
    Pending,
    /// Another rollout is in progress.
    OtherRollout(String),
    /// The rollout is in progress.
    InProgress(String),
    /// The revision, or one that supersedes it, has rolled out to the whole group.
    Succeeded,
    /// The revision will not roll out.
    Failed(String),
}

/// The revision to follow.
#[derive(Clone, Copy, Debug)]
pub struct FollowedRevision<'a> {
    /// A tag, a commit, a commit prefix, or a revision as in status.
    pub revision: &'a str,
    /// Whether its rollout was in progress before: another rollout supersedes it then.
    pub was_in_progress: bool,
    /// Whether a newer release that succeeds does not count.
    pub exactly: bool,
}

impl FollowedRevision<'_> {
    /// Returns the progress of the revision by the status of a group.
    #[must_use]
    pub fn progress(&self, status: &SyncGroupStatus) -> RevisionProgress {
        let has = |revisions: &[EntryRevision]| {
            let mut revisions = revisions.iter();
            revisions.any(|entry| is_named(&entry.revision, self.revision))
        };
        let rollout = status.rollout.as_ref();
        if let Some(rollout) = rollout.filter(|rollout| has(&rollout.revisions)) {
            return of_rollout(status, rollout);
        }
        // A rollback may share the revision of one entry with the held release; its rollout is then in progress.
        if let Some(held) = status.held_release.as_ref().filter(|held| has(&held.revisions)) {
            return RevisionProgress::Failed(format!("rolled back: {}", held.reason));
        }
        match rollout {
            None => RevisionProgress::Pending,
            Some(other) => self.with_other_rollout(other),
        }
    }

    /// Returns the progress that another rollout implies for the revision.
    fn with_other_rollout(&self, other: &RolloutStatus) -> RevisionProgress {
        let (id, revisions, revision) = (other.id, shorts(&other.revisions), self.revision);
        match (self.was_in_progress, other.direction) {
            (true, RolloutDirection::Forward) if self.exactly => {
                RevisionProgress::Failed(format!("superseded by rollout {id}"))
            }
            (true, RolloutDirection::Forward) if other.phase == RolloutPhase::Succeeded => {
                RevisionProgress::Succeeded
            }
            (true, RolloutDirection::Forward) => RevisionProgress::OtherRollout(format!(
                "superseded by rollout {id} ({revisions}), which is in progress; waiting for it instead of {revision}"
            )),
            (true, RolloutDirection::Back | RolloutDirection::BackAtOnce) => {
                RevisionProgress::Failed(format!("rolled back by rollout {id}"))
            }
            // A rollout that has ended does not block the revision.
            (false, _)
                if matches!(
                    other.phase,
                    RolloutPhase::Succeeded | RolloutPhase::Failed | RolloutPhase::Superseded
                ) =>
            {
                RevisionProgress::Pending
            }
            (false, _) => RevisionProgress::OtherRollout(format!(
                "rollout {id} ({revisions}) in progress; waiting for {revision}"
            )),
        }
    }
}

/// Returns the progress of the rollout of the revision.
fn of_rollout(status: &SyncGroupStatus, rollout: &RolloutStatus) -> RevisionProgress {
    let text = progress_text(status, rollout);
    let blocker = |is_final: &dyn Fn(&str) -> bool| {
        let mut blockers = rollout.blocked_by.iter();
        let blocker = blockers.find(|blocker| is_final(&blocker.reason))?;
        Some(format!("{text}: {}: {}", blocker.reason, blocker.message))
    };
    match rollout.phase {
        RolloutPhase::Succeeded => RevisionProgress::Succeeded,
        RolloutPhase::Superseded => RevisionProgress::Failed(text),
        // No cluster is left to start. Failed clusters may still recover, but a pipeline does not wait for that.
        RolloutPhase::Failed => RevisionProgress::Failed(
            blocker(&|_| true).unwrap_or_else(|| format!("{text}; failed clusters are retried")),
        ),
        // A user resumes what a user paused; a rollout that failed goes on only after a repair.
        RolloutPhase::Paused => {
            match blocker(&|reason| matches!(reason, "TooManyFailures" | "GateFailed" | "Aborted")) {
                Some(why) => RevisionProgress::Failed(why),
                None => RevisionProgress::InProgress(text),
            }
        }
        RolloutPhase::Pending | RolloutPhase::Progressing | RolloutPhase::RollingBack => {
            RevisionProgress::InProgress(text)
        }
    }
}

fn progress_text(status: &SyncGroupStatus, rollout: &RolloutStatus) -> String {
    let counts = status.clusters;
    let stage = match rollout.stage.as_str() {
        "" => String::new(),
        stage => format!(", stage {stage}"),
    };
    format!(
        "rollout {}: {:?}, {} of {} done, {} failed{stage}",
        rollout.id, rollout.phase, counts.updated, counts.total, counts.failed,
    )
}

/// Returns the reason why a group cannot roll out until it is edited; `None`: it can, or the condition is about an
/// earlier spec.
#[must_use]
pub fn stalled(group: &SyncGroup) -> Option<String> {
    let conditions = &group.status.as_ref()?.conditions;
    let generation = group.metadata.generation.unwrap_or_default();
    let stalled = conditions::find(conditions, STALLED)?;
    conditions::is_true(conditions, STALLED, generation)
        .then(|| format!("{}: {}", stalled.reason, stalled.message))
}

/// The Source of a group that follows the branch of this name. The name of a branch does not tell the rollout before a
/// push from the one after it.
#[must_use]
pub fn source_of_branch<'a>(group: &SyncGroup, sources: &'a [Source], revision: &str) -> Option<&'a Source> {
    sources.iter().find(|source| {
        let mut entries = group.spec.syncs.iter();
        entries.any(|entry| entry.template.source_ref.name == source.name_any())
            && source.spec.reference.branch.as_deref() == Some(revision)
    })
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

    fn progress(status: &SyncGroupStatus, was_in_progress: bool, exactly: bool) -> RevisionProgress {
        let followed = FollowedRevision {
            revision: "v2",
            was_in_progress,
            exactly,
        };
        followed.progress(status)
    }

    fn of(status: &SyncGroupStatus, seen: bool) -> RevisionProgress {
        progress(status, seen, false)
    }

    #[test]
    fn a_revision_succeeds_with_its_rollout() {
        assert_eq!(of(&SyncGroupStatus::default(), false), RevisionProgress::Pending);
        assert_eq!(
            of(&status(rollout("Succeeded", REVISION), json!({})), false),
            RevisionProgress::Succeeded
        );
        assert_eq!(
            of(&status(rollout("Succeeded", "v1@sha1:00"), json!({})), false),
            RevisionProgress::Pending
        );
        let rolls = of(&status(rollout("Progressing", REVISION), json!({})), false);
        assert_eq!(
            rolls,
            RevisionProgress::InProgress("rollout 4: Progressing, 1 of 3 done, 0 failed".into())
        );
    }

    #[test]
    fn a_stopped_rollout_is_failed() {
        let with = |reason: &str| {
            let mut rollout = rollout("Paused", REVISION);
            rollout["blockedBy"] = json!([{"reason": reason, "message": "why"}]);
            of(&status(rollout, json!({})), false)
        };
        for reason in ["TooManyFailures", "GateFailed", "Aborted"] {
            assert!(
                matches!(with(reason), RevisionProgress::Failed(why) if why.contains(reason)),
                "{reason}"
            );
        }
        assert!(matches!(with("Paused"), RevisionProgress::InProgress(_)));
        assert!(matches!(
            of(&status(rollout("Failed", REVISION), json!({})), false),
            RevisionProgress::Failed(_)
        ));
        let held = json!({"heldRelease": {"release": "r", "revisions": [{"sync": "app", "revision": REVISION}], "reason": "2 failed"}});
        assert_eq!(
            of(&status(rollout("Progressing", "v1@sha1:00"), held), false),
            RevisionProgress::Failed("rolled back: 2 failed".into())
        );
    }

    #[test]
    fn a_rollback_may_share_a_revision_with_the_held_release() {
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
        assert!(matches!(back("RollingBack"), RevisionProgress::InProgress(_)));
        assert_eq!(back("Succeeded"), RevisionProgress::Succeeded);
    }

    #[test]
    fn a_failed_rollout_says_whether_clusters_are_retried() {
        let mut failed = rollout("Failed", REVISION);
        let text = |rollout: &Value| match of(&status(rollout.clone(), json!({})), false) {
            RevisionProgress::Failed(why) => why,
            other => format!("{other:?}"),
        };
        assert!(text(&failed).ends_with("; failed clusters are retried"));
        failed["blockedBy"] = json!([{"reason": "Aborted", "message": "by jane"}]);
        assert!(text(&failed).ends_with(": Aborted: by jane"));
    }

    #[test]
    fn the_branch_of_a_source_of_the_group_is_found() {
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
        let found = |revision: &str| source_of_branch(&group, &sources, revision).map(ResourceExt::name_any);
        assert_eq!(found("main").as_deref(), Some("s"));
        for revision in ["next", "v2", "8d1e2f3a"] {
            assert_eq!(found(revision), None, "{revision}");
        }
        assert!(source_of_branch(&group, &[], "main").is_none());
    }

    #[test]
    fn a_group_is_stalled_by_its_current_generation_only() {
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
    fn a_newer_release_that_succeeds_counts_unless_exactly_is_set() {
        let newer = status(rollout("Succeeded", "v3@sha1:00"), json!({}));
        assert_eq!(progress(&newer, true, false), RevisionProgress::Succeeded);
        assert!(matches!(
            progress(&newer, true, true),
            RevisionProgress::Failed(_)
        ));
        let rolls = status(rollout("Progressing", "v3@sha1:00"), json!({}));
        let text = |seen: bool| match progress(&rolls, seen, false) {
            RevisionProgress::OtherRollout(text) => text,
            other => format!("{other:?}"),
        };
        assert_eq!(text(false), "rollout 4 (v3@00) in progress; waiting for v2");
        assert_eq!(
            text(true),
            "superseded by rollout 4 (v3@00), which is in progress; waiting for it instead of v2"
        );
        let mut back = rollout("Progressing", "v1@sha1:00");
        back["direction"] = "Back".into();
        assert!(matches!(
            progress(&status(back, json!({})), true, false),
            RevisionProgress::Failed(_)
        ));
    }
}
