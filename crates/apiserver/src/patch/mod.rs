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

pub use json::{json_patch, unknown_in_json_patch};
pub use merge::merge_patch;
pub use strategic::{StrategicType, strategic_merge};

/// The maximum number of operations of a JSON patch, as in Kubernetes.
pub const MAX_OPERATIONS: usize = 10_000;

/// Why a patch cannot be applied. The texts are those of the API server.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PatchError {
    /// The body is not a patch (400, `BadRequest`).
    #[error("{0}")]
    Malformed(String),
    /// The patch does not apply to this object (422, `Invalid`). The API server does not report the reason.
    #[error("the server rejected our request due to an error in our request")]
    NotApplicable {
        /// The reason.
        detail: String,
    },
    /// The patch has too many operations (413, `RequestEntityTooLarge`).
    #[error(
        "Request entity too large: The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {0}"
    )]
    TooManyOperations(usize),
    /// A strategic merge patch does not match the kind or the object (500, without a reason).
    #[error("{0}")]
    Unmergeable(String),
}

impl PatchError {
    /// Returns the status code of the API server's response.
    pub fn code(&self) -> u16 {
        match self {
            Self::Malformed(_) => 400,
            Self::NotApplicable { .. } => 422,
            Self::TooManyOperations(_) => 413,
            Self::Unmergeable(_) => 500,
        }
    }

    /// Returns the reason of the API server's response; empty for none.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "BadRequest",
            Self::NotApplicable { .. } => "Invalid",
            Self::TooManyOperations(_) => "RequestEntityTooLarge",
            Self::Unmergeable(_) => "",
        }
    }
}
