//! Somebody on the member undoes what is repaired, again and again: how often it is repaired then.
//!
//! Each repair is one write, at most one per look for drift. Whoever answers each one is not convinced by more of them, so
//! after [`GIVEN`] in a row the wait until the next doubles, up to [`LONGEST`]. A look that finds the object as it was left
//! ends the contest.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// Repairs in a row of one object before it counts as contested: a person who edits twice is not a controller.
pub const GIVEN: u32 = 3;
/// The longest wait between two repairs of one object, unless the interval itself is longer.
pub const LONGEST: Duration = Duration::from_secs(3600);

/// The repairs of one object that were undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contest {
    /// Repairs in a row.
    pub repairs: u32,
    /// When the last one was made.
    pub repaired_at: Timestamp,
}

impl Contest {
    /// The contest after another repair.
    #[must_use]
    pub fn repaired(before: Option<Self>, now: Timestamp) -> Self {
        Self {
            repairs: before.map_or(0, |contest| contest.repairs).saturating_add(1),
            repaired_at: now,
        }
    }

    /// A contest that is known to be under way, though not since when: the program has just started. One more write is
    /// made at once; from then on the waits are those of a contest.
    #[must_use]
    pub fn resumed() -> Self {
        Self {
            repairs: GIVEN,
            repaired_at: Timestamp::UNIX_EPOCH,
        }
    }

    /// Whether this is a contest, and not an edit or two.
    #[must_use]
    pub fn is_contested(&self) -> bool {
        self.repairs >= GIVEN
    }

    /// The earliest time of the next repair.
    #[must_use]
    pub fn next_repair(&self, interval: Duration) -> Timestamp {
        let Some(doublings) = (self.repairs + 1).checked_sub(GIVEN) else {
            return self.repaired_at;
        };
        if doublings == 0 {
            return self.repaired_at;
        }
        let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
        let wait = interval.saturating_mul(factor).min(LONGEST.max(interval));
        let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::from_hours(1));
        self.repaired_at.checked_add(wait).unwrap_or(Timestamp::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds from each repair to the next that is allowed, for a fight that never ends.
    fn waits(interval: u64, count: usize) -> Vec<i64> {
        let interval = Duration::from_secs(interval);
        let (mut now, mut contest, mut waits) =
            (Timestamp::from_second(1_000_000).unwrap(), None, Vec::new());
        for _ in 0..count {
            let repaired = Contest::repaired(contest, now);
            let next = repaired.next_repair(interval);
            waits.push(next.as_second() - now.as_second());
            now = next;
            contest = Some(repaired);
        }
        waits
    }

    #[test]
    fn three_repairs_are_given_then_the_wait_doubles_up_to_an_hour() {
        // 0: nothing beyond the interval of the looks themselves.
        assert_eq!(
            waits(600, 8),
            [0, 0, 1200, 2400, 3600, 3600, 3600, 3600],
            "interval 10m"
        );
        assert_eq!(waits(2, 6), [0, 0, 4, 8, 16, 32], "interval 2s");
        assert_eq!(
            waits(7200, 4),
            [0, 0, 7200, 7200],
            "never more often than the interval"
        );
        assert_eq!(waits(1, 40)[39], 3600, "no overflow");
    }

    #[test]
    fn an_edit_or_two_are_no_contest() {
        let now = Timestamp::from_second(50).unwrap();
        let one = Contest::repaired(None, now);
        let two = Contest::repaired(Some(one), now);
        let three = Contest::repaired(Some(two), now);
        assert_eq!(
            [one, two, three].map(|contest| contest.is_contested()),
            [false, false, true]
        );
    }

    #[test]
    fn after_a_start_one_write_is_made_and_the_waits_go_on() {
        let resumed = Contest::resumed();
        let now = Timestamp::from_second(1_000_000).unwrap();
        assert!(resumed.is_contested() && resumed.next_repair(LONGEST) < now);
        let next = Contest::repaired(Some(resumed), now).next_repair(Duration::from_secs(60));
        assert_eq!(next.as_second() - now.as_second(), 240);
    }
}
