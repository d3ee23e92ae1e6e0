//! Deletes one object, if it is still the one that was applied.

use std::collections::BTreeSet;

use futures::FutureExt as _;
use serde_json::json;
use starling_core::apply::{PruneVerdict, prune_verdict};
use starling_core::inventory::Entry;
use starling_core::object::ObjectId;

use super::attempt::Attempt;
use super::batch::Batch;
use super::call::{Call, METADATA, Operation};
use super::error::MemberError;
use super::metadata::Partial;
use super::paths;
use super::transport::Member;

/// What happens to the object of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Removal {
    /// It is deleted.
    Delete {
        /// Whether the object was known to ask for an approval when the deletion was decided.
        confirmed: bool,
    },
    /// It is given up, because it was there before Starling.
    LetGo,
    /// It is given up as it is, because a person keeps it.
    Release,
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
    /// The object was not deleted, because a sibling is about to take it over, or because it asks for an approval.
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
    /// Whether an annotation asks for an approval.
    pub(super) asks: bool,
    /// The finalizers of the object.
    pub(super) finalizers: Vec<String>,
}

/// Entries whose objects are to be deleted.
#[derive(Debug, Default)]
pub(super) struct Doomed {
    /// All of them.
    pub(super) entries: Vec<Entry>,
    /// The objects that are not being deleted yet, ordered by key.
    pub(super) begin: Vec<ObjectId>,
    /// Those of them that ask for an approval.
    pub(super) asking: BTreeSet<ObjectId>,
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
            Removal::Release => self.release(&entry.key, &target, attempt).await,
            Removal::Delete { .. } if target.terminating => Ok(Pruned::Terminating),
            // The annotation was set in the meantime: the next attempt asks for the approval.
            Removal::Delete { confirmed: false } if target.asks => Ok(Pruned::HandedOver),
            Removal::Delete { .. } => {
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
        let asks = live
            .as_ref()
            .is_some_and(|object| object.metadata.asks_to_confirm());
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
                asks,
                finalizers,
            }),
            PruneVerdict::Gone | PruneVerdict::Foreign | PruneVerdict::Protected => None,
        })
    }

    /// Finds the entries whose objects would be deleted. An object that cannot be read counts as one.
    pub(super) async fn doomed(
        &self,
        owner: &str,
        entries: &[Entry],
        attempt: &Attempt,
    ) -> Result<Doomed, MemberError> {
        let mut batch = Batch::new(self.limits().concurrency);
        for entry in entries {
            batch
                .begin(entry, self.prunable(owner, entry, attempt).boxed())
                .await;
        }
        let finished = batch.finish().await;
        finished.end.map_or(Ok(()), Err)?;
        let mut doomed = Doomed::default();
        for (entry, found) in finished.results {
            let (terminating, asks) = match found {
                Ok(None) => continue,
                Ok(Some(target)) => (target.terminating, target.asks),
                Err(_) => (false, false),
            };
            if !terminating {
                doomed.begin.push(entry.key.clone());
                doomed.asking.extend(asks.then(|| entry.key.clone()));
            }
            doomed.entries.push(entry.clone());
        }
        doomed.begin.sort();
        Ok(doomed)
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
