//! Takes everything of an owner off a member: what the deletion of a Sync means.
//!
//! Every object passes the same verdict as in a prune, is deleted with its UID as the precondition, and leaves the
//! inventory only once the member says that it is gone. So whoever waits for the deletion waits for the objects too, and a
//! crash or an object that holds its own deletion up leaves an inventory from which the next attempt goes on.

use std::collections::BTreeSet;

use futures::FutureExt as _;
use starling_core::apply::in_reverse;
use starling_core::inventory::Entry;
use starling_core::object::ObjectKey;
use tokio::time::Instant;

use super::attempt::Attempt;
use super::error::MemberError;
use super::lane::Lane;
use super::prune::Pruned;
use super::transport::Member;

/// What to take away.
#[derive(Clone, Copy, Debug)]
pub struct DeleteJob<'a> {
    /// The value of the owner label.
    pub owner: &'a str,
    /// Objects that other Syncs of the same owner hold or are about to hold: they stay.
    pub elsewhere: &'a BTreeSet<ObjectKey>,
    /// No request starts or waits beyond this.
    pub deadline: Instant,
}

/// What came of a [`DeleteJob`].
#[derive(Debug, Default)]
pub struct DeleteOutcome {
    /// Objects that are gone because the member was told to delete them, ordered by key.
    pub deleted: Vec<ObjectKey>,
    /// Objects that were gone already, are not ours, are protected, or belong to another Sync now, ordered by key.
    pub released: Vec<ObjectKey>,
    /// Objects that are deleted and wait for their finalizers, ordered by key.
    pub terminating: Vec<ObjectKey>,
    /// Objects that could not be deleted, ordered by key. One of them does not stop the others.
    pub failures: Vec<(ObjectKey, MemberError)>,
    /// Why the attempt ended early; objects that are in none of the lists were not tried.
    pub interrupted: Option<MemberError>,
}

impl DeleteOutcome {
    /// Whether nothing of the owner is left on the member.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.terminating.is_empty() && self.failures.is_empty() && self.interrupted.is_none()
    }
}

/// What became of one object.
enum Removed {
    Gone,
    Released,
    Terminating,
}

impl Member {
    /// Deletes what the inventory of an owner lists, last phase first, and then the inventory.
    pub async fn delete(&self, job: DeleteJob<'_>) -> DeleteOutcome {
        let attempt = Attempt::until(job.deadline);
        let mut outcome = DeleteOutcome::default();
        if let Err(error) = self.delete_all(job, &attempt, &mut outcome).await {
            outcome.interrupted = Some(error);
        }
        outcome.deleted.sort();
        outcome.released.sort();
        outcome.terminating.sort();
        outcome.failures.sort_by(|a, b| a.0.cmp(&b.0));
        outcome
    }

    async fn delete_all(
        &self,
        job: DeleteJob<'_>,
        attempt: &Attempt,
        outcome: &mut DeleteOutcome,
    ) -> Result<(), MemberError> {
        let mut stored = self.load_inventory(job.owner, attempt).await?;
        let entries = stored.inventory.iter().map(|(key, uid)| Entry {
            key: key.clone(),
            uid: uid.to_owned(),
        });
        for (_, entries) in in_reverse(entries.collect::<Vec<_>>()) {
            self.delete_phase(job, &entries, attempt, outcome).await?;
        }
        let mut left = stored.inventory.clone();
        for key in outcome.deleted.iter().chain(&outcome.released) {
            left.remove(key);
        }
        self.store_inventory(job.owner, &mut stored, &left, attempt).await
    }

    async fn delete_phase(
        &self,
        job: DeleteJob<'_>,
        entries: &[Entry],
        attempt: &Attempt,
        outcome: &mut DeleteOutcome,
    ) -> Result<(), MemberError> {
        let mut lane = Lane::new(self.limits().concurrency);
        for entry in entries {
            let spared = job.elsewhere.contains(&entry.key);
            let removal = self.remove_object(job.owner, entry, spared, attempt);
            lane.begin(&entry.key, removal.boxed()).await;
        }
        let tried = lane.finish().await;
        for (key, result) in tried.results {
            match result {
                Ok(Removed::Gone) => outcome.deleted.push(key.clone()),
                Ok(Removed::Released) => outcome.released.push(key.clone()),
                Ok(Removed::Terminating) => outcome.terminating.push(key.clone()),
                Err(error) => outcome.failures.push((key.clone(), error)),
            }
        }
        tried.end.map_or(Ok(()), Err)
    }

    /// Deletes one object and looks whether it is gone: the answer to a delete does not tell that for every kind.
    async fn remove_object(
        &self,
        owner: &str,
        entry: &Entry,
        spared: bool,
        attempt: &Attempt,
    ) -> Result<Removed, MemberError> {
        match self.prune_object(owner, entry, spared, attempt).await? {
            Pruned::Released | Pruned::Spared => return Ok(Removed::Released),
            Pruned::Terminating => return Ok(Removed::Terminating),
            Pruned::Deleted => {}
        }
        Ok(match self.prune_object(owner, entry, true, attempt).await? {
            Pruned::Released => Removed::Gone,
            Pruned::Spared | Pruned::Terminating | Pruned::Deleted => Removed::Terminating,
        })
    }
}
