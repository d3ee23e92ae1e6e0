//! Deletes one object, if it is still the one that was applied.

use serde_json::json;
use starling_core::apply::{PruneVerdict, prune_verdict};
use starling_core::inventory::Entry;
use starling_core::object::ObjectKey;

use super::attempt::Attempt;
use super::call::{Call, METADATA, What};
use super::error::MemberError;
use super::metadata::Partial;
use super::paths;
use super::transport::Member;

/// What became of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pruned {
    /// The member was told to delete the object; it may wait for its finalizers.
    Deleted,
    /// The object was deleted before, and waits for its finalizers.
    Terminating,
    /// The object is gone already, is not the one of the entry, or is protected.
    Released,
    /// The object would have been deleted, but another Sync is about to take it over.
    Spared,
}

/// The live object of an entry that is to be deleted.
pub(super) struct Doomed {
    path: String,
    uid: String,
    /// Somebody deleted it before.
    pub(super) terminating: bool,
}

impl Member {
    /// Looks at the live object, and deletes it with its UID as the precondition: an object that somebody creates between
    /// the two requests is not deleted. One that is `spared` is only looked at.
    pub(super) async fn prune_object(
        &self,
        owner: &str,
        entry: &Entry,
        spared: bool,
        attempt: &Attempt,
    ) -> Result<Pruned, MemberError> {
        let Some(doomed) = self.prunable(owner, entry, attempt).await? else {
            return Ok(Pruned::Released);
        };
        match (spared, doomed.terminating) {
            (true, _) => Ok(Pruned::Spared),
            (false, true) => Ok(Pruned::Terminating),
            (false, false) => {
                self.delete_object(&entry.key, doomed.path, &doomed.uid, attempt)
                    .await
            }
        }
    }

    /// Looks whether the object of an entry would be deleted; `None`: it is gone, is not the one of the entry, or is protected.
    pub(super) async fn prunable(
        &self,
        owner: &str,
        entry: &Entry,
        attempt: &Attempt,
    ) -> Result<Option<Doomed>, MemberError> {
        let key = &entry.key;
        let Some(resource) = self.resource_unversioned(&key.group, &key.kind, attempt).await? else {
            return Ok(None);
        };
        let path = paths::object(&resource, key)?;
        let get = What::object("get", key);
        let answer = match self.send(Call::get(get, path.clone(), METADATA), attempt).await {
            Ok(answer) => Some(answer),
            Err(MemberError::NotFound { .. }) => None,
            Err(error) => {
                if matches!(error, MemberError::NotServed { .. }) {
                    self.kinds().forget(&resource.group_version);
                }
                return Err(error);
            }
        };
        let live: Option<Partial<'_>> = answer.as_ref().map(|answer| answer.parse(get)).transpose()?;
        if let Some(live) = &live {
            live.metadata.check(key, get)?;
        }
        let terminating = live
            .as_ref()
            .is_some_and(|object| object.metadata.is_terminating());
        let live = live.as_ref().map(|object| object.metadata.live());
        Ok(match prune_verdict(entry, live, owner) {
            PruneVerdict::Delete { uid } => Some(Doomed {
                path,
                uid,
                terminating,
            }),
            PruneVerdict::Gone | PruneVerdict::Foreign | PruneVerdict::Protected => None,
        })
    }

    async fn delete_object(
        &self,
        key: &ObjectKey,
        path: String,
        uid: &str,
        attempt: &Attempt,
    ) -> Result<Pruned, MemberError> {
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background",
            "preconditions": {"uid": uid}});
        let what = What::object("delete", key);
        match self
            .send(Call::delete(what, path, options.to_string().into()), attempt)
            .await
        {
            Ok(_) => Ok(Pruned::Deleted),
            Err(MemberError::NotFound { .. }) => Ok(Pruned::Released),
            // The precondition failed, among others: the entry stays, and the next attempt sees the new UID.
            Err(error) => Err(error),
        }
    }
}
