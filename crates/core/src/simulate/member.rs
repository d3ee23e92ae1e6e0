//! A cluster of a simulation.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::plan::{Applied, HealthProblem, ObservedSync, Progress, Reach};

/// The fate of a target that is admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// The target is healthy after the time that the cluster takes.
    #[default]
    Healthy,
    /// The target fails after that time and does not recover.
    Fails,
    /// The target never becomes healthy or failed.
    Hangs,
    /// The cluster is unreachable from then on.
    CutsOff,
}

/// A cluster.
#[derive(Clone, Debug)]
pub struct SimulatedMember {
    /// UID of its Cluster object.
    pub uid: String,
    /// The labels of the cluster.
    pub labels: BTreeMap<String, String>,
    /// The time from admission to healthy.
    pub takes: Duration,
    /// The fate of each release; other releases become healthy.
    pub fates: BTreeMap<String, Fate>,
    /// The reachability of the cluster.
    pub reach: Reach,
    /// The Sync of the cluster.
    pub observed: Option<ObservedSync>,
}

impl SimulatedMember {
    /// Returns a cluster without a Sync.
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

    /// Admits a target and makes it healthy since that time.
    #[must_use]
    pub fn holding(mut self, target: &str, since: Timestamp) -> Self {
        self.admit(target, since);
        self.progress(Progress::healthy_since(since));
        self
    }

    /// Admits a target.
    pub fn admit(&mut self, target: &str, now: Timestamp) {
        self.observed = Some(ObservedSync {
            stored_admitted_at: None,
            target: Some(target.into()),
            release: target.into(),
            admitted_at: Some(now),
            progress: Progress::Working,
            retried_for: None,
            suspended: false,
        });
    }

    /// Reports whether an attempt is in progress.
    #[must_use]
    pub fn is_at_work(&self) -> bool {
        let observed = self.observed.as_ref();
        observed.is_some_and(|sync| sync.progress == Progress::Working)
    }

    /// Applies what happens by itself up to now.
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

    /// Returns when the attempt in progress ends by itself; `None`: there is none, it hangs, or the cluster is
    /// unreachable.
    #[must_use]
    pub fn next_time(&self) -> Option<Timestamp> {
        if !self.is_at_work() || self.reach != Reach::Ready || self.fate() == Fate::Hangs {
            return None;
        }
        let admitted_at = self.observed.as_ref()?.admitted_at?;
        // A release that cuts a cluster off does so at once.
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
            .and_then(|target| self.fates.get(target.as_str()))
            .copied()
            .unwrap_or_default()
    }

    fn progress(&mut self, progress: Progress) {
        if let Some(sync) = &mut self.observed {
            sync.progress = progress;
        }
    }

    /// Lets the attempts fail from now on.
    pub fn fail(&mut self, reason: &str, message: &str) {
        self.progress(Progress::Failing {
            reason: reason.to_owned(),
            message: message.to_owned(),
            retry_at: None,
        });
    }

    /// Makes the cluster healthy with its target.
    pub fn heal(&mut self, now: Timestamp) {
        let longest = match self.observed.as_ref().map(|sync| &sync.progress) {
            Some(Progress::Applied(applied)) => applied.longest,
            _ => Duration::ZERO,
        };
        self.progress(Progress::Applied(Applied {
            since: Some(now),
            longest,
            problem: None,
        }));
    }

    /// Makes an applied target unhealthy.
    pub fn break_down(&mut self, now: Timestamp) {
        let applied = match self.observed.as_ref().map(|sync| &sync.progress) {
            Some(Progress::Applied(applied)) => applied.clone(),
            _ => return,
        };
        let span = applied
            .since
            .and_then(|since| now.duration_since(since).try_into().ok());
        self.progress(Progress::Applied(Applied {
            since: None,
            longest: applied.longest.max(span.unwrap_or_default()),
            problem: Some(HealthProblem {
                reason: "HealthCheckFailed".into(),
                message: "a workload is not available".into(),
            }),
        }));
    }

    /// Makes the cluster unreachable.
    pub fn lose(&mut self, now: Timestamp) {
        self.reach = Reach::Unreachable {
            reason: "Unreachable".into(),
            message: "no answer".into(),
            since: now,
        };
    }

    /// Makes the cluster reachable again, without what had cut it off: the attempt continues.
    pub fn find_again(&mut self) {
        self.reach = Reach::Ready;
        let target = self.observed.as_ref().and_then(|sync| sync.target.as_ref());
        if let Some(target) = target {
            self.fates.remove(target.as_str());
        }
    }
}
