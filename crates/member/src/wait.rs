//! Waiting for a state of a member, within an attempt.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::attempt::Attempt;

/// The first pause between two polls; each pause is 1.5 times the previous one.
const FIRST: Duration = Duration::from_millis(50);
/// The maximum pause, which is short compared with waits of a minute.
const MAXIMUM: Duration = Duration::from_secs(2);

/// Growing pauses until a deadline.
pub(super) struct Pauses {
    until: Instant,
    next: Duration,
}

impl Pauses {
    /// Creates pauses that use up to half of the remaining time of an attempt, so that there is time for its other
    /// objects.
    pub(super) fn within(attempt: &Attempt) -> Self {
        let now = Instant::now();
        Self::until(now + attempt.deadline.saturating_duration_since(now) / 2)
    }

    /// Creates pauses as [`Self::within`] does, that end after `limit` at the latest.
    pub(super) fn at_most(limit: Duration, attempt: &Attempt) -> Self {
        let pauses = Self::within(attempt);
        Self {
            until: pauses.until.min(Instant::now() + limit),
            ..pauses
        }
    }

    fn until(until: Instant) -> Self {
        Self { until, next: FIRST }
    }

    /// Pauses; `false` if the time is up.
    pub(super) async fn pause(&mut self) -> bool {
        let now = Instant::now();
        if now >= self.until {
            return false;
        }
        sleep_until((now + self.next).min(self.until)).await;
        self.next = (self.next + self.next / 2).min(MAXIMUM);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_pauses_grow_and_end_halfway_to_the_deadline() {
        let start = Instant::now();
        let attempt = Attempt::until(start + Duration::from_secs(60));
        let mut pauses = Pauses::within(&attempt);
        let mut polls = vec![start];
        while pauses.pause().await {
            polls.push(Instant::now());
        }
        assert_eq!(start.elapsed(), Duration::from_secs(30));
        let gaps: Vec<_> = polls.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(gaps[0], FIRST);
        assert!(gaps[..gaps.len() - 1].is_sorted() && gaps.iter().all(|gap| *gap <= MAXIMUM));
        assert!(polls.len() < 40, "{} polls in half a minute", polls.len());
    }
}
