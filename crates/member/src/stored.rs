//! The inventory of one owner as it is stored on the member.

use serde::Deserialize;
use starling_core::ids::{OwnerLabel, Uid};
use starling_core::inventory::Inventory;
use starling_core::restore::WriteNumber;

/// An inventory and the versions of its shards on the member.
#[derive(Debug, Default)]
pub(super) struct Stored {
    pub(super) inventory: Inventory,
    /// The number of the last write, which the first shard gets with each write of it.
    pub(super) number: Option<WriteNumber>,
    /// The text of the first shard.
    pub(super) first: String,
    /// The version of each shard, as last read or written.
    pub(super) versions: Vec<Version>,
}

/// The version of an object; both fields are empty if it does not exist. Sent with a write, so that the member rejects
/// an update of a changed object (`resourceVersion`) and a new creation of a deleted one (`uid`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Version {
    pub(super) uid: Uid,
    pub(super) resource_version: String,
}

/// The inventory that an attempt has read, and that it keeps up to date.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) owner: OwnerLabel,
    pub(super) stored: Stored,
}
