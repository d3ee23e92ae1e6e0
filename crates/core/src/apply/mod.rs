//! Decides the writes to a member: which objects to apply, skip and prune.
//!
//! [`plan`] compares what the Sync wants with what is known of the member: the inventory (our objects there), the
//! records (what was last sent, and the responses) and the drifted objects. An object without a change on either side
//! costs no request. [`prune_verdict`] decides again before each delete, by the live object.

mod approved;
pub mod budget;
mod claim;
pub mod containers;
pub mod grace;
mod prune;
mod recorded;
mod recreate;
#[cfg(test)]
mod tests;
mod unconfirmed;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

pub use self::approved::{ApprovedDeletions, ApprovedDigests};
pub use self::budget::{Confirmation, HeldDeletions};
pub use self::claim::{Claim, Claimant, kept_by};
pub use self::grace::{Grace, PendingObjects};
pub use self::prune::{
    Guard, Live, PruneVerdict, SiblingObjects, by_step, is_relinquished, left_over, never_prunes,
    prune_verdict,
};
pub use self::recorded::{OwnAttempt, Recorded};
pub use self::recreate::{Recreation, RecreationObstacle, may_recreate, recreation};
pub use self::unconfirmed::{all_unconfirmed, unconfirmed_records};
use crate::ids::{OwnerLabel, Uid};
use crate::inventory::{Inventory, InventoryEntry};
use crate::object::{DeletionStep, ObjectId, Phase, RenderedObject, RenderedSet};

/// The record of one object that was applied to one member.
///
/// Losing records costs requests, never a write: see [`ApplyReason::Unknown`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// [`RenderedObject::digest`] of the body that was sent; empty while it is unknown what the member has: see
    /// [`unconfirmed_records`].
    pub digest: String,
    /// `metadata.resourceVersion` of the response.
    pub resource_version: String,
    /// `sha256:` and 64 hex digits over our entry of `metadata.managedFields`; empty if the response had none.
    pub fields_digest: String,
    /// `time` of that entry; empty if it had none.
    pub fields_time: String,
    /// `metadata.uid` of the response.
    pub uid: Uid,
    /// The management state when the object was last observed.
    pub management: ManagementState,
}

/// The management state of an object on the member.
///
/// Drift checks and the responses of applies keep this current, so that an apply needs no read first. A change on the
/// member since the last drift check is not known here; the next one is at most one `interval` away.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ManagementState {
    /// The object has `starling.dev/reconcile: disabled`: it is neither applied nor repaired.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub left_alone: bool,
    /// The owner label of the object, if it is not ours; empty otherwise.
    #[serde(skip_serializing_if = "OwnerLabel::is_empty")]
    pub owner: OwnerLabel,
    /// [`crate::object::Ignored::digest`] of the fields that were released; empty if none were.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub released: String,
}

/// The input of a plan.
#[derive(Clone, Copy, Debug)]
pub struct ApplyInput<'a> {
    /// Our objects on the member, as read from there.
    pub inventory: &'a Inventory,
    /// The objects that the Sync wants: a complete render.
    pub desired: &'a RenderedSet,
    /// The records of the last applies, as far as they are known.
    pub records: &'a BTreeMap<ObjectId, Record>,
    /// Objects that were changed or deleted on the member since then.
    pub drifted: &'a BTreeSet<ObjectId>,
    /// Objects that belong to other owners, and to which: see [`kept_by`].
    pub kept: &'a BTreeMap<ObjectId, String>,
    /// Whether every object is compared with the member, whatever its record says: a user requested a reconcile.
    pub compare: bool,
    /// The protection from deletion for an object that left the render.
    pub guard: Guard<'a>,
}

impl<'a> ApplyInput<'a> {
    /// Returns the record of an object, unless the object was replaced since: the inventory, which all writers to the
    /// member share, then has another UID.
    fn record(&self, key: &ObjectId) -> Option<&'a Record> {
        let confirmed = self.inventory.uid(key).filter(|uid| !uid.is_empty());
        self.records
            .get(key)
            .filter(|record| confirmed.is_none_or(|uid| *uid == record.uid))
    }

    /// Whether the inventory claims an object and has no UID of it.
    fn is_unconfirmed(&self, key: &ObjectId) -> bool {
        self.inventory.uid(key).is_some_and(|uid| uid.is_empty())
    }
}

/// The options of the Sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Whether objects that are no longer rendered are deleted.
    pub prune: bool,
    /// Whether a render without objects is intended, rather than a mistake.
    pub allow_empty: bool,
    /// Whether fields are taken from other managers on objects that are not ours yet.
    pub conflicts_override: bool,
}

/// The reason to apply an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyReason {
    /// The object is not known to be ours: it does not exist, or another owner created it.
    New,
    /// The rendered object differs from the body that was last sent.
    Changed,
    /// The object was changed or deleted on the member.
    Drifted,
    /// The object is ours, but the body that was last sent is unknown, or its record is not believed. The object is
    /// read first, and not written if the member already has it.
    Unknown,
}

/// One object to apply.
#[derive(Clone, Copy, Debug)]
pub struct ApplyStep<'a> {
    /// The object.
    pub object: &'a RenderedObject,
    /// The reason to apply the object.
    pub reason: ApplyReason,
    /// Whether fields are taken from other managers.
    pub force: bool,
    /// The known ownership of the object.
    pub claim: Claim<'a>,
    /// Whether the inventory claims the object and has no UID of it: the attempt that claimed it was interrupted, and
    /// where the object comes from is not known yet.
    pub is_unconfirmed: bool,
}

/// The reason why nothing is pruned although objects left the render.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PruneBlocker {
    /// [`Options::prune`] is off.
    Off,
    /// The render has no objects and [`Options::allow_empty`] is off.
    EmptyRender,
    /// Another Sync may own the objects: whether it does is unknown, for this reason.
    HandOverUnknown(String),
    /// The deletions exceed the deletion budget and require an approval.
    Budget(HeldDeletions),
    /// The deletions cannot be counted against the deletion budgets, for this reason.
    NotCounted(String),
    /// The group deletes nothing now, for this reason: it is suspended, its rollout is paused, or no window is open.
    /// The objects stay pending or held.
    Stopped(String),
    /// The objects are deleted, and some of them wait for their finalizers: these. They stay in the inventory until
    /// they are gone, so that what is deleted later waits for them.
    NotGone(String),
}

/// The writes to one member, in this order.
#[derive(Clone, Debug, Default)]
pub struct ApplyPlan<'a> {
    /// The inventory to store before the first write: all entries that it has, and everything that may be written.
    pub claim: Inventory,
    /// The objects to apply by phase, first phase first; phases without a step are left out.
    pub apply: Vec<(Phase, Vec<ApplyStep<'a>>)>,
    /// Objects that need no request.
    pub skipped: Vec<&'a ObjectId>,
    /// Objects that are not reconciled: no request either.
    pub left_alone: Vec<&'a ObjectId>,
    /// Objects that are not written because they belong to other owners, and to which.
    pub kept: Vec<(&'a ObjectId, &'a str)>,
    /// The objects to delete by step, in order; steps without an entry are left out. A step begins once the objects of
    /// the steps before it are gone.
    pub prune: Vec<(DeletionStep, Vec<InventoryEntry>)>,
    /// Objects that another Sync of the same owner holds or is about to hold. They leave the inventory once they have
    /// the label of the other Sync, and are not deleted.
    pub handed_over: Vec<InventoryEntry>,
    /// Objects that were there before Starling and whose deletion would require an approval ([`is_relinquished`]).
    /// Their labels and annotations are given up, and they are not deleted.
    pub relinquished: Vec<InventoryEntry>,
    /// Objects that a user took back from deletion ([`Grace::undeleted`]). As with `relinquished`, they are given up.
    pub undeleted: Vec<InventoryEntry>,
    /// The reason why `prune` lacks objects of the inventory that are neither desired nor handed over: it has at most
    /// those that are being deleted already.
    pub prune_blocker: Option<PruneBlocker>,
}

/// Decides what to write.
#[must_use]
pub fn plan<'a>(observed: ApplyInput<'a>, options: Options) -> ApplyPlan<'a> {
    let mut plan = ApplyPlan {
        claim: observed.inventory.clone(),
        ..ApplyPlan::default()
    };
    let mut phases: BTreeMap<Phase, Vec<ApplyStep<'a>>> = BTreeMap::new();
    for object in &observed.desired.objects {
        // An object that is wanted again is not held any more, and not about to be deleted, also if it is not written.
        plan.claim.hold(&object.key, None);
        plan.claim.set_left_at(&object.key, None);
        // An object that is not written is not claimed: it stays in the inventory if it is listed, and is not added.
        if let Some(owner) = observed.kept.get(&object.key) {
            plan.kept.push((&object.key, owner));
            continue;
        }
        if is_left_alone(object, &observed) {
            plan.left_alone.push(&object.key);
            continue;
        }
        let record = observed.record(&object.key);
        // A claim has no UID until the response tells where the object comes from.
        let record = record.filter(|_| !observed.is_unconfirmed(&object.key));
        let uid = record.map(|record| record.uid.clone()).unwrap_or_default();
        plan.claim.insert(InventoryEntry::new(object.key.clone(), uid));
        match step(object, &observed, options) {
            Some(step) => phases.entry(Phase::of(&object.key)).or_default().push(step),
            None => plan.skipped.push(&object.key),
        }
    }
    plan.apply = phases.into_iter().collect();
    let prune::Pruning {
        prune,
        handed_over,
        relinquished,
        undeleted,
        pending,
        held,
        blocker,
    } = prune::plan_prune(observed.inventory, observed.desired, options, observed.guard);
    if blocker == Some(PruneBlocker::Off) {
        // A grace that ends while nothing is pruned would end at once when prune is on again.
        for (key, _) in observed.inventory.iter() {
            plan.claim.set_left_at(key, None);
        }
    }
    if let Some(PruneBlocker::Budget(deletions)) = &blocker {
        for entry in held {
            plan.claim.hold(&entry.key, Some(deletions.of));
        }
    }
    for entry in &handed_over {
        plan.claim.set_left_at(&entry.key, None);
    }
    for entry in pending {
        plan.claim.set_left_at(&entry.key, entry.listed.left_at);
        plan.claim.hold(&entry.key, entry.listed.held_of);
    }
    plan.prune = prune;
    plan.handed_over = handed_over;
    plan.relinquished = relinquished;
    plan.undeleted = undeleted;
    plan.prune_blocker = blocker;
    plan
}

/// Reports whether git or the live object excludes the object from reconciliation. An object that is gone is created
/// again, unless git excludes it.
fn is_left_alone(object: &RenderedObject, observed: &ApplyInput<'_>) -> bool {
    let asked_there = observed
        .record(&object.key)
        .is_some_and(|record| record.management.left_alone);
    object.directives.left_alone || (asked_there && !observed.drifted.contains(&object.key))
}

/// Returns the step for one object; `None`: it needs no request.
fn step<'a>(
    object: &'a RenderedObject,
    observed: &ApplyInput<'a>,
    options: Options,
) -> Option<ApplyStep<'a>> {
    let record = observed.record(&object.key);
    let known_uid = observed.inventory.uid(&object.key);
    let is_unconfirmed = observed.is_unconfirmed(&object.key);
    let reason = match record {
        Some(record) if record.digest != object.digest => ApplyReason::Changed,
        Some(_) if observed.drifted.contains(&object.key) => ApplyReason::Drifted,
        Some(_) if observed.compare || is_unconfirmed => ApplyReason::Unknown,
        Some(_) => return None,
        // A claim without a UID has no response: the object may not exist, or may belong to another owner.
        None if known_uid.is_some_and(|uid| !uid.is_empty()) => ApplyReason::Unknown,
        None => ApplyReason::New,
    };
    // A claimed object is ours only after a response, which the UID or the record shows. Otherwise a conflict that is
    // reported today would be overridden tomorrow.
    let ours = known_uid.is_some_and(|uid| !uid.is_empty() || record.is_some());
    Some(ApplyStep {
        object,
        reason,
        force: ours || options.conflicts_override,
        claim: match (record, known_uid) {
            (Some(record), _) => Claim::Confirmed(&record.uid),
            (None, Some(uid)) if uid.is_empty() => Claim::Unconfirmed,
            (None, Some(uid)) => Claim::Confirmed(uid),
            (None, None) => Claim::New,
        },
        is_unconfirmed,
    })
}
