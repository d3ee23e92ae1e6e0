//! How fast work may start: one bucket for the operator, one per cluster, one per git host.
//!
//! These are rates of *starts*. How much is under way at once is bounded elsewhere: by the number of Sync
//! workers (`--concurrency`), by each group's `maxConcurrency`, and by each member's own request limits.

use std::hash::Hash;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use governor::clock::Clock as _;
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DefaultKeyedStateStore;
use governor::state::{InMemoryState, NotKeyed};
use governor::{NotUntil, Quota, RateLimiter};
use starling_core::digest::{hash64, spread};
use starling_net::clock::RuntimeClock;

use super::cache::ObjectKey;
use crate::controller::waits;

/// Attempts that may start per second, over all clusters. An attempt is tens of requests, so this is far above
/// what one controller carries out; it keeps a mistake (a thousand Syncs asked for at once) from being a storm.
const ATTEMPTS: NonZeroU32 = NonZeroU32::new(200).unwrap();
/// Attempts that may start per second on one cluster.
const ATTEMPTS_PER_CLUSTER: NonZeroU32 = NonZeroU32::new(5).unwrap();
/// Attempts on one cluster that may start at once after a quiet time: a group's entries.
const CLUSTER_BURST: NonZeroU32 = NonZeroU32::new(20).unwrap();
/// Requests per second to one git host. Public hosts begin to refuse in the range of a few per second.
const REQUESTS_PER_HOST: NonZeroU32 = NonZeroU32::new(5).unwrap();
/// Requests to one git host that may start at once after a quiet time.
const HOST_BURST: NonZeroU32 = NonZeroU32::new(20).unwrap();

/// A bucket.
type Bucket = RateLimiter<NotKeyed, InMemoryState, RuntimeClock, NoOpMiddleware<Duration>>;
/// A bucket per key.
type Buckets<K> = RateLimiter<K, DefaultKeyedStateStore<K>, RuntimeClock, NoOpMiddleware<Duration>>;

/// The buckets. They and the waits for them go by the runtime's clock.
pub struct StartRates {
    operator: Bucket,
    clusters: Buckets<ObjectKey>,
    hosts: Buckets<String>,
    /// Waits so far: what one is put off by follows from its number, so that no generator is needed.
    waits: AtomicU64,
}

impl Default for StartRates {
    fn default() -> Self {
        Self {
            operator: RateLimiter::direct_with_clock(Quota::per_second(ATTEMPTS), RuntimeClock::start()),
            clusters: buckets(Quota::per_second(ATTEMPTS_PER_CLUSTER).allow_burst(CLUSTER_BURST)),
            hosts: buckets(Quota::per_second(REQUESTS_PER_HOST).allow_burst(HOST_BURST)),
            waits: AtomicU64::new(0),
        }
    }
}

fn buckets<K: Clone + Eq + Hash>(quota: Quota) -> Buckets<K> {
    RateLimiter::new(quota, DefaultKeyedStateStore::default(), RuntimeClock::start())
}

impl StartRates {
    /// Waits until an attempt on this cluster may start.
    pub async fn wait_for_attempt(&self, cluster: &ObjectKey) {
        while let Err(early) = self.clusters.check_key(cluster) {
            self.wait(self.clusters.clock(), &early).await;
        }
        while let Err(early) = self.operator.check() {
            self.wait(self.operator.clock(), &early).await;
        }
    }

    /// Waits until a request to this git host may start; a repository without a host is a local folder.
    pub async fn wait_for_request(&self, host: Option<&str>) {
        let Some(host) = host.map(str::to_owned) else {
            return;
        };
        while let Err(early) = self.hosts.check_key(&host) {
            self.wait(self.hosts.clock(), &early).await;
        }
    }

    /// Waits until the bucket has something again, and a little longer.
    async fn wait(&self, clock: &RuntimeClock, early: &NotUntil<Duration>) {
        let number = self.waits.fetch_add(1, Ordering::Relaxed);
        let jitter = spread(waits::START_JITTER, hash64(&[&number.to_string()]));
        tokio::time::sleep(early.wait_time_from(clock.now()) + jitter).await;
    }

    /// Drops buckets that are full again; otherwise every cluster that ever existed would keep one.
    pub fn tidy(&self) {
        self.clusters.retain_recent();
        self.hosts.retain_recent();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_cluster_gets_its_burst_at_once_and_then_its_rate_while_others_are_not_held_up() {
        let rates = StartRates::default();
        let (busy, quiet) = (ObjectKey::new("ns", "busy"), ObjectKey::new("ns", "quiet"));
        for _ in 0..CLUSTER_BURST.get() {
            rates.wait_for_attempt(&busy).await;
        }
        let asked = rates.clusters.check_key(&busy);
        assert!(asked.is_err(), "the burst is used up");
        assert!(rates.clusters.check_key(&quiet).is_ok());
        rates.tidy();
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_follows_the_runtimes_clock_and_is_put_off_a_little_further() {
        let rates = StartRates::default();
        for _ in 0..HOST_BURST.get() {
            rates.wait_for_request(Some("git.example.org")).await;
        }
        let start = tokio::time::Instant::now();
        rates.wait_for_request(None).await;
        assert_eq!(start.elapsed(), Duration::ZERO, "no host, no wait");
        rates.wait_for_request(Some("git.example.org")).await;
        let waited = start.elapsed();
        let least = Duration::from_millis(200);
        assert!(
            (least..=least + waits::START_JITTER + Duration::from_millis(1)).contains(&waited),
            "{waited:?}"
        );
    }
}
