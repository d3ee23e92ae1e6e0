//! Values for each object of a kind, and their removal with the object.

#[cfg(test)]
use std::collections::BTreeSet;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::controller::object_key::ObjectKey;

/// A cache with an entry for each object of a kind. `Caches::of` lists all of them, so that no entry outlives its
/// object.
pub(in crate::controller) trait PerObject {
    /// Drops the entry of an object.
    fn forget(&self, key: &ObjectKey);

    /// Drops the entries of all objects except those to keep. `keep` is called under the lock of the cache: an entry
    /// that is added for an existing object stays, whenever it is added.
    fn retain(&self, keep: &dyn Fn(&ObjectKey) -> bool);

    /// Returns the objects with an entry.
    #[cfg(test)]
    fn keys(&self) -> BTreeSet<ObjectKey>;
}

/// A value for each object of a kind.
pub struct Keyed<V>(Mutex<HashMap<ObjectKey, V>>);

impl<V> Default for Keyed<V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<V: fmt::Debug> fmt::Debug for Keyed<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<V> Keyed<V> {
    /// Returns the value of an object; `None` if this process has set none.
    #[must_use]
    pub fn get(&self, key: &ObjectKey) -> Option<V>
    where
        V: Clone,
    {
        self.lock().get(key).cloned()
    }

    /// Sets the value of an object.
    pub fn set(&self, key: &ObjectKey, value: V) {
        self.lock().insert(key.clone(), value);
    }

    /// Removes and returns the value of an object.
    pub fn take(&self, key: &ObjectKey) -> Option<V> {
        self.lock().remove(key)
    }

    /// Drops the value of an object.
    pub fn forget(&self, key: &ObjectKey) {
        self.lock().remove(key);
    }

    /// Locks all values.
    pub(in crate::controller) fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, V>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<V> PerObject for Keyed<V> {
    fn forget(&self, key: &ObjectKey) {
        Self::forget(self, key);
    }

    fn retain(&self, keep: &dyn Fn(&ObjectKey) -> bool) {
        self.lock().retain(|key, _| keep(key));
    }

    #[cfg(test)]
    fn keys(&self) -> BTreeSet<ObjectKey> {
        self.lock().keys().cloned().collect()
    }
}

/// Implements [`PerObject`] for a cache by one of its fields.
macro_rules! per_object {
    ($cache:ty, $field:tt) => {
        impl $crate::controller::keyed::PerObject for $cache {
            fn forget(&self, key: &$crate::controller::object_key::ObjectKey) {
                $crate::controller::keyed::PerObject::forget(&self.$field, key);
            }

            fn retain(&self, keep: &dyn Fn(&$crate::controller::object_key::ObjectKey) -> bool) {
                $crate::controller::keyed::PerObject::retain(&self.$field, keep);
            }

            #[cfg(test)]
            fn keys(&self) -> std::collections::BTreeSet<$crate::controller::object_key::ObjectKey> {
                $crate::controller::keyed::PerObject::keys(&self.$field)
            }
        }
    };
}

pub(in crate::controller) use per_object;
