//! Reads the past from a journal: the state at a time, and the outcome of each rollout.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

use super::{Body, JournalEntry, RecordedPlan};
use crate::durations::Durations;
use crate::ids::{ClusterName, ReleaseDigest, RolloutNumber, SyncName};
use crate::plan::{Attribution, Decision, Direction, OperatorInput, RemovalDecision, RolloutVerdict, Stop};

/// Returns the recorded plan at a time, and its entry; `None`: nothing was recorded before that time, or the entry
/// cannot be read.
#[must_use]
pub fn at(entries: &[JournalEntry], at: Timestamp) -> Option<(&JournalEntry, RecordedPlan)> {
    let mut found = None;
    walk(
        entries.iter().take_while(|entry| entry.at <= at),
        |entry, recorded| {
            found = Some((entry, recorded.clone()));
        },
    );
    found
}

/// Returns the last recorded duration of each cluster.
#[must_use]
pub fn durations(entries: &[JournalEntry]) -> Durations {
    let mut durations = Durations::default();
    walk(entries.iter(), |_, recorded| {
        durations.learn(&recorded.input.clusters);
    });
    durations
}

/// A rollout of the past.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PastRollout {
    /// `status.rollout.id`.
    pub rollout: RolloutNumber,
    /// The digest of its release.
    pub release: ReleaseDigest,
    /// The direction.
    pub direction: Direction,
    /// Time at which the rollout started.
    pub started_at: Timestamp,
    /// The time of the first entry that is available.
    pub recorded_from: Timestamp,
    /// The time of the newest entry.
    pub recorded_until: Timestamp,
    /// Time at which the rollout reached its outcome; `None`: the rollout is in progress in the newest entry.
    pub ended_at: Option<Timestamp>,
    /// The last outcome; `None`: no plan was recorded.
    pub outcome: Option<PastOutcome>,
    /// Clusters on its release, by the newest entry.
    pub done: usize,
    /// Selected clusters.
    pub total: usize,
    /// Clusters that failed at any time, with the first reason of each.
    pub failed: BTreeMap<ClusterName, String>,
    /// The operator actions and approvals, oldest first.
    pub actions: Vec<RecordedAction>,
    /// The deletion of the group; `None`: none was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_deletion: Option<PastDeletion>,
}

/// The deletion of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PastDeletion {
    /// Time of the first plan.
    pub began_at: Timestamp,
    /// The Syncs that the plans removed, by name, with the time of the decision.
    pub removed: BTreeMap<SyncName, Timestamp>,
}

/// An operator action or an approval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedAction {
    /// The action, such as `approve stage canary` or `pause`.
    pub what: String,
    /// The user who requested the action, the reason, and the time.
    #[serde(flatten)]
    pub attribution: Attribution,
    /// Time at which the action was undone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// Returns the rollouts of a journal, newest first.
#[must_use]
pub fn rollouts(entries: &[JournalEntry]) -> Vec<PastRollout> {
    let mut found: BTreeMap<RolloutNumber, PastRollout> = BTreeMap::new();
    walk(entries.iter(), |entry, recorded| {
        let past = found
            .entry(entry.rollout)
            .or_insert_with(|| PastRollout::begun(entry, recorded));
        past.take(entry.at, recorded);
    });
    found.into_values().rev().collect()
}

/// Calls `visit` with each entry that can be read.
fn walk<'e>(
    entries: impl Iterator<Item = &'e JournalEntry>,
    mut visit: impl FnMut(&'e JournalEntry, &RecordedPlan),
) {
    let mut before: Option<(&JournalEntry, RecordedPlan)> = None;
    for entry in entries {
        let known = before
            .take()
            .filter(|(known, _)| known.rollout == entry.rollout && known.seq + 1 == entry.seq)
            .map(|(_, recorded)| recorded);
        let recorded = Body::read(&entry.body).and_then(|body| RecordedPlan::after(known, body));
        if let Ok(recorded) = &recorded {
            visit(entry, recorded);
        }
        before = recorded.ok().map(|recorded| (entry, recorded));
    }
}

impl PastRollout {
    fn begun(entry: &JournalEntry, recorded: &RecordedPlan) -> Self {
        let rollout = &recorded.input.rollout;
        Self {
            rollout: entry.rollout,
            release: rollout.release.clone(),
            direction: rollout.direction,
            started_at: rollout.started_at,
            recorded_from: entry.at,
            recorded_until: entry.at,
            ended_at: None,
            outcome: None,
            done: 0,
            total: 0,
            failed: BTreeMap::new(),
            actions: Vec::new(),
            group_deletion: None,
        }
    }

    fn take(&mut self, at: Timestamp, recorded: &RecordedPlan) {
        self.recorded_until = at;
        self.take_actions(at, recorded);
        if recorded.input.deleting {
            self.take_removals(at, recorded);
            return;
        }
        let decisions = &recorded.plan.decisions;
        let outcome = Some(PastOutcome::of(&recorded.plan.verdict));
        if self.outcome != outcome {
            self.ended_at = (recorded.plan.verdict != RolloutVerdict::InProgress).then_some(at);
            self.outcome = outcome;
        }
        self.total = decisions.len();
        let done = decisions.values().filter(|decision| **decision == Decision::Done);
        self.done = done.count();
        for (cluster, decision) in decisions {
            if let Decision::Failed { reason, .. } = decision
                && !self.failed.contains_key(cluster)
            {
                let text = format!("{}: {reason}", reason.as_str());
                self.failed.insert(cluster.clone(), text);
            }
        }
    }

    /// Such a plan says nothing of the rollout: the group selects no cluster any more.
    fn take_removals(&mut self, at: Timestamp, recorded: &RecordedPlan) {
        let deletion = self.group_deletion.get_or_insert(PastDeletion {
            began_at: at,
            removed: BTreeMap::new(),
        });
        let removals = recorded.plan.removals.iter();
        for (sync, _) in removals.filter(|(_, decision)| **decision == RemovalDecision::Remove) {
            deletion.removed.entry(sync.clone()).or_insert(at);
        }
    }

    fn take_actions(&mut self, at: Timestamp, recorded: &RecordedPlan) {
        let actions = operator_actions(recorded);
        for known in self.actions.iter_mut().filter(|known| known.until.is_none()) {
            let still = actions
                .iter()
                .any(|(what, attribution)| *what == known.what && **attribution == known.attribution);
            if !still {
                known.until = Some(at);
            }
        }
        for (what, attribution) in actions {
            let known = |known: &RecordedAction| {
                known.until.is_none() && known.what == what && known.attribution == *attribution
            };
            if !self.actions.iter().any(known) {
                self.actions.push(RecordedAction {
                    what,
                    attribution: attribution.clone(),
                    until: None,
                });
            }
        }
    }
}

/// The outcome of a rollout by its newest plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PastOutcome {
    /// No outcome yet.
    InProgress,
    /// Every cluster that the rollout waits for is done.
    Succeeded,
    /// The rollout stopped, and the reason.
    Stopped(String),
}

impl PastOutcome {
    /// Returns the outcome of a verdict.
    #[must_use]
    pub fn of(verdict: &RolloutVerdict) -> Self {
        match verdict {
            RolloutVerdict::InProgress => Self::InProgress,
            RolloutVerdict::Succeeded => Self::Succeeded,
            RolloutVerdict::Stopped(Stop::Aborted(attribution)) => {
                Self::Stopped(format!("aborted by {}", attribution.by))
            }
            RolloutVerdict::Stopped(stop) => Self::Stopped(format!("stopped: {}", why(stop))),
            RolloutVerdict::RollBack(stop) => Self::Stopped(format!("rolled back: {}", why(stop))),
        }
    }
}

impl fmt::Display for PastOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InProgress => f.write_str("in progress"),
            Self::Succeeded => f.write_str("succeeded"),
            Self::Stopped(why) => f.write_str(why),
        }
    }
}

impl Serialize for PastOutcome {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

fn why(stop: &Stop) -> String {
    match stop {
        Stop::TooManyFailures { failed, allowed, .. } => {
            format!("{failed} failed (limit {allowed})")
        }
        Stop::GateFailed { message, .. } => format!("a gate failed: {message}"),
        Stop::Aborted(attribution) => format!("aborted by {}", attribution.by),
    }
}

/// Returns the operator actions and approvals that apply, oldest first.
#[must_use]
pub fn operator_actions(recorded: &RecordedPlan) -> Vec<(String, &Attribution)> {
    let OperatorInput {
        paused,
        aborted,
        skipped,
        skipped_stages,
        promoted,
        retries,
    } = &recorded.input.operator;
    let mut actions: Vec<(String, &Attribution)> = Vec::new();
    actions.extend(paused.iter().map(|attribution| ("pause".to_owned(), attribution)));
    actions.extend(
        aborted
            .iter()
            .map(|attribution| ("abort".to_owned(), attribution)),
    );
    let clusters = skipped.iter();
    actions.extend(clusters.map(|(name, attribution)| (format!("skip cluster {name}"), attribution)));
    let stages = [
        ("skip stage", skipped_stages),
        ("promote stage", promoted),
        ("approve stage", &recorded.input.rollout.approvals),
    ];
    for (what, attributions) in stages {
        actions.extend(
            attributions
                .iter()
                .map(|(name, attribution)| (format!("{what} {name}"), attribution)),
        );
    }
    actions.extend(retries.iter().map(|retry| {
        let what = match (&retry.cluster, &retry.stage) {
            (Some(cluster), _) => format!("retry cluster {cluster}"),
            (None, Some(stage)) => format!("retry stage {stage}"),
            (None, None) => "retry".to_owned(),
        };
        (what, &retry.attribution)
    }));
    actions.sort_by_key(|(_, attribution)| attribution.at);
    actions
}
