//! The context of the loops: [`Context`] has everything, and each loop gets the part that it needs.

use std::sync::Arc;
use std::time::Duration;

use super::artifacts::Artifacts;
use super::caches::availability::AvailabilityCache;
use super::caches::cache::Cache;
use super::caches::connections::Connections;
use super::caches::identity_proofs::IdentityProofs;
use super::caches::number_checks::NumberChecks;
use super::caches::origins::OriginCache;
use super::caches::pins::KnownPins;
use super::caches::prune_requests::PruneRequests;
use super::caches::release_snapshots::ReleaseSnapshots;
use super::caches::removal_times::RemovalTimes;
use super::caches::renders::RenderCache;
use super::caches::{Caches, ClusterCaches, GroupCaches, ObjectCaches, SyncCaches, Times};
use super::deletion_budgets::DeletionBudgets;
use super::event_handlers::EventHandlers;
use super::events::Events;
use super::hub::Hub;
use super::policies::AdmissionPolicies;
use super::ports::{Ledger, Web};
use super::queues::Queues;
use super::rights::Rights;
use super::start_rates::StartRates;
use super::workqueue::Workqueue;
use super::write_counter::{PassPermit, WriteCounter};
use jiff::Timestamp;
use starling_api::{Cluster, Source};
use starling_core::ids::InstallationId;
use starling_member::Network;
use starling_net::clock::Clock;

/// Everything that the loops share: adapters, caches and work queues. No field is a source of truth. Each loop takes a
/// context of its own ([`Self::of_source`] and the others); only wiring and housekeeping take this one.
pub struct Context {
    /// The client of the management cluster.
    pub hub: Hub,
    /// The clock.
    pub clock: Clock,
    /// The recorder of events.
    pub events: Events,
    /// The keys that wait for a reconcile.
    pub queues: Queues,
    /// The objects of the management cluster.
    pub objects: ObjectCaches,
    /// Caches of values for each object.
    pub caches: Caches,
    /// Rendered sets, by digest.
    pub renders: RenderCache,
    /// Adapters other than the management cluster.
    pub adapters: Adapters,
    /// Rate limits of starts.
    pub start_rates: StartRates,
    /// The count of writes to members, and whether a restore was detected.
    pub writes: Arc<WriteCounter>,
    /// The deletion budgets.
    pub budgets: DeletionBudgets,
    /// The limits of the rights of users.
    pub rights: Rights,
    /// Whether the admission policies are in force.
    pub policies: AdmissionPolicies,
    /// The installation ID, which is part of every owner label.
    pub installation: InstallationId,
    /// Accepts `http://` and `file://` URLs.
    pub allow_insecure_sources: bool,
    /// The limit of clusters in flight over all groups; `None`: no limit.
    pub max_clusters_in_flight: Option<usize>,
}

/// Adapters other than the management cluster.
pub struct Adapters {
    /// The artifacts of Sources.
    pub artifacts: Arc<dyn Artifacts>,
    /// The network that connects to members.
    pub network: Network,
    /// The HTTP client for gates.
    pub web: Arc<dyn Web>,
    /// The ledger: state that survives a restart.
    pub ledger: Arc<dyn Ledger>,
}

impl Context {
    /// Returns the current time, to the millisecond.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns the event handlers, which enqueue the keys that a change affects.
    #[must_use]
    pub fn event_handlers(&self) -> EventHandlers<'_> {
        EventHandlers {
            objects: &self.objects,
            queues: &self.queues,
            waiting: &self.caches.sync.waiting,
        }
    }

    /// Returns the context of the Source loop.
    #[must_use]
    pub fn of_source(&self) -> SourceContext<'_> {
        SourceContext {
            hub: &self.hub,
            clock: &self.clock,
            handlers: self.event_handlers(),
            sources: &self.objects.sources,
            origins: &self.caches.source.origins,
            pins: &self.caches.source.pins,
            artifacts: &*self.adapters.artifacts,
            start_rates: &self.start_rates,
            allow_insecure_sources: self.allow_insecure_sources,
        }
    }

    /// Returns the context of the Cluster loop.
    #[must_use]
    pub fn of_cluster(&self) -> ClusterContext<'_> {
        let ClusterCaches {
            connections,
            availability,
            token_renewals,
            number_checks,
            identity_proofs,
        } = &self.caches.cluster;
        ClusterContext {
            hub: &self.hub,
            clock: &self.clock,
            handlers: self.event_handlers(),
            objects: &self.objects,
            clusters: &self.objects.clusters,
            connections,
            availability,
            token_renewals,
            number_checks,
            identity_proofs,
            network: &self.adapters.network,
            writes: &self.writes,
            installation: &self.installation,
        }
    }

    /// Returns the context of the Sync loop.
    #[must_use]
    pub fn of_sync(&self) -> SyncContext<'_> {
        SyncContext {
            hub: &self.hub,
            clock: &self.clock,
            handlers: self.event_handlers(),
            events: &self.events,
            objects: &self.objects,
            caches: &self.caches.sync,
            prune_requests: &self.caches.group.prune_requests,
            removal_times: &self.caches.group.removal_times,
            release_snapshots: &self.caches.group.release_snapshots,
            connections: &self.caches.cluster.connections,
            availability: &self.caches.cluster.availability,
            number_checks: &self.caches.cluster.number_checks,
            origins: &self.caches.source.origins,
            renders: &self.renders,
            ledger: &*self.adapters.ledger,
            start_rates: &self.start_rates,
            writes: &self.writes,
            permit: self.writes.permit(),
            budgets: &self.budgets,
            rights: &self.rights,
            policies: &self.policies,
            installation: &self.installation,
            allow_insecure_sources: self.allow_insecure_sources,
        }
    }

    /// Returns the context of the SyncGroup loop.
    #[must_use]
    pub fn of_group(&self) -> GroupContext<'_> {
        GroupContext {
            hub: &self.hub,
            clock: &self.clock,
            handlers: self.event_handlers(),
            events: &self.events,
            objects: &self.objects,
            caches: &self.caches.group,
            number_checks: &self.caches.cluster.number_checks,
            queue: &self.queues.groups,
            origins: &self.caches.source.origins,
            renders: &self.renders,
            ledger: &*self.adapters.ledger,
            budgets: &self.budgets,
            rights: &self.rights,
            policies: &self.policies,
            web: &self.adapters.web,
            writes: &self.writes,
            permit: self.writes.permit(),
            installation: &self.installation,
            max_clusters_in_flight: self.max_clusters_in_flight,
            allow_insecure_sources: self.allow_insecure_sources,
        }
    }
}

/// The context of the Source loop.
#[derive(Clone, Copy)]
pub struct SourceContext<'a> {
    /// The client of the management cluster.
    pub hub: &'a Hub,
    /// The clock.
    pub clock: &'a Clock,
    /// The event handlers.
    pub handlers: EventHandlers<'a>,
    /// The Sources.
    pub sources: &'a Cache<Source>,
    /// The origins of the Sources.
    pub origins: &'a OriginCache,
    /// The artifacts that were pinned last.
    pub pins: &'a KnownPins,
    /// The artifacts of Sources.
    pub artifacts: &'a dyn Artifacts,
    /// Rate limits of requests to git hosts.
    pub start_rates: &'a StartRates,
    /// Accepts `http://` and `file://` URLs.
    pub allow_insecure_sources: bool,
}

/// The context of the Cluster loop.
#[derive(Clone, Copy)]
pub struct ClusterContext<'a> {
    /// The client of the management cluster.
    pub hub: &'a Hub,
    /// The clock.
    pub clock: &'a Clock,
    /// The event handlers.
    pub handlers: EventHandlers<'a>,
    /// The objects of the management cluster.
    pub objects: &'a ObjectCaches,
    /// The Clusters.
    pub clusters: &'a Cache<Cluster>,
    /// The clients of the members.
    pub connections: &'a Connections,
    /// The availability of the members.
    pub availability: &'a AvailabilityCache,
    /// The times at which failed renewals of tokens are retried.
    pub token_renewals: &'a Times,
    /// The members that were checked.
    pub number_checks: &'a NumberChecks,
    /// Whether Clusters with one identity are one member.
    pub identity_proofs: &'a IdentityProofs,
    /// The network that connects to members.
    pub network: &'a Network,
    /// The count of writes to members, and whether a restore was detected.
    pub writes: &'a Arc<WriteCounter>,
    /// The installation ID, which is part of every owner label.
    pub installation: &'a InstallationId,
}

/// The context of the Sync loop.
#[derive(Clone, Copy)]
pub struct SyncContext<'a> {
    /// The client of the management cluster.
    pub hub: &'a Hub,
    /// The clock.
    pub clock: &'a Clock,
    /// The event handlers.
    pub handlers: EventHandlers<'a>,
    /// The recorder of events.
    pub events: &'a Events,
    /// The objects of the management cluster.
    pub objects: &'a ObjectCaches,
    /// Caches for each Sync.
    pub caches: &'a SyncCaches,
    /// The prunes that Syncs of groups request.
    pub prune_requests: &'a PruneRequests,
    /// When the removals of the Syncs of groups began.
    pub removal_times: &'a RemovalTimes,
    /// The releases of groups.
    pub release_snapshots: &'a ReleaseSnapshots,
    /// The clients of the members.
    pub connections: &'a Connections,
    /// The availability of the members.
    pub availability: &'a AvailabilityCache,
    /// The members that were checked.
    pub number_checks: &'a NumberChecks,
    /// The origins of the Sources.
    pub origins: &'a OriginCache,
    /// Rendered sets, by digest.
    pub renders: &'a RenderCache,
    /// The ledger: attempts, admissions and member records.
    pub ledger: &'a dyn Ledger,
    /// Rate limits of attempts.
    pub start_rates: &'a StartRates,
    /// The count of writes to members, and whether a restore was detected.
    pub writes: &'a Arc<WriteCounter>,
    /// What the pass keeps to.
    pub permit: PassPermit<'a>,
    /// The deletion budgets.
    pub budgets: &'a DeletionBudgets,
    /// The limits of the rights of users.
    pub rights: &'a Rights,
    /// Whether the admission policies are in force.
    pub policies: &'a AdmissionPolicies,
    /// The installation ID, which is part of every owner label.
    pub installation: &'a InstallationId,
    /// Accepts `http://` and `file://` URLs.
    pub allow_insecure_sources: bool,
}

/// The context of the SyncGroup loop.
#[derive(Clone, Copy)]
pub struct GroupContext<'a> {
    /// The client of the management cluster.
    pub hub: &'a Hub,
    /// The clock.
    pub clock: &'a Clock,
    /// The event handlers.
    pub handlers: EventHandlers<'a>,
    /// The recorder of events.
    pub events: &'a Events,
    /// The objects of the management cluster.
    pub objects: &'a ObjectCaches,
    /// Caches for each group.
    pub caches: &'a GroupCaches,
    /// The members that were checked.
    pub number_checks: &'a NumberChecks,
    /// The work queue of groups. Gate tasks add their group to it.
    pub queue: &'a Arc<Workqueue>,
    /// The origins of the Sources.
    pub origins: &'a OriginCache,
    /// Rendered sets, by digest.
    pub renders: &'a RenderCache,
    /// The ledger: rollouts, admissions and the journal.
    pub ledger: &'a dyn Ledger,
    /// The deletion budgets.
    pub budgets: &'a DeletionBudgets,
    /// The limits of the rights of users.
    pub rights: &'a Rights,
    /// Whether the admission policies are in force.
    pub policies: &'a AdmissionPolicies,
    /// The HTTP client for gates. Shared with gate tasks.
    pub web: &'a Arc<dyn Web>,
    /// The count of writes to members, and whether a restore was detected.
    pub writes: &'a Arc<WriteCounter>,
    /// What the pass keeps to.
    pub permit: PassPermit<'a>,
    /// The installation ID, which is part of the identity of every group.
    pub installation: &'a InstallationId,
    /// The limit of clusters in flight over all groups; `None`: no limit.
    pub max_clusters_in_flight: Option<usize>,
    /// Accepts `http://` and `file://` URLs.
    pub allow_insecure_sources: bool,
}

/// The time of the next reconcile, if no event comes before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Next {
    /// No requeue: an event enqueues the key.
    OnEvent,
    /// Requeue after this time.
    After(Duration),
    /// Requeue with a backoff that starts with this wait and doubles with each consecutive retry.
    Retry(Duration),
}

impl Next {
    /// Requeues at a time of the clock; at once if the time has passed.
    pub fn at(time: Timestamp, now: Timestamp) -> Self {
        Self::After(time.duration_since(now).try_into().unwrap_or(Duration::ZERO))
    }
}
