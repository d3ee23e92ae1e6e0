//! What is true of one cluster at one time, whatever a plan says.

use jiff::Timestamp;

use super::rules::Rules;
use crate::plan::types::{
    ClusterView, EntryView, FailureReason, Held, ObservedSync, PlanInput, Progress, Reach, Trouble,
};

/// What is true of a cluster.
pub(super) struct Facts {
    pub(super) state: State,
    /// The group has work going on there that is not this release with all its entries.
    leftover: bool,
    /// It can be reached, and something that was admitted there is not healthy.
    pub(super) unhealthy: bool,
    /// It is done, and something has broken since.
    pub(super) broken: bool,
    /// This release was admitted there, to whatever.
    pub(super) admitted: bool,
    /// Entries that the last known good release has still to bring, on a cluster that was never admitted to
    /// anything else.
    pub(super) known_good: Vec<String>,
}

/// How a cluster stands with the release.
pub(super) enum State {
    /// Every entry holds its target, and soaked.
    Done,
    /// Every entry holds its target and is healthy, some not for long enough.
    Soaking { until: Timestamp },
    /// Admitted, not done, and neither failed nor overdue.
    /// Without a deadline it was healthy before, and its health check has a time of its own.
    UnderWay { deadline: Option<Timestamp> },
    /// Admitted and failed: each reason that would be a true one, with its retry.
    Failed(Vec<(FailureReason, Option<Timestamp>)>),
    /// Something of its own keeps it from being started.
    Obstructed,
    /// Nothing of its own keeps it from being started.
    Startable {
        /// Its admission to this release was begun and not finished: the process died between two entries.
        cut_short: bool,
    },
}

/// How one entry stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mood {
    /// At work.
    Working,
    /// An attempt failed, or it is at its target, not soaked, and in trouble.
    Failing,
    /// At its target and healthy, and not for long enough.
    Fresh { until: Timestamp },
    /// At its target, healthy before and not now, without anything being called wrong.
    Shaken,
    /// Nothing is going on.
    Resting,
}

/// The clock and the rules by which the entries of one cluster are judged.
struct Judge<'a> {
    input: &'a PlanInput,
    rules: &'a Rules<'a>,
    view: &'a ClusterView,
    at: Timestamp,
}

impl Facts {
    pub(super) fn of(input: &PlanInput, rules: &Rules<'_>, view: &ClusterView, at: Timestamp) -> Self {
        let judge = Judge {
            input,
            rules,
            view,
            at,
        };
        let state = judge.state();
        let ready = view.reach == Reach::Ready;
        let unhealthy = |sync: &ObservedSync| {
            held(sync).is_none_or(|held| held.since.is_none() || held.trouble.is_some())
        };
        let in_trouble = |sync: &ObservedSync| held(sync).is_some_and(|held| held.trouble.is_some());
        let new = view.entries.values().all(only_known_good);
        let missing = |entry: &EntryView| {
            let target = entry.observed.as_ref().and_then(|sync| sync.target.as_ref());
            entry.known_good.is_some() && entry.known_good.as_ref() != target
        };
        let known_good = view.entries.iter().filter(|(_, entry)| new && missing(entry));
        Self {
            leftover: ready && judge.is_at_work(),
            unhealthy: ready && admissions(view).any(unhealthy),
            broken: matches!(state, State::Done) && admissions(view).any(in_trouble),
            admitted: admissions(view).any(|sync| sync.release == input.rollout.release),
            known_good: known_good.map(|(name, _)| name.clone()).collect(),
            state,
        }
    }

    /// Whether this release has reached it, and is neither done nor failed there.
    pub(super) fn is_reached(&self) -> bool {
        matches!(
            self.state,
            State::UnderWay { .. } | State::Soaking { .. } | State::Startable { cut_short: true }
        )
    }

    /// Whether it is in flight or soaking. A ready cluster at work on anything that the group admitted is, until
    /// the progress deadline of that.
    pub(super) fn holds_slot(&self) -> bool {
        match self.state {
            State::UnderWay { .. } | State::Soaking { .. } => true,
            State::Done | State::Failed(_) => false,
            State::Obstructed | State::Startable { .. } => self.leftover,
        }
    }
}

impl Judge<'_> {
    fn state(&self) -> State {
        let entries = || self.view.entries.values();
        if entries().all(|entry| self.is_done(entry)) {
            return State::Done;
        }
        let ready = self.view.reach == Reach::Ready;
        let invalid = entries().any(|entry| entry.wanted.is_err());
        let suspended = self.view.reach == Reach::Suspended
            || entries().any(|entry| entry.observed.as_ref().is_some_and(|sync| sync.suspended));

        // What the cluster was admitted to: everything, if every entry is at its target; else what this release
        // brought, which was cut short, or whose parameters have changed since.
        let complete = entries().all(at_target);
        let ours: Vec<(&ObservedSync, Mood)> = self
            .admitted()
            .filter(|(sync, _)| complete || sync.release == self.input.rollout.release)
            .collect();
        let soaks_until = self.soaks_until().filter(|_| complete);
        if let (Some(until), Reach::Ready | Reach::Unprobed | Reach::Suspended) =
            (soaks_until, &self.view.reach)
        {
            return State::Soaking { until };
        }
        let lost = !ready && ours.iter().any(|(_, mood)| *mood != Mood::Resting);
        if suspended || (invalid && !lost) {
            return State::Obstructed;
        }
        if complete || lost {
            return self.outcome(&ours, complete);
        }
        if !ready {
            return State::Obstructed;
        }
        State::Startable {
            cut_short: self.is_cut_short(),
        }
    }

    /// When the last of the entries that are healthy, and not for long enough, is; `None` if any other is not done.
    fn soaks_until(&self) -> Option<Timestamp> {
        let moods = self.admitted().map(|(_, mood)| mood);
        let times = moods
            .filter(|mood| *mood != Mood::Resting)
            .map(|mood| match mood {
                Mood::Fresh { until } => Some(until),
                Mood::Working | Mood::Failing | Mood::Resting | Mood::Shaken => None,
            });
        times.collect::<Option<Vec<Timestamp>>>()?.into_iter().max()
    }

    /// What became of an admission that is not done. While an entry is at work that was admitted after another one
    /// had failed, that failure says nothing yet.
    ///
    /// A `complete` cluster that had become healthy in time has no deadline as long as it is reached, and as long again to
    /// come back when it is not.
    fn outcome(&self, ours: &[(&ObservedSync, Mood)], complete: bool) -> State {
        let arrived = |mood: &Mood| matches!(mood, Mood::Resting | Mood::Fresh { .. } | Mood::Shaken);
        let soaks = complete && ours.iter().all(|(_, mood)| arrived(mood));
        let cut_off = matches!(self.view.reach, Reach::Unreachable { .. });
        if soaks && !cut_off {
            return State::UnderWay { deadline: None };
        }
        let failing = ours.iter().filter(|(_, mood)| *mood == Mood::Failing);
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
                State::UnderWay {
                    deadline: Some(deadline),
                }
            }
            _ if !attempts.is_empty() => State::Failed(attempts),
            _ if self.view.reach == Reach::Ready => {
                State::Failed(vec![(FailureReason::ProgressDeadlineExceeded, None)])
            }
            _ => State::Failed(vec![(FailureReason::LostAfterAdmission, None)]),
        }
    }

    /// Whether the last thing that happened to this cluster's specs is that this release was admitted to a part of
    /// them, which is not done yet.
    fn is_cut_short(&self) -> bool {
        let mut begun_at = None;
        let mut others = Vec::new();
        for entry in self.view.entries.values() {
            let Some(sync) = entry.observed.as_ref().filter(|sync| sync.target.is_some()) else {
                continue;
            };
            let ours = sync.release == self.input.rollout.release;
            if !at_target(entry) && sync.target == entry.known_good {
                // It got what was good after the admission began, or before: it waits for its stage.
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

    fn admitted(&self) -> impl Iterator<Item = (&ObservedSync, Mood)> {
        self.view.entries.values().filter_map(|entry| {
            let sync = entry.observed.as_ref().filter(|sync| sync.target.is_some())?;
            Some((sync, self.mood(entry, sync)))
        })
    }

    fn mood(&self, entry: &EntryView, sync: &ObservedSync) -> Mood {
        match &sync.progress {
            Progress::Working => Mood::Working,
            Progress::Failing { .. } => Mood::Failing,
            Progress::Held(_) if !at_target(entry) || self.is_done(entry) => Mood::Resting,
            Progress::Held(held) if held.trouble.is_some() => Mood::Failing,
            Progress::Held(held) => match held.since {
                Some(since) => Mood::Fresh {
                    until: since.checked_add(self.rules.soak).unwrap_or(Timestamp::MAX),
                },
                None => Mood::Shaken,
            },
        }
    }

    fn is_done(&self, entry: &EntryView) -> bool {
        let held = entry.observed.as_ref().and_then(held);
        at_target(entry) && held.is_some_and(|held| self.is_soaked(held))
    }

    /// Healthy for long enough without a break, once. What an unreachable cluster said last is true up to then.
    fn is_soaked(&self, held: &Held) -> bool {
        let until = match &self.view.reach {
            Reach::Unreachable { since, .. } => self.at.min(*since),
            Reach::Ready | Reach::Unprobed | Reach::Suspended => self.at,
        };
        let long_enough = |since: Timestamp| {
            since
                .checked_add(self.rules.soak)
                .is_ok_and(|soaked| soaked <= until)
        };
        let well = held.trouble.is_none() && held.since.is_some_and(long_enough);
        self.rules.soak.is_zero() || held.longest >= self.rules.soak || well
    }

    /// An admission that nobody dated has no time left.
    fn deadline(&self, admitted_at: Option<Timestamp>) -> Option<Timestamp> {
        let deadline = self.input.strategy.limits.progress_deadline;
        admitted_at?.checked_add(deadline).ok()
    }
}

/// The entries that are at work. One in backoff takes along those that were admitted with it, or before; what the
/// `newest` release brought was not admitted before anything, even if a clock that jumped says so.
fn working<'s>(
    syncs: &'s [(&'s ObservedSync, Mood)],
    newest: Option<&'s str>,
) -> impl Iterator<Item = &'s ObservedSync> {
    let failed = || syncs.iter().filter(|(_, mood)| *mood == Mood::Failing);
    let last_failed_at = failed().map(|(sync, _)| sync.admitted_at).max();
    let failed_releases: Vec<&str> = failed().map(|(sync, _)| &*sync.release).collect();
    let works = move |(sync, mood): &&(&ObservedSync, Mood)| {
        *mood == Mood::Working
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
        Progress::Held(Held {
            trouble: Some(Trouble { reason, message }),
            ..
        }) => (reason, message, None),
        Progress::Working | Progress::Held(_) => return None,
    };
    let (reason, message) = (reason.clone(), message.clone());
    Some((FailureReason::AttemptFailed { reason, message }, retry_at))
}

fn admissions(view: &ClusterView) -> impl Iterator<Item = &ObservedSync> {
    let observed = view.entries.values().filter_map(|entry| entry.observed.as_ref());
    observed.filter(|sync| sync.target.is_some())
}

fn held(sync: &ObservedSync) -> Option<&Held> {
    match &sync.progress {
        Progress::Held(held) => Some(held),
        Progress::Working | Progress::Failing { .. } => None,
    }
}

/// Whether an entry's Sync names the wanted target.
pub(super) fn at_target(entry: &EntryView) -> bool {
    match (&entry.wanted, &entry.observed) {
        (Ok(wanted), Some(sync)) => sync.target.as_ref() == Some(wanted),
        _ => false,
    }
}

/// Whether an entry was admitted to nothing, or to the last known good release.
fn only_known_good(entry: &EntryView) -> bool {
    let target = entry.observed.as_ref().and_then(|sync| sync.target.as_ref());
    target.is_none() || target == entry.known_good.as_ref()
}
