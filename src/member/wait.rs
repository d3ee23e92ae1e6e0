//! Waiting for something on a member, within an attempt.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::attempt::Attempt;

/// The first pause between two looks; each one is half as long again as the one before.
const FIRST: Duration = Duration::from_millis(50);
/// The longest pause: what takes a minute need not be noticed sooner.
const LONGEST: Duration = Duration::from_secs(2);

/// Growing pauses until a time.
pub(super) struct Pauses {
    until: Instant,
    next: Duration,
}

impl Pauses {
    /// Pauses that use up half of what an attempt has left, so that there is time for the rest of its objects.
    pub(super) fn within(attempt: &Attempt) -> Self {
        let now = Instant::now();
        Self::until(now + attempt.deadline.saturating_duration_since(now) / 2)
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
        self.next = (self.next + self.next / 2).min(LONGEST);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_pauses_grow_and_end_half_way_to_the_deadline() {
        let start = Instant::now();
        let attempt = Attempt::until(start + Duration::from_secs(60));
        let mut pauses = Pauses::within(&attempt);
        let mut looks = vec![start];
        while pauses.pause().await {
            looks.push(Instant::now());
        }
        assert_eq!(start.elapsed(), Duration::from_secs(30));
        let gaps: Vec<_> = looks.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(gaps[0], FIRST);
        assert!(gaps[..gaps.len() - 1].is_sorted() && gaps.iter().all(|gap| *gap <= LONGEST));
        assert!(looks.len() < 40, "{} looks in half a minute", looks.len());
    }
}
