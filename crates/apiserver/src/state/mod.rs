//! The state of one virtual cluster: its objects and the resources that it serves.

mod backup;
mod queue;

use std::sync::Arc;

use serde_json::Value;

use crate::admission::Admission;
use crate::journal::{Entry, Journal, Verb};
use crate::kinds::tables::DEFINITIONS;
use crate::kinds::{Addresses, Registry, Resource, Version, custom};
use crate::persist::{Change, Counters, Outbox};
use crate::random::Random;
use crate::rbac::{Attributes, Decision, Policy, Who};
use crate::store::{History, Range, Store, Stored, TableName};
use crate::write::Write;

pub use backup::{Backup, RESTORED_BY};
pub use queue::{Queue, Work};

/// The state of one virtual cluster.
///
/// Every function that changes it is synchronous and takes the time as a parameter.
#[derive(Debug)]
pub struct State {
    /// The stored objects.
    pub store: Store,
    /// The served resources.
    pub registry: Registry,
    /// The generator of names and UIDs.
    pub random: Random,
    /// The writes, in order.
    pub journal: Journal,
    /// The objects that the controllers have to reconcile.
    pub queue: Queue,
    /// The allocator of cluster IPs and node ports.
    pub addresses: Addresses,
    /// The roles and bindings; `None` if every user may do everything.
    policy: Option<Arc<Policy>>,
    /// The admission policies and their bindings.
    admission: Admission,
    /// The queue of writes to the disk; `None` if the server has no data directory.
    pub(crate) outbox: Option<Outbox>,
}

impl State {
    /// Returns the state of an empty cluster.
    pub fn new(random: Random, history: History, journal: Journal) -> Self {
        Self {
            store: Store::new(0, history),
            registry: Registry::default(),
            random,
            journal,
            queue: Queue::default(),
            addresses: Addresses::default(),
            policy: None,
            admission: Admission::default(),
            outbox: None,
        }
    }

    /// Lets roles and bindings decide who may do what, from now on.
    pub fn enforce_rbac(&mut self) {
        self.policy = Some(Arc::new(Policy::of(&self.store)));
    }

    /// Returns the roles and bindings; `None` if every user may do everything.
    pub fn policy(&self) -> Option<&Policy> {
        self.policy.as_deref()
    }

    /// Returns the roles and bindings as they are now, to be kept.
    pub(crate) fn shared_policy(&self) -> Option<Arc<Policy>> {
        self.policy.clone()
    }

    /// Returns the admission policies and their bindings.
    pub(crate) fn admission(&self) -> &Admission {
        &self.admission
    }

    /// Decides whether a user may do something.
    pub fn authorize(&self, who: Who<'_>, attributes: &Attributes) -> Decision {
        match &self.policy {
            Some(policy) => policy.authorize(who, attributes),
            None => Decision {
                allowed: true,
                reason: String::new(),
            },
        }
    }

    /// Returns the state of a cluster that was read back from the disk.
    ///
    /// The history of objects is not stored, and neither is the controllers' queue: every object is queued once.
    pub(crate) fn restored(
        counters: &Counters,
        objects: Vec<(Box<str>, Stored)>,
        history: History,
        journal: Journal,
    ) -> Self {
        let mut state = Self::new(Random::resumed(counters.random), history, journal);
        state.store = Store::new(counters.revision, history);
        state.addresses = Addresses {
            given: counters.addresses,
            ports: counters.ports,
        };
        // Definitions come first, since they define the resources of the other objects.
        let (definitions, others): (Vec<_>, Vec<_>) = objects
            .into_iter()
            .partition(|(table, _)| **table == *DEFINITIONS);
        for (table, stored) in definitions.into_iter().chain(others) {
            let resource = state.registry.of_table(&table);
            if let Some(resource) = &resource {
                state.serve(resource, &stored);
            }
            let table = resource.map_or_else(|| TableName::from(table), |found| Arc::clone(&found.table));
            state.store.restore(&table, stored);
        }
        state.admission = Admission::of(&state.store);
        state.queue_all();
        state
    }

    fn queue_all(&mut self) {
        let Self {
            store,
            registry,
            queue,
            ..
        } = self;
        for table in store.tables() {
            let Some(resource) = registry.of_table(table) else {
                continue;
            };
            for stored in store.list(table, Range::default()) {
                queue.on_write(&resource, stored, None, store);
            }
        }
    }

    /// Returns the counters that are stored with the objects.
    pub(crate) fn counters(&self) -> Counters {
        Counters {
            revision: self.store.revision(),
            random: self.random.position(),
            addresses: self.addresses.given,
            ports: self.addresses.ports,
        }
    }

    /// Queues a write for the disk.
    fn persist(&mut self, resource: &Resource, stored: &Arc<Stored>, removed: bool) {
        let counters = self.counters();
        if let Some(outbox) = &mut self.outbox {
            let change = Change {
                table: Arc::clone(&resource.table),
                object: Arc::clone(stored),
                removed,
            };
            outbox.push(change, counters);
        }
    }

    /// Stores an object, records the write in the journal and queues the object for the controllers.
    pub fn commit(
        &mut self,
        resource: &Arc<Resource>,
        version: &Version,
        object: &mut Value,
        write: &Write<'_>,
        verb: Verb,
    ) -> Arc<Stored> {
        let previous = self.stored(resource, object);
        crate::kinds::to_stored_version(resource, version, object);
        let stored = self.store.put(&resource.table, object);
        self.persist(resource, &stored, false);
        self.record(resource, &stored, write, verb);
        self.serve(resource, &stored);
        if let Some(policy) = &mut self.policy {
            Arc::make_mut(policy).put(&resource.table, &stored);
        }
        self.admission.put(&resource.table, &stored);
        self.queue
            .on_write(resource, &stored, previous.as_deref(), &self.store);
        stored
    }

    /// Removes an object, records the removal in the journal and queues the objects that depend on it.
    ///
    /// `last` is the last version of the object, if this request changed it.
    pub fn remove(
        &mut self,
        resource: &Arc<Resource>,
        version: &Version,
        key: &str,
        last: Option<&mut Value>,
        write: &Write<'_>,
    ) -> Option<Arc<Stored>> {
        let stored = match last {
            Some(object) => {
                crate::kinds::to_stored_version(resource, version, object);
                self.store.remove_as(&resource.table, object)?
            }
            None => self.store.remove(&resource.table, key)?,
        };
        self.persist(resource, &stored, true);
        self.record(resource, &stored, write, Verb::Delete);
        self.stop_serving(resource, &stored);
        if let Some(policy) = &mut self.policy {
            Arc::make_mut(policy).remove(&resource.table, &stored);
        }
        self.admission.remove(&resource.table, &stored);
        self.queue.on_remove(resource, &stored, &self.store);
        Some(stored)
    }

    /// Serves the resource that a definition defines, as soon as the definition is stored.
    fn serve(&mut self, resource: &Resource, stored: &Stored) {
        if *resource.table != *DEFINITIONS {
            return;
        }
        let definition = stored.read();
        // A definition that cannot be served was rejected before it was stored.
        match custom::resource(&definition) {
            Ok(Some(resource)) => {
                self.registry.serve(resource);
                // The watches that were opened under another schema have to end.
                self.store.wake_all();
            }
            _ => self.stop_serving_names(&definition),
        }
    }

    fn stop_serving(&mut self, resource: &Resource, stored: &Stored) {
        if *resource.table == *DEFINITIONS {
            self.stop_serving_names(&stored.read());
        }
    }

    fn stop_serving_names(&mut self, definition: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let spec = &definition["spec"];
        self.registry
            .retire(&text(&spec["group"]), &text(&spec["names"]["plural"]));
        // The watches of the resource have to end.
        self.store.wake_all();
    }

    fn stored(&self, resource: &Resource, object: &Value) -> Option<Arc<Stored>> {
        let metadata = &object["metadata"];
        let text = |name: &str| metadata[name].as_str().unwrap_or_default();
        let key = crate::object::head::key(text("namespace"), text("name"));
        self.store.get(&resource.table, &key).cloned()
    }

    fn record(&mut self, resource: &Resource, stored: &Arc<Stored>, write: &Write<'_>, verb: Verb) {
        self.journal.push(|number| Entry {
            number,
            time: write.now,
            verb,
            group: resource.group.clone(),
            resource: resource.plural.clone(),
            kind: resource.kind.clone(),
            subresource: write.subresource.into(),
            user: write.user.into(),
            manager: write.manager.into(),
            object: Arc::clone(stored),
        });
    }
}
