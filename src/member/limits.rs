//! What one member may cost.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use starling_core::inventory::format::SHARD_LIMIT;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::clock::RuntimeClock;

/// Bounds on the requests to one member.
#[derive(Clone, Copy, Debug)]
pub struct MemberLimits {
    /// For the name, TCP and TLS together.
    pub connect: Duration,
    /// From the moment there is a connection to the end of the answer's head.
    pub head: Duration,
    /// Between two parts of an answer's body.
    pub idle: Duration,
    /// From sending a request to the last byte of its answer.
    pub request: Duration,
    /// Bytes of one answer: of a page of a list; anything else has at most 4 MiB as well.
    pub answer_bytes: usize,
    /// Requests at the same time. Each is a connection of its own, since the client speaks HTTP/1.1.
    pub concurrency: usize,
    /// Requests a second, on average.
    pub per_second: NonZeroU32,
    /// Requests that may go out at once after a pause.
    pub burst: NonZeroU32,
    /// Bytes of one shard of an inventory.
    pub shard_bytes: usize,
}

impl Default for MemberLimits {
    /// An API server takes about 3 ms of CPU for a server-side apply, so 100 a second is a third of one core. 6 at once
    /// keep it busy over a round trip of 50 ms. A page of 500 metadata is 1 to 4 MiB; 8 MiB is beyond any honest answer, and
    /// 6 at once stay below 64 MiB. A head takes as long as the work: 10 s is the default limit of an admission webhook.
    fn default() -> Self {
        const PER_SECOND: NonZeroU32 = NonZeroU32::MIN.saturating_add(99);
        const BURST: NonZeroU32 = NonZeroU32::MIN.saturating_add(199);
        Self {
            connect: Duration::from_secs(5),
            head: Duration::from_secs(10),
            idle: Duration::from_secs(10),
            request: Duration::from_secs(30),
            answer_bytes: 8 * 1024 * 1024,
            concurrency: 6,
            per_second: PER_SECOND,
            burst: BURST,
            shard_bytes: SHARD_LIMIT,
        }
    }
}

/// Lets requests through at the pace of [`MemberLimits`].
#[derive(Debug)]
pub(super) struct Gate {
    places: Semaphore,
    rate: RateLimiter<NotKeyed, InMemoryState, RuntimeClock, NoOpMiddleware<Duration>>,
}

impl Gate {
    pub(super) fn new(limits: &MemberLimits) -> Self {
        let quota = Quota::per_second(limits.per_second).allow_burst(limits.burst);
        Self {
            places: Semaphore::new(limits.concurrency.max(1)),
            rate: RateLimiter::direct_with_clock(quota, RuntimeClock::start()),
        }
    }

    /// Waits for a place and for the pace. `None` only if the semaphore is closed, which nobody does.
    pub(super) async fn pass(&self) -> Option<SemaphorePermit<'_>> {
        let place = self.places.acquire().await.ok()?;
        while let Err(early) = self.rate.check() {
            tokio::time::sleep(early.wait_time_from(self.rate.clock().now())).await;
        }
        Some(place)
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
    fn the_defaults_are_what_the_comment_says() {
        let limits = MemberLimits::default();
        assert_eq!(
            (limits.per_second.get(), limits.burst.get(), limits.concurrency),
            (100, 200, 6)
        );
    }

    #[tokio::test]
    async fn after_the_burst_the_pace_holds() {
        let gate = Gate::new(&limits(100, 5, 1));
        for _ in 0..5 {
            assert!(
                gate.pass().now_or_never().is_some(),
                "the burst waits for nothing"
            );
        }
        let start = Instant::now();
        for _ in 0..20 {
            drop(gate.pass().await.unwrap());
        }
        let elapsed = start.elapsed();
        assert!(elapsed >= Duration::from_millis(180), "{elapsed:?}");
    }

    #[tokio::test]
    async fn no_more_places_than_allowed() {
        let gate = Gate::new(&limits(1000, 1000, 2));
        let first = gate.pass().await.unwrap();
        let _second = gate.pass().await.unwrap();
        assert!(gate.pass().now_or_never().is_none());
        drop(first);
        assert!(gate.pass().now_or_never().is_some());
    }
}
