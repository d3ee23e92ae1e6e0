//! When a failed attempt is tried again.

use std::time::Duration;

use crate::digest::{hash64, spread};

/// The longest wait between two attempts. Flux and client-go stop doubling in the same range.
pub const CEILING: Duration = Duration::from_secs(600);

/// The wait after the `attempts`-th failure in a row: `start` doubled each time up to [`CEILING`], of which the
/// upper half is spread by a hash of `seed`, so that what failed together is not tried again together.
#[must_use]
pub fn delay(start: Duration, attempts: u32, seed: &str) -> Duration {
    let doublings = attempts.saturating_sub(1).min(32);
    let full = start
        .saturating_mul(2u32.saturating_pow(doublings))
        .min(CEILING.max(start));
    full / 2 + spread(full / 2, hash64(&[seed, &attempts.to_string()]))
}

/// Time per object over which work that is due at a start is spread: two hundred a second, the rate at which
/// attempts may start.
const START_PER_OBJECT: Duration = Duration::from_millis(5);
/// The longest spread of a start.
const START_LONGEST: Duration = Duration::from_secs(30);

/// How long after a start one of `objects` is looked at: full jitter over a time that grows with their number, from
/// a hash of `seed`, which names the object and the start.
#[must_use]
pub fn start_delay(objects: usize, seed: &str) -> Duration {
    let objects = u32::try_from(objects).unwrap_or(u32::MAX);
    spread(
        START_PER_OBJECT.saturating_mul(objects).min(START_LONGEST),
        hash64(&[seed]),
    )
}

/// Time per cluster of a fleet for which a group lets its Syncs go on before it looks again. A look costs a tenth of that per
/// cluster, so looks take a bounded share of a core however many clusters there are.
const LOOK_PER_CLUSTER: Duration = Duration::from_micros(200);
/// The longest such pause.
const LOOK_LONGEST: Duration = Duration::from_secs(1);
/// The most clusters under way with which each that is done is waited for: one that ends makes room for the next.
const FEW: u32 = 10;
/// How many times as long the pause is where nothing is under way: then nobody waits for a look.
const AT_REST: u32 = 2;

/// How long after a change of one of its Syncs a group is looked at, so that one look serves many changes. With few clusters
/// under way it is at once, as the next one waits for it.
#[must_use]
pub fn look_pause(clusters: usize, under_way: u32) -> Duration {
    let clusters = u32::try_from(clusters).unwrap_or(u32::MAX);
    let pause = LOOK_PER_CLUSTER.saturating_mul(clusters).min(LOOK_LONGEST);
    match under_way {
        0 => pause * AT_REST,
        1..=FEW => Duration::ZERO,
        _ => pause,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_pauses_by_the_size_of_the_fleet_unless_the_next_cluster_waits() {
        for (clusters, under_way, pause) in [
            (20, 0, 8),
            (20, 5, 0),
            (1_000, 250, 200),
            (5_000, 0, 2_000),
            (5_000, 1_250, 1_000),
            (5_000, 10, 0),
            (100_000, 11, 1_000),
        ] {
            assert_eq!(
                look_pause(clusters, under_way),
                Duration::from_millis(pause),
                "{clusters} {under_way}"
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

    /// A restart with five thousand clusters must not be a herd.
    #[test]
    fn a_start_is_spread_evenly_and_a_small_one_is_over_at_once() {
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
    fn what_failed_together_is_spread() {
        let start = Duration::from_secs(30);
        let waits: std::collections::BTreeSet<_> = (0..100)
            .map(|n| delay(start, 1, &n.to_string()).as_millis())
            .collect();
        assert!(waits.len() > 90);
    }
}
