//! Deletes all objects of an owner on a member, when a Sync is deleted.
//!
//! Each object is checked by the same rules as in a prune, is deleted with its UID as the precondition, and leaves the
//! inventory only after the member confirms that it is gone. A caller that waits for the deletion therefore waits for
//! the objects too. After a crash, or if a finalizer blocks an object, the remaining inventory is the starting point of
//! the next attempt.

use std::collections::{BTreeMap, BTreeSet};

use futures::FutureExt as _;
use starling_core::apply::ApprovedDeletions;
use starling_core::apply::containers::is_container;
use starling_core::apply::{Confirmation, HeldDeletions, by_step, is_relinquished};
use starling_core::ids::OwnerLabel;
use starling_core::inventory::{Inventory, InventoryEntry};
use starling_core::object::{GroupKind, ObjectId};
use tokio::time::Instant;

use super::attempt::Attempt;
use super::batch::Batch;
use super::budget::{BudgetRequest, Budgets, DeletionRefusal, count, may_give_up};
use super::containers::{ContainerQuestion, ContainersInUse};
use super::error::MemberError;
use super::prune::{PendingDeletions, Pruned, RemovalMode};
use super::siblings::OtherOwner;
use super::transport::Member;

/// The objects to delete, and the rules for it.
#[derive(Clone, Copy, Debug)]
pub struct DeleteJob<'a> {
    /// The value of the owner label.
    pub owner: &'a OwnerLabel,
    /// Objects that siblings have applied or are about to apply: they are not deleted.
    pub siblings: &'a BTreeSet<ObjectId>,
    /// The other Syncs on the member.
    pub owners: &'a BTreeMap<OwnerLabel, OtherOwner>,
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
    /// would require an approval, or objects in them stay.
    pub relinquished: Vec<ObjectId>,
    /// Objects that have appeared since the decision, or ask for an approval since then, ordered by key. The next
    /// attempt decides.
    pub undecided: Vec<ObjectId>,
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
            && self.undecided.is_empty()
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
    Kept,
    Relinquished,
    Terminating,
    Undecided,
}

/// The objects of which an attempt may delete.
struct Decided {
    /// Those that were there, and were counted or are being deleted.
    counted: BTreeSet<ObjectId>,
    /// Those of them that ask for an approval.
    asking: BTreeSet<ObjectId>,
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
        outcome.undecided.sort();
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
        let mut inventory = self.canonical(inventory, None, attempt).await?;
        let entries = inventory.entries();
        let entries: Vec<InventoryEntry> = entries
            .filter(|entry| !job.siblings.contains(&entry.key))
            .collect();
        let found = self.pending_deletions(job.owner, &entries, attempt).await?;
        let in_use = self.keep_before_end(job, &mut inventory, &found, attempt).await?;
        let Some(decided) = self.may_delete(job, &inventory, found, outcome).await? else {
            return Ok(());
        };
        for (_, entries) in by_step(inventory.entries()) {
            // What the steps before have shown counts too.
            let keys = entries.iter().map(|entry| &entry.key);
            let entries: Vec<InventoryEntry> = keys.filter_map(|key| inventory.entry(key)).collect();
            let kept = self
                .delete_step(job, &entries, &decided, &in_use, attempt, outcome)
                .await?;
            self.keep_containers_of(&mut inventory, &kept, attempt).await?;
            // These objects may need the later ones to go.
            if !outcome.failures.is_empty()
                || !outcome.terminating.is_empty()
                || !outcome.undecided.is_empty()
            {
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

    /// Finds the containers of objects that stay, and records in the inventory that they are given up: a later attempt
    /// no longer has the objects in its inventory.
    async fn keep_before_end(
        &self,
        job: DeleteJob<'_>,
        inventory: &mut Inventory,
        found: &PendingDeletions,
        attempt: &Attempt,
    ) -> Result<ContainersInUse, MemberError> {
        let confirmation = Confirmation {
            kinds: job.confirm,
            objects: &found.asking,
        };
        let given_up = found.entries.iter();
        let given_up = given_up.filter(|entry| is_relinquished(entry, confirmation));
        let given_up = given_up.map(|entry| entry.key.clone());
        let staying: BTreeSet<ObjectId> = job.siblings.iter().cloned().chain(given_up).collect();
        let question = ContainerQuestion {
            owner: job.owner,
            inventory,
            found,
            staying: &staying,
            owners: job.owners,
        };
        let in_use = self.containers_in_use(question, attempt).await?;
        for container in &in_use.kept {
            inventory.adopt(container);
        }
        self.write_held(inventory, attempt).await?;
        Ok(in_use)
    }

    /// Counts the objects against the deletion budgets, unless they are approved. `None`: nothing may be deleted.
    async fn may_delete(
        &self,
        job: DeleteJob<'_>,
        inventory: &Inventory,
        mut found: PendingDeletions,
        outcome: &mut DeleteOutcome,
    ) -> Result<Option<Decided>, MemberError> {
        let asking = std::mem::take(&mut found.asking);
        let confirmation = Confirmation {
            kinds: job.confirm,
            objects: &asking,
        };
        // Only the member says which objects ask for an approval, and which containers are in use.
        let relinquished: BTreeSet<ObjectId> = inventory
            .entries()
            .filter(|entry| is_relinquished(entry, confirmation))
            .map(|entry| entry.key)
            .collect();
        found.entries.retain(|entry| !relinquished.contains(&entry.key));
        found.begin.retain(|key| !relinquished.contains(key));
        let counted = found.found();
        if found.begin.is_empty() {
            let refused = match relinquished.is_empty() {
                true => Ok(()),
                false => may_give_up(job.budgets, job.deadline).await,
            };
            match refused {
                Ok(()) | Err(DeletionRefusal::Held(_)) => return Ok(Some(Decided { asking, counted })),
                Err(DeletionRefusal::NotCounted(why)) => outcome.not_counted = Some(why),
                Err(DeletionRefusal::Stopped(why)) => outcome.stopped = Some(why),
            }
            return Ok(None);
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
            Ok(()) => return Ok(Some(Decided { asking, counted })),
            Err(DeletionRefusal::NotCounted(why)) => outcome.not_counted = Some(why),
            Err(DeletionRefusal::Stopped(why)) => outcome.stopped = Some(why),
            Err(DeletionRefusal::Held(excess)) => outcome.held = Some(held(Some(excess))),
        }
        Ok(None)
    }

    /// Deletes the objects of one step. Returns those that stay.
    async fn delete_step(
        &self,
        job: DeleteJob<'_>,
        entries: &[InventoryEntry],
        decided: &Decided,
        in_use: &ContainersInUse,
        attempt: &Attempt,
        outcome: &mut DeleteOutcome,
    ) -> Result<Vec<ObjectId>, MemberError> {
        let confirmation = Confirmation {
            kinds: job.confirm,
            objects: &decided.asking,
        };
        let mut batch = Batch::new(self.limits().concurrency);
        let mut kept = Vec::new();
        for entry in entries {
            if let Some(refusal) = in_use.refusal(&entry.key) {
                outcome.failures.push((entry.key.clone(), refusal));
                continue;
            }
            let removal = if job.siblings.contains(&entry.key) {
                RemovalMode::HandOver
            } else if is_relinquished(entry, confirmation) {
                RemovalMode::Relinquish
            } else {
                RemovalMode::Delete {
                    counted: decided.counted.contains(&entry.key),
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
                Ok(Removed::Kept) => {
                    kept.push(key.clone());
                    outcome.released.push(key.clone());
                }
                Ok(Removed::Relinquished) => {
                    kept.push(key.clone());
                    outcome.relinquished.push(key.clone());
                }
                Ok(Removed::Undecided) => outcome.undecided.push(key.clone()),
                Ok(Removed::Terminating) => outcome.terminating.push(key.clone()),
                Err(error) => outcome.failures.push((key.clone(), error)),
            }
        }
        finished.end.map_or(Ok(kept), Err)
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
            Pruned::Released => Removed::Released,
            Pruned::Kept | Pruned::HandedOver => Removed::Kept,
            Pruned::Undecided => Removed::Undecided,
            Pruned::Relinquished => Removed::Relinquished,
            Pruned::Terminating | Pruned::Deleting => Removed::Terminating,
            Pruned::Deleted => Removed::Gone,
        })
    }

    /// Records that the containers of objects that stay are given up.
    async fn keep_containers_of(
        &self,
        inventory: &mut Inventory,
        kept: &[ObjectId],
        attempt: &Attempt,
    ) -> Result<(), MemberError> {
        let containers = inventory.iter().map(|(key, _)| key);
        let containers: Vec<ObjectId> = containers.filter(|key| is_container(key)).cloned().collect();
        for container in containers {
            for key in kept {
                if self.contains(&container, key, attempt).await? {
                    inventory.adopt(&container);
                }
            }
        }
        Ok(())
    }
}
