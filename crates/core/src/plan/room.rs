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
    unavailable: usize,
    unavailable_allowed: usize,
}

struct Counter {
    slots: Option<usize>,
    in_flight: usize,
    reached: usize,
}

impl Counter {
    fn has_room(&self, standing: &Standing<'_>, wish: &Wish) -> bool {
        let Some(slots) = self.slots else {
            return true;
        };
        let has_slot = standing.slot.is_some() || self.in_flight < slots;
        let may_spread = wish.begun || wish.to == To::LastKnownGood || self.reached < slots;
        has_slot && may_spread
    }
}

impl Room {
    pub(super) fn new(input: &PlanInput, tally: Tally, stages: &[Stage]) -> Self {
        let group = Counter {
            slots: tally.slots,
            in_flight: tally.in_flight,
            reached: stages.iter().map(|stage| stage.reached).sum(),
        };
        let stages = stages.iter().map(|stage| Counter {
            slots: stage.plan.tally.slots,
            in_flight: stage.plan.tally.in_flight,
            reached: stage.reached,
        });
        Self {
            counters: std::iter::once(group).chain(stages).collect(),
            unavailable: tally.unavailable,
            unavailable_allowed: match input.rollout.direction {
                Direction::Forward | Direction::Back => tally.unavailable_allowed,
                Direction::BackAtOnce => usize::MAX,
            },
        }
    }

    /// Takes the room that a start needs, or says what is lacking.
    pub(super) fn take(&mut self, stage: usize, standing: &Standing<'_>, wish: &Wish) -> Option<HoldReason> {
        let touched = [0, stage + 1];
        let fits = |counter: &usize| {
            self.counters
                .get(*counter)
                .is_none_or(|c| c.has_room(standing, wish))
        };
        if !touched.iter().all(fits) {
            return Some(HoldReason::NoSlot);
        }
        let is_counted = standing.is_unavailable(wish.is_open);
        if !is_counted && self.unavailable >= self.unavailable_allowed {
            return Some(HoldReason::TooManyUnavailable);
        }
        self.unavailable += usize::from(!is_counted);
        for place in touched {
            if let Some(counter) = self.counters.get_mut(place) {
                counter.in_flight += usize::from(standing.slot.is_none());
                counter.reached += usize::from(!wish.begun && wish.to == To::Release);
            }
        }
        None
    }
}
