//! Checks whether an entry of a rollout can follow the previous ones. Each plan on its own may keep every rule although
//! its input does not follow from earlier decisions: the input was forged, or something was done without a decision.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use starling_api::DeletionPolicy;

use super::RecordedPlan;
use crate::clock_jumps::is_far_ahead;
use crate::ids::{ClusterName, EntryName, SyncName};
use crate::plan::{
    ClusterView, Decision, EntryView, LeavingCause, ObservedSync, PlanInput, PruneRequest, RemovalDecision,
    StageRecord,
};

/// The views of the clusters of an entry.
type Views = BTreeMap<ClusterName, ClusterView>;

/// A discontinuity between two entries.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Gap {
    /// Another release, direction or start.
    #[error("the rollout has another release, direction or start than in the previous entry")]
    Rollout,
    /// A recorded time of a stage is missing or changed.
    #[error("stage {stage}: its record in the previous entry is missing or changed")]
    Record {
        /// The stage.
        stage: String,
    },
    /// A cluster was admitted to the release, and no plan started it.
    #[error("cluster {cluster} was admitted to the release without a decision in the rollout")]
    NotDecided {
        /// The cluster.
        cluster: ClusterName,
    },
    /// A cluster was admitted again to the same target, and no plan decided that since its last admission.
    #[error(
        "cluster {cluster} was admitted again to the same target without a decision in the rollout since"
    )]
    AdmittedAgain {
        /// The cluster.
        cluster: ClusterName,
    },
    /// The removal of a Sync began, or the Sync is gone, and no plan decided that.
    #[error("Sync {sync} of cluster {cluster} was removed without a decision in the rollout")]
    RemovedUndecided {
        /// The Sync.
        sync: SyncName,
        /// Its cluster.
        cluster: ClusterName,
    },
    /// A prune is in progress after the attempt that the group admitted, and no plan decided that since the last one.
    #[error("Sync {sync} of cluster {cluster} prunes without a decision in the rollout")]
    PrunedUndecided {
        /// The Sync.
        sync: SyncName,
        /// Its cluster.
        cluster: ClusterName,
    },
}

/// The decisions so far in the entries of one rollout.
#[derive(Clone, Debug, Default)]
pub(super) struct Continuity {
    /// Clusters that a plan started.
    started: BTreeSet<ClusterName>,
    /// Clusters and entries that a plan admits, and whose admission was not observed since.
    awaited: BTreeSet<(ClusterName, EntryName)>,
    /// Syncs that a plan removed.
    removed: BTreeSet<SyncName>,
    /// Syncs whose prune the previous entry allowed, or that it has in progress.
    pruning: BTreeSet<SyncName>,
    /// Whether no entry of the rollout is missing.
    is_whole: bool,
}

impl Continuity {
    /// Starts with a rollout, or with the rest of it after a gap. Without the first entries, earlier decisions are
    /// unknown.
    pub(super) fn begin(&mut self, is_whole: bool) {
        self.started.clear();
        self.awaited.clear();
        self.removed.clear();
        self.pruning.clear();
        self.is_whole = is_whole;
    }

    /// Continues with the next entry. `before`: the previous entry of the same rollout; without one, nothing is
    /// checked.
    pub(super) fn next(&mut self, before: Option<&RecordedPlan>, recorded: &RecordedPlan) -> Vec<Gap> {
        let gaps = before.map_or_else(Vec::new, |before| self.gaps(before, recorded));
        self.advance(before.map(|before| &before.input.clusters), recorded);
        gaps
    }

    /// Continues with the next entry without a check. `before`: at least the views of the previous entry that differ.
    pub(super) fn advance(&mut self, before: Option<&Views>, recorded: &RecordedPlan) {
        let now = &recorded.input.clusters;
        for (cluster, entry, _) in before.into_iter().flat_map(|before| admissions(before, now)) {
            self.awaited.remove(&(cluster.clone(), entry.clone()));
        }
        let removals = recorded.plan.removals.iter();
        let removed = removals.filter(|(_, decision)| **decision == RemovalDecision::Remove);
        self.removed.extend(removed.map(|(sync, _)| sync.clone()));
        // One that has ended is allowed anew before it begins again, and no plan between the two is left out: each has
        // other requests.
        let prunes = recorded.plan.prunes.iter();
        let pruning = prunes.filter(|(_, decision)| !matches!(decision, RemovalDecision::Hold { .. }));
        self.pruning = pruning.map(|(sync, _)| sync.clone()).collect();
        for (cluster, decision) in &recorded.plan.decisions {
            if let Decision::Start { entries, .. } | Decision::Retry { entries, .. } = decision {
                self.started.insert(cluster.clone());
                let entries = entries.iter().cloned();
                self.awaited.extend(entries.map(|entry| (cluster.clone(), entry)));
            }
        }
    }

    /// Returns the gaps between the last entry and the next one.
    pub(super) fn gaps(&self, before: &RecordedPlan, recorded: &RecordedPlan) -> Vec<Gap> {
        let (then, now) = (&before.input.rollout, &recorded.input.rollout);
        if (&then.release, then.direction) != (&now.release, now.direction)
            || !is_same_start(&before.input, &recorded.input)
        {
            return vec![Gap::Rollout];
        }
        let records = lost_records(before, recorded).into_iter();
        let records = records.map(|stage| Gap::Record { stage });
        let admitted = admitted_between(&before.input, &recorded.input);
        let undecided = admitted.filter(|cluster| self.is_whole && !self.started.contains(*cluster));
        let undecided = undecided.map(|cluster| Gap::NotDecided {
            cluster: cluster.clone(),
        });
        let again: BTreeSet<&ClusterName> = admissions(&before.input.clusters, &recorded.input.clusters)
            .filter(|(cluster, entry, is_again)| {
                let key = ((*cluster).clone(), (*entry).clone());
                *is_again && self.is_whole && !self.awaited.contains(&key)
            })
            .map(|(cluster, ..)| cluster)
            .collect();
        let again = again.into_iter().map(|cluster| Gap::AdmittedAgain {
            cluster: cluster.clone(),
        });
        let removed = removed_between(&before.input, &recorded.input);
        let removed = removed.filter(|(sync, _)| self.is_whole && !self.removed.contains(*sync));
        let removed = removed.map(|(sync, cluster)| Gap::RemovedUndecided {
            sync: sync.clone(),
            cluster: cluster.clone(),
        });
        let pruned = pruned_between(&before.input, &recorded.input);
        let pruned = pruned.filter(|(sync, _)| self.is_whole && !self.pruning.contains(*sync));
        let pruned = pruned.map(|(sync, request)| Gap::PrunedUndecided {
            sync: sync.clone(),
            cluster: request.cluster.clone(),
        });
        let taken = removed.chain(pruned);
        records.chain(undecided).chain(again).chain(taken).collect()
    }
}

/// Returns the stages of which the input had a time before and has none now, or another one, unless the clock that
/// wrote it was wrong. The records of the plan before need not be stored: a newer rollout was to begin instead, and
/// could not be written.
fn lost_records(before: &RecordedPlan, recorded: &RecordedPlan) -> Vec<String> {
    // A group without stages has no stage records. The status drops them before the journal has an entry for that.
    if before.plan.stages.len() < 2 || recorded.plan.stages.len() < 2 {
        return Vec::new();
    }
    let (then, now) = (&before.input.rollout.stages, &recorded.input.rollout.stages);
    let is_there = |name: &str| {
        recorded
            .input
            .strategy
            .stages
            .iter()
            .any(|stage| stage.name == name)
    };
    let none = StageRecord::default();
    let at = recorded.input.now;
    let lost = then.iter().filter(|(name, record)| {
        let current = now.get(*name).unwrap_or(&none);
        let replaced = |then: Option<_>, now: Option<_>| {
            then.is_some_and(|then| is_far_ahead(then, at)) && now.is_some_and(|now| now <= at)
        };
        let kept = |then: Option<_>, now| then.is_none() || then == now || replaced(then, now);
        let all_kept = kept(record.opened_at, current.opened_at)
            && kept(record.completed_at, current.completed_at)
            && kept(record.passed_at, current.passed_at);
        is_there(name) && !all_kept
    });
    lost.map(|(name, _)| name.clone()).collect()
}

/// Reports whether both have the same start of the rollout. It is unknown where it lies far ahead of the clock, which
/// may be wrong at one time and right at the other (`believed_start`).
fn is_same_start(before: &PlanInput, recorded: &PlanInput) -> bool {
    let (then, now) = (before.rollout.started_at, recorded.rollout.started_at);
    let is_unknown = |start: Timestamp, other, at| start == Timestamp::UNIX_EPOCH && is_far_ahead(other, at);
    then == now || is_unknown(now, then, recorded.now) || is_unknown(then, now, before.now)
}

/// Returns the clusters with a Sync at a target of this release that was at another target of another release before.
fn admitted_between<'l>(then: &'l PlanInput, now: &'l PlanInput) -> impl Iterator<Item = &'l ClusterName> {
    let release = &now.rollout.release;
    let of_release = move |view: &EntryView| {
        let observed = view.observed.as_ref();
        observed.is_some_and(|sync| sync.release == *release)
    };
    let target = |view: &'l EntryView| view.observed.as_ref().and_then(|sync| sync.target.as_ref());
    let is_new =
        move |(before, after)| of_release(after) && !of_release(before) && target(before) != target(after);
    let both = now
        .clusters
        .iter()
        .filter_map(|(name, view)| Some((name, then.clusters.get(name)?, view)));
    both.filter(move |(_, before, after)| {
        let entries = after.entries.iter();
        let mut entries = entries.filter_map(|(entry, view)| Some((before.entries.get(entry)?, view)));
        entries.any(is_new)
    })
    .map(|(name, ..)| name)
}

/// Returns the Syncs that were to leave, and whose removal began between two recorded plans, with their clusters: they
/// are being deleted now, or they are gone although the group does not want them again. Whoever deletes such a Sync by
/// hand removes it without a decision, too. One whose objects stay takes nothing away: it may end before a plan knows
/// that it is deleted, if a crash came between its deletion and its mark.
fn removed_between<'l>(
    then: &'l PlanInput,
    now: &'l PlanInput,
) -> impl Iterator<Item = (&'l SyncName, &'l ClusterName)> {
    let waiting = then
        .leaving
        .iter()
        .filter(|(_, sync)| sync.removing_since.is_none() && sync.policy != DeletionPolicy::Orphan);
    let removed = waiting.filter(|(name, sync)| match now.leaving.get(*name) {
        Some(now) => now.removing_since.is_some(),
        None if now.returned.contains(*name) => false,
        None => match now.clusters.get(&sync.cluster) {
            None => true,
            Some(view) => sync.cause == LeavingCause::EntryRemoved && !view.entries.contains_key(&sync.entry),
        },
    });
    removed.map(|(name, sync)| (name, &sync.cluster))
}

/// Returns the prunes that were allowed between two recorded plans.
fn pruned_between<'l>(
    then: &'l PlanInput,
    now: &'l PlanInput,
) -> impl Iterator<Item = (&'l SyncName, &'l PruneRequest)> {
    let allowed_at = |sync: &SyncName| then.prunes.get(sync).and_then(|request| request.allowed_at);
    let allowed = { now.prunes.iter() }.filter(|(_, request)| request.allowed_at.is_some());
    allowed.filter(move |(sync, request)| allowed_at(sync) != request.allowed_at)
}

/// Returns the clusters and entries that were admitted between two recorded plans, and whether to the same target.
/// Admissions without a recorded time are left out.
fn admissions<'l>(
    before: &'l Views,
    now: &'l Views,
) -> impl Iterator<Item = (&'l ClusterName, &'l EntryName, bool)> {
    let both = now.iter();
    let both = both.filter_map(|(name, view)| Some((name, before.get(name)?, view)));
    both.flat_map(|(cluster, then, now)| {
        now.entries.iter().filter_map(move |(entry, view)| {
            let then = then.entries.get(entry)?.observed.as_ref();
            let now = view.observed.as_ref()?;
            let same_target = then.is_some_and(|then| then.target == now.target);
            let stored = |sync: &ObservedSync| sync.stored_admitted_at.or(sync.admitted_at);
            let later = then
                .and_then(stored)
                .zip(stored(now))
                .is_some_and(|(then, now)| then < now);
            (!same_target || later).then_some((cluster, entry, same_target))
        })
    })
}
