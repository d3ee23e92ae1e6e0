//! The facts about one cluster at one time, independent of a plan.

use std::time::Duration;

use jiff::Timestamp;

use super::rules::CheckedRules;
use crate::ids::{ClusterName, EntryName};
use crate::plan::leaving::{LeavingCause, LeavingSync};
use crate::plan::types::{
    Applied, ClusterView, EntryView, FailureReason, HealthProblem, ObservedSync, PlanInput, Progress, Reach,
};

/// The facts about a cluster.
pub(super) struct CheckedFacts {
    pub(super) state: CheckedState,
    /// The group has work in progress there other than this release with all its entries.
    leftover: bool,
    /// The cluster is reachable, and something that was admitted there is not healthy.
    pub(super) unhealthy: bool,
    /// The cluster was done, and something broke since.
    pub(super) broken: bool,
    /// Something of this release was admitted there.
    pub(super) admitted: bool,
    /// The entries of the last known good release that are missing, on a cluster that was never admitted to anything
    /// else.
    pub(super) known_good: Vec<EntryName>,
    /// The removal that is due on the cluster, once all entries of the release are done there.
    pub(super) removal: Option<EntryRemoval>,
}

/// The Syncs of entries on one cluster that the release does not have.
pub(super) struct EntryRemoval {
    /// The entries whose removal has not begun.
    pub(super) waiting: Vec<EntryName>,
    /// The entries among them whose Sync is suspended.
    pub(super) suspended: Vec<EntryName>,
    /// Time at which the last removal began.
    since: Option<Timestamp>,
}

/// The state of a cluster in a rollout.
pub(super) enum CheckedState {
    /// Every entry is applied and has soaked.
    Done,
    /// Every entry is applied and healthy, some not for the soak time yet.
    Soaking { until: Timestamp },
    /// Admitted, not done, and neither failed nor overdue. Without a deadline, it was healthy before and the timeout of
    /// its health check applies.
    UnderWay { deadline: Option<Timestamp> },
    /// Admitted and failed: each reason that applies, with its retry.
    Failed(Vec<(FailureReason, Option<Timestamp>)>),
    /// Held for a reason that concerns the cluster alone.
    Obstructed,
    /// Not held for a reason that concerns the cluster alone.
    Startable {
        /// Whether its admission to this release was interrupted: the process ended between two entries.
        interrupted: bool,
    },
}

/// The progress of one entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CheckedProgress {
    /// An attempt is in progress.
    Working,
    /// An attempt failed, or the entry is at its target, not soaked, and has a problem.
    Failing,
    /// At its target and healthy, but not for the soak time yet.
    Soaking { until: Timestamp },
    /// At its target, healthy before and not now, without a reported problem.
    SoakInterrupted,
    /// Nothing is in progress.
    Idle,
}

/// The time and the rules by which the entries of one cluster are evaluated.
struct Evaluator<'a> {
    input: &'a PlanInput,
    rules: &'a CheckedRules<'a>,
    view: &'a ClusterView,
    at: Timestamp,
    removal: Option<EntryRemoval>,
}

impl EntryRemoval {
    fn on(input: &PlanInput, cluster: &ClusterName) -> Option<Self> {
        let removed = || {
            let leaving = input.leaving.values();
            // A removal that waits for a person is no part of the release until it begins.
            let counts = |sync: &&LeavingSync| sync.approval.is_none() || sync.removing_since.is_some();
            leaving
                .filter(|sync| sync.cluster == *cluster && sync.cause == LeavingCause::EntryRemoved)
                .filter(counts)
        };
        let waiting = || removed().filter(|sync| sync.removing_since.is_none());
        removed().next()?;
        Some(Self {
            waiting: waiting().map(|sync| sync.entry.clone()).collect(),
            suspended: waiting()
                .filter(|sync| sync.suspended)
                .map(|sync| sync.entry.clone())
                .collect(),
            since: removed().filter_map(|sync| sync.removing_since).max(),
        })
    }
}

impl CheckedFacts {
    pub(super) fn of(
        input: &PlanInput,
        rules: &CheckedRules<'_>,
        cluster: &ClusterName,
        at: Timestamp,
    ) -> Option<Self> {
        let view = input.clusters.get(cluster)?;
        let evaluator = Evaluator {
            input,
            rules,
            view,
            at,
            removal: EntryRemoval::on(input, cluster),
        };
        let state = evaluator.state();
        let ready = view.reach == Reach::Ready;
        let unhealthy = |sync: &ObservedSync| {
            applied(sync).is_none_or(|applied| applied.since.is_none() || applied.problem.is_some())
        };
        let has_problem =
            |sync: &ObservedSync| applied(sync).is_some_and(|applied| applied.problem.is_some());
        let new = view.entries.values().all(only_known_good);
        let missing = |entry: &EntryView| {
            let target = entry.observed.as_ref().and_then(|sync| sync.target.as_ref());
            entry.known_good.is_some() && entry.known_good.as_ref() != target
        };
        let known_good = view.entries.iter().filter(|(_, entry)| new && missing(entry));
        Some(Self {
            leftover: ready && (evaluator.is_at_work() || evaluator.is_losing()),
            unhealthy: ready && admissions(view).any(unhealthy),
            broken: matches!(state, CheckedState::Done) && admissions(view).any(has_problem),
            admitted: admissions(view).any(|sync| sync.release == input.rollout.release),
            known_good: known_good.map(|(name, _)| name.clone()).collect(),
            removal: evaluator.has_all().then_some(evaluator.removal).flatten(),
            state,
        })
    }

    /// Reports whether this release was admitted there and is neither done nor failed.
    pub(super) fn is_reached(&self) -> bool {
        matches!(
            self.state,
            CheckedState::UnderWay { .. }
                | CheckedState::Soaking { .. }
                | CheckedState::Startable { interrupted: true }
        )
    }

    /// Reports whether the cluster is in flight or soaking. A ready cluster with anything in progress that the group
    /// admitted is, until the progress deadline of that.
    pub(super) fn holds_slot(&self) -> bool {
        match self.state {
            CheckedState::UnderWay { .. } | CheckedState::Soaking { .. } => true,
            CheckedState::Done | CheckedState::Failed(_) => false,
            CheckedState::Obstructed | CheckedState::Startable { .. } => self.leftover,
        }
    }
}

impl Evaluator<'_> {
    fn state(&self) -> CheckedState {
        let entries = || self.view.entries.values();
        if self.has_all() {
            return self.without_removed();
        }
        let ready = self.view.reach == Reach::Ready;
        let invalid = entries().any(|entry| entry.wanted.is_err());
        let suspended = self.is_suspended();

        // The cluster was admitted to everything if every entry is at its target; otherwise to what this release
        // admitted before it was interrupted, or before parameters changed.
        let complete = entries().all(at_target);
        let ours: Vec<(&ObservedSync, CheckedProgress)> = self
            .admitted()
            .filter(|(sync, _)| complete || sync.release == self.input.rollout.release)
            .collect();
        let soaks_until = self.soaks_until().filter(|_| complete);
        if let (Some(until), Reach::Ready | Reach::Unprobed | Reach::Suspended) =
            (soaks_until, &self.view.reach)
        {
            return CheckedState::Soaking { until };
        }
        let lost = !ready
            && ours
                .iter()
                .any(|(_, progress)| *progress != CheckedProgress::Idle);
        if suspended || (invalid && !lost) {
            return CheckedState::Obstructed;
        }
        if complete || lost {
            return self.outcome(&ours, complete);
        }
        if !ready {
            return CheckedState::Obstructed;
        }
        CheckedState::Startable {
            interrupted: self.is_interrupted(),
        }
    }

    /// Reports whether the cluster, or a Sync of the release there, is suspended.
    fn is_suspended(&self) -> bool {
        let mut syncs = self
            .view
            .entries
            .values()
            .filter_map(|entry| entry.observed.as_ref());
        self.view.reach == Reach::Suspended || syncs.any(|sync| sync.suspended)
    }

    /// Reports whether every entry of the release is done.
    fn has_all(&self) -> bool {
        self.view.entries.values().all(|entry| self.is_done(entry))
    }

    /// Returns the state of a cluster on which every entry of the release is done: it also has to lose the others.
    fn without_removed(&self) -> CheckedState {
        let Some(removal) = &self.removal else {
            return CheckedState::Done;
        };
        let ready = self.view.reach == Reach::Ready;
        if self.is_suspended() || !removal.suspended.is_empty() {
            return CheckedState::Obstructed;
        }
        if ready && !removal.waiting.is_empty() {
            return CheckedState::Startable {
                interrupted: removal.since.is_some(),
            };
        }
        if removal.since.is_none() {
            return CheckedState::Obstructed;
        }
        let deadline = self
            .deadline(removal.since)
            .filter(|deadline| *deadline > self.at);
        let reason = match ready {
            true => FailureReason::ProgressDeadlineExceeded,
            false => FailureReason::LostAfterAdmission,
        };
        match deadline {
            Some(_) => CheckedState::UnderWay { deadline },
            None => CheckedState::Failed(vec![(reason, None)]),
        }
    }

    fn is_losing(&self) -> bool {
        let since = self.removal.as_ref().and_then(|removal| removal.since);
        self.deadline(since) > Some(self.at)
    }

    /// Returns when the last of the soaking entries has soaked; `None`: an entry is neither soaking nor done.
    fn soaks_until(&self) -> Option<Timestamp> {
        let entries = self.admitted().map(|(_, progress)| progress);
        let times = entries
            .filter(|progress| *progress != CheckedProgress::Idle)
            .map(|progress| match progress {
                CheckedProgress::Soaking { until } => Some(until),
                CheckedProgress::Working
                | CheckedProgress::Failing
                | CheckedProgress::Idle
                | CheckedProgress::SoakInterrupted => None,
            });
        times.collect::<Option<Vec<Timestamp>>>()?.into_iter().max()
    }

    /// Returns the state of an admission that is not done. A failure does not count while an entry is in progress that
    /// was admitted after it.
    ///
    /// A `complete` cluster that was healthy in time has no deadline while it is reachable, and a full deadline to
    /// return when it is not.
    fn outcome(&self, ours: &[(&ObservedSync, CheckedProgress)], complete: bool) -> CheckedState {
        let arrived = |progress: &CheckedProgress| {
            matches!(
                progress,
                CheckedProgress::Idle | CheckedProgress::Soaking { .. } | CheckedProgress::SoakInterrupted
            )
        };
        let soaks = complete && ours.iter().all(|(_, progress)| arrived(progress));
        let unreachable = matches!(self.view.reach, Reach::Unreachable { .. });
        if soaks && !unreachable {
            return CheckedState::UnderWay { deadline: None };
        }
        let failing = ours
            .iter()
            .filter(|(_, progress)| *progress == CheckedProgress::Failing);
        let attempts: Vec<_> = failing.filter_map(|(sync, _)| failed_attempt(sync)).collect();
        let admitted_at = ours.iter().filter_map(|(sync, _)| sync.admitted_at).max();
        let lost_at = match &self.view.reach {
            Reach::Unreachable { since, .. } if soaks => Some(*since),
            _ => None,
        };
        let deadline = self.deadline(admitted_at).max(self.deadline(lost_at));
        let deadline = deadline.filter(|deadline| *deadline > self.at);
        let newest = Some(&*self.input.rollout.release);
        match deadline {
            Some(deadline) if attempts.is_empty() || working(ours, newest).next().is_some() => {
                CheckedState::UnderWay {
                    deadline: Some(deadline),
                }
            }
            _ if !attempts.is_empty() => CheckedState::Failed(attempts),
            _ if self.view.reach == Reach::Ready => {
                CheckedState::Failed(vec![(FailureReason::ProgressDeadlineExceeded, None)])
            }
            _ => CheckedState::Failed(vec![(FailureReason::LostAfterAdmission, None)]),
        }
    }

    /// Reports whether the last change to the Syncs of this cluster is that this release was admitted to some of them,
    /// and that is not done yet.
    fn is_interrupted(&self) -> bool {
        let mut begun_at = None;
        let mut others = Vec::new();
        for entry in self.view.entries.values() {
            let Some(sync) = entry.observed.as_ref().filter(|sync| sync.target.is_some()) else {
                continue;
            };
            let ours = sync.release == self.input.rollout.release;
            if !at_target(entry) && sync.target == entry.known_good {
                // The entry received the last known good release, after the admission began or before: it waits for its
                // stage.
                continue;
            }
            match (at_target(entry), ours) {
                (true, true) if !self.is_done(entry) => begun_at = begun_at.max(sync.admitted_at),
                (true, _) => {}
                (false, true) => return false,
                (false, false) => others.push(sync.admitted_at),
            }
        }
        begun_at.is_some() && others.iter().all(|at| *at < begun_at)
    }

    fn is_at_work(&self) -> bool {
        let syncs: Vec<_> = self.admitted().collect();
        let in_time = |sync: &ObservedSync| self.deadline(sync.admitted_at) > Some(self.at);
        working(&syncs, None).any(in_time)
    }

    fn admitted(&self) -> impl Iterator<Item = (&ObservedSync, CheckedProgress)> {
        self.view.entries.values().filter_map(|entry| {
            let sync = entry.observed.as_ref().filter(|sync| sync.target.is_some())?;
            Some((sync, self.progress(entry, sync)))
        })
    }

    fn progress(&self, entry: &EntryView, sync: &ObservedSync) -> CheckedProgress {
        match &sync.progress {
            Progress::Working => CheckedProgress::Working,
            Progress::Failing { .. } => CheckedProgress::Failing,
            Progress::Applied(_) if !at_target(entry) || self.is_done(entry) => CheckedProgress::Idle,
            Progress::Applied(applied) if applied.problem.is_some() => CheckedProgress::Failing,
            Progress::Applied(applied) => match applied.since {
                Some(since) => CheckedProgress::Soaking {
                    until: self.due(since, self.rules.soak).unwrap_or(Timestamp::MAX),
                },
                None => CheckedProgress::SoakInterrupted,
            },
        }
    }

    fn is_done(&self, entry: &EntryView) -> bool {
        let applied = entry.observed.as_ref().and_then(applied);
        at_target(entry) && applied.is_some_and(|applied| self.is_soaked(applied))
    }

    /// Reports whether the target was continuously healthy for the soak time once. The last status of an unreachable
    /// cluster is valid until it became unreachable.
    fn is_soaked(&self, applied: &Applied) -> bool {
        let until = match &self.view.reach {
            Reach::Unreachable { since, .. } => self.at.min(*since),
            Reach::Ready | Reach::Unprobed | Reach::Suspended => self.at,
        };
        let long_enough = |since: Timestamp| {
            self.due(since, self.rules.soak)
                .is_some_and(|soaked| soaked <= until)
        };
        let well = applied.problem.is_none() && applied.since.is_some_and(long_enough);
        self.rules.soak.is_zero() || applied.longest >= self.rules.soak || well
    }

    /// Returns the deadline of an admission. Without a recorded time, no time is left.
    fn deadline(&self, admitted_at: Option<Timestamp>) -> Option<Timestamp> {
        let deadline = self.input.strategy.limits.progress_deadline;
        self.due(admitted_at?, deadline)
    }

    fn due(&self, since: Timestamp, wait: Duration) -> Option<Timestamp> {
        self.input.clock_jumps.due(since, wait)
    }
}

/// Returns the entries in progress. An entry in backoff takes those with it that were admitted with it or earlier. The
/// `newest` release was admitted after everything else, even if a clock that jumped indicates otherwise.
fn working<'s>(
    syncs: &'s [(&'s ObservedSync, CheckedProgress)],
    newest: Option<&'s str>,
) -> impl Iterator<Item = &'s ObservedSync> {
    let failed = || {
        syncs
            .iter()
            .filter(|(_, progress)| *progress == CheckedProgress::Failing)
    };
    let last_failed_at = failed().map(|(sync, _)| sync.admitted_at).max();
    let failed_releases: Vec<&str> = failed().map(|(sync, _)| &*sync.release).collect();
    let works = move |(sync, progress): &&(&ObservedSync, CheckedProgress)| {
        *progress == CheckedProgress::Working
            && !sync.suspended
            && !failed_releases.contains(&&*sync.release)
            && (newest == Some(&*sync.release) || last_failed_at.is_none_or(|at| at < sync.admitted_at))
    };
    syncs.iter().filter(works).map(|(sync, _)| *sync)
}

fn failed_attempt(sync: &ObservedSync) -> Option<(FailureReason, Option<Timestamp>)> {
    let (reason, message, retry_at) = match &sync.progress {
        Progress::Failing {
            reason,
            message,
            retry_at,
        } => (reason, message, *retry_at),
        Progress::Applied(Applied {
            problem: Some(HealthProblem { reason, message }),
            ..
        }) => (reason, message, None),
        Progress::Working | Progress::Applied(_) => return None,
    };
    let (reason, message) = (reason.clone(), message.clone());
    Some((FailureReason::AttemptFailed { reason, message }, retry_at))
}

fn admissions(view: &ClusterView) -> impl Iterator<Item = &ObservedSync> {
    let observed = view.entries.values().filter_map(|entry| entry.observed.as_ref());
    observed.filter(|sync| sync.target.is_some())
}

fn applied(sync: &ObservedSync) -> Option<&Applied> {
    match &sync.progress {
        Progress::Applied(applied) => Some(applied),
        Progress::Working | Progress::Failing { .. } => None,
    }
}

/// Reports whether the Sync of an entry names the wanted target.
pub(super) fn at_target(entry: &EntryView) -> bool {
    match (&entry.wanted, &entry.observed) {
        (Ok(wanted), Some(sync)) => sync.target.as_ref() == Some(wanted),
        _ => false,
    }
}

/// Reports whether an entry was admitted to nothing, or only to the last known good release.
fn only_known_good(entry: &EntryView) -> bool {
    let target = entry.observed.as_ref().and_then(|sync| sync.target.as_ref());
    target.is_none() || target == entry.known_good.as_ref()
}
