//! The current date and time.
//!
//! Waits use tokio's clock, which has no dates. This clock is for times that are stored and compared with those of
//! other programs. The clock is injected, so that a simulation can set the time, forward and back, as happens to real
//! clocks.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
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

/// A readable clock.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// Returns the clock of the system.
    #[must_use]
    pub fn system() -> Self {
        Self::new(Timestamp::now)
    }

    /// Creates a clock that returns the result of `read`.
    #[must_use]
    pub fn new(read: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// Returns the current time in milliseconds: with a finer time, a status would differ after a round trip.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        let now = (self.0)();
        Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
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
}
