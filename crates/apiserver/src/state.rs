//! The state of one virtual cluster: what is stored and what is served.

use std::sync::Arc;

use serde_json::Value;

use crate::controllers::{DEFINITIONS, Queue};
use crate::journal::{Entry, Journal, Verb};
use crate::kinds::{Registry, Resource, Version, custom};
use crate::persist::{Change, Counters, Outbox};
use crate::random::Random;
use crate::store::{History, Range, Store, Stored, TableName};
use crate::verbs::Write;

/// The state of one virtual cluster. Everything that changes it is synchronous and gets the time as a parameter.
#[derive(Debug)]
pub struct State {
    /// The objects.
    pub store: Store,
    /// The resources.
    pub registry: Registry,
    /// Where names and UIDs come from.
    pub random: Random,
    /// The writes, in order.
    pub journal: Journal,
    /// What the controllers have to look at.
    pub queue: Queue,
    /// The next address of a Service, and the next port of a node.
    pub addresses: Addresses,
    /// Takes each write to the disk, if the server has a file.
    pub(crate) outbox: Option<Outbox>,
}

/// What Services get.
#[derive(Debug, Clone, Default)]
pub struct Addresses {
    /// How many addresses have been given.
    pub given: u32,
    /// How many ports have been given.
    pub ports: u32,
}

impl State {
    /// Returns an empty cluster.
    pub fn new(random: Random, history: History, journal: Journal) -> Self {
        Self {
            store: Store::new(0, history),
            registry: Registry::default(),
            random,
            journal,
            queue: Queue::default(),
            addresses: Addresses::default(),
            outbox: None,
        }
    }

    /// Returns a cluster as it was written down. Its past is forgotten; its controllers look at everything once, as
    /// what they were about to do is not written down.
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
        // Definitions first: they say what the other objects are.
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
        state.look_at_everything();
        state
    }

    fn look_at_everything(&mut self) {
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
                queue.written(&resource, stored, None, store);
            }
        }
    }

    /// What is written down beside the objects.
    pub(crate) fn counters(&self) -> Counters {
        Counters {
            revision: self.store.revision(),
            random: self.random.place(),
            addresses: self.addresses.given,
            ports: self.addresses.ports,
        }
    }

    /// Hands a write on to the disk.
    fn keep(&mut self, resource: &Resource, stored: &Arc<Stored>, removed: bool) {
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

    /// Writes an object, notes it and tells the controllers.
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
        self.keep(resource, &stored, false);
        self.note(resource, &stored, write, verb);
        self.serve(resource, &stored);
        self.queue
            .written(resource, &stored, previous.as_deref(), &self.store);
        stored
    }

    /// Removes an object, notes it and tells the controllers. `last` is its last version if that has changed.
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
        self.keep(resource, &stored, true);
        self.note(resource, &stored, write, Verb::Delete);
        self.retire(resource, &stored);
        self.queue.removed(resource, &stored, &self.store);
        Some(stored)
    }

    /// Serves what a definition defines, from its write on.
    fn serve(&mut self, resource: &Resource, stored: &Stored) {
        if *resource.table != *DEFINITIONS {
            return;
        }
        let definition = stored.read();
        // What cannot be served was refused before it was written.
        match custom::resource(&definition) {
            Ok(Some(resource)) => {
                self.registry.serve(resource);
            }
            _ => self.retire_names(&definition),
        }
    }

    fn retire(&mut self, resource: &Resource, stored: &Stored) {
        if *resource.table == *DEFINITIONS {
            self.retire_names(&stored.read());
        }
    }

    fn retire_names(&mut self, definition: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let spec = &definition["spec"];
        self.registry
            .retire(&text(&spec["group"]), &text(&spec["names"]["plural"]));
        // Who watches its objects has to notice.
        self.store.wake_all();
    }

    fn stored(&self, resource: &Resource, object: &Value) -> Option<Arc<Stored>> {
        let metadata = &object["metadata"];
        let text = |name: &str| metadata[name].as_str().unwrap_or_default();
        let key = crate::object::head::key(text("namespace"), text("name"));
        self.store.get(&resource.table, &key).cloned()
    }

    fn note(&mut self, resource: &Resource, stored: &Arc<Stored>, write: &Write<'_>, verb: Verb) {
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
