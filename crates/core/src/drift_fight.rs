//! Drift fights: how often an object is repaired when another writer keeps undoing the repair.
//!
//! Each repair is one write, at most one per drift check. More repairs do not stop a writer that responds to each one,
//! so after [`GIVEN`] consecutive repairs the wait doubles, up to [`LONGEST`]. A drift check that finds the object
//! unchanged ends the drift fight.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::clock_jumps::is_far_ahead;

/// Consecutive repairs of one object before it counts as a drift fight: a person who edits twice is not a controller.
pub const GIVEN: u32 = 3;
/// The longest wait between two repairs of one object, unless the interval itself is longer.
pub const LONGEST: Duration = Duration::from_secs(3600);

/// The repairs of one object that were undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriftFight {
    /// Consecutive repairs.
    pub repairs: u32,
    /// The time of the last repair.
    pub repaired_at: Timestamp,
}

impl DriftFight {
    /// Returns the drift fight after another repair.
    #[must_use]
    pub fn repaired(before: Option<Self>, now: Timestamp) -> Self {
        Self {
            repairs: before.map_or(0, |fight| fight.repairs).saturating_add(1),
            repaired_at: now,
        }
    }

    /// Returns a drift fight with an unknown start, as after a restart of the process. One more repair is made at once;
    /// from then on the waits are those of a drift fight.
    #[must_use]
    pub fn resumed() -> Self {
        Self {
            repairs: GIVEN,
            repaired_at: Timestamp::UNIX_EPOCH,
        }
    }

    /// Reports whether the drift is a drift fight, and not one or two edits.
    #[must_use]
    pub fn is_fight(&self) -> bool {
        self.repairs >= GIVEN
    }

    /// Reports whether the object may be repaired now. A clock that was set back since the last repair delays nothing.
    #[must_use]
    pub fn is_due(&self, interval: Duration, now: Timestamp) -> bool {
        is_far_ahead(self.repaired_at, now) || self.next_repair(interval) <= now
    }

    /// Returns the earliest time of the next repair.
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

    /// Seconds between allowed repairs, for a fight that never ends.
    fn waits(interval: u64, count: usize) -> Vec<i64> {
        let interval = Duration::from_secs(interval);
        let (mut now, mut fight, mut waits) = (Timestamp::from_second(1_000_000).unwrap(), None, Vec::new());
        for _ in 0..count {
            let repaired = DriftFight::repaired(fight, now);
            let next = repaired.next_repair(interval);
            waits.push(next.as_second() - now.as_second());
            now = next;
            fight = Some(repaired);
        }
        waits
    }

    #[test]
    fn three_repairs_are_made_then_the_wait_doubles_up_to_an_hour() {
        // 0: no wait beyond the interval of drift checks.
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
    fn one_or_two_edits_are_no_drift_fight() {
        let now = Timestamp::from_second(50).unwrap();
        let one = DriftFight::repaired(None, now);
        let two = DriftFight::repaired(Some(one), now);
        let three = DriftFight::repaired(Some(two), now);
        assert_eq!(
            [one, two, three].map(|fight| fight.is_fight()),
            [false, false, true]
        );
    }

    #[test]
    fn after_a_restart_one_repair_is_made_and_the_waits_continue() {
        let resumed = DriftFight::resumed();
        let now = Timestamp::from_second(1_000_000).unwrap();
        assert!(resumed.is_fight() && resumed.next_repair(LONGEST) < now);
        let next = DriftFight::repaired(Some(resumed), now).next_repair(Duration::from_secs(60));
        assert_eq!(next.as_second() - now.as_second(), 240);
    }
}
