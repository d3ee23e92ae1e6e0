//! The circuit breaker of one cluster: after some failures to reach it, nothing is sent there but a probe now and
//! then, until one is answered.
//!
//! Times are those of a clock that only goes forward, counted from wherever the caller likes: a wall clock that
//! jumps must not keep a cluster away.

use std::time::Duration;

use crate::digest::{hash64, spread};

/// Failures in a row that open the breaker.
pub const THRESHOLD: u32 = 5;
/// The least time from one probe of an open breaker to the next.
pub const PROBE_PERIOD: Duration = Duration::from_secs(30);
/// What a wait for the next probe has on top at most, so that clusters that were lost together are not probed
/// together. With a probe's own limit of ten seconds, two periods hold a probe that begins after the cluster healed.
const JITTER: Duration = Duration::from_secs(6);
/// A probe that has not come back by then has come to nothing: whoever made it is gone.
const PROBE_LIMIT: Duration = Duration::from_secs(120);
/// Mean time per request from which on a cluster is slow. An honest one answers within tens of milliseconds; six
/// requests at a time that take three seconds each come to this.
const SLOW_REQUEST: Duration = Duration::from_millis(500);
/// An attempt that is over sooner than this held nobody up.
const SLOW_ATTEMPT: Duration = Duration::from_secs(5);

/// What failed to reach the cluster, or did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contact {
    /// An attempt at the cluster's objects.
    Work,
    /// A look whether it is there.
    Probe,
}

/// Whether a cluster is worked on, and when it is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breaker {
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Work goes on.
    Closed {
        /// Attempts in a row that did not reach the cluster. A probe that does is no reason to forget them: what
        /// answers probes only would never open the breaker.
        work: u32,
        /// Probes in a row that did not.
        probes: u32,
    },
    /// Nothing is sent before `probe_at`, and then a probe.
    Open { probe_at: Duration },
    /// A probe is under way; it counts as failed at `until`.
    HalfOpen { until: Duration },
}

impl Default for Breaker {
    fn default() -> Self {
        Self { state: CLOSED }
    }
}

const CLOSED: State = State::Closed { work: 0, probes: 0 };

impl Breaker {
    /// Whether the cluster is not worked on.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !matches!(self.state, State::Closed { .. })
    }

    /// Whether anything failed to reach the cluster since it was last known to be well.
    #[must_use]
    pub fn is_suspect(&self) -> bool {
        self.state != CLOSED
    }

    /// Begins a probe if it is time for one. While the breaker is open only one is under way.
    ///
    /// # Errors
    /// When to ask again.
    pub fn begin_probe(&mut self, now: Duration) -> Result<(), Duration> {
        match self.state {
            State::Closed { .. } => Ok(()),
            State::Open { probe_at: at } | State::HalfOpen { until: at } if at > now => Err(at),
            State::Open { .. } | State::HalfOpen { .. } => {
                self.state = State::HalfOpen {
                    until: now + PROBE_LIMIT,
                };
                Ok(())
            }
        }
    }

    /// Lets the next probe begin at once: a person asked for it, or there are other credentials.
    pub fn hurry(&mut self) {
        if self.is_open() {
            self.state = State::Open {
                probe_at: Duration::ZERO,
            };
        }
    }

    /// Takes in that the cluster answered.
    pub fn answered(&mut self, contact: Contact) {
        self.state = match (self.state, contact) {
            (State::Closed { work, .. }, Contact::Probe) => State::Closed { work, probes: 0 },
            (State::Closed { .. }, Contact::Work) | (State::Open { .. } | State::HalfOpen { .. }, _) => {
                CLOSED
            }
        };
    }

    /// Takes in that the cluster did not answer. `seed` names the cluster.
    pub fn failed(&mut self, contact: Contact, now: Duration, seed: &str) {
        let wait = || PROBE_PERIOD + spread(JITTER, hash64(&[seed, &now.as_millis().to_string()]));
        self.state = match (self.state, contact) {
            // Nobody has looked yet, so a probe may follow at once.
            (State::Closed { work, probes }, Contact::Work) if work + probes + 1 >= THRESHOLD => {
                State::Open { probe_at: now }
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
            (_, Contact::Probe) => State::Open {
                probe_at: now + wait(),
            },
            // What was under way when it opened says nothing new.
            (open @ (State::Open { .. } | State::HalfOpen { .. }), Contact::Work) => open,
        };
    }
}

/// Whether an attempt that took this long for so many requests shows a cluster that holds up its worker.
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
    fn what_opens_it() {
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
    fn answers_in_between_start_the_count_anew_but_a_probe_forgets_no_failed_work() {
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
    fn while_open_one_probe_per_period_and_the_first_answer_closes_it() {
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
        // It has healed: the first probe comes within two periods.
        let healed = now;
        while breaker.begin_probe(now).is_err() {
            now += at(1);
        }
        assert!(now - healed <= 2 * PROBE_PERIOD, "{:?}", now - healed);
        breaker.answered(Probe);
        assert_eq!(breaker, Breaker::default());
    }

    #[test]
    fn work_that_opens_it_is_followed_by_a_probe_at_once() {
        assert_eq!(after(&[Work; 5]).begin_probe(at(100)), Ok(()));
        let mut breaker = after(&[Probe; 5]);
        let next = breaker.begin_probe(at(100)).unwrap_err();
        assert!((at(130)..=at(136)).contains(&next), "{next:?}");
        breaker.hurry();
        assert_eq!(breaker.begin_probe(at(100)), Ok(()));
    }

    /// Guards against a prober that died with the breaker half open: nobody would ever probe again.
    #[test]
    fn a_probe_that_never_came_back_does_not_hold_it_for_ever() {
        let mut breaker = after(&[Probe; 5]);
        breaker.hurry();
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
