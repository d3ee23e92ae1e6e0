//! How fast work may start: one bucket for the operator, one per cluster, one per git host.
//!
//! These are rates of *starts*. How much is under way at once is bounded elsewhere: by the number of Sync
//! workers (`--concurrency`), by each group's `maxConcurrency`, and by each member's own request limits.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota, RateLimiter};

use super::cache::ObjectKey;

/// Attempts that may start per second, over all clusters. An attempt is tens of requests, so this is far above
/// what one controller carries out; it keeps a mistake (a thousand Syncs asked for at once) from being a storm.
const ATTEMPTS: NonZeroU32 = NonZeroU32::new(200).unwrap();
/// Attempts that may start per second on one cluster.
const ATTEMPTS_PER_CLUSTER: NonZeroU32 = NonZeroU32::new(5).unwrap();
/// Attempts on one cluster that may start at once after a quiet time: a group's entries.
const CLUSTER_BURST: NonZeroU32 = NonZeroU32::new(20).unwrap();
/// Questions per second to one git host. Public hosts begin to refuse in the range of a few per second.
const ASKED_PER_HOST: NonZeroU32 = NonZeroU32::new(5).unwrap();
/// Questions to one git host that may be asked at once after a quiet time.
const HOST_BURST: NonZeroU32 = NonZeroU32::new(20).unwrap();
/// How long a start that had to wait may be put off further, so that those who waited do not start together.
const JITTER: Duration = Duration::from_millis(50);

/// The buckets.
pub struct Pace {
    operator: DefaultDirectRateLimiter,
    clusters: DefaultKeyedRateLimiter<ObjectKey>,
    hosts: DefaultKeyedRateLimiter<String>,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            operator: RateLimiter::direct(Quota::per_second(ATTEMPTS)),
            clusters: RateLimiter::keyed(Quota::per_second(ATTEMPTS_PER_CLUSTER).allow_burst(CLUSTER_BURST)),
            hosts: RateLimiter::keyed(Quota::per_second(ASKED_PER_HOST).allow_burst(HOST_BURST)),
        }
    }
}

impl Pace {
    /// Waits until an attempt on this cluster may start.
    pub async fn attempt(&self, cluster: &ObjectKey) {
        let jitter = governor::Jitter::up_to(JITTER);
        self.clusters.until_key_ready_with_jitter(cluster, jitter).await;
        self.operator.until_ready_with_jitter(jitter).await;
    }

    /// Waits until this git host may be asked something; a repository without a host is a local folder.
    pub async fn ask(&self, host: Option<&str>) {
        if let Some(host) = host {
            let jitter = governor::Jitter::up_to(JITTER);
            self.hosts
                .until_key_ready_with_jitter(&host.to_owned(), jitter)
                .await;
        }
    }

    /// Forgets buckets that are full again; without this every cluster that ever was would be remembered.
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
        let pace = Pace::default();
        let (busy, quiet) = (ObjectKey::new("ns", "busy"), ObjectKey::new("ns", "quiet"));
        for _ in 0..CLUSTER_BURST.get() {
            pace.attempt(&busy).await;
        }
        let asked = pace.clusters.check_key(&busy);
        assert!(asked.is_err(), "the burst is used up");
        assert!(pace.clusters.check_key(&quiet).is_ok());
        pace.tidy();
    }
}
