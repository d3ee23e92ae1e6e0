//! Deletions that wait for an approval: their report and their release.

use kube::ResourceExt;
use starling_api::conditions::{ConditionStatus, ConditionUpdate, DELETION_HELD};
use starling_api::{APPROVE_DELETIONS, DeletionHold};
use starling_core::apply::HeldDeletions;
use starling_core::apply::budget::is_approved;
use starling_core::step::Wanted;

use super::observe::Observed;
use crate::controller::context::SyncContext;

/// The reason of Ready while deletions wait.
pub(super) const REASON: &str = "DeletionHeld";

/// Returns the approved digests of this Sync: those on the Sync, and those on its group, which apply to all Syncs of
/// the group.
pub(super) fn approved(context: SyncContext<'_>, observed: &Observed) -> String {
    let own = observed.object.annotations().get(APPROVE_DELETIONS).cloned();
    let group = observed
        .group_key()
        .and_then(|key| context.objects.groups.get(&key));
    let group = group.and_then(|group| group.annotations().get(APPROVE_DELETIONS).cloned());
    own.into_iter().chain(group).collect::<Vec<_>>().join(",")
}

/// Returns whether the held deletions have been approved, so that the next attempt starts now and not at the next
/// interval.
pub(super) fn is_released(context: SyncContext<'_>, observed: &Observed) -> bool {
    let hold = observed.status.held_deletions.as_ref();
    hold.is_some_and(|hold| is_approved(&approved(context, observed), &hold.digest))
}

/// Returns whether the last attempt at this target left held deletions.
pub(super) fn waits(observed: &Observed, wanted: &Wanted) -> bool {
    observed.status.held_deletions.is_some() && observed.status.last_attempted_target == wanted.target
}

/// Returns held deletions for status.
pub(super) fn of(deletions: &HeldDeletions) -> DeletionHold {
    let narrow = |count| u32::try_from(count).unwrap_or(u32::MAX);
    DeletionHold {
        digest: deletions.digest.clone(),
        deletions: narrow(deletions.deletions),
        of: narrow(deletions.of),
        objects: deletions.objects.iter().map(ToString::to_string).collect(),
    }
}

/// Returns the condition while deletions wait. The objects come last because long messages are truncated.
pub(super) fn condition(hold: &DeletionHold) -> ConditionUpdate {
    ConditionUpdate {
        type_: DELETION_HELD,
        status: ConditionStatus::True,
        reason: "ApprovalNeeded".into(),
        message: format!("{}: {}", message(hold), hold.objects.join(", ")),
    }
}

/// Returns the message of Ready, which is also the beginning of the condition's message.
pub(super) fn message(hold: &DeletionHold) -> String {
    format!(
        "{} of {} objects are no longer in git and would be deleted; to approve, annotate the Sync or its SyncGroup \
         with {APPROVE_DELETIONS}={}",
        hold.deletions, hold.of, hold.digest
    )
}
