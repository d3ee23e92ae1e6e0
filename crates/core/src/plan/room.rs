//! How many more clusters the bounds let start.

use super::admit::Wish;
use super::stages::Direction;
use super::standing::Standing;
use super::types::{HoldReason, PlanInput, Tally, To};
use super::walk::Stage;

/// How much room is left while slots are given away.
pub(super) struct Room {
    /// The group, then its stages.
    counters: Vec<Counter>,
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

    fn has_slot(&self, standing: &Standing<'_>, wish: &Wish) -> bool {
        let Some(slots) = self.slots else {
            return true;
        };
        let has_slot = standing.slot.is_some() || self.in_flight < slots;
        let may_spread = wish.begun || wish.to == To::LastKnownGood || self.reached < slots;
        has_slot && may_spread
    }

    /// Whether one more may be unavailable, or this one is already.
    fn may_be_unavailable(&self, standing: &Standing<'_>, wish: &Wish) -> bool {
        standing.is_unavailable(wish.is_open) || self.unavailable < self.unavailable_allowed
    }

    fn take(&mut self, standing: &Standing<'_>, wish: &Wish) {
        self.in_flight += usize::from(standing.slot.is_none());
        self.reached += usize::from(!wish.begun && wish.to == To::Release);
        self.unavailable += usize::from(!standing.is_unavailable(wish.is_open));
    }
}

impl Room {
    pub(super) fn new(input: &PlanInput, tally: Tally, stages: &[Stage]) -> Self {
        let direction = input.rollout.direction;
        let reached = stages.iter().map(|stage| stage.reached).sum();
        let of_stage = |stage: &Stage| Counter::of(stage.plan.tally, stage.reached, direction);
        let group = Counter::of(tally, reached, direction);
        Self {
            counters: std::iter::once(group)
                .chain(stages.iter().map(of_stage))
                .collect(),
        }
    }

    /// Takes the room that a start needs, or says what is lacking.
    pub(super) fn take(&mut self, stage: usize, standing: &Standing<'_>, wish: &Wish) -> Option<HoldReason> {
        let touched = [0, stage + 1];
        let all = |fits: &dyn Fn(&Counter) -> bool| {
            let mut touched = touched.iter();
            touched.all(|place| self.counters.get(*place).is_none_or(fits))
        };
        if !all(&|counter| counter.has_slot(standing, wish)) {
            return Some(HoldReason::NoSlot);
        }
        if !all(&|counter| counter.may_be_unavailable(standing, wish)) {
            return Some(HoldReason::TooManyUnavailable);
        }
        for place in touched {
            if let Some(counter) = self.counters.get_mut(place) {
                counter.take(standing, wish);
            }
        }
        None
    }
}
