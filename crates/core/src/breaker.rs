//! The circuit breaker of one cluster: after some failures to reach the cluster, nothing but an occasional probe is
//! sent to it, until a probe succeeds.
//!
//! Times are those of a monotonic clock with any origin: a wall clock that jumps must not keep a cluster from being
//! reached.

use std::time::Duration;

use crate::digest::{hash64, spread};

/// Consecutive failures that open the breaker.
pub const THRESHOLD: u32 = 5;
/// The shortest time between two probes while the breaker is open.
pub const PROBE_PERIOD: Duration = Duration::from_secs(30);
/// The wait after the first failed probe of an open breaker. Most losses are a moment without network, which both ends
/// survive: with a whole period, each of them would cost a rollout half a minute.
const FIRST_WAIT: Duration = Duration::from_secs(3);
/// The longest time that is added to the wait for the next probe, so that clusters that were lost together are not
/// probed together. With the limit of ten seconds per probe, two periods contain a probe that begins after the cluster
/// recovered.
const JITTER: Duration = Duration::from_secs(6);
/// After this time a probe counts as failed: the process or task that made it has ended.
const PROBE_LIMIT: Duration = Duration::from_secs(120);
/// The mean time per request from which on a cluster is slow. A healthy cluster responds within tens of milliseconds;
/// six concurrent requests that take three seconds each have this mean.
const SLOW_REQUEST: Duration = Duration::from_millis(500);
/// An attempt that takes less than this blocks no other.
const SLOW_ATTEMPT: Duration = Duration::from_secs(5);

/// The kind of request that reached the cluster, or failed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contact {
    /// An attempt with the objects of the cluster.
    Work,
    /// A probe.
    Probe,
}

/// The circuit breaker of a cluster: it determines whether attempts are made on the cluster, and when it is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breaker {
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Attempts are made.
    Closed {
        /// Consecutive attempts that did not reach the cluster. A probe that does not reset the count: a cluster that
        /// responds only to probes would never open the breaker.
        work: u32,
        /// Consecutive probes that did not reach the cluster.
        probes: u32,
    },
    /// No request is sent before `probe_at`, and then a probe.
    Open {
        probe_at: Duration,
        /// Whether a probe has failed since the breaker opened.
        is_probed: bool,
    },
    /// A probe is in progress; it counts as failed at `until`.
    HalfOpen { until: Duration, is_probed: bool },
}

impl Default for Breaker {
    fn default() -> Self {
        Self { state: CLOSED }
    }
}

const CLOSED: State = State::Closed { work: 0, probes: 0 };

impl Breaker {
    /// Reports whether no attempts are made on the cluster.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !matches!(self.state, State::Closed { .. })
    }

    /// Reports whether a request failed to reach the cluster since it was last known to be healthy.
    #[must_use]
    pub fn is_suspect(&self) -> bool {
        self.state != CLOSED
    }

    /// Begins a probe if one is due. While the breaker is open, only one probe is in progress.
    ///
    /// # Errors
    /// The time at which a probe is due.
    pub fn begin_probe(&mut self, now: Duration) -> Result<(), Duration> {
        match self.state {
            State::Closed { .. } => Ok(()),
            State::Open { probe_at: at, .. } | State::HalfOpen { until: at, .. } if at > now => Err(at),
            State::Open { is_probed, .. } | State::HalfOpen { is_probed, .. } => {
                self.state = State::HalfOpen {
                    until: now + PROBE_LIMIT,
                    is_probed,
                };
                Ok(())
            }
        }
    }

    /// Makes the next probe due at once: a user requested it, or the credentials changed.
    pub fn probe_now(&mut self) {
        if let State::Open { is_probed, .. } | State::HalfOpen { is_probed, .. } = self.state {
            self.state = State::Open {
                probe_at: Duration::ZERO,
                is_probed,
            };
        }
    }

    /// Records that the cluster responded.
    pub fn answered(&mut self, contact: Contact) {
        self.state = match (self.state, contact) {
            (State::Closed { work, .. }, Contact::Probe) => State::Closed { work, probes: 0 },
            (State::Closed { .. }, Contact::Work) | (State::Open { .. } | State::HalfOpen { .. }, _) => {
                CLOSED
            }
        };
    }

    /// Records that the cluster did not respond. `seed` names the cluster.
    pub fn failed(&mut self, contact: Contact, now: Duration, seed: &str) {
        let hash = || hash64(&[seed, &now.as_millis().to_string()]);
        let wait = |is_probed: bool| match is_probed {
            false => FIRST_WAIT + spread(FIRST_WAIT, hash()),
            true => PROBE_PERIOD + spread(JITTER, hash()),
        };
        self.state = match (self.state, contact) {
            // There was no probe yet, so one may follow at once.
            (State::Closed { work, probes }, Contact::Work) if work + probes + 1 >= THRESHOLD => {
                State::Open {
                    probe_at: now,
                    is_probed: false,
                }
            }
            (State::Closed { work, probes }, Contact::Work) => State::Closed {
                work: work + 1,
                probes,
            },
            (State::Closed { work, probes }, Contact::Probe) if work == 0 && probes + 1 < THRESHOLD => {
                State::Closed {
                    work,
                    probes: probes + 1,
                }
            }
            (State::Closed { .. }, Contact::Probe) => State::Open {
                probe_at: now + wait(false),
                is_probed: true,
            },
            (State::Open { is_probed, .. } | State::HalfOpen { is_probed, .. }, Contact::Probe) => {
                State::Open {
                    probe_at: now + wait(is_probed),
                    is_probed: true,
                }
            }
            // Attempts that were in progress when the breaker opened change nothing.
            (open @ (State::Open { .. } | State::HalfOpen { .. }), Contact::Work) => open,
        };
    }
}

/// Reports whether an attempt with this duration and number of requests shows a cluster that blocks its worker.
#[must_use]
pub fn is_slow(took: Duration, requests: u64) -> bool {
    let requests = u32::try_from(requests.max(1)).unwrap_or(u32::MAX);
    took >= SLOW_ATTEMPT && took / requests >= SLOW_REQUEST
}

#[cfg(test)]
mod tests {
    use super::*;
    use Contact::{Probe, Work};

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn after(failures: &[Contact]) -> Breaker {
        let mut breaker = Breaker::default();
        for contact in failures {
            breaker.failed(*contact, at(100), "a");
        }
        breaker
    }

    #[test]
    fn consecutive_failures_open_the_breaker() {
        for (failures, open) in [
            (&[][..], false),
            (&[Work], false),
            (&[Work; 4], false),
            (&[Work; 5], true),
            (&[Probe], false),
            (&[Probe; 4], false),
            (&[Probe; 5], true),
            (&[Work, Probe], true),
            (&[Probe, Work], false),
            (&[Probe, Probe, Work, Work], false),
            (&[Probe, Probe, Work, Work, Work], true),
        ] {
            assert_eq!(after(failures).is_open(), open, "{failures:?}");
            assert_eq!(after(failures).is_suspect(), !failures.is_empty(), "{failures:?}");
        }
    }

    #[test]
    fn responses_reset_the_count_but_a_probe_keeps_failed_attempts() {
        for (contact, still_closed) in [(Work, true), (Probe, false)] {
            let mut breaker = after(&[Work; 4]);
            breaker.answered(contact);
            breaker.failed(Work, at(101), "a");
            assert_eq!(!breaker.is_open(), still_closed, "{contact:?}");
        }
        let mut breaker = after(&[Probe; 4]);
        breaker.answered(Probe);
        assert!(!breaker.is_suspect());
    }

    #[test]
    fn an_open_breaker_has_one_probe_per_period_and_the_first_response_closes_it() {
        let mut breaker = after(&[Work, Probe]);
        let mut now = at(100);
        let mut probes = 0;
        while now < at(1000) {
            if breaker.begin_probe(now).is_ok() {
                probes += 1;
                assert!(breaker.begin_probe(now).is_err(), "one at a time");
                breaker.failed(Work, now, "a");
                assert!(breaker.is_open(), "late results of work change nothing");
                now += at(10);
                breaker.failed(Probe, now, "a");
            }
            now += at(1);
        }
        assert!((20..=30).contains(&probes), "{probes} in 900 s");
        // The cluster recovered: the first probe comes within two periods.
        let healed = now;
        while breaker.begin_probe(now).is_err() {
            now += at(1);
        }
        assert!(now - healed <= 2 * PROBE_PERIOD, "{:?}", now - healed);
        breaker.answered(Probe);
        assert_eq!(breaker, Breaker::default());
    }

    #[test]
    fn an_attempt_that_opens_the_breaker_is_followed_by_a_probe_at_once() {
        assert_eq!(after(&[Work; 5]).begin_probe(at(100)), Ok(()));
        let mut breaker = after(&[Probe; 5]);
        let next = breaker.begin_probe(at(100)).unwrap_err();
        assert!((at(103)..=at(106)).contains(&next), "{next:?}");
        breaker.probe_now();
        assert_eq!(breaker.begin_probe(at(100)), Ok(()));
    }

    /// Guards against a moment without network that costs half a minute.
    #[test]
    fn tenant_the_second_probe_of_an_open_breaker_comes_within_seconds_and_the_others_in_periods() {
        for failures in [&[Work, Probe][..], &[Probe; 5], &[Work; 5]] {
            let mut breaker = after(failures);
            let mut now = at(100);
            if breaker.begin_probe(now).is_ok() {
                breaker.failed(Probe, now, "a");
            }
            let mut waits = Vec::new();
            while waits.len() < 3 {
                let due = breaker.begin_probe(now).unwrap_err();
                waits.push(due - now);
                now = due;
                breaker.begin_probe(now).unwrap();
                breaker.failed(Probe, now, "a");
            }
            assert!((at(3)..=at(6)).contains(&waits[0]), "{waits:?}");
            assert!(waits[1..].iter().all(|wait| *wait >= PROBE_PERIOD), "{waits:?}");
        }
    }

    /// Guards against a prober that ends while the breaker is half open: no other probe would ever be made.
    #[test]
    fn a_probe_without_a_result_does_not_block_the_breaker_for_ever() {
        let mut breaker = after(&[Probe; 5]);
        breaker.probe_now();
        breaker.begin_probe(at(200)).unwrap();
        assert_eq!(breaker.begin_probe(at(210)), Err(at(200) + PROBE_LIMIT));
        assert_eq!(breaker.begin_probe(at(200) + PROBE_LIMIT), Ok(()));
    }

    #[test]
    fn probes_of_clusters_that_were_lost_together_are_spread() {
        let times: std::collections::BTreeSet<_> = (0..100)
            .map(|n| {
                let mut breaker = after(&[Work]);
                breaker.failed(Probe, at(100), &n.to_string());
                breaker.begin_probe(at(100)).unwrap_err()
            })
            .collect();
        assert!(times.len() > 90);
    }

    #[test]
    fn slow_is_both_long_and_slow_per_request() {
        let milliseconds = Duration::from_millis;
        for (took, requests, slow) in [
            (milliseconds(100), 1, false),
            (milliseconds(4_900), 1, false),
            (milliseconds(29_000), 1, true),
            (milliseconds(30_000), 2_000, false),
            (milliseconds(30_000), 30, true),
            (milliseconds(6_000), 0, true),
        ] {
            assert_eq!(is_slow(took, requests), slow, "{took:?} {requests}");
        }
    }
}
