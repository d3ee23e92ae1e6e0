//! A cluster of a simulation.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::plan::{Held, ObservedSync, Progress, Reach, Trouble};

/// What becomes of a target that is admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// It is healthy after the time that the cluster takes.
    #[default]
    Healthy,
    /// It fails after that time, and goes on failing.
    Fails,
    /// It never comes to an end.
    Hangs,
    /// The cluster cannot be reached from then on.
    CutsOff,
}

/// A cluster.
#[derive(Clone, Debug)]
pub struct Member {
    /// UID of its Cluster object.
    pub uid: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// From admission to healthy.
    pub takes: Duration,
    /// What becomes of each release; what is not named here becomes healthy.
    pub fates: BTreeMap<String, Fate>,
    /// Whether it can be reached.
    pub reach: Reach,
    /// Its Sync.
    pub observed: Option<ObservedSync>,
}

impl Member {
    /// A cluster without anything.
    #[must_use]
    pub fn new(uid: &str, labels: BTreeMap<String, String>, takes: Duration) -> Self {
        Self {
            uid: uid.to_owned(),
            labels,
            takes,
            fates: BTreeMap::new(),
            reach: Reach::Ready,
            observed: None,
        }
    }

    /// Holds a target, healthy since then.
    #[must_use]
    pub fn holding(mut self, target: &str, since: Timestamp) -> Self {
        self.admit(target, since);
        self.progress(Progress::healthy_since(since));
        self
    }

    /// Admits a target.
    pub fn admit(&mut self, target: &str, now: Timestamp) {
        self.observed = Some(ObservedSync {
            target: Some(target.to_owned()),
            release: target.to_owned(),
            admitted_at: Some(now),
            progress: Progress::Working,
            suspended: false,
        });
    }

    /// Whether it is on the way to something.
    #[must_use]
    pub fn is_at_work(&self) -> bool {
        let observed = self.observed.as_ref();
        observed.is_some_and(|sync| sync.progress == Progress::Working)
    }

    /// Lets time do what it does up to now.
    pub fn live(&mut self, now: Timestamp) {
        let Some(ends) = self.next_time().filter(|ends| *ends <= now) else {
            return;
        };
        match self.fate() {
            Fate::Healthy => self.progress(Progress::healthy_since(ends)),
            Fate::Fails => self.fail("ApplyFailed", "the release does not apply"),
            Fate::Hangs => {}
            Fate::CutsOff => self.lose(ends),
        }
    }

    /// When its work ends by itself; `None`: it is not at work, cannot be reached, or hangs.
    #[must_use]
    pub fn next_time(&self) -> Option<Timestamp> {
        if !self.is_at_work() || self.reach != Reach::Ready || self.fate() == Fate::Hangs {
            return None;
        }
        let admitted_at = self.observed.as_ref()?.admitted_at?;
        // What cuts a cluster off does so at once.
        let takes = if self.fate() == Fate::CutsOff {
            Duration::ZERO
        } else {
            self.takes
        };
        admitted_at.checked_add(takes).ok()
    }

    fn fate(&self) -> Fate {
        let target = self.observed.as_ref().and_then(|sync| sync.target.as_ref());
        target
            .and_then(|target| self.fates.get(target))
            .copied()
            .unwrap_or_default()
    }

    fn progress(&mut self, progress: Progress) {
        if let Some(sync) = &mut self.observed {
            sync.progress = progress;
        }
    }

    /// Its attempts fail from now on.
    pub fn fail(&mut self, reason: &str, message: &str) {
        self.progress(Progress::Failing {
            reason: reason.to_owned(),
            message: message.to_owned(),
            retry_at: None,
        });
    }

    /// It is healthy with what it was admitted to.
    pub fn heal(&mut self, now: Timestamp) {
        let longest = match self.observed.as_ref().map(|sync| &sync.progress) {
            Some(Progress::Held(held)) => held.longest,
            _ => Duration::ZERO,
        };
        self.progress(Progress::Held(Held {
            since: Some(now),
            longest,
            trouble: None,
        }));
    }

    /// Something that it holds breaks.
    pub fn break_down(&mut self, now: Timestamp) {
        let held = match self.observed.as_ref().map(|sync| &sync.progress) {
            Some(Progress::Held(held)) => held.clone(),
            _ => return,
        };
        let span = held
            .since
            .and_then(|since| now.duration_since(since).try_into().ok());
        self.progress(Progress::Held(Held {
            since: None,
            longest: held.longest.max(span.unwrap_or_default()),
            trouble: Some(Trouble {
                reason: "HealthCheckFailed".into(),
                message: "a workload is not available".into(),
            }),
        }));
    }

    /// It cannot be reached any more.
    pub fn lose(&mut self, now: Timestamp) {
        self.reach = Reach::Unreachable {
            reason: "Unreachable".into(),
            message: "no answer".into(),
            since: now,
        };
    }

    /// It can be reached again, and what had cut it off does so no more: its work goes on.
    pub fn find_again(&mut self) {
        self.reach = Reach::Ready;
        let target = self.observed.as_ref().and_then(|sync| sync.target.as_ref());
        if let Some(target) = target {
            self.fates.remove(target);
        }
    }
}
