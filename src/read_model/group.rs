//! The objects of one group.

use std::collections::BTreeMap;

use starling_api::{Cluster, SyncGroup, SyncResource};

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
