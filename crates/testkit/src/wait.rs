//! Waiting for a condition instead of for time to pass.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Pause between two looks: a test hardly gets slower by it, and a server hardly notices.
const POLL: Duration = Duration::from_millis(25);

/// A condition did not come true in time.
#[derive(Debug, thiserror::Error)]
#[error("waited {waited:?} for {what}; last seen: {last}")]
pub struct NotSeen {
    /// What was waited for.
    pub what: String,
    /// How long.
    pub waited: Duration,
    /// What the last look found.
    pub last: String,
}

/// The answer of one look: what was waited for, or what there is instead.
pub trait Look {
    /// What is waited for.
    type Found;

    /// Splits the answer; the error is the state as text.
    ///
    /// # Errors
    /// What was seen instead.
    fn found(self) -> Result<Self::Found, String>;
}

impl<T> Look for Option<T> {
    type Found = T;

    fn found(self) -> Result<T, String> {
        self.ok_or_else(|| "nothing".to_owned())
    }
}

/// The error is the state seen so far, any type that can be printed.
impl<T, S: Debug> Look for Result<T, S> {
    type Found = T;

    fn found(self) -> Result<T, String> {
        self.map_err(|state| format!("{state:?}"))
    }
}

impl Look for bool {
    type Found = ();

    fn found(self) -> Result<(), String> {
        if self { Ok(()) } else { Err("false".to_owned()) }
    }
}

/// Looks again and again until something is found, at most as long as `within`.
///
/// `look` returns an `Option`, a `bool`, or a `Result` whose error is the state seen instead: the last one
/// makes the better error. A look that hangs counts as time waited.
///
/// # Errors
/// [`NotSeen`] with what was awaited and what was seen last.
pub async fn until<L: Look>(
    within: Duration,
    what: impl Into<String>,
    look: impl AsyncFn() -> L,
) -> Result<L::Found, NotSeen> {
    let start = Instant::now();
    let mut last = "no look has ended".to_owned();
    loop {
        let left = within.saturating_sub(start.elapsed());
        match tokio::time::timeout(left, look()).await.map(Look::found) {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(state)) => last = state,
            Err(_) => {}
        }
        // Looked at here and not through the timeout, which an answer that is there at once always beats.
        if start.elapsed() >= within {
            return Err(NotSeen {
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
    async fn looks_until_found() {
        let looks = Cell::new(0);
        let look = async || {
            looks.set(looks.get() + 1);
            (looks.get() == 3).then_some("here")
        };
        assert_eq!(until(Duration::from_secs(5), "it", look).await.unwrap(), "here");
        assert_eq!(looks.get(), 3);
    }

    #[tokio::test]
    async fn error_tells_the_last_state() {
        let error = until(Duration::from_millis(60), "three clusters", async || {
            Err::<(), _>(vec![1, 2])
        })
        .await
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "waited 60ms for three clusters; last seen: [1, 2]"
        );
    }

    #[tokio::test]
    async fn a_look_that_hangs_is_ended() {
        let hang = async || std::future::pending::<bool>().await;
        let error = until(Duration::from_millis(60), "an answer", hang)
            .await
            .unwrap_err();
        assert_eq!(error.last, "no look has ended");
    }
}
