//! The removals of a group: the Syncs that it no longer wants, with the objects in their inventories,
//! and the objects that a previewed release no longer has.

use std::collections::BTreeMap;

use kube::ResourceExt as _;
use serde::Serialize;
use starling_api::{DeletionPolicy, SyncGroup, SyncResource};
use starling_core::deletion_hold;
use starling_core::preview::{Overview, PreviewChange};

/// Why a group takes objects away.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "cause", rename_all_fields = "camelCase")]
pub enum RemovalCause {
    /// The group is being deleted.
    GroupDeleted,
    /// The group no longer selects the clusters.
    ClusterUnselected,
    /// The group no longer has an entry.
    EntryRemoved {
        /// The name of the entry.
        entry: String,
    },
    /// Objects of an entry wait for an approval or for a deletion budget.
    DeletionsHeld {
        /// The name of the entry.
        entry: String,
        /// The reason why they wait, with the command that approves them, and the first of them.
        message: String,
    },
    /// The release no longer has objects of an entry.
    ObjectsRemoved {
        /// The name of the entry.
        entry: String,
    },
}

/// Objects that are taken away for the same reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedRemoval {
    /// The reason.
    #[serde(flatten)]
    pub cause: RemovalCause,
    /// `Delete`: the objects are deleted. `Orphan`: they stay, and Starling gives them up.
    pub policy: DeletionPolicy,
    /// The number of objects on all clusters together.
    pub objects: usize,
    /// The names of the clusters.
    pub clusters: Vec<String>,
}

/// Finds the Syncs that a group no longer wants.
#[must_use]
pub fn of_syncs<'a>(
    group: &SyncGroup,
    is_selected: impl Fn(&str) -> bool,
    syncs: impl Iterator<Item = (&'a str, &'a str, &'a SyncResource)>,
) -> Vec<PlannedRemoval> {
    let mut found = Found::default();
    for (cluster, entry, sync) in syncs {
        if let Some((cause, policy)) = removal(group, is_selected(cluster), entry, sync) {
            let status = sync.status.as_ref();
            let objects = status.map_or(0, |status| status.inventory.objects as usize);
            found.add(cause, policy, cluster, objects);
        }
        if let Some(hold) = sync
            .status
            .as_ref()
            .and_then(|status| status.held_deletions.as_ref())
        {
            let namespace = group.namespace().unwrap_or_default();
            let arguments = format!("group {} -n {namespace}", group.name_any());
            let message = deletion_hold::message(&arguments, hold);
            let cause = RemovalCause::DeletionsHeld {
                entry: entry.to_owned(),
                message: format!("{message}: {}", deletion_hold::objects(hold)),
            };
            found.add(cause, DeletionPolicy::Delete, cluster, hold.deletions as usize);
        }
    }
    found.into_list()
}

/// Finds the objects that the previewed release no longer has.
#[must_use]
pub fn of_preview(overview: &Overview) -> Vec<PlannedRemoval> {
    let mut found = Found::default();
    for distinct in &overview.changes {
        let deleted = distinct.objects.iter();
        for object in deleted.filter(|object| object.change == PreviewChange::Delete) {
            for cluster in &distinct.clusters {
                let cause = RemovalCause::ObjectsRemoved {
                    entry: object.entry.clone(),
                };
                found.add(cause, DeletionPolicy::Delete, cluster, 1);
            }
        }
    }
    found.into_list()
}

/// Returns why the group no longer wants a Sync, and what happens to its objects; `None`: the group wants it.
fn removal(
    group: &SyncGroup,
    is_selected: bool,
    entry: &str,
    sync: &SyncResource,
) -> Option<(RemovalCause, DeletionPolicy)> {
    if group.metadata.deletion_timestamp.is_some() {
        return Some((RemovalCause::GroupDeleted, group.spec.deletion_policy));
    }
    if !is_selected {
        return Some((RemovalCause::ClusterUnselected, group.spec.when_unselected));
    }
    let is_wanted = group.spec.syncs.iter().any(|known| known.name == entry);
    (!is_wanted).then(|| {
        let entry = entry.to_owned();
        (
            RemovalCause::EntryRemoved { entry },
            sync.spec.template.deletion_policy,
        )
    })
}

/// Removals by reason and policy: the objects on each cluster.
#[derive(Default)]
struct Found(BTreeMap<(RemovalCause, DeletionPolicy), BTreeMap<String, usize>>);

impl Found {
    fn add(&mut self, cause: RemovalCause, policy: DeletionPolicy, cluster: &str, objects: usize) {
        let clusters = self.0.entry((cause, policy)).or_default();
        *clusters.entry(cluster.to_owned()).or_default() += objects;
    }

    fn into_list(self) -> Vec<PlannedRemoval> {
        let removals = self.0.into_iter();
        removals
            .map(|((cause, policy), clusters)| PlannedRemoval {
                cause,
                policy,
                objects: clusters.values().sum(),
                clusters: clusters.into_keys().collect(),
            })
            .collect()
    }
}
