//! The cache of one kind of objects of the management cluster.
//!
//! The watch *and* the responses to writes of this process update the cache; the newer resourceVersion wins. So no plan
//! starts from a state that is older than a write of this process, which keeps `maxConcurrency` even if the watch lags
//! (I4). Resource versions are ordered as in KEP-5504 (`versions`). If a server has versions without an order, the
//! cache is as new as its watch.
//!
//! A complete list replaces all of it, whatever the versions are: a management cluster that was restored from a backup
//! begins again with smaller ones. Only what this process has written since the list began, and what the list has not
//! reached, is kept until the watch delivers it (ADR 40).

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, RwLock};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use kube::core::DeserializeGuard;
use kube::core::error_boundary::InvalidObject;
use starling_core::resource_version;
use tokio::sync::watch;

use super::deletions::Deletions;
use super::indexed::IndexedObjects;
pub use super::indexed::{IndexBy, SecondaryIndex};
use super::versions::{VersionOrigin, is_newer, version};
use crate::controller::object_key::ObjectKey;

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
    /// The states that this process has written since the list began. The cache may lack one that it takes for older
    /// than the known state, because the management cluster was set back.
    written: BTreeMap<ObjectKey, Arc<K>>,
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

/// The effect of a complete list.
#[derive(Debug)]
pub struct Replaced<K> {
    /// The changes. If the management cluster was set back, every object counts as changed: an equal version is no
    /// proof of an equal object.
    pub changes: Vec<Change<K>>,
    /// The management cluster was set back: the list, or an object in it, is older than an object that the cache knew.
    pub was_set_back: bool,
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
            written: BTreeMap::new(),
        });
    }

    /// Adds an object to the list. An object that cannot be decoded keeps its last known state.
    pub fn receive(&self, object: DeserializeGuard<K>) {
        self.write().receive(object);
    }

    /// Replaces the known objects with the received list; `version` is the version of the list.
    pub fn complete_list(&self, version: &str) -> Replaced<K> {
        let replaced = self.write().replace(version);
        self.synced.send_replace(true);
        replaced
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
        state.note_write(&object);
        state.apply(object, VersionOrigin::Response)
    }

    /// Applies a deletion by this process.
    pub fn observe_delete(&self, key: &ObjectKey) {
        let mut state = self.write();
        if let Some(incoming) = &mut state.incoming {
            incoming.written.remove(key);
        }
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

    /// Returns the objects that cannot be decoded.
    #[must_use]
    pub fn unreadable(&self) -> BTreeSet<ObjectKey> {
        self.read().unreadable.clone()
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

    /// Returns whether the objects are in more than one namespace.
    #[must_use]
    pub fn has_several_namespaces(&self) -> bool {
        self.read().objects.has_several_namespaces()
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
        if origin == VersionOrigin::Watch {
            self.deletions.forget_existing(&key, object.meta());
        }
        self.edition += 1;
        self.unreadable.remove(&key);
        self.objects.insert(key, object.clone());
        Some(if is_report {
            Change::Reported(object)
        } else {
            Change::Applied(object)
        })
    }

    /// Keeps a write of this process for the list that is being received.
    fn note_write(&mut self, object: &Arc<K>) {
        let Some(incoming) = &mut self.incoming else {
            return;
        };
        let (key, new) = (ObjectKey::of(&**object), version(object.meta()));
        let is_older = |before: &Arc<K>| !is_newer(new, version(before.meta()), VersionOrigin::Response);
        let is_late = incoming.written.get(&key).is_some_and(is_older)
            || self.deletions.cover(&key, object.meta(), VersionOrigin::Response);
        if !is_late {
            incoming.written.insert(key, object.clone());
        }
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

    /// Replaces the known objects with the received list.
    fn replace(&mut self, list_version: &str) -> Replaced<K> {
        let Some(incoming) = self.incoming.take() else {
            return Replaced {
                changes: Vec::new(),
                was_set_back: false,
            };
        };
        let is_ahead = |known: &Arc<K>| {
            let (key, order) = (
                ObjectKey::of(&**known),
                resource_version::compare(version(known.meta()), list_version),
            );
            order == Some(Ordering::Greater)
                && !incoming.written.contains_key(&key)
                && !incoming.unreadable.contains(&key)
        };
        // After a restore the revision may go on with a larger one; the restored objects keep their versions.
        let is_older = |known: &Arc<K>| {
            let key = ObjectKey::of(&**known);
            let listed = incoming.objects.get(&key).map(|listed| version(listed.meta()));
            let order = listed.map(|listed| resource_version::compare(version(known.meta()), listed));
            order == Some(Some(Ordering::Greater)) && !incoming.written.contains_key(&key)
        };
        let was_set_back = self
            .objects
            .values()
            .any(|known| is_ahead(known) || is_older(known));
        let (objects, unreadable) = incoming.complete(list_version);
        self.edition += 1;
        self.deletions.forget_versions();
        self.unreadable = unreadable;
        let known = self.objects.keys();
        let gone: Vec<ObjectKey> = known.filter(|key| !objects.contains_key(*key)).cloned().collect();
        let mut changes = Vec::new();
        for key in &gone {
            if let Some(object) = self.objects.remove(key) {
                self.deletions.note(key, object.meta(), None);
                changes.push(Change::Deleted(object));
            }
        }
        for (key, object) in objects {
            self.deletions.forget_existing(&key, object.meta());
            let is_known = |known: &Arc<K>| known.meta() == object.meta();
            if was_set_back || !self.objects.get(&key).is_some_and(is_known) {
                self.objects.insert(key, object.clone());
                changes.push(Change::Applied(object));
            }
        }
        Replaced {
            changes,
            was_set_back,
        }
    }
}

impl<K: ResourceExt> Incoming<K> {
    /// Adds the writes of this process that the list has not reached.
    ///
    /// A write that is not newer than the list is in the list, or was undone before it. Where versions have no order,
    /// a write counts as newer than a list without the object, and as older than the listed state.
    fn complete(self, list_version: &str) -> (BTreeMap<ObjectKey, Arc<K>>, BTreeSet<ObjectKey>) {
        let Self {
            mut objects,
            mut unreadable,
            written,
        } = self;
        for (key, object) in written {
            let new = version(object.meta());
            let order = resource_version::compare(new, list_version);
            let is_reached = matches!(order, Some(Ordering::Less | Ordering::Equal));
            let is_older = |listed: &Arc<K>| !is_newer(new, version(listed.meta()), VersionOrigin::Response);
            if !is_reached && !objects.get(&key).is_some_and(is_older) {
                unreadable.remove(&key);
                objects.insert(key, object);
            }
        }
        (objects, unreadable)
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
