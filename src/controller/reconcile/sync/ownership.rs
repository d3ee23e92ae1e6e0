//! Whose the objects are that this Sync wants and has not, or that carry another owner's label.
//!
//! Asked of the ledger and the caches alone, and only about objects that are new to the Sync: the normal apply costs
//! nothing here. A ledger that was lost knows no owner; then the labels do, at the next check for drift.

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

/// What is to be known of ownership before an attempt writes.
#[derive(Debug, Default)]
pub(super) struct Ownership {
    /// Objects that stay with others, and with whom.
    pub(super) kept: BTreeMap<ObjectId, String>,
    /// Objects that another owner had and hands over: they are applied whatever the records say.
    pub(super) handed_over: BTreeSet<ObjectId>,
}

/// `drifted` are objects that were checked just now: another owner's label that is still remembered of them is gone.
pub(super) async fn ownership(
    context: SyncContext<'_>,
    observed: &Observed,
    desired: &RenderedSet,
    records: &BTreeMap<ObjectId, Record>,
    drifted: &BTreeSet<ObjectId>,
) -> Ownership {
    let label = |key: &ObjectId| {
        let record = records.get(key).filter(|_| !drifted.contains(key))?;
        Some(record.terms.owner.as_str()).filter(|label| !label.is_empty())
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

/// The other Syncs on the same cluster, by owner. The cluster is known by its identity: another namespace may have a
/// Cluster of its own for it.
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
        // The objects of a Sync that is about to be deleted go to the Sync that wants them: an entry that was renamed
        // finds its own objects there.
        .filter(|other| !other.is_retired(context))
        .map(|other| {
            let claimant = Claimant {
                name: format!("Sync {}", other.key),
                settled: is_settled(&other) && is_admitted_alike(observed, &other),
            };
            (other.owner.into_string(), claimant)
        })
        .collect()
}

/// Whether another Sync of the same group is at the same release. Until it is, what it will want is not known: in one
/// commit an object may leave it and come to us, and the two are not admitted at the same instant.
fn is_admitted_alike(observed: &Observed, other: &Observed) -> bool {
    let release = |sync: &Observed| sync.object.annotations().get(RELEASE).cloned();
    let group = observed.group_key();
    let same_group = group.is_some() && group == other.group_key();
    !same_group || release(observed) == release(other)
}

/// Whether the cluster holds what the Sync wants now. A suspended Sync may; one whose parameters do not resolve has no
/// target.
fn is_settled(other: &Observed) -> bool {
    let spec = resolve(&other.object.spec, other.cluster.as_deref());
    let wanted = spec.ok().and_then(|spec| other.target_of(&spec));
    wanted.is_some_and(|wanted| progress::holds(&other.status, &wanted, other.cluster_id.as_str()))
}
