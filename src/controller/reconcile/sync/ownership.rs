//! Determines the owners of objects that the Sync renders and has not applied, or that carry the label of another
//! owner.
//!
//! The decision uses only the ledger and the caches, and only for objects that are new to the Sync, so that a usual
//! apply has no cost. After a loss of the ledger the owners are unknown; the next drift check finds the labels.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use starling_api::RELEASE;
use starling_core::apply::{Claimant, Record, kept_by};
use starling_core::object::{ObjectId, RenderedSet};
use starling_core::progress;

use super::observe::{Observed, observe};
use super::resolve::resolve;
use crate::controller::cache::ObjectKey;
use crate::controller::context::SyncContext;

/// The ownership of objects before an attempt writes.
#[derive(Debug, Default)]
pub(super) struct Ownership {
    /// Objects that stay with other owners, with these owners.
    pub(super) kept: BTreeMap<ObjectId, String>,
    /// Objects that another owner hands over: they are applied, whatever the records contain.
    pub(super) handed_over: BTreeSet<ObjectId>,
}

/// Determines the ownership. `drifted` contains objects that were checked just now: another owner's label in their
/// records no longer exists.
pub(super) async fn ownership(
    context: SyncContext<'_>,
    observed: &Observed,
    desired: &RenderedSet,
    records: &BTreeMap<ObjectId, Record>,
    drifted: &BTreeSet<ObjectId>,
) -> Ownership {
    let label = |key: &ObjectId| {
        let record = records.get(key).filter(|_| !drifted.contains(key))?;
        Some(record.management.owner.as_str()).filter(|label| !label.is_empty())
    };
    let questions: BTreeSet<ObjectId> = desired
        .objects
        .iter()
        .map(|object| &object.key)
        .filter(|key| !records.contains_key(*key) || label(key).is_some())
        .cloned()
        .collect();
    let recorded = context
        .ledger
        .other_owners(observed.cluster_id.as_str(), observed.owner.as_str(), &questions)
        .await
        .unwrap_or_else(|error| {
            tracing::error!(sync = %observed.key, error = %crate::chain(&error), "other owners not read");
            BTreeMap::new()
        });
    let mut ownership = Ownership::default();
    let disputed: Vec<_> = questions
        .into_iter()
        .filter(|key| recorded.contains_key(key) || label(key).is_some())
        .collect();
    if disputed.is_empty() {
        return ownership;
    }
    let claimants = claimants(context, observed);
    for key in disputed {
        let owners = recorded.get(&key).map(Vec::as_slice).unwrap_or_default();
        match kept_by(owners, label(&key), &claimants) {
            Some(by) => drop(ownership.kept.insert(key, by)),
            None if label(&key).is_some() => drop(ownership.handed_over.insert(key)),
            None => {}
        }
    }
    ownership
}

/// Returns the other Syncs on the same member, by owner. The member is known by its identity, because a Cluster in
/// another namespace may connect to it.
fn claimants(context: SyncContext<'_>, observed: &Observed) -> BTreeMap<String, Claimant> {
    let id = &observed.cluster_id;
    let mut clusters: BTreeSet<ObjectKey> = context
        .objects
        .clusters
        .indexed(&ObjectKey::new("", id.as_str()))
        .iter()
        .map(|cluster| ObjectKey::of(&**cluster))
        .collect();
    clusters.insert(observed.cluster_key());
    clusters
        .iter()
        .flat_map(|cluster| context.objects.syncs.indexed(cluster))
        .map(|sync| ObjectKey::of(&*sync))
        .filter(|key| *key != observed.key)
        .filter_map(|key| observe(context, &key))
        .filter(|other| other.cluster_id == *id && other.object.metadata.deletion_timestamp.is_none())
        // The objects of a Sync that is about to be deleted belong to the Sync that renders them, so that a renamed
        // entry finds its own objects.
        .filter(|other| !other.is_retired())
        .map(|other| {
            let claimant = Claimant {
                name: format!("Sync {}", other.key),
                settled: is_settled(&other) && is_admitted_alike(observed, &other),
            };
            (other.owner.into_string(), claimant)
        })
        .collect()
}

/// Returns whether another Sync of the same group is at the same release. Until then the objects that it will render
/// are unknown: one commit may move an object to this Sync, and the two Syncs are not admitted at the same time.
fn is_admitted_alike(observed: &Observed, other: &Observed) -> bool {
    let release = |sync: &Observed| sync.object.annotations().get(RELEASE).cloned();
    let group = observed.group_key();
    let same_group = group.is_some() && group == other.group_key();
    !same_group || release(observed) == release(other)
}

/// Returns whether the current target of a Sync is applied. That may be true of a suspended Sync. A Sync with
/// unresolved parameters has no target.
fn is_settled(other: &Observed) -> bool {
    let spec = resolve(&other.object.spec, other.cluster.as_deref());
    let wanted = spec.ok().and_then(|spec| other.target_of(&spec));
    wanted.is_some_and(|wanted| progress::holds(&other.status, &wanted, other.cluster_id.as_str()))
}
