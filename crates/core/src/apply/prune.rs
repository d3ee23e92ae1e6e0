//! Decides which objects may be deleted. Absence is not intent: see [`plan_prune`] and [`prune_verdict`].

use std::collections::{BTreeMap, BTreeSet};

use starling_api::SYSTEM_NAMESPACE;

use super::approved::ApprovedDeletions;
use super::budget::Confirmation;
use super::containers::may_contain;
use super::grace::Grace;
use super::{Options, PruneBlocker, budget};
use crate::deletion_budget::Earlier;
use crate::ids::{OwnerLabel, Uid};
use crate::inventory::{Inventory, InventoryEntry, Origin};
use crate::object::{DeletionStep, ObjectId, RenderedSet};

/// The live state of an object that is to be pruned.
#[derive(Clone, Copy, Debug)]
pub struct Live<'a> {
    /// `metadata.uid`.
    pub uid: &'a str,
    /// The value of the owner label; `None` without the label.
    pub owner: Option<&'a str>,
    /// Whether our own entry of `metadata.managedFields` holds the owner label. Controllers copy labels from
    /// object to object; they do not copy `managedFields`.
    pub owner_is_applied: bool,
    /// Whether the object is to be kept: it has `starling.dev/prune: disabled`, or `starling.dev/reconcile: disabled`,
    /// which leaves it as it is.
    pub prune_disabled: bool,
}

#[cfg(test)]
impl Live<'static> {
    /// An object of the owner "me", for tests.
    pub(super) const MINE: Self = Self {
        uid: "u",
        owner: Some("me"),
        owner_is_applied: true,
        prune_disabled: false,
    };
}

impl Live<'_> {
    /// Reports whether an apply of this owner succeeded once; an object that was released still shows it.
    #[must_use]
    pub fn is_applied_by(&self, owner: &OwnerLabel) -> bool {
        self.owner == Some(owner.as_str()) && self.owner_is_applied
    }
}

/// The decision about an inventory entry that is to be pruned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PruneVerdict {
    /// Delete the object, with this UID as the precondition.
    Delete {
        /// The UID of the live object.
        uid: Uid,
    },
    /// The object does not exist: drop the entry.
    Gone,
    /// The object of that name is another one than that of the entry: drop the entry and leave the object alone.
    Foreign,
    /// The object belongs to another owner by now: drop the entry and leave the object alone.
    HandedOver,
    /// The object is to be kept: drop the entry and leave the object alone.
    Protected,
}

/// Decides about one entry, by the live object.
///
/// An object with the label of another owner was handed over: deleting it would take it from that owner. An entry
/// without a UID was claimed and never confirmed; its object is ours only if we applied the label.
#[must_use]
pub fn prune_verdict(entry: &InventoryEntry, live: Option<Live<'_>>, owner: &OwnerLabel) -> PruneVerdict {
    let Some(live) = live else {
        return PruneVerdict::Gone;
    };
    let handed_over = live.owner.is_some_and(|label| label != owner.as_str());
    let ours = if entry.listed.uid.is_empty() {
        live.is_applied_by(owner)
    } else {
        live.uid == entry.listed.uid
    };
    if handed_over {
        PruneVerdict::HandedOver
    } else if !ours || live.uid.is_empty() {
        PruneVerdict::Foreign
    } else if live.prune_disabled {
        PruneVerdict::Protected
    } else {
        PruneVerdict::Delete { uid: live.uid.into() }
    }
}

/// The objects that left this render and that other Syncs want.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SiblingObjects {
    /// The objects that other Syncs of the same owner hold, or are about to hold, on this member.
    Known(BTreeSet<ObjectId>),
    /// The objects of other Syncs are unknown, for this reason: nothing may be pruned.
    Unknown(String),
}

impl SiblingObjects {
    /// Returns that no other Sync holds anything.
    #[must_use]
    pub const fn nothing() -> Self {
        Self::Known(BTreeSet::new())
    }
}

/// The protection from deletion for an object that left the render.
#[derive(Clone, Copy, Debug)]
pub struct Guard<'a> {
    /// The objects that other Syncs hold.
    pub siblings: &'a SiblingObjects,
    /// Objects that are being deleted already, and wait for their finalizers. Nothing is decided about them any more.
    pub begun: &'a BTreeSet<ObjectId>,
    /// Objects that are gone. They have no grace: one that went after the last attempt saw it would be pending for a
    /// grace that the next release brings.
    pub gone: &'a BTreeSet<ObjectId>,
    /// The deletions of the Sync within the window.
    pub earlier: Earlier<'a>,
    /// The kinds and objects that are deleted only after an approval.
    pub confirmation: Confirmation<'a>,
    /// The time between the first render that lacks an object and its deletion.
    pub grace: Grace<'a>,
    /// The approval of the deletions.
    pub approval: ApprovedDeletions<'a>,
}

/// The objects that are pruned, and those that are not.
#[derive(Debug, Default)]
pub(super) struct Pruning {
    /// The entries to prune by step, in order.
    pub(super) prune: Vec<(DeletionStep, Vec<InventoryEntry>)>,
    /// Entries whose objects another Sync of the same owner takes over.
    pub(super) handed_over: Vec<InventoryEntry>,
    /// Objects that are given up and not deleted.
    pub(super) relinquished: Vec<InventoryEntry>,
    /// Objects that a user took back from deletion.
    pub(super) undeleted: Vec<InventoryEntry>,
    /// Objects whose grace has not ended, with its start.
    pub(super) pending: Vec<InventoryEntry>,
    /// Objects whose deletion requires an approval, and those that are given up with them.
    pub(super) held: Vec<InventoryEntry>,
    /// The reason why `prune` lacks objects that left the render.
    pub(super) blocker: Option<PruneBlocker>,
}

/// Returns the objects of an inventory that a render lacks.
#[must_use]
pub fn left_over(inventory: &Inventory, desired: &RenderedSet) -> Vec<InventoryEntry> {
    let wanted: BTreeSet<&ObjectId> = desired.objects.iter().map(|object| &object.key).collect();
    let left = inventory.iter().filter(|(key, _)| !wanted.contains(key));
    left.filter_map(|(key, _)| inventory.entry(key)).collect()
}

/// Reports whether an object is relinquished and not deleted: its deletion requires an approval, and it is not known
/// that an apply created it. A namespace that a person made has content that no inventory lists, and what a person
/// protects and made is theirs. The namespace of the inventories is never deleted: all Syncs of the cluster would lose
/// them.
#[must_use]
pub fn is_relinquished(entry: &InventoryEntry, confirmation: Confirmation<'_>) -> bool {
    let has_inventories = entry.key.kind == "Namespace" && entry.key.name == SYSTEM_NAMESPACE;
    confirmation.is_required(&entry.key) && (has_inventories || entry.listed.origin != Origin::Created)
}

/// Returns why nothing may be pruned, whatever left the render.
#[must_use]
pub fn never_prunes(desired: &RenderedSet, options: Options) -> Option<PruneBlocker> {
    if !options.prune {
        Some(PruneBlocker::Off)
    } else if desired.objects.is_empty() && !options.allow_empty {
        Some(PruneBlocker::EmptyRender)
    } else {
        None
    }
}

/// Returns what to prune, or why nothing is pruned.
pub(super) fn plan_prune(
    inventory: &Inventory,
    desired: &RenderedSet,
    options: Options,
    guard: Guard<'_>,
) -> Pruning {
    let blocked = |blocker| Pruning {
        blocker: Some(blocker),
        ..Pruning::default()
    };
    let left = left_over(inventory, desired);
    if left.is_empty() {
        return Pruning::default();
    }
    if let Some(blocker) = never_prunes(desired, options) {
        return blocked(blocker);
    }
    let siblings = match guard.siblings {
        SiblingObjects::Known(keys) => keys,
        SiblingObjects::Unknown(why) => return blocked(PruneBlocker::HandOverUnknown(why.clone())),
    };
    let (handed_over, left): (Vec<InventoryEntry>, Vec<InventoryEntry>) =
        left.into_iter().partition(|entry| siblings.contains(&entry.key));
    let (begun, left): (Vec<InventoryEntry>, Vec<InventoryEntry>) = left
        .into_iter()
        .partition(|entry| guard.begun.contains(&entry.key));
    let super::grace::Split {
        undeleted,
        pending,
        due,
    } = guard.grace.split(left, inventory, guard.gone);
    // What is given up loses the labels and annotations that were applied, so it waits as well: a hold or a grace is
    // for the whole of what left the render.
    let (relinquished, due): (Vec<InventoryEntry>, Vec<InventoryEntry>) = due
        .into_iter()
        .partition(|entry| is_relinquished(entry, guard.confirmation));
    let (pending, due) = wait_for_contents(pending, due);
    let mut pruning = Pruning {
        handed_over,
        relinquished,
        undeleted,
        pending,
        ..Pruning::default()
    };
    match budget::exceeded(
        inventory,
        &due,
        desired.objects.len(),
        guard.earlier,
        guard.confirmation,
        guard.approval,
    ) {
        Some(held) => {
            pruning.blocker = Some(PruneBlocker::Budget(held));
            pruning.held = due;
            pruning.held.append(&mut pruning.relinquished);
            pruning.prune = by_step(begun);
        }
        None => pruning.prune = by_step(begun.into_iter().chain(due)),
    }
    pruning
}

/// Moves containers of objects whose grace has not ended from those that are due to those that are pending: their
/// deletion would end the grace of what is in them.
fn wait_for_contents(
    mut pending: Vec<InventoryEntry>,
    due: Vec<InventoryEntry>,
) -> (Vec<InventoryEntry>, Vec<InventoryEntry>) {
    let (waiting, due): (Vec<InventoryEntry>, Vec<InventoryEntry>) = due.into_iter().partition(|entry| {
        let mut contents = pending.iter();
        contents.any(|content| may_contain(&entry.key, &content.key))
    });
    pending.extend(waiting);
    (pending, due)
}

/// Returns the entries by step, in the order in which they are deleted.
#[must_use]
pub fn by_step(
    entries: impl IntoIterator<Item = InventoryEntry>,
) -> Vec<(DeletionStep, Vec<InventoryEntry>)> {
    let mut steps: BTreeMap<DeletionStep, Vec<InventoryEntry>> = BTreeMap::new();
    for entry in entries {
        let step = DeletionStep::of(&entry.key);
        steps.entry(step).or_default().push(entry);
    }
    steps.into_iter().collect()
}
