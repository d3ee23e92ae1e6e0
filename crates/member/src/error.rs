//! Errors of requests to a member.

use std::fmt;
use std::time::Duration;

use starling_core::apply::RecreationObstacle;
use starling_core::inventory::format::FormatError;
use starling_core::object::ObjectId;
use starling_core::scope::SameObject;
use thiserror::Error;

/// Any error that may travel between threads.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a request to a member, or a step that needs one, failed.
///
/// `request` names the operation, such as `apply Deployment shop/web`. `message` is the message of the member: at most
/// 512 bytes, without control characters and without the token of Starling; for a Secret, only the reason and the field
/// paths.
#[derive(Debug, Error)]
pub enum MemberError {
    /// No client can be created from the kubeconfig.
    #[error("no client for {server}")]
    Client {
        /// The address of the API server.
        server: String,
        /// The error in it.
        #[source]
        source: BoxError,
    },
    /// No connection, no TLS, no response in time, a truncated response, or a gateway without an API server behind it.
    #[error("{request}: no response from the cluster")]
    Unreachable {
        /// The operation.
        request: String,
        /// The cause.
        #[source]
        source: BoxError,
    },
    /// The deadline of the caller passed before the request could be sent or a response arrived.
    #[error("{request}: the deadline passed")]
    Deadline {
        /// The operation.
        request: String,
    },
    /// 401: the credentials are not accepted.
    #[error("{request}: the cluster does not accept the credentials")]
    Unauthorized {
        /// The operation.
        request: String,
    },
    /// 403: the user lacks the permission, or an admission rule denies the request.
    #[error("{request}: forbidden: {message}")]
    Forbidden {
        /// The operation.
        request: String,
        /// The message of the member.
        message: String,
    },
    /// 429, or 503 with `Retry-After`: the member asks for a pause.
    #[error("{request}: the cluster asks to slow down")]
    Throttled {
        /// The operation.
        request: String,
        /// The requested pause, if there is one.
        retry_after: Option<Duration>,
    },
    /// 404 with a `Status` of a Kubernetes API server: the object or its namespace does not exist.
    #[error("{request}: not found: {message}")]
    NotFound {
        /// The operation.
        request: String,
        /// The message of the member.
        message: String,
    },
    /// 404 in another form: this path is not served. Whether an object exists is not known.
    #[error("{request}: the cluster does not serve this path")]
    NotServed {
        /// The operation.
        request: String,
    },
    /// 409: other managers own fields, or the object changed in between.
    #[error("{request}: conflict: {}", conflict_text(.fields, .message))]
    Conflict {
        /// The operation.
        request: String,
        /// The fields and their managers; empty for any other conflict.
        fields: Vec<FieldConflict>,
        /// The message of the member.
        message: String,
    },
    /// 410: a paged list took longer than the member keeps its resource version.
    #[error("{request}: the list expired")]
    Expired {
        /// The operation.
        request: String,
    },
    /// Any other 4xx, and a 500 about the object: the object is not valid for this cluster.
    #[error("{request}: refused ({code}): {message}")]
    Invalid {
        /// The operation.
        request: String,
        /// The HTTP status.
        code: u16,
        /// The message of the member.
        message: String,
    },
    /// 422: a changed field is immutable.
    #[error("{request}: a field is immutable: {message}; {}", advice(.obstacle.as_ref()))]
    Immutable {
        /// The operation.
        request: String,
        /// The message of the member.
        message: String,
        /// Why the object is not recreated; `None`: nobody has tried.
        obstacle: Option<RecreationObstacle>,
    },
    /// The object was deleted in order to be recreated, and still exists.
    #[error("{object}: deleted in order to be recreated, and not gone yet{}", waits_for(.finalizers))]
    NotGone {
        /// The object.
        object: ObjectId,
        /// The finalizers that the object waits for.
        finalizers: Vec<String>,
    },
    /// The object was deleted, and still exists. What is deleted after it waits.
    #[error("{object}: deleted, and not gone yet{}; objects that it may need are deleted after it", waits_for(.finalizers))]
    Terminating {
        /// The object.
        object: ObjectId,
        /// The finalizers that the object waits for.
        finalizers: Vec<String>,
    },
    /// The definition of the object's kind exists, but the member does not serve the kind yet.
    #[error("{object}: its kind is not served yet: CustomResourceDefinition {definition} {problem}")]
    NotEstablished {
        /// The object.
        object: ObjectId,
        /// The name of the definition.
        definition: String,
        /// Why it is not established.
        problem: String,
    },
    /// The object has another owner. Nothing was sent.
    #[error("{object}: it belongs to {by}")]
    OwnedByOther {
        /// The object.
        object: ObjectId,
        /// The other owner.
        by: String,
    },
    /// The deletion of an object would delete objects in it that stay, or that another Sync is deleting by its own
    /// rules. Nothing was sent.
    #[error("{object}: not deleted, because {why}")]
    InUse {
        /// The object.
        object: ObjectId,
        /// What is in it.
        why: String,
    },
    /// The member remembers a write that the management cluster does not know, or the management cluster was found to
    /// be set back before. Nothing was sent.
    #[error("{finding}")]
    SetBack {
        /// The finding.
        finding: String,
    },
    /// There is no number for a write. Nothing was sent.
    #[error("not written: no write number from the management cluster")]
    NoNumber {
        /// The cause.
        #[source]
        source: BoxError,
    },
    /// 5xx: the API server failed.
    #[error("{request}: the cluster failed ({code}): {message}")]
    Server {
        /// The operation.
        request: String,
        /// The HTTP status.
        code: u16,
        /// The message of the member.
        message: String,
    },
    /// A response that no Kubernetes API server sends, redirects included: they are never followed.
    #[error("{request}: the response is not that of a Kubernetes API server: {problem}")]
    Garbage {
        /// The operation.
        request: String,
        /// The error in the response; does not quote it.
        problem: String,
    },
    /// The response is larger than the limit.
    #[error("{request}: the response has more than {limit} bytes")]
    TooLarge {
        /// The operation.
        request: String,
        /// [`super::MemberLimits::response_bytes`].
        limit: usize,
    },
    /// The member does not serve the kind; its definition may not be applied yet.
    #[error("{object}: the cluster has no kind {} in {api_version}", .object.kind)]
    UnknownKind {
        /// The object.
        object: ObjectId,
        /// Its `apiVersion`.
        api_version: String,
    },
    /// The object cannot be addressed: a missing or unexpected namespace, or an invalid name.
    #[error("{object}: {problem}")]
    Address {
        /// The object.
        object: ObjectId,
        /// The error in it.
        problem: &'static str,
    },
    /// Two manifests of a render are one object. Nothing was sent.
    #[error(transparent)]
    SameObject(#[from] SameObject),
    /// The account to impersonate is not the name of a ServiceAccount.
    #[error("{name:?} of namespace {namespace:?} is not the name of a ServiceAccount")]
    Account {
        /// The Sync's namespace.
        namespace: String,
        /// `serviceAccountName`.
        name: String,
    },
    /// The inventory on the member cannot be read. Nothing is written, because it is not known which objects Starling
    /// owns.
    #[error(
        "ConfigMap {name} on the cluster is not a readable inventory; without it, rendered objects are adopted again and nothing else is pruned"
    )]
    Inventory {
        /// Its name in `starling-system`.
        name: String,
        /// The cause.
        #[source]
        source: FormatError,
    },
}

impl MemberError {
    /// Whether the cluster could not be reached, as opposed to an error response.
    #[must_use]
    pub fn is_connectivity(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }

    /// Whether other managers own fields of the apply.
    pub(super) fn is_about_fields(&self) -> bool {
        matches!(self, Self::Conflict { fields, .. } if !fields.is_empty())
    }

    /// Whether the next object of the same attempt would fail too: the cluster is unreachable, rejects the credentials
    /// or asks for a pause, the deadline has passed, or nothing may be written.
    #[must_use]
    pub fn ends_attempt(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::Unauthorized { .. }
                | Self::Throttled { .. }
                | Self::Deadline { .. }
                | Self::SetBack { .. }
                | Self::NoNumber { .. }
        )
    }
}

/// A field that another manager owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldConflict {
    /// The path, such as `.spec.replicas`.
    pub field: String,
    /// The manager, such as `kubectl-edit`; empty if the member does not name it.
    pub manager: String,
}

impl fmt::Display for FieldConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is owned by {}", self.field, self.manager)
    }
}

/// Lists at most five fields: a whole object in conflict has dozens.
fn advice(obstacle: Option<&RecreationObstacle>) -> String {
    obstacle.map_or_else(
        || "revert the change, or delete the object".to_owned(),
        ToString::to_string,
    )
}

fn conflict_text(fields: &[FieldConflict], message: &str) -> String {
    const NAMED: usize = 5;
    if fields.is_empty() {
        return message.to_owned();
    }
    let mut text = fields
        .iter()
        .take(NAMED)
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ");
    if fields.len() > NAMED {
        text.push_str(&format!(" and {} more", fields.len() - NAMED));
    }
    text
}

fn waits_for(finalizers: &[String]) -> String {
    if finalizers.is_empty() {
        return String::new();
    }
    format!(": it waits for {}", finalizers.join(", "))
}
