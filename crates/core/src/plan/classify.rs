//! How one cluster stands with the release, by itself.

use jiff::Timestamp;

use super::types::{
    ClusterView, EntryView, FailureReason, HoldReason, ObservedSync, PlanInput, Progress, Reach,
};

/// How a cluster stands, before the others are looked at.
#[derive(Clone, Debug)]
pub(super) struct Standing {
    /// What it is.
    pub(super) class: Class,
    /// The slot that it holds.
    pub(super) slot: Option<Slot>,
}

/// What a cluster is in flight for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// This release, which was admitted with all entries.
    Release,
    /// What was admitted there before: an older release, or a part of this one. No decision carries its deadline,
    /// at which it ends at the latest.
    Leftover {
        /// That deadline.
        until: Timestamp,
    },
}

/// What a cluster is for this release.
#[derive(Clone, Debug)]
pub(super) enum Class {
    /// All entries hold their target.
    Done,
    /// Kept from starting by something that concerns it alone.
    Held(HoldReason),
    /// Admitted and not done.
    InFlight { deadline: Timestamp, lost: bool },
    /// Admitted and failed.
    Failed(Failed),
    /// May start.
    Startable {
        /// The entries that are not admitted to their target yet.
        entries: Vec<String>,
        /// Its admission to this release was begun and cut short.
        begun: bool,
    },
}

/// A failure, and when it is tried again.
#[derive(Clone, Debug)]
pub(super) struct Failed {
    pub(super) reason: FailureReason,
    pub(super) retry_at: Option<Timestamp>,
}

pub(super) fn classify(input: &PlanInput, cluster: &ClusterView) -> Standing {
    let class = class(input, cluster);
    let slot = match &class {
        Class::InFlight { .. } => Some(Slot::Release),
        Class::Done | Class::Failed(_) => None,
        // Work on an older release goes on until this one takes over, and is in flight meanwhile. Where the
        // cluster is unreachable nothing goes on there, and a newer release does not wait for it.
        Class::Held(_) | Class::Startable { .. } => (cluster.reach == Reach::Ready)
            .then(|| at_work_until(input, cluster))
            .flatten()
            .map(|until| Slot::Leftover { until }),
    };
    Standing { class, slot }
}

impl Standing {
    /// Whether this release has reached the cluster, and is neither done nor failed there.
    pub(super) fn is_reached(&self) -> bool {
        matches!(
            self.class,
            Class::InFlight { .. } | Class::Startable { begun: true, .. }
        )
    }
}

fn class(input: &PlanInput, cluster: &ClusterView) -> Class {
    if cluster.entries.values().all(is_done) {
        return Class::Done;
    }
    let missing: Vec<String> = cluster
        .entries
        .iter()
        .filter(|(_, view)| !is_at_target(view))
        .map(|(name, _)| name.clone())
        .collect();
    let complete = missing.is_empty();
    let admitted: Vec<&ObservedSync> = admissions(cluster)
        .filter(|sync| complete || sync.release == input.release)
        .collect();
    let unfinished = admitted.iter().any(|sync| !sync.progress.is_done());
    let suspended = suspended(cluster);
    // Lost beats a parameter that became invalid meanwhile: it is the release that may have cut the cluster off.
    let lost = cluster.reach != Reach::Ready && unfinished && suspended.is_none();
    if !lost && let Some(reason) = invalid(cluster).or(suspended) {
        return Class::Held(reason);
    }
    // Where entries are missing, a ready cluster gets them, whatever became of the others: those may have failed
    // for want of just these.
    if complete || lost {
        return under_way(input, &cluster.reach, &admitted);
    }
    match &cluster.reach {
        Reach::Ready => Class::Startable {
            entries: missing,
            begun: is_begun(input, cluster),
        },
        Reach::Unprobed => Class::Held(HoldReason::ClusterNotProbed),
        Reach::Suspended => Class::Held(HoldReason::ClusterSuspended),
        Reach::Unreachable {
            reason,
            message,
            since,
        } => Class::Held(HoldReason::ClusterUnreachable {
            reason: reason.clone(),
            message: message.clone(),
            since: *since,
        }),
    }
}

/// The class of a cluster that was admitted and is not done. Its time counts from the last of its admissions, in
/// which that of the whole cluster was complete.
///
/// A failure that was seen stays one when the cluster becomes unreachable: to lose sight of it is not to recover,
/// and must not give the budget back. But it waits while an entry is at work that came after it, for it may have
/// happened for want of just that.
fn under_way(input: &PlanInput, reach: &Reach, admitted: &[&ObservedSync]) -> Class {
    let failed = admitted.iter().find_map(|sync| failing(sync));
    let at_work = admitted
        .iter()
        .any(|sync| is_at_work(sync, admitted, sync.release == input.release));
    let last = admitted.iter().filter_map(|sync| sync.admitted_at).max();
    let lost = *reach != Reach::Ready;
    match deadline(input, last) {
        Some(deadline) if deadline > input.now && (at_work || failed.is_none()) => {
            Class::InFlight { deadline, lost }
        }
        // Where nobody recorded the admission, no time is left: a wait without an end would hold a slot for ever.
        _ => Class::Failed(failed.unwrap_or(Failed {
            reason: if lost {
                FailureReason::LostAfterAdmission
            } else {
                FailureReason::ProgressDeadlineExceeded
            },
            retry_at: None,
        })),
    }
}

/// Whether an entry is at work, and not in backoff because one of `others` failed that was admitted with it or
/// since. What is `newest` came after the failures of every other release, whatever the clocks said.
fn is_at_work(sync: &ObservedSync, others: &[&ObservedSync], newest: bool) -> bool {
    let since = |other: &ObservedSync| !newest && other.admitted_at >= sync.admitted_at;
    let stops =
        |other: &&ObservedSync| failing(other).is_some() && (other.release == sync.release || since(other));
    sync.progress == Progress::Working && !sync.suspended && !others.iter().any(stops)
}

/// Whether the admission of a cluster was cut short between two entries: some are admitted by this release and
/// not done, and the missing ones were last admitted before that, by another release. Missing entries of which
/// that is not so miss their target because their parameters changed, or because a release came back.
fn is_begun(input: &PlanInput, cluster: &ClusterView) -> bool {
    let ours = |sync: &ObservedSync| sync.release == input.release;
    let (admitted, missing): (Vec<&EntryView>, Vec<&EntryView>) =
        cluster.entries.values().partition(|view| is_at_target(view));
    let begun_at = admitted
        .into_iter()
        .filter(|view| !is_done(view))
        .filter_map(|view| view.observed.as_ref())
        .filter(|sync| ours(sync))
        .filter_map(|sync| sync.admitted_at)
        .max();
    begun_at.is_some()
        && missing
            .into_iter()
            .filter_map(|view| view.observed.as_ref())
            .all(|sync| sync.target.is_none() || (!ours(sync) && sync.admitted_at < begun_at))
}

/// Until when a cluster is at work on what it was admitted to; `None` where it is not.
fn at_work_until(input: &PlanInput, cluster: &ClusterView) -> Option<Timestamp> {
    let admitted: Vec<&ObservedSync> = admissions(cluster).collect();
    admitted
        .iter()
        .filter(|sync| is_at_work(sync, &admitted, false))
        .filter_map(|sync| deadline(input, sync.admitted_at))
        .filter(|deadline| *deadline > input.now)
        .max()
}

fn deadline(input: &PlanInput, admitted_at: Option<Timestamp>) -> Option<Timestamp> {
    admitted_at?.checked_add(input.limits.progress_deadline).ok()
}

fn admissions(cluster: &ClusterView) -> impl Iterator<Item = &ObservedSync> {
    cluster
        .entries
        .values()
        .filter_map(|view| view.observed.as_ref())
        .filter(|sync| sync.target.is_some())
}

fn is_at_target(view: &EntryView) -> bool {
    let target = view.observed.as_ref().and_then(|sync| sync.target.as_ref());
    target.is_some() && view.wanted.as_ref().ok() == target
}

fn is_done(view: &EntryView) -> bool {
    let done = |sync: &ObservedSync| sync.progress.is_done();
    is_at_target(view) && view.observed.as_ref().is_some_and(done)
}

fn failing(sync: &ObservedSync) -> Option<Failed> {
    match &sync.progress {
        Progress::Failing {
            reason,
            message,
            retry_at,
        } => Some(Failed {
            reason: FailureReason::AttemptFailed {
                reason: reason.clone(),
                message: message.clone(),
            },
            retry_at: *retry_at,
        }),
        Progress::Working | Progress::Done | Progress::Degraded { .. } => None,
    }
}

fn invalid(cluster: &ClusterView) -> Option<HoldReason> {
    cluster.entries.iter().find_map(|(name, view)| {
        let message = view.wanted.as_ref().err()?;
        Some(HoldReason::InvalidParameters {
            entry: name.clone(),
            message: message.clone(),
        })
    })
}

fn suspended(cluster: &ClusterView) -> Option<HoldReason> {
    if cluster.reach == Reach::Suspended {
        return Some(HoldReason::ClusterSuspended);
    }
    cluster.entries.iter().find_map(|(name, view)| {
        let observed = view.observed.as_ref()?;
        observed
            .suspended
            .then(|| HoldReason::SyncSuspended { entry: name.clone() })
    })
}
