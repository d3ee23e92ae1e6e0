//! Prunes that come after the attempt that the group admitted.
//!
//! An admitted attempt deletes what left the render at once, in the slot of its cluster. What it left, because of a
//! grace, a budget or an approval, is deleted later, on all clusters at about the same time. Such a prune is a decision
//! of its own: in an open stage, in an open window, and in a slot that the rollout leaves (ADR 45).

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::leaving::{RemovalDecision, RemovalHold};
use super::openings::Openings;
use super::prune_request::PruneRequest;
use super::removal::{RemovalResult, Removals};
use super::types::Reach;

impl<'a> Removals<'a> {
    /// Adds the decision for every prune that is requested, in the slots that are still free.
    pub(super) fn decide_prunes(
        &self,
        mut free: usize,
        openings: &mut Openings<'a>,
        result: &mut RemovalResult,
    ) {
        let mut pruning: BTreeSet<&str> = self.pruning().map(|(cluster, _)| cluster).collect();
        let mut free_at = self.slot_free_at();
        for (name, request) in &self.input.prunes {
            let mut decision = self.prune_decision(request, openings);
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
                    free_at = free_at.into_iter().chain(self.ends_at(self.input.now)).min();
                }
            }
            result.prunes.insert(name.clone(), decision);
        }
    }

    fn prune_decision(&self, request: &'a PruneRequest, openings: &mut Openings<'a>) -> RemovalDecision {
        let hold = |reason, recheck_at| RemovalDecision::Hold { reason, recheck_at };
        let input = self.input;
        if self.prune_ends(request).is_some() {
            return RemovalDecision::Removing;
        }
        if input.membership_held {
            return hold(RemovalHold::MembershipHeld, None);
        }
        if input.suspended {
            return hold(RemovalHold::GroupSuspended, None);
        }
        if input.operator.paused.is_some() {
            return hold(RemovalHold::Paused, None);
        }
        // A cluster that is not selected stays as it is until it leaves.
        let view = input.clusters.get(&request.cluster);
        let Some(view) = view.filter(|view| view.reach == Reach::Ready) else {
            return hold(RemovalHold::ClusterNotReady, None);
        };
        if !self.is_open(view.stage) {
            return hold(RemovalHold::StageNotOpen, None);
        }
        let opening = openings.about(&view.windows);
        if !opening.is_open {
            return hold(RemovalHold::WindowClosed, opening.changes_at);
        }
        RemovalDecision::Remove
    }

    /// Returns the clusters on which prunes are in progress beside the rollout, and until when that takes a slot.
    pub(super) fn pruning(&self) -> impl Iterator<Item = (&'a str, Timestamp)> {
        let requests = self.input.prunes.values();
        requests.filter_map(move |request| {
            let ends = self.prune_ends(request)?;
            (!self.is_in_flight(&request.cluster)).then_some((&*request.cluster, ends))
        })
    }

    /// Returns when a prune in progress gives its slot back at the latest; `None`: it is not in progress.
    fn prune_ends(&self, request: &PruneRequest) -> Option<Timestamp> {
        let ends = self.ends_at(request.allowed_at?)?;
        (ends > self.input.now).then_some(ends)
    }

    fn ends_at(&self, allowed_at: Timestamp) -> Option<Timestamp> {
        let deadline = self.input.strategy.limits.progress_deadline;
        self.input.clock_jumps.due(allowed_at, deadline)
    }
}
