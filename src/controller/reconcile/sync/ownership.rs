//! Whose the objects are that this Sync wants and has not, or that carry another owner's label.
//!
//! Asked of the ledger and the caches alone, and only about objects that are new to the Sync: the normal apply costs nothing
//! here. A ledger that was lost knows of nobody; then the labels tell, at the next look for drift.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use starling_api::RELEASE;
use starling_core::apply::{Claimant, Record, kept_by};
use starling_core::object::{ObjectKey, RenderedSet};
use starling_core::{progress, target};

use super::observe::{Observed, observe};
use super::{attempt, finalize};
use crate::controller::cache;
use crate::controller::context::Context;

/// What is to be known of ownership before an attempt writes.
#[derive(Debug, Default)]
pub(super) struct Ownership {
    /// Objects that stay with others, and with whom.
    pub(super) kept: BTreeMap<ObjectKey, String>,
    /// Objects that another owner had and hands over: they are applied whatever the records say.
    pub(super) handed_over: BTreeSet<ObjectKey>,
}

/// `drifted` are objects that were looked at just now: another owner's label that is still remembered of them is gone.
pub(super) async fn ownership(
    context: &Context,
    observed: &Observed,
    desired: &RenderedSet,
    records: &BTreeMap<ObjectKey, Record>,
    drifted: &BTreeSet<ObjectKey>,
) -> Ownership {
    let label = |key: &ObjectKey| {
        let record = records.get(key).filter(|_| !drifted.contains(key))?;
        Some(record.terms.owner.as_str()).filter(|label| !label.is_empty())
    };
    let questions: BTreeSet<ObjectKey> = desired
        .objects
        .iter()
        .map(|object| &object.key)
        .filter(|key| !records.contains_key(*key) || label(key).is_some())
        .cloned()
        .collect();
    let recorded = context
        .ledger
        .other_owners(observed.cluster_id(), &observed.owner, &questions)
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
fn claimants(context: &Context, observed: &Observed) -> BTreeMap<String, Claimant> {
    let id = observed.cluster_id();
    let mut clusters: BTreeSet<cache::ObjectKey> = context
        .clusters
        .indexed(&cache::ObjectKey::new("", id))
        .iter()
        .map(|cluster| cache::ObjectKey::of(&**cluster))
        .collect();
    clusters.insert(attempt::cluster_key(observed));
    clusters
        .iter()
        .flat_map(|cluster| context.syncs.indexed(cluster))
        .map(|sync| cache::ObjectKey::of(&*sync))
        .filter(|key| *key != observed.key)
        .filter_map(|key| observe(context, &key))
        .filter(|other| other.cluster_id() == id && other.sync.metadata.deletion_timestamp.is_none())
        // What a Sync on its way out has goes to whoever wants it: an entry that was renamed finds its own objects there.
        .filter(|other| !finalize::is_retired(context, other))
        .map(|other| {
            let claimant = Claimant {
                name: format!("Sync {}", other.key),
                settled: is_settled(&other) && is_admitted_alike(observed, &other),
            };
            (other.owner, claimant)
        })
        .collect()
}

/// Whether another Sync of the same group is at the same release. Until it is, what it will want is not known: in one commit
/// an object may leave it and come to us, and the two are not admitted at the same instant.
fn is_admitted_alike(observed: &Observed, other: &Observed) -> bool {
    let group = |sync: &Observed| sync.spec.group_ref.as_ref().map(|of| of.name.clone());
    let release = |sync: &Observed| sync.sync.annotations().get(RELEASE).cloned();
    let same_group = observed.key.namespace == other.key.namespace
        && observed.spec.group_ref.is_some()
        && group(observed) == group(other);
    !same_group || release(observed) == release(other)
}

/// Whether the cluster holds what the Sync wants now.
fn is_settled(sync: &Observed) -> bool {
    let revision = match (&sync.spec.revision, &sync.spec.group_ref) {
        (revision, None) if revision.is_empty() => sync.source_revision(),
        (revision, _) => Some(revision.as_str()).filter(|revision| !revision.is_empty()),
    };
    revision.is_some_and(|revision| {
        let wanted = target::of_sync(revision, &sync.spec.template);
        progress::holds(&sync.status, &wanted, sync.cluster_id())
    })
}
