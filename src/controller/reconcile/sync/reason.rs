//! Maps errors of members to reasons in conditions and problems.

use starling_api::ObjectProblem;
use starling_api::conditions::{self, MESSAGE_LIMIT, cut};
use starling_core::object::ObjectId;

use starling_member::MemberError;

/// Maximum number of problems in a status.
pub(super) const PROBLEMS: usize = 10;

pub(super) fn problems(failures: &[(ObjectId, MemberError)]) -> Vec<ObjectProblem> {
    failures
        .iter()
        .take(PROBLEMS)
        .map(|(object, error)| ObjectProblem {
            object: object.to_string(),
            reason: reason(error).to_owned(),
            message: cut(&crate::chain(error), MESSAGE_LIMIT),
        })
        .collect()
}

/// Returns the reason of an error of an object. No other function maps these errors.
pub(super) fn reason(error: &MemberError) -> &'static str {
    match error {
        MemberError::Unreachable { .. } => "Unreachable",
        MemberError::Deadline { .. } => "Timeout",
        MemberError::Unauthorized { .. } => "AuthFailed",
        MemberError::Forbidden { .. } => "Forbidden",
        MemberError::Throttled { .. } => "Throttled",
        MemberError::NotFound { .. } => "NotFound",
        MemberError::Conflict { .. } => "Conflict",
        MemberError::Invalid { .. } => "Invalid",
        MemberError::Immutable { .. } => "Immutable",
        MemberError::NotGone { .. } | MemberError::Terminating { .. } => "NotGone",
        MemberError::NotEstablished { .. } => "DefinitionNotEstablished",
        MemberError::OwnedByOther { .. } => "OwnedByOther",
        MemberError::InUse { .. } => "InUse",
        MemberError::UnknownKind { .. } | MemberError::NotServed { .. } => "UnknownKind",
        MemberError::Address { .. } | MemberError::SameObject(_) => "InvalidObject",
        MemberError::Account { .. } => "InvalidParameters",
        MemberError::Inventory { .. } => "InventoryUnreadable",
        MemberError::SetBack { .. } => conditions::RESTORE_DETECTED,
        MemberError::NoNumber { .. } => "AwaitingManagementCluster",
        MemberError::Client { .. }
        | MemberError::Expired { .. }
        | MemberError::Server { .. }
        | MemberError::Garbage { .. }
        | MemberError::TooLarge { .. } => "ServerFailed",
    }
}
