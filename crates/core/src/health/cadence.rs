//! Schedules the health checks of unhealthy objects.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::HealthVerdict;
use crate::backoff;

/// The first and the longest wait between two health checks: a Deployment takes seconds, a database minutes.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(10);

/// The health checks of one Sync: how many in a row, and when the next one is due.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cadence {
    /// Consecutive checks that found the objects in progress.
    checks: u32,
    /// Consecutive checks that found the objects failed.
    failures: u32,
    /// Time at which the next check is due; `None`: with the next drift check.
    next: Option<Timestamp>,
}

impl Cadence {
    /// Returns when the next check is due; `None`: with the next drift check.
    #[must_use]
    pub fn next(&self) -> Option<Timestamp> {
        self.next
    }

    /// Starts with short waits again after a write.
    pub fn restart(&mut self) {
        self.checks = 0;
    }

    /// Schedules the next check after a check. While the objects are in progress, the wait is short and ends with their
    /// timeout at the latest. After a failure it is the backoff of a failed attempt, which starts at `retry`. `seed`
    /// spreads checks that began together.
    pub fn checked(&mut self, verdict: &HealthVerdict, retry: Duration, seed: &str, now: Timestamp) {
        match verdict {
            HealthVerdict::Healthy => *self = Self::default(),
            HealthVerdict::Waiting { until, .. } => {
                self.checks = self.checks.saturating_add(1);
                self.failures = 0;
                let wait = backoff::delay(FIRST, self.checks, seed).min(LONGEST);
                self.next = Some(after(now, wait).min(*until));
            }
            HealthVerdict::Failed { .. } => {
                self.checks = 0;
                self.failures = self.failures.saturating_add(1);
                self.next = Some(after(now, backoff::delay(retry, self.failures, seed)));
            }
        }
    }

    /// Schedules the next check of a cluster that is unreachable. An event follows once the cluster is reachable; this
    /// covers an event that is lost.
    pub fn lost(&mut self, retry: Duration, now: Timestamp) {
        self.next = Some(after(now, retry));
    }
}

fn after(now: Timestamp, wait: Duration) -> Timestamp {
    let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::from_hours(24));
    now.checked_add(wait).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETRY: Duration = Duration::from_secs(30);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn waiting(until: i64) -> HealthVerdict {
        HealthVerdict::Waiting {
            until: at(until),
            unhealthy: Vec::new(),
        }
    }

    /// Returns the milliseconds from each check to the next one.
    fn waits(cadence: &mut Cadence, verdict: &HealthVerdict, checks: usize) -> Vec<i64> {
        (0..checks)
            .map(|_| {
                cadence.checked(verdict, RETRY, "seed", at(0));
                cadence.next().unwrap().as_millisecond()
            })
            .collect()
    }

    #[test]
    fn the_wait_grows_from_one_second_to_ten() {
        let mut cadence = Cadence::default();
        let waits = waits(&mut cadence, &waiting(1000), 12);
        assert!((500..=1000).contains(&waits[0]), "{waits:?}");
        assert!(waits.iter().all(|wait| *wait <= 10_000), "{waits:?}");
        assert_eq!(waits[11], 10_000);
        cadence.restart();
        cadence.checked(&waiting(1000), RETRY, "seed", at(0));
        assert!(cadence.next().unwrap() <= at(1), "after a write it starts over");
    }

    #[test]
    fn a_check_is_due_at_the_end_of_the_timeout() {
        let mut cadence = Cadence::default();
        let waits = waits(&mut cadence, &waiting(7), 12);
        assert_eq!(waits[11], 7_000);
    }

    #[test]
    fn a_failure_is_checked_again_with_the_backoff_of_an_attempt() {
        let mut cadence = Cadence::default();
        let failed = HealthVerdict::Failed {
            unhealthy: Vec::new(),
        };
        let waits = waits(&mut cadence, &failed, 10);
        assert!((15_000..=30_000).contains(&waits[0]), "{waits:?}");
        assert!((300_000..=600_000).contains(&waits[9]), "{waits:?}");
        // In progress again, and then failed again: the backoff starts again.
        cadence.checked(&waiting(1000), RETRY, "seed", at(0));
        cadence.checked(&failed, RETRY, "seed", at(0));
        assert!(cadence.next().unwrap() <= at(30));
        cadence.checked(&HealthVerdict::Healthy, RETRY, "seed", at(0));
        assert_eq!(cadence.next(), None);
        cadence.lost(RETRY, at(5));
        assert_eq!(cadence.next(), Some(at(35)));
    }
}
