//! Errors of requests to the management cluster, and the timeout of each request.

use crate::controller::object_key::ObjectKey;
use crate::controller::waits;

/// The error of a request to the management cluster.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The management cluster returned an error or an invalid response.
    #[error("{action} {object} on the management cluster")]
    Request {
        /// The attempted action.
        action: &'static str,
        /// The object of the action.
        object: String,
        /// The error.
        #[source]
        source: Box<kube::Error>,
    },
    /// The management cluster did not respond in time.
    #[error(
        "{action} {object} on the management cluster: no response within {:?}",
        waits::HUB_TIMEOUT
    )]
    Timeout {
        /// The attempted action.
        action: &'static str,
        /// The object of the action.
        object: String,
    },
    /// An object of another owner has the name of an object that Starling has to create.
    #[error(
        "{action} {object}: an object with this name exists and was not created by Starling; delete or rename it"
    )]
    InTheWay {
        /// The attempted action.
        action: &'static str,
        /// The object of the action.
        object: String,
    },
    /// A value in an object is not one that Starling writes.
    #[error("{object} on the management cluster: key {key} is not readable")]
    Unreadable {
        /// The object.
        object: String,
        /// The key under `data`.
        key: &'static str,
        /// The problem.
        #[source]
        source: serde_json::Error,
    },
    /// A person took the approval of clusters that leave back, and the watch has not delivered that yet.
    #[error(
        "SyncGroup {group} on the management cluster: the approval of clusters that leave was taken back"
    )]
    ApprovalTakenBack {
        /// The group.
        group: String,
    },
    /// The management cluster was set back, or may have been, since the pass began.
    #[error("SyncGroup {group}: the management cluster may have been set back since it was read")]
    SetBackMeanwhile {
        /// The group.
        group: String,
    },
    /// Other processes wrote the object again and again.
    #[error("{action} {object} on the management cluster: other processes write it at the same time")]
    Contended {
        /// The attempted action.
        action: &'static str,
        /// The object of the action.
        object: String,
    },
}

impl HubError {
    /// Creates [`Self::Contended`].
    #[must_use]
    pub fn contended(action: &'static str, object: &ObjectKey) -> Self {
        Self::Contended {
            action,
            object: object.to_string(),
        }
    }

    /// Creates [`Self::InTheWay`].
    #[must_use]
    pub fn in_the_way(action: &'static str, object: &ObjectKey) -> Self {
        Self::InTheWay {
            action,
            object: object.to_string(),
        }
    }

    /// Returns whether the management cluster refused the request for lack of a permission, or does not serve the kind.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        matches!(self.code(), Some(401 | 403 | 404))
    }

    /// Returns whether the management cluster rejected the request as invalid, so that a retry cannot succeed.
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        matches!(self.code(), Some(400 | 422))
    }

    /// Returns the code of the response; `None` without a response from the API server.
    fn code(&self) -> Option<u16> {
        match self {
            Self::Request { source, .. } => match &**source {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            Self::Timeout { .. }
            | Self::InTheWay { .. }
            | Self::ApprovalTakenBack { .. }
            | Self::SetBackMeanwhile { .. }
            | Self::Unreadable { .. }
            | Self::Contended { .. } => None,
        }
    }
}

/// Sends a request with the timeout.
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

/// Returns `None` only if the API server names the missing object. If a kind is not served, the response is also a 404,
/// and it says nothing about the object.
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
