//! Caches of the controller: objects of the management cluster, indexes of them, and values that were computed or read
//! for each object.
//!
//! No cache is a source of truth. After a restart the values are read or computed again.

pub mod availability;
pub mod awaited_syncs;
pub mod cache;
pub mod connections;
mod deletions;
pub mod drift_states;
pub mod health;
pub mod identity_proofs;
pub mod in_flight;
pub mod indexed;
pub mod journal_heads;
pub mod metric_tests;
pub mod number_checks;
pub mod origins;
pub mod pending_deselections;
pub mod pins;
pub mod plan_memo;
pub mod prune_requests;
pub mod release_snapshots;
pub mod removal_times;
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
use starling_api::{Cluster, DeletionApproval, RolloutAction, RolloutApproval, Source, SyncGroup};

use self::availability::AvailabilityCache;
use self::awaited_syncs::AwaitedSyncs;
use self::cache::Cache;
use self::connections::Connections;
use self::drift_states::DriftStates;
use self::health::HealthCache;
use self::identity_proofs::IdentityProofs;
use self::in_flight::ClustersInFlight;
use self::indexed::{cluster_of, group_of_action, group_of_approval, identity_of, subject_of_deletions};
pub(in crate::controller) use self::indexed::{group_to_delete_from, sync_to_delete_from};
use self::journal_heads::JournalHeads;
use self::metric_tests::MetricTests;
use self::number_checks::NumberChecks;
use self::origins::OriginCache;
use self::pending_deselections::PendingDeselections;
use self::pins::KnownPins;
use self::plan_memo::PlanMemos;
use self::prune_requests::PruneRequests;
use self::release_snapshots::ReleaseSnapshots;
use self::removal_times::RemovalTimes;
use self::selections::SelectionCache;
use self::settled_admissions::SettledAdmissions;
use self::sync_index::SyncCache;
use self::unconfirmed_writes::UnconfirmedWrites;
use self::waiting_syncs::WaitingSyncs;
use super::gates::GateTasks;
use super::keyed::{Keyed, PerObject};
use super::queues::Loop;
use crate::controller::object_key::ObjectKey;
use starling_core::apply::OwnAttempt;
use starling_net::clock::Clock;

/// The known objects of the management cluster.
#[derive(Debug)]
pub struct ObjectCaches {
    /// Sources.
    pub sources: Arc<Cache<Source>>,
    /// Clusters, also by identity.
    pub clusters: Arc<Cache<Cluster>>,
    /// Syncs, also by Cluster and by group.
    pub syncs: Arc<SyncCache>,
    /// SyncGroups.
    pub groups: Arc<Cache<SyncGroup>>,
    /// Approvals, also by group.
    pub approvals: Arc<Cache<RolloutApproval>>,
    /// Operator actions, also by group.
    pub actions: Arc<Cache<RolloutAction>>,
    /// Approvals of deletions.
    pub deletion_approvals: Arc<Cache<DeletionApproval>>,
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
            deletion_approvals: Arc::new(Cache::indexed_by(subject_of_deletions)),
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
            deletion_approvals,
        } = self;
        tokio::join!(
            sources.synced(),
            clusters.synced(),
            syncs.synced(),
            groups.synced(),
            approvals.synced(),
            actions.synced(),
            deletion_approvals.synced(),
        );
    }

    /// Returns whether the cache has an object.
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

/// The caches of all kinds. `Self::forget` removes a deleted object from all of them.
#[derive(Debug)]
pub struct Caches {
    /// Caches for each Source.
    pub source: SourceCaches,
    /// Caches for each Cluster.
    pub cluster: ClusterCaches,
    /// Caches for each Sync.
    pub sync: SyncCaches,
    /// Caches for each SyncGroup.
    pub group: GroupCaches,
}

/// Caches for each Source.
#[derive(Debug, Default)]
pub struct SourceCaches {
    /// Address and credentials of the origin.
    pub origins: OriginCache,
    /// The artifact that was pinned last.
    pub pins: KnownPins,
}

/// Caches for each Cluster.
#[derive(Debug)]
pub struct ClusterCaches {
    /// The client of the member.
    pub connections: Connections,
    /// The availability of the member. Shared, since the work queue of Syncs has a lane for each Cluster.
    pub availability: Arc<AvailabilityCache>,
    /// The time at which a failed renewal of the token is retried.
    pub token_renewals: Times,
    /// The members that were checked.
    pub number_checks: NumberChecks,
    /// Whether Clusters with one identity are one member.
    pub identity_proofs: IdentityProofs,
}

/// Caches for each Sync.
#[derive(Debug, Default)]
pub struct SyncCaches {
    /// The time of the next drift check, or of the next attempt after a failure.
    pub deadlines: Times,
    /// The Syncs that wait for other Syncs.
    pub waiting: WaitingSyncs,
    /// The health of the objects.
    pub health: HealthCache,
    /// The drift of the objects.
    pub drift: DriftStates,
    /// The last attempt of this process.
    pub attempts: Keyed<OwnAttempt>,
    /// The admission whose slot this process gave back, from before the write of the status that says so.
    pub returned_admissions: Keyed<String>,
    /// The admission for which the ledger once had no proof that nothing was written. A later attempt that wrote
    /// nothing gives none.
    pub unproven_admissions: Keyed<String>,
    /// When approvals that could not be marked are marked again.
    pub mark_retries: Times,
    /// What an event told of approvals of nothing.
    pub reported_approvals: Keyed<String>,
}

/// Caches for each SyncGroup.
#[derive(Debug, Default)]
pub struct GroupCaches {
    /// The running gate tasks. Shared, since each task stores its result here.
    pub gate_tasks: Arc<GateTasks>,
    /// Release snapshots.
    pub release_snapshots: ReleaseSnapshots,
    /// The metric tests that were checked.
    pub metric_tests: MetricTests,
    /// The time of the last write of status, so that a rollout does not write status for every cluster.
    pub status_times: Times,
    /// The clusters that the group selects.
    pub selections: SelectionCache,
    /// Results of the last plan for the next one.
    pub plan_memos: PlanMemos,
    /// The newest entry of the journal.
    pub journal_heads: JournalHeads,
    /// Clusters that are about to leave.
    pub pending_deselections: PendingDeselections,
    /// The prunes that Syncs request.
    pub prune_requests: PruneRequests,
    /// When the removals of Syncs began.
    pub removal_times: RemovalTimes,
    /// Writes without a response.
    pub unconfirmed_writes: UnconfirmedWrites,
    /// Groups with admissions whose Sync was not written.
    pub awaited_syncs: AwaitedSyncs,
    /// Admissions that were settled.
    pub settled_admissions: SettledAdmissions,
    /// When actions and approvals that could not be marked are marked again.
    pub mark_retries: Times,
    /// The clusters in flight of each group.
    pub in_flight: ClustersInFlight,
    /// What an event told of approvals of nothing.
    pub reported_approvals: Keyed<String>,
}

impl Caches {
    /// Creates empty caches.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self {
            source: SourceCaches::default(),
            cluster: ClusterCaches {
                connections: Connections::default(),
                availability: Arc::new(AvailabilityCache::new(clock)),
                token_renewals: Times::default(),
                number_checks: NumberChecks::default(),
                identity_proofs: IdentityProofs::default(),
            },
            sync: SyncCaches::default(),
            group: GroupCaches::default(),
        }
    }

    /// Removes the entries of a deleted object.
    pub(super) fn forget(&self, of: Loop, key: &ObjectKey) {
        for cache in self.of(of) {
            cache.forget(key);
        }
    }

    /// Removes the values that are valid for a generation of an object, or for a stored object. After the management
    /// cluster was set back, other objects may get the same generations, and what was stored may be gone. So may a
    /// status that an attempt of this process has written: the status from before it must not pass for the one that
    /// could not be written, or the records of a lost release would count as current. Each Sync is checked for drift at
    /// once: its status may say that a release is applied which the member no longer has. The newest entry of a journal
    /// is read again, and found to be of another past.
    pub(super) fn forget_computed(&self) {
        let SourceCaches { origins, pins: _ } = &self.source;
        let SyncCaches {
            deadlines,
            health,
            attempts,
            returned_admissions,
            ..
        } = &self.sync;
        let GroupCaches {
            release_snapshots,
            selections,
            plan_memos,
            journal_heads,
            ..
        } = &self.group;
        let computed: [&dyn PerObject; 9] = [
            origins,
            deadlines,
            health,
            attempts,
            returned_admissions,
            release_snapshots,
            selections,
            plan_memos,
            journal_heads,
        ];
        for cache in computed {
            cache.retain(&|_| false);
        }
    }

    /// Removes entries of deleted objects that were added after [`Self::forget`]: the last attempt on a member may end
    /// after its Cluster was deleted.
    pub(super) fn forget_gone(&self, objects: &ObjectCaches) {
        for of in Loop::ALL {
            for cache in self.of(of) {
                cache.retain(&|key| objects.contains(of, key));
            }
        }
    }

    /// Returns every cache with an entry for each object of a kind. A new field does not compile until this function
    /// lists it.
    pub(super) fn of(&self, of: Loop) -> Vec<&dyn PerObject> {
        let Self {
            source: SourceCaches { origins, pins },
            cluster:
                ClusterCaches {
                    connections,
                    availability,
                    token_renewals,
                    number_checks,
                    identity_proofs,
                },
            sync:
                SyncCaches {
                    deadlines,
                    waiting,
                    health,
                    drift,
                    attempts,
                    returned_admissions,
                    unproven_admissions,
                    mark_retries: sync_mark_retries,
                    reported_approvals: sync_reported_approvals,
                },
            group:
                GroupCaches {
                    gate_tasks,
                    metric_tests,
                    release_snapshots,
                    status_times,
                    selections,
                    plan_memos,
                    journal_heads,
                    pending_deselections,
                    prune_requests,
                    removal_times,
                    unconfirmed_writes,
                    awaited_syncs,
                    settled_admissions,
                    mark_retries: group_mark_retries,
                    in_flight,
                    reported_approvals: group_reported_approvals,
                },
        } = self;
        match of {
            Loop::Source => vec![origins, pins],
            Loop::Cluster => vec![
                connections,
                &**availability,
                token_renewals,
                number_checks,
                identity_proofs,
            ],
            Loop::Sync => vec![
                deadlines,
                waiting,
                health,
                drift,
                attempts,
                returned_admissions,
                unproven_admissions,
                sync_mark_retries,
                sync_reported_approvals,
            ],
            Loop::SyncGroup => vec![
                &**gate_tasks,
                metric_tests,
                release_snapshots,
                status_times,
                selections,
                plan_memos,
                journal_heads,
                pending_deselections,
                prune_requests,
                removal_times,
                unconfirmed_writes,
                awaited_syncs,
                settled_admissions,
                in_flight,
                group_mark_retries,
                group_reported_approvals,
            ],
        }
    }
}
