//! The objects of one group.

use std::collections::BTreeMap;

use starling_api::{Cluster, SyncGroup, SyncResource};

use super::removals::{self, PlannedRemoval};

/// Syncs by the names of their cluster and their entry.
pub type Syncs = BTreeMap<(String, String), SyncResource>;

/// A group with the clusters that it selects and its Syncs on them.
#[derive(Clone, Debug)]
pub struct GroupObjects {
    /// The group.
    pub group: SyncGroup,
    /// The selected clusters, by name.
    pub clusters: BTreeMap<String, Cluster>,
    /// The Syncs of the group.
    pub syncs: Syncs,
}

impl GroupObjects {
    /// Finds the Syncs that the group no longer wants, and what happens to their objects.
    #[must_use]
    pub fn removals(&self) -> Vec<PlannedRemoval> {
        let syncs = self.syncs.iter();
        let syncs = syncs.map(|((cluster, entry), sync)| (cluster.as_str(), entry.as_str(), sync));
        removals::of_syncs(&self.group, |cluster| self.clusters.contains_key(cluster), syncs)
    }
}
