//! The patch types other than server-side apply: JSON patch, merge patch, strategic merge patch.
//!
//! Each takes a stored object and a patch, both as JSON values, and returns the patched object. The caller decodes,
//! defaults and validates it and updates its `managedFields`. The rules are those of the libraries that the API
//! server uses, also where these differ from the RFCs: negative indices count from the end, `replace` adds a missing
//! field, nulls within new values are removed.

mod json;
mod merge;
mod strategic;

use thiserror::Error;

pub use json::{OperationError, json_patch, unknown_in_json_patch};
pub use merge::merge_patch;
pub use strategic::{StrategicType, UnmergeableError, strategic_merge};

/// The maximum number of operations of a JSON patch, as in Kubernetes.
pub const MAX_OPERATIONS: usize = 10_000;

/// Why a patch cannot be applied. The texts are those of the API server.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PatchError {
    /// The body is not a patch (400, `BadRequest`).
    #[error(transparent)]
    Malformed(#[from] MalformedPatch),
    /// The patch does not apply to this object (422, `Invalid`). The API server does not report the reason.
    #[error("the server rejected our request due to an error in our request")]
    NotApplicable(#[from] NotApplicable),
    /// The patch has too many operations (413, `RequestEntityTooLarge`).
    #[error(
        "Request entity too large: The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {0}"
    )]
    TooManyOperations(usize),
    /// A strategic merge patch does not match the kind or the object (500, without a reason).
    #[error(transparent)]
    Unmergeable(#[from] UnmergeableError),
}

/// Why a body is not a patch.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum MalformedPatch {
    /// The patch or a part of it is of another JSON type.
    #[error("error decoding patch: json: cannot unmarshal {found} into Go value of type {target}")]
    WrongType {
        /// The JSON type.
        found: &'static str,
        /// The Go type of the place.
        target: &'static str,
    },
    /// A merge patch is null.
    #[error("Invalid JSON Patch")]
    Null,
    /// The object of a merge patch is not a JSON object.
    #[error("Invalid JSON Document")]
    Document,
    /// A strategic merge patch or its object is not a JSON object.
    #[error("invalid JSON document")]
    StrategicDocument,
    /// `$deleteFromPrimitiveList` does not name a list.
    #[error("invalid patch format of primitive list")]
    DeleteFromPrimitiveList,
    /// `$retainKeys` is not a list, or does not list a field of the patch.
    #[error("invalid patch format of retainKeys")]
    RetainKeys,
    /// `$setElementOrder` does not name a list.
    #[error("invalid patch format of setElementOrder list")]
    SetElementOrder,
}

/// Why a patch does not apply to an object.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum NotApplicable {
    /// An operation of a JSON patch fails.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// A strategic merge patch merges lists of lists.
    #[error("lists of lists are not supported")]
    ListOfLists,
}

impl PatchError {
    /// Returns the status code of the API server's response.
    pub fn code(&self) -> u16 {
        match self {
            Self::Malformed(_) => 400,
            Self::NotApplicable(_) => 422,
            Self::TooManyOperations(_) => 413,
            Self::Unmergeable(_) => 500,
        }
    }

    /// Returns the reason of the API server's response; empty for none.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "BadRequest",
            Self::NotApplicable(_) => "Invalid",
            Self::TooManyOperations(_) => "RequestEntityTooLarge",
            Self::Unmergeable(_) => "",
        }
    }
}
