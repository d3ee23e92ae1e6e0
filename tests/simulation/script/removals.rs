//! Removals: an entry that leaves and returns, clusters that move between groups, groups that are suspended.

use std::time::Duration;

use starling_apiserver::random::Random;

use super::{Draft, Event, FAULT_PERIOD};
use crate::user::{GROUP, OTHER};

impl Draft {
    /// Adds the events of a run with removals.
    pub(super) fn with_removals(&mut self, seed: u64) {
        self.random = Random::named(seed, "removals");
        self.period = (Duration::from_secs(10), self.period.1.max(FAULT_PERIOD));
        let mut present = self.random.below(2) == 0;
        for _ in 0..self.random.below(4) {
            self.add_event(Event::Entry { present });
            present = !present;
        }
        if self.random.below(2) == 0 {
            for _ in 0..self.between(1, 3) {
                self.add_transfer();
            }
        }
        if self.random.below(3) == 0 {
            let suspend = |on| Event::Suspend { on };
            self.add_pair(30_000, suspend(true), suspend(false));
        }
    }

    /// Moves a cluster to the other group; half of them return.
    fn add_transfer(&mut self) {
        let cluster = self.any_member();
        let transfer = |group| Event::Transfer {
            cluster: cluster.clone(),
            group,
        };
        if self.random.below(2) == 0 {
            self.add_pair(60_000, transfer(OTHER), transfer(GROUP));
        } else {
            self.add_event(transfer(OTHER));
        }
    }
}
