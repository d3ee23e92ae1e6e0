//! A virtual cluster of a server.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use tokio::sync::{mpsc, watch};

use super::requests::Requests;
use super::watches::Watches;
use super::{Options, Server};
use crate::controllers::{self, Health, HealthRule, Settings};
use crate::faults::Switchboard;
use crate::journal::Entry;
use crate::persist::{Durability, PersistError};
use crate::random::Random;
use crate::state::{Backup, State};
use crate::store::Stored;

/// A virtual cluster.
pub struct Cluster {
    name: Box<str>,
    /// What tokens are valid for: the cluster, and no earlier one of its name.
    token_scope: Box<str>,
    state: Mutex<State>,
    settings: Mutex<Arc<Settings>>,
    faults: Switchboard,
    requests: Requests,
    watches: Arc<Watches>,
    /// Whether the cluster is in the driver's queue.
    scheduled: AtomicBool,
    work: mpsc::UnboundedSender<Arc<Cluster>>,
    /// True once the cluster has been removed.
    closed: watch::Sender<bool>,
    /// The handle to wait for writes to the disk; `None` if the server has no data directory.
    durability: Option<Durability>,
}

impl Cluster {
    pub(super) fn new(
        name: &str,
        token_scope: Box<str>,
        options: &Options,
        settings: Settings,
        state: State,
        durability: Option<Durability>,
        work: mpsc::UnboundedSender<Arc<Cluster>>,
    ) -> Self {
        let faults = Switchboard::new(Random::named(options.seed.wrapping_add(1), name));
        Self {
            name: name.into(),
            token_scope,
            state: Mutex::new(state),
            settings: Mutex::new(Arc::new(settings)),
            faults,
            requests: Requests::default(),
            watches: Arc::new(Watches::new(options.connections.watches)),
            scheduled: AtomicBool::new(false),
            work,
            closed: watch::Sender::new(false),
            durability,
        }
    }

    /// Returns the name of the cluster.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns what tokens of the cluster are valid for.
    pub(crate) fn token_scope(&self) -> &str {
        &self.token_scope
    }

    /// Locks the state. The holder of the lock must not wait for anything.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the switchboard of faults.
    pub fn faults(&self) -> &Switchboard {
        &self.faults
    }

    /// Returns the counters of requests.
    pub(crate) fn requests(&self) -> &Requests {
        &self.requests
    }

    /// Returns a signal that becomes true when the cluster is removed.
    pub(crate) fn closed(&self) -> watch::Receiver<bool> {
        self.closed.subscribe()
    }

    /// Ends the watches of the cluster and removes it from the disk; `removals` is the number of removed clusters of
    /// its name.
    pub(super) fn close(&self, removals: u64) {
        self.closed.send_replace(true);
        if let Some(outbox) = self.state().outbox.take() {
            outbox.remove(&self.name, removals);
        }
    }

    /// Queues all writes so far for the disk, in one transaction.
    pub(super) fn release(&self) {
        let mut state = self.state();
        let counters = state.counters();
        if let Some(outbox) = &mut state.outbox {
            outbox.release(&self.name, counters);
        }
    }

    /// Waits until all writes so far are on the disk: no client may see a write that a crash loses.
    pub(crate) async fn durable(&self) -> Result<(), PersistError> {
        match &self.durability {
            Some(durability) => durability.wait().await,
            None => Ok(()),
        }
    }

    /// Reports whether an object of a table, among those whose keys are chosen, has a write that is not on the disk.
    pub(crate) fn has_uncommitted(&self, table: &str, is_chosen: impl Fn(&str) -> bool) -> bool {
        let durability = self.durability.as_ref();
        durability.is_some_and(|durability| durability.has_uncommitted(table, is_chosen))
    }

    /// Returns the open watches.
    pub(crate) fn watches(&self) -> &Arc<Watches> {
        &self.watches
    }

    /// Returns an error while writes cannot reach the disk.
    pub(crate) fn check_writable(&self) -> Result<(), PersistError> {
        self.durability.as_ref().map_or(Ok(()), Durability::check)
    }

    /// Queues the cluster for the driver, which runs its controllers. The server calls this after each write; any
    /// other writer to the state must call it too.
    pub fn schedule(self: &Arc<Self>) {
        let has_work = self.state().queue.next().is_some();
        if has_work && !self.scheduled.swap(true, Ordering::AcqRel) {
            // The send fails only if the server is gone.
            let _ = self.work.send(Arc::clone(self));
        }
    }

    pub(super) fn unschedule(&self) {
        self.scheduled.store(false, Ordering::Release);
    }

    /// Runs the controllers; returns when to run them again.
    pub fn step(&self, now: Timestamp) -> Option<Timestamp> {
        let settings = Arc::clone(&self.settings());
        controllers::step(&mut self.state(), &settings, now)
    }

    fn settings(&self) -> MutexGuard<'_, Arc<Settings>> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cluster({})", self.name)
    }
}

/// A virtual cluster, for users of the server in the same process.
#[derive(Clone)]
pub struct ClusterHandle {
    pub(super) cluster: Arc<Cluster>,
    pub(super) server: Server,
}

impl ClusterHandle {
    /// Returns the name of the cluster.
    pub fn name(&self) -> &str {
        self.cluster.name()
    }

    /// Returns the URL of the cluster; only its path if the server has no URL yet.
    pub fn url(&self) -> String {
        format!(
            "{}/clusters/{}",
            self.server.url().unwrap_or_default(),
            self.name()
        )
    }

    /// Returns the token of the cluster's administrator.
    pub fn token(&self) -> String {
        self.server
            .shared
            .secret
            .cluster_token(self.cluster.token_scope())
    }

    /// Returns a kubeconfig for the cluster's administrator.
    pub fn kubeconfig(&self) -> String {
        let name = self.name();
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: {name}\n\
             clusters:\n- name: {name}\n  cluster:\n    server: {}\n    certificate-authority-data: {}\n\
             contexts:\n- name: {name}\n  context:\n    cluster: {name}\n    user: {name}\n\
             users:\n- name: {name}\n  user:\n    token: {}\n",
            self.url(),
            STANDARD.encode(self.server.ca_pem().as_bytes()),
            self.token(),
        )
    }

    /// Returns the writes that the journal keeps, the oldest first.
    pub fn journal(&self) -> Vec<Entry> {
        self.cluster.state().journal.entries().cloned().collect()
    }

    /// Returns the number of writes so far.
    pub fn written(&self) -> u64 {
        self.cluster.state().journal.written()
    }

    /// Returns the number of requests by verb; requests for no resource, such as `/version`, count as `other`.
    pub fn requests(&self) -> BTreeMap<&'static str, u32> {
        self.cluster.requests().by_verb()
    }

    /// Returns the switchboard of faults.
    pub fn faults(&self) -> &Switchboard {
        self.cluster.faults()
    }

    /// Returns the revision of the store.
    pub fn revision(&self) -> u64 {
        self.cluster.state().store.revision()
    }

    /// Returns a stored object by its table (`deployments.apps`) and key (`namespace/name`).
    pub fn stored(&self, table: &str, key: &str) -> Option<Arc<Stored>> {
        self.cluster.state().store.get(table, key).cloned()
    }

    /// Compacts the history, so that watches and lists of earlier resource versions get 410.
    pub fn compact(&self) {
        let mut state = self.cluster.state();
        let revision = state.store.revision();
        state.store.compact(revision);
        // Watches that are behind have to end.
        state.store.wake_all();
    }

    /// Returns a backup of the objects.
    pub fn backup(&self) -> Backup {
        self.cluster.state().backup()
    }

    /// Sets the objects back to a backup: see [`State::set_back`].
    pub fn set_back(&self, backup: &Backup, bump: bool, now: Timestamp) {
        self.cluster.state().set_back(backup, bump, now);
        self.cluster.schedule();
    }

    /// Sets when workloads become healthy, and queues all workloads.
    pub fn set_health(&self, health: Health) {
        let mut settings = self.cluster.settings();
        Arc::make_mut(&mut settings).health = health;
        drop(settings);
        self.requeue_workloads();
    }

    /// Adds a health rule for some workloads, and queues all workloads.
    pub fn add_health_rule(&self, rule: HealthRule) {
        let mut settings = self.cluster.settings();
        Arc::make_mut(&mut settings).rules.push(rule);
        drop(settings);
        self.requeue_workloads();
    }

    fn requeue_workloads(&self) {
        {
            let mut state = self.cluster.state();
            let State { store, queue, .. } = &mut *state;
            queue.push_all_workloads(store);
        }
        self.cluster.schedule();
    }

    /// Returns the cluster behind the handle.
    pub fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }
}
