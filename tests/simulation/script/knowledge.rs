//! Faults of what is remembered: an old disk, labels that flap, and clusters that are set back.
//!
//! Each kind of fault has a random stream of its own, so that a new kind changes no other.

use std::time::Duration;

use starling_apiserver::random::Random;

use super::{DiskFate, Draft, Event, FAULT_PERIOD};

/// A seed has a fault of one of these kinds with the probability of one in this number.
const ONE_IN: u64 = 3;

impl Draft {
    /// Adds the faults of what is remembered.
    pub(super) fn with_old_knowledge(&mut self, seed: u64) {
        let end = self.period.1.max(FAULT_PERIOD);
        self.period = (Duration::from_secs(5), end);
        if self.begin_fault(seed, "old disk") {
            self.add_old_disk();
        }
        if self.begin_fault(seed, "flap") {
            self.add_flap();
        }
        if self.begin_fault(seed, "member set back") {
            for _ in 0..self.between(1, 2) {
                let cluster = self.any_member();
                self.add_set_back(&cluster);
            }
        }
    }

    /// Switches to the random stream of a kind of fault. Returns whether the seed has such a fault.
    fn begin_fault(&mut self, seed: u64, kind: &str) -> bool {
        self.random = Random::named(seed, kind);
        self.random.below(ONE_IN) == 0
    }

    /// Lets the controller restart once or twice with an old disk.
    fn add_old_disk(&mut self) {
        for _ in 0..self.random.below(3) {
            self.add_event(Event::Snapshot);
        }
        for _ in 0..self.between(1, 2) {
            let age = self.random.below(4) as usize;
            let mirror = self.random.below(2) == 0;
            let disk = DiskFate::PutBack { age, mirror };
            self.add_pair(15_000, Event::Crash, Event::Start { disk });
        }
    }

    /// Lets a Cluster lose its label and get it back, several times within seconds: often within the grace period.
    fn add_flap(&mut self) {
        let cluster = self.any_member();
        let (mut at, _) = self.span(1000);
        // Ends as it begins: selected.
        for place in 0..2 * self.between(2, 4) {
            let label = Event::Label {
                cluster: cluster.clone(),
                selected: place % 2 == 1,
            };
            self.events.push((at, label));
            let pause = self.between(200, 8_000);
            at = (at + Duration::from_millis(pause)).min(self.period.1);
        }
    }

    /// Lets a cluster be set back to a backup that is up to a minute and a half old.
    fn add_set_back(&mut self, cluster: &str) {
        let backup = Event::Backup {
            cluster: cluster.to_owned(),
        };
        let set_back = Event::SetBack {
            cluster: cluster.to_owned(),
            bump: self.random.below(2) == 0,
        };
        self.add_pair(90_000, backup, set_back);
    }
}
