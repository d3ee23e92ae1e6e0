//! The index of Syncs that wait for another Sync.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::controller::keyed::PerObject;
use crate::controller::object_key::ObjectKey;

/// The waiting Syncs of each dependency. The index avoids a scan of all Syncs when one is done.
#[derive(Debug, Default)]
pub struct WaitingSyncs(Mutex<Waits>);

#[derive(Debug, Default)]
struct Waits {
    /// The Syncs that wait for a Sync, which may not exist.
    by_dependency: HashMap<ObjectKey, BTreeSet<ObjectKey>>,
    /// The dependencies of each waiting Sync.
    by_waiting: HashMap<ObjectKey, BTreeSet<ObjectKey>>,
}

impl WaitingSyncs {
    /// Records that `waiting` is reconciled when `on` changes.
    pub fn wait(&self, on: &ObjectKey, waiting: &ObjectKey) {
        let mut waits = self.lock();
        let dependency = waits.by_dependency.entry(on.clone()).or_default();
        dependency.insert(waiting.clone());
        let waits_for = waits.by_waiting.entry(waiting.clone()).or_default();
        waits_for.insert(on.clone());
    }

    /// Removes and returns the Syncs that wait for `on`. A Sync that still waits adds itself again.
    #[must_use]
    pub fn take(&self, on: &ObjectKey) -> BTreeSet<ObjectKey> {
        let mut waits = self.lock();
        let taken = waits.by_dependency.remove(on).unwrap_or_default();
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
            remove_from(&mut waits.by_dependency, &on, waiting);
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
                remove_from(&mut waits.by_dependency, &on, &waiting);
            }
        }
    }

    #[cfg(test)]
    fn keys(&self) -> BTreeSet<ObjectKey> {
        let waits = self.lock();
        let waiting = waits.by_dependency.values().flatten();
        waiting.chain(waits.by_waiting.keys()).cloned().collect()
    }
}

fn remove_from(sets: &mut HashMap<ObjectKey, BTreeSet<ObjectKey>>, of: &ObjectKey, key: &ObjectKey) {
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

    #[test]
    fn whoever_waits_is_taken_once_and_leaves_nothing_behind() {
        let waiting = WaitingSyncs::default();
        for (on, name) in [("db", "a"), ("db", "b"), ("base", "a"), ("never-made", "c")] {
            waiting.wait(&key(on), &key(name));
        }
        waiting.forget(&key("b"));
        assert_eq!(waiting.take(&key("db")), BTreeSet::from([key("a")]));
        assert!(waiting.take(&key("db")).is_empty());
        assert_eq!(waiting.keys(), BTreeSet::from([key("a"), key("c")]));
        waiting.retain(&|key| key.name == "a");
        // Syncs still wait for a deleted dependency: it may be created again.
        waiting.forget(&key("base"));
        assert_eq!(waiting.take(&key("base")), BTreeSet::from([key("a")]));
        let waits = waiting.lock();
        assert!(waits.by_dependency.is_empty() && waits.by_waiting.is_empty());
    }
}
