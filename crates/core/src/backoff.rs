//! The waits between attempts and plans.

use std::time::Duration;

use jiff::Timestamp;

use crate::digest::{hash64, spread};

/// The longest wait between two attempts. Flux and client-go stop doubling in the same range.
pub const CEILING: Duration = Duration::from_secs(600);

/// Returns the wait after the `attempts`-th consecutive failure: `start`, doubled each time up to [`CEILING`]. The
/// upper half is spread by a hash of `seed`, so that what failed together is not retried together.
#[must_use]
pub fn delay(start: Duration, attempts: u32, seed: &str) -> Duration {
    let doublings = attempts.saturating_sub(1).min(32);
    let full = start
        .saturating_mul(2u32.saturating_pow(doublings))
        .min(CEILING.max(start));
    full / 2 + spread(full / 2, hash64(&[seed, &attempts.to_string()]))
}

/// The jitter of drift checks adds up to this part of `interval`.
const CHECK_JITTER: u32 = 10;

/// Reports whether a stored time can be that of the next attempt or drift check of a Sync: it is no further ahead than
/// the longest wait that is ever stored. If it is, the clock was wrong when the time was written, or is wrong now, and
/// the wait could last a year.
#[must_use]
pub fn is_plausible(until: Timestamp, interval: Duration, retry_interval: Duration, now: Timestamp) -> bool {
    let check = interval.saturating_add(interval / CHECK_JITTER);
    let longest = check.max(CEILING).max(retry_interval);
    Duration::try_from(until.duration_since(now)).is_ok_and(|wait| wait <= longest) || until <= now
}

/// The time per object over which the work after a start is spread: two hundred per second, the rate at which attempts
/// may start.
const START_PER_OBJECT: Duration = Duration::from_millis(5);
/// The longest spread of a start.
const START_LONGEST: Duration = Duration::from_secs(30);

/// Returns the delay of the first reconcile of one of `objects` after a start: full jitter over a time that grows with
/// their number, from a hash of `seed`, which names the object and the start.
#[must_use]
pub fn start_delay(objects: usize, seed: &str) -> Duration {
    let objects = u32::try_from(objects).unwrap_or(u32::MAX);
    spread(
        START_PER_OBJECT.saturating_mul(objects).min(START_LONGEST),
        hash64(&[seed]),
    )
}

/// The time per cluster of the fleet between a change of a Sync and the next plan of its group. A plan costs a tenth of
/// this per cluster, so plans take a bounded share of a core whatever the size of the fleet.
const REPLAN_PER_CLUSTER: Duration = Duration::from_micros(200);
/// The longest such delay.
const REPLAN_LONGEST: Duration = Duration::from_secs(1);
/// Up to this number of clusters in flight the group is planned at once: another cluster waits for each slot that is
/// released.
const FEW: u32 = 10;
/// The factor of the delay where nothing is in flight: no cluster waits for the plan.
const IDLE_FACTOR: u32 = 2;

/// Returns the delay between a change of a Sync and the next plan of its group, so that one plan serves many changes.
/// With few clusters in flight there is no delay, since the next cluster waits for their slots.
#[must_use]
pub fn replan_delay(clusters: usize, in_flight: u32) -> Duration {
    let clusters = u32::try_from(clusters).unwrap_or(u32::MAX);
    let delay = REPLAN_PER_CLUSTER.saturating_mul(clusters).min(REPLAN_LONGEST);
    match in_flight {
        0 => delay * IDLE_FACTOR,
        1..=FEW => Duration::ZERO,
        _ => delay,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_grows_with_the_fleet_unless_the_next_cluster_waits() {
        for (clusters, in_flight, delay) in [
            (20, 0, 8),
            (20, 5, 0),
            (1_000, 250, 200),
            (5_000, 0, 2_000),
            (5_000, 1_250, 1_000),
            (5_000, 10, 0),
            (100_000, 11, 1_000),
        ] {
            assert_eq!(
                replan_delay(clusters, in_flight),
                Duration::from_millis(delay),
                "{clusters} {in_flight}"
            );
        }
    }

    #[test]
    fn doubles_from_the_start_to_the_ceiling() {
        let start = Duration::from_secs(30);
        for (attempts, full) in [(1, 30), (2, 60), (3, 120), (5, 480), (6, 600), (60, 600)] {
            let wait = delay(start, attempts, "a");
            assert!(
                wait >= Duration::from_secs(full) / 2 && wait <= Duration::from_secs(full),
                "{attempts}"
            );
        }
    }

    #[test]
    fn a_start_above_the_ceiling_is_kept() {
        assert!(delay(Duration::from_secs(3600), 4, "a") >= Duration::from_secs(1800));
    }

    /// A restart with five thousand clusters must not reconcile all of them at once.
    #[test]
    fn a_start_is_spread_evenly_and_a_small_one_is_quick() {
        let mut seconds = [0u32; 30];
        for n in 0..5_000 {
            let delay = start_delay(5_000, &format!("ns/c{n} boot"));
            seconds[usize::try_from(delay.as_secs()).unwrap()] += 1;
        }
        let busy = seconds.iter().filter(|count| **count > 0).count();
        assert_eq!(busy, 25, "5,000 objects at 200 a second");
        assert!(
            seconds.iter().all(|count| *count <= 2 * 5_000 / 25),
            "{seconds:?}"
        );
        assert!((0..20).all(|n| start_delay(20, &n.to_string()) < Duration::from_millis(100)));
    }

    #[test]
    fn simultaneous_failures_are_spread() {
        let start = Duration::from_secs(30);
        let waits: std::collections::BTreeSet<_> = (0..100)
            .map(|n| delay(start, 1, &n.to_string()).as_millis())
            .collect();
        assert!(waits.len() > 90);
    }
}
