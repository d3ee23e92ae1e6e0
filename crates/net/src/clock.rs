//! The current date and time.
//!
//! Waits use tokio's clock, which has no dates. This clock is for times that are stored and compared with those of
//! other programs. The clock is injected, so that a simulation can set the time, forward and back, as happens to real
//! clocks.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use starling_core::clock_jumps::{ClockJumps, is_far_ahead};
use tokio::time::Instant;

/// The clock of the runtime, for rate limits, which so follow simulated time as waits do.
#[derive(Clone, Debug)]
pub struct RuntimeClock {
    start: Instant,
}

impl RuntimeClock {
    /// Creates a clock that starts now.
    #[must_use]
    pub fn start() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl governor::clock::Clock for RuntimeClock {
    type Instant = Duration;

    fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

/// A readable clock, which notices its own jumps. Clones share what they noticed.
#[derive(Clone)]
pub struct Clock {
    read: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    watched: Arc<Mutex<Watched>>,
}

/// Stored times that lie far ahead and are remembered: one for each object that a wrong clock wrote.
const REMEMBERED: usize = 10_000;

/// A reading of the wall clock and of the monotonic clock, and the jumps so far.
#[derive(Default)]
struct Watched {
    last: Option<(Timestamp, Instant)>,
    jumps: ClockJumps,
    /// When this process first met the stored times that lay far ahead.
    met: BTreeMap<Timestamp, Timestamp>,
}

impl Clock {
    /// Returns the clock of the system.
    #[must_use]
    pub fn system() -> Self {
        Self::new(Timestamp::now)
    }

    /// Creates a clock that returns the result of `read`.
    #[must_use]
    pub fn new(read: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self {
            read: Arc::new(read),
            watched: Arc::default(),
        }
    }

    /// Returns the current time in milliseconds: with a finer time, a status would differ after a round trip.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        let now = (self.read)();
        self.watch(now);
        Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
    }

    /// Returns the jumps that this process noticed. Each reading of the clock is compared with the monotonic clock.
    #[must_use]
    pub fn jumps(&self) -> ClockJumps {
        self.watch((self.read)());
        self.watched().jumps.clone()
    }

    /// Returns a time that is stored elsewhere. One that lies far ahead cannot have been written by a clock that was
    /// right, and what waits for it would wait that long: the time at which this process met it first takes its place.
    #[must_use]
    pub fn believed(&self, stored: Timestamp) -> Timestamp {
        let now = self.now();
        if !is_far_ahead(stored, now) {
            return stored;
        }
        let mut watched = self.watched();
        if watched.met.len() >= REMEMBERED {
            watched.met.retain(|stored, _| is_far_ahead(*stored, now));
        }
        if watched.met.len() >= REMEMBERED {
            return now;
        }
        let met = watched.met.entry(stored).or_insert(now);
        if is_far_ahead(*met, now) {
            // The clock was wrong then, too.
            *met = now;
        }
        *met
    }

    fn watch(&self, now: Timestamp) {
        let mut watched = self.watched();
        let at = Instant::now();
        let Some((before, since)) = watched.last else {
            watched.last = Some((now, at));
            return;
        };
        // Without a jump the first reading stays, so that small differences add up.
        if watched
            .jumps
            .observe(before, now, at.saturating_duration_since(since))
        {
            tracing::warn!(%now, "the clock was set");
            watched.last = Some((now, at));
        }
    }

    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Windows of rollouts use local time, even on a machine without time zones: the program includes them.
    #[test]
    fn time_zones_are_bundled() {
        let berlin = jiff::tz::TimeZoneDatabase::bundled()
            .get("Europe/Berlin")
            .unwrap();
        let summer: Timestamp = "2026-07-01T10:00:00Z".parse().unwrap();
        assert_eq!(berlin.to_datetime(summer).hour(), 12);
    }

    #[test]
    fn times_are_truncated_to_milliseconds() {
        let clock = Clock::new(|| "2026-01-02T03:04:05.678912Z".parse().unwrap());
        assert_eq!(clock.now().to_string(), "2026-01-02T03:04:05.678Z");
    }

    /// Guards against a wait of a year for a time that a wrong clock wrote.
    #[test]
    fn a_time_far_ahead_is_replaced_with_the_time_when_it_was_met() {
        let second = Arc::new(std::sync::atomic::AtomicI64::new(0));
        let shown = Arc::clone(&second);
        let at = |second: i64| Timestamp::from_second(1_800_000_000 + second).unwrap();
        let clock = Clock::new(move || at(shown.load(std::sync::atomic::Ordering::SeqCst)));
        let year = 365 * 86_400;
        for (now, stored, believed) in [
            (0, -5, -5),
            (0, 300, 300),
            (0, year, 0),
            (60, year, 0),
            (60, year + 1, 60),
            (year, year, year),
            // Met while the clock was still ahead.
            (7200, year + 2, 7200),
            (90, year + 2, 90),
            (100, year + 2, 90),
        ] {
            second.store(now, std::sync::atomic::Ordering::SeqCst);
            assert_eq!(clock.clone().believed(at(stored)), at(believed), "{now} {stored}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn jumps_are_noticed_between_any_two_readings() {
        let off = Arc::new(std::sync::atomic::AtomicI64::new(0));
        let (shown, start) = (Arc::clone(&off), Instant::now());
        let clock = Clock::new(move || {
            let offset = shown.load(std::sync::atomic::Ordering::SeqCst);
            let second = i64::try_from(start.elapsed().as_secs()).unwrap_or_default();
            Timestamp::from_second(1_800_000_000 + offset + second).unwrap()
        });
        let since = clock.now();
        tokio::time::advance(Duration::from_secs(30)).await;
        assert!(clock.jumps().is_empty());
        off.store(3600, std::sync::atomic::Ordering::SeqCst);
        let now = clock.now();
        assert_eq!(now.duration_since(since).as_secs(), 3630);
        let jumps = clock.clone().jumps();
        assert_eq!(jumps.elapsed(since, now), Duration::from_secs(30));
        tokio::time::advance(Duration::from_secs(30)).await;
        assert_eq!(clock.jumps(), jumps, "counted once");
        assert_eq!(jumps.elapsed(since, clock.now()), Duration::from_secs(60));
    }
}
