//! The time at the edge.

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// Gives the time. Everything below the server has it as a parameter.
pub trait Clock: Send + Sync {
    /// Now.
    fn now(&self) -> Timestamp;
}

/// The clock of the runtime: a paused or simulated one too.
#[derive(Debug, Clone, Copy)]
pub struct TokioClock {
    began: Instant,
    at: Timestamp,
}

impl TokioClock {
    /// Returns a clock that shows the time of day and goes on with the runtime's.
    pub fn new() -> Self {
        Self::starting(Timestamp::now())
    }

    /// Returns a clock that shows a time now, and goes on with the runtime's.
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
