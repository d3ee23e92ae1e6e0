//! The number of further clusters that the limits allow to start.

use super::candidate::Candidate;
use super::stages::Direction;
use super::stages::Tally;
use super::state::ClusterState;
use super::types::{AdmittedRelease, HoldReason, PlanInput};
use super::walk::StageState;

/// The free slots while they are given to clusters.
pub(super) struct SlotBudget {
    /// The counters of the group, then those of its stages.
    counters: Vec<Counter>,
    /// What is left of [`PlanInput::installation_slots`].
    installation: Option<usize>,
}

struct Counter {
    slots: Option<usize>,
    in_flight: usize,
    reached: usize,
    unavailable: usize,
    unavailable_allowed: usize,
}

impl Counter {
    fn of(tally: Tally, reached: usize, direction: Direction) -> Self {
        Self {
            slots: tally.slots,
            in_flight: tally.in_flight,
            reached,
            unavailable: tally.unavailable,
            unavailable_allowed: match direction {
                Direction::Forward | Direction::Back => tally.unavailable_allowed,
                Direction::BackAtOnce => usize::MAX,
            },
        }
    }

    fn has_slot(&self, state: &ClusterState<'_>, candidate: &Candidate) -> bool {
        let Some(slots) = self.slots else {
            return true;
        };
        let has_slot = state.slot.is_some() || self.in_flight < slots;
        let may_spread =
            candidate.begun || candidate.to == AdmittedRelease::LastKnownGood || self.reached < slots;
        has_slot && may_spread
    }

    /// Reports whether one more cluster may be unavailable, or this one already is.
    fn may_be_unavailable(&self, state: &ClusterState<'_>, candidate: &Candidate) -> bool {
        state.is_unavailable(candidate.is_open) || self.unavailable < self.unavailable_allowed
    }

    fn take(&mut self, state: &ClusterState<'_>, candidate: &Candidate) {
        self.in_flight += usize::from(state.slot.is_none());
        self.reached += usize::from(!candidate.begun && candidate.to == AdmittedRelease::Release);
        self.unavailable += usize::from(!state.is_unavailable(candidate.is_open));
    }
}

impl SlotBudget {
    pub(super) fn new(input: &PlanInput, tally: Tally, stages: &[StageState]) -> Self {
        let direction = input.rollout.direction;
        let reached = stages.iter().map(|stage| stage.reached).sum();
        let of_stage = |stage: &StageState| Counter::of(stage.plan.tally, stage.reached, direction);
        let group = Counter::of(tally, reached, direction);
        Self {
            counters: std::iter::once(group)
                .chain(stages.iter().map(of_stage))
                .collect(),
            installation: input.installation_slots,
        }
    }

    /// Takes a slot for a failed cluster, which has no slot and is already unavailable. Returns whether one was free.
    pub(super) fn take_retry(&mut self, stage: usize) -> bool {
        let scopes = [0, stage.saturating_add(1)];
        let is_free = |counter: &Counter| {
            counter
                .slots
                .is_none_or(|slots| counter.in_flight < slots && counter.reached < slots)
        };
        let mut counters = scopes.iter().map(|place| self.counters.get(*place));
        if !counters.all(|counter| counter.is_none_or(is_free)) || self.installation == Some(0) {
            return false;
        }
        self.installation = self.installation.map(|left| left.saturating_sub(1));
        for place in scopes {
            if let Some(counter) = self.counters.get_mut(place) {
                counter.in_flight += 1;
                counter.reached += 1;
            }
        }
        true
    }

    /// Takes the slot that a start needs, or returns which limit prevents it.
    pub(super) fn take(
        &mut self,
        stage: usize,
        state: &ClusterState<'_>,
        candidate: &Candidate,
    ) -> Option<HoldReason> {
        let scopes = [0, stage.saturating_add(1)];
        let all = |fits: &dyn Fn(&Counter) -> bool| {
            let mut scopes = scopes.iter();
            scopes.all(|place| self.counters.get(*place).is_none_or(fits))
        };
        if !all(&|counter| counter.has_slot(state, candidate)) {
            return Some(HoldReason::NoSlot);
        }
        if !all(&|counter| counter.may_be_unavailable(state, candidate)) {
            return Some(HoldReason::TooManyUnavailable);
        }
        if state.slot.is_none() {
            if self.installation == Some(0) {
                return Some(HoldReason::InstallationLimit);
            }
            self.installation = self.installation.map(|left| left.saturating_sub(1));
        }
        for place in scopes {
            if let Some(counter) = self.counters.get_mut(place) {
                counter.take(state, candidate);
            }
        }
        None
    }
}
