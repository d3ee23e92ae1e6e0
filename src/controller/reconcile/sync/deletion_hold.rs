//! Deletions that wait for an approval: their report and their release.

use starling_api::DeletionHold;
use starling_api::conditions::{ConditionStatus, ConditionUpdate, DELETION_HELD};
use starling_core::apply::HeldDeletions;
use starling_core::deletion_approval::Approvals;
use starling_core::step::Wanted;

use super::observe::Observed;
use crate::controller::cache::ObjectKey;

/// The reason of Ready while deletions wait.
pub(super) const REASON: &str = "DeletionHeld";

/// Returns whether the held deletions have been approved, so that the next attempt starts now and not at the next
/// interval. If the process ended while it carried them out, the approval is used up, and they continue under the
/// grant.
pub(super) fn is_released(observed: &Observed) -> bool {
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
pub(super) fn waits(observed: &Observed, wanted: &Wanted) -> bool {
    observed.status.held_deletions.is_some() && observed.status.last_attempted_target == wanted.target
}

/// Returns held deletions for status.
pub(super) fn of(deletions: &HeldDeletions) -> DeletionHold {
    let narrow = |count| u32::try_from(count).unwrap_or(u32::MAX);
    let excess = deletions.excess.as_ref();
    DeletionHold {
        digest: deletions.digest.clone(),
        deletions: narrow(deletions.deletions),
        of: narrow(deletions.of),
        budget: excess.map(|excess| excess.budget.clone()).unwrap_or_default(),
        until: excess
            .and_then(|excess| excess.until)
            .map(|until| until.to_string())
            .unwrap_or_default(),
        objects: deletions.objects.iter().map(ToString::to_string).collect(),
    }
}

/// Returns the condition while deletions wait. The objects come last because long messages are truncated.
pub(super) fn condition(of: &Subject, hold: &DeletionHold) -> ConditionUpdate {
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
pub(super) struct Subject {
    /// The arguments of `starling approve-deletions` that name the group or the Sync.
    arguments: String,
    approvals: Approvals,
}

impl Subject {
    pub(super) fn of(observed: &Observed) -> Self {
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

/// Returns the reason of the condition.
fn reason(hold: &DeletionHold) -> &'static str {
    match hold.until.as_str() {
        "" => "ApprovalNeeded",
        _ => "BudgetExhausted",
    }
}

/// Returns the message of Ready, which is also the beginning of the condition's message.
pub(super) fn message(of: &Subject, hold: &DeletionHold) -> String {
    let DeletionHold {
        digest,
        deletions,
        of: total,
        budget,
        until,
        objects: _,
    } = hold;
    let why = match (budget.as_str(), until.as_str()) {
        ("", _) => {
            format!("{deletions} of {total} objects are no longer in git and would be deleted; to approve")
        }
        (budget, "") => format!("{deletions} of {total} objects would be deleted: {budget}; to approve"),
        (budget, until) => format!(
            "{deletions} of {total} objects would be deleted: {budget}; continues at {until}. To approve now"
        ),
    };
    let arguments = &of.arguments;
    format!("{why}: starling approve-deletions {arguments} --digest {digest} --reason \"…\"")
}
