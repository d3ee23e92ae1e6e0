//! What to write to a member: which objects to apply, which to skip, which to prune.
//!
//! [`plan`] compares what the Sync wants with what is known of the member: the inventory (what is ours there), the
//! records (what was sent last and how it was answered) and the keys found drifted. An object that has not changed
//! on either side costs no request. [`prune_verdict`] is asked once more, with the live object, before each delete.

pub mod budget;
mod claim;
mod doubt;
mod prune;
mod recreate;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

pub use self::budget::HeldDeletions;
pub use self::claim::{Claim, Claimant, kept_by};
pub use self::doubt::doubted;
pub use self::prune::{
    Elsewhere, Guard, Live, PruneVerdict, in_reverse, left_over, never_prunes, prune_verdict,
};
pub use self::recreate::{Recreation, may_recreate, recreation};
use crate::inventory::{Entry, Inventory};
use crate::object::{ObjectKey, Phase, RenderedObject, RenderedSet};

/// What is remembered of one object after it was applied to one member.
///
/// Losing records costs requests, never a write: see [`Why::Unknown`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// [`RenderedObject::digest`] of the body that was sent; empty while it is not known what the member holds: see [`doubted`].
    pub digest: String,
    /// `metadata.resourceVersion` of the answer.
    pub resource_version: String,
    /// `sha256:` and 64 hex digits over our entry of `metadata.managedFields`; empty if the answer had none.
    pub fields_digest: String,
    /// `metadata.uid` of the answer.
    pub uid: String,
    /// How the object stood when it was last seen.
    pub terms: Terms,
}

/// On what terms an object is ours.
///
/// Looks for drift and answers to applies keep it current, so that an apply need not look first. What was changed on the
/// member since the last look is not known here: that is the window of one `interval`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Terms {
    /// It carries `starling.dev/reconcile: disabled`: neither applied nor repaired.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub left_alone: bool,
    /// The owner label that it carries, where that is not ours; empty otherwise.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// [`crate::object::Ignored::digest`] of the fields that were given up; empty if none were.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub released: String,
}

/// What a plan is made from.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// What is ours on the member, as read from there.
    pub inventory: &'a Inventory,
    /// What the Sync wants: a complete render.
    pub desired: &'a RenderedSet,
    /// What was applied last, as far as it is known.
    pub records: &'a BTreeMap<ObjectKey, Record>,
    /// Objects that were changed or deleted on the member since.
    pub drifted: &'a BTreeSet<ObjectKey>,
    /// Objects that belong to others, and to whom: see [`kept_by`].
    pub kept: &'a BTreeMap<ObjectKey, String>,
    /// What stands between an object that left the render and its deletion.
    pub guard: Guard<'a>,
}

impl<'a> Observed<'a> {
    /// The record of an object, unless it is of an object that was replaced since: then the inventory, which is
    /// shared by all who write to the member, knows another UID.
    fn record(&self, key: &ObjectKey) -> Option<&'a Record> {
        let confirmed = self.inventory.uid(key).filter(|uid| !uid.is_empty());
        self.records
            .get(key)
            .filter(|record| confirmed.is_none_or(|uid| uid == record.uid))
    }
}

/// What the Sync allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Whether objects that are no longer rendered are deleted.
    pub prune: bool,
    /// Whether a render without objects is meant, rather than a mistake.
    pub allow_empty: bool,
    /// Whether fields are taken from other managers on objects that are not ours yet.
    pub conflicts_override: bool,
}

/// Why an object is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It is not known to be ours: it does not exist, or somebody else made it.
    New,
    /// The rendered object differs from what was sent last.
    Changed,
    /// It was changed or deleted on the member.
    Drifted,
    /// It is ours but what was sent last is not known. The member is asked first, and not written to if it holds
    /// the object already.
    Unknown,
}

/// One object to apply.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// The object.
    pub object: &'a RenderedObject,
    /// Why it is applied.
    pub why: Why,
    /// Whether fields are taken from other managers.
    pub force: bool,
    /// Whether it is known to be ours.
    pub claim: Claim<'a>,
}

/// Why nothing is pruned although there is something to prune.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PruneHold {
    /// [`Options::prune`] is off.
    Off,
    /// The render has no objects and [`Options::allow_empty`] is off.
    EmptyRender,
    /// Whether somebody else took the objects over cannot be told, for this reason.
    Unsure(String),
    /// It would be more than goes without asking.
    Budget(HeldDeletions),
}

/// What to do on one member, in this order.
#[derive(Clone, Debug, Default)]
pub struct Plan<'a> {
    /// What the inventory must say before the first write: all it said, and everything that may be written.
    pub claim: Inventory,
    /// The objects to apply by phase, first phase first; phases without a step are left out.
    pub apply: Vec<(Phase, Vec<Step<'a>>)>,
    /// Objects that are in step: no request.
    pub skipped: Vec<&'a ObjectKey>,
    /// Objects that are to be left alone: no request either.
    pub left_alone: Vec<&'a ObjectKey>,
    /// Objects that are not written because they belong to others, and to whom.
    pub kept: Vec<(&'a ObjectKey, &'a str)>,
    /// What to delete by phase, last phase first; phases without an entry are left out.
    pub prune: Vec<(Phase, Vec<Entry>)>,
    /// What another Sync of the same owner holds or is about to hold: it leaves the inventory once its object carries
    /// the other's label, and is not deleted.
    pub handed_over: Vec<Entry>,
    /// Why `prune` is empty although the inventory lists objects that are neither desired nor handed over.
    pub prune_hold: Option<PruneHold>,
}

/// Decides what to write.
#[must_use]
pub fn plan<'a>(observed: Observed<'a>, options: Options) -> Plan<'a> {
    let mut plan = Plan {
        claim: observed.inventory.clone(),
        ..Plan::default()
    };
    let mut phases: BTreeMap<Phase, Vec<Step<'a>>> = BTreeMap::new();
    for object in &observed.desired.objects {
        // What is not written is not claimed: it stays in the inventory if it is there, and does not come in.
        if let Some(owner) = observed.kept.get(&object.key) {
            plan.kept.push((&object.key, owner));
            continue;
        }
        if is_left_alone(object, &observed) {
            plan.left_alone.push(&object.key);
            continue;
        }
        let uid = observed
            .record(&object.key)
            .map(|record| record.uid.clone())
            .unwrap_or_default();
        plan.claim.insert(Entry {
            key: object.key.clone(),
            uid,
        });
        match step(object, &observed, options) {
            Some(step) => phases.entry(Phase::of(&object.key)).or_default().push(step),
            None => plan.skipped.push(&object.key),
        }
    }
    plan.apply = phases.into_iter().collect();
    let prune::Pruning {
        prune,
        handed_over,
        hold,
    } = prune::plan_prune(observed.inventory, observed.desired, options, observed.guard);
    plan.prune = prune;
    plan.handed_over = handed_over;
    plan.prune_hold = hold;
    plan
}

/// Whether git or somebody on the member asks to leave the object alone. One that is gone is made anew, unless git asks.
fn is_left_alone(object: &RenderedObject, observed: &Observed<'_>) -> bool {
    let asked_there = observed
        .record(&object.key)
        .is_some_and(|record| record.terms.left_alone);
    object.directives.left_alone || (asked_there && !observed.drifted.contains(&object.key))
}

/// The step for one object; `None` if it is in step.
fn step<'a>(object: &'a RenderedObject, observed: &Observed<'a>, options: Options) -> Option<Step<'a>> {
    let record = observed.record(&object.key);
    let known_uid = observed.inventory.uid(&object.key);
    let why = match record {
        Some(record) if record.digest != object.digest => Why::Changed,
        Some(_) if observed.drifted.contains(&object.key) => Why::Drifted,
        Some(_) => return None,
        // A claim without a UID was never answered: the object may not exist, or may be somebody else's.
        None if known_uid.is_some_and(|uid| !uid.is_empty()) => Why::Unknown,
        None => Why::New,
    };
    // What is claimed is ours only once the member has answered: the UID or the record tells. Otherwise a
    // conflict that is reported today would be overridden tomorrow.
    let ours = known_uid.is_some_and(|uid| !uid.is_empty() || record.is_some());
    Some(Step {
        object,
        why,
        force: ours || options.conflicts_override,
        claim: match (record, known_uid) {
            (Some(record), _) => Claim::Confirmed(&record.uid),
            (None, Some("")) => Claim::Unconfirmed,
            (None, Some(uid)) => Claim::Confirmed(uid),
            (None, None) => Claim::New,
        },
    })
}
