//! What the controller keeps in memory: caches of objects, indexes of them, and what was computed or read for each.
//!
//! None of it is a truth. What is lost with the process is read or computed again.

pub mod availability;
pub mod cache;
pub mod connections;
mod deletions;
pub mod drift_states;
pub mod health;
pub mod indexed;
pub mod journal_heads;
pub mod origins;
pub mod pending_deselections;
pub mod pins;
pub mod plan_memo;
pub mod release_snapshots;
pub mod renders;
pub mod selections;
pub mod settled_admissions;
mod single_flight;
pub mod sync_index;
pub mod unconfirmed_writes;
mod versions;
pub mod views;
pub mod waiting_syncs;

use std::sync::Arc;

use jiff::Timestamp;
use starling_api::{Cluster, RolloutAction, RolloutApproval, Source, SyncGroup};

use self::availability::AvailabilityCache;
use self::cache::{Cache, ObjectKey};
use self::connections::Connections;
use self::drift_states::DriftStates;
use self::health::HealthCache;
use self::indexed::{cluster_of, group_of_action, group_of_approval, identity_of};
use self::journal_heads::JournalHeads;
use self::origins::OriginCache;
use self::pending_deselections::PendingDeselections;
use self::pins::Pins;
use self::plan_memo::PlanMemos;
use self::release_snapshots::ReleaseSnapshots;
use self::selections::SelectionCache;
use self::settled_admissions::SettledAdmissions;
use self::sync_index::SyncCache;
use self::unconfirmed_writes::UnconfirmedWrites;
use self::waiting_syncs::WaitingSyncs;
use super::gates::GateTasks;
use super::keyed::{Keyed, PerObject};
use super::queues::Loop;
use starling_net::clock::Clock;

/// The objects of the management cluster, as far as they are known.
#[derive(Debug)]
pub struct ObjectCaches {
    /// Sources.
    pub sources: Arc<Cache<Source>>,
    /// Clusters, by identity too.
    pub clusters: Arc<Cache<Cluster>>,
    /// Syncs, by Cluster and by group too.
    pub syncs: Arc<SyncCache>,
    /// SyncGroups.
    pub groups: Arc<Cache<SyncGroup>>,
    /// Approvals, by group too.
    pub approvals: Arc<Cache<RolloutApproval>>,
    /// Operator actions, by group too.
    pub actions: Arc<Cache<RolloutAction>>,
}

impl Default for ObjectCaches {
    fn default() -> Self {
        Self {
            sources: Arc::new(Cache::default()),
            clusters: Arc::new(Cache::indexed_by(identity_of)),
            syncs: Arc::new(Cache::indexed_by(cluster_of)),
            groups: Arc::new(Cache::default()),
            approvals: Arc::new(Cache::indexed_by(group_of_approval)),
            actions: Arc::new(Cache::indexed_by(group_of_action)),
        }
    }
}

impl ObjectCaches {
    /// Waits until every cache holds a complete list.
    pub async fn synced(&self) {
        let Self {
            sources,
            clusters,
            syncs,
            groups,
            approvals,
            actions,
        } = self;
        tokio::join!(
            sources.synced(),
            clusters.synced(),
            syncs.synced(),
            groups.synced(),
            approvals.synced(),
            actions.synced(),
        );
    }

    /// Whether the management cluster has this object, as far as is known.
    pub(super) fn contains(&self, of: Loop, key: &ObjectKey) -> bool {
        match of {
            Loop::Source => self.sources.get(key).is_some(),
            Loop::Cluster => self.clusters.get(key).is_some(),
            Loop::Sync => self.syncs.get(key).is_some(),
            Loop::SyncGroup => self.groups.get(key).is_some(),
        }
    }
}

/// A time for each object.
pub type Times = Keyed<Timestamp>;

/// What is kept for each object, by kind. An object that is gone leaves all of it by [`Self::forget`].
#[derive(Debug)]
pub struct Caches {
    /// For each Source.
    pub source: SourceCaches,
    /// For each Cluster.
    pub cluster: ClusterCaches,
    /// For each Sync.
    pub sync: SyncCaches,
    /// For each SyncGroup.
    pub group: GroupCaches,
}

/// What is kept for each Source.
#[derive(Debug, Default)]
pub struct SourceCaches {
    /// The address of the origin, and the credentials for it.
    pub origins: OriginCache,
    /// The commit that was pinned last.
    pub pins: Pins,
}

/// What is kept for each Cluster.
#[derive(Debug)]
pub struct ClusterCaches {
    /// The client of the member.
    pub connections: Connections,
    /// How the member answers, and until when it is left alone. Shared, as the queue of Syncs has a lane per Cluster.
    pub availability: Arc<AvailabilityCache>,
    /// When a renewal of the token that failed is tried again.
    pub token_renewals: Times,
}

/// What is kept for each Sync.
#[derive(Debug, Default)]
pub struct SyncCaches {
    /// When the next check for drift, or the next attempt after a failure, is due.
    pub deadlines: Times,
    /// Which Syncs wait for which.
    pub waiting: WaitingSyncs,
    /// The health of the objects.
    pub health: HealthCache,
    /// The drift of the objects.
    pub drift: DriftStates,
}

/// What is kept for each SyncGroup.
#[derive(Debug, Default)]
pub struct GroupCaches {
    /// The gate tasks that are being carried out. Shared, as each of them keeps what it finds there.
    pub gate_tasks: Arc<GateTasks>,
    /// Releases as they were formed.
    pub release_snapshots: ReleaseSnapshots,
    /// When the status was last written, so that a rollout does not write it for every cluster.
    pub status_times: Times,
    /// The clusters that the group selects.
    pub selections: SelectionCache,
    /// What the last plan computed and the next one needs.
    pub plan_memos: PlanMemos,
    /// The newest entry of the journal.
    pub journal_heads: JournalHeads,
    /// The clusters that are about to leave.
    pub pending_deselections: PendingDeselections,
    /// Writes without an answer.
    pub unconfirmed_writes: UnconfirmedWrites,
    /// Admissions that were settled since they were made.
    pub settled_admissions: SettledAdmissions,
}

impl Caches {
    /// Empty caches.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self {
            source: SourceCaches::default(),
            cluster: ClusterCaches {
                connections: Connections::default(),
                availability: Arc::new(AvailabilityCache::new(clock)),
                token_renewals: Times::default(),
            },
            sync: SyncCaches::default(),
            group: GroupCaches::default(),
        }
    }

    /// Drops all that is kept for an object that is gone.
    pub(super) fn forget(&self, of: Loop, key: &ObjectKey) {
        for cache in self.of(of) {
            cache.forget(key);
        }
    }

    /// Drops what is kept for objects that are gone, and was added after [`Self::forget`]: the last attempt on a
    /// Cluster that is deleted may end after the Cluster has gone.
    pub(super) fn forget_gone(&self, objects: &ObjectCaches) {
        for of in Loop::ALL {
            for cache in self.of(of) {
                cache.retain(&|key| objects.contains(of, key));
            }
        }
    }

    /// Every cache with an entry for each object of a kind. A new field does not compile until it is named here.
    pub(super) fn of(&self, of: Loop) -> Vec<&dyn PerObject> {
        let Self {
            source: SourceCaches { origins, pins },
            cluster:
                ClusterCaches {
                    connections,
                    availability,
                    token_renewals,
                },
            sync:
                SyncCaches {
                    deadlines,
                    waiting,
                    health,
                    drift,
                },
            group:
                GroupCaches {
                    gate_tasks,
                    release_snapshots,
                    status_times,
                    selections,
                    plan_memos,
                    journal_heads,
                    pending_deselections,
                    unconfirmed_writes,
                    settled_admissions,
                },
        } = self;
        match of {
            Loop::Source => vec![origins, pins],
            Loop::Cluster => vec![connections, &**availability, token_renewals],
            Loop::Sync => vec![deadlines, waiting, health, drift],
            Loop::SyncGroup => vec![
                &**gate_tasks,
                release_snapshots,
                status_times,
                selections,
                plan_memos,
                journal_heads,
                pending_deselections,
                unconfirmed_writes,
                settled_admissions,
            ],
        }
    }
}
