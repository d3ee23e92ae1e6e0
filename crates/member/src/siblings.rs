//! Siblings that may keep an object; consulted before anything is deleted.

use std::collections::BTreeMap;
use std::fmt::Debug;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use starling_core::apply::SiblingObjects;
use starling_core::ids::OwnerLabel;

/// Another Sync on the member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherOwner {
    /// The name of the Sync, for messages.
    pub name: String,
    /// Whether all of its objects are being deleted, or will be, by its own rules: a container of them waits.
    pub goes: bool,
}

/// The other Syncs of the same owner on the same member. An object that moves from one Sync to another is handed over:
/// the first must not delete an object that the other has applied or is about to apply.
pub trait Siblings: Debug + Send + Sync {
    /// Returns the objects that siblings have applied or are about to apply.
    fn objects(&self) -> BoxFuture<'_, SiblingObjects>;

    /// Returns whether an owner label is one of this installation, and no Sync that keeps its objects has it on the
    /// member any more: the label alone does not keep an object.
    fn has_given_up(&self, owner: &str) -> bool;

    /// Returns all other Syncs of this installation on the member, by their owner labels.
    fn owners(&self) -> BTreeMap<OwnerLabel, OtherOwner>;
}

/// No siblings.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSiblings;

impl Siblings for NoSiblings {
    fn objects(&self) -> BoxFuture<'_, SiblingObjects> {
        async { SiblingObjects::nothing() }.boxed()
    }

    fn has_given_up(&self, _owner: &str) -> bool {
        false
    }

    fn owners(&self) -> BTreeMap<OwnerLabel, OtherOwner> {
        BTreeMap::new()
    }
}
