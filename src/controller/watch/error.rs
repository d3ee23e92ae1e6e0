//! Errors of a watch, and the deadline of its requests.

use std::time::Duration;

use kube::core::Status;

/// The error of a list or of a watch.
#[derive(Debug, thiserror::Error)]
pub(super) enum WatchError {
    /// The management cluster returned an error or an invalid response, or the connection was lost.
    #[error("cannot {action}")]
    Request {
        /// `list` or `watch`.
        action: &'static str,
        /// The error.
        #[source]
        source: Box<kube::Error>,
    },
    /// The management cluster did not respond in time.
    #[error("cannot {action}: no response within {after:?}")]
    Timeout {
        /// `list` or `watch`.
        action: &'static str,
        /// The timeout.
        after: Duration,
    },
    /// The management cluster ended the watch with an error, in most cases because it no longer has the events.
    #[error("watch ended by the server: {} {}", .0.code, .0.message)]
    Refused(Box<Status>),
    /// Neither an event nor the end of the watch arrived in time: the connection is lost, and nothing said so.
    #[error("no event and no end of the watch within {0:?}")]
    Silent(Duration),
    /// The watch ended as soon as it began. Without a wait, the next one would follow in a loop.
    #[error("watch ended as soon as it began")]
    EndedAtOnce,
    /// A list or an event has no resource version.
    #[error("no resourceVersion in the response")]
    NoVersion,
}

impl WatchError {
    /// Creates [`Self::Request`].
    pub(super) fn request(action: &'static str, source: kube::Error) -> Self {
        Self::Request {
            action,
            source: Box::new(source),
        }
    }

    /// Returns the interruption of a watch that may continue from a version.
    pub(super) fn resuming_at(self, version: String) -> WatchInterruption {
        WatchInterruption {
            error: self,
            resume_at: Some(version),
        }
    }
}

/// The interruption of a watch.
#[derive(Debug)]
pub(super) struct WatchInterruption {
    /// The error.
    pub(super) error: WatchError,
    /// The version to continue from. `None`: list first. A watch that cannot begin is followed by a list, since the
    /// management cluster may have been away, and may come back as it was before.
    pub(super) resume_at: Option<String>,
}

impl From<WatchError> for WatchInterruption {
    fn from(error: WatchError) -> Self {
        Self {
            error,
            resume_at: None,
        }
    }
}

/// Sends a request with a deadline for its whole response; for a watch, until the response begins.
pub(super) async fn within<T>(
    action: &'static str,
    after: Duration,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, WatchError> {
    match tokio::time::timeout(after, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(source)) => Err(WatchError::request(action, source)),
        Err(_) => Err(WatchError::Timeout { action, after }),
    }
}
