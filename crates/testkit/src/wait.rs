//! Waiting for a condition instead of sleeping.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Pause between two checks: short for a test, and a small load for a server.
const POLL: Duration = Duration::from_millis(25);

/// A condition was not met in time.
#[derive(Debug, thiserror::Error)]
#[error("waited {waited:?} for {what}; last state: {last}")]
pub struct TimedOut {
    /// The condition.
    pub what: String,
    /// The timeout.
    pub waited: Duration,
    /// The state at the last check.
    pub last: String,
}

/// The result of one check: the awaited value, or the current state.
pub trait Outcome {
    /// The awaited value.
    type Found;

    /// Converts the result; the error is the state as text.
    ///
    /// # Errors
    /// The current state.
    fn found(self) -> Result<Self::Found, String>;
}

impl<T> Outcome for Option<T> {
    type Found = T;

    fn found(self) -> Result<T, String> {
        self.ok_or_else(|| "nothing".to_owned())
    }
}

/// The error is the current state, of any type with `Debug`.
impl<T, S: Debug> Outcome for Result<T, S> {
    type Found = T;

    fn found(self) -> Result<T, String> {
        self.map_err(|state| format!("{state:?}"))
    }
}

impl Outcome for bool {
    type Found = ();

    fn found(self) -> Result<(), String> {
        if self { Ok(()) } else { Err("false".to_owned()) }
    }
}

/// Repeats a check until it succeeds, for at most `within`.
///
/// `check` returns an `Option`, a `bool`, or a `Result` whose error is the current state, which makes the better error.
/// A hanging check is cancelled at the timeout.
///
/// # Errors
/// [`TimedOut`] with the condition and the last state.
pub async fn until<L: Outcome>(
    within: Duration,
    what: impl Into<String>,
    check: impl AsyncFn() -> L,
) -> Result<L::Found, TimedOut> {
    let start = Instant::now();
    let mut last = "no check has finished".to_owned();
    loop {
        let remaining = within.saturating_sub(start.elapsed());
        match tokio::time::timeout(remaining, check()).await.map(Outcome::found) {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(state)) => last = state,
            Err(_) => {}
        }
        // Checked here in addition to the timeout, which never expires for a check that returns immediately.
        if start.elapsed() >= within {
            return Err(TimedOut {
                what: what.into(),
                waited: within,
                last,
            });
        }
        tokio::time::sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn checks_until_found() {
        let checks = Cell::new(0);
        let check = async || {
            checks.set(checks.get() + 1);
            (checks.get() == 3).then_some("here")
        };
        assert_eq!(until(Duration::from_secs(5), "it", check).await.unwrap(), "here");
        assert_eq!(checks.get(), 3);
    }

    #[tokio::test]
    async fn the_error_contains_the_last_state() {
        let error = until(Duration::from_millis(60), "three clusters", async || {
            Err::<(), _>(vec![1, 2])
        })
        .await
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "waited 60ms for three clusters; last state: [1, 2]"
        );
    }

    #[tokio::test]
    async fn a_hanging_check_is_cancelled() {
        let hang = async || std::future::pending::<bool>().await;
        let error = until(Duration::from_millis(60), "a response", hang)
            .await
            .unwrap_err();
        assert_eq!(error.last, "no check has finished");
    }
}
