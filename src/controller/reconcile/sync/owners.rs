//! The owners of objects on a member: its other Syncs, and the labels that Syncs left behind.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt as _;
use starling_api::{DeletionPolicy, SyncGroup};
use starling_core::ids::OwnerLabel;
use starling_core::target::{self, Owner};
use starling_member::OtherOwner;

use super::dependencies;
use super::observe::{SyncSnapshot, observe};
use crate::controller::context::SyncContext;
use crate::controller::object_key::ObjectKey;

/// Returns the other Syncs on the same member that keep their objects.
pub(super) fn others(context: SyncContext<'_>, observed: &SyncSnapshot) -> Vec<SyncSnapshot> {
    on_member(context, observed)
        .filter(|other| other.object.metadata.deletion_timestamp.is_none())
        // The objects of a Sync that is about to be deleted belong to the Sync that renders them, so that a renamed
        // entry, or a cluster that moves to another group, finds its own objects.
        .filter(|other| !other.leaves())
        .collect()
}

/// Returns all other Syncs on the member, also those that are being deleted or leave their groups, by their owner
/// labels.
pub(super) fn all(context: SyncContext<'_>, observed: &SyncSnapshot) -> BTreeMap<OwnerLabel, OtherOwner> {
    on_member(context, observed)
        .map(|other| {
            let goes = goes(context, observed, &other);
            let name = other.key.shown_to(&observed.key.namespace, "Sync");
            (other.owner, OtherOwner { name, goes })
        })
        .collect()
}

/// Returns whether a Sync deletes its objects, or will, before this one has to be done. A Sync that this one depends on
/// waits for this one.
fn goes(context: SyncContext<'_>, observed: &SyncSnapshot, other: &SyncSnapshot) -> bool {
    let object = &other.object;
    let is_deleted = object.metadata.deletion_timestamp.is_some();
    let template = &object.spec.template;
    let group = other.group.as_ref();
    let group = group.filter(|group| group.metadata.deletion_timestamp.is_some());
    if !is_deleted && group.is_none() && !other.leaves() {
        return false;
    }
    let policy = group.map_or(template.deletion_policy, |group| group.spec.deletion_policy);
    policy == DeletionPolicy::Delete
        && !template.suspend
        && !(observed.key.namespace == other.key.namespace
            && dependencies::depends(context, &observed.key, &other.key.name))
}

/// Returns the other Syncs on the same member. The member is known by its identity, because a Cluster in another
/// namespace may connect to it.
fn on_member<'a>(
    context: SyncContext<'a>,
    observed: &'a SyncSnapshot,
) -> impl Iterator<Item = SyncSnapshot> + 'a {
    clusters_of(context, observed)
        .into_iter()
        .flat_map(move |cluster| context.objects.syncs.indexed(&cluster))
        .map(|sync| ObjectKey::of(&*sync))
        .filter(move |key| *key != observed.key)
        .filter_map(move |key| observe(context, &key))
        .filter(move |other| other.cluster_id == observed.cluster_id)
}

/// Returns the Clusters that connect to the member.
fn clusters_of(context: SyncContext<'_>, observed: &SyncSnapshot) -> BTreeSet<ObjectKey> {
    let id = ObjectKey::new("", observed.cluster_id.as_str());
    let clusters = context.objects.clusters.indexed(&id);
    let mut clusters: BTreeSet<ObjectKey> =
        clusters.iter().map(|cluster| ObjectKey::of(&**cluster)).collect();
    clusters.insert(observed.cluster_key());
    clusters
}

/// Returns whether a label is that of an entry of this installation, and no Sync on the member has it that keeps its
/// objects: the cluster was in the group of the entry for a while.
pub(super) fn has_given_up(context: SyncContext<'_>, observed: &SyncSnapshot, label: &str) -> bool {
    let clusters = clusters_of(context, observed);
    let namespaces: BTreeSet<&str> = clusters
        .iter()
        .map(|cluster| cluster.namespace.as_str())
        .collect();
    let is_ours = namespaces.into_iter().any(|namespace| {
        let groups = context.objects.groups.in_namespace(namespace);
        groups.iter().any(|group| {
            let name = group.name_any();
            entries_of(group).iter().any(|entry| {
                let owner = Owner::Entry { group: &name, entry };
                target::owner(context.installation, namespace, owner).as_str() == label
            })
        })
    });
    is_ours
        && !others(context, observed)
            .iter()
            .any(|other| other.owner.as_str() == label)
}

/// Returns the entries that a group has, or has rolled out.
fn entries_of(group: &SyncGroup) -> BTreeSet<&str> {
    let status = group.status.as_ref();
    let rollout = status.and_then(|status| status.rollout.as_ref());
    let good = status.and_then(|status| status.last_known_good.as_ref());
    let rolled = rollout.into_iter().flat_map(|rollout| &rollout.revisions);
    let rolled = rolled.chain(good.into_iter().flat_map(|good| &good.revisions));
    let wanted = group.spec.syncs.iter().map(|entry| entry.name.as_str());
    wanted.chain(rolled.map(|of| of.sync.as_str())).collect()
}
