//! A cluster with a history.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use starling_core::plan::{Applied, HealthProblem, ObservedSync, Progress, Reach};

#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(super) uid: String,
    pub(crate) reach: Reach,
    /// The value of the label that the targets of `app` depend on.
    pub(super) label: Option<u32>,
    /// The stage, modulo the number of stages.
    pub(super) stage: usize,
    pub(super) windows: Vec<usize>,
    pub(super) syncs: BTreeMap<&'static str, ObservedSync>,
}

impl Member {
    pub(super) fn turn(&mut self, from: impl Fn(&Progress) -> bool, to: &Progress, at_most: usize) {
        let found = self.syncs.values_mut().filter(|sync| from(&sync.progress));
        for sync in found.take(at_most) {
            sync.progress = to.clone();
        }
    }

    fn applied(&mut self) -> impl Iterator<Item = &mut Applied> {
        self.syncs
            .values_mut()
            .filter_map(|sync| match &mut sync.progress {
                Progress::Applied(applied) => Some(applied),
                Progress::Working | Progress::Failing { .. } => None,
            })
    }

    pub(super) fn break_health(&mut self, now: Timestamp, problem: Option<&HealthProblem>) {
        for applied in self.applied() {
            let span = applied.since.take().map(|since| now.duration_since(since));
            let span = span.and_then(|span| Duration::try_from(span).ok());
            applied.longest = applied.longest.max(span.unwrap_or_default());
            applied.problem = problem.cloned();
        }
    }

    pub(super) fn heal(&mut self, now: Timestamp) {
        for applied in self.applied().filter(|applied| applied.since.is_none()) {
            applied.since = Some(now);
            applied.problem = None;
        }
    }

    pub(super) fn resume(&mut self) {
        if self.reach == Reach::Suspended {
            self.reach = Reach::Ready;
        }
        for sync in self.syncs.values_mut() {
            sync.suspended = false;
        }
    }
}

pub(super) fn failing() -> Progress {
    Progress::Failing {
        reason: "ApplyFailed".into(),
        message: "refused".into(),
        retry_at: None,
    }
}

pub(super) fn is_working(progress: &Progress) -> bool {
    *progress == Progress::Working
}

pub(super) fn is_failing(progress: &Progress) -> bool {
    matches!(progress, Progress::Failing { .. })
}

pub(super) fn is_applied(progress: &Progress) -> bool {
    matches!(progress, Progress::Applied(_))
}
