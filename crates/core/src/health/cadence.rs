//! When objects that are not healthy are looked at again.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::Verdict;
use crate::backoff;

/// The first wait between two looks, and the longest: a Deployment takes seconds, a database minutes.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(10);

/// The looks at the objects of one Sync: how many in a row, and when the next one is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cadence {
    /// Looks in a row that found them on their way.
    looks: u32,
    /// Looks in a row that found them failed.
    failures: u32,
    /// When they are looked at again; `None`: at the next check for drift.
    next: Option<Timestamp>,
}

impl Cadence {
    /// When the next look is; `None`: at the next check for drift.
    #[must_use]
    pub fn next(&self) -> Option<Timestamp> {
        self.next
    }

    /// Something was written: what follows is looked at soon again.
    pub fn restart(&mut self) {
        self.looks = 0;
    }

    /// After a look: soon while the objects are on their way, and at the latest when their time is over; with the backoff
    /// of a failed attempt, which starts at `retry`, once they have failed. `seed` spreads what began together.
    pub fn looked(&mut self, verdict: &Verdict, retry: Duration, seed: &str, now: Timestamp) {
        match verdict {
            Verdict::Healthy => *self = Self::default(),
            Verdict::Waiting { until, .. } => {
                self.looks = self.looks.saturating_add(1);
                self.failures = 0;
                let wait = backoff::delay(FIRST, self.looks, seed).min(LONGEST);
                self.next = Some(after(now, wait).min(*until));
            }
            Verdict::Failed { .. } => {
                self.looks = 0;
                self.failures = self.failures.saturating_add(1);
                self.next = Some(after(now, backoff::delay(retry, self.failures, seed)));
            }
        }
    }

    /// After a look at a cluster that could not be asked. An event comes once it can be; this is for the case that none
    /// does.
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

    fn waiting(until: i64) -> Verdict {
        Verdict::Waiting {
            until: at(until),
            unhealthy: Vec::new(),
        }
    }

    /// Milliseconds from each look to the next one.
    fn waits(cadence: &mut Cadence, verdict: &Verdict, looks: usize) -> Vec<i64> {
        (0..looks)
            .map(|_| {
                cadence.looked(verdict, RETRY, "seed", at(0));
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
        cadence.looked(&waiting(1000), RETRY, "seed", at(0));
        assert!(cadence.next().unwrap() <= at(1), "after a write it starts over");
    }

    #[test]
    fn the_end_of_the_time_is_not_slept_through() {
        let mut cadence = Cadence::default();
        let waits = waits(&mut cadence, &waiting(7), 12);
        assert_eq!(waits[11], 7_000);
    }

    #[test]
    fn what_failed_is_looked_at_with_the_backoff_of_an_attempt() {
        let mut cadence = Cadence::default();
        let failed = Verdict::Failed {
            unhealthy: Vec::new(),
        };
        let waits = waits(&mut cadence, &failed, 10);
        assert!((15_000..=30_000).contains(&waits[0]), "{waits:?}");
        assert!((300_000..=600_000).contains(&waits[9]), "{waits:?}");
        // It got going again, and fails again: from the start.
        cadence.looked(&waiting(1000), RETRY, "seed", at(0));
        cadence.looked(&failed, RETRY, "seed", at(0));
        assert!(cadence.next().unwrap() <= at(30));
        cadence.looked(&Verdict::Healthy, RETRY, "seed", at(0));
        assert_eq!(cadence.next(), None);
        cadence.lost(RETRY, at(5));
        assert_eq!(cadence.next(), Some(at(35)));
    }
}
