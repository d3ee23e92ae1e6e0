//! Applies the objects of a Sync to a member: the one place that writes a Sync's objects.
//!
//! The steps: read the inventory, plan, claim in the inventory, apply phase by phase, prune, write the inventory. Each
//! step leaves the member in a state from which the next attempt continues. Applied objects are returned even if the
//! attempt ends early.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::FutureExt as _;
use starling_core::apply::budget::{Approval, digest_of, is_approved};
use starling_core::apply::{
    ApplyInput, ApplyPlan, Confirmation, Grace, Guard, HeldDeletions, Options, PruneBlocker, Record,
    SiblingObjects, Step, left_over, never_prunes, plan,
};
use starling_core::deletion_budget::Earlier;
use starling_core::inventory::{Entry, Inventory};
use starling_core::object::{GroupKind, ObjectId, RenderedSet};
use tokio::time::Instant;

use super::attempt::Attempt;
use super::batch::Batch;
use super::budget::{Budgets, Refusal};
use super::definitions::Definitions;
use super::error::MemberError;
use super::outcome::ApplyOutcome;
use super::prune::{Pruned, Removal};
use super::siblings::Siblings;
use super::transport::Member;
use super::wait::Pauses;

/// The longest wait for deleted objects to be gone. Most finalizers run within seconds. The attempt occupies a worker
/// of the member meanwhile, which other Syncs need; a later attempt continues.
const GONE: Duration = Duration::from_secs(10);

/// What to apply, and what is known about the objects.
#[derive(Clone, Copy, Debug)]
pub struct ApplyJob<'a> {
    /// The value of the owner label, which the bodies of `desired` carry already.
    pub owner: &'a str,
    /// The complete render.
    pub desired: &'a RenderedSet,
    /// The records of the last applies of this owner to this member.
    pub records: &'a BTreeMap<ObjectId, Record>,
    /// What [`Member::find_drift`] found.
    pub drifted: &'a BTreeSet<ObjectId>,
    /// Objects that other owners keep, with the owner. They are not written.
    pub kept: &'a BTreeMap<ObjectId, String>,
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
    /// What the Sync deleted within the window.
    pub earlier: Earlier,
    /// The deletion budgets.
    pub budgets: &'a dyn Budgets,
    /// The kinds that an operator added to those whose deletion requires an approval.
    pub confirm: &'a BTreeSet<GroupKind>,
    /// The time between the first render that lacks an object and its deletion.
    pub grace: Grace<'a>,
    /// What approves deletions.
    pub approval: Approval<'a>,
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
        if let Err(error) = self.run(job, &attempt, &mut outcome).await {
            outcome.interrupted = Some(error);
        }
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
        outcome.inventory.clone_from(&before);
        let siblings = siblings_objects(job, &before).await;
        let asking = self.asking(job, &before, &siblings, attempt).await?;
        let confirmation = Confirmation {
            kinds: job.confirm,
            objects: &asking,
        };
        let plan = plan_of(job, &before, &siblings, confirmation);
        outcome.skipped = plan.skipped.len();
        outcome.prune_blocker.clone_from(&plan.prune_blocker);
        outcome.left_alone = plan.left_alone.iter().map(|key| (*key).clone()).collect();
        outcome
            .failures
            .extend(plan.kept.iter().map(|(key, by)| owned_by_other(key, by)));
        // Claim before the first write: if the process dies from here on, the next attempt knows which objects may
        // exist on the member.
        if !plan.claim.claims_the_same(&before) {
            self.write_held(&plan.claim, attempt).await?;
            outcome.inventory.clone_from(&plan.claim);
        }
        // An error that ends the attempt skips the write of the inventory, which would fail too. The claim covers every
        // written object, the records have the UIDs, and the next attempt finds deleted objects gone.
        self.write_objects(job, &plan, confirmation, attempt, outcome)
            .await?;
        let mut claim = plan.claim;
        if let Some(PruneBlocker::Stopped(_)) = &outcome.prune_blocker {
            // The target is applied, and only the inventory says that something is left to delete.
            let waiting = plan.prune.into_iter().flat_map(|(_, entries)| entries);
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
        self.prune_phase(owner, &plan.handed_over, Removal::HandOver, attempt, outcome)
            .await?;
        self.prune_phase(owner, &plan.undeleted, Removal::Release, attempt, outcome)
            .await?;
        outcome.undeleted = std::mem::take(&mut outcome.let_go);
        self.prune_phase(owner, &plan.let_go, Removal::LetGo, attempt, outcome)
            .await?;
        if !self.may_prune(job, plan, confirmation, attempt, outcome).await? {
            return Ok(());
        }
        let steps = plan.prune.len();
        for (index, (_, entries)) in plan.prune.iter().enumerate() {
            let (asking, others): (Vec<Entry>, Vec<Entry>) = entries
                .iter()
                .cloned()
                .partition(|entry| confirmation.objects.contains(&entry.key));
            for (entries, confirmed) in [(asking, true), (others, false)] {
                let removal = Removal::Delete { confirmed };
                self.prune_phase(owner, &entries, removal, attempt, outcome)
                    .await?;
            }
            if index + 1 < steps {
                self.await_gone(owner, entries, attempt, outcome).await?;
            }
            // What comes after may be what these objects need to go.
            if !outcome.failures.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Finds the objects to prune that ask for an approval. They may have left git, so the member is asked.
    async fn asking(
        &self,
        job: ApplyJob<'_>,
        inventory: &Inventory,
        siblings: &SiblingObjects,
        attempt: &Attempt,
    ) -> Result<BTreeSet<ObjectId>, MemberError> {
        let SiblingObjects::Known(siblings) = siblings else {
            return Ok(BTreeSet::new());
        };
        if never_prunes(job.desired, options_of(job)).is_some() {
            return Ok(BTreeSet::new());
        }
        let mut left = left_over(inventory, job.desired);
        left.retain(|entry| !siblings.contains(&entry.key));
        Ok(self.doomed(job.owner, &left, attempt).await?.asking)
    }

    /// Counts the objects to prune against the deletion budgets. Returns whether they may be deleted.
    async fn may_prune(
        &self,
        job: ApplyJob<'_>,
        plan: &ApplyPlan<'_>,
        confirmation: Confirmation<'_>,
        attempt: &Attempt,
        outcome: &mut ApplyOutcome,
    ) -> Result<bool, MemberError> {
        let doomed: Vec<Entry> = plan
            .prune
            .iter()
            .flat_map(|(_, entries)| entries.clone())
            .collect();
        if doomed.is_empty() {
            return Ok(true);
        }
        let digest = digest_of(job.approval.target, &doomed);
        let approved = is_approved(job.approval.approved, &digest).then_some(&*digest);
        let found = self.doomed(job.owner, &doomed, attempt).await?;
        let blocker = match job
            .budgets
            .count(&found.begin, job.desired.objects.len(), approved)
            .await
        {
            Ok(()) => return Ok(true),
            Err(Refusal::NotCounted(why)) => PruneBlocker::NotCounted(why),
            Err(Refusal::Stopped(why)) => PruneBlocker::Stopped(why),
            Err(Refusal::Held(excess)) => {
                let of = outcome
                    .inventory
                    .iter()
                    .filter(|(_, uid)| !uid.is_empty())
                    .count();
                let target = job.approval.target;
                let held = HeldDeletions::new(target, &doomed, of, confirmation, Some(excess));
                PruneBlocker::Budget(held)
            }
        };
        outcome.prune_blocker = Some(blocker);
        Ok(false)
    }

    /// Waits until the deleted objects of a step are gone. An object that is not gone in time is a failure, and stays
    /// in the inventory.
    async fn await_gone(
        &self,
        owner: &str,
        entries: &[Entry],
        attempt: &Attempt,
        outcome: &mut ApplyOutcome,
    ) -> Result<(), MemberError> {
        let deleted: BTreeSet<&ObjectId> = outcome.deleted.iter().collect();
        let deleted = entries.iter().filter(|entry| deleted.contains(&entry.key));
        let mut waiting: Vec<&Entry> = deleted.collect();
        let mut pauses = Pauses::at_most(GONE, attempt);
        loop {
            let mut batch = Batch::new(self.limits().concurrency);
            for entry in waiting {
                batch
                    .begin(entry, self.prunable(owner, entry, attempt).boxed())
                    .await;
            }
            let finished = batch.finish().await;
            let mut existing = Vec::new();
            for (entry, result) in finished.results {
                existing.extend(result?.map(|target| (entry, target)));
            }
            finished.end.map_or(Ok(()), Err)?;
            if existing.is_empty() {
                return Ok(());
            }
            if !pauses.pause().await {
                for (entry, target) in existing {
                    outcome.deleted.retain(|key| *key != entry.key);
                    let error = MemberError::Terminating {
                        object: entry.key.clone(),
                        finalizers: target.finalizers,
                    };
                    outcome.failures.push((entry.key.clone(), error));
                }
                return Ok(());
            }
            waiting = existing.into_iter().map(|(entry, _)| entry).collect();
        }
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
            Entry::new(applied.key.clone(), applied.record.uid.clone()).with_origin(applied.origin)
        }));
        let left = outcome.deleted.iter().chain(&outcome.released);
        for key in left.chain(&outcome.let_go).chain(&outcome.undeleted) {
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
        steps: &[&Step<'_>],
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
        owner: &str,
        entries: &[Entry],
        removal: Removal,
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
                Ok(Pruned::Deleted | Pruned::Terminating) => outcome.deleted.push(key.clone()),
                Ok(Pruned::Released) => outcome.released.push(key.clone()),
                Ok(Pruned::LetGo) => outcome.let_go.push(key.clone()),
                // The entry stays until the other Sync has adopted the object. If that never happens, Starling still
                // owns the object.
                Ok(Pruned::HandedOver) => outcome.handed_over.push(key.clone()),
                Err(error) => outcome.failures.push((key.clone(), error)),
            }
        }
        finished.end.map_or(Ok(()), Err)
    }
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
            earlier: job.earlier,
            confirmation,
            grace: job.grace,
            approval: job.approval,
        },
    };
    plan(observed, options_of(job))
}
