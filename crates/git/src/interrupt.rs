//! Interrupts a blocking call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// Why a call is interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// Its deadline passed.
    Deadline,
    /// No caller waits for it any more.
    Abandoned,
    /// The call received more bytes than allowed.
    Bytes,
}

/// A flag shared by a blocking call, libgit2's callbacks and the future that waits for them.
#[derive(Debug)]
pub(super) struct Interrupt {
    after: Duration,
    deadline: Instant,
    stop: AtomicU8,
}

impl Interrupt {
    /// Creates a flag that is raised automatically after `after`.
    pub(super) fn new(after: Duration) -> Arc<Self> {
        Arc::new(Self {
            after,
            deadline: Instant::now() + after,
            stop: AtomicU8::new(0),
        })
    }

    /// The timeout of the call.
    pub(super) fn after(&self) -> Duration {
        self.after
    }

    /// The time at which the timeout passes.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Raises the flag. The first reason is kept.
    pub(super) fn raise(&self, why: Stop) {
        let code = match why {
            Stop::Deadline => 1,
            Stop::Abandoned => 2,
            Stop::Bytes => 3,
        };
        let _ = self
            .stop
            .compare_exchange(0, code, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// The reason to stop; `None` to continue.
    pub(super) fn stopped(&self) -> Option<Stop> {
        if Instant::now() >= self.deadline {
            self.raise(Stop::Deadline);
        }
        match self.stop.load(Ordering::SeqCst) {
            0 => None,
            1 => Some(Stop::Deadline),
            2 => Some(Stop::Abandoned),
            _ => Some(Stop::Bytes),
        }
    }
}

/// Raises an [`Interrupt`] when the future that waits for the call is dropped. After the end of the call, it has no
/// effect.
#[derive(Debug)]
pub(super) struct StopOnDrop(pub(super) Arc<Interrupt>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.raise(Stop::Abandoned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_is_kept() {
        let interrupt = Interrupt::new(Duration::from_secs(3600));
        assert_eq!(interrupt.stopped(), None);
        interrupt.raise(Stop::Bytes);
        drop(StopOnDrop(Arc::clone(&interrupt)));
        assert_eq!(interrupt.stopped(), Some(Stop::Bytes));
    }

    #[test]
    fn a_passed_deadline_stops() {
        assert_eq!(Interrupt::new(Duration::ZERO).stopped(), Some(Stop::Deadline));
    }
}
