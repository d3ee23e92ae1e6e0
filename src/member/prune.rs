//! Deletes one object, if it is still the one that was applied.

use serde_json::json;
use starling_core::apply::{PruneVerdict, prune_verdict};
use starling_core::inventory::Entry;

use super::attempt::Attempt;
use super::call::{Call, METADATA, What};
use super::error::MemberError;
use super::metadata::Partial;
use super::paths;
use super::transport::Member;

/// What became of an entry.
pub(super) enum Pruned {
    /// The member was told to delete the object.
    Deleted,
    /// The object is gone already, or is not the one of the entry.
    Released,
}

impl Member {
    /// Looks at the live object, and deletes it with its UID as the precondition: an object that somebody creates between
    /// the two requests is not deleted.
    pub(super) async fn prune_object(
        &self,
        owner: &str,
        entry: &Entry,
        attempt: &Attempt,
    ) -> Result<Pruned, MemberError> {
        let key = &entry.key;
        let Some(resource) = self.resource_unversioned(&key.group, &key.kind, attempt).await? else {
            return Ok(Pruned::Released);
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
        let live = live.as_ref().map(|object| object.metadata.live());
        let PruneVerdict::Delete { uid } = prune_verdict(entry, live, owner) else {
            return Ok(Pruned::Released);
        };
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background",
            "preconditions": {"uid": uid}});
        let call = Call::delete(What::object("delete", key), path, options.to_string().into());
        match self.send(call, attempt).await {
            Ok(_) => Ok(Pruned::Deleted),
            Err(MemberError::NotFound { .. }) => Ok(Pruned::Released),
            // The precondition failed, among others: the entry stays, and the next attempt sees the new UID.
            Err(error) => Err(error),
        }
    }
}
