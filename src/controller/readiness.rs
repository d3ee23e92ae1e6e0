//! Readiness: whether the controller knows the state of the management cluster, and can record its own.
//!
//! A controller that is not ready keeps working. Readiness tells people and monitoring that a cache may be out of date,
//! and which one, or that the ledger accepts no writes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp, Unit};
use starling_ledger::LedgerError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::ports::Ledger;
use crate::controller::waits;

/// The readiness of a controller. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    phase: Phase,
    /// The watches, by kind.
    watches: BTreeMap<String, Watch>,
    /// The refusal of the last write to the ledger; `None` if the ledger accepted it.
    refusal: Option<Refusal>,
}

/// The phase of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// The caches wait for their first lists.
    #[default]
    Starting,
    Running,
    Stopping,
}

/// The watch of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct Watch {
    /// The server has the watch, and has not been silent for too long.
    is_open: bool,
    /// The last time at which the management cluster confirmed that the cache is up to date; `None` before the first
    /// complete list.
    confirmed_at: Option<Instant>,
}

#[derive(Debug)]
struct Refusal {
    since: Instant,
    error: String,
}

/// A reason why the controller is not ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotReady {
    /// The caches of these kinds have no complete list yet.
    Starting(Vec<String>),
    /// The controller is stopping.
    Stopping,
    /// The cache of a kind may be out of date.
    Stale {
        /// The kind.
        kind: String,
        /// The time since the management cluster last confirmed that the cache is up to date.
        age: Duration,
    },
    /// The ledger refuses writes.
    Ledger {
        /// The time since the first refused write.
        age: Duration,
        /// The error of the last refused write.
        error: String,
    },
}

impl NotReady {
    /// Describes the reason for people; `now` is the current time.
    #[must_use]
    pub fn describe(&self, now: Timestamp) -> String {
        match self {
            Self::Starting(kinds) if kinds.is_empty() => "starting".to_owned(),
            Self::Starting(kinds) => format!("starting: no complete list yet of {}", kinds.join(", ")),
            Self::Stopping => "stopping".to_owned(),
            Self::Stale { kind, age } => format!("{kind}: out of date since {}", before(now, *age)),
            Self::Ledger { age, error } => {
                format!("ledger: refuses writes since {}: {error}", before(now, *age))
            }
        }
    }
}

/// Returns the time `age` before `now`, to the second.
fn before(now: Timestamp, age: Duration) -> Timestamp {
    let age = SignedDuration::try_from(age).unwrap_or(SignedDuration::MAX);
    let then = now.checked_sub(age).unwrap_or(Timestamp::MIN);
    then.round(Unit::Second).unwrap_or(then)
}

impl Readiness {
    /// Returns the reasons why the controller is not ready; empty if it is.
    #[must_use]
    pub fn reasons(&self) -> Vec<NotReady> {
        let state = self.lock();
        match state.phase {
            Phase::Starting => return vec![NotReady::Starting(state.unlisted())],
            Phase::Stopping => return vec![NotReady::Stopping],
            Phase::Running => {}
        }
        let watches = state.watches.iter();
        let mut reasons: Vec<NotReady> = watches.filter_map(|(kind, watch)| watch.stale(kind)).collect();
        reasons.extend(state.refusal.as_ref().map(|refusal| NotReady::Ledger {
            age: refusal.since.elapsed(),
            error: refusal.error.clone(),
        }));
        reasons
    }

    /// Records that the caches are complete and the workers run.
    pub(super) fn started(&self) {
        self.lock().phase = Phase::Running;
    }

    /// Records that no more work is started.
    pub(super) fn stops(&self) {
        self.lock().phase = Phase::Stopping;
    }

    /// Adds the watch of a kind.
    pub(super) fn watch(&self, kind: &str) -> WatchState {
        self.lock().watches.insert(kind.to_owned(), Watch::default());
        WatchState {
            kind: kind.to_owned(),
            readiness: self.clone(),
        }
    }

    /// Records that the ledger accepted a write.
    fn accepted(&self) {
        if self.lock().refusal.take().is_some() {
            tracing::info!("the ledger accepts writes again");
        }
    }

    /// Records that the ledger refused a write with an error.
    fn refused(&self, error: String) {
        let mut state = self.lock();
        let since = match &state.refusal {
            Some(Refusal { since, .. }) => *since,
            None => {
                tracing::error!(error, "the ledger refuses writes");
                Instant::now()
            }
        };
        state.refusal = Some(Refusal { since, error });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn unlisted(&self) -> Vec<String> {
        let watches = self.watches.iter();
        let unlisted = watches.filter(|(_, watch)| watch.confirmed_at.is_none());
        unlisted.map(|(kind, _)| kind.clone()).collect()
    }
}

impl Watch {
    /// Returns the reason if the cache of the kind has been out of date for too long. An open watch is up to date: the
    /// server sends every change, and one that is silent for too long is ended.
    fn stale(&self, kind: &str) -> Option<NotReady> {
        let age = self.confirmed_at?.elapsed();
        (!self.is_open && age >= waits::STALE_AFTER).then(|| NotReady::Stale {
            kind: kind.to_owned(),
            age,
        })
    }
}

/// The state of the watch of one kind. A watch that is dropped counts as interrupted: it may have panicked.
#[derive(Debug)]
pub(super) struct WatchState {
    kind: String,
    readiness: Readiness,
}

impl WatchState {
    /// Records that the cache holds a complete list.
    pub(super) fn listed(&self) {
        self.change(|watch| watch.confirmed_at = Some(Instant::now()));
    }

    /// Records that the server has begun to send changes.
    pub(super) fn opened(&self) {
        self.change(|watch| {
            watch.is_open = true;
            watch.confirmed_at = Some(Instant::now());
        });
    }

    /// Records that the server has sent an event.
    pub(super) fn confirmed(&self) {
        self.change(|watch| watch.confirmed_at = Some(Instant::now()));
    }

    /// Records that the server has ended the watch, so that all changes so far are known.
    pub(super) fn ended(&self) {
        self.change(|watch| {
            watch.is_open = false;
            watch.confirmed_at = Some(Instant::now());
        });
    }

    /// Records that changes may be missing from now on.
    pub(super) fn interrupted(&self) {
        self.change(|watch| watch.is_open = false);
    }

    fn change(&self, change: impl FnOnce(&mut Watch)) {
        change(
            self.readiness
                .lock()
                .watches
                .entry(self.kind.clone())
                .or_default(),
        );
    }
}

impl Drop for WatchState {
    fn drop(&mut self) {
        self.interrupted();
    }
}

/// Writes to the ledger in intervals, so that a refusal, and its end, are noticed without other writes.
pub(super) async fn check_ledger(ledger: Arc<dyn Ledger>, readiness: Readiness, stop: CancellationToken) {
    let mut every = tokio::time::interval(waits::LEDGER_CHECK_INTERVAL);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = every.tick() => {}
        }
        let written = tokio::time::timeout(waits::LEDGER_CHECK_TIMEOUT, ledger.check_writable()).await;
        match written {
            Ok(Err(LedgerError::Closed)) => return,
            Ok(Ok(_)) => readiness.accepted(),
            Ok(Err(error)) => readiness.refused(crate::chain(&error)),
            Err(_) => readiness.refused(format!("no response within {:?}", waits::LEDGER_CHECK_TIMEOUT)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running(kinds: &[&str]) -> (Readiness, Vec<WatchState>) {
        let readiness = Readiness::default();
        let watches = kinds.iter().map(|kind| readiness.watch(kind)).collect();
        readiness.started();
        (readiness, watches)
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_waits_for_the_lists_that_it_names() {
        let readiness = Readiness::default();
        assert_eq!(readiness.reasons(), [NotReady::Starting(Vec::new())]);
        let (a, _b) = (readiness.watch("A"), readiness.watch("B"));
        a.listed();
        assert_eq!(readiness.reasons(), [NotReady::Starting(vec!["B".into()])]);
        readiness.started();
        assert_eq!(readiness.reasons(), []);
        readiness.stops();
        assert_eq!(readiness.reasons(), [NotReady::Stopping]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_open_watch_is_up_to_date_and_an_interrupted_one_is_not_after_a_while() {
        let (readiness, watches) = running(&["A", "B"]);
        let [a, b] = watches.as_slice() else { panic!() };
        for watch in [a, b] {
            watch.listed();
            watch.opened();
        }
        tokio::time::advance(waits::WATCH_TIMEOUT).await;
        assert_eq!(readiness.reasons(), [], "silence alone is no fault");

        a.confirmed();
        a.interrupted();
        let moment = Duration::from_millis(1);
        tokio::time::advance(waits::STALE_AFTER - moment).await;
        assert_eq!(readiness.reasons(), []);
        tokio::time::advance(moment).await;
        let stale = |kind: &str, age| NotReady::Stale {
            kind: kind.into(),
            age,
        };
        assert_eq!(readiness.reasons(), [stale("A", waits::STALE_AFTER)]);
        a.listed();
        a.opened();
        assert_eq!(readiness.reasons(), []);

        // Changes that a silent connection has hidden count from the last event on.
        b.confirmed();
        tokio::time::advance(waits::WATCH_TIMEOUT).await;
        b.interrupted();
        assert_eq!(readiness.reasons(), [stale("B", waits::WATCH_TIMEOUT)]);
        b.opened();
        b.ended();
        assert_eq!(readiness.reasons(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_whose_task_is_gone_is_out_of_date() {
        let (readiness, watches) = running(&["A"]);
        watches[0].opened();
        drop(watches);
        tokio::time::advance(waits::STALE_AFTER).await;
        let [reason] = readiness.reasons().try_into().unwrap();
        let now: Timestamp = "2026-01-02T03:04:05.6Z".parse().unwrap();
        assert_eq!(reason.describe(now), "A: out of date since 2026-01-02T03:03:06Z");
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_lasts_until_the_next_write_and_tells_when_it_began() {
        let (readiness, _) = running(&[]);
        readiness.accepted();
        assert_eq!(readiness.reasons(), []);
        readiness.refused("disk full".into());
        tokio::time::advance(Duration::from_secs(7)).await;
        readiness.refused("read-only".into());
        let refusal = NotReady::Ledger {
            age: Duration::from_secs(7),
            error: "read-only".into(),
        };
        assert_eq!(readiness.reasons(), [refusal]);
        readiness.accepted();
        assert_eq!(readiness.reasons(), []);
    }
}
