//! Faults of what is remembered: an old disk, labels that flap, clusters that are set back, and a watch that freezes.
//!
//! Each kind of fault has a random stream of its own, so that a new kind changes no other.

use std::time::Duration;

use starling_apiserver::faults::{Effect, Fault};
use starling_apiserver::random::Random;

use super::{DiskFate, Draft, Event, FAULT_PERIOD};
use crate::world::HUB;

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
        if self.begin_fault(seed, "frozen watch") {
            self.add_frozen_watch();
        }
        if self.begin_fault(seed, "wrong clock") {
            self.add_wrong_clock();
        }
        if self.begin_fault(seed, "member set back") {
            for _ in 0..self.between(1, 2) {
                let cluster = self.any_member();
                self.add_set_back(&cluster);
            }
        }
    }

    /// Adds a management cluster that is set back.
    pub(super) fn with_old_hub(&mut self, seed: u64) {
        if self.begin_fault(seed, "hub set back") {
            self.add_hub_set_back();
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

    fn add_flap(&mut self) {
        let (at, _) = self.span(1000);
        self.add_flap_at(at);
    }

    /// Lets a Cluster lose its label and get it back, several times within seconds: often within the grace period.
    fn add_flap_at(&mut self, mut at: Duration) {
        let cluster = self.any_member();
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

    /// Lets a cluster be set back to a backup that is up to a minute and a half old. A restore takes some seconds, in
    /// which the API server does not run.
    fn add_set_back(&mut self, cluster: &str) {
        let backup = Event::Backup {
            cluster: cluster.to_owned(),
        };
        let set_back = Event::SetBack {
            cluster: cluster.to_owned(),
            bump: self.random.below(2) == 0,
        };
        self.add_pair(90_000, backup, set_back);
        let at = self.events[self.events.len() - 1].0;
        let pause = self.between(2_000, 10_000);
        let serve = Event::Serve {
            cluster: cluster.to_owned(),
        };
        self.events.push((at + Duration::from_millis(pause), serve));
    }

    /// Freezes the watch of one kind on the management cluster; half of the time, labels flap meanwhile.
    fn add_frozen_watch(&mut self) {
        let kinds = [
            "clusters",
            "clusters",
            "syncgroups",
            "syncs",
            "sources",
            "rolloutactions",
            "rolloutapprovals",
            "deletionapprovals",
        ];
        let kind = kinds[self.random.below(kinds.len() as u64) as usize];
        let begin = Event::Fault {
            cluster: HUB.to_owned(),
            fault: Fault::always(Effect::FreezeWatch).of(&[kind]),
        };
        let (from, _) = self.span(1000);
        let length = Duration::from_millis(self.between(20_000, 90_000));
        let end = Event::Clear {
            cluster: HUB.to_owned(),
        };
        self.events.push((from, begin));
        self.events.push(((from + length).min(self.period.1), end));
        if self.random.below(2) == 0 {
            let pause = self.between(0, 10_000);
            self.add_flap_at((from + Duration::from_millis(pause)).min(self.period.1));
        }
    }

    /// Lets the clock be an hour to a year ahead for some seconds, half of the time until the controller starts again:
    /// what was written meanwhile has times that lie far ahead.
    fn add_wrong_clock(&mut self) {
        let hours = [1, 24, 24 * 365][self.random.below(3) as usize];
        let jump = |seconds| Event::Jump { seconds };
        let (from, to) = self.span(60_000);
        self.events.push((from, jump(3600 * hours)));
        if self.random.below(2) == 0 {
            self.events.push((to, jump(-3600 * hours)));
            return;
        }
        let start = Event::Start { disk: DiskFate::Kept };
        self.events
            .extend([(to, Event::Crash), (to, jump(-3600 * hours)), (to, start)]);
    }

    /// Lets the management cluster be set back, half of the time while the controller is stopped. The user brings it up
    /// to date again.
    fn add_hub_set_back(&mut self) {
        let before = self.events.len();
        self.add_set_back(HUB);
        let at = self.events[before + 1].0;
        if self.random.below(2) == 0 {
            let pause = self.between(200, 15_000);
            let start = Event::Start { disk: DiskFate::Kept };
            // The sort is stable, and the crash has to come first.
            self.events.insert(before + 1, (at, Event::Crash));
            let end = (at + Duration::from_millis(pause)).min(self.period.1);
            self.events.push((end, start));
        }
        let pause = self.between(0, 20_000);
        self.events.push((
            (at + Duration::from_millis(pause)).min(self.period.1),
            Event::Remake,
        ));
    }
}

/// Draws the delay of the release of a restore, in seconds.
pub(super) fn release_delay(seed: u64) -> i64 {
    let delay = Random::named(seed, "release").below(40);
    i64::try_from(delay).unwrap_or(0)
}
