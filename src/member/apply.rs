//! Makes a member hold what a Sync wants: the one place that writes a Sync's objects.
//!
//! Read the inventory, plan, claim in the inventory, apply phase by phase, prune, write down what is ours. Each step leaves
//! the member in a state from which the next attempt goes on; what was applied is returned even if the attempt ends early.

use std::collections::{BTreeMap, BTreeSet};

use futures::FutureExt as _;
use starling_core::apply::{Observed, Options, Plan, PruneHold, Record, Step, plan};
use starling_core::fields::FieldSet;
use starling_core::inventory::{Entry, Inventory};
use starling_core::object::{ObjectKey, RenderedSet};
use tokio::time::Instant;

use super::attempt::Attempt;
use super::definitions::Definitions;
use super::error::MemberError;
use super::inventory::Stored;
use super::lane::Lane;
use super::prune::Pruned;
use super::transport::Member;

/// What to apply, and what is known of it.
#[derive(Clone, Copy, Debug)]
pub struct ApplyJob<'a> {
    /// The value of the owner label, which the bodies of `desired` carry already.
    pub owner: &'a str,
    /// The complete render.
    pub desired: &'a RenderedSet,
    /// What the last applies of this owner to this member left behind.
    pub records: &'a BTreeMap<ObjectKey, Record>,
    /// What [`Member::find_drift`] found.
    pub drifted: &'a BTreeSet<ObjectKey>,
    /// Objects that belong to others, and to whom: they are not written.
    pub kept: &'a BTreeMap<ObjectKey, String>,
    /// Whether objects that are no longer rendered are deleted.
    pub prune: bool,
    /// Whether a render without objects is meant.
    pub allow_empty: bool,
    /// Whether fields are taken from other managers on objects that are not ours yet.
    pub conflicts_override: bool,
    /// Whether an object is deleted and made anew where a field of it cannot be changed.
    pub recreate: bool,
    /// No request starts or waits beyond this.
    pub deadline: Instant,
}

/// What an apply did to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was not there.
    Created,
    /// It was there, and is not at the `resourceVersion` that was known before. Other writers, such as one of its status,
    /// move that too.
    Configured,
    /// It is as it was.
    Unchanged,
}

/// One object that the member holds as rendered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Which object.
    pub key: ObjectKey,
    /// What to remember of it.
    pub record: Record,
    /// What was done to it.
    pub change: Change,
    /// Our fields after a repair: what somebody takes of them next is told by them.
    pub fields: Option<FieldSet>,
}

/// What came of an [`ApplyJob`].
#[derive(Debug, Default)]
pub struct ApplyOutcome {
    /// Objects that needed a request and are in step now, ordered by key. Their records are to be kept.
    pub applied: Vec<Applied>,
    /// Objects that needed none.
    pub skipped: usize,
    /// Objects that were left alone because git or somebody on the member asks for it, as far as that was known
    /// beforehand, ordered by key.
    pub left_alone: Vec<ObjectKey>,
    /// Objects that the member was told to delete, ordered by key. Their records are to be dropped.
    pub deleted: Vec<ObjectKey>,
    /// Objects that left the inventory without a delete: they were gone, or the object of that name is not ours. Their
    /// records are to be dropped.
    pub released: Vec<ObjectKey>,
    /// Objects that could not be applied or deleted, ordered by key. One of them does not stop the others.
    pub failures: Vec<(ObjectKey, MemberError)>,
    /// What the member's inventory holds now, as far as it is known; empty if it could not be read.
    pub inventory: Inventory,
    /// Why nothing was pruned although there was something to prune.
    pub prune_hold: Option<PruneHold>,
    /// Why the attempt ended early: [`MemberError::ends_attempt`], or the inventory could not be read or written.
    /// Objects that are in none of the lists were not tried.
    pub interrupted: Option<MemberError>,
}

impl ApplyOutcome {
    /// Whether the member holds everything that was wanted, and nothing is left to prune.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.failures.is_empty() && self.interrupted.is_none()
    }

    fn sort(&mut self) {
        self.applied.sort_by(|a, b| a.key.cmp(&b.key));
        self.failures.sort_by(|a, b| a.0.cmp(&b.0));
        self.deleted.sort();
        self.released.sort();
        self.left_alone.sort();
    }
}

impl Member {
    /// Applies a render, prunes, and keeps the inventory: see the module. An object in step costs no request.
    ///
    /// Requests that are under way when the attempt ends early are awaited, so that each has a known result.
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
        let mut stored = self.load_inventory(job.owner, attempt).await?;
        let before = stored.inventory.clone();
        outcome.inventory.clone_from(&before);
        let plan = plan_of(job, &before);
        outcome.skipped = plan.skipped.len();
        outcome.prune_hold = plan.prune_hold;
        outcome.left_alone = plan.left_alone.iter().map(|key| (*key).clone()).collect();
        outcome
            .failures
            .extend(plan.kept.iter().map(|(key, by)| belongs_to(key, by)));
        // Claim before the first write: whatever happens from here on, the next attempt knows what may be on the member.
        if !plan.claim.same_keys(&stored.inventory) {
            self.store_inventory(job.owner, &mut stored, &plan.claim, attempt)
                .await?;
            outcome.inventory.clone_from(&stored.inventory);
        }
        // After an error that ends the attempt the member would not take the inventory either. The claim covers all that was
        // written, the records know the UIDs, and what was deleted is found gone.
        self.write_objects(job, &plan, attempt, outcome).await?;
        self.keep_inventory(job.owner, plan.claim, &mut stored, attempt, outcome)
            .await
    }

    /// Applies all phases and, if nothing failed, prunes.
    async fn write_objects(
        &self,
        job: ApplyJob<'_>,
        plan: &Plan<'_>,
        attempt: &Attempt,
        outcome: &mut ApplyOutcome,
    ) -> Result<(), MemberError> {
        let steps = plan.apply.iter().flat_map(|(_, steps)| steps);
        let mut definitions = Definitions::needed(job.desired, steps);
        for (_, steps) in &plan.apply {
            let (ready, waiting) = self.part(&definitions, steps, outcome);
            self.apply_phase(job, &ready, attempt, outcome).await?;
            let ready = self
                .await_definitions(&mut definitions, waiting, attempt, outcome)
                .await?;
            self.apply_phase(job, &ready, attempt, outcome).await?;
        }
        if !outcome.failures.is_empty() {
            return Ok(());
        }
        for (_, entries) in &plan.prune {
            self.prune_phase(job.owner, entries, attempt, outcome).await?;
        }
        Ok(())
    }

    /// Writes down what is known to be ours now.
    async fn keep_inventory(
        &self,
        owner: &str,
        claim: Inventory,
        stored: &mut Stored,
        attempt: &Attempt,
        outcome: &mut ApplyOutcome,
    ) -> Result<(), MemberError> {
        let mut ours = claim;
        ours.extend(outcome.applied.iter().map(|applied| Entry {
            key: applied.key.clone(),
            uid: applied.record.uid.clone(),
        }));
        for key in outcome.deleted.iter().chain(&outcome.released) {
            ours.remove(key);
        }
        let result = self.store_inventory(owner, stored, &ours, attempt).await;
        outcome.inventory.clone_from(&stored.inventory);
        result
    }

    /// Applies the objects of one phase side by side. An error that ends the attempt lets those under way finish.
    async fn apply_phase(
        &self,
        job: ApplyJob<'_>,
        steps: &[&Step<'_>],
        attempt: &Attempt,
        outcome: &mut ApplyOutcome,
    ) -> Result<(), MemberError> {
        let mut lane = Lane::new(self.limits().concurrency);
        for step in steps {
            lane.begin(&step.object.key, self.apply_object(job, step, attempt).boxed())
                .await;
        }
        let tried = lane.finish().await;
        for (key, result) in tried.results {
            match result {
                Ok(applied) => outcome.applied.push(applied),
                Err(error) => outcome.failures.push((key.clone(), error)),
            }
        }
        tried.end.map_or(Ok(()), Err)
    }

    /// Prunes the entries of one phase side by side.
    async fn prune_phase(
        &self,
        owner: &str,
        entries: &[Entry],
        attempt: &Attempt,
        outcome: &mut ApplyOutcome,
    ) -> Result<(), MemberError> {
        let mut lane = Lane::new(self.limits().concurrency);
        for entry in entries {
            lane.begin(&entry.key, self.prune_object(owner, entry, attempt).boxed())
                .await;
        }
        let tried = lane.finish().await;
        for (key, result) in tried.results {
            match result {
                Ok(Pruned::Deleted) => outcome.deleted.push(key.clone()),
                Ok(Pruned::Released) => outcome.released.push(key.clone()),
                Err(error) => outcome.failures.push((key.clone(), error)),
            }
        }
        tried.end.map_or(Ok(()), Err)
    }
}

fn belongs_to(key: &ObjectKey, by: &str) -> (ObjectKey, MemberError) {
    let error = MemberError::OwnedByOther {
        object: key.clone(),
        by: by.to_owned(),
    };
    (key.clone(), error)
}

fn plan_of<'a>(job: ApplyJob<'a>, inventory: &'a Inventory) -> Plan<'a> {
    let ApplyJob {
        desired,
        records,
        drifted,
        kept,
        prune,
        allow_empty,
        conflicts_override,
        recreate: _,
        owner: _,
        deadline: _,
    } = job;
    let options = Options {
        prune,
        allow_empty,
        conflicts_override,
    };
    plan(
        Observed {
            inventory,
            desired,
            records,
            drifted,
            kept,
        },
        options,
    )
}
