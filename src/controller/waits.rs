//! How long the controller waits: every wait and limit of its loops, its gates and its requests to the management
//! cluster, with where its number comes from, and the jitter that keeps what began together from being done together
//! for ever. Waits that a decision of `starling_core` contains stand beside the decision, and the times for which
//! a cache keeps something beside the cache.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use starling_core::digest::{hash64, spread};

/// Wait after the first failure to read a repository; doubles. A git host that restarts is back
/// within seconds.
pub(super) const SOURCE_RETRY: Duration = Duration::from_secs(5);
/// Shortest interval of a Source. Below it a mirror would be asked again before the answer of a distant host is there.
pub(super) const SOURCE_MIN_INTERVAL: Duration = Duration::from_millis(500);

/// How often a cluster is probed while no other request is sent to it: at a thousand clusters, 17 requests a second.
pub(super) const PROBE_INTERVAL: Duration = Duration::from_secs(60);
/// Limit of one probe. Shorter than a request of an attempt: a cluster that takes longer to say who it is cannot be
/// worked on either.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// Wait after the first failed probe; doubles up to [`PROBE_INTERVAL`]. An API server that restarts needs a few
/// seconds.
pub(super) const PROBE_RETRY: Duration = Duration::from_secs(2);
/// Added to the wait for an open circuit breaker, so that the wait is over when the cluster is reconciled: ten times
/// the resolution of tokio's timer (1 ms).
pub(super) const BREAKER_MARGIN: Duration = Duration::from_millis(10);
/// How old `lastProbeTime` may get while nothing else changes: at a thousand clusters, three writes a second.
pub(super) const PROBE_TIME_AGE: SignedDuration = SignedDuration::from_mins(5);
/// Limit of the request for a token: as for a probe, a token is one small request.
pub(super) const TOKEN_TIMEOUT: Duration = Duration::from_secs(10);

/// Shortest `interval`, `timeout` and wait for a dependency of a Sync. Zero would make a Sync wake itself without end.
pub(super) const SYNC_MIN: Duration = Duration::from_secs(1);
/// Limit of one health check. It ends on time however slow the member is, and the next one goes on where it ended. As
/// long as a request to the management cluster may take.
pub(super) const HEALTH_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a member may take to show that it is reachable after an attempt ran out of time: half a probe, since the
/// attempt itself has waited already.
pub(super) const REACHABLE_TIMEOUT: Duration = Duration::from_secs(5);
/// First wait for objects that are being deleted; doubles. Most are gone within seconds.
pub(super) const DELETING_RETRY: Duration = Duration::from_secs(2);
/// Wait after the management cluster did not answer whether the parent of a Sync is being deleted. It is one request to
/// a server that every other loop needs too.
pub(super) const PARENT_RETRY: Duration = Duration::from_secs(5);

/// How long the same clusters have to be about to leave a group before they do. Labels that a script removes one by one
/// come faster than this, and count together.
pub(super) const DESELECTION_SETTLE: Duration = Duration::from_secs(3);
/// Wait after an admission that the management cluster did not take: its slot is idle until then.
pub(super) const ADMISSION_RETRY: Duration = Duration::from_secs(1);
/// Wait after a removal that the management cluster did not take.
pub(super) const REMOVAL_RETRY: Duration = Duration::from_secs(2);
/// Wait after a release digest could not be computed: the clusters report why, and so does the log.
pub(super) const BUILD_RETRY: Duration = Duration::from_secs(30);
/// Wait after the management cluster did not answer, or did not take something, while a group is being deleted;
/// doubles.
pub(super) const GROUP_DELETION_RETRY: Duration = Duration::from_secs(5);

/// Wait after a reconcile that could not even report, or that panicked; doubles.
pub(super) const RECONCILE_RETRY: Duration = Duration::from_secs(1);
/// The longest of those waits. A failure of this kind is about what is wrong around an object, not about its own backoff, so an object that
/// is well again is reconciled within a minute.
pub(super) const RECONCILE_LONGEST_RETRY: Duration = Duration::from_secs(60);

/// Limit of one request to the management cluster. kube has none of its own.
pub(super) const HUB_TIMEOUT: Duration = Duration::from_secs(30);
/// Limit of one event: a slow management cluster must not hold up what the event is about.
pub(super) const EVENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Wait after the first failure of a watch; doubles.
pub(super) const WATCH_RETRY: Duration = Duration::from_millis(800);
/// The longest wait. client-go's is three times as long; but a cache that learns late that the management cluster is
/// back, or has compacted its history, is out of date for as long.
pub(super) const WATCH_LONGEST_RETRY: Duration = Duration::from_secs(10);
/// The least wait after a failure, whatever the backoff says: it keeps the loop from spinning.
pub(super) const WATCH_LEAST_RETRY: Duration = Duration::from_millis(10);
/// How long a watch must go without a failure for its waits to begin anew: one that lists and then fails, again and
/// again, would list in a loop.
pub(super) const WATCH_STEADY: Duration = Duration::from_secs(60);

/// How long the test of an answer may take: an expression may go through the series of an answer several times over.
pub(super) const METRIC_TEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Wait between two attempts to delete a Job whose gate is not open any more.
pub(super) const JOB_DELETION_RETRY: Duration = Duration::from_secs(2);

/// How long a start that had to wait may be put off further, so that those who waited do not start together.
pub(super) const START_JITTER: Duration = Duration::from_millis(50);
/// How long a stop waits for attempts that have begun.
pub(super) const STOP_GRACE: Duration = Duration::from_secs(20);
/// How often the queue's times go into the ledger. They spare work after a restart and nothing else depends on
/// them, so a second of them may be lost.
pub(super) const SAVE_INTERVAL: Duration = Duration::from_secs(1);
/// How often what is no longer used is dropped.
pub(super) const TIDY_INTERVAL: Duration = Duration::from_secs(60);

/// `interval`, a tenth more or less by `seed`.
pub(super) fn around(interval: Duration, seed: &str) -> Duration {
    interval - interval / 10 + spread(interval / 5, hash64(&[seed]))
}

/// `wait`, up to a tenth more by `seed`: for waits that must not be cut short.
pub(super) fn at_least(wait: Duration, seed: &str) -> Duration {
    wait + spread(wait / 10, hash64(&[seed]))
}

/// The time `wait` after `now`; the end of time where that is further than a timestamp goes.
pub(super) fn from(now: Timestamp, wait: Duration) -> Timestamp {
    let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX);
    now.checked_add(wait).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_stays_within_a_tenth_and_differs_by_seed() {
        let wait = Duration::from_secs(100);
        let seeds: Vec<String> = (0..200).map(|seed| seed.to_string()).collect();
        let around: Vec<Duration> = seeds.iter().map(|seed| super::around(wait, seed)).collect();
        let tenth = Duration::from_secs(10);
        assert!(
            around
                .iter()
                .all(|spread| (wait - tenth..wait + tenth).contains(spread))
        );
        assert!(around.iter().any(|spread| *spread < wait) && around.iter().any(|spread| *spread > wait));
        let longer = seeds.iter().map(|seed| at_least(wait, seed));
        assert!(
            longer
                .clone()
                .all(|spread| (wait..wait + tenth).contains(&spread))
        );
        assert!(longer.collect::<std::collections::BTreeSet<_>>().len() > 100);
    }

    #[test]
    fn a_wait_without_end_ends_with_time() {
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(from(now, Duration::MAX), Timestamp::MAX);
        assert_eq!(
            from(now, Duration::from_secs(5)),
            Timestamp::from_second(5).unwrap()
        );
    }
}
