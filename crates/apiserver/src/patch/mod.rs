//! The patches that are no apply: JSON patch, merge patch, strategic merge patch.
//!
//! Each takes a stored object and what the client sent, both as values, and gives the object that the client wants. What
//! comes of that, decoding, defaults, validation and the entries of its fields, is the caller's. The rules are those of
//! the libraries that the API server uses, where they differ from the RFCs too: negative indices count from the end, a
//! `replace` of a field that is not there adds it, nulls inside new values are dropped.

mod json;
mod merge;
mod strategic;

use thiserror::Error;

pub use json::{json_patch, unknown_in_json_patch};
pub use merge::merge_patch;
pub use strategic::{StrategicType, strategic_merge};

/// The most operations of a JSON patch, as in the API server.
pub const MAX_OPERATIONS: usize = 10_000;

/// Why a patch cannot be applied. The texts are those of the API server's answers.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PatchError {
    /// It is no patch (400, `BadRequest`).
    #[error("{0}")]
    Malformed(String),
    /// It is a patch, and not one for this object (422, `Invalid`). The API server does not tell clients why.
    #[error("the server rejected our request due to an error in our request")]
    NotApplicable {
        /// Why.
        detail: String,
    },
    /// It has too many operations (413, `RequestEntityTooLarge`).
    #[error(
        "Request entity too large: The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {0}"
    )]
    TooManyOperations(usize),
    /// A strategic merge patch does not fit the kind or the object (500, without a reason).
    #[error("{0}")]
    Unmergeable(String),
}

impl PatchError {
    /// The status code of the API server's answer.
    pub fn code(&self) -> u16 {
        match self {
            Self::Malformed(_) => 400,
            Self::NotApplicable { .. } => 422,
            Self::TooManyOperations(_) => 413,
            Self::Unmergeable(_) => 500,
        }
    }

    /// The reason of the API server's answer, empty for none.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "BadRequest",
            Self::NotApplicable { .. } => "Invalid",
            Self::TooManyOperations(_) => "RequestEntityTooLarge",
            Self::Unmergeable(_) => "",
        }
    }
}
