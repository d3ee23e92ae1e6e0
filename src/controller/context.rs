//! What all reconcilers share.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use starling_api::{Cluster, RolloutAction, RolloutApproval, Source, SyncGroup};

use crate::clock::Clock;
use crate::member::Network;

use super::cache::{Cache, ObjectKey};
use super::events::Events;
use super::gates::Gates;
use super::healths::Healths;
use super::hub::Hub;
use super::journals::Journals;
use super::lanes::Lanes;
use super::members::Members;
use super::pace::Pace;
use super::pins::Pins;
use super::ports::{Git, Ledger, Web};
use super::releases::Releases;
use super::renders::Renders;
use super::repositories::Repositories;
use super::roster::Syncs;
use super::selection::Selections;
use super::standing::Standings;
use super::targets::Targets;
use super::unsure::Unsure;
use super::workqueue::Workqueue;

/// What all reconcilers share. Nothing in it is a truth: it is adapters, caches, and the requeue tables.
pub struct Context {
    /// The management cluster.
    pub hub: Hub,
    /// What time it is.
    pub clock: Clock,
    /// What people should hear of.
    pub events: Events,
    /// Sources as known.
    pub sources: Arc<Cache<Source>>,
    /// Clusters as known.
    pub clusters: Arc<Cache<Cluster>>,
    /// Syncs as known.
    pub syncs: Arc<Syncs>,
    /// SyncGroups as known.
    pub groups: Arc<Cache<SyncGroup>>,
    /// What people approved, by group.
    pub approvals: Arc<Cache<RolloutApproval>>,
    /// What people asked of rollouts, by group.
    pub actions: Arc<Cache<RolloutAction>>,
    /// Who is looked at next.
    pub queues: Queues,
    /// Mirrors of repositories.
    pub git: Arc<dyn Git>,
    /// Where those repositories are.
    pub repositories: Repositories,
    /// Rendered sets.
    pub renders: Renders,
    /// How members are reached.
    pub network: Network,
    /// The gates of stages that somebody else decides.
    pub gates: Arc<Gates>,
    /// How those are asked.
    pub web: Arc<dyn Web>,
    /// Releases as they were formed.
    pub releases: Releases,
    /// What was pinned last.
    pub pins: Pins,
    /// Connections to members.
    pub members: Members,
    /// How each member answers, and until when it is left alone.
    pub lanes: Arc<Lanes>,
    /// The ledger.
    pub ledger: Arc<dyn Ledger>,
    /// Rates.
    pub pace: Pace,
    /// When each Sync is next checked for drift.
    pub checks: Checks,
    /// Which Syncs wait for which.
    pub dependents: Dependents,
    /// When a renewal of a Cluster's token that failed is tried again.
    pub renewals: Checks,
    /// What is known of the health of each Sync's objects.
    pub healths: Healths,
    /// How the objects of each Sync stand, beyond what is in step.
    pub standings: Standings,
    /// When each group's status was last written, so that a rollout does not write it for every cluster.
    pub reports: Checks,
    /// The clusters that each group selects.
    pub selections: Selections,
    /// The targets that the last look at each group computed.
    pub targets: Targets,
    /// What the journal of each group says last.
    pub journals: Journals,
    /// Who is about to leave each group.
    pub departures: Departures,
    /// What may have been written for each group and was not answered.
    pub unsure: Unsure,
    /// Part of every owner label.
    pub installation: String,
    /// Whether http:// and file:// are accepted.
    pub allow_insecure_sources: bool,
}

impl Context {
    /// The present, to the millisecond.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

/// One requeue table per kind.
#[derive(Debug, Default)]
pub struct Queues {
    /// Sources.
    pub sources: Workqueue,
    /// Clusters.
    pub clusters: Workqueue,
    /// Syncs.
    pub syncs: Workqueue,
    /// SyncGroups. Shared, as what a gate waits for wakes its group.
    pub groups: Arc<Workqueue>,
}

/// A time per object.
#[derive(Debug, Default)]
pub struct Checks(Mutex<HashMap<ObjectKey, Timestamp>>);

impl Checks {
    /// The time of an object; `None`: none was set by this process.
    #[must_use]
    pub fn get(&self, key: &ObjectKey) -> Option<Timestamp> {
        self.lock().get(key).copied()
    }

    /// Sets the time of an object.
    pub fn set(&self, key: &ObjectKey, at: Timestamp) {
        self.lock().insert(key.clone(), at);
    }

    /// Forgets an object.
    pub fn forget(&self, key: &ObjectKey) {
        self.lock().remove(key);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ObjectKey, Timestamp>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Since when the same clusters are about to leave each group. They leave a moment later: labels that are changed one by
/// one by a script, and a list that is not complete, are so seen as what they are.
#[derive(Debug, Default)]
pub struct Departures(Mutex<HashMap<ObjectKey, (BTreeSet<String>, Timestamp)>>);

impl Departures {
    /// Since when just these clusters are about to leave.
    #[must_use]
    pub fn since(&self, group: &ObjectKey, leaving: &BTreeSet<String>, now: Timestamp) -> Timestamp {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if leaving.is_empty() {
            known.remove(group);
            return now;
        }
        match known.get(group) {
            Some((same, since)) if same == leaving => *since,
            _ => {
                known.insert(group.clone(), (leaving.clone(), now));
                now
            }
        }
    }
}

/// Who waits for whom. An index of what the caches say, so that a Sync that is done need not be held against all
/// others.
#[derive(Debug, Default)]
pub struct Dependents(Mutex<HashMap<ObjectKey, BTreeSet<ObjectKey>>>);

impl Dependents {
    /// `waiting` is to be looked at when `on` changes.
    pub fn wait(&self, on: &ObjectKey, waiting: &ObjectKey) {
        self.lock().entry(on.clone()).or_default().insert(waiting.clone());
    }

    /// Those who wait for `on`, taken: whoever still waits says so again.
    #[must_use]
    pub fn take(&self, on: &ObjectKey) -> BTreeSet<ObjectKey> {
        self.lock().remove(on).unwrap_or_default()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ObjectKey, BTreeSet<ObjectKey>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When a reconciler wants to be called again, if nothing happens before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Next {
    /// Not at all: an event will come.
    OnEvent,
    /// After this time.
    After(Duration),
    /// After a wait that starts here and doubles with each time in a row that this is said.
    Retry(Duration),
}

impl Next {
    /// At a time of the clock; one that is past means at once.
    pub fn at(time: Timestamp, now: Timestamp) -> Self {
        Self::After(time.duration_since(now).try_into().unwrap_or(Duration::ZERO))
    }
}
