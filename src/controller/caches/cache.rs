//! What the management API holds, as far as this process knows.
//!
//! One cache per kind, fed by its watch *and* by the answers to our own writes: the newer resourceVersion wins. So a
//! plan never starts from a state older than what this process itself wrote, which is what keeps `maxConcurrency` when
//! the watch lags (I4). Resource versions are ordered as KEP-5504 has it (`versions`). Of a server whose
//! versions cannot be ordered the cache is as new as its watch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, RwLock};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use kube::core::DeserializeGuard;
use kube::core::error_boundary::InvalidObject;
use kube::runtime::watcher::Event;
use tokio::sync::watch;

use super::deletions::Deletions;
use super::indexed::IndexedObjects;
pub use super::indexed::{IndexBy, SecondaryIndex};
use super::versions::{VersionOrigin, is_newer, version};
pub use crate::controller::object_key::ObjectKey;

/// All objects of one kind, and a secondary index of them.
#[derive(Debug)]
pub struct Cache<K, B = ()> {
    state: RwLock<State<K, B>>,
    synced: watch::Sender<bool>,
}

#[derive(Debug)]
struct State<K, B> {
    objects: IndexedObjects<K, B>,
    /// Objects that were deleted a short time ago: a late answer to a write of ours must not bring one back.
    deletions: Deletions,
    /// The list that is being received, if one is.
    incoming: Option<Incoming<K>>,
    /// Objects that are there but cannot be read as their kind. Absence from `objects` means nothing for them.
    unreadable: BTreeSet<ObjectKey>,
    /// Moves with each change of the objects, and of which are unreadable.
    edition: u64,
}

/// A list that is being received.
#[derive(Debug)]
struct Incoming<K> {
    objects: BTreeMap<ObjectKey, Arc<K>>,
    unreadable: BTreeSet<ObjectKey>,
    /// What we wrote since the list began: it may be missing from the list and is there all the same.
    written: BTreeSet<ObjectKey>,
}

impl<K: ResourceExt> Default for Cache<K> {
    fn default() -> Self {
        Self::new(None)
    }
}

impl<K: ResourceExt, B: SecondaryIndex<K>> Cache<K, B> {
    /// An empty cache whose objects are found by something besides their key too.
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

/// What became different.
#[derive(Clone, Debug)]
pub enum Change<K> {
    /// An object is new or newer.
    Applied(Arc<K>),
    /// An object is newer in nothing but its status.
    Reported(Arc<K>),
    /// An object is gone; this is how it was last seen.
    Deleted(Arc<K>),
}

impl<K> Change<K> {
    /// The object, as it is or was.
    #[must_use]
    pub fn object(&self) -> &Arc<K> {
        match self {
            Self::Applied(object) | Self::Reported(object) | Self::Deleted(object) => object,
        }
    }

    /// Whether there is more to it than a status.
    ///
    /// The answer to a write of a status holds what others changed just before, too. Where it arrives before the event
    /// of that change, the event is dropped as older and wakes nobody, so the answer has to.
    #[must_use]
    pub fn is_edit(&self) -> bool {
        !matches!(self, Self::Reported(_))
    }
}

impl<K: ResourceExt, B: SecondaryIndex<K>> Cache<K, B> {
    /// Takes in an event of the watch and returns the changes. An object that cannot be read as
    /// its kind stays as it was last read.
    pub fn observe_event(&self, event: Event<DeserializeGuard<K>>) -> Vec<Change<K>> {
        let mut state = self.write();
        match event {
            Event::Init => {
                state.incoming = Some(Incoming {
                    objects: BTreeMap::new(),
                    unreadable: BTreeSet::new(),
                    written: BTreeSet::new(),
                });
                Vec::new()
            }
            Event::InitApply(object) => {
                state.receive(object);
                Vec::new()
            }
            Event::InitDone => {
                let changes = state.replace();
                drop(state);
                self.synced.send_replace(true);
                changes
            }
            Event::Apply(DeserializeGuard(Ok(object))) => {
                state.apply(object, VersionOrigin::Watch).into_iter().collect()
            }
            Event::Apply(DeserializeGuard(Err(invalid))) => {
                state.edition += 1;
                state.unreadable.insert(report_unreadable(&invalid));
                Vec::new()
            }
            Event::Delete(DeserializeGuard(object)) => {
                let metadata = match &object {
                    Ok(object) => object.meta(),
                    Err(invalid) => &invalid.metadata,
                };
                state.delete(metadata).into_iter().collect()
            }
        }
    }

    /// Takes in the answer to a write of ours. `None`: something newer is known already, or the object is known and the
    /// two versions cannot be ordered. Then the watch brings what was written.
    pub fn observe_write(&self, object: K) -> Option<Change<K>> {
        let mut state = self.write();
        if let Some(incoming) = &mut state.incoming {
            incoming.written.insert(ObjectKey::of(&object));
        }
        state.apply(object, VersionOrigin::Response)
    }

    /// Takes in that an object was deleted by us.
    pub fn observe_delete(&self, key: &ObjectKey) {
        let mut state = self.write();
        if let Some(object) = state.objects.remove(key) {
            state.edition += 1;
            state
                .deletions
                .note(key, object.meta(), Some(version(object.meta())));
        }
    }

    /// One object.
    #[must_use]
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.read().objects.get(key).cloned()
    }

    /// Whether there is an object of this name that cannot be read.
    #[must_use]
    pub fn is_unreadable(&self, key: &ObjectKey) -> bool {
        self.read().unreadable.contains(key)
    }

    /// The names of the objects of a namespace that cannot be read.
    #[must_use]
    pub fn unreadable_in(&self, namespace: &str) -> BTreeSet<String> {
        let state = self.read();
        let unreadable = state.unreadable.iter();
        unreadable
            .filter(|key| key.namespace == namespace)
            .map(|key| key.name.clone())
            .collect()
    }

    /// A number that moves with each change: what was read at the same one is the same.
    #[must_use]
    pub fn edition(&self) -> u64 {
        self.read().edition
    }

    /// Reads the secondary index.
    pub fn index<T>(&self, read: impl FnOnce(&B) -> T) -> T {
        read(self.read().objects.secondary())
    }

    /// How many objects there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.read().objects.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Objects that satisfy `filter`, in the order of their keys.
    #[must_use]
    pub fn select(&self, filter: impl Fn(&K) -> bool) -> Vec<Arc<K>> {
        self.read()
            .objects
            .values()
            .filter(|object| filter(object))
            .cloned()
            .collect()
    }

    /// Objects of one namespace, in the order of their names.
    #[must_use]
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        self.read().objects.in_namespace(namespace).cloned().collect()
    }

    /// Objects that the index has under a key, in the order of their own.
    #[must_use]
    pub fn indexed(&self, by: &ObjectKey) -> Vec<Arc<K>> {
        self.read().objects.indexed(by).cloned().collect()
    }

    /// Whether a complete list was received at least once. Until then nothing may be concluded from absence.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Waits for the first complete list.
    pub async fn synced(&self) {
        // The sender lives as long as `self`, so this cannot fail.
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
    fn apply(&mut self, mut object: K, origin: VersionOrigin) -> Option<Change<K>> {
        lighten(&mut object);
        let key = ObjectKey::of(&object);
        let known = self.objects.get(&key);
        if self.deletions.cover(&key, object.meta(), origin)
            || known.is_some_and(|known| !is_newer(version(object.meta()), version(known.meta()), origin))
        {
            return None;
        }
        let is_report = known.is_some_and(|old| differ_in_status_at_most(old.meta(), object.meta()));
        let object = Arc::new(object);
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
            // It was created again, by us: the watch is late.
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
            Ok(mut object) => {
                lighten(&mut object);
                incoming.objects.insert(ObjectKey::of(&object), Arc::new(object));
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

    /// Puts the received list in place of what was known, but keeps what we wrote since it was begun.
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

/// Nothing here asks who wrote which field, and of a small object that would be most of what is kept.
fn lighten<K: ResourceExt>(object: &mut K) {
    object.meta_mut().managed_fields = None;
}

/// Whether two states of an object differ in their status at most: `metadata.generation` moves with the spec of a kind
/// that has a status of its own, which all kinds of this cache do that are reported on.
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
