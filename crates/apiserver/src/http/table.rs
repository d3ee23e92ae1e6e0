//! Answers as a `Table`.

use super::request::Call;
use crate::status::Status;
use crate::store::Stored;
use crate::verbs::{Listing, Target};

pub(super) fn of_object(_call: &Call, _target: &Target, _stored: &Stored) -> Result<Vec<u8>, Status> {
    Err(Status::not_acceptable())
}

pub(super) fn of_list(_call: &Call, _target: &Target, _listing: &Listing) -> Result<Vec<u8>, Status> {
    Err(Status::not_acceptable())
}

pub(super) fn of_event(_target: &Target, _stored: &Stored) -> Result<Vec<u8>, Status> {
    Err(Status::not_acceptable())
}
