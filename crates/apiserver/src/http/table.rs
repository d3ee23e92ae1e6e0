//! Answers as a `Table`, for `kubectl get`.
//!
//! None can be had yet ([`super::negotiate`] does not offer the shape), so that clients get what they take instead:
//! kubectl then makes its own columns, name and age.

use super::request::Call;
use crate::status::Status;
use crate::store::Stored;
use crate::verbs::{Listing, Target};

/// The answer that is one object.
pub(super) fn of_object(_call: &Call, _target: &Target, _stored: &Stored) -> Result<Vec<u8>, Status> {
    Err(Status::not_acceptable())
}

/// The answer that is a list.
pub(super) fn of_list(_call: &Call, _target: &Target, _listing: &Listing) -> Result<Vec<u8>, Status> {
    Err(Status::not_acceptable())
}

/// The object of an event.
pub(super) fn of_event(_target: &Target, _stored: &Stored) -> Result<Vec<u8>, Status> {
    Err(Status::not_acceptable())
}
