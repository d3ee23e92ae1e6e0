//! The counter of the writes to members (ADR 40).

use std::fmt::Debug;

use futures::future::BoxFuture;
use starling_core::ids::InstallationId;
use starling_core::restore::WriteNumber;
use thiserror::Error;

use super::error::{BoxError, MemberError};

/// The management cluster that counts the writes to its members.
pub trait WriteNumbers: Debug + Send + Sync {
    /// Returns the installation ID.
    fn installation(&self) -> &InstallationId;

    /// Returns a number that no other write has. It is stored before this returns.
    fn take(&self) -> BoxFuture<'_, Result<WriteNumber, NumberError>>;

    /// Why nothing may be written any more, also by an attempt that has a number; `None`: it may.
    fn refusal(&self) -> Option<NumberError>;

    /// Checks that the management cluster knows a number that the member has.
    fn check<'a>(&'a self, found: &'a WriteNumber) -> BoxFuture<'a, Result<(), NumberError>>;
}

/// Why nothing may be written.
#[derive(Debug, Error)]
pub enum NumberError {
    /// The management cluster was set back, and nobody has released it.
    #[error("{0}")]
    SetBack(String),
    /// The management cluster gave no number.
    #[error("the management cluster gave no number for the write")]
    Hub(#[source] BoxError),
}

impl From<NumberError> for MemberError {
    fn from(error: NumberError) -> Self {
        match error {
            NumberError::SetBack(finding) => Self::SetBack { finding },
            NumberError::Hub(source) => Self::NoNumber { source },
        }
    }
}
