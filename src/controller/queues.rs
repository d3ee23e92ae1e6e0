//! The loops, and the work queue of each.

use std::sync::Arc;

use super::workqueue::Workqueue;

/// One work queue per kind.
#[derive(Debug, Default)]
pub struct Queues {
    /// Sources.
    pub sources: Workqueue,
    /// Clusters.
    pub clusters: Workqueue,
    /// Syncs.
    pub syncs: Workqueue,
    /// SyncGroups. Shared, since gate tasks add their group.
    pub groups: Arc<Workqueue>,
}

/// The four kinds, with the names that the ledger uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Loop {
    Source,
    Cluster,
    Sync,
    SyncGroup,
}

impl Loop {
    pub(super) const ALL: [Self; 4] = [Self::Source, Self::Cluster, Self::Sync, Self::SyncGroup];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Source => "Source",
            Self::Cluster => "Cluster",
            Self::Sync => "Sync",
            Self::SyncGroup => "SyncGroup",
        }
    }

    pub(super) fn queue(self, queues: &Queues) -> &Workqueue {
        match self {
            Self::Source => &queues.sources,
            Self::Cluster => &queues.clusters,
            Self::Sync => &queues.syncs,
            Self::SyncGroup => &queues.groups,
        }
    }
}
