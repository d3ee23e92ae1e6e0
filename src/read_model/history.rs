//! The rollout history of a group.
//!
//! The journal has the outcome, the operator actions and the failed clusters of each rollout. The objects on the
//! management cluster have less: the current rollout is in the status of the group, kept releases are
//! ControllerRevisions, and operator actions are objects until somebody deletes them.

use std::collections::BTreeMap;
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::ResourceExt;
use serde::Serialize;
use starling_api::{
    ActionType, RolloutAction, RolloutApproval, RolloutDirection, RolloutPhase, Source, SyncGroup,
};
use starling_core::identity;
use starling_core::ids::ClusterName;
use starling_core::journal::past::{PastDeletion, PastOutcome, PastRollout, RecordedAction};
use starling_core::plan::{Attribution, Direction};
use starling_core::rollout::{ReleaseSnapshot, operator};

use crate::controller::caches::release_snapshots::{self, ReleaseOwner};
use starling_ledger::{RolloutEnd, RolloutOutcome, RolloutRecord};

/// One rollout of a group. Fields that are not known are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutSummary {
    /// Number of the rollout.
    pub rollout: i64,
    /// Time of the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// Time of the end; `None`: the rollout is in progress, or the end is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// The outcome. Serialised as a text, such as `succeeded`, `in progress` or `aborted by jane; superseded`.
    pub outcome: SummaryOutcome,
    /// The kind: a new release or a rollback; `None`: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direction: Option<RolloutKind>,
    /// Clusters on the release of the rollout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clusters: Option<ClusterProgress>,
    /// The revision of each entry.
    pub revisions: BTreeMap<String, String>,
    /// The clusters that failed, with the first reason of each.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub failed: BTreeMap<ClusterName, String>,
    /// The operator actions and approvals, oldest first.
    pub actions: Vec<RecordedAction>,
    /// The revisions of entries that are neither in the repository nor in the mirror: no rollback to the release of the
    /// rollout is possible. The journal does not have them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub lost: BTreeMap<String, String>,
    /// The first entry of the journal, where the beginning is not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded_from: Option<Timestamp>,
    /// The deletion of the group during or after the rollout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_deletion: Option<PastDeletion>,
}

/// The outcome of a rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SummaryOutcome {
    /// The rollout has ended, and nothing says how.
    #[default]
    Unknown,
    /// The rollout has not started a cluster yet.
    Pending,
    /// Clusters are being updated.
    InProgress,
    /// An operator paused the rollout.
    Paused,
    /// Every cluster that the rollout waits for is done.
    Succeeded,
    /// Too many clusters or a gate failed.
    Failed,
    /// The group was deleted, or lost its clusters.
    Abandoned,
    /// The rollout stopped for a reason, and waits for an operator or the next release.
    Stopped(String),
    /// Another release replaced the rollout before it succeeded.
    Superseded {
        /// Why the rollout had stopped before.
        stopped: Option<String>,
    },
}

impl fmt::Display for SummaryOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("unknown"),
            Self::Pending => f.write_str("pending"),
            Self::InProgress => f.write_str("in progress"),
            Self::Paused => f.write_str("paused"),
            Self::Succeeded => f.write_str("succeeded"),
            Self::Failed => f.write_str("failed"),
            Self::Abandoned => f.write_str("abandoned"),
            Self::Stopped(why) => f.write_str(why),
            Self::Superseded { stopped: None } => f.write_str("superseded"),
            Self::Superseded { stopped: Some(why) } => write!(f, "{why}; superseded"),
        }
    }
}

impl Serialize for SummaryOutcome {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl From<&PastOutcome> for SummaryOutcome {
    fn from(outcome: &PastOutcome) -> Self {
        match outcome {
            PastOutcome::InProgress => Self::InProgress,
            PastOutcome::Succeeded => Self::Succeeded,
            PastOutcome::Stopped(why) => Self::Stopped(why.clone()),
        }
    }
}

/// The kind of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum RolloutKind {
    /// A new release.
    #[serde(rename = "rollout")]
    Forward,
    /// A rollback stage by stage.
    Rollback,
    /// A rollback of all clusters at once.
    ImmediateRollback,
}

/// Clusters that are done, of all selected clusters. Serialised as an array of two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "(usize, usize)")]
pub struct ClusterProgress {
    /// Number of clusters that are on the release.
    pub done: usize,
    /// Number of selected clusters.
    pub total: usize,
}

impl From<ClusterProgress> for (usize, usize) {
    fn from(ClusterProgress { done, total }: ClusterProgress) -> Self {
        (done, total)
    }
}

impl From<Direction> for RolloutKind {
    fn from(direction: Direction) -> Self {
        match direction {
            Direction::Forward => Self::Forward,
            Direction::Back => Self::Rollback,
            Direction::BackAtOnce => Self::ImmediateRollback,
        }
    }
}

impl From<RolloutDirection> for RolloutKind {
    fn from(direction: RolloutDirection) -> Self {
        match direction {
            RolloutDirection::Forward => Self::Forward,
            RolloutDirection::Back => Self::Rollback,
            RolloutDirection::BackAtOnce => Self::ImmediateRollback,
        }
    }
}

/// A rollout whose first entry came later than this after its start was not recorded from the beginning: the controller
/// writes the status and then the journal, which takes far less.
const LATE: SignedDuration = SignedDuration::from_secs(60);

/// Builds the history from the journal, with the revisions and the ends that the ledger records.
#[must_use]
pub fn from_journal(pasts: &[PastRollout], records: &[RolloutRecord]) -> Vec<RolloutSummary> {
    let mut rows: BTreeMap<i64, RolloutSummary> = pasts
        .iter()
        .map(|past| (past.rollout.get(), summary(past)))
        .collect();
    for record in records {
        let id = record.rollout.id.get();
        let row = rows.entry(id).or_default();
        row.rollout = id;
        row.revisions.clone_from(&record.rollout.revisions);
        row.started_at = row.started_at.or(Some(record.rollout.started_at));
        if let Some(RolloutEnd { outcome, ended_at }) = record.end {
            row.outcome = final_outcome(outcome, &row.outcome);
            row.ended_at = Some(ended_at);
        }
    }
    rows.into_values().rev().collect()
}

fn summary(past: &PastRollout) -> RolloutSummary {
    let late = past.recorded_from.duration_since(past.started_at) > LATE;
    RolloutSummary {
        rollout: past.rollout.get(),
        started_at: Some(past.started_at),
        ended_at: past.ended_at,
        outcome: past
            .outcome
            .as_ref()
            .map_or(SummaryOutcome::Unknown, SummaryOutcome::from),
        direction: Some(past.direction.into()),
        clusters: Some(ClusterProgress {
            done: past.done,
            total: past.total,
        }),
        failed: past.failed.clone(),
        actions: past.actions.clone(),
        group_deletion: past.group_deletion.clone(),
        recorded_from: late.then_some(past.recorded_from),
        ..RolloutSummary::default()
    }
}

/// Returns the outcome of a rollout that has ended. One that was replaced after it had stopped has more to say than
/// that.
fn final_outcome(outcome: RolloutOutcome, last: &SummaryOutcome) -> SummaryOutcome {
    match outcome {
        RolloutOutcome::Succeeded => SummaryOutcome::Succeeded,
        RolloutOutcome::Failed => SummaryOutcome::Failed,
        RolloutOutcome::Abandoned => SummaryOutcome::Abandoned,
        RolloutOutcome::Superseded => SummaryOutcome::Superseded {
            stopped: match last {
                SummaryOutcome::Stopped(why) => Some(why.clone()),
                _ => None,
            },
        },
    }
}

/// Builds the history from the objects on the management cluster. `kept`: the ControllerRevisions under the name of the
/// group. `sources`: the Sources of its namespace.
#[must_use]
pub fn from_objects(
    group: &SyncGroup,
    kept: &[ControllerRevision],
    actions: &[RolloutAction],
    approvals: &[RolloutApproval],
    sources: &[Source],
) -> Vec<RolloutSummary> {
    let status = group.status.as_ref();
    let good = status.and_then(|status| status.last_known_good.as_ref());
    let good = good.map(|good| good.release.as_str());
    let mut rows: BTreeMap<i64, RolloutSummary> = BTreeMap::new();
    for revision in started(group, kept) {
        let row = rows.entry(revision.revision).or_default();
        row.started_at = revision.creation_timestamp().map(|time| time.0);
        let Some(snapshot) = release_snapshots::snapshot_of(revision) else {
            continue;
        };
        // Of earlier rollouts, status only proves the success of the last known good release.
        if good == Some(snapshot.digest.as_str()) {
            row.outcome = SummaryOutcome::Succeeded;
        }
        row.lost = lost(&snapshot, sources);
        for entry in snapshot.revisions {
            row.revisions.insert(entry.sync, entry.revision);
        }
    }
    let name = group.name_any();
    for action in actions.iter().filter(|action| action.spec.group == name) {
        let spec = &action.spec;
        let action = recorded_action(
            describe(spec),
            attribution(&operator::attributed(&spec.by, action), &spec.reason, action),
        );
        rows.entry(spec.rollout).or_default().actions.push(action);
    }
    for approval in approvals.iter().filter(|approval| approval.spec.group == name) {
        let spec = &approval.spec;
        let what = format!("approve stage {}", spec.stage);
        let action = recorded_action(
            what,
            attribution(&operator::attributed(&spec.by, approval), &spec.reason, approval),
        );
        rows.entry(spec.rollout).or_default().actions.push(action);
    }
    if let Some(rollout) = group.status.as_ref().and_then(|status| status.rollout.as_ref()) {
        // Releases with a higher number are kept for later and have not started.
        rows.retain(|id, _| *id <= rollout.id);
        let row = rows.entry(rollout.id).or_default();
        row.clusters = group.status.as_ref().map(|status| ClusterProgress {
            done: status.clusters.updated as usize,
            total: status.clusters.total as usize,
        });
        row.started_at = rollout.start_time.parse().ok();
        row.outcome = outcome_of(rollout.phase);
        row.direction = Some(rollout.direction.into());
        row.revisions = rollout
            .revisions
            .iter()
            .map(|entry| (entry.sync.clone(), entry.revision.clone()))
            .collect();
        let mut kept = kept.iter().filter(|release| is_release_of(group, release));
        let snapshot = kept.find_map(|release| {
            release_snapshots::snapshot_of(release).filter(|kept| kept.digest == rollout.release)
        });
        row.lost = snapshot.map_or_else(BTreeMap::new, |snapshot| lost(&snapshot, sources));
    }
    for (id, row) in &mut rows {
        row.rollout = *id;
        row.actions.sort_by_key(|action| action.attribution.at);
    }
    rows.into_values().rev().collect()
}

/// The revisions of a release that its Sources report as lost, by entry.
#[must_use]
pub fn lost(snapshot: &ReleaseSnapshot, sources: &[Source]) -> BTreeMap<String, String> {
    let is_lost = |source: &str, revision: &str| {
        let mut statuses = sources
            .iter()
            .filter(|found| found.name_any() == source)
            .filter_map(|found| found.status.as_ref());
        statuses.any(|status| status.lost_revisions.iter().any(|lost| lost == revision))
    };
    snapshot
        .entries
        .iter()
        .map(|entry| (entry, snapshot.revision(&entry.name)))
        .filter(|(entry, revision)| is_lost(&entry.template.source_ref.name, revision))
        .map(|(entry, revision)| (entry.name.clone(), revision.to_owned()))
        .collect()
}

/// Why no rollback to a release is possible: revisions by entry, at least one.
#[must_use]
pub fn lost_text(lost: &BTreeMap<String, String>) -> String {
    let revisions: Vec<String> = lost
        .iter()
        .map(|(entry, revision)| format!("{revision} of entry {entry}"))
        .collect();
    let are = if revisions.len() == 1 { "is" } else { "are" };
    format!(
        "{} {are} neither in the repository nor in the mirror",
        revisions.join(", ")
    )
}

/// The outcome of a rollout in this phase.
fn outcome_of(phase: RolloutPhase) -> SummaryOutcome {
    match phase {
        RolloutPhase::Pending => SummaryOutcome::Pending,
        RolloutPhase::Progressing | RolloutPhase::RollingBack => SummaryOutcome::InProgress,
        RolloutPhase::Paused => SummaryOutcome::Paused,
        RolloutPhase::Succeeded => SummaryOutcome::Succeeded,
        RolloutPhase::Failed => SummaryOutcome::Failed,
        RolloutPhase::Superseded => SummaryOutcome::Superseded { stopped: None },
    }
}

/// The releases of a group that have started, one for each number. A release that waits in the queue is kept under the
/// number of the rollout that it waits for: the status names the queued ones, and of one number the first was kept at
/// its start.
fn started<'a>(
    group: &SyncGroup,
    kept: &'a [ControllerRevision],
) -> impl Iterator<Item = &'a ControllerRevision> {
    let waiting = group.status.iter().flat_map(|status| &status.queue);
    let waiting: Vec<&str> = waiting.map(|release| release.release.as_str()).collect();
    let mut first: BTreeMap<i64, &ControllerRevision> = BTreeMap::new();
    for revision in kept {
        let digest = revision.data.as_ref().and_then(|data| data.0["digest"].as_str());
        if !is_release_of(group, revision) || digest.is_some_and(|digest| waiting.contains(&digest)) {
            continue;
        }
        let known = first.entry(revision.revision).or_insert(revision);
        if revision.creation_timestamp() < known.creation_timestamp() {
            *known = revision;
        }
    }
    first.into_values()
}

/// Whether a kept release belongs to this very group, and not to a former one of that name.
#[must_use]
pub fn is_release_of(group: &SyncGroup, release: &ControllerRevision) -> bool {
    let id = identity::known_id(group).unwrap_or_default();
    release_snapshots::is_of(release, ReleaseOwner { group, id: &id })
}

fn recorded_action(what: String, attribution: Attribution) -> RecordedAction {
    RecordedAction {
        what,
        attribution,
        until: None,
    }
}

fn attribution<K: ResourceExt>(by: &str, reason: &str, object: &K) -> Attribution {
    Attribution {
        by: by.to_owned(),
        reason: reason.to_owned(),
        at: operator::at(object),
    }
}

/// The action and its subject, such as `skip cluster eu-1`.
fn describe(spec: &starling_api::RolloutActionSpec) -> String {
    let verb = match spec.action {
        ActionType::Pause => "pause",
        ActionType::Resume => "resume",
        ActionType::Abort => "abort",
        ActionType::Retry => "retry",
        ActionType::Skip => "skip",
        ActionType::Promote => "promote",
        ActionType::Rollback => "rollback",
        ActionType::Release => "release",
    };
    let of = |kind: &str, name: &Option<String>| match name {
        Some(name) => format!(" {kind} {name}"),
        None => String::new(),
    };
    format!(
        "{verb}{}{}{}",
        of("cluster", &spec.cluster),
        of("stage", &spec.stage),
        of("to", &spec.revision)
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use starling_api::{EntryRevision, SyncEntry};
    use starling_core::target;

    use super::*;

    /// Returns a release of one entry at a revision.
    fn release(revision: &str) -> ReleaseSnapshot {
        let entry = json!({"name": "app", "sourceRef": {"name": "shop"}, "path": "./app"});
        let entry: SyncEntry = serde_json::from_value(entry).unwrap();
        ReleaseSnapshot {
            digest: target::of_release(&[("app", revision, &entry.template)]),
            revisions: vec![EntryRevision {
                sync: "app".into(),
                revision: revision.into(),
            }],
            entries: vec![entry],
        }
    }

    #[test]
    fn queued_releases_are_not_part_of_the_history() {
        let queued = release("queued");
        let queued = json!({"release": queued.digest, "revisions": queued.revisions});
        let group: SyncGroup = serde_json::from_value(json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup",
            "metadata": {"name": "shop", "uid": "u"}, "spec": {"clusterSelector": {}},
            "status": {"queue": [queued], "lastKnownGood": {"release": release("good").digest}, "rollout": {
                "id": 3, "release": release("good").digest, "phase": "RollingBack", "direction": "BackAtOnce", "startTime": "2026-11-21T11:00:00Z",
                "revisions": [{"sync": "app", "revision": "good"}],
            }},
        }))
        .unwrap();
        let kept = |revision: &str, rollout: i64, minute: i64, uid: &str| -> ControllerRevision {
            serde_json::from_value(json!({
                "metadata": {
                    "name": revision, "creationTimestamp": format!("2026-11-21T10:0{minute}:00Z"),
                    "ownerReferences": [{"apiVersion": "v1", "kind": "SyncGroup", "name": "shop", "uid": uid}],
                },
                "revision": rollout,
                "data": release(revision),
            }))
            .unwrap()
        };
        let kept = [
            kept("later", 2, 5, "u"),
            kept("first", 2, 1, "u"),
            kept("queued", 1, 0, "u"),
            kept("good", 1, 2, "u"),
            kept("of another", 1, 0, "x"),
        ];
        let lost: Source = serde_json::from_value(json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "Source", "metadata": {"name": "shop"},
            "spec": {"url": "https://git.example.com/shop.git", "ref": {"branch": "main"}},
            "status": {"lostRevisions": ["first", "good"]},
        }))
        .unwrap();
        let rows = from_objects(&group, &kept, &[], &[], &[lost]);
        let found: Vec<(i64, &str)> = rows
            .iter()
            .map(|row| (row.rollout, row.revisions["app"].as_str()))
            .collect();
        assert_eq!(found, [(3, "good"), (2, "first"), (1, "good")]);
        let lost: Vec<Option<&str>> = rows
            .iter()
            .map(|row| row.lost.get("app").map(String::as_str))
            .collect();
        assert_eq!(lost, [Some("good"), Some("first"), Some("good")]);
        let outcomes: Vec<String> = rows.iter().map(|row| row.outcome.to_string()).collect();
        assert_eq!(outcomes, ["in progress", "unknown", "succeeded"]);
        assert_eq!(rows[0].direction, Some(RolloutKind::ImmediateRollback));
    }

    #[test]
    fn a_superseded_rollout_keeps_why_it_stopped() {
        let stopped = |why: &str| SummaryOutcome::Stopped(why.to_owned());
        for (outcome, last, expected) in [
            (RolloutOutcome::Succeeded, SummaryOutcome::Succeeded, "succeeded"),
            (
                RolloutOutcome::Superseded,
                SummaryOutcome::InProgress,
                "superseded",
            ),
            (RolloutOutcome::Superseded, SummaryOutcome::Unknown, "superseded"),
            (
                RolloutOutcome::Superseded,
                stopped("aborted by jane"),
                "aborted by jane; superseded",
            ),
            (
                RolloutOutcome::Failed,
                stopped("rolled back: 2 failed (limit 0)"),
                "failed",
            ),
        ] {
            assert_eq!(final_outcome(outcome, &last).to_string(), expected);
        }
    }

    /// Programs read this form: field names and the forms of counts and kinds must not change.
    #[test]
    fn the_json_form_is_stable() {
        let row = RolloutSummary {
            rollout: 3,
            started_at: Timestamp::from_second(1_800_000_000).ok(),
            outcome: SummaryOutcome::Succeeded,
            direction: Some(RolloutKind::ImmediateRollback),
            clusters: Some(ClusterProgress { done: 1, total: 4 }),
            revisions: [("app".to_owned(), "main@sha1:abc".to_owned())].into(),
            ..RolloutSummary::default()
        };
        assert_eq!(
            serde_json::to_string(&row).unwrap(),
            r#"{"rollout":3,"startedAt":"2027-01-15T08:00:00Z","outcome":"succeeded","direction":"immediateRollback","clusters":[1,4],"revisions":{"app":"main@sha1:abc"},"actions":[]}"#
        );
    }
}
