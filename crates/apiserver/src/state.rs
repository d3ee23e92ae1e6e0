//! The state of one virtual cluster: what is stored and what is served.

use std::sync::Arc;

use serde_json::Value;

use crate::controllers::{DEFINITIONS, Queue};
use crate::journal::{Entry, Journal, Verb};
use crate::kinds::{Registry, Resource, Version, custom};
use crate::random::Random;
use crate::store::{History, Store, Stored};
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
