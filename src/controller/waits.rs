//! Waits and timeouts of the controller: of its loops, its gates and its requests to the management cluster, each with
//! the source of its number; and the jitter that prevents that objects with the same start are handled at the same time
//! forever. Waits that belong to a decision of `starling_core` are beside the decision, and the times for which a cache
//! keeps values are beside the cache.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use starling_core::digest::{hash64, spread};

/// Wait after the first failure to read a repository; doubles. A git host that restarts is back within seconds.
pub(super) const SOURCE_RETRY: Duration = Duration::from_secs(5);
/// Shortest interval of a Source. With a shorter one the next request would start before a distant host has responded.
pub(super) const SOURCE_MIN_INTERVAL: Duration = Duration::from_millis(500);

/// Interval of the probes of a cluster without other requests: with a thousand clusters, 17 requests per second.
pub(super) const PROBE_INTERVAL: Duration = Duration::from_secs(60);
/// Timeout of a probe. It is shorter than that of a request of an attempt: a cluster that takes longer to identify
/// itself cannot be worked on.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// Wait after the first failed probe; doubles up to [`PROBE_INTERVAL`]. An API server that restarts needs a few
/// seconds.
pub(super) const PROBE_RETRY: Duration = Duration::from_secs(2);
/// Addition to the wait for an open circuit breaker, so that the wait has ended when the cluster is reconciled: ten
/// times the resolution of tokio's timer (1 ms).
pub(super) const BREAKER_MARGIN: Duration = Duration::from_millis(10);
/// Maximum age of `lastProbeTime` while nothing else changes: with a thousand clusters, three writes per second.
pub(super) const PROBE_TIME_AGE: SignedDuration = SignedDuration::from_mins(5);
/// Timeout of a request for a token, which is one small request, as a probe is.
pub(super) const TOKEN_TIMEOUT: Duration = Duration::from_secs(10);

/// Shortest `interval`, `timeout` and wait for a dependency of a Sync. With zero a Sync would requeue itself in a loop.
pub(super) const SYNC_MIN: Duration = Duration::from_secs(1);
/// Timeout of one health check. The check ends in time however slow the member is, and the next check continues. As
/// long as the timeout of a request to the management cluster.
pub(super) const HEALTH_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of the probe after an attempt that timed out: half of a probe's timeout, since the attempt has already
/// waited.
pub(super) const REACHABLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Wait after the first check of objects that are being deleted; doubles. Most objects are deleted within seconds.
pub(super) const DELETING_RETRY: Duration = Duration::from_secs(2);
/// Wait after the management cluster could not report whether the parent of a Sync is being deleted. The request is
/// small, and every other loop needs the server too.
pub(super) const PARENT_RETRY: Duration = Duration::from_secs(5);

/// Time for which the same clusters must be about to leave a group before they leave. A script that removes labels one
/// by one is faster than this, so that its changes count together.
pub(super) const DESELECTION_SETTLE: Duration = Duration::from_secs(3);
/// Wait of a group while one of its members has not been checked since the start: a probe takes some milliseconds, or
/// ten seconds without a response.
pub(super) const NUMBER_CHECK: Duration = Duration::from_millis(500);
/// Longest wait between two tries to read the count of writes while the management cluster may have been set back.
pub(super) const NUMBER_CHECK_MAX: Duration = Duration::from_secs(10);
/// Longest time after which a list of deletions asks a budget that has become free. A group has thousands of Syncs that
/// wait for one time; each of them costs a few requests.
pub(super) const BUDGET_SPREAD: Duration = Duration::from_secs(30);
/// Wait after actions and approvals could not be marked. The usual cause is a role without the right, which a person
/// edits.
pub(super) const MARK_RETRY: Duration = Duration::from_mins(5);
/// Wait after an admission that was not written: the slot is idle until then.
pub(super) const ADMISSION_RETRY: Duration = Duration::from_secs(1);
/// Wait after a removal that was not written.
pub(super) const REMOVAL_RETRY: Duration = Duration::from_secs(2);
/// Wait after a release digest could not be computed. The clusters and the log report the error.
pub(super) const BUILD_RETRY: Duration = Duration::from_secs(30);
/// Wait after a failed request to the management cluster while a group is being deleted; doubles.
pub(super) const GROUP_DELETION_RETRY: Duration = Duration::from_secs(5);

/// Wait after a reconcile that could not report its error, or that panicked; doubles.
pub(super) const RECONCILE_RETRY: Duration = Duration::from_secs(1);
/// Maximum of these waits. Such an error is caused by what an object needs and not by the object, so that the object is
/// reconciled within a minute after the error ends.
pub(super) const RECONCILE_LONGEST_RETRY: Duration = Duration::from_secs(60);

/// Wait after an increment of the count of writes: at most ten small writes a second, also in a rollout to thousands
/// of clusters. An attempt waits for a twentieth of a second on average.
pub(super) const WRITE_NUMBERS: Duration = Duration::from_millis(100);
/// Interval at which a controller that was held after a restore checks whether a person has released it.
pub(super) const RELEASE_CHECK: Duration = Duration::from_secs(2);

/// Interval at which the admission policies are read: a few small requests. A policy that was deleted and created again
/// meanwhile is told by its creation time.
pub(super) const POLICY_CHECK: Duration = Duration::from_secs(20);

/// Timeout of a request to the management cluster. kube has no default.
pub(super) const HUB_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of the write of an event: a slow management cluster must not delay the reconcile that writes the event.
pub(super) const EVENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum timeout of one page of a list, after lists that timed out: twice the time after which kube-apiserver itself
/// ends a request.
pub(super) const LIST_LONGEST_TIMEOUT: Duration = Duration::from_secs(120);
/// Time after which the server ends a watch. kube and client-go choose some five minutes. A lost connection that
/// nothing has reported is noticed after this time at the latest, and the cache is out of date until then; a watch that
/// begins again costs two small requests.
pub(super) const WATCH_TIMEOUT: Duration = Duration::from_secs(120);
/// Time that the end of a watch may take to arrive. kube waits half as long, for a server that is not overloaded.
pub(super) const WATCH_MARGIN: Duration = Duration::from_secs(10);
/// Shortest duration of a watch that does not count as a failure, as in client-go.
pub(super) const WATCH_SHORTEST: Duration = Duration::from_secs(1);
/// Time without a watch after which the cache counts as out of date, and the controller as not ready. An API server
/// that restarts, and that is retried up to every ten seconds, is back within it.
pub(super) const STALE_AFTER: Duration = Duration::from_secs(60);
/// Wait after the first failure of a watch; doubles.
pub(super) const WATCH_RETRY: Duration = Duration::from_millis(800);
/// Maximum wait of a watch. client-go waits three times as long, but the cache is out of date until the watch learns
/// that the management cluster is back or has compacted its history.
pub(super) const WATCH_LONGEST_RETRY: Duration = Duration::from_secs(10);
/// Minimum wait after a failure of a watch, whatever the backoff is. It prevents a busy loop.
pub(super) const WATCH_LEAST_RETRY: Duration = Duration::from_millis(10);
/// Time without a failure after which the backoff of a watch is reset. Otherwise a watch that lists and then fails
/// would list in a loop.
pub(super) const WATCH_STEADY: Duration = Duration::from_secs(60);

/// Wait between two attempts to delete a Job whose gate is no longer open.
pub(super) const JOB_DELETION_RETRY: Duration = Duration::from_secs(2);

/// Maximum jitter of a start that had to wait, so that waiting starts do not happen at the same time.
pub(super) const START_JITTER: Duration = Duration::from_millis(50);
/// Time that a stop waits for running attempts.
pub(super) const STOP_GRACE: Duration = Duration::from_secs(20);
/// Interval of the writes of due times to the ledger. They only save work after a restart, so that the loss of one
/// second is acceptable.
pub(super) const SAVE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of the writes that show whether the ledger accepts any: one commit, besides those of the due times.
pub(super) const LEDGER_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Timeout of such a write: twice the time for which SQLite waits for a lock, and a commit.
pub(super) const LEDGER_CHECK_TIMEOUT: Duration = Duration::from_secs(15);
/// Interval of the housekeeping.
pub(super) const TIDY_INTERVAL: Duration = Duration::from_secs(60);
/// Interval at which the history of deleted objects is removed from the ledger: it stays for days.
pub(super) const FORGET_INTERVAL: Duration = Duration::from_hours(1);

/// Returns `interval` plus or minus up to a tenth, by `seed`.
pub(super) fn around(interval: Duration, seed: &str) -> Duration {
    interval - interval / 10 + spread(interval / 5, hash64(&[seed]))
}

/// Returns `wait` plus up to a tenth, by `seed`, for waits that must not be shortened.
pub(super) fn at_least(wait: Duration, seed: &str) -> Duration {
    wait + spread(wait / 10, hash64(&[seed]))
}

/// Returns `until` plus up to a tenth of the wait, and at most [`BUDGET_SPREAD`], by `seed`: what waits for the same
/// time does not ask at the same time.
pub(super) fn after(now: Timestamp, until: Timestamp, seed: &str) -> Timestamp {
    let wait = Duration::try_from(until.duration_since(now)).unwrap_or(Duration::ZERO);
    from(until, spread((wait / 10).min(BUDGET_SPREAD), hash64(&[seed])))
}

/// Returns the time `wait` after `now`; the maximum if the time exceeds the range of a timestamp.
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
    fn what_waits_for_one_time_does_not_ask_at_one_time() {
        let (now, until) = (Timestamp::UNIX_EPOCH, Timestamp::from_second(3600).unwrap());
        let times = (0..200).map(|seed| after(now, until, &seed.to_string()));
        let times: std::collections::BTreeSet<Timestamp> = times.collect();
        assert!(times.len() > 100);
        let latest = Timestamp::from_second(3630).unwrap();
        assert!(times.iter().all(|time| (until..=latest).contains(time)));
        assert_eq!(after(until, now, "late"), now);
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
