//! Whose the objects are that this Sync wants and has not, or that carry another owner's label.
//!
//! Asked of the ledger and the caches alone, and only about objects that are new to the Sync: the normal apply costs nothing
//! here. A ledger that was lost knows of nobody; then the labels tell, at the next look for drift.

use std::collections::{BTreeMap, BTreeSet};

use starling_core::apply::{Claimant, Record, kept_by};
use starling_core::object::{ObjectKey, RenderedSet};
use starling_core::{step, target};

use super::observe::{Observed, observe};
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
    let others = context.syncs.select(|_| true);
    others
        .iter()
        .map(|sync| cache::ObjectKey::of(&**sync))
        .filter(|key| *key != observed.key)
        .filter_map(|key| observe(context, &key))
        .filter(|other| other.cluster_id() == id && other.sync.metadata.deletion_timestamp.is_none())
        .map(|other| {
            let claimant = Claimant {
                name: format!("Sync {}", other.key),
                settled: is_settled(&other),
            };
            (other.owner, claimant)
        })
        .collect()
}

/// Whether the cluster holds what the Sync wants now.
fn is_settled(sync: &Observed) -> bool {
    let revision = match (&sync.spec.revision, &sync.spec.group_ref) {
        (revision, None) if revision.is_empty() => sync.source_revision(),
        (revision, _) => Some(revision.as_str()).filter(|revision| !revision.is_empty()),
    };
    revision.is_some_and(|revision| {
        let wanted = target::of_sync(revision, &sync.spec.template);
        step::holds(&sync.status, &wanted, sync.cluster_id())
    })
}
