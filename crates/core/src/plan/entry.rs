//! The progress of each entry of a cluster, and what follows from several entries.

use std::time::Duration;

use jiff::Timestamp;

use super::state::Failed;
use super::types::{Applied, ClusterView, EntryView, FailureReason, ObservedSync, Progress};
use crate::clock_jumps::ClockJumps;
use crate::ids::EntryName;

/// The state of one entry. It is computed once per entry and plan: comparing the target strings again for every rule
/// would take most of the time of a plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryState<'a> {
    pub(super) view: &'a EntryView,
    /// The Sync of the entry, if it was ever admitted.
    pub(super) sync: Option<&'a ObservedSync>,
    /// Whether the Sync names the wanted target.
    pub(super) at_target: bool,
    /// The progress of the Sync; `Finished` without a Sync.
    pub(super) progress: EntryProgress,
}

/// The progress of one entry with the target of its Sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryProgress {
    /// Applied, healthy where required, and soaked; or the target is not the wanted one and is applied.
    Finished,
    /// Healthy, and finished at this time if it stays healthy.
    Soaking(Timestamp),
    /// The entry was healthy and is not now. The timeout of its health check applies, not the progress deadline.
    SoakInterrupted,
    /// An attempt is in progress.
    Working,
    /// The last attempt failed, or the entry became unhealthy before it was finished.
    Failing,
}

/// The times that the soak of the entries of one cluster is computed from.
#[derive(Clone, Copy, Debug)]
pub(super) struct SoakClock<'a> {
    /// The jumps of the clock.
    pub(super) jumps: &'a ClockJumps,
    /// The soak time of the rollout.
    pub(super) soak: Duration,
    /// The time until which the status of the Syncs of the cluster is valid.
    pub(super) valid_until: Timestamp,
}

impl<'a> EntryState<'a> {
    pub(super) fn of(view: &'a EntryView, clock: SoakClock<'_>) -> Self {
        let sync = view.observed.as_ref().filter(|sync| sync.target.is_some());
        let at_target = is_at_target(view);
        Self {
            view,
            sync,
            at_target,
            progress: sync.map_or(EntryProgress::Finished, |sync| clock.progress(sync, at_target)),
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.at_target && self.progress == EntryProgress::Finished
    }

    pub(super) fn lacks_known_good(&self) -> bool {
        self.sync.is_none() && self.view.known_good.is_some()
    }

    pub(super) fn waits_with_known_good(&self) -> bool {
        let target = self.sync.and_then(|sync| sync.target.as_ref());
        target.is_some() && target == self.view.known_good.as_ref()
    }
}

impl SoakClock<'_> {
    /// Returns the progress of a Sync. Only a Sync at the wanted target soaks; an older target that is applied is
    /// finished.
    fn progress(self, sync: &ObservedSync, at_target: bool) -> EntryProgress {
        let applied = match &sync.progress {
            Progress::Working => return EntryProgress::Working,
            Progress::Failing { .. } => return EntryProgress::Failing,
            Progress::Applied(applied) => applied,
        };
        if !at_target || self.is_soaked(applied) {
            EntryProgress::Finished
        } else if applied.problem.is_some() {
            EntryProgress::Failing
        } else {
            let until = applied
                .healthy_since()
                .map(|since| self.jumps.due(since, self.soak));
            until.map_or(EntryProgress::SoakInterrupted, |until| {
                EntryProgress::Soaking(until.unwrap_or(Timestamp::MAX))
            })
        }
    }

    fn is_soaked(self, applied: &Applied) -> bool {
        let now = |since: Timestamp| {
            self.jumps
                .due(since, self.soak)
                .is_some_and(|until| until <= self.valid_until)
        };
        self.soak.is_zero() || applied.longest >= self.soak || applied.healthy_since().is_some_and(now)
    }
}

/// Returns when the last entry has soaked; `None`: an entry is not healthy, or all are finished.
pub(super) fn soaks_until(entries: &[EntryState<'_>]) -> Option<Timestamp> {
    let mut last = None;
    for entry in entries {
        match entry.progress {
            EntryProgress::Finished => {}
            EntryProgress::Soaking(until) => last = last.max(Some(until)),
            EntryProgress::SoakInterrupted | EntryProgress::Working | EntryProgress::Failing => return None,
        }
    }
    last
}

/// Reports whether an admission is in progress, and not in backoff because one of `others` failed that was admitted
/// with it or after it. The `newest` release comes after the failures of every other release, whatever the clocks said.
pub(super) fn is_at_work(entry: &EntryState<'_>, others: &[EntryState<'_>], newest: bool) -> bool {
    let Some(sync) = entry.sync.filter(|sync| !sync.suspended) else {
        return false;
    };
    let since = |other: &ObservedSync| !newest && other.admitted_at >= sync.admitted_at;
    let blocks = |other: &EntryState<'_>| {
        let failed = other.sync.filter(|_| other.progress == EntryProgress::Failing);
        failed.is_some_and(|other| other.release == sync.release || since(other))
    };
    entry.progress == EntryProgress::Working && !others.iter().any(blocks)
}

/// Returns the failure of a failing admission.
pub(super) fn failure(sync: &ObservedSync) -> Failed {
    let (reason, message, retry_at) = match &sync.progress {
        Progress::Failing {
            reason,
            message,
            retry_at,
        } => (reason.clone(), message.clone(), *retry_at),
        Progress::Applied(Applied {
            problem: Some(problem),
            ..
        }) => (problem.reason.clone(), problem.message.clone(), None),
        Progress::Working | Progress::Applied(_) => (String::new(), String::new(), None),
    };
    Failed {
        reason: FailureReason::AttemptFailed { reason, message },
        retry_at,
    }
}

/// Returns the entries of the last known good release that a cluster lacks; `None`: it was admitted to something else.
/// An entry that is newer than that release waits for its stage.
pub(super) fn missing_of_known_good(cluster: &ClusterView) -> Option<Vec<&EntryName>> {
    let mut missing = Vec::new();
    for (name, view) in &cluster.entries {
        let target = view.observed.as_ref().and_then(|sync| sync.target.as_ref());
        match (target, &view.known_good) {
            (None, Some(_)) => missing.push(name),
            (None, None) => {}
            (Some(target), Some(good)) if target == good => {}
            (Some(_), _) => return None,
        }
    }
    (!missing.is_empty()).then_some(missing)
}

/// Returns the entries that are not admitted to their target.
pub(super) fn missing(cluster: &ClusterView) -> impl Iterator<Item = &EntryName> {
    let entries = cluster.entries.iter();
    entries
        .filter(|(_, view)| !is_at_target(view))
        .map(|(name, _)| name)
}

fn is_at_target(view: &EntryView) -> bool {
    let target = view.observed.as_ref().and_then(|sync| sync.target.as_ref());
    target.is_some() && view.wanted.as_ref().ok() == target
}

pub(super) fn is_healthy(sync: &ObservedSync) -> bool {
    matches!(&sync.progress, Progress::Applied(applied) if applied.healthy_since().is_some())
}

pub(super) fn has_health_problem(sync: &ObservedSync) -> bool {
    matches!(&sync.progress, Progress::Applied(applied) if applied.problem.is_some())
}
