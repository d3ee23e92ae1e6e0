//! Rate limits of starts: one token bucket for the controller, one for each cluster, and one for each git host.
//!
//! The buckets limit how often work *starts*. Concurrency is limited elsewhere: by the number of Sync workers
//! (`--concurrency`), by `maxConcurrency` of each group, and by the request limits of each member.

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

use crate::controller::object_key::ObjectKey;
use crate::controller::waits;

/// Attempts that may start per second over all clusters. An attempt has tens of requests, so this is far above the
/// throughput of one controller. The limit protects against mistakes, such as a thousand Syncs that are requested at
/// once.
const ATTEMPTS: NonZeroU32 = NonZeroU32::new(200).unwrap();
/// Attempts that may start per second on one cluster.
const ATTEMPTS_PER_CLUSTER: NonZeroU32 = NonZeroU32::new(5).unwrap();
/// Attempts on one cluster that may start at once after an idle time: one for each entry of a group.
const CLUSTER_BURST: NonZeroU32 = NonZeroU32::new(20).unwrap();
/// Requests per second to one git host. Public hosts begin to reject requests at a few per second.
const REQUESTS_PER_HOST: NonZeroU32 = NonZeroU32::new(5).unwrap();
/// Requests to one git host that may start at once after an idle time.
const HOST_BURST: NonZeroU32 = NonZeroU32::new(20).unwrap();

/// A token bucket.
type Bucket = RateLimiter<NotKeyed, InMemoryState, RuntimeClock, NoOpMiddleware<Duration>>;
/// A token bucket for each key.
type Buckets<K> = RateLimiter<K, DefaultKeyedStateStore<K>, RuntimeClock, NoOpMiddleware<Duration>>;

/// The token buckets. They use the clock of the runtime.
pub struct StartRates {
    controller: Bucket,
    clusters: Buckets<ObjectKey>,
    hosts: Buckets<String>,
    /// Number of waits so far. It seeds the jitter of a wait, so that no random generator is needed.
    waits: AtomicU64,
}

impl Default for StartRates {
    fn default() -> Self {
        Self {
            controller: RateLimiter::direct_with_clock(Quota::per_second(ATTEMPTS), RuntimeClock::start()),
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
        while let Err(early) = self.controller.check() {
            self.wait(self.controller.clock(), &early).await;
        }
    }

    /// Waits until a request to this git host may start. A repository without a host is a local directory and needs no
    /// wait.
    pub async fn wait_for_request(&self, host: Option<&str>) {
        let Some(host) = host.map(str::to_owned) else {
            return;
        };
        while let Err(early) = self.hosts.check_key(&host) {
            self.wait(self.hosts.clock(), &early).await;
        }
    }

    /// Waits until the bucket has a token, plus jitter.
    async fn wait(&self, clock: &RuntimeClock, early: &NotUntil<Duration>) {
        let number = self.waits.fetch_add(1, Ordering::Relaxed);
        let jitter = spread(waits::START_JITTER, hash64(&[&number.to_string()]));
        tokio::time::sleep(early.wait_time_from(clock.now()) + jitter).await;
    }

    /// Drops full buckets; otherwise every Cluster that ever existed would keep one.
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
