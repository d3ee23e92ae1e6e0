//! What is true of one cluster at one time, whatever a plan says.

use jiff::Timestamp;

use crate::digest;
use crate::plan::types::{ClusterView, EntryView, FailureReason, ObservedSync, PlanInput, Progress, Reach};

/// What is true of a cluster.
pub(super) struct Facts<'a> {
    pub(super) state: State,
    input: &'a PlanInput,
    view: &'a ClusterView,
    at: Timestamp,
}

/// How a cluster stands with the release.
pub(super) enum State {
    /// Every entry holds its target.
    Done,
    /// Admitted, not done, and neither failed nor overdue.
    UnderWay { deadline: Timestamp },
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

impl<'a> Facts<'a> {
    pub(super) fn of(input: &'a PlanInput, view: &'a ClusterView, at: Timestamp) -> Self {
        Self {
            state: state(input, view, at),
            input,
            view,
            at,
        }
    }

    /// Whether this release has reached it, and is neither done nor failed there.
    pub(super) fn is_reached(&self) -> bool {
        matches!(
            self.state,
            State::UnderWay { .. } | State::Startable { cut_short: true }
        )
    }

    /// Whether it is in flight. A ready cluster at work on anything that the group admitted is, until the
    /// progress deadline of that.
    pub(super) fn holds_slot(&self) -> bool {
        match self.state {
            State::UnderWay { .. } => true,
            State::Done | State::Failed(_) => false,
            State::Obstructed | State::Startable { .. } => {
                self.view.reach == Reach::Ready && self.is_at_work()
            }
        }
    }

    fn is_at_work(&self) -> bool {
        let syncs: Vec<&ObservedSync> = admissions(self.view).collect();
        let in_time = |sync: &ObservedSync| deadline(self.input, sync.admitted_at) > Some(self.at);
        working(&syncs, None).any(in_time)
    }
}

/// The entries that are at work. One in backoff takes along those that were admitted with it, or before; what the
/// `newest` release brought was not admitted before anything, even if a clock that jumped says so.
fn working<'s>(
    syncs: &'s [&'s ObservedSync],
    newest: Option<&'s str>,
) -> impl Iterator<Item = &'s ObservedSync> {
    let failed = |sync: &&&ObservedSync| matches!(sync.progress, Progress::Failing { .. });
    let last_failed_at = syncs.iter().filter(failed).map(|sync| sync.admitted_at).max();
    let failed_releases: Vec<&str> = syncs.iter().filter(failed).map(|sync| &*sync.release).collect();
    syncs.iter().copied().filter(move |sync| {
        sync.progress == Progress::Working
            && !sync.suspended
            && !failed_releases.contains(&&*sync.release)
            && (newest == Some(&*sync.release) || last_failed_at.is_none_or(|at| at < sync.admitted_at))
    })
}

fn state(input: &PlanInput, view: &ClusterView, at: Timestamp) -> State {
    if view.entries.values().all(is_done) {
        return State::Done;
    }
    let ready = view.reach == Reach::Ready;
    let invalid = view.entries.values().any(|entry| entry.wanted.is_err());
    let suspended = view.reach == Reach::Suspended
        || view
            .entries
            .values()
            .any(|entry| entry.observed.as_ref().is_some_and(|sync| sync.suspended));

    // What the cluster was admitted to: everything, if every entry is at its target; else what this release
    // brought, which was cut short, or whose parameters have changed since.
    let complete = view.entries.values().all(at_target);
    let ours: Vec<&ObservedSync> = admissions(view)
        .filter(|sync| complete || sync.release == input.release)
        .collect();
    let lost = !ready && ours.iter().any(|sync| is_unfinished(sync));
    if suspended || (invalid && !lost) {
        return State::Obstructed;
    }
    if complete || lost {
        return outcome(input, &ours, ready, at);
    }
    if !ready {
        return State::Obstructed;
    }
    State::Startable {
        cut_short: is_cut_short(input, view),
    }
}

/// Whether the last thing that happened to this cluster's specs is that this release was admitted to a part of
/// them, which is not done yet.
fn is_cut_short(input: &PlanInput, view: &ClusterView) -> bool {
    let mut begun_at = None;
    let mut others = Vec::new();
    for entry in view.entries.values() {
        let Some(sync) = entry.observed.as_ref().filter(|sync| sync.target.is_some()) else {
            continue;
        };
        let ours = sync.release == input.release;
        match (at_target(entry), ours) {
            (true, true) if !is_done(entry) => begun_at = begun_at.max(sync.admitted_at),
            (true, _) => {}
            (false, true) => return false,
            (false, false) => others.push(sync.admitted_at),
        }
    }
    begun_at.is_some() && others.iter().all(|at| *at < begun_at)
}

/// What became of an admission that is not done. While an entry is at work that was admitted after another one
/// had failed, that failure says nothing yet.
fn outcome(input: &PlanInput, ours: &[&ObservedSync], ready: bool, at: Timestamp) -> State {
    let attempts: Vec<_> = ours.iter().filter_map(|sync| failed_attempt(sync)).collect();
    let admitted_at = ours.iter().filter_map(|sync| sync.admitted_at).max();
    let deadline = deadline(input, admitted_at).filter(|deadline| *deadline > at);
    match deadline {
        Some(deadline) if attempts.is_empty() || working(ours, Some(&input.release)).next().is_some() => {
            State::UnderWay { deadline }
        }
        _ if !attempts.is_empty() => State::Failed(attempts),
        _ if ready => State::Failed(vec![(FailureReason::ProgressDeadlineExceeded, None)]),
        _ => State::Failed(vec![(FailureReason::LostAfterAdmission, None)]),
    }
}

fn failed_attempt(sync: &ObservedSync) -> Option<(FailureReason, Option<Timestamp>)> {
    let Progress::Failing {
        reason,
        message,
        retry_at,
    } = &sync.progress
    else {
        return None;
    };
    let (reason, message) = (reason.clone(), message.clone());
    Some((FailureReason::AttemptFailed { reason, message }, *retry_at))
}

/// An admission that nobody dated has no time left.
fn deadline(input: &PlanInput, admitted_at: Option<Timestamp>) -> Option<Timestamp> {
    admitted_at?.checked_add(input.limits.progress_deadline).ok()
}

fn admissions(view: &ClusterView) -> impl Iterator<Item = &ObservedSync> {
    let observed = view.entries.values().filter_map(|entry| entry.observed.as_ref());
    observed.filter(|sync| sync.target.is_some())
}

/// Whether an entry's Sync names the wanted target.
pub(super) fn at_target(entry: &EntryView) -> bool {
    match (&entry.wanted, &entry.observed) {
        (Ok(wanted), Some(sync)) => sync.target.as_ref() == Some(wanted),
        _ => false,
    }
}

/// Whether an entry holds the wanted target.
pub(super) fn is_done(entry: &EntryView) -> bool {
    let done = |sync: &ObservedSync| !is_unfinished(sync);
    at_target(entry) && entry.observed.as_ref().is_some_and(done)
}

/// What broke after it was done does not become undone by that.
fn is_unfinished(sync: &ObservedSync) -> bool {
    matches!(sync.progress, Progress::Working | Progress::Failing { .. })
}

/// When a cluster's share of the jitter is over: the fraction of it that the hash of cluster and release gives,
/// from the start of the rollout.
pub(super) fn eligible_at(input: &PlanInput, view: &ClusterView) -> Timestamp {
    let hash = digest::hash64(&[&view.uid, &input.release]);
    let share = digest::spread(input.limits.jitter, hash);
    input.started_at.checked_add(share).unwrap_or(input.started_at)
}
