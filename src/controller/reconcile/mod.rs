//! The four loops. Each is a folder with the same story: *observe* (IO), *validate* (pure), ask core (pure),
//! *apply* (IO), *report* (IO).

pub mod cluster;
mod names;
mod parent_deletion;
pub mod source;
pub mod sync;
pub mod sync_group;

use starling_api::conditions::{Condition, ConditionStatus, ConditionUpdate, READY, RECONCILING, STALLED};

use super::hub::HubError;
use starling_ledger::LedgerError;

/// Why a reconcile could not even report. Everything else ends in a condition.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// The management cluster does not take or give something.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// The ledger does not take something; without its record no effect may begin.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// The value of the annotation that requests a reconcile, if it was not answered yet.
pub(super) fn unhandled_request<'a, K: kube::ResourceExt>(object: &'a K, handled: &str) -> Option<&'a str> {
    let asked = object.annotations().get(starling_api::REQUESTED_AT)?;
    (asked != handled).then_some(asked.as_str())
}

/// `Ready` alone, with what goes with its kind.
pub(super) fn ready(
    status: ConditionStatus,
    reason: impl Into<String>,
    message: impl Into<String>,
) -> ConditionUpdate {
    ConditionUpdate {
        type_: READY,
        status,
        reason: reason.into(),
        message: message.into(),
    }
}

/// `Ready=False` and `Stalled=True`: nothing changes until somebody edits something.
pub(super) fn stalled(reason: &str, message: &str) -> Vec<ConditionUpdate> {
    let stalled = ConditionUpdate {
        type_: STALLED,
        status: ConditionStatus::True,
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    vec![ready(ConditionStatus::False, reason, message), stalled]
}

/// `Ready=False` and `Reconciling=True`: it is tried again.
pub(super) fn retrying(reason: &str, message: &str) -> Vec<ConditionUpdate> {
    let reconciling = ConditionUpdate {
        type_: RECONCILING,
        status: ConditionStatus::True,
        reason: "ProgressingWithRetry".to_owned(),
        message: message.to_owned(),
    };
    vec![ready(ConditionStatus::False, reason, message), reconciling]
}

/// A condition once more, as it was reported.
pub(super) fn repeated(type_: &'static str, condition: &Condition) -> ConditionUpdate {
    ConditionUpdate {
        type_,
        status: match condition.status.as_str() {
            "True" => ConditionStatus::True,
            "False" => ConditionStatus::False,
            _ => ConditionStatus::Unknown,
        },
        reason: condition.reason.clone(),
        message: condition.message.clone(),
    }
}

/// The message of `NotImplemented`.
pub(super) fn not_implemented(fields: &[String]) -> String {
    format!(
        "not implemented yet: {}; remove it to continue",
        fields.join(", ")
    )
}
