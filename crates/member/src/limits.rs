//! The limits of requests to one member.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use starling_core::inventory::format::SHARD_LIMIT;
use starling_net::clock::RuntimeClock;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Limits of the requests to one member.
#[derive(Clone, Copy, Debug)]
pub struct MemberLimits {
    /// For DNS, TCP and TLS together.
    pub connect: Duration,
    /// From the connection to the end of the head of the response.
    pub head: Duration,
    /// Between two parts of the body of a response.
    pub idle: Duration,
    /// From the start of a request to the last byte of its response.
    pub request: Duration,
    /// Maximum bytes of a response that is a page of a list. Any other response is also limited to 4 MiB.
    pub response_bytes: usize,
    /// Maximum concurrent requests. Each has its own connection, because the client uses HTTP/1.1.
    pub concurrency: usize,
    /// Requests a second, on average.
    pub per_second: NonZeroU32,
    /// Requests that may be sent at once after a pause.
    pub burst: NonZeroU32,
    /// Bytes of one shard of an inventory.
    pub shard_bytes: usize,
}

impl Default for MemberLimits {
    /// An API server takes about 3 ms of CPU for a server-side apply, so 100 a second is a third of one core. 6
    /// concurrent requests keep it busy over a round trip of 50 ms. A page of metadata of 500 objects has 1 to 4 MiB;
    /// no honest response exceeds 8 MiB, and 6 of them stay below 64 MiB. A head takes as long as the work of the
    /// request: 10 s is the default timeout of an admission webhook.
    fn default() -> Self {
        const PER_SECOND: NonZeroU32 = NonZeroU32::MIN.saturating_add(99);
        const BURST: NonZeroU32 = NonZeroU32::MIN.saturating_add(199);
        Self {
            connect: Duration::from_secs(5),
            head: Duration::from_secs(10),
            idle: Duration::from_secs(10),
            request: Duration::from_secs(30),
            response_bytes: 8 * 1024 * 1024,
            concurrency: 6,
            per_second: PER_SECOND,
            burst: BURST,
            shard_bytes: SHARD_LIMIT,
        }
    }
}

/// Limits the concurrency and rate of requests by [`MemberLimits`].
#[derive(Debug)]
pub(super) struct Limiter {
    permits: Semaphore,
    rate: RateLimiter<NotKeyed, InMemoryState, RuntimeClock, NoOpMiddleware<Duration>>,
}

impl Limiter {
    pub(super) fn new(limits: &MemberLimits) -> Self {
        let quota = Quota::per_second(limits.per_second).allow_burst(limits.burst);
        Self {
            permits: Semaphore::new(limits.concurrency.max(1)),
            rate: RateLimiter::direct_with_clock(quota, RuntimeClock::start()),
        }
    }

    /// Waits for a permit and for the rate. `None` only if the semaphore is closed, which never happens.
    pub(super) async fn acquire(&self) -> Option<SemaphorePermit<'_>> {
        let permit = self.permits.acquire().await.ok()?;
        while let Err(early) = self.rate.check() {
            tokio::time::sleep(early.wait_time_from(self.rate.clock().now())).await;
        }
        Some(permit)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::time::Instant;

    use super::*;

    fn limits(per_second: u32, burst: u32, concurrency: usize) -> MemberLimits {
        MemberLimits {
            per_second: NonZeroU32::new(per_second).unwrap(),
            burst: NonZeroU32::new(burst).unwrap(),
            concurrency,
            ..MemberLimits::default()
        }
    }

    #[test]
    fn the_defaults_match_the_comment() {
        let limits = MemberLimits::default();
        assert_eq!(
            (limits.per_second.get(), limits.burst.get(), limits.concurrency),
            (100, 200, 6)
        );
    }

    #[tokio::test]
    async fn the_rate_applies_after_the_burst() {
        let limiter = Limiter::new(&limits(100, 5, 1));
        for _ in 0..5 {
            assert!(
                limiter.acquire().now_or_never().is_some(),
                "the burst waits for nothing"
            );
        }
        let start = Instant::now();
        for _ in 0..20 {
            drop(limiter.acquire().await.unwrap());
        }
        let elapsed = start.elapsed();
        assert!(elapsed >= Duration::from_millis(180), "{elapsed:?}");
    }

    #[tokio::test]
    async fn no_more_permits_than_the_limit() {
        let limiter = Limiter::new(&limits(1000, 1000, 2));
        let first = limiter.acquire().await.unwrap();
        let _second = limiter.acquire().await.unwrap();
        assert!(limiter.acquire().now_or_never().is_none());
        drop(first);
        assert!(limiter.acquire().now_or_never().is_some());
    }
}
