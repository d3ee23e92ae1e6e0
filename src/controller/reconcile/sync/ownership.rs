//! Determines the owners of objects that the Sync renders and has not applied, or that carry the label of another
//! owner.
//!
//! The decision uses only the ledger and the caches, and only for objects that are new to the Sync, so that a usual
//! apply has no cost. After a loss of the ledger the owners are unknown; the next drift check finds the labels.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use starling_api::RELEASE;
use starling_core::apply::{Claimant, Record, kept_by};
use starling_core::ids::OwnerLabel;
use starling_core::object::{ObjectId, RenderedSet};
use starling_core::progress;

use super::observe::SyncSnapshot;
use super::owners::{has_given_up, others};
use super::resolve::resolve;
use super::siblings::SiblingsOf;
use crate::controller::context::SyncContext;

/// The ownership of objects before an attempt writes.
#[derive(Debug, Default)]
pub(super) struct Ownership {
    /// Objects that stay with other owners, with these owners.
    pub(super) kept: BTreeMap<ObjectId, String>,
    /// Objects that other owners have or had, and do not keep, with these owners.
    pub(super) former: BTreeMap<ObjectId, BTreeSet<OwnerLabel>>,
    /// Objects that another owner hands over: they are applied, whatever the records contain.
    pub(super) handed_over: BTreeSet<ObjectId>,
}

/// Drops the owners whose records belong to another attempt than the one that their status names: the ledger was set
/// back, and what they had may have been handed over since.
async fn forget_stale(
    context: SyncContext<'_>,
    observed: &SyncSnapshot,
    others: &[SyncSnapshot],
    recorded: &mut BTreeMap<ObjectId, Vec<OwnerLabel>>,
) {
    let holders: BTreeSet<&OwnerLabel> = recorded.values().flatten().collect();
    let mut stale = BTreeSet::new();
    for other in others.iter().filter(|other| holders.contains(&other.owner)) {
        let own = context.caches.attempts.get(&other.key);
        // One that cannot be read is believed: its objects stay with it.
        if let Ok(records) = context
            .ledger
            .load_records(&observed.cluster_id, &other.owner)
            .await
            && records.current(other.last_attempt(), own).is_none()
        {
            stale.insert(&other.owner);
        }
    }
    for owners in recorded.values_mut() {
        owners.retain(|owner| !stale.contains(owner));
    }
    recorded.retain(|_, owners| !owners.is_empty());
}

/// Determines the ownership before `revision` is applied. `drifted` contains objects that were checked just now:
/// another owner's label in their records no longer exists.
pub(super) async fn ownership(
    context: SyncContext<'_>,
    observed: &SyncSnapshot,
    revision: &str,
    desired: &RenderedSet,
    records: &BTreeMap<ObjectId, Record>,
    drifted: &BTreeSet<ObjectId>,
) -> Ownership {
    let label = |key: &ObjectId| {
        let record = records.get(key).filter(|_| !drifted.contains(key))?;
        Some(&record.management.owner).filter(|label| !label.is_empty())
    };
    let questions: BTreeSet<ObjectId> = desired
        .objects
        .iter()
        .map(|object| &object.key)
        .filter(|key| !records.contains_key(*key) || label(key).is_some())
        .cloned()
        .collect();
    let mut recorded = context
        .ledger
        .other_owners(&observed.cluster_id, &observed.owner, &questions)
        .await
        .unwrap_or_else(|error| {
            tracing::error!(sync = %observed.key, error = %crate::chain(&error), "owners of objects not read");
            BTreeMap::new()
        });
    let mut ownership = Ownership::default();
    let mut disputed: Vec<_> = questions
        .into_iter()
        .filter(|key| recorded.contains_key(key) || label(key).is_some())
        .collect();
    if disputed.is_empty() {
        return ownership;
    }
    let others = others(context, observed);
    forget_stale(context, observed, &others, &mut recorded).await;
    disputed.retain(|key| recorded.contains_key(key) || label(key).is_some());
    let holders: BTreeSet<&OwnerLabel> = disputed
        .iter()
        .flat_map(|key| recorded.get(key).into_iter().flatten())
        .collect();
    let mut claimants = BTreeMap::new();
    for other in others {
        let wants = if holders.contains(&other.owner) && rolls_apart(observed, &other, revision) {
            SiblingsOf { context, observed }
                .of_release(&other, revision)
                .await
        } else {
            None
        };
        let claimant = Claimant {
            name: other.key.shown_to(&observed.key.namespace, "Sync"),
            // A Sync that leaves takes nothing back from others.
            settled: observed.leaves() || is_settled(&other) && is_admitted_alike(observed, &other),
            wants,
        };
        claimants.insert(other.owner, claimant);
    }
    let gave_up = |label: &OwnerLabel| has_given_up(context, observed, label.as_str());
    for key in disputed {
        let owners = recorded.get(&key).map(Vec::as_slice).unwrap_or_default();
        let kept_by = kept_by(&key, owners, label(&key), &claimants, gave_up);
        if kept_by.is_none() {
            let former = owners.iter().chain(label(&key)).cloned().collect();
            ownership.former.insert(key.clone(), former);
        }
        match kept_by {
            Some(by) => drop(ownership.kept.insert(key, by)),
            None if label(&key).is_some() => drop(ownership.handed_over.insert(key)),
            None => {}
        }
    }
    ownership
}

/// Returns whether another Sync follows the same Source in a rollout of its own, and is at another revision. If the
/// commit moved an object to this Sync, the other one holds it only until its rollout gets to the commit.
fn rolls_apart(observed: &SyncSnapshot, other: &SyncSnapshot, revision: &str) -> bool {
    let source = |sync: &SyncSnapshot| sync.object.spec.template.source_ref.clone();
    other.group.is_some()
        && observed.key.namespace == other.key.namespace
        && observed.group_key() != other.group_key()
        && source(observed) == source(other)
        && other.object.spec.revision != revision
}

/// Returns whether another Sync of the same group is at the same release. Until then the objects that it will render
/// are unknown: one commit may move an object to this Sync, and the two Syncs are not admitted at the same time.
fn is_admitted_alike(observed: &SyncSnapshot, other: &SyncSnapshot) -> bool {
    let release = |sync: &SyncSnapshot| sync.object.annotations().get(RELEASE).cloned();
    let group = observed.group_key();
    let same_group = group.is_some() && group == other.group_key();
    !same_group || release(observed) == release(other)
}

/// Returns whether the current target of a Sync is applied. That may be true of a suspended Sync. A Sync with
/// unresolved parameters has no target.
fn is_settled(other: &SyncSnapshot) -> bool {
    let spec = resolve(&other.object.spec, other.cluster.as_deref());
    let wanted = spec.ok().and_then(|spec| other.target_of(&spec));
    wanted.is_some_and(|wanted| progress::has_applied(&other.status, &wanted, &other.cluster_id))
}
