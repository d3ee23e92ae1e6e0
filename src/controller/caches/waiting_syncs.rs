//! The index of Syncs that wait for another Sync, or for an entry of their group.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::controller::keyed::PerObject;
use crate::controller::object_key::ObjectKey;

/// What a Sync waits for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Awaited {
    /// A change of another Sync, which may not exist.
    Sync(ObjectKey),
    /// The return of an entry to its group: the entry of the waiting Sync was removed.
    Entry {
        /// The group.
        group: ObjectKey,
        /// The name of the entry.
        entry: String,
    },
}

impl Awaited {
    /// Returns the Sync with this name.
    pub fn sync(namespace: &str, name: &str) -> Self {
        Self::Sync(ObjectKey::new(namespace, name))
    }

    /// Returns the entry of a group.
    pub fn entry(group: &ObjectKey, entry: &str) -> Self {
        Self::Entry {
            group: group.clone(),
            entry: entry.to_owned(),
        }
    }
}

/// The waiting Syncs by what they wait for. The index avoids a scan of all Syncs on each change.
#[derive(Debug, Default)]
pub struct WaitingSyncs(Mutex<Waits>);

#[derive(Debug, Default)]
struct Waits {
    /// The waiting Syncs.
    by_awaited: HashMap<Awaited, BTreeSet<ObjectKey>>,
    /// What each waiting Sync waits for.
    by_waiting: HashMap<ObjectKey, BTreeSet<Awaited>>,
}

impl WaitingSyncs {
    /// Records that `waiting` is reconciled when `on` changes.
    pub fn wait(&self, on: &Awaited, waiting: &ObjectKey) {
        let mut waits = self.lock();
        let syncs = waits.by_awaited.entry(on.clone()).or_default();
        syncs.insert(waiting.clone());
        let waits_for = waits.by_waiting.entry(waiting.clone()).or_default();
        waits_for.insert(on.clone());
    }

    /// Removes and returns the Syncs that wait for `on`. A Sync that still waits adds itself again.
    #[must_use]
    pub fn take(&self, on: &Awaited) -> BTreeSet<ObjectKey> {
        let mut waits = self.lock();
        let taken = waits.by_awaited.remove(on).unwrap_or_default();
        for waiting in &taken {
            remove_from(&mut waits.by_waiting, waiting, on);
        }
        taken
    }

    fn lock(&self) -> MutexGuard<'_, Waits> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Entries belong to the waiting Sync. The dependency may be deleted while Syncs wait for it.
impl PerObject for WaitingSyncs {
    fn forget(&self, waiting: &ObjectKey) {
        let mut waits = self.lock();
        for on in waits.by_waiting.remove(waiting).unwrap_or_default() {
            remove_from(&mut waits.by_awaited, &on, waiting);
        }
    }

    fn retain(&self, keep: &dyn Fn(&ObjectKey) -> bool) {
        let mut waits = self.lock();
        let gone: Vec<ObjectKey> = waits
            .by_waiting
            .keys()
            .filter(|key| !keep(key))
            .cloned()
            .collect();
        for waiting in gone {
            for on in waits.by_waiting.remove(&waiting).unwrap_or_default() {
                remove_from(&mut waits.by_awaited, &on, &waiting);
            }
        }
    }

    #[cfg(test)]
    fn keys(&self) -> BTreeSet<ObjectKey> {
        let waits = self.lock();
        let waiting = waits.by_awaited.values().flatten();
        waiting.chain(waits.by_waiting.keys()).cloned().collect()
    }
}

fn remove_from<K, V>(sets: &mut HashMap<K, BTreeSet<V>>, of: &K, key: &V)
where
    K: Eq + Hash,
    V: Ord,
{
    if let Some(set) = sets.get_mut(of) {
        set.remove(key);
        if set.is_empty() {
            sets.remove(of);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("ns", name)
    }

    fn sync(name: &str) -> Awaited {
        Awaited::sync("ns", name)
    }

    #[test]
    fn whoever_waits_is_taken_once_and_leaves_nothing_behind() {
        let waiting = WaitingSyncs::default();
        for (on, name) in [("db", "a"), ("db", "b"), ("base", "a"), ("never-made", "c")] {
            waiting.wait(&sync(on), &key(name));
        }
        waiting.forget(&key("b"));
        assert_eq!(waiting.take(&sync("db")), BTreeSet::from([key("a")]));
        assert!(waiting.take(&sync("db")).is_empty());
        assert_eq!(waiting.keys(), BTreeSet::from([key("a"), key("c")]));
        waiting.retain(&|key| key.name == "a");
        // Syncs still wait for a deleted dependency: it may be created again.
        waiting.forget(&key("base"));
        assert_eq!(waiting.take(&sync("base")), BTreeSet::from([key("a")]));
        let waits = waiting.lock();
        assert!(waits.by_awaited.is_empty() && waits.by_waiting.is_empty());
    }
}
