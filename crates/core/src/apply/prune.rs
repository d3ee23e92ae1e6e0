//! What may be deleted. Absence is not intent: see [`plan_prune`] and [`prune_verdict`].

use std::collections::{BTreeMap, BTreeSet};

use super::{Options, PruneHold, budget};
use crate::inventory::{Entry, Inventory};
use crate::object::{ObjectKey, Phase, RenderedSet};

/// What the member says of an object that is to be pruned.
#[derive(Clone, Copy, Debug)]
pub struct Live<'a> {
    /// `metadata.uid`.
    pub uid: &'a str,
    /// The value of the owner label; `None` without the label.
    pub owner: Option<&'a str>,
    /// Whether our own entry of `metadata.managedFields` holds the owner label. Controllers copy labels from
    /// object to object; they do not copy `managedFields`.
    pub owner_is_applied: bool,
    /// Whether somebody asks to keep it: `starling.dev/prune: disabled`, or `starling.dev/reconcile: disabled`, which is to
    /// leave it as it is.
    pub prune_disabled: bool,
}

#[cfg(test)]
impl Live<'static> {
    /// An object of the owner "me", as tests begin with.
    pub(super) const MINE: Self = Self {
        uid: "u",
        owner: Some("me"),
        owner_is_applied: true,
        prune_disabled: false,
    };
}

impl Live<'_> {
    /// Whether an apply of this owner was taken once; what was let go since still shows it.
    #[must_use]
    pub fn is_applied_by(&self, owner: &str) -> bool {
        self.owner == Some(owner) && self.owner_is_applied
    }
}

/// What happens to one entry of the inventory that is to be pruned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PruneVerdict {
    /// Delete it, with this UID as the precondition.
    Delete {
        /// The UID of the live object.
        uid: String,
    },
    /// It does not exist: drop the entry.
    Gone,
    /// The object of that name is not the one of the entry, or belongs to another Sync by now: drop the entry and
    /// leave the object alone.
    Foreign,
    /// Somebody wants it to stay: drop the entry and leave the object alone.
    Protected,
}

/// Decides about one entry, with the object as it is on the member now.
///
/// An object that carries the label of another owner was handed over: deleting it would take it from the new
/// owner. An entry without a UID was claimed and never confirmed; its object is ours only if we applied the label.
#[must_use]
pub fn prune_verdict(entry: &Entry, live: Option<Live<'_>>, owner: &str) -> PruneVerdict {
    let Some(live) = live else {
        return PruneVerdict::Gone;
    };
    let handed_over = live.owner.is_some_and(|label| label != owner);
    let ours = if entry.uid.is_empty() {
        live.is_applied_by(owner)
    } else {
        live.uid == entry.uid
    };
    if !ours || handed_over || live.uid.is_empty() {
        PruneVerdict::Foreign
    } else if live.prune_disabled {
        PruneVerdict::Protected
    } else {
        PruneVerdict::Delete {
            uid: live.uid.to_owned(),
        }
    }
}

/// What the rest of the fleet's intent says about objects that left this render.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    /// What other Syncs of the same owner hold, or are about to hold, on this member.
    Known(BTreeSet<ObjectKey>),
    /// It could not be found out, for this reason: nothing may be pruned.
    Unknown(String),
}

impl Elsewhere {
    /// Nothing is held elsewhere.
    #[must_use]
    pub const fn nothing() -> Self {
        Self::Known(BTreeSet::new())
    }
}

/// What stands between an object that left the render and its deletion.
#[derive(Clone, Copy, Debug)]
pub struct Guard<'a> {
    /// What others hold.
    pub elsewhere: &'a Elsewhere,
    /// The digests of deletions that a person approved: see [`budget::is_approved`].
    pub approved: &'a str,
}

/// What is to be taken away, and what is not.
#[derive(Debug, Default)]
pub(super) struct Pruning {
    /// The entries to prune by phase, last phase first.
    pub(super) prune: Vec<(Phase, Vec<Entry>)>,
    /// Entries whose objects another Sync of the same owner takes over.
    pub(super) handed_over: Vec<Entry>,
    /// Why `prune` is empty although there is something to prune.
    pub(super) hold: Option<PruneHold>,
}

/// The objects of an inventory that a render lacks.
#[must_use]
pub fn left_over(inventory: &Inventory, desired: &RenderedSet) -> Vec<Entry> {
    let wanted: BTreeSet<&ObjectKey> = desired.objects.iter().map(|object| &object.key).collect();
    let left = inventory.iter().filter(|(key, _)| !wanted.contains(key));
    left.map(|(key, uid)| Entry {
        key: key.clone(),
        uid: uid.to_owned(),
    })
    .collect()
}

/// Why nothing may be pruned, whatever was left over.
#[must_use]
pub fn never_prunes(desired: &RenderedSet, options: Options) -> Option<PruneHold> {
    if !options.prune {
        Some(PruneHold::Off)
    } else if desired.objects.is_empty() && !options.allow_empty {
        Some(PruneHold::EmptyRender)
    } else {
        None
    }
}

/// What to prune, or why nothing is.
pub(super) fn plan_prune(
    inventory: &Inventory,
    desired: &RenderedSet,
    options: Options,
    guard: Guard<'_>,
) -> Pruning {
    let held = |hold| Pruning {
        hold: Some(hold),
        ..Pruning::default()
    };
    let left = left_over(inventory, desired);
    if left.is_empty() {
        return Pruning::default();
    }
    if let Some(hold) = never_prunes(desired, options) {
        return held(hold);
    }
    let elsewhere = match guard.elsewhere {
        Elsewhere::Known(keys) => keys,
        Elsewhere::Unknown(why) => return held(PruneHold::Unsure(why.clone())),
    };
    let (handed_over, doomed): (Vec<Entry>, Vec<Entry>) =
        left.into_iter().partition(|entry| elsewhere.contains(&entry.key));
    let hold = budget::hold(inventory, &doomed, guard.approved).map(PruneHold::Budget);
    let prune = if hold.is_none() {
        in_reverse(doomed)
    } else {
        Vec::new()
    };
    Pruning {
        prune,
        handed_over,
        hold,
    }
}

/// Entries by phase, last phase first: the order in which they are deleted.
#[must_use]
pub fn in_reverse(entries: impl IntoIterator<Item = Entry>) -> Vec<(Phase, Vec<Entry>)> {
    let mut phases: BTreeMap<Phase, Vec<Entry>> = BTreeMap::new();
    for entry in entries {
        phases.entry(Phase::of(&entry.key)).or_default().push(entry);
    }
    phases.into_iter().rev().collect()
}
