//! Deletes one object, if it is still the one that was applied.

use serde_json::json;
use starling_core::apply::{PruneVerdict, prune_verdict};
use starling_core::inventory::Entry;
use starling_core::object::ObjectId;

use super::attempt::Attempt;
use super::call::{Call, METADATA, Operation};
use super::error::MemberError;
use super::metadata::Partial;
use super::paths;
use super::transport::Member;

/// What happens to the object of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Removal {
    /// It is deleted.
    Delete,
    /// It is given up.
    LetGo,
    /// It is only read: a sibling is about to take it over.
    HandOver,
}

/// The result for an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pruned {
    /// The delete was sent; the object may wait for its finalizers.
    Deleted,
    /// The object was deleted before, and waits for its finalizers.
    Terminating,
    /// The object is already gone, is not the object of the entry, or is protected.
    Released,
    /// The object was not deleted, because a sibling is about to take it over.
    HandedOver,
    /// The object was given up and not deleted.
    LetGo,
}

/// The live object of an entry that is to be deleted.
pub(super) struct DeletionTarget {
    pub(super) path: String,
    pub(super) api_version: String,
    pub(super) uid: String,
    /// Whether the object is already being deleted.
    pub(super) terminating: bool,
    /// The finalizers of the object.
    pub(super) finalizers: Vec<String>,
}

impl Member {
    /// Reads the live object, and deletes it or gives it up with its UID as the precondition: an object that is created
    /// between the two requests is left alone.
    pub(super) async fn prune_object(
        &self,
        owner: &str,
        entry: &Entry,
        removal: Removal,
        attempt: &Attempt,
    ) -> Result<Pruned, MemberError> {
        let Some(target) = self.prunable(owner, entry, attempt).await? else {
            return Ok(Pruned::Released);
        };
        match removal {
            Removal::HandOver => Ok(Pruned::HandedOver),
            Removal::LetGo => self.let_go(&entry.key, &target, attempt).await,
            Removal::Delete if target.terminating => Ok(Pruned::Terminating),
            Removal::Delete => {
                self.delete_object(&entry.key, target.path, &target.uid, attempt)
                    .await
            }
        }
    }

    /// Checks whether the object of an entry would be deleted. `None`: it is gone, is not the object of the entry, or
    /// is protected.
    pub(super) async fn prunable(
        &self,
        owner: &str,
        entry: &Entry,
        attempt: &Attempt,
    ) -> Result<Option<DeletionTarget>, MemberError> {
        let key = &entry.key;
        let Some(resource) = self.resource_unversioned(&key.group, &key.kind, attempt).await? else {
            self.check_gone(key, attempt).await?;
            return Ok(None);
        };
        let path = paths::object(&resource, key)?;
        let get = Operation::object("get", key);
        let response = match self.send(Call::get(get, path.clone(), METADATA), attempt).await {
            Ok(response) => Some(response),
            Err(MemberError::NotFound { .. }) => None,
            Err(error) => {
                if matches!(error, MemberError::NotServed { .. }) {
                    self.kinds().forget(&resource.group_version);
                }
                return Err(error);
            }
        };
        let live: Option<Partial<'_>> = response
            .as_ref()
            .map(|response| response.parse(get))
            .transpose()?;
        if let Some(live) = &live {
            live.metadata.check(key, get)?;
        }
        let terminating = live
            .as_ref()
            .is_some_and(|object| object.metadata.is_terminating());
        let finalizers = live
            .as_ref()
            .map(|object| object.metadata.finalizers.clone())
            .unwrap_or_default();
        let live = live.as_ref().map(|object| object.metadata.live());
        Ok(match prune_verdict(entry, live, owner) {
            PruneVerdict::Delete { uid } => Some(DeletionTarget {
                path,
                api_version: resource.group_version.into_owned(),
                uid,
                terminating,
                finalizers,
            }),
            PruneVerdict::Gone | PruneVerdict::Foreign | PruneVerdict::Protected => None,
        })
    }

    async fn delete_object(
        &self,
        key: &ObjectId,
        path: String,
        uid: &str,
        attempt: &Attempt,
    ) -> Result<Pruned, MemberError> {
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background",
            "preconditions": {"uid": uid}});
        let operation = Operation::object("delete", key);
        match self
            .send(Call::delete(operation, path, options.to_string().into()), attempt)
            .await
        {
            Ok(_) => Ok(Pruned::Deleted),
            Err(MemberError::NotFound { .. }) => Ok(Pruned::Released),
            // For example, the precondition failed: the entry stays, and the next attempt reads the new UID.
            Err(error) => Err(error),
        }
    }
}
