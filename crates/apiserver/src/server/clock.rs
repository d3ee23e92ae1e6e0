//! The clock of a server.

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// A source of the time. Everything below the server takes the time as a parameter.
pub trait Clock: Send + Sync {
    /// Returns the current time.
    fn now(&self) -> Timestamp;
}

/// The clock of the Tokio runtime, which may be paused or simulated.
#[derive(Debug, Clone, Copy)]
pub struct TokioClock {
    began: Instant,
    at: Timestamp,
}

impl TokioClock {
    /// Returns a clock that starts at the time of day and advances with the runtime's clock.
    pub fn new() -> Self {
        Self::starting(Timestamp::now())
    }

    /// Returns a clock that starts at a given time and advances with the runtime's clock.
    pub fn starting(at: Timestamp) -> Self {
        Self {
            began: Instant::now(),
            at,
        }
    }
}

impl Default for TokioClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        let passed = SignedDuration::try_from(self.began.elapsed()).unwrap_or_default();
        self.at.checked_add(passed).unwrap_or(self.at)
    }
}
