//! Determines the windows that are open for each cluster.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::stages::Direction;
use super::types::PlanInput;
use crate::window::{self, Calendar, Opening};

/// The state of each set of windows. There are few sets and many clusters, so each set is evaluated once.
pub(super) struct Openings<'a> {
    now: Timestamp,
    calendars: Vec<Calendar>,
    sets: BTreeMap<&'a [usize], Opening>,
}

impl<'a> Openings<'a> {
    /// For the starts of a rollout, and for the entries that its release lacks: an immediate rollback does not wait.
    pub(super) fn of(input: &'a PlanInput) -> Self {
        Self::new(input, input.rollout.direction != Direction::BackAtOnce)
    }

    /// For what is taken away besides: a cluster that left, a late prune and the deletion of the group are not a part
    /// of the rollout, so that they wait for their windows in an immediate rollback too.
    pub(super) fn of_removals(input: &'a PlanInput) -> Self {
        Self::new(input, true)
    }

    fn new(input: &'a PlanInput, counts: bool) -> Self {
        let windows = input.strategy.windows.iter().filter(|_| counts);
        Self {
            now: input.now,
            calendars: windows.map(|window| Calendar::of(window, input.now)).collect(),
            sets: BTreeMap::new(),
        }
    }

    /// Returns the state of a set of windows, by their indexes.
    pub(super) fn about(&mut self, set: &'a [usize]) -> Opening {
        if set.is_empty() {
            return Opening::ALWAYS;
        }
        let calendars = &self.calendars;
        *self.sets.entry(set).or_insert_with(|| {
            let about = set.iter().filter_map(|place| calendars.get(*place));
            window::combined(&about.collect::<Vec<_>>(), self.now)
        })
    }

    /// Returns the earliest end of the calendars of the evaluated sets: windows after that time are unknown.
    pub(super) fn known_until(&self) -> Option<Timestamp> {
        self.sets.values().filter_map(|opening| opening.known_until).min()
    }
}
