//! The removals of a group that is being deleted.
//!
//! Such a group has no release any more, so no gate judges its removals. Its clusters lose their Syncs in the order of
//! its stages, in their windows, and at most `maxConcurrency` at once (ADR 41).

use std::collections::BTreeMap;

use jiff::Timestamp;
use starling_api::DeletionPolicy;

use super::leaving::{LeavingCause, LeavingSync, RemovalDecision, RemovalHold, goes_last};
use super::openings::Openings;
use super::prune;
use super::prune_request::PruneRequest;
use super::removal::RemovalResult;
use super::types::PlanInput;
use crate::ids::{ClusterName, SyncName};

/// Returns the decision for every Sync of a group that is being deleted.
pub(super) fn decide(input: &PlanInput) -> RemovalResult {
    let mut group = GroupRemoval::of(input);
    let mut openings = Openings::of_removals(input);
    let mut result = RemovalResult::default();
    for (name, sync) in &input.leaving {
        let decision = group.decision(name, sync, &mut openings);
        result.decisions.insert(name.clone(), decision);
    }
    for (name, request) in &input.prunes {
        let decision = group.late_decision(name, request, &mut openings);
        result.prunes.insert(name.clone(), decision);
    }
    let decided = || result.decisions.values().chain(result.prunes.values());
    let waits = |reason| decided().any(|decision| decision.is_held_by(reason));
    (result.waits_for_slot, result.known_until) = (
        waits(RemovalHold::NoSlot),
        openings
            .known_until()
            .filter(|_| waits(RemovalHold::WindowClosed)),
    );
    result
}

/// A group that is being deleted, and what this plan has begun so far.
struct GroupRemoval<'a> {
    input: &'a PlanInput,
    /// The clusters with a slot, and their stages.
    working: BTreeMap<&'a ClusterName, usize>,
    /// The first stage with a cluster on which a removal may begin.
    next_stage: Option<usize>,
    free: usize,
    /// When the first of the removals in progress gives its slot back at the latest.
    slot_free_at: Option<Timestamp>,
}

impl<'a> GroupRemoval<'a> {
    fn of(input: &'a PlanInput) -> Self {
        let losing = || input.leaving.values().filter(|sync| sync.takes_slot());
        let mut clusters: Vec<&ClusterName> = losing().map(|sync| &sync.cluster).collect();
        clusters.sort_unstable();
        clusters.dedup();
        let in_slots = losing().filter_map(|sync| Some((&sync.cluster, slot_ends(input, sync)?)));
        let late = { input.prunes.values() }
            .filter_map(|request| Some((&request.cluster, prune::slot_ends(input, request)?)));
        let in_progress: Vec<(&ClusterName, Timestamp)> = in_slots.chain(late).collect();
        // A cluster without anything left to lose is before no other one.
        let stage = |cluster: &ClusterName| {
            let on_cluster = losing().filter(|sync| sync.cluster == *cluster);
            on_cluster.map(stage_of).min().unwrap_or(usize::MAX)
        };
        let working: BTreeMap<_, _> = { in_progress.iter() }
            .map(|(cluster, _)| (*cluster, stage(cluster)))
            .collect();
        let may_begin = losing().filter(|sync| sync.removing_since.is_none() && !sync.not_ready);
        let late = { input.prunes.iter() }
            .filter(|(_, request)| !prune::is_in_progress(input, request))
            .filter_map(|(name, _)| may_end_late(input, name));
        let may_begin = may_begin.chain(late);
        let slots = { input.strategy.limits.max_concurrency }.of_rounded_up(clusters.len());
        Self {
            next_stage: may_begin.map(stage_of).min(),
            free: slots.max(1).saturating_sub(working.len()),
            slot_free_at: in_progress.iter().map(|(_, ends)| *ends).min(),
            working,
            input,
        }
    }

    fn decision(
        &mut self,
        name: &SyncName,
        sync: &'a LeavingSync,
        openings: &mut Openings<'a>,
    ) -> RemovalDecision {
        let hold = |reason, recheck_at| RemovalDecision::Hold { reason, recheck_at };
        if sync.removing_since.is_some() {
            return RemovalDecision::Removing;
        }
        if goes_last(name, sync, &self.input.leaving) {
            return hold(RemovalHold::SyncSuspended, None);
        }
        // Nothing is taken away from clusters whose objects stay.
        if sync.policy == DeletionPolicy::Orphan {
            return RemovalDecision::Remove;
        }
        if let Some(stop) = self.input.stop() {
            return hold(stop, None);
        }
        if sync.not_ready {
            return hold(RemovalHold::ClusterNotReady, None);
        }
        self.begin(sync, openings)
    }

    /// Returns the decision about a removal that gave its slot back, and has to delete something after that.
    fn late_decision(
        &mut self,
        name: &SyncName,
        request: &PruneRequest,
        openings: &mut Openings<'a>,
    ) -> RemovalDecision {
        let hold = |reason, recheck_at| RemovalDecision::Hold { reason, recheck_at };
        if prune::is_in_progress(self.input, request) {
            return RemovalDecision::Removing;
        }
        if self.input.membership_held {
            return hold(RemovalHold::MembershipHeld, None);
        }
        if let Some(stop) = self.input.stop() {
            return hold(stop, None);
        }
        match may_end_late(self.input, name) {
            Some(sync) => self.begin(sync, openings),
            // Nothing is pruned of what goes as a whole.
            None => hold(RemovalHold::ClusterNotReady, None),
        }
    }

    /// Begins to delete on a cluster, in its stage, in a window and in a slot.
    fn begin(&mut self, sync: &'a LeavingSync, openings: &mut Openings<'a>) -> RemovalDecision {
        let hold = |reason, recheck_at| RemovalDecision::Hold { reason, recheck_at };
        // What was interrupted is completed.
        if self.working.contains_key(&sync.cluster) {
            return RemovalDecision::Remove;
        }
        let stage = stage_of(sync);
        let mut before = self.working.values().filter(|working| **working < stage);
        if self.next_stage != Some(stage) || before.next().is_some() {
            return hold(RemovalHold::StageNotOpen, self.slot_free_at);
        }
        if let LeavingCause::GroupDeleted { windows, .. } = &sync.cause {
            let opening = openings.about(windows);
            if !opening.is_open {
                return hold(RemovalHold::WindowClosed, opening.changes_at);
            }
        }
        if self.free == 0 {
            return hold(RemovalHold::NoSlot, self.slot_free_at);
        }
        self.free -= 1;
        self.working.insert(&sync.cluster, stage);
        RemovalDecision::Remove
    }
}

/// Returns the Sync of a request if it is being removed and its cluster is ready.
fn may_end_late<'a>(input: &'a PlanInput, name: &SyncName) -> Option<&'a LeavingSync> {
    let sync = input.leaving.get(name)?;
    (sync.removing_since.is_some() && !sync.not_ready && sync.takes_slot()).then_some(sync)
}

/// Returns when the removal of a Sync gives the slot of its cluster back at the latest; `None`: it has none. Nothing is
/// in progress on a cluster that is not ready.
fn slot_ends(input: &PlanInput, sync: &LeavingSync) -> Option<Timestamp> {
    let since = sync.removing_since.filter(|_| !sync.not_ready)?;
    input.slot_until(since)
}

fn stage_of(sync: &LeavingSync) -> usize {
    match &sync.cause {
        LeavingCause::GroupDeleted { stage, .. } | LeavingCause::ClusterUnselected { stage, .. } => *stage,
        LeavingCause::EntryRemoved => 0,
    }
}
