//! A virtual cluster in a server.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use super::requests::Requests;
use super::{Options, Server, ServerError};
use crate::controllers::{self, Health, HealthRule, Settings};
use crate::faults::Switchboard;
use crate::journal::Entry;
use crate::kinds::{Resource, strategy};
use crate::persist::{Durability, PersistError};
use crate::random::Random;
use crate::state::State;
use crate::store::Stored;
use crate::verbs::{self, Target, Validation, Write};

/// A virtual cluster.
pub struct Cluster {
    name: Box<str>,
    state: Mutex<State>,
    settings: Mutex<Arc<Settings>>,
    faults: Switchboard,
    requests: Requests,
    /// Whether the driver has been told of work.
    told: AtomicBool,
    work: mpsc::UnboundedSender<Arc<Cluster>>,
    /// True once the cluster has been removed.
    closed: watch::Sender<bool>,
    /// What has to be on the disk before it is shown; none if nothing is kept there.
    durability: Option<Durability>,
}

impl Cluster {
    pub(super) fn new(
        name: &str,
        options: &Options,
        settings: Settings,
        state: State,
        durability: Option<Durability>,
        work: mpsc::UnboundedSender<Arc<Cluster>>,
    ) -> Self {
        let faults = Switchboard::new(Random::named(options.seed.wrapping_add(1), name));
        Self {
            name: name.into(),
            state: Mutex::new(state),
            settings: Mutex::new(Arc::new(settings)),
            faults,
            requests: Requests::default(),
            told: AtomicBool::new(false),
            work,
            closed: watch::Sender::new(false),
            durability,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The state. Whoever holds it does not wait for anything.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The faults.
    pub fn faults(&self) -> &Switchboard {
        &self.faults
    }

    /// Counts what it is asked.
    pub(crate) fn requests(&self) -> &Requests {
        &self.requests
    }

    /// Tells when the cluster has been removed.
    pub(crate) fn closed(&self) -> watch::Receiver<bool> {
        self.closed.subscribe()
    }

    /// Ends its watches, and removes it from the disk.
    pub(super) fn close(&self) {
        self.closed.send_replace(true);
        if let Some(outbox) = self.state().outbox.take() {
            outbox.remove();
        }
    }

    /// Lets the disk have it: all that was written so far at once.
    pub(super) fn release(&self) {
        let mut state = self.state();
        let counters = state.counters();
        if let Some(outbox) = &mut state.outbox {
            outbox.release(&self.name, counters);
        }
    }

    /// Waits until everything that has been written is on the disk: nobody may see what a crash takes back.
    pub(crate) async fn durable(&self) -> Result<(), PersistError> {
        match &self.durability {
            Some(durability) => durability.wait().await,
            None => Ok(()),
        }
    }

    /// Refuses writes while nothing gets to the disk.
    pub(crate) fn takes_writes(&self) -> Result<(), PersistError> {
        self.durability.as_ref().map_or(Ok(()), Durability::check)
    }

    /// Tells the driver that there may be work. The server does it after each write; whoever writes to the state does it too.
    pub fn tell(self: &Arc<Self>) {
        let has_work = self.state().queue.next().is_some();
        if has_work && !self.told.swap(true, Ordering::AcqRel) {
            // Without a server there is nobody to tell.
            let _ = self.work.send(Arc::clone(self));
        }
    }

    pub(super) fn taken(&self) {
        self.told.store(false, Ordering::Release);
    }

    /// Lets the controllers work; returns when to call again.
    pub fn step(&self, now: Timestamp) -> Option<Timestamp> {
        let settings = Arc::clone(&self.settings());
        controllers::step(&mut self.state(), &settings, now)
    }

    fn settings(&self) -> MutexGuard<'_, Arc<Settings>> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes what every cluster has.
    pub(super) fn bootstrap(self: &Arc<Self>, now: Timestamp) -> Result<(), ServerError> {
        let service = json!({
            "metadata": {"name": "kubernetes", "labels": {"component": "apiserver", "provider": "kubernetes"}},
            "spec": {"clusterIP": strategy::FIRST_ADDRESS.to_string(), "ports": [
                {"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}]},
        });
        for namespace in ["kube-system", "kube-public", "default", "kube-node-lease"] {
            self.make("namespaces", "", json!({"metadata": {"name": namespace}}), now)?;
        }
        self.make("services", "default", service, now)?;
        self.state().addresses.given = 1;
        // What the namespaces have is there before the first request.
        while self.step(now).is_some_and(|next| next <= now) {}
        Ok(())
    }

    fn make(&self, plural: &str, namespace: &str, object: Value, now: Timestamp) -> Result<(), ServerError> {
        let refused = |why: String| ServerError::Bootstrap {
            name: self.name.to_string(),
            why,
        };
        let mut state = self.state();
        let resource = state
            .registry
            .get("", plural)
            .ok_or_else(|| refused(format!("{plural} are not served")))?;
        let target = endpoint(&resource, namespace, "").ok_or_else(|| refused("no version".to_owned()))?;
        let write = Write {
            manager: "kube-apiserver",
            user: "system:apiserver",
            dry_run: false,
            validation: Validation::Strict,
            force: false,
            now,
            subresource: "",
        };
        verbs::create(&mut state, &target, object, &[], &write)
            .map(|_| ())
            .map_err(|status| refused(status.to_string()))
    }
}

fn endpoint(resource: &Arc<Resource>, namespace: &str, name: &str) -> Option<Target> {
    Some(Target {
        version: Arc::clone(resource.versions.first()?),
        resource: Arc::clone(resource),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        subresource: String::new(),
    })
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cluster({})", self.name)
    }
}

/// A virtual cluster, to whoever has the server in their own process.
#[derive(Clone)]
pub struct ClusterHandle {
    pub(super) cluster: Arc<Cluster>,
    pub(super) server: Server,
}

impl ClusterHandle {
    /// Its name.
    pub fn name(&self) -> &str {
        self.cluster.name()
    }

    /// Its URL; a path only, while the server has none.
    pub fn url(&self) -> String {
        format!(
            "{}/clusters/{}",
            self.server.url().unwrap_or_default(),
            self.name()
        )
    }

    /// The token of its administrator.
    pub fn token(&self) -> String {
        self.server.shared.secret.cluster_token(self.name())
    }

    /// A kubeconfig for its administrator.
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

    /// The writes that its journal keeps, the oldest first.
    pub fn journal(&self) -> Vec<Entry> {
        self.cluster.state().journal.entries().cloned().collect()
    }

    /// How many writes there have been.
    pub fn written(&self) -> u64 {
        self.cluster.state().journal.written()
    }

    /// How many requests it has been sent, by verb; those of no resource, such as `/version`, are `other`.
    pub fn requests(&self) -> BTreeMap<&'static str, u32> {
        self.cluster.requests().by_verb()
    }

    /// Its faults.
    pub fn faults(&self) -> &Switchboard {
        self.cluster.faults()
    }

    /// Its revision.
    pub fn revision(&self) -> u64 {
        self.cluster.state().store.revision()
    }

    /// An object as it is stored: table (`deployments.apps`) and key (`namespace/name`).
    pub fn stored(&self, table: &str, key: &str) -> Option<Arc<Stored>> {
        self.cluster.state().store.get(table, key).cloned()
    }

    /// Forgets the past, so that watches and lists of it get 410.
    pub fn compact(&self) {
        let mut state = self.cluster.state();
        let revision = state.store.revision();
        state.store.compact(revision);
        // Whoever is behind has to notice.
        state.store.wake_all();
    }

    /// Sets when what is deployed becomes healthy, from the next look on.
    pub fn set_health(&self, health: Health) {
        let mut settings = self.cluster.settings();
        Arc::make_mut(&mut settings).health = health;
        drop(settings);
        self.look_again();
    }

    /// Sets when some objects become healthy.
    pub fn add_health_rule(&self, rule: HealthRule) {
        let mut settings = self.cluster.settings();
        Arc::make_mut(&mut settings).rules.push(rule);
        drop(settings);
        self.look_again();
    }

    fn look_again(&self) {
        {
            let mut state = self.cluster.state();
            let State { store, queue, .. } = &mut *state;
            queue.all_workloads(store);
        }
        self.cluster.tell();
    }

    /// The cluster itself.
    pub fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }
}
