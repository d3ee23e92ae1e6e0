//! What this process knows of the health of each Sync's objects. No truth: after a start everything is looked at once.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use starling_core::health::{Cadence, Watched};

use super::cache::ObjectKey;

/// One Sync's objects, and when they are next looked at.
#[derive(Clone, Debug, Default)]
pub struct Watching {
    /// The target that they belong to.
    pub target: String,
    /// The cluster that they are on, by identity.
    pub cluster_id: String,
    /// The objects.
    pub watched: Watched,
    /// When they are looked at again.
    pub cadence: Cadence,
}

/// [`Watching`] of each Sync with `wait`. A Sync is worked on by one worker at a time, so an entry has one writer.
#[derive(Debug, Default)]
pub struct Healths(Mutex<HashMap<ObjectKey, Watching>>);

impl Healths {
    /// What is known of a Sync's objects for this target on this cluster.
    #[must_use]
    pub fn get(&self, sync: &ObjectKey, target: &str, cluster_id: &str) -> Option<Watching> {
        let found = self.lock().get(sync).cloned();
        found.filter(|known| known.target == target && known.cluster_id == cluster_id)
    }

    /// When a Sync's objects are next looked at.
    #[must_use]
    pub fn next(&self, sync: &ObjectKey) -> Option<Timestamp> {
        self.lock().get(sync)?.cadence.next()
    }

    /// Replaces what is known.
    pub fn set(&self, sync: &ObjectKey, watching: Watching) {
        self.lock().insert(sync.clone(), watching);
    }

    /// Forgets a Sync.
    pub fn forget(&self, sync: &ObjectKey) {
        self.lock().remove(sync);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ObjectKey, Watching>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_known_for_another_target_or_cluster_is_not_known() {
        let healths = Healths::default();
        let sync = ObjectKey::new("ns", "s");
        let mut watching = Watching {
            target: "t".into(),
            cluster_id: "c".into(),
            ..Watching::default()
        };
        watching.cadence.lost(Duration::ZERO, Timestamp::UNIX_EPOCH);
        healths.set(&sync, watching);
        assert!(healths.get(&sync, "t", "c").is_some());
        assert!(healths.get(&sync, "other", "c").is_none());
        assert!(healths.get(&sync, "t", "other").is_none());
        assert_eq!(healths.next(&sync), Some(Timestamp::UNIX_EPOCH));
        healths.forget(&sync);
        assert_eq!(healths.next(&sync), None);
    }
}
