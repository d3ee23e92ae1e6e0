//! Deletions that come after what the group admitted: prunes, and ends of Syncs.
//!
//! An admitted attempt deletes what left the render at once, in the slot of its cluster. What it left, because of a
//! grace, a budget or an approval, is deleted later, on all clusters at about the same time. Such a prune is a decision
//! of its own: in an open stage, in an open window, and in a slot that the rollout leaves (ADR 45). So is the end of a
//! Sync that was held or unreachable until its removal gave its slot back: one approval, or one network that returns,
//! would otherwise delete on all clusters at once, whatever the time (ADR 55).

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::leaving::{LeavingCause, RemovalDecision, RemovalHold};
use super::openings::Openings;
use super::prune_request::PruneRequest;
use super::removal::{RemovalResult, Removals};
use super::types::{PlanInput, Reach};
use crate::ids::SyncName;

impl<'a> Removals<'a> {
    /// Adds the decision for every prune that is requested, in the slots that are still free.
    pub(super) fn decide_prunes(
        &self,
        mut free: usize,
        openings: &mut Openings<'a>,
        result: &mut RemovalResult,
    ) {
        let beside = self.removing().chain(self.pruning());
        let mut pruning: BTreeSet<&str> = beside.map(|(cluster, _)| cluster).collect();
        // What this plan begins to remove has its slot.
        pruning.extend(result.begun.iter().map(|cluster| &**cluster));
        let mut free_at = self.slot_free_at();
        for (name, request) in &self.input.prunes {
            let mut decision = self.prune_decision(name, request, openings);
            let has_slot = self.is_in_flight(&request.cluster) || pruning.contains(&*request.cluster);
            if decision == RemovalDecision::Remove && !has_slot {
                if free == 0 {
                    decision = RemovalDecision::Hold {
                        reason: RemovalHold::NoSlot,
                        recheck_at: free_at,
                    };
                } else {
                    free -= 1;
                    pruning.insert(&request.cluster);
                    // Nothing but its end, which may not come, tells of a prune that begins now.
                    free_at = free_at
                        .into_iter()
                        .chain(self.input.slot_due(self.input.now))
                        .min();
                }
            }
            result.prunes.insert(name.clone(), decision);
        }
    }

    fn prune_decision(
        &self,
        name: &SyncName,
        request: &'a PruneRequest,
        openings: &mut Openings<'a>,
    ) -> RemovalDecision {
        let hold = |reason, recheck_at| RemovalDecision::Hold { reason, recheck_at };
        let input = self.input;
        if is_in_progress(input, request) {
            return RemovalDecision::Removing;
        }
        if input.membership_held {
            return hold(RemovalHold::MembershipHeld, None);
        }
        if let Some(stop) = input.stop() {
            return hold(stop, None);
        }
        if input.operator.aborted.is_some() && !leaves_with_its_cluster(input, name) {
            return hold(RemovalHold::Aborted, None);
        }
        let Some((stage, windows)) = place(input, name, request) else {
            return hold(RemovalHold::ClusterNotReady, None);
        };
        if !self.is_open(stage) {
            return hold(RemovalHold::StageNotOpen, None);
        }
        let opening = openings.about(windows);
        if !opening.is_open {
            return hold(RemovalHold::WindowClosed, opening.changes_at);
        }
        RemovalDecision::Remove
    }

    /// Returns the clusters on which prunes are in progress beside the rollout, and until when that takes a slot.
    pub(super) fn pruning(&self) -> impl Iterator<Item = (&'a str, Timestamp)> {
        let requests = self.input.prunes.values();
        requests.filter_map(move |request| {
            let ends = slot_ends(self.input, request)?;
            (!self.is_in_flight(&request.cluster)).then_some((&*request.cluster, ends))
        })
    }
}

/// Reports whether a deletion was allowed and goes on: in its slot, or since it has begun.
pub(super) fn is_in_progress(input: &PlanInput, request: &PruneRequest) -> bool {
    slot_ends(input, request).is_some() || (request.begun && request.allowed_at.is_some())
}

/// Returns when a deletion in progress gives its slot back at the latest; `None`: it has none.
pub(super) fn slot_ends(input: &PlanInput, request: &PruneRequest) -> Option<Timestamp> {
    input.slot_until(request.allowed_at?)
}

/// Reports whether a Sync is removed because its cluster left the group: that is no part of the release.
fn leaves_with_its_cluster(input: &PlanInput, name: &SyncName) -> bool {
    let leaving = input.leaving.get(name);
    leaving.is_some_and(|sync| matches!(sync.cause, LeavingCause::ClusterUnselected { .. }))
}

/// Returns the stage and the windows of a request; `None`: its cluster is not ready, or not selected and not leaving.
fn place<'a>(
    input: &'a PlanInput,
    name: &SyncName,
    request: &'a PruneRequest,
) -> Option<(usize, &'a [usize])> {
    match input.leaving.get(name).map(|sync| (&sync.cause, sync)) {
        Some((LeavingCause::ClusterUnselected { stage, windows, .. }, sync)) => {
            (sync.removing_since.is_some() && !sync.not_ready).then_some((*stage, windows))
        }
        // A cluster that is not selected stays as it is until it leaves.
        _ => {
            let view = input.clusters.get(&request.cluster)?;
            (view.reach == Reach::Ready).then_some((view.stage, &*view.windows))
        }
    }
}
