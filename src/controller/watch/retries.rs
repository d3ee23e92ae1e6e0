//! The backoff of a watch after consecutive failures.

use std::time::Duration;

use starling_core::backoff;
use tokio::time::Instant;

use crate::controller::waits;

/// The consecutive failures of the watch of one kind.
#[derive(Debug)]
pub(super) struct Retries {
    kind: String,
    failures: u32,
    last: Option<Instant>,
}

impl Retries {
    pub(super) fn of(kind: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            failures: 0,
            last: None,
        }
    }

    /// Records a failure and returns the wait until the next attempt.
    pub(super) fn next_wait(&mut self) -> Duration {
        let now = Instant::now();
        if self
            .last
            .is_some_and(|last| now.duration_since(last) >= waits::WATCH_STEADY)
        {
            self.failures = 0;
        }
        self.last = Some(now);
        self.failures = self.failures.saturating_add(1);
        let wait = backoff::delay(waits::WATCH_RETRY, self.failures, &self.kind);
        wait.clamp(waits::WATCH_LEAST_RETRY, waits::WATCH_LONGEST_RETRY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_grow_to_the_maximum_and_begin_anew_after_a_steady_time() {
        let mut retries = Retries::of("Sync");
        let mut waits = Vec::new();
        for _ in 0..12 {
            let wait = retries.next_wait();
            waits.push(wait);
            tokio::time::advance(wait).await;
        }
        assert!(waits[0] <= waits::WATCH_RETRY, "{waits:?}");
        assert!(
            waits[11] > waits[0] && waits[11] <= waits::WATCH_LONGEST_RETRY,
            "{waits:?}"
        );
        assert!(
            waits.iter().all(|wait| *wait >= waits::WATCH_LEAST_RETRY),
            "{waits:?}"
        );
        tokio::time::advance(waits::WATCH_STEADY).await;
        assert_eq!(retries.next_wait(), waits[0]);
    }
}
