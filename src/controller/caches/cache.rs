//! The cache of one kind of objects of the management cluster.
//!
//! The watch *and* the responses to writes of this process update the cache; the newer resourceVersion wins. So no plan
//! starts from a state that is older than a write of this process, which keeps `maxConcurrency` even if the watch lags
//! (I4). Resource versions are ordered as in KEP-5504 (`versions`). If a server has versions without an order, the
//! cache is as new as its watch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, RwLock};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use kube::core::DeserializeGuard;
use kube::core::error_boundary::InvalidObject;
use tokio::sync::watch;

use super::deletions::Deletions;
use super::indexed::IndexedObjects;
pub use super::indexed::{IndexBy, SecondaryIndex};
use super::versions::{VersionOrigin, is_newer, version};
pub use crate::controller::object_key::ObjectKey;

/// All objects of one kind, with a secondary index.
#[derive(Debug)]
pub struct Cache<K, B = ()> {
    state: RwLock<State<K, B>>,
    synced: watch::Sender<bool>,
}

#[derive(Debug)]
struct State<K, B> {
    objects: IndexedObjects<K, B>,
    /// Recently deleted objects: a late response to a write must not bring one back.
    deletions: Deletions,
    /// The list that is being received; `None` if none is.
    incoming: Option<Incoming<K>>,
    /// Objects that exist and cannot be decoded. Their absence from `objects` means nothing.
    unreadable: BTreeSet<ObjectKey>,
    /// A counter of the changes of `objects` and `unreadable`.
    edition: u64,
}

/// A list that is being received.
#[derive(Debug)]
struct Incoming<K> {
    objects: BTreeMap<ObjectKey, Arc<K>>,
    unreadable: BTreeSet<ObjectKey>,
    /// Objects that this process wrote after the list began: they exist even if the list lacks them.
    written: BTreeSet<ObjectKey>,
}

impl<K: ResourceExt> Default for Cache<K> {
    fn default() -> Self {
        Self::new(None)
    }
}

impl<K: ResourceExt, B: SecondaryIndex<K>> Cache<K, B> {
    /// Creates an empty cache with an index in addition to the keys.
    #[must_use]
    pub fn indexed_by(index: IndexBy<K>) -> Self {
        Self::new(Some(index))
    }

    fn new(index: Option<IndexBy<K>>) -> Self {
        let state = State {
            objects: IndexedObjects::new(index),
            deletions: Deletions::default(),
            incoming: None,
            unreadable: BTreeSet::new(),
            edition: 0,
        };
        Self {
            state: RwLock::new(state),
            synced: watch::Sender::new(false),
        }
    }
}

/// An event of a watch.
#[derive(Clone, Debug)]
pub enum Event<K> {
    /// An object was created or changed.
    Apply(DeserializeGuard<K>),
    /// An object was deleted; this is its last state.
    Delete(DeserializeGuard<K>),
}

/// A change of an object.
#[derive(Clone, Debug)]
pub enum Change<K> {
    /// The object is new, or newer.
    Applied(Arc<K>),
    /// The object is newer, and only its status differs.
    Reported(Arc<K>),
    /// The object was deleted; this is its last known state.
    Deleted(Arc<K>),
}

impl<K> Change<K> {
    /// Returns the current or last known object.
    #[must_use]
    pub fn object(&self) -> &Arc<K> {
        match self {
            Self::Applied(object) | Self::Reported(object) | Self::Deleted(object) => object,
        }
    }

    /// Returns whether more than the status changed.
    ///
    /// The response to a write of a status also contains changes that others made just before. If the response arrives
    /// before the event of such a change, the cache drops the event as older and the event enqueues no key, so the
    /// response has to.
    #[must_use]
    pub fn is_edit(&self) -> bool {
        !matches!(self, Self::Reported(_))
    }
}

impl<K: ResourceExt, B: SecondaryIndex<K>> Cache<K, B> {
    /// Begins a list. From now on the writes of this process are kept until the list is complete. A list that was
    /// begun and not completed is forgotten.
    pub fn begin_list(&self) {
        self.write().incoming = Some(Incoming {
            objects: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            written: BTreeSet::new(),
        });
    }

    /// Adds an object to the list. An object that cannot be decoded keeps its last known state.
    pub fn receive(&self, object: DeserializeGuard<K>) {
        self.write().receive(object);
    }

    /// Replaces the known objects with the received list, and returns the changes.
    pub fn complete_list(&self) -> Vec<Change<K>> {
        let changes = self.write().replace();
        self.synced.send_replace(true);
        changes
    }

    /// Applies an event of the watch and returns the change. An object that cannot be decoded keeps its last known
    /// state.
    pub fn observe_event(&self, event: Event<K>) -> Option<Change<K>> {
        let mut state = self.write();
        match event {
            Event::Apply(DeserializeGuard(Ok(object))) => {
                state.apply(lightened(object), VersionOrigin::Watch)
            }
            Event::Apply(DeserializeGuard(Err(invalid))) => {
                state.edition += 1;
                state.unreadable.insert(report_unreadable(&invalid));
                None
            }
            Event::Delete(DeserializeGuard(Ok(object))) => state.delete(object.meta()),
            Event::Delete(DeserializeGuard(Err(invalid))) => state.delete(&invalid.metadata),
        }
    }

    /// Applies the response to a write of this process. Returns `None` if a newer state is known, or if the versions of
    /// the known state and of the response have no order; then the watch delivers the written state.
    pub fn observe_write(&self, object: K) -> Option<Change<K>> {
        let object = lightened(object);
        let mut state = self.write();
        if let Some(incoming) = &mut state.incoming {
            incoming.written.insert(ObjectKey::of(&*object));
        }
        state.apply(object, VersionOrigin::Response)
    }

    /// Applies a deletion by this process.
    pub fn observe_delete(&self, key: &ObjectKey) {
        let mut state = self.write();
        if let Some(object) = state.objects.remove(key) {
            state.edition += 1;
            state
                .deletions
                .note(key, object.meta(), Some(version(object.meta())));
        }
    }

    /// Returns an object.
    #[must_use]
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.read().objects.get(key).cloned()
    }

    /// Returns whether an object with this name exists and cannot be decoded.
    #[must_use]
    pub fn is_unreadable(&self, key: &ObjectKey) -> bool {
        self.read().unreadable.contains(key)
    }

    /// Returns the names of the objects of a namespace that cannot be decoded.
    #[must_use]
    pub fn unreadable_in(&self, namespace: &str) -> BTreeSet<String> {
        let state = self.read();
        let unreadable = state.unreadable.iter();
        unreadable
            .filter(|key| key.namespace == namespace)
            .map(|key| key.name.clone())
            .collect()
    }

    /// Returns a counter of the changes: two reads at the same count returned the same objects.
    #[must_use]
    pub fn edition(&self) -> u64 {
        self.read().edition
    }

    /// Reads the secondary index.
    pub fn index<T>(&self, read: impl FnOnce(&B) -> T) -> T {
        read(self.read().objects.secondary())
    }

    /// Returns the number of objects.
    #[must_use]
    pub fn len(&self) -> usize {
        self.read().objects.len()
    }

    /// Returns whether the cache has no objects.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the objects that satisfy `filter`, in the order of their keys.
    #[must_use]
    pub fn select(&self, filter: impl Fn(&K) -> bool) -> Vec<Arc<K>> {
        self.read()
            .objects
            .values()
            .filter(|object| filter(object))
            .cloned()
            .collect()
    }

    /// Returns the objects of a namespace, in the order of their names.
    #[must_use]
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        self.read().objects.in_namespace(namespace).cloned().collect()
    }

    /// Returns the objects that the index has for a key, in the order of their own keys.
    #[must_use]
    pub fn indexed(&self, by: &ObjectKey) -> Vec<Arc<K>> {
        self.read().objects.indexed(by).cloned().collect()
    }

    /// Returns whether a complete list was received. Before that, the absence of an object means nothing.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Waits for the first complete list.
    pub async fn synced(&self) {
        // This cannot fail: the sender lives as long as `self`.
        let _ = self.synced.subscribe().wait_for(|synced| *synced).await;
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, State<K, B>> {
        self.state
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, State<K, B>> {
        self.state
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl<K: ResourceExt, B: SecondaryIndex<K>> State<K, B> {
    fn apply(&mut self, object: Arc<K>, origin: VersionOrigin) -> Option<Change<K>> {
        let key = ObjectKey::of(&*object);
        let known = self.objects.get(&key);
        if self.deletions.cover(&key, object.meta(), origin)
            || known.is_some_and(|known| !is_newer(version(object.meta()), version(known.meta()), origin))
        {
            return None;
        }
        let is_report = known.is_some_and(|old| differ_in_status_at_most(old.meta(), object.meta()));
        self.edition += 1;
        self.unreadable.remove(&key);
        self.objects.insert(key, object.clone());
        Some(if is_report {
            Change::Reported(object)
        } else {
            Change::Applied(object)
        })
    }

    fn delete(&mut self, metadata: &ObjectMeta) -> Option<Change<K>> {
        let key = key_of(metadata);
        self.deletions.note(&key, metadata, Some(version(metadata)));
        let known = self.objects.get(&key).map(|known| version(known.meta()));
        if known.is_some_and(|known| is_newer(known, version(metadata), VersionOrigin::Response)) {
            // This process has created the object again; the watch lags.
            return None;
        }
        self.edition += 1;
        self.unreadable.remove(&key);
        self.objects.remove(&key).map(Change::Deleted)
    }

    fn receive(&mut self, DeserializeGuard(object): DeserializeGuard<K>) {
        let Some(incoming) = &mut self.incoming else {
            return;
        };
        match object {
            Ok(object) => {
                let object = lightened(object);
                incoming.objects.insert(ObjectKey::of(&*object), object);
            }
            Err(invalid) => {
                let key = report_unreadable(&invalid);
                if let Some(last_read) = self.objects.get(&key) {
                    incoming.objects.insert(key.clone(), last_read.clone());
                }
                incoming.unreadable.insert(key);
            }
        }
    }

    /// Replaces the known objects with the received list, and keeps objects that this process wrote after the list
    /// began.
    fn replace(&mut self) -> Vec<Change<K>> {
        let Some(Incoming {
            objects,
            unreadable,
            written,
        }) = self.incoming.take()
        else {
            return Vec::new();
        };
        self.edition += 1;
        self.deletions.forget_versions();
        self.unreadable = unreadable;
        let gone: Vec<ObjectKey> = self
            .objects
            .keys()
            .filter(|key| !objects.contains_key(*key) && !written.contains(*key))
            .cloned()
            .collect();
        let mut changes = Vec::new();
        for key in &gone {
            if let Some(object) = self.objects.remove(key) {
                self.deletions.note(key, object.meta(), None);
                changes.push(Change::Deleted(object));
            }
        }
        for (key, object) in objects {
            let known = self.objects.get(&key).map(|known| version(known.meta()));
            if known.is_none_or(|known| is_newer(version(object.meta()), known, VersionOrigin::Watch)) {
                self.objects.insert(key, object.clone());
                changes.push(Change::Applied(object));
            }
        }
        changes
    }
}

/// Removes `managedFields`: nothing reads them from a cache, and they would be the largest part of a small object.
fn lightened<K: ResourceExt>(mut object: K) -> Arc<K> {
    object.meta_mut().managed_fields = None;
    Arc::new(object)
}

/// Returns whether two states of an object differ at most in their status. `metadata.generation` changes with the spec
/// of every kind that has a status subresource, as all kinds of this cache do whose status is written.
fn differ_in_status_at_most(before: &ObjectMeta, after: &ObjectMeta) -> bool {
    let before = ObjectMeta {
        resource_version: after.resource_version.clone(),
        ..before.clone()
    };
    before == *after
}

fn key_of(metadata: &ObjectMeta) -> ObjectKey {
    ObjectKey::new(
        metadata.namespace.clone().unwrap_or_default(),
        metadata.name.clone().unwrap_or_default(),
    )
}

fn report_unreadable(invalid: &InvalidObject) -> ObjectKey {
    let key = key_of(&invalid.metadata);
    tracing::error!(object = %key, error = %invalid.error, "object not readable; its cached state is kept");
    key
}

#[cfg(test)]
mod tests;
