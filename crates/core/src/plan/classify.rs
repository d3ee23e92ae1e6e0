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
    /// Whether it is in flight, for this release or an older one.
    pub(super) holds_slot: bool,
}

/// What a cluster is for this release.
#[derive(Clone, Debug)]
pub(super) enum Class {
    /// All entries hold their target.
    Done,
    /// Kept from starting by something that concerns it alone.
    Held(HoldReason),
    /// Admitted and not done.
    InFlight { deadline: Option<Timestamp>, lost: bool },
    /// Admitted and failed.
    Failed(Failed),
    /// May start: these entries are not admitted to their target yet.
    Startable { entries: Vec<String> },
}

/// A failure, and when it is tried again.
#[derive(Clone, Debug)]
pub(super) struct Failed {
    pub(super) reason: FailureReason,
    pub(super) retry_at: Option<Timestamp>,
}

/// How an entry stands.
enum Entry<'a> {
    /// Holds its target.
    Done,
    /// Admitted to its target and not done.
    Admitted(&'a ObservedSync),
    /// At an older target, and busy with it.
    Busy,
    /// At an older target, or at none.
    Idle,
}

pub(super) fn classify(input: &PlanInput, cluster: &ClusterView) -> Standing {
    let entries: Vec<(&str, Entry<'_>)> = cluster
        .entries
        .iter()
        .map(|(name, view)| (name.as_str(), entry(view)))
        .collect();
    let class = class(input, cluster, &entries);
    let holds_slot = match &class {
        Class::InFlight { .. } => true,
        Class::Done | Class::Failed(_) => false,
        // Work on an older release goes on until this one takes over, and is in flight meanwhile. Where the
        // cluster is unreachable nothing goes on there, and a newer release does not wait for it.
        Class::Held(_) | Class::Startable { .. } => {
            cluster.reach == Reach::Ready && entries.iter().any(|(_, entry)| is_busy(entry))
        }
    };
    Standing { class, holds_slot }
}

fn is_busy(entry: &Entry<'_>) -> bool {
    match entry {
        Entry::Busy => true,
        Entry::Admitted(sync) => sync.progress == Progress::Working && !sync.suspended,
        Entry::Done | Entry::Idle => false,
    }
}

fn class(input: &PlanInput, cluster: &ClusterView, entries: &[(&str, Entry<'_>)]) -> Class {
    if let Some(reason) = invalid(cluster) {
        return Class::Held(reason);
    }
    if entries.iter().all(|(_, entry)| matches!(entry, Entry::Done)) {
        return Class::Done;
    }
    if let Some(reason) = suspended(cluster) {
        return Class::Held(reason);
    }
    let missing: Vec<String> = entries
        .iter()
        .filter(|(_, entry)| matches!(entry, Entry::Busy | Entry::Idle))
        .map(|(name, _)| (*name).to_owned())
        .collect();
    if let Some(under_way) = under_way(input, cluster, entries, missing.is_empty()) {
        return under_way;
    }
    match &cluster.reach {
        Reach::Ready => Class::Startable { entries: missing },
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

/// The class of a cluster of which at least one entry is admitted to its target and not done. `None`: nothing
/// of this release is under way there, or (after a crash between two admissions) the rest is to be admitted.
fn under_way(
    input: &PlanInput,
    cluster: &ClusterView,
    entries: &[(&str, Entry<'_>)],
    complete: bool,
) -> Option<Class> {
    let admitted: Vec<&ObservedSync> = entries
        .iter()
        .filter_map(|(_, entry)| match entry {
            Entry::Admitted(sync) => Some(*sync),
            Entry::Done | Entry::Busy | Entry::Idle => None,
        })
        .collect();
    let last = admitted.iter().filter_map(|sync| sync.admitted_at).max();
    if admitted.is_empty() {
        return None;
    }
    let deadline = last.and_then(|at| at.checked_add(input.limits.progress_deadline).ok());
    let overdue = deadline.is_none_or(|deadline| input.now >= deadline);

    if cluster.reach == Reach::Ready {
        if let Some(failed) = admitted.iter().find_map(|sync| failing(sync)) {
            return Some(Class::Failed(failed));
        }
        if !complete {
            return None;
        }
        return Some(if overdue {
            Class::Failed(Failed {
                reason: FailureReason::ProgressDeadlineExceeded,
                retry_at: None,
            })
        } else {
            Class::InFlight {
                deadline,
                lost: false,
            }
        });
    }
    Some(if overdue {
        Class::Failed(Failed {
            reason: FailureReason::LostAfterAdmission,
            retry_at: None,
        })
    } else {
        Class::InFlight { deadline, lost: true }
    })
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
        Progress::Working | Progress::Done => None,
    }
}

fn entry(view: &EntryView) -> Entry<'_> {
    let Some(observed) = &view.observed else {
        return Entry::Idle;
    };
    let at_target = view.wanted.as_ref().ok() == observed.target.as_ref() && observed.target.is_some();
    match (&observed.progress, at_target) {
        (Progress::Done, true) => Entry::Done,
        (Progress::Working | Progress::Failing { .. }, true) => Entry::Admitted(observed),
        (Progress::Working, false) if observed.target.is_some() && !observed.suspended => Entry::Busy,
        (Progress::Working | Progress::Failing { .. } | Progress::Done, false) => Entry::Idle,
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
