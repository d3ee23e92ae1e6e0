//! What time it is, as people and other programs tell it.
//!
//! Waits are counted by tokio's clock, which knows nothing of calendars; this is for what is written down and compared with
//! what others wrote. It is handed in where it is needed, so that a simulation can say what time it is, and set it forward and
//! back as happens to real ones.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

/// The runtime's clock, for the arithmetic of rates: paces so follow simulated time where the waits do.
#[derive(Clone, Debug)]
pub(crate) struct RuntimeClock {
    start: Instant,
}

impl RuntimeClock {
    /// A clock that begins now.
    pub(crate) fn start() -> Self {
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

/// A clock that can be read.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// The system's clock.
    #[must_use]
    pub fn system() -> Self {
        Self::new(Timestamp::now)
    }

    /// A clock that shows what `read` returns.
    #[must_use]
    pub fn new(read: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// The present, to the millisecond: finer times would make equal statuses differ after a round trip.
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

    /// Windows of rollouts are told in local time, also where the machine knows of no zones: they come with the program.
    #[test]
    fn zones_come_with_the_program() {
        let berlin = jiff::tz::TimeZoneDatabase::bundled()
            .get("Europe/Berlin")
            .unwrap();
        let summer: Timestamp = "2026-07-01T10:00:00Z".parse().unwrap();
        assert_eq!(berlin.to_datetime(summer).hour(), 12);
    }

    #[test]
    fn what_is_finer_than_a_millisecond_is_cut_off() {
        let clock = Clock::new(|| "2026-01-02T03:04:05.678912Z".parse().unwrap());
        assert_eq!(clock.now().to_string(), "2026-01-02T03:04:05.678Z");
    }
}
