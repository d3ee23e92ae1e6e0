//! Applies the objects of a Sync to a member: the one place that writes a Sync's objects.
//!
//! The steps: read the inventory, plan, claim in the inventory, apply phase by phase, prune, write the inventory. Each
//! step leaves the member in a state from which the next attempt continues. Applied objects are returned even if the
//! attempt ends early.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::FutureExt as _;
use starling_core::apply::ApprovedDeletions;
use starling_core::apply::{
    ApplyInput, ApplyPlan, ApplyStep, Confirmation, Grace, Guard, HeldDeletions, Options, PruneBlocker,
    Record, SiblingObjects, left_over, never_prunes, plan,
};
use starling_core::deletion_budget::Earlier;
use starling_core::ids::OwnerLabel;
use starling_core::inventory::{Inventory, InventoryEntry};
use starling_core::object::{DeletionStep, GroupKind, ObjectId, RenderedSet};
use tokio::time::Instant;

use super::attempt::Attempt;
use super::batch::Batch;
use super::budget::{BudgetRequest, Budgets, DeletionRefusal, count, may_give_up};
use super::containers::{ContainersInUse, LeftBehind};
use super::definitions::Definitions;
use super::error::MemberError;
use super::outcome::ApplyOutcome;
use super::prune::{DeletionTarget, PendingDeletions, Prunable, Pruned, RemovalMode};
use super::siblings::Siblings;
use super::transport::Member;
use super::wait::Pauses;

/// The longest wait for deleted objects to be gone. Most finalizers run within seconds. The attempt occupies a worker
/// of the member meanwhile, which other Syncs need; a later attempt continues.
const GONE: Duration = Duration::from_secs(10);

/// The longest wait for the objects that are deleted last: definitions and other objects without content of their own
/// are gone within a second.
const SOON: Duration = Duration::from_secs(2);

/// The objects to apply, and the knowledge about them.
#[derive(Clone, Copy, Debug)]
pub struct ApplyJob<'a> {
    /// The value of the owner label, which the bodies of `desired` carry already.
    pub owner: &'a OwnerLabel,
    /// The complete render, with the IDs of this member: [`Member::scoped`].
    pub desired: &'a RenderedSet,
    /// The records of the last applies of this owner to this member.
    pub records: &'a BTreeMap<ObjectId, Record>,
    /// The findings of [`Member::find_drift`].
    pub drifted: &'a BTreeSet<ObjectId>,
    /// Objects that other owners keep, with the owner. They are not written.
    pub kept: &'a BTreeMap<ObjectId, String>,
    /// Objects that other owners had until now, with these owners. Their inventories say where the objects come from.
    pub former: &'a BTreeMap<ObjectId, BTreeSet<OwnerLabel>>,
    /// Whether every object is compared with the member, whatever its record says.
    pub compare: bool,
    /// Whether objects that are no longer rendered are deleted.
    pub prune: bool,
    /// Whether a render without objects is intended.
    pub allow_empty: bool,
    /// Whether an object that Starling does not own yet is applied by force, which takes fields from other managers.
    pub conflicts_override: bool,
    /// Whether an object is recreated if a changed field of it is immutable.
    pub recreate: bool,
    /// The Syncs that may take over objects that left the render.
    pub siblings: &'a dyn Siblings,
    /// The deletions of the Sync within the window.
    pub earlier: Earlier<'a>,
    /// The deletion budgets.
    pub budgets: &'a dyn Budgets,
    /// The kinds that an operator added to those whose deletion requires an approval.
    pub confirm: &'a BTreeSet<GroupKind>,
    /// The time between the first render that lacks an object and its deletion.
    pub grace: Grace<'a>,
    /// The approvals of deletions.
    pub approval: ApprovedDeletions<'a>,
    /// No request starts or waits beyond this.
    pub deadline: Instant,
}

impl Member {
    /// Applies a render, prunes, and writes the inventory: see the module. An object in step costs no request, unless
    /// all are compared.
    ///
    /// If the attempt ends early, running requests are awaited, so that each has a known result.
    pub async fn apply(&self, job: ApplyJob<'_>) -> ApplyOutcome {
        let attempt = Attempt::until(job.deadline);
        let mut outcome = ApplyOutcome::default();
        let member = self.keeping(&job.desired.secrets);
        if let Err(error) = member.run(job, &attempt, &mut outcome).await {
            outcome.interrupted = Some(error);
        }
        outcome.has_written = attempt.has_written();
        outcome.sort();
        outcome
    }

    async fn run(
        &self,
        job: ApplyJob<'_>,
        attempt: &Attempt,
        outcome: &mut ApplyOutcome,
    ) -> Result<(), MemberError> {
        let before = self.hold_inventory(job.owner, attempt).await?;
        let mut before = self.canonical(before, Some(job.desired), attempt).await?;
        outcome.inventory.clone_from(&before);
        outcome.inventory_was_empty = before.is_empty();
        let siblings = siblings_objects(job, &before).await;
        let pending = self
            .left_behind(
                job.owner,
                job.desired,
                options_of(job),
                &before,
                &siblings,
                attempt,
            )
            .await?;
        let confirmation = Confirmation {
            kinds: job.confirm,
            objects: &pending.asking,
        };
        let begun = pending.begun();
        let question = LeftBehind {
            owner: job.owner,
            desired: job.desired,
            siblings: &siblings,
            pending: &pending,
            confirmation,
            grace: job.grace,
        };
        let in_use = self
            .keep_before_prune(question, job.siblings, &mut before, attempt)
            .await?;
        let plan = plan_of(job, &before, &siblings, (&begun, &pending.gone), confirmation);
        outcome.skipped = plan.skipped.len();
        outcome.prune_blocker.clone_from(&plan.prune_blocker);
        outcome.left_alone = plan.left_alone.iter().map(|key| (*key).clone()).collect();
        outcome
            .failures
            .extend(plan.kept.iter().map(|(key, by)| owned_by_other(key, by)));
        // Claim before the first write: if the process dies from here on, the next attempt knows which objects may
        // exist on the member.
        if !in_use.kept.is_empty() || !plan.claim.claims_the_same(&before) {
            self.write_held(&plan.claim, attempt).await?;
            outcome.inventory.clone_from(&plan.claim);
        }
        // An error that ends the attempt skips the write of the inventory, which would fail too. The claim covers every
        // written object, the records have the UIDs, and the next attempt finds deleted objects gone.
        self.write_objects(job, &plan, confirmation, &in_use, attempt, outcome)
            .await?;
        self.keep_origins(job, attempt, outcome).await;
        let mut claim = plan.claim;
        if let Some(PruneBlocker::Stopped(_) | PruneBlocker::NotGone(_)) = &outcome.prune_blocker {
            // The target is applied, and only the inventory says that something is left to delete.
            let waiting = plan.prune.into_iter().flat_map(|(_, entries)| entries);
            let waiting = waiting.chain(plan.relinquished);
            for entry in job.grace.begin(waiting.collect(), &before) {
                claim.set_left_at(&entry.key, entry.listed.left_at);
                claim.hold(&entry.key, entry.listed.held_of);
            }
        }
        self.keep_inventory(claim, attempt, outcome).await
    }

    /// Applies all phases and, if nothing failed, prunes.
    async fn write_objects(
        &self,
        job: ApplyJob<'_>,
        plan: &ApplyPlan<'_>,
        confirmation: Confirmation<'_>,
        in_use: &ContainersInUse,
        attempt: &Attempt,
        outcome: &mut ApplyOutcome,
    ) -> Result<(), MemberError> {
        let steps = plan.apply.iter().flat_map(|(_, steps)| steps);
        let mut definitions = Definitions::needed(job.desired, steps);
        for (_, steps) in &plan.apply {
            let (ready, waiting) = self.partition(&definitions, steps, outcome);
            self.apply_phase(job, &ready, attempt, outcome).await?;
            let ready = self
                .await_definitions(&mut definitions, waiting, attempt, outcome)
                .await?;
            self.apply_phase(job, &ready, attempt, outcome).await?;
        }
        if !outcome.failures.is_empty() {
            return Ok(());
        }
        let owner = job.owner;
        self.prune_phase(owner, &plan.handed_over, RemovalMode::HandOver, attempt, outcome)
            .await?;
        self.prune_phase(owner, &plan.undeleted, RemovalMode::Release, attempt, outcome)
            .await?;
        outcome.undeleted = std::mem::take(&mut outcome.relinquished);
        let Some(counted) = self.may_prune(job, plan, confirmation, attempt, outcome).await? else {
            return Ok(());
        };
        self.prune_phase(
            owner,
            &plan.relinquished,
            RemovalMode::Relinquish,
            attempt,
            outcome,
        )
        .await?;
        self.prune_steps(
            owner,
            &plan.prune,
            (&counted, confirmation),
            in_use,
            attempt,
            outcome,
        )
        .await
    }

    /// Deletes what left git, step by step.
    async fn prune_steps(
        &self,
        owner: &OwnerLabel,
        prune: &[(DeletionStep, Vec<InventoryEntry>)],
        (counted, confirmation): (&BTreeSet<ObjectId>, Confirmation<'_>),
        in_use: &ContainersInUse,
        attempt: &Attempt,
        outcome: &mut ApplyOutcome,
    ) -> Result<(), MemberError> {
        let steps = prune.len();
        for (index, (_, entries)) in prune.iter().enumerate() {
            let entries = self.unused(entries, in_use, attempt, outcome).await?;
            let (asking, others): (Vec<InventoryEntry>, Vec<InventoryEntry>) = entries
                .iter()
                .cloned()
                .partition(|entry| confirmation.objects.contains(&entry.key));
            for (entries, confirmed) in [(asking, true), (others, false)] {
                let (found, missing): (Vec<InventoryEntry>, Vec<InventoryEntry>) = entries
                    .into_iter()
                    .partition(|entry| counted.contains(&entry.key));
                for (entries, counted) in [(found, true), (missing, false)] {
                    let removal = RemovalMode::Delete { counted, confirmed };
                    self.prune_phase(owner, &entries, removal, attempt, outcome)
                        .await?;
                }
            }
            if index + 1 < steps {
                self.await_gone(owner, &entries, attempt, outcome).await?;
            } else {
                self.await_last(owner, &entries, attempt, outcome).await?;
            }
            // These objects may need the later ones to go.
            if !outcome.failures.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Returns the entries without the containers that are in use. Those of objects that were found to stay only now
    /// are decided by the next attempt.
    async fn unused(
        &self,
        entries: &[InventoryEntry],
        in_use: &ContainersInUse,
        attempt: &Attempt,
        outcome: &mut ApplyOutcome,
    ) -> Result<Vec<InventoryEntry>, MemberError> {
        let mut unused = Vec::new();
        for entry in entries {
            let mut refusal = in_use.refusal(&entry.key);
            for key in &outcome.kept_now {
                if refusal.is_none() && self.contains(&entry.key, key, attempt).await? {
                    refusal = Some(MemberError::InUse {
                        object: entry.key.clone(),
                        why: format!("{key} in it stays"),
                    });
                }
            }
            match refusal {
                Some(refusal) => outcome.failures.push((entry.key.clone(), refusal)),
                None => unused.push(entry.clone()),
            }
        }
        Ok(unused)
    }

    /// Finds the objects that left git, and which of them ask for an approval or are being deleted already. The member
    /// is asked, because only it knows.
    pub(super) async fn left_behind(
        &self,
        owner: &OwnerLabel,
        desired: &RenderedSet,
        options: Options,
        inventory: &Inventory,
        siblings: &SiblingObjects,
        attempt: &Attempt,
    ) -> Result<PendingDeletions, MemberError> {
        let SiblingObjects::Known(siblings) = siblings else {
            return Ok(PendingDeletions::default());
        };
        if never_prunes(desired, options).is_some() {
            return Ok(PendingDeletions::default());
        }
        let mut left = left_over(inventory, desired);
        left.retain(|entry| !siblings.contains(&entry.key));
        self.pending_deletions(owner, &left, attempt).await
    }

    /// Counts the objects to prune against the deletion budgets. Returns those that may be deleted, which are there or
    /// approved; `None`: none may, and none may be given up either.
    async fn may_prune(
        &self,
        job: ApplyJob<'_>,
        plan: &ApplyPlan<'_>,
        confirmation: Confirmation<'_>,
        attempt: &Attempt,
        outcome: &mut ApplyOutcome,
    ) -> Result<Option<BTreeSet<ObjectId>>, MemberError> {
        let to_delete: Vec<InventoryEntry> = plan
            .prune
            .iter()
            .flat_map(|(_, entries)| entries.clone())
            .collect();
        if to_delete.is_empty() {
            return Ok(may_relinquish(job, plan, outcome).await.then(BTreeSet::new));
        }
        let subject = job.approval.subject;
        let digest = subject.digest(&to_delete);
        let approved = job.approval.digests.contain(&digest).then_some(&*digest);
        let found = self.pending_deletions(job.owner, &to_delete, attempt).await?;
        if found.begin.is_empty() {
            let may = may_relinquish(job, plan, outcome).await;
            return Ok(may.then(|| found.found()));
        }
        let list: Vec<ObjectId> = to_delete.iter().map(|entry| entry.key.clone()).collect();
        let request = BudgetRequest {
            list: &list,
            begin: &found.begin,
            remaining: job.desired.objects.len(),
            approved,
        };
        let blocker = match count(job.budgets, request, job.deadline).await {
            // An approval is of the whole list.
            Ok(()) if approved.is_some() => return Ok(Some(list.into_iter().collect())),
            Ok(()) => return Ok(Some(found.found())),
            Err(DeletionRefusal::Held(excess)) => {
                let of = outcome
                    .inventory
                    .iter()
                    .filter(|(_, uid)| !uid.is_empty())
                    .count();
                let held = HeldDeletions::new(subject, &to_delete, of, confirmation, Some(excess));
                PruneBlocker::Budget(held)
            }
            Err(DeletionRefusal::NotCounted(why)) => PruneBlocker::NotCounted(why),
            Err(DeletionRefusal::Stopped(why)) => PruneBlocker::Stopped(why),
        };
        outcome.prune_blocker = Some(blocker);
        Ok(None)
    }

    /// Waits until the deleted objects of a step are gone. An object that is not gone in time is a failure, and stays
    /// in the inventory.
    async fn await_gone(
        &self,
        owner: &OwnerLabel,
        entries: &[InventoryEntry],
        attempt: &Attempt,
        outcome: &mut ApplyOutcome,
    ) -> Result<(), MemberError> {
        let (existing, gone) = self.gone_within(GONE, owner, entries, attempt, outcome).await?;
        outcome.deleted.extend(gone);
        for (key, target) in existing {
            let error = MemberError::Terminating {
                object: key.clone(),
                finalizers: target.finalizers,
            };
            outcome.failures.push((key, error));
        }
        outcome.deleting = 0;
        Ok(())
    }

    /// Waits a moment for the objects of the last step. Nothing of this attempt comes after them, so one that is not
    /// gone is no failure: it stays in the inventory, and what a later attempt deletes waits for it.
    async fn await_last(
        &self,
        owner: &OwnerLabel,
        entries: &[InventoryEntry],
        attempt: &Attempt,
        outcome: &mut ApplyOutcome,
    ) -> Result<(), MemberError> {
        let (existing, gone) = self.gone_within(SOON, owner, entries, attempt, outcome).await?;
        outcome.deleting = outcome.deleting.saturating_sub(gone.len());
        outcome.deleted.extend(gone);
        outcome.terminating = existing.into_iter().map(|(key, _)| key).collect();
        // Deletions that are held or stopped have a reason of their own.
        outcome.prune_blocker = outcome.prune_blocker.take().or(not_gone(outcome));
        Ok(())
    }

    /// Takes the objects of a step that wait for their finalizers, and returns those that exist after a wait, and those
    /// that are gone.
    async fn gone_within(
        &self,
        limit: Duration,
        owner: &OwnerLabel,
        entries: &[InventoryEntry],
        attempt: &Attempt,
        outcome: &mut ApplyOutcome,
    ) -> Result<(Vec<(ObjectId, DeletionTarget)>, Vec<ObjectId>), MemberError> {
        let begun: BTreeSet<ObjectId> = std::mem::take(&mut outcome.terminating).into_iter().collect();
        let mut waiting: Vec<&InventoryEntry> = entries
            .iter()
            .filter(|entry| begun.contains(&entry.key))
            .collect();
        let mut pauses = Pauses::at_most(limit, attempt);
        let mut gone = Vec::new();
        while !waiting.is_empty() {
            let mut batch = Batch::new(self.limits().concurrency);
            for entry in waiting {
                batch
                    .begin(entry, self.prunable(owner, entry, attempt).boxed())
                    .await;
            }
            let finished = batch.finish().await;
            let mut existing = Vec::new();
            for (entry, result) in finished.results {
                match result? {
                    Prunable::Target(target) => existing.push((entry, target)),
                    Prunable::Gone | Prunable::Kept { .. } => gone.push(entry.key.clone()),
                }
            }
            finished.end.map_or(Ok(()), Err)?;
            if !existing.is_empty() && !pauses.pause().await {
                let existing = existing.into_iter();
                return Ok((
                    existing
                        .map(|(entry, target)| (entry.key.clone(), target))
                        .collect(),
                    gone,
                ));
            }
            waiting = existing.into_iter().map(|(entry, _)| entry).collect();
        }
        Ok((Vec::new(), gone))
    }

    /// Writes the inventory of all objects that Starling is known to own now.
    async fn keep_inventory(
        &self,
        claim: Inventory,
        attempt: &Attempt,
        outcome: &mut ApplyOutcome,
    ) -> Result<(), MemberError> {
        let mut owned = claim;
        owned.extend(outcome.applied.iter().map(|applied| {
            InventoryEntry::new(applied.key.clone(), applied.record.uid.clone()).with_origin(applied.origin)
        }));
        let left = outcome.deleted.iter().chain(&outcome.released);
        for key in left.chain(&outcome.relinquished).chain(&outcome.undeleted) {
            owned.remove(key);
        }
        self.write_held(&owned, attempt).await?;
        outcome.inventory = owned;
        Ok(())
    }

    /// Applies the objects of one phase concurrently. After an error that ends the attempt, running requests still
    /// finish.
    async fn apply_phase(
        &self,
        job: ApplyJob<'_>,
        steps: &[&ApplyStep<'_>],
        attempt: &Attempt,
        outcome: &mut ApplyOutcome,
    ) -> Result<(), MemberError> {
        let mut batch = Batch::new(self.limits().concurrency);
        for step in steps {
            batch
                .begin(&step.object.key, self.apply_object(job, step, attempt).boxed())
                .await;
        }
        let finished = batch.finish().await;
        for (key, result) in finished.results {
            match result {
                Ok(applied) => outcome.applied.push(applied),
                Err(error) => outcome.failures.push((key.clone(), error)),
            }
        }
        finished.end.map_or(Ok(()), Err)
    }

    /// Prunes the entries of one phase concurrently.
    async fn prune_phase(
        &self,
        owner: &OwnerLabel,
        entries: &[InventoryEntry],
        removal: RemovalMode,
        attempt: &Attempt,
        outcome: &mut ApplyOutcome,
    ) -> Result<(), MemberError> {
        let mut batch = Batch::new(self.limits().concurrency);
        for entry in entries {
            let pruned = self.prune_object(owner, entry, removal, attempt);
            batch.begin(&entry.key, pruned.boxed()).await;
        }
        let finished = batch.finish().await;
        for (key, result) in finished.results {
            match result {
                Ok(Pruned::Deleted) => outcome.deleted.push(key.clone()),
                Ok(Pruned::Terminating) => outcome.terminating.push(key.clone()),
                Ok(Pruned::Deleting) => {
                    outcome.terminating.push(key.clone());
                    outcome.deleting += 1;
                }
                Ok(Pruned::Released) => outcome.released.push(key.clone()),
                Ok(Pruned::Kept) => {
                    outcome.kept_now.push(key.clone());
                    outcome.released.push(key.clone());
                }
                Ok(Pruned::Undecided) => {
                    outcome.kept_now.push(key.clone());
                    let blocker = || PruneBlocker::NotGone(key.to_string());
                    outcome.prune_blocker.get_or_insert_with(blocker);
                }
                Ok(Pruned::Relinquished) => outcome.relinquished.push(key.clone()),
                // The entry stays until the other Sync has adopted the object. If that never happens, Starling still
                // owns the object.
                Ok(Pruned::HandedOver) => outcome.handed_over.push(key.clone()),
                Err(error) => outcome.failures.push((key.clone(), error)),
            }
        }
        finished.end.map_or(Ok(()), Err)
    }
}

/// Reports whether the objects that are given up and not deleted may be given up now, and otherwise says why not:
/// labels that a namespace loses may be what admits its pods.
async fn may_relinquish(job: ApplyJob<'_>, plan: &ApplyPlan<'_>, outcome: &mut ApplyOutcome) -> bool {
    if plan.relinquished.is_empty() {
        return true;
    }
    let blocker = match may_give_up(job.budgets, job.deadline).await {
        Ok(()) => return true,
        Err(DeletionRefusal::NotCounted(why)) => PruneBlocker::NotCounted(why),
        // Nothing is counted, so nothing exceeds a budget.
        Err(DeletionRefusal::Stopped(why)) => PruneBlocker::Stopped(why),
        Err(DeletionRefusal::Held(_)) => return true,
    };
    outcome.prune_blocker = Some(blocker);
    false
}

/// Returns why a prune is not complete although all its deletes were sent.
fn not_gone(outcome: &ApplyOutcome) -> Option<PruneBlocker> {
    let first = outcome.terminating.first()?;
    let others = match outcome.terminating.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(PruneBlocker::NotGone(format!("{first}{others}")))
}

fn owned_by_other(key: &ObjectId, by: &str) -> (ObjectId, MemberError) {
    let error = MemberError::OwnedByOther {
        object: key.clone(),
        by: by.to_owned(),
    };
    (key.clone(), error)
}

/// Reads which objects siblings keep. Only if there is something to prune, because the siblings have to be rendered.
async fn siblings_objects(job: ApplyJob<'_>, inventory: &Inventory) -> SiblingObjects {
    let left = left_over(inventory, job.desired);
    if left.is_empty() || never_prunes(job.desired, options_of(job)).is_some() {
        return SiblingObjects::nothing();
    }
    job.siblings.objects().await
}

fn options_of(job: ApplyJob<'_>) -> Options {
    Options {
        prune: job.prune,
        allow_empty: job.allow_empty,
        conflicts_override: job.conflicts_override,
    }
}

fn plan_of<'a>(
    job: ApplyJob<'a>,
    inventory: &'a Inventory,
    siblings: &'a SiblingObjects,
    (begun, gone): (&'a BTreeSet<ObjectId>, &'a BTreeSet<ObjectId>),
    confirmation: Confirmation<'a>,
) -> ApplyPlan<'a> {
    let observed = ApplyInput {
        inventory,
        desired: job.desired,
        records: job.records,
        drifted: job.drifted,
        kept: job.kept,
        compare: job.compare,
        guard: Guard {
            siblings,
            begun,
            gone,
            earlier: job.earlier,
            confirmation,
            grace: job.grace,
            approval: job.approval,
        },
    };
    plan(observed, options_of(job))
}
