//! Deletes one object, if it is still the one that was applied.

use std::collections::BTreeSet;

use futures::FutureExt as _;
use serde::Deserialize;
use serde_json::json;
use starling_core::apply::{PruneVerdict, prune_verdict};
use starling_core::ids::{OwnerLabel, Uid};
use starling_core::inventory::InventoryEntry;
use starling_core::object::ObjectId;

use super::attempt::Attempt;
use super::batch::Batch;
use super::call::{Call, METADATA, Operation};
use super::error::MemberError;
use super::metadata::Partial;
use super::paths;
use super::transport::Member;

/// The way in which the object of an entry is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RemovalMode {
    /// The object is deleted.
    Delete {
        /// Whether the object was there when the deletions were counted.
        counted: bool,
        /// Whether the object was known to ask for an approval when the deletion was decided.
        confirmed: bool,
    },
    /// The object is given up, because it was there before Starling.
    Relinquish,
    /// The object is given up as it is, because a person keeps it.
    Release,
    /// The object is only read: a sibling is about to take it over.
    HandOver,
}

/// The result for an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pruned {
    /// The delete was sent, and the object is gone.
    Deleted,
    /// The delete was sent, and the object waits for its finalizers.
    Deleting,
    /// The object was deleted before, and waits for its finalizers.
    Terminating,
    /// The object is already gone, or is not the object of the entry.
    Released,
    /// The object is protected, or belongs to another owner by now.
    Kept,
    /// The object was not deleted, because a sibling is about to take it over.
    HandedOver,
    /// The object was not deleted: since the decision, it has appeared, or begun to ask for an approval. The next
    /// attempt decides.
    Undecided,
    /// The object was given up and not deleted.
    Relinquished,
}

/// The answer to a delete.
enum Answer {
    /// A status: the object is gone.
    Gone,
    /// The object, as it was, or as it waits for its finalizers.
    Object,
    /// There was no object.
    NotFound,
}

/// The kind of an answer.
#[derive(Deserialize)]
struct Answered<'a> {
    #[serde(borrow, default)]
    kind: &'a str,
}

/// The live state of an entry that is to be deleted.
pub(super) enum Prunable {
    /// The object would be deleted.
    Target(DeletionTarget),
    /// The object is gone, or is not the object of the entry.
    Gone,
    /// The object stays: it is protected, or belongs to this owner by now.
    Kept { owner: Option<OwnerLabel> },
}

/// The live object of an entry that is to be deleted.
pub(super) struct DeletionTarget {
    pub(super) path: String,
    pub(super) api_version: String,
    pub(super) uid: Uid,
    /// Whether the object is already being deleted.
    pub(super) terminating: bool,
    /// Whether an annotation asks for an approval.
    pub(super) asks: bool,
    /// The finalizers of the object.
    pub(super) finalizers: Vec<String>,
}

/// Entries whose objects are to be deleted.
#[derive(Debug, Default)]
pub(super) struct PendingDeletions {
    /// All of them.
    pub(super) entries: Vec<InventoryEntry>,
    /// The objects that are not being deleted yet, ordered by key.
    pub(super) begin: Vec<ObjectId>,
    /// Those of them that ask for an approval.
    pub(super) asking: BTreeSet<ObjectId>,
    /// Objects that are gone.
    pub(super) gone: BTreeSet<ObjectId>,
    /// Objects that stay, with the owner that they belong to by now.
    pub(super) kept: Vec<(ObjectId, Option<OwnerLabel>)>,
}

impl PendingDeletions {
    /// Returns the objects that were there.
    pub(super) fn found(&self) -> BTreeSet<ObjectId> {
        self.entries.iter().map(|entry| entry.key.clone()).collect()
    }

    /// Returns the objects that are being deleted already.
    pub(super) fn begun(&self) -> BTreeSet<ObjectId> {
        let keys = self.entries.iter().map(|entry| &entry.key);
        keys.filter(|key| self.begin.binary_search(key).is_err())
            .cloned()
            .collect()
    }
}

impl Member {
    /// Reads the live object, and deletes it or gives it up with its UID as the precondition: an object that is created
    /// between the two requests is left alone.
    pub(super) async fn prune_object(
        &self,
        owner: &OwnerLabel,
        entry: &InventoryEntry,
        removal: RemovalMode,
        attempt: &Attempt,
    ) -> Result<Pruned, MemberError> {
        let target = match self.prunable(owner, entry, attempt).await? {
            Prunable::Target(target) => target,
            Prunable::Gone => return Ok(Pruned::Released),
            Prunable::Kept { .. } => return Ok(Pruned::Kept),
        };
        match removal {
            RemovalMode::HandOver => Ok(Pruned::HandedOver),
            // Nothing can keep it any more.
            RemovalMode::Relinquish | RemovalMode::Release if target.terminating => Ok(Pruned::Terminating),
            RemovalMode::Relinquish => self.relinquish(&entry.key, &target, attempt).await,
            RemovalMode::Release => self.release(&entry.key, &target, attempt).await,
            RemovalMode::Delete { .. } if target.terminating => Ok(Pruned::Terminating),
            // No budget counted it, and no approved list has it: the cluster served an old state.
            RemovalMode::Delete { counted: false, .. } => Ok(Pruned::Undecided),
            // The annotation was set in the meantime: the next attempt asks for the approval.
            RemovalMode::Delete { confirmed: false, .. } if target.asks => Ok(Pruned::Undecided),
            RemovalMode::Delete { .. } => {
                let deleted = self
                    .delete_object(&entry.key, target.path, &target.uid, attempt)
                    .await?;
                match deleted {
                    Answer::Gone => Ok(Pruned::Deleted),
                    Answer::NotFound => Ok(Pruned::Released),
                    Answer::Object => Ok(match self.prunable(owner, entry, attempt).await? {
                        Prunable::Target(_) => Pruned::Deleting,
                        Prunable::Gone | Prunable::Kept { .. } => Pruned::Deleted,
                    }),
                }
            }
        }
    }

    /// Checks whether the object of an entry would be deleted.
    pub(super) async fn prunable(
        &self,
        owner: &OwnerLabel,
        entry: &InventoryEntry,
        attempt: &Attempt,
    ) -> Result<Prunable, MemberError> {
        let key = &entry.key;
        let Some(resource) = self.resource_unversioned(&key.group, &key.kind, attempt).await? else {
            self.check_gone(key, attempt).await?;
            return Ok(Prunable::Gone);
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
            PruneVerdict::Delete { uid } => Prunable::Target(DeletionTarget {
                path,
                api_version: resource.group_version.into_owned(),
                uid,
                terminating,
                asks,
                finalizers,
            }),
            PruneVerdict::Gone | PruneVerdict::Foreign => Prunable::Gone,
            PruneVerdict::Protected => Prunable::Kept { owner: None },
            PruneVerdict::HandedOver => Prunable::Kept {
                owner: live.and_then(|live| live.owner).map(OwnerLabel::new),
            },
        })
    }

    /// Finds the entries whose objects would be deleted. An object that cannot be read counts as one.
    pub(super) async fn pending_deletions(
        &self,
        owner: &OwnerLabel,
        entries: &[InventoryEntry],
        attempt: &Attempt,
    ) -> Result<PendingDeletions, MemberError> {
        let mut batch = Batch::new(self.limits().concurrency);
        for entry in entries {
            batch
                .begin(entry, self.prunable(owner, entry, attempt).boxed())
                .await;
        }
        let finished = batch.finish().await;
        finished.end.map_or(Ok(()), Err)?;
        let mut deletions = PendingDeletions::default();
        for (entry, found) in finished.results {
            let (terminating, asks) = match found {
                Ok(Prunable::Gone) => {
                    deletions.gone.insert(entry.key.clone());
                    continue;
                }
                Ok(Prunable::Kept { owner }) => {
                    deletions.kept.push((entry.key.clone(), owner));
                    continue;
                }
                Ok(Prunable::Target(target)) => (target.terminating, target.asks),
                Err(_) => (false, false),
            };
            if !terminating {
                deletions.begin.push(entry.key.clone());
                deletions.asking.extend(asks.then(|| entry.key.clone()));
            }
            deletions.entries.push(entry.clone());
        }
        deletions.begin.sort();
        Ok(deletions)
    }

    async fn delete_object(
        &self,
        key: &ObjectId,
        path: String,
        uid: &str,
        attempt: &Attempt,
    ) -> Result<Answer, MemberError> {
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background",
            "preconditions": {"uid": uid}});
        let operation = Operation::object("delete", key);
        match self
            .send(Call::delete(operation, path, options.to_string().into()), attempt)
            .await
        {
            Ok(response) => Ok(match response.parse::<Answered<'_>>(operation)?.kind {
                "Status" => Answer::Gone,
                _ => Answer::Object,
            }),
            Err(MemberError::NotFound { .. }) => Ok(Answer::NotFound),
            // For example, the precondition failed: the entry stays, and the next attempt reads the new UID.
            Err(error) => Err(error),
        }
    }
}
