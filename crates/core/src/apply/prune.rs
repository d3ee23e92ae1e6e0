//! What may be deleted. Absence is not intent: see [`plan_prune`] and [`prune_verdict`].

use std::collections::{BTreeMap, BTreeSet};

use super::{Options, PruneHold};
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
        live.owner == Some(owner) && live.owner_is_applied
    } else {
        live.uid == entry.uid
    };
    if ours && !handed_over && !live.uid.is_empty() {
        PruneVerdict::Delete {
            uid: live.uid.to_owned(),
        }
    } else {
        PruneVerdict::Foreign
    }
}

/// The entries to prune by phase, last phase first, or why they are kept.
pub(super) fn plan_prune(
    inventory: &Inventory,
    desired: &RenderedSet,
    options: Options,
) -> (Vec<(Phase, Vec<Entry>)>, Option<PruneHold>) {
    let wanted: BTreeSet<&ObjectKey> = desired.objects.iter().map(|object| &object.key).collect();
    let mut left: BTreeMap<Phase, Vec<Entry>> = BTreeMap::new();
    for (key, uid) in inventory.iter().filter(|(key, _)| !wanted.contains(key)) {
        left.entry(Phase::of(key)).or_default().push(Entry {
            key: key.clone(),
            uid: uid.to_owned(),
        });
    }
    if left.is_empty() {
        (Vec::new(), None)
    } else if !options.prune {
        (Vec::new(), Some(PruneHold::Off))
    } else if desired.objects.is_empty() && !options.allow_empty {
        (Vec::new(), Some(PruneHold::EmptyRender))
    } else {
        (left.into_iter().rev().collect(), None)
    }
}
