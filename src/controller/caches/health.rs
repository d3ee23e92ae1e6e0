//! The health cache: the known health of each Sync's objects. It is rebuilt after a start.

use std::time::Duration;

use jiff::Timestamp;
use starling_core::backoff;
use starling_core::health::{Cadence, HealthRecords};

use crate::controller::keyed::{Keyed, per_object};
use crate::controller::object_key::ObjectKey;
use starling_core::ids::ClusterId;

/// The health of one Sync's objects, and the time of the next read.
#[derive(Clone, Debug, Default)]
pub struct SyncHealth {
    /// The target of the objects.
    pub target: String,
    /// The identity of the cluster of the objects.
    pub cluster_id: ClusterId,
    /// The objects.
    pub records: HealthRecords,
    /// The time of the next read.
    pub cadence: Cadence,
}

/// The [`SyncHealth`] of each Sync with `wait`. At most one worker reconciles a Sync at a time, so each entry has one
/// writer.
#[derive(Debug, Default)]
pub struct HealthCache(Keyed<SyncHealth>);

per_object!(HealthCache, 0);

impl HealthCache {
    /// Returns the known health of a Sync's objects for a target on a cluster.
    #[must_use]
    pub fn get(&self, sync: &ObjectKey, target: &str, cluster_id: &ClusterId) -> Option<SyncHealth> {
        let found = self.0.get(sync);
        found.filter(|known| known.target == target && known.cluster_id == *cluster_id)
    }

    /// Returns the time at which a Sync's objects are read next: now, if a clock that was set back since puts it
    /// further ahead than any wait. The longest one follows a failure, and depends on `retry_interval`.
    #[must_use]
    pub fn next(&self, sync: &ObjectKey, retry_interval: Duration, now: Timestamp) -> Option<Timestamp> {
        let next = self.0.lock().get(sync)?.cadence.next()?;
        let is_plausible = backoff::is_plausible(next, Duration::ZERO, retry_interval, now);
        Some(if is_plausible { next } else { now })
    }

    /// Replaces the health of a Sync's objects.
    pub fn set(&self, sync: &ObjectKey, health: SyncHealth) {
        self.0.set(sync, health);
    }

    /// Removes the entry of a Sync.
    pub fn forget(&self, sync: &ObjectKey) {
        self.0.forget(sync);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_for_another_target_or_cluster_is_not_known() {
        let cache = HealthCache::default();
        let sync = ObjectKey::new("ns", "s");
        let mut health = SyncHealth {
            target: "t".into(),
            cluster_id: "c".into(),
            ..SyncHealth::default()
        };
        health.cadence.lost(Duration::ZERO, Timestamp::UNIX_EPOCH);
        cache.set(&sync, health);
        assert!(cache.get(&sync, "t", &ClusterId::new("c")).is_some());
        assert!(cache.get(&sync, "other", &ClusterId::new("c")).is_none());
        assert!(cache.get(&sync, "t", &ClusterId::new("other")).is_none());
        assert_eq!(
            cache.next(&sync, Duration::ZERO, Timestamp::UNIX_EPOCH),
            Some(Timestamp::UNIX_EPOCH)
        );
        cache.forget(&sync);
        assert_eq!(cache.next(&sync, Duration::ZERO, Timestamp::UNIX_EPOCH), None);
    }

    /// Guards against reads without a pause of an object that failed, with a `retryInterval` that is longer than the
    /// clocks of two machines may differ.
    #[test]
    fn a_long_wait_after_a_failure_is_kept_and_one_of_a_wrong_clock_ends() {
        let (cache, sync, retry) = (
            HealthCache::default(),
            ObjectKey::new("ns", "s"),
            Duration::from_mins(30),
        );
        let now = Timestamp::UNIX_EPOCH;
        let mut health = SyncHealth::default();
        health.cadence.lost(retry, now);
        cache.set(&sync, health);
        let due = Timestamp::from_second(1_800).unwrap();
        assert_eq!(cache.next(&sync, retry, now), Some(due));
        let before = Timestamp::from_second(-3_600).unwrap();
        assert_eq!(
            cache.next(&sync, retry, before),
            Some(before),
            "the clock was set back"
        );
    }
}
