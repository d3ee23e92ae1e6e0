//! Why a request to the management cluster fails, and the limit of each.

use super::super::object_key::ObjectKey;
use crate::controller::waits;

/// Why a request to the management cluster failed.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// It answered with an error, or not in a way that can be read.
    #[error("{action} {object} on the management cluster")]
    Request {
        /// What was tried.
        action: &'static str,
        /// On what.
        object: String,
        /// What came back.
        #[source]
        source: Box<kube::Error>,
    },
    /// It did not answer in time.
    #[error(
        "{action} {object} on the management cluster: no response within {:?}",
        waits::HUB_TIMEOUT
    )]
    Timeout {
        /// What was tried.
        action: &'static str,
        /// On what.
        object: String,
    },
    /// Somebody else's object has the name of one of ours.
    #[error(
        "{action} {object}: an object with this name exists and was not created by Starling; delete or rename it"
    )]
    InTheWay {
        /// What was tried.
        action: &'static str,
        /// On what.
        object: String,
    },
}

impl HubError {
    /// Somebody else's object has the name of one of ours.
    #[must_use]
    pub fn in_the_way(action: &'static str, object: &ObjectKey) -> Self {
        Self::InTheWay {
            action,
            object: object.to_string(),
        }
    }

    /// Whether the management cluster understood the request and will not do it as it is.
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        match self {
            Self::Request { source, .. } => {
                matches!(&**source, kube::Error::Api(status) if matches!(status.code, 400 | 422))
            }
            Self::Timeout { .. } | Self::InTheWay { .. } => false,
        }
    }
}

/// Sends a request within the limit.
pub(super) async fn within<T>(
    action: &'static str,
    object: ObjectKey,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, HubError> {
    match tokio::time::timeout(waits::HUB_TIMEOUT, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(source)) => Err(HubError::Request {
            action,
            object: object.to_string(),
            source: Box::new(source),
        }),
        Err(_) => Err(HubError::Timeout {
            action,
            object: object.to_string(),
        }),
    }
}

/// `None` only where the API server names the object that it does not have. Where a kind is not served, the answer is a
/// 404 too, and it is not about the object.
pub(super) fn present<K>(found: Result<K, HubError>, name: &str) -> Result<Option<K>, HubError> {
    match found {
        Ok(object) => Ok(Some(object)),
        Err(HubError::Request { source, .. }) if is_absence(&source, name) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_absence(error: &kube::Error, name: &str) -> bool {
    let kube::Error::Api(status) = error else {
        return false;
    };
    let named = status
        .details
        .as_ref()
        .is_some_and(|details| details.name == name);
    status.code == 404 && status.reason == "NotFound" && named
}

pub(super) fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

pub(super) fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}
