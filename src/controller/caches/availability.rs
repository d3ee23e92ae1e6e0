//! The availability cache: circuit breaker, slowness and requested pause of each member.
//!
//! The cache is not stored: after a start every member is probed, and no member is suspect.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use starling_core::breaker::{Breaker, Contact, is_slow};
use starling_core::pause;
use starling_net::clock::Clock;
use tokio::time::Instant;

use crate::controller::keyed::{Keyed, per_object};
use crate::controller::object_key::ObjectKey;

/// The availability of all members, by Cluster.
#[derive(Debug)]
pub struct AvailabilityCache {
    /// The start of the time that the circuit breakers count.
    start: Instant,
    /// The clock for reported times.
    clock: Clock,
    by_cluster: Keyed<Availability>,
}

per_object!(AvailabilityCache, by_cluster);

#[derive(Debug, Default)]
struct Availability {
    breaker: Breaker,
    /// The member did not respond, and has responded to no probe since.
    lost: bool,
    /// The last attempt was slow because the member responded slowly.
    slow: bool,
    pause: Option<Pause>,
    /// The number of consecutive requests for a pause.
    pauses: u32,
}

/// A pause that a member requested.
#[derive(Clone, Copy, Debug)]
pub struct Pause {
    /// The end of the pause by the monotonic clock: if the wall clock is set forward, the pause does not end early, and
    /// no request is repeated in a loop until its end.
    over: Instant,
    /// The end of the pause by the wall clock, for status.
    pub until: Timestamp,
}

impl Pause {
    /// Returns the rest of the pause.
    #[must_use]
    pub fn left(&self) -> Duration {
        self.over.saturating_duration_since(Instant::now())
    }
}

impl AvailabilityCache {
    /// Creates an empty cache.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self {
            start: Instant::now(),
            clock,
            by_cluster: Keyed::default(),
        }
    }

    /// Returns whether the circuit breaker is open: only probes may be sent.
    #[must_use]
    pub fn is_open(&self, cluster: &ObjectKey) -> bool {
        self.by_cluster
            .lock()
            .get(cluster)
            .is_some_and(|availability| availability.breaker.is_open())
    }

    /// Returns whether work on the member may block a worker for long: the member did not respond lately, or responded
    /// slowly.
    #[must_use]
    pub fn is_suspect(&self, cluster: &ObjectKey) -> bool {
        self.by_cluster
            .lock()
            .get(cluster)
            .is_some_and(|availability| availability.slow || availability.breaker.is_suspect())
    }

    /// Returns the pause that the member requested; `None` if it requested none or the pause has ended.
    #[must_use]
    pub fn pause(&self, cluster: &ObjectKey) -> Option<Pause> {
        let pause = self.by_cluster.lock().get(cluster)?.pause?;
        (!pause.left().is_zero()).then_some(pause)
    }

    /// Records an attempt with responses: its duration and the number of its requests. Returns whether the member had
    /// been lost: its Syncs may wait for it.
    #[must_use]
    pub fn worked(&self, cluster: &ObjectKey, took: Duration, requests: u64) -> bool {
        let slow = is_slow(took, requests);
        let mut known = self.by_cluster.lock();
        if !slow && !known.contains_key(cluster) {
            return false;
        }
        let availability = known.entry(cluster.clone()).or_default();
        availability.slow = slow;
        availability.pauses = 0;
        availability.breaker.answered(Contact::Work);
        if !slow && !availability.breaker.is_suspect() {
            // A healthy member needs no entry.
            return known
                .remove(cluster)
                .is_some_and(|availability| availability.lost);
        }
        std::mem::take(&mut availability.lost)
    }

    /// Records an attempt that timed out although the member responds.
    pub fn slow(&self, cluster: &ObjectKey) {
        self.with(cluster, |availability| availability.slow = true);
    }

    /// Records that the member did not respond.
    pub fn lost(&self, cluster: &ObjectKey, contact: Contact) {
        let now = self.start.elapsed();
        self.with(cluster, |availability| {
            availability.lost = true;
            availability.breaker.failed(contact, now, &cluster.to_string());
        });
    }

    /// Records that the member requested a pause.
    pub fn throttled(&self, cluster: &ObjectKey, asked: Option<Duration>) -> Pause {
        let seed = format!("{cluster} {}", self.clock.now());
        self.with(cluster, |availability| {
            // If the member names no duration, each consecutive pause is longer.
            let usual = pause::USUAL.saturating_mul(2u32.saturating_pow(availability.pauses.min(16)));
            availability.pauses = availability.pauses.saturating_add(1);
            let wait = pause::wait(asked.or(Some(usual)), &seed);
            let until = self
                .clock
                .now()
                .checked_add(SignedDuration::try_from(wait).unwrap_or_default())
                .unwrap_or(Timestamp::MAX);
            let over = Instant::now() + wait;
            *availability.pause.insert(Pause { over, until })
        })
    }

    /// Begins a probe, if one is due.
    ///
    /// # Errors
    /// The time until the next probe is due.
    pub fn begin_probe(&self, cluster: &ObjectKey) -> Result<(), Duration> {
        let now = self.start.elapsed();
        match self.by_cluster.lock().get_mut(cluster) {
            None => Ok(()),
            Some(availability) => availability
                .breaker
                .begin_probe(now)
                .map_err(|at| at.saturating_sub(now)),
        }
    }

    /// Makes the next probe due now.
    pub fn probe_now(&self, cluster: &ObjectKey) {
        if let Some(availability) = self.by_cluster.lock().get_mut(cluster) {
            availability.breaker.probe_now();
        }
    }

    /// Records that the member responded to a probe. Returns whether it had been lost: its Syncs may wait for it.
    #[must_use]
    pub fn answered_probe(&self, cluster: &ObjectKey) -> bool {
        let mut known = self.by_cluster.lock();
        let Some(availability) = known.get_mut(cluster) else {
            return false;
        };
        availability.breaker.answered(Contact::Probe);
        std::mem::take(&mut availability.lost)
    }

    /// Removes the entry of a Cluster that was deleted, or whose connection changed.
    pub fn forget(&self, cluster: &ObjectKey) {
        self.by_cluster.forget(cluster);
    }

    fn with<T>(&self, cluster: &ObjectKey, change: impl FnOnce(&mut Availability) -> T) -> T {
        change(self.by_cluster.lock().entry(cluster.clone()).or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;

    fn cluster() -> ObjectKey {
        ObjectKey::new("ns", "c")
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_is_kept_for_as_long_as_was_asked_and_no_longer_than_a_minute_and_a_bit() {
        let cache = AvailabilityCache::new(Clock::system());
        for (asked, least) in [(2, 2), (3600, 60)] {
            cache.throttled(&cluster(), Some(Duration::from_secs(asked)));
            tokio::time::advance(Duration::from_millis(least * 1000 - 1)).await;
            assert!(cache.pause(&cluster()).is_some(), "{asked}");
            tokio::time::advance(Duration::from_millis(least * 200 + 2)).await;
            assert!(cache.pause(&cluster()).is_none(), "{asked}");
        }
        assert!(!cache.is_suspect(&cluster()), "busy is not lost");
    }

    #[tokio::test(start_paused = true)]
    async fn a_cluster_that_does_not_say_how_long_is_asked_less_and_less_often() {
        let cache = AvailabilityCache::new(Clock::system());
        let mut last = Duration::ZERO;
        for least in [5, 10, 20, 40, 60, 60] {
            last = cache.throttled(&cluster(), None).left();
            assert!(last >= Duration::from_millis(least * 1000 - 100), "{last:?}");
        }
        assert!(last <= Duration::from_secs(72));
        let _ = cache.worked(&cluster(), Duration::from_secs(1), 10);
        let left = cache.throttled(&cluster(), None).left();
        assert!(left <= Duration::from_secs(6), "counted anew: {left:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_set_forward_leaves_as_much_of_a_pause_as_there_was() {
        let off = Arc::new(AtomicI64::new(0));
        let shown = Arc::clone(&off);
        let cache = AvailabilityCache::new(Clock::new(move || {
            Timestamp::from_second(1_800_000_000 + shown.load(Ordering::SeqCst)).unwrap()
        }));
        cache.throttled(&cluster(), Some(Duration::from_secs(10)));
        off.store(3600, Ordering::SeqCst);
        let pause = cache.pause(&cluster()).unwrap();
        assert!(pause.until < cache.clock.now(), "over, by the clock");
        assert!(pause.left() >= Duration::from_secs(10), "{:?}", pause.left());
        tokio::time::advance(pause.left()).await;
        assert!(cache.pause(&cluster()).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_member_that_was_lost_returns_with_one_response() {
        let cache = AvailabilityCache::new(Clock::system());
        assert!(!cache.answered_probe(&cluster()));
        for contact in [Contact::Work, Contact::Probe] {
            cache.lost(&cluster(), contact);
            assert!(cache.answered_probe(&cluster()), "{contact:?}");
            assert!(!cache.answered_probe(&cluster()), "{contact:?}");
        }
    }

    /// Guards against a Sync that waits on although another one of its member has got responses.
    #[tokio::test(start_paused = true)]
    async fn tenant_an_attempt_with_responses_tells_that_the_member_is_back() {
        let cache = AvailabilityCache::new(Clock::system());
        assert!(!cache.worked(&cluster(), Duration::from_secs(1), 10));
        for took in [1, 29] {
            cache.lost(&cluster(), Contact::Work);
            assert!(cache.worked(&cluster(), Duration::from_secs(took), 1), "{took}");
            assert!(!cache.worked(&cluster(), Duration::from_secs(took), 1), "{took}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lane_is_suspect_while_the_cluster_is_slow_or_lost_and_forgotten_when_it_is_well() {
        let cache = AvailabilityCache::new(Clock::system());
        let _ = cache.worked(&cluster(), Duration::from_secs(29), 1);
        assert!(cache.is_suspect(&cluster()) && !cache.is_open(&cluster()));
        let _ = cache.worked(&cluster(), Duration::from_secs(1), 10);
        assert!(!cache.is_suspect(&cluster()));
        cache.lost(&cluster(), Contact::Work);
        assert!(cache.is_suspect(&cluster()) && !cache.is_open(&cluster()));
        cache.lost(&cluster(), Contact::Probe);
        assert!(cache.is_open(&cluster()));
        let wait = cache.begin_probe(&cluster()).unwrap_err();
        tokio::time::advance(wait).await;
        assert_eq!(cache.begin_probe(&cluster()), Ok(()));
        assert!(cache.answered_probe(&cluster()));
        assert!(!cache.is_suspect(&cluster()));
        let _ = cache.worked(&cluster(), Duration::from_secs(1), 10);
        assert!(cache.by_cluster.lock().is_empty());
    }
}
