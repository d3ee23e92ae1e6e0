//! What the loops are given: [`Context`] is everything, and each loop gets what it needs of it.

use std::sync::Arc;
use std::time::Duration;

use super::artifacts::Artifacts;
use super::caches::availability::AvailabilityCache;
use super::caches::cache::Cache;
use super::caches::connections::Connections;
use super::caches::origins::OriginCache;
use super::caches::pins::Pins;
use super::caches::renders::RenderCache;
use super::caches::{Caches, ClusterCaches, GroupCaches, ObjectCaches, SyncCaches, Times};
use super::event_handlers::EventHandlers;
use super::events::Events;
use super::hub::Hub;
use super::ports::{Ledger, Web};
use super::queues::Queues;
use super::start_rates::StartRates;
use super::workqueue::Workqueue;
use jiff::Timestamp;
use starling_api::{Cluster, Source};
use starling_member::Network;
use starling_net::clock::Clock;

/// Everything that the loops share. Nothing in it is a truth: it is adapters, caches, and work queues. A loop takes its
/// own context ([`Self::of_source`] and the others); only wiring and housekeeping take this one.
pub struct Context {
    /// The management cluster.
    pub hub: Hub,
    /// What time it is.
    pub clock: Clock,
    /// What is reported as events.
    pub events: Events,
    /// The keys that wait for a reconcile.
    pub queues: Queues,
    /// The objects of the management cluster.
    pub objects: ObjectCaches,
    /// What is kept for each of them.
    pub caches: Caches,
    /// Rendered sets, by digest.
    pub renders: RenderCache,
    /// What the reconcilers ask and write to besides the management cluster.
    pub adapters: Adapters,
    /// How fast work may start.
    pub start_rates: StartRates,
    /// Part of every owner label.
    pub installation: String,
    /// Whether `http://` and `file://` are accepted.
    pub allow_insecure_sources: bool,
}

/// What the reconcilers ask and write to besides the management cluster.
pub struct Adapters {
    /// What Sources offer.
    pub artifacts: Arc<dyn Artifacts>,
    /// How members are reached.
    pub network: Network,
    /// How the servers of gates are asked.
    pub web: Arc<dyn Web>,
    /// What is remembered over restarts.
    pub ledger: Arc<dyn Ledger>,
}

impl Context {
    /// Returns the present, to the millisecond.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The queues of all loops, to wake what an event concerns.
    #[must_use]
    pub fn event_handlers(&self) -> EventHandlers<'_> {
        EventHandlers {
            objects: &self.objects,
            queues: &self.queues,
            waiting: &self.caches.sync.waiting,
        }
    }

    /// Returns what the loop of Sources needs.
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

    /// Returns what the loop of Clusters needs.
    #[must_use]
    pub fn of_cluster(&self) -> ClusterContext<'_> {
        let ClusterCaches {
            connections,
            availability,
            token_renewals,
        } = &self.caches.cluster;
        ClusterContext {
            hub: &self.hub,
            clock: &self.clock,
            handlers: self.event_handlers(),
            clusters: &self.objects.clusters,
            connections,
            availability,
            token_renewals,
            network: &self.adapters.network,
        }
    }

    /// Returns what the loop of Syncs needs.
    #[must_use]
    pub fn of_sync(&self) -> SyncContext<'_> {
        SyncContext {
            hub: &self.hub,
            clock: &self.clock,
            handlers: self.event_handlers(),
            events: &self.events,
            objects: &self.objects,
            caches: &self.caches.sync,
            connections: &self.caches.cluster.connections,
            availability: &self.caches.cluster.availability,
            origins: &self.caches.source.origins,
            renders: &self.renders,
            ledger: &*self.adapters.ledger,
            start_rates: &self.start_rates,
            installation: &self.installation,
            allow_insecure_sources: self.allow_insecure_sources,
        }
    }

    /// Returns what the loop of SyncGroups needs.
    #[must_use]
    pub fn of_group(&self) -> GroupContext<'_> {
        GroupContext {
            hub: &self.hub,
            clock: &self.clock,
            handlers: self.event_handlers(),
            events: &self.events,
            objects: &self.objects,
            caches: &self.caches.group,
            queue: &self.queues.groups,
            origins: &self.caches.source.origins,
            renders: &self.renders,
            ledger: &*self.adapters.ledger,
            web: &self.adapters.web,
            allow_insecure_sources: self.allow_insecure_sources,
        }
    }
}

/// What the loop of Sources needs.
#[derive(Clone, Copy)]
pub struct SourceContext<'a> {
    /// The management cluster.
    pub hub: &'a Hub,
    /// What time it is.
    pub clock: &'a Clock,
    /// Wakes what a change of a Source concerns.
    pub handlers: EventHandlers<'a>,
    /// The Sources.
    pub sources: &'a Cache<Source>,
    /// Where their artifacts come from.
    pub origins: &'a OriginCache,
    /// The artifacts that stay at hand.
    pub pins: &'a Pins,
    /// The artifacts.
    pub artifacts: &'a dyn Artifacts,
    /// How fast an origin is asked.
    pub start_rates: &'a StartRates,
    /// Whether `http://` and `file://` are accepted.
    pub allow_insecure_sources: bool,
}

/// What the loop of Clusters needs.
#[derive(Clone, Copy)]
pub struct ClusterContext<'a> {
    /// The management cluster.
    pub hub: &'a Hub,
    /// What time it is.
    pub clock: &'a Clock,
    /// Wakes what a change of a Cluster concerns.
    pub handlers: EventHandlers<'a>,
    /// The Clusters.
    pub clusters: &'a Cache<Cluster>,
    /// The clients of the members.
    pub connections: &'a Connections,
    /// How the members respond.
    pub availability: &'a AvailabilityCache,
    /// When a renewal of a token that failed is tried again.
    pub token_renewals: &'a Times,
    /// How members are reached.
    pub network: &'a Network,
}

/// What the loop of Syncs needs.
#[derive(Clone, Copy)]
pub struct SyncContext<'a> {
    /// The management cluster.
    pub hub: &'a Hub,
    /// What time it is.
    pub clock: &'a Clock,
    /// Wakes what a change of a Sync concerns.
    pub handlers: EventHandlers<'a>,
    /// What is reported as events.
    pub events: &'a Events,
    /// The objects of the management cluster.
    pub objects: &'a ObjectCaches,
    /// What is kept for each Sync.
    pub caches: &'a SyncCaches,
    /// The clients of the members.
    pub connections: &'a Connections,
    /// How the members respond.
    pub availability: &'a AvailabilityCache,
    /// Where the artifacts of Sources come from.
    pub origins: &'a OriginCache,
    /// Rendered sets, by digest.
    pub renders: &'a RenderCache,
    /// Attempts, admissions and member records.
    pub ledger: &'a dyn Ledger,
    /// How fast attempts may start.
    pub start_rates: &'a StartRates,
    /// Part of every owner label.
    pub installation: &'a str,
    /// Whether `http://` and `file://` are accepted.
    pub allow_insecure_sources: bool,
}

/// What the loop of SyncGroups needs.
#[derive(Clone, Copy)]
pub struct GroupContext<'a> {
    /// The management cluster.
    pub hub: &'a Hub,
    /// What time it is.
    pub clock: &'a Clock,
    /// Wakes what a change of a group or its Syncs concerns.
    pub handlers: EventHandlers<'a>,
    /// What is reported as events.
    pub events: &'a Events,
    /// The objects of the management cluster.
    pub objects: &'a ObjectCaches,
    /// What is kept for each group.
    pub caches: &'a GroupCaches,
    /// The queue of groups. A gate task wakes its group.
    pub queue: &'a Arc<Workqueue>,
    /// Where the artifacts of Sources come from.
    pub origins: &'a OriginCache,
    /// Rendered sets, by digest.
    pub renders: &'a RenderCache,
    /// Rollouts, admissions and the journal.
    pub ledger: &'a dyn Ledger,
    /// How the servers of gates are asked. Shared with gate tasks.
    pub web: &'a Arc<dyn Web>,
    /// Whether `http://` and `file://` are accepted.
    pub allow_insecure_sources: bool,
}

/// When a reconciler wants to be called again, if nothing happens before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Next {
    /// Not at all: an event will come.
    OnEvent,
    /// After this time.
    After(Duration),
    /// After a wait that starts here and doubles with each time in a row that this is returned.
    Retry(Duration),
}

impl Next {
    /// At a time of the clock; one that is past means at once.
    pub fn at(time: Timestamp, now: Timestamp) -> Self {
        Self::After(time.duration_since(now).try_into().unwrap_or(Duration::ZERO))
    }
}
