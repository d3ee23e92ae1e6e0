//! The index of Syncs by group, cluster and entry. It changes with the cache of Syncs under the same lock, so that a
//! reconcile of a group does not scan all Syncs of its namespace.

use std::collections::btree_map::{BTreeMap, Entry};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;
use starling_api::SyncResource;

use super::cache::Cache;
use super::indexed::SecondaryIndex;
use crate::controller::object_key::ObjectKey;

/// The cache of Syncs.
pub type SyncCache = Cache<SyncResource, SyncIndex>;

/// The Syncs of each group, and the dependents of each Sync.
#[derive(Debug, Default)]
pub struct SyncIndex {
    by_group: HashMap<ObjectKey, Arc<GroupSyncs>>,
    /// Names of the Syncs that depend on each Sync.
    dependents: HashMap<ObjectKey, BTreeSet<String>>,
}

/// The Syncs of one group, including those that are no longer wanted. A reconcile keeps an immutable state: later
/// changes modify a copy that shares the unchanged clusters.
#[derive(Clone, Debug, Default)]
pub struct GroupSyncs {
    by_cluster: BTreeMap<Arc<str>, Arc<ClusterSyncs>>,
}

/// The Syncs of one group on one cluster; never empty. Ordered by entry, then by age: of two Syncs with one identity
/// the older one counts, and the younger one is a copy.
#[derive(Clone, Debug)]
pub struct ClusterSyncs(Vec<Arc<SyncResource>>);

impl SecondaryIndex<SyncResource> for SyncIndex {
    fn change(&mut self, before: Option<&Arc<SyncResource>>, after: Option<&Arc<SyncResource>>) {
        let places = (
            before.and_then(|sync| place(sync)),
            after.and_then(|sync| place(sync)),
        );
        if let (Some(sync), (Some((group, cluster)), now)) = (before, &places)
            && now.as_ref() != Some(&(group.clone(), *cluster))
        {
            self.leave(group, cluster, &sync.name_any());
        }
        if let (Some(sync), Some((group, cluster))) = (after, places.1) {
            Arc::make_mut(self.by_group.entry(group).or_default()).put(cluster, sync);
        }
        let on = |sync: Option<&Arc<SyncResource>>| sync.map(|sync| dependencies(sync)).unwrap_or_default();
        let (had, has) = (on(before), on(after));
        if had != has {
            for (sync, dependency) in before
                .iter()
                .flat_map(|sync| had.iter().map(move |on| (sync, on)))
            {
                self.end_dependency(dependency, &sync.name_any());
            }
            for (sync, dependency) in after.iter().flat_map(|sync| has.iter().map(move |on| (sync, on))) {
                let names = self.dependents.entry(dependency.clone()).or_default();
                names.insert(sync.name_any());
            }
        }
    }
}

impl SyncIndex {
    fn leave(&mut self, group: &ObjectKey, cluster: &str, name: &str) {
        if let Some(of_group) = self.by_group.get_mut(group) {
            Arc::make_mut(of_group).remove(cluster, name);
            if of_group.by_cluster.is_empty() {
                self.by_group.remove(group);
            }
        }
    }

    fn end_dependency(&mut self, on: &ObjectKey, name: &str) {
        if let Some(names) = self.dependents.get_mut(on) {
            names.remove(name);
            if names.is_empty() {
                self.dependents.remove(on);
            }
        }
    }
}

impl SyncCache {
    /// Returns the current Syncs of a group.
    #[must_use]
    pub fn of_group(&self, group: &ObjectKey) -> Arc<GroupSyncs> {
        self.index(|index| index.by_group.get(group).cloned())
            .unwrap_or_default()
    }

    /// Returns the names of the Syncs in the same namespace that depend on a Sync, or did when they last had nothing
    /// left to delete.
    #[must_use]
    pub fn dependents(&self, on: &ObjectKey) -> BTreeSet<String> {
        self.index(|index| index.dependents.get(on).cloned())
            .unwrap_or_default()
    }
}

impl GroupSyncs {
    /// Returns the Sync of an entry on a cluster.
    #[must_use]
    pub fn get(&self, cluster: &str, entry: &str) -> Option<&Arc<SyncResource>> {
        self.by_cluster.get(cluster)?.get(entry)
    }

    /// Returns the clusters on which the group has Syncs, in the order of their names, with these Syncs.
    pub fn clusters(&self) -> impl Iterator<Item = (&str, &Arc<ClusterSyncs>)> {
        self.by_cluster.iter().map(|(name, on)| (&**name, on))
    }

    /// Returns the Syncs with cluster and entry.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &Arc<SyncResource>)> {
        self.clusters()
            .flat_map(|(cluster, on)| on.iter().map(move |sync| (cluster, entry_of(sync), sync)))
    }

    /// Returns the Syncs on a cluster.
    pub fn on(&self, cluster: &str) -> impl Iterator<Item = &Arc<SyncResource>> {
        self.by_cluster.get(cluster).into_iter().flat_map(|on| on.iter())
    }

    /// Returns the Syncs.
    pub fn values(&self) -> impl Iterator<Item = &Arc<SyncResource>> {
        self.by_cluster.values().flat_map(|on| on.iter())
    }

    /// Returns the Syncs, including younger copies.
    pub fn with_copies(&self) -> impl Iterator<Item = &Arc<SyncResource>> {
        self.by_cluster.values().flat_map(|on| &on.0)
    }

    /// Returns whether the group has no Syncs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_cluster.is_empty()
    }

    fn put(&mut self, cluster: &str, sync: &Arc<SyncResource>) {
        match self.by_cluster.get_mut(cluster) {
            Some(on) => Arc::make_mut(on).put(sync),
            None => {
                let on = ClusterSyncs(vec![sync.clone()]);
                self.by_cluster.insert(cluster.into(), Arc::new(on));
            }
        }
    }

    fn remove(&mut self, cluster: &str, name: &str) {
        if let Entry::Occupied(mut at) = self.by_cluster.entry(cluster.into()) {
            let on = Arc::make_mut(at.get_mut());
            on.0.retain(|known| known.metadata.name.as_deref() != Some(name));
            if on.0.is_empty() {
                at.remove();
            }
        }
    }
}

impl ClusterSyncs {
    /// Returns the Sync of an entry.
    #[must_use]
    pub fn get(&self, entry: &str) -> Option<&Arc<SyncResource>> {
        self.0.iter().find(|sync| entry_of(sync) == entry)
    }

    /// Returns the Syncs, one for each entry.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<SyncResource>> {
        let mut last = None;
        self.0.iter().filter(move |sync| {
            let entry = entry_of(sync);
            last.replace(entry) != Some(entry)
        })
    }

    fn put(&mut self, sync: &Arc<SyncResource>) {
        self.0.retain(|known| known.metadata.name != sync.metadata.name);
        let at = self.0.partition_point(|known| rank(known) < rank(sync));
        self.0.insert(at, sync.clone());
    }
}

/// Returns the group and the cluster of a Sync, if it is of a group.
fn place(sync: &SyncResource) -> Option<(ObjectKey, &str)> {
    let group = sync.spec.group_ref.as_ref()?;
    let namespace = sync.metadata.namespace.clone().unwrap_or_default();
    Some((
        ObjectKey::new(namespace, &group.name),
        &sync.spec.cluster_ref.name,
    ))
}

fn entry_of(sync: &SyncResource) -> &str {
    sync.spec.group_ref.as_ref().map_or("", |group| &group.entry)
}

fn rank(sync: &SyncResource) -> (&str, Option<Timestamp>, Option<&str>) {
    let created = sync.metadata.creation_timestamp.as_ref().map(|time| time.0);
    (entry_of(sync), created, sync.metadata.name.as_deref())
}

fn dependencies(sync: &SyncResource) -> BTreeSet<ObjectKey> {
    let namespace = sync.metadata.namespace.as_deref().unwrap_or_default();
    let on = sync.spec.template.depends_on.iter().map(|on| &on.name);
    // What it has left to delete may need what it depended on before.
    let before = sync.status.iter().flat_map(|status| &status.last_depends_on);
    on.chain(before)
        .map(|name| ObjectKey::new(namespace, name))
        .collect()
}

#[cfg(test)]
mod tests;
