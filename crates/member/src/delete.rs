//! Deletes all objects of an owner on a member, when a Sync is deleted.
//!
//! Each object is checked by the same rules as in a prune, is deleted with its UID as the precondition, and leaves the
//! inventory only after the member confirms that it is gone. A caller that waits for the deletion therefore waits for
//! the objects too. After a crash, or if a finalizer blocks an object, the remaining inventory is the starting point of
//! the next attempt.

use std::collections::BTreeSet;

use futures::FutureExt as _;
use starling_core::apply::ApprovedDeletions;
use starling_core::apply::{Confirmation, HeldDeletions, by_step, is_relinquished};
use starling_core::ids::OwnerLabel;
use starling_core::inventory::{Inventory, InventoryEntry};
use starling_core::object::{GroupKind, ObjectId};
use tokio::time::Instant;

use super::attempt::Attempt;
use super::batch::Batch;
use super::budget::{BudgetRequest, Budgets, DeletionRefusal, count};
use super::error::MemberError;
use super::prune::{Pruned, RemovalMode};
use super::transport::Member;

/// The objects to delete, and the rules for it.
#[derive(Clone, Copy, Debug)]
pub struct DeleteJob<'a> {
    /// The value of the owner label.
    pub owner: &'a OwnerLabel,
    /// Objects that siblings have applied or are about to apply: they are not deleted.
    pub siblings: &'a BTreeSet<ObjectId>,
    /// The deletion budgets.
    pub budgets: &'a dyn Budgets,
    /// The kinds that an operator added to those whose deletion requires an approval.
    pub confirm: &'a BTreeSet<GroupKind>,
    /// The approvals of the deletions.
    pub approval: ApprovedDeletions<'a>,
    /// No request starts or waits beyond this.
    pub deadline: Instant,
}

/// The result of a [`DeleteJob`].
#[derive(Debug, Default)]
pub struct DeleteOutcome {
    /// Objects that were deleted and are gone, ordered by key.
    pub deleted: Vec<ObjectId>,
    /// Objects that were gone already, that Starling does not own, that are protected, or that another Sync keeps,
    /// ordered by key.
    pub released: Vec<ObjectId>,
    /// Objects that were given up and not deleted, ordered by key: they were there before Starling, and their deletion
    /// would require an approval.
    pub relinquished: Vec<ObjectId>,
    /// Objects that are deleted and wait for their finalizers, ordered by key.
    pub terminating: Vec<ObjectId>,
    /// Objects that could not be deleted, ordered by key. One of them does not stop the others of its step.
    pub failures: Vec<(ObjectId, MemberError)>,
    /// Deletions that exceed a deletion budget: nothing was deleted.
    pub held: Option<HeldDeletions>,
    /// Why the deletions cannot be counted against the deletion budgets: nothing was deleted.
    pub not_counted: Option<String>,
    /// Why the group deletes nothing now: nothing was deleted.
    pub stopped: Option<String>,
    /// Why the attempt ended early. Objects in none of the lists were not attempted.
    pub interrupted: Option<MemberError>,
}

impl DeleteOutcome {
    /// Whether the member has no object of the owner any more.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.terminating.is_empty()
            && self.failures.is_empty()
            && self.interrupted.is_none()
            && self.held.is_none()
            && self.not_counted.is_none()
            && self.stopped.is_none()
    }
}

/// The result for one object.
enum Removed {
    Gone,
    Released,
    Relinquished,
    Terminating,
}

impl Member {
    /// Deletes the objects in the inventory of an owner, step by step, and then the inventory. A step begins once the
    /// objects of the steps before it are gone: until then, the caller has to call again.
    pub async fn delete(&self, job: DeleteJob<'_>) -> DeleteOutcome {
        let attempt = Attempt::until(job.deadline);
        let mut outcome = DeleteOutcome::default();
        if let Err(error) = self.delete_all(job, &attempt, &mut outcome).await {
            outcome.interrupted = Some(error);
        }
        outcome.deleted.sort();
        outcome.released.sort();
        outcome.relinquished.sort();
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
        let inventory = self.hold_inventory(job.owner, attempt).await?;
        let Some(asking) = self.may_delete(job, &inventory, attempt, outcome).await? else {
            return Ok(());
        };
        let confirmation = Confirmation {
            kinds: job.confirm,
            objects: &asking,
        };
        for (_, entries) in by_step(inventory.entries()) {
            self.delete_step(job, &entries, confirmation, attempt, outcome)
                .await?;
            // These objects may need the later ones to go.
            if !outcome.failures.is_empty() || !outcome.terminating.is_empty() {
                break;
            }
        }
        let mut remaining = inventory;
        let left = outcome.deleted.iter().chain(&outcome.released);
        for key in left.chain(&outcome.relinquished) {
            remaining.remove(key);
        }
        self.write_held(&remaining, attempt).await
    }

    /// Counts the objects against the deletion budgets, unless they are approved. Returns the objects that ask for an
    /// approval; `None`: nothing may be deleted.
    async fn may_delete(
        &self,
        job: DeleteJob<'_>,
        inventory: &Inventory,
        attempt: &Attempt,
        outcome: &mut DeleteOutcome,
    ) -> Result<Option<BTreeSet<ObjectId>>, MemberError> {
        let of_kind = Confirmation {
            kinds: job.confirm,
            ..Confirmation::default()
        };
        let entries = inventory.entries();
        let entries: Vec<InventoryEntry> = entries
            .filter(|entry| !job.siblings.contains(&entry.key) && !is_relinquished(entry, of_kind))
            .collect();
        let mut found = self.pending_deletions(job.owner, &entries, attempt).await?;
        let asking = std::mem::take(&mut found.asking);
        let confirmation = Confirmation {
            kinds: job.confirm,
            objects: &asking,
        };
        // Only the member says which objects ask for an approval.
        let relinquished: BTreeSet<ObjectId> = entries
            .iter()
            .filter(|entry| is_relinquished(entry, confirmation))
            .map(|entry| entry.key.clone())
            .collect();
        found.entries.retain(|entry| !relinquished.contains(&entry.key));
        found.begin.retain(|key| !relinquished.contains(key));
        if found.begin.is_empty() {
            return Ok(Some(asking));
        }
        let subject = job.approval.subject;
        let held =
            |excess| HeldDeletions::new(subject, &found.entries, inventory.len(), confirmation, excess);
        let digest = subject.digest(&found.entries);
        let approved = job.approval.digests.contain(&digest).then_some(&*digest);
        let granted = job.budgets.granted();
        let mut begin = found.begin.iter();
        let asks = |key: &ObjectId| confirmation.is_required_at_the_end(key) && !granted.is_approved(key);
        if approved.is_none() && begin.any(asks) {
            outcome.held = Some(held(None));
            return Ok(None);
        }
        let list: Vec<ObjectId> = found.entries.iter().map(|entry| entry.key.clone()).collect();
        let request = BudgetRequest {
            list: &list,
            begin: &found.begin,
            remaining: 0,
            approved,
        };
        match count(job.budgets, request, job.deadline).await {
            Ok(()) => return Ok(Some(asking)),
            Err(DeletionRefusal::NotCounted(why)) => outcome.not_counted = Some(why),
            Err(DeletionRefusal::Stopped(why)) => outcome.stopped = Some(why),
            Err(DeletionRefusal::Held(excess)) => outcome.held = Some(held(Some(excess))),
        }
        Ok(None)
    }

    async fn delete_step(
        &self,
        job: DeleteJob<'_>,
        entries: &[InventoryEntry],
        confirmation: Confirmation<'_>,
        attempt: &Attempt,
        outcome: &mut DeleteOutcome,
    ) -> Result<(), MemberError> {
        let mut batch = Batch::new(self.limits().concurrency);
        for entry in entries {
            let removal = if job.siblings.contains(&entry.key) {
                RemovalMode::HandOver
            } else if is_relinquished(entry, confirmation) {
                RemovalMode::Relinquish
            } else {
                RemovalMode::Delete {
                    confirmed: confirmation.objects.contains(&entry.key),
                }
            };
            let removed = self.remove_object(job.owner, entry, removal, attempt);
            batch.begin(&entry.key, removed.boxed()).await;
        }
        let finished = batch.finish().await;
        for (key, result) in finished.results {
            match result {
                Ok(Removed::Gone) => outcome.deleted.push(key.clone()),
                Ok(Removed::Released) => outcome.released.push(key.clone()),
                Ok(Removed::Relinquished) => outcome.relinquished.push(key.clone()),
                Ok(Removed::Terminating) => outcome.terminating.push(key.clone()),
                Err(error) => outcome.failures.push((key.clone(), error)),
            }
        }
        finished.end.map_or(Ok(()), Err)
    }

    /// Deletes one object.
    async fn remove_object(
        &self,
        owner: &OwnerLabel,
        entry: &InventoryEntry,
        removal: RemovalMode,
        attempt: &Attempt,
    ) -> Result<Removed, MemberError> {
        Ok(match self.prune_object(owner, entry, removal, attempt).await? {
            Pruned::Released | Pruned::HandedOver => Removed::Released,
            Pruned::Relinquished => Removed::Relinquished,
            Pruned::Terminating | Pruned::Deleting => Removed::Terminating,
            Pruned::Deleted => Removed::Gone,
        })
    }
}
