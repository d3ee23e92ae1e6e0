//! The Syncs that are removed: those of clusters that left the group, and of entries that left its spec. The prunes
//! that are requested share the slots with them.
//!
//! A removal is a decision like a start. The removal of an entry is that of its cluster ([`Decision::Remove`]). A
//! cluster that left is not one of the release any more; if its objects are deleted, it takes one of the slots that
//! remain, in its stage and in its windows.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use starling_api::DeletionPolicy;

use super::leaving::{LeavingCause, LeavingSync, RemovalDecision, RemovalHold, needed_by_suspended};
use super::openings::Openings;
use super::stages::Direction;
use super::state::ClusterState;
use super::types::{Decision, PlanInput};
use super::walk::StageState;
use crate::ids::{ClusterName, SyncName};

/// The input of the decisions about removals, except for the Syncs.
pub(super) struct Removals<'a> {
    pub(super) input: &'a PlanInput,
    pub(super) stages: &'a [StageState],
    pub(super) states: &'a [ClusterState<'a>],
    pub(super) decisions: &'a BTreeMap<ClusterName, Decision>,
    /// The slots of the group; `None`: no limit.
    pub(super) slots: Option<usize>,
}

/// The result of the decisions about removals.
#[derive(Default)]
pub(super) struct RemovalResult {
    pub(super) decisions: BTreeMap<SyncName, RemovalDecision>,
    /// The decisions about prunes that are requested.
    pub(super) prunes: BTreeMap<SyncName, RemovalDecision>,
    /// The clusters that this plan gives a slot, since they lose something.
    pub(super) begun: BTreeSet<ClusterName>,
    /// Whether a cluster that left, or a prune, waits for a slot.
    pub(super) waits_for_slot: bool,
    /// Earliest end of the calendars that clusters wait for: windows after that time are unknown.
    pub(super) known_until: Option<Timestamp>,
}

impl<'a> Removals<'a> {
    /// Returns the decision for every Sync that leaves, and for every prune that is requested.
    pub(super) fn decide(&self) -> RemovalResult {
        let mut result = RemovalResult::default();
        if self.input.leaving.is_empty() && self.input.prunes.is_empty() {
            return result;
        }
        let mut openings = Openings::of_removals(self.input);
        let free = self.slots.unwrap_or(usize::MAX).saturating_sub(self.in_use());
        let free = self.decide_leaving(free, &mut openings, &mut result);
        self.decide_prunes(free, &mut openings, &mut result);
        let waits = |reason| {
            let mut decided = result.decisions.values().chain(result.prunes.values());
            decided.any(|decision| decision.is_held_by(reason))
        };
        let known_until = openings.known_until();
        (result.waits_for_slot, result.known_until) = (
            waits(RemovalHold::NoSlot),
            known_until.filter(|_| waits(RemovalHold::WindowClosed)),
        );
        result
    }

    /// Adds the decision for every Sync that leaves. Returns the slots that are still free.
    fn decide_leaving(
        &self,
        mut free: usize,
        openings: &mut Openings<'a>,
        result: &mut RemovalResult,
    ) -> usize {
        let mut begun: BTreeSet<&str> = self.removing().map(|(cluster, _)| cluster).collect();
        let needed = needed_by_suspended(&self.input.leaving);
        for (name, sync) in &self.input.leaving {
            let mut decision = self.decision((sync, needed.contains(name)), openings);
            let needs_slot = sync.takes_slot() && decision == RemovalDecision::Remove;
            if needs_slot && !begun.contains(&*sync.cluster) {
                if free == 0 {
                    decision = RemovalDecision::Hold {
                        reason: RemovalHold::NoSlot,
                        recheck_at: self.slot_free_at(),
                    };
                } else {
                    free -= 1;
                    begun.insert(&sync.cluster);
                    result.begun.insert(sync.cluster.clone());
                }
            }
            result.decisions.insert(name.clone(), decision);
        }
        free
    }

    /// `is_needed`: a suspended Sync depends on this one.
    fn decision(
        &self,
        (sync, is_needed): (&'a LeavingSync, bool),
        openings: &mut Openings<'a>,
    ) -> RemovalDecision {
        let hold = |reason, recheck_at| RemovalDecision::Hold { reason, recheck_at };
        if sync.removing_since.is_some() {
            return RemovalDecision::Removing;
        }
        if self.input.membership_held {
            return hold(RemovalHold::MembershipHeld, None);
        }
        match &sync.cause {
            LeavingCause::EntryRemoved if sync.awaits_approval() => {
                hold(RemovalHold::AutomaticRollback, None)
            }
            // Only a group that is being deleted has such Syncs.
            LeavingCause::EntryRemoved | LeavingCause::GroupDeleted { .. } => self.of_entry(sync),
            LeavingCause::ClusterUnselected {
                settles_at,
                stage,
                windows,
            } => {
                if *settles_at > self.input.now {
                    return hold(RemovalHold::Settling, Some(*settles_at));
                }
                if sync.suspended {
                    return hold(RemovalHold::SyncSuspended, None);
                }
                if is_needed && sync.policy == DeletionPolicy::Delete {
                    return hold(RemovalHold::DependentStays, None);
                }
                if let Some(stop) = self.input.stop() {
                    return hold(stop, None);
                }
                // Nothing is taken away from a cluster whose objects stay.
                if sync.policy == DeletionPolicy::Orphan {
                    return RemovalDecision::Remove;
                }
                if sync.not_ready {
                    return hold(RemovalHold::ClusterNotReady, None);
                }
                if !self.is_open(*stage) {
                    return hold(RemovalHold::StageNotOpen, None);
                }
                if let Some(until) = sync.budget_until.filter(|until| *until > self.input.now) {
                    return hold(RemovalHold::DeletionBudget, Some(until));
                }
                let opening = openings.about(windows);
                if !opening.is_open {
                    return hold(RemovalHold::WindowClosed, opening.changes_at);
                }
                RemovalDecision::Remove
            }
        }
    }

    fn of_entry(&self, sync: &LeavingSync) -> RemovalDecision {
        let hold = |reason| RemovalDecision::Hold {
            reason,
            recheck_at: None,
        };
        match self.decisions.get(&sync.cluster) {
            Some(Decision::Remove { entries }) if entries.contains(&sync.entry) => RemovalDecision::Remove,
            Some(Decision::Hold { .. }) if self.lacks_nothing(&sync.cluster) => {
                hold(RemovalHold::ClusterWaits)
            }
            _ => hold(RemovalHold::ClusterNotDone),
        }
    }

    /// Reports whether the entries of the release are done on a cluster.
    fn lacks_nothing(&self, cluster: &ClusterName) -> bool {
        self.state_of(cluster).is_some_and(|state| state.lacks_nothing)
    }

    fn state_of(&self, cluster: &ClusterName) -> Option<&ClusterState<'a>> {
        let found = self.states.binary_search_by(|state| state.name.cmp(cluster));
        found.ok().and_then(|place| self.states.get(place))
    }

    /// Reports whether the stage is open. In a group without clusters no stage opens, and nothing waits for one.
    pub(super) fn is_open(&self, stage: usize) -> bool {
        let stage = match self.input.rollout.direction {
            Direction::Forward | Direction::Back => stage,
            Direction::BackAtOnce => 0,
        };
        let found = self.stages.get(stage);
        self.states.is_empty() || found.is_some_and(|stage| stage.open_since().is_some())
    }

    /// Returns the clusters that are losing their Syncs because they left, and until when that takes a slot.
    pub(super) fn removing(&self) -> impl Iterator<Item = (&str, Timestamp)> {
        let leaving = self.input.leaving.values();
        let unselected = leaving.filter(|sync| sync.takes_slot());
        unselected.filter_map(move |sync| {
            let until = self.input.slot_until(sync.removing_since?)?;
            Some((&*sync.cluster, until))
        })
    }

    /// Returns the number of clusters with a slot after this plan is executed, without those that begin to leave or to
    /// prune.
    fn in_use(&self) -> usize {
        let in_flight = self.states.iter().filter(|state| self.has_slot(state));
        let beside = self.removing().chain(self.pruning());
        let beside: BTreeSet<&str> = beside.map(|(cluster, _)| cluster).collect();
        in_flight.count() + beside.len()
    }

    /// Reports whether a cluster of the release has a slot after this plan is executed.
    pub(super) fn is_in_flight(&self, cluster: &ClusterName) -> bool {
        self.state_of(cluster).is_some_and(|state| self.has_slot(state))
    }

    fn has_slot(&self, state: &ClusterState<'_>) -> bool {
        let decision = self.decisions.get(state.name);
        state.slot.is_some() || decision.is_some_and(Decision::begins_work)
    }

    /// Returns when the first of the clusters that left, or that prune, gives its slot back.
    pub(super) fn slot_free_at(&self) -> Option<Timestamp> {
        self.removing()
            .chain(self.pruning())
            .map(|(_, until)| until)
            .min()
    }
}
