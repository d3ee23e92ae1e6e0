//! The four loops. Each one is a directory with the same steps: *observe* (IO), *validate* (pure), ask core (pure),
//! *apply* (IO), *report* (IO).

pub mod cluster;
mod group_state;
mod marks;
mod parent_deletion;
pub mod source;
pub mod sync;
pub mod sync_group;

use starling_api::conditions::{
    Condition, ConditionStatus, ConditionUpdate, READY, RECONCILING, RESTORE_DETECTED, STALLED,
};
use starling_core::restore::RestoreFinding;

use super::hub::HubError;
use starling_ledger::LedgerError;

/// The error of a reconcile that could not report its result. All other errors become conditions.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// A request to the management cluster failed.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// A read or write of the ledger failed. No effect begins without its record.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// Returns the value of the annotation that requests a reconcile, unless status shows that the request was handled.
pub(super) fn unhandled_request<'a, K: kube::ResourceExt>(object: &'a K, handled: &str) -> Option<&'a str> {
    let requested = object.annotations().get(starling_api::REQUESTED_AT)?;
    (requested != handled).then_some(requested.as_str())
}

/// Returns an update of `Ready`.
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

/// Returns `Ready=False` and `Stalled=True`: an edit is required.
pub(super) fn stalled(reason: &str, message: &str) -> Vec<ConditionUpdate> {
    let stalled = ConditionUpdate {
        type_: STALLED,
        status: ConditionStatus::True,
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    vec![ready(ConditionStatus::False, reason, message), stalled]
}

/// Returns `Ready=False` and `Reconciling=True`: a retry follows.
pub(super) fn retrying(reason: &str, message: &str) -> Vec<ConditionUpdate> {
    let reconciling = ConditionUpdate {
        type_: RECONCILING,
        status: ConditionStatus::True,
        reason: "ProgressingWithRetry".to_owned(),
        message: message.to_owned(),
    };
    vec![ready(ConditionStatus::False, reason, message), reconciling]
}

/// Returns the conditions of an object for which nothing is done, because the ledger does not accept the record that
/// comes before each effect, for example because the disk is full.
pub(super) fn ledger_unavailable(message: &str) -> Vec<ConditionUpdate> {
    retrying("LedgerUnavailable", message)
}

/// Returns `Ready=Unknown` and `RestoreDetected=True`: nothing is written until a person releases the restore.
pub(super) fn held_after_restore(finding: &RestoreFinding) -> Vec<ConditionUpdate> {
    let message = finding.to_string();
    let detected = ConditionUpdate {
        type_: RESTORE_DETECTED,
        status: ConditionStatus::True,
        reason: "AwaitingRelease".into(),
        message: message.clone(),
    };
    vec![
        ready(ConditionStatus::Unknown, RESTORE_DETECTED, message),
        detected,
    ]
}

/// Returns an update that repeats a reported condition.
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

/// Returns the message of the reason `NotImplemented`.
pub(super) fn not_implemented(fields: &[String]) -> String {
    format!(
        "not implemented yet: {}; remove it to continue",
        fields.join(", ")
    )
}
