//! Determines the failed clusters that are admitted again because an operator requested a retry.
//!
//! A retry takes a slot like a start, after the starts of the same plan, and begins a new `progressDeadline`. Whatever
//! stops all starts (suspended, paused, aborted, too many clusters left at once) also stops retries. The failure limit
//! and closed windows do not: the cluster was started before.

use crate::ids::EntryName;
use jiff::{SignedDuration, Timestamp};

use super::state::{Class, ClusterState};
use super::types::{HoldReason, ObservedSync, PlanInput};

/// The resolution of `creationTimestamp`, which is the time of a request.
pub const REQUEST_RESOLUTION: SignedDuration = SignedDuration::from_secs(1);

/// A retry that is due for one cluster.
pub(super) struct DueRetry {
    pub(super) entries: Vec<EntryName>,
    pub(super) requested_at: Timestamp,
}

/// A requested retry of a failed cluster that the plan does not make yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingRetry {
    /// The time of the newest request.
    pub requested_at: Timestamp,
    /// The reason why the retry waits.
    pub reason: HoldReason,
}

/// Reports whether something began before a request. API servers record whole seconds, so what began within the second
/// of the request counts as earlier.
#[must_use]
pub fn began_before(begun_at: Timestamp, requested_at: Timestamp) -> bool {
    begun_at.duration_since(requested_at) < REQUEST_RESOLUTION
}

/// Returns why no cluster may be retried now; `None`: a retry needs nothing but a slot.
pub(super) fn stop(input: &PlanInput) -> Option<HoldReason> {
    let operator = &input.operator;
    if input.suspended {
        return Some(HoldReason::GroupSuspended);
    }
    if let Some(attribution) = &operator.paused {
        return Some(HoldReason::Paused(attribution.clone()));
    }
    if let Some(attribution) = &operator.aborted {
        return Some(HoldReason::Aborted(attribution.clone()));
    }
    input.membership_held.then_some(HoldReason::MembershipHeld)
}

/// Returns the retry that is due for a cluster of this stage; `None`: the cluster has not failed, no retry is
/// requested, or the newest request was served.
pub(super) fn due(input: &PlanInput, state: &ClusterState<'_>, stage: Option<&str>) -> Option<DueRetry> {
    // A Sync that is being removed retries by itself, and nothing else failed.
    if !matches!(state.class, Class::Failed(_)) || state.lacks_nothing {
        return None;
    }
    let retries = input.operator.retries.iter();
    let requested_at = retries
        .filter(|retry| retry.cluster.as_ref().is_none_or(|cluster| cluster == state.name))
        .filter(|retry| retry.stage.as_ref().is_none_or(|of| Some(of.as_str()) == stage))
        .map(|retry| retry.attribution.at)
        .max()?;
    let entries = state.cluster.entries.iter();
    // Entries that are not at their target are started, not retried.
    let entries = entries.filter(|(_, view)| {
        let sync = view
            .observed
            .as_ref()
            .filter(|sync| sync.target.as_ref() == view.wanted.as_ref().ok());
        sync.is_some_and(|sync| sync.target.is_some() && is_pending(sync, requested_at))
    });
    let entries: Vec<EntryName> = entries.map(|(name, _)| name.clone()).collect();
    (!entries.is_empty()).then_some(DueRetry {
        entries,
        requested_at,
    })
}

fn is_pending(sync: &ObservedSync, requested_at: Timestamp) -> bool {
    let before = sync.admitted_at.is_none_or(|at| began_before(at, requested_at));
    before && sync.retried_for.is_none_or(|served| served < requested_at)
}
