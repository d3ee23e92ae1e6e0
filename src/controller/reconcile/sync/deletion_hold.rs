//! Deletions that wait for an approval: their report and their release.

use starling_api::DeletionHold;
use starling_api::conditions::{ConditionStatus, ConditionUpdate, DELETION_HELD};
use starling_core::deletion_approval::Approvals;
pub(super) use starling_core::deletion_hold::of;
use starling_core::deletion_hold::{self, reason};
use starling_core::step::Wanted;

use super::observe::SyncSnapshot;
use crate::controller::object_key::ObjectKey;

/// The reason of Ready while deletions wait.
pub(super) const REASON: &str = "DeletionHeld";

/// Returns whether the held deletions have been approved, so that the next attempt starts now and not at the next
/// interval. If the process ended while it carried them out, the approval is used up, and they continue under the
/// grant.
pub(super) fn is_released(observed: &SyncSnapshot) -> bool {
    let status = &observed.status;
    let Some(hold) = &status.held_deletions else {
        return false;
    };
    let deletions = status.deletions.as_ref();
    let grant = deletions.and_then(|deletions| deletions.grant.as_ref());
    let has_begun = grant.is_some_and(|grant| grant.digest == hold.digest);
    has_begun || observed.approvals.approve(&hold.digest)
}

/// Returns whether the last attempt at this target left held deletions.
pub(super) fn waits(observed: &SyncSnapshot, wanted: &Wanted) -> bool {
    observed.status.held_deletions.is_some() && observed.status.last_attempted_target == wanted.target
}

/// Returns the condition while deletions wait. The objects come last because long messages are truncated.
pub(super) fn condition(of: &HeldSync, hold: &DeletionHold) -> ConditionUpdate {
    let remarks = of.approvals.about(&hold.digest).remarks(&[&*hold.digest].into());
    let remarks = match remarks.as_str() {
        "" => String::new(),
        remarks => format!("; {remarks}"),
    };
    ConditionUpdate {
        type_: DELETION_HELD,
        status: ConditionStatus::True,
        reason: reason(hold).into(),
        message: format!("{}{remarks}: {}", message(of, hold), hold.objects.join(", ")),
    }
}

/// The Sync whose deletions are held.
#[derive(Clone, Debug)]
pub(super) struct HeldSync {
    /// The arguments of `starling approve-deletions` that name the group or the Sync.
    arguments: String,
    approvals: Approvals,
}

impl HeldSync {
    pub(super) fn of(observed: &SyncSnapshot) -> Self {
        let ObjectKey { namespace, name } = &observed.key;
        let subject = match observed.group_key() {
            Some(group) => format!("group {}", group.name),
            None => format!("sync {name}"),
        };
        Self {
            arguments: format!("{subject} -n {namespace}"),
            approvals: observed.approvals.clone(),
        }
    }
}

/// Returns the message of Ready, which is also the beginning of the condition's message.
pub(super) fn message(of: &HeldSync, hold: &DeletionHold) -> String {
    deletion_hold::message(&of.arguments, hold)
}
