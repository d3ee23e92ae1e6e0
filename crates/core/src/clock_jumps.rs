//! Jumps of the wall clock, and the times that they must not bring closer.
//!
//! Times that outlive a process are times of the wall clock, which is set forward and back. If it is set forward by an
//! hour, a soak time, a deadline or a timed gate of that hour would be over at once. So a process compares the wall
//! clock with the monotonic one, and a time is due only when both have advanced by the wait: the smaller of the two
//! counts. Only the current process knows the jumps; a restart counts by the wall clock again.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
pub use starling_api::conditions::is_far_ahead;

/// A smaller difference is not a jump: clocks that are adjusted drift by less than that in minutes, and their
/// differences add up until they are counted.
const LEAST: SignedDuration = SignedDuration::from_millis(500);
/// Jumps that are kept. Of more, the oldest are merged.
const KEPT: usize = 32;

/// Returns a time that cannot lie ahead; `now`, if it does so by far.
#[must_use]
pub fn not_far_ahead(stored: Timestamp, now: Timestamp) -> Timestamp {
    if is_far_ahead(stored, now) { now } else { stored }
}

/// A jump of the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClockJump {
    /// The wall clock just before the jump, at the latest.
    pub at: Timestamp,
    /// The milliseconds by which the wall clock advanced more than the monotonic clock; negative if it was set back.
    pub by_millis: i64,
}

/// The jumps of the wall clock in the life of a process, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClockJumps(Vec<ClockJump>);

impl ClockJumps {
    /// Returns no jumps.
    #[must_use]
    pub const fn none() -> Self {
        Self(Vec::new())
    }

    /// Reports whether there was none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Records the difference between two readings of the wall clock, if it is a jump, and returns whether it is.
    /// `elapsed` is the monotonic time between them.
    pub fn observe(&mut self, before: Timestamp, now: Timestamp, elapsed: Duration) -> bool {
        let elapsed = SignedDuration::try_from(elapsed).unwrap_or(SignedDuration::MAX);
        let expected = before.checked_add(elapsed).unwrap_or(Timestamp::MAX);
        let by = now.duration_since(expected);
        if by.abs() < LEAST {
            return false;
        }
        self.0.push(ClockJump {
            at: expected,
            by_millis: i64::try_from(by.as_millis()).unwrap_or(i64::MAX),
        });
        if self.0.len() > KEPT {
            let oldest = self.0.remove(0);
            if let Some(next) = self.0.first_mut() {
                // Later rather than sooner.
                next.by_millis = oldest.by_millis.max(0).saturating_add(next.by_millis.max(0));
            }
        }
        true
    }

    /// Returns when `wait` has passed since `since` by both clocks; `None` if that is beyond all times.
    ///
    /// A time that was recorded near a jump cannot be assigned to one side of it, and between a jump back and a jump
    /// forward the wall clock shows the same time twice. In doubt, the result is later.
    #[must_use]
    pub fn due(&self, since: Timestamp, wait: Duration) -> Option<Timestamp> {
        let (mut sum, mut most) = (0_i64, 0_i64);
        for jump in self.0.iter().rev().take_while(|jump| jump.at >= since) {
            sum = sum.saturating_add(jump.by_millis);
            most = most.max(sum);
        }
        let due = since.checked_add(wait).ok()?;
        due.checked_add(SignedDuration::from_millis(most)).ok()
    }

    /// Returns the time that has passed since `since` by both clocks: the smaller one.
    #[must_use]
    pub fn elapsed(&self, since: Timestamp, now: Timestamp) -> Duration {
        let begun = self.due(since, Duration::ZERO).unwrap_or(Timestamp::MAX);
        now.duration_since(begun).try_into().unwrap_or(Duration::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn t(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    /// Jumps at these times, by these seconds.
    fn jumps(all: &[(i64, i64)]) -> ClockJumps {
        let mut jumps = ClockJumps::default();
        for &(at, by) in all {
            assert!(jumps.observe(t(at - 1), t(at + by), Duration::from_secs(1)));
        }
        jumps
    }

    #[test]
    fn a_time_is_due_when_both_clocks_have_advanced_by_the_wait() {
        for (all, since, due) in [
            (&[][..], 0, 60),
            // Set forward by an hour: the wall clock has to advance by the hour, too.
            (&[(10, 3600)], 0, 3660),
            (&[(10, 3600)], 20, 80),
            // Set back: the wall clock is the smaller one.
            (&[(10, -3600)], 0, 60),
            // Set forward and back again.
            (&[(10, 3600), (3620, -3600)], 0, 60),
            // Set back and forward again: since 5 may be before the first jump or between the two.
            (&[(10, -3600), (-3580, 3600)], 5, 65),
            (&[(10, -60), (0, 60)], -5, 115),
            (&[(10, 30), (50, 30)], 0, 120),
        ] {
            assert_eq!(jumps(all).due(t(since), MINUTE), Some(t(due)), "{all:?} {since}");
        }
    }

    #[test]
    fn the_elapsed_time_is_the_smaller_one() {
        let forward = jumps(&[(10, 3600)]);
        assert_eq!(forward.elapsed(t(0), t(3630)), Duration::from_secs(30));
        assert_eq!(forward.elapsed(t(0), t(12)), Duration::ZERO, "not negative");
        assert_eq!(
            ClockJumps::default().elapsed(t(0), t(12)),
            Duration::from_secs(12)
        );
    }

    #[test]
    fn small_differences_are_no_jumps_and_old_jumps_are_merged() {
        let mut jumps = ClockJumps::default();
        assert!(!jumps.observe(t(0), t(60), Duration::from_millis(59_700)));
        assert!(jumps.is_empty());
        for number in 0..100 {
            assert!(jumps.observe(t(number * 10), t(number * 10 + 2), Duration::from_secs(1)));
        }
        assert_eq!(jumps.0.len(), KEPT);
        assert_eq!(jumps.due(t(0), MINUTE), Some(t(160)), "one second for each");
    }

    #[test]
    fn times_beyond_all_times_are_never_due() {
        assert_eq!(jumps(&[(10, 3600)]).due(Timestamp::MAX, MINUTE), None);
    }
}
