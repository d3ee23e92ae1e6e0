//! What can go wrong between Starling and a member.

use std::fmt;
use std::time::Duration;

use starling_core::inventory::format::FormatError;
use starling_core::object::ObjectKey;
use thiserror::Error;

/// Any error that may travel between threads.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a request to a member, or a step that needs one, failed.
///
/// `request` says what was tried, such as `apply Deployment shop/web`. `message` is the member's own words: at most
/// 512 bytes, without control characters and without our token; of a Secret only the reason and the field paths.
#[derive(Debug, Error)]
pub enum MemberError {
    /// No client can be made from the kubeconfig.
    #[error("no client for {server}")]
    Client {
        /// The address of the API server.
        server: String,
        /// What is wrong.
        #[source]
        source: BoxError,
    },
    /// No connection, no TLS, no answer in time, the answer was cut off, or a gateway has no API server behind it.
    #[error("{request}: no answer from the cluster")]
    Unreachable {
        /// What was tried.
        request: String,
        /// What happened.
        #[source]
        source: BoxError,
    },
    /// The deadline of the caller came before the request could be made or answered.
    #[error("{request}: the deadline came first")]
    Deadline {
        /// What was tried.
        request: String,
    },
    /// 401: the credentials are not accepted.
    #[error("{request}: the cluster does not accept the credentials")]
    Unauthorized {
        /// What was tried.
        request: String,
    },
    /// 403: the user may not do this, or an admission rule refuses it.
    #[error("{request}: forbidden: {message}")]
    Forbidden {
        /// What was tried.
        request: String,
        /// The member's words.
        message: String,
    },
    /// 429, or 503 with `Retry-After`: the member asks for a pause.
    #[error("{request}: the cluster asks to slow down")]
    Throttled {
        /// What was tried.
        request: String,
        /// How long it wants to be left alone, if it said so.
        retry_after: Option<Duration>,
    },
    /// 404 in the words of a Kubernetes API server: the object, or the namespace around it, does not exist.
    #[error("{request}: not found: {message}")]
    NotFound {
        /// What was tried.
        request: String,
        /// The member's words.
        message: String,
    },
    /// 404 of another form: this path is not served. It says nothing about whether an object exists.
    #[error("{request}: the cluster does not serve this path")]
    NotServed {
        /// What was tried.
        request: String,
    },
    /// 409: other managers hold fields, or the object changed in between.
    #[error("{request}: conflict: {}", conflict_text(.fields, .message))]
    Conflict {
        /// What was tried.
        request: String,
        /// The fields and who holds them; empty if the conflict is of another kind.
        fields: Vec<FieldConflict>,
        /// The member's words.
        message: String,
    },
    /// 410: a paged list took longer than the member keeps its state.
    #[error("{request}: the list expired")]
    Expired {
        /// What was tried.
        request: String,
    },
    /// Any other 4xx, and a 500 that speaks of the object: it is not valid for this cluster.
    #[error("{request}: refused ({code}): {message}")]
    Invalid {
        /// What was tried.
        request: String,
        /// The HTTP status.
        code: u16,
        /// The member's words.
        message: String,
    },
    /// 422: a field that is to be changed cannot be changed.
    #[error("{request}: a field is immutable: {message}; {advice}")]
    Immutable {
        /// What was tried.
        request: String,
        /// The member's words.
        message: String,
        /// What a person can do.
        advice: &'static str,
    },
    /// The object was deleted to be made anew, and is still there.
    #[error("{object}: it is deleted to be made anew and not gone yet{}", waits_for(.finalizers))]
    NotGone {
        /// The object.
        object: ObjectKey,
        /// What it waits for.
        finalizers: Vec<String>,
    },
    /// The definition of the object's kind is there, and the member does not serve the kind yet.
    #[error("{object}: its kind is not there yet: CustomResourceDefinition {definition} {problem}")]
    NotEstablished {
        /// The object.
        object: ObjectKey,
        /// The name of the definition.
        definition: String,
        /// What it lacks.
        problem: String,
    },
    /// The object belongs to somebody else. Nothing was sent.
    #[error("{object}: it belongs to {by}")]
    OwnedByOther {
        /// The object.
        object: ObjectKey,
        /// To whom.
        by: String,
    },
    /// 5xx: the API server answered and failed.
    #[error("{request}: the cluster failed ({code}): {message}")]
    Server {
        /// What was tried.
        request: String,
        /// The HTTP status.
        code: u16,
        /// The member's words.
        message: String,
    },
    /// An answer that no Kubernetes API server gives, redirects included: they are never followed.
    #[error("{request}: the answer is not that of a Kubernetes API server: {problem}")]
    Garbage {
        /// What was tried.
        request: String,
        /// What is wrong with it; does not quote it.
        problem: String,
    },
    /// The answer is larger than is read.
    #[error("{request}: the answer has more than {limit} bytes")]
    TooLarge {
        /// What was tried.
        request: String,
        /// [`super::MemberLimits::answer_bytes`].
        limit: usize,
    },
    /// The member has no such kind; its definition may still be on the way.
    #[error("{object}: the cluster has no kind {} in {api_version}", .object.kind)]
    UnknownKind {
        /// The object.
        object: ObjectKey,
        /// Its `apiVersion`.
        api_version: String,
    },
    /// The object cannot be addressed: a namespace too few or too many, or a name that is none.
    #[error("{object}: {problem}")]
    Address {
        /// The object.
        object: ObjectKey,
        /// What is wrong.
        problem: &'static str,
    },
    /// What is to be impersonated is not the name of a ServiceAccount.
    #[error("{name:?} of namespace {namespace:?} is not the name of a ServiceAccount")]
    Account {
        /// The Sync's namespace.
        namespace: String,
        /// `serviceAccountName`.
        name: String,
    },
    /// The inventory on the member cannot be read; nothing is written, since what is ours is not known.
    #[error(
        "ConfigMap {name} on the cluster is not a readable inventory; without it, objects that are rendered are taken back and nothing else is pruned"
    )]
    Inventory {
        /// Its name in `starling-system`.
        name: String,
        /// Why.
        #[source]
        source: FormatError,
    },
}

impl MemberError {
    /// Whether the cluster could not be reached, as opposed to: it answered.
    #[must_use]
    pub fn is_connectivity(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }

    /// Whether other managers hold fields that were to be set.
    pub(super) fn is_about_fields(&self) -> bool {
        matches!(self, Self::Conflict { fields, .. } if !fields.is_empty())
    }

    /// Whether trying the next object of the same attempt is pointless: the cluster is not there, does not accept us,
    /// wants a pause, or the time is up.
    #[must_use]
    pub fn ends_attempt(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::Unauthorized { .. }
                | Self::Throttled { .. }
                | Self::Deadline { .. }
        )
    }
}

/// A field that another manager holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldConflict {
    /// The path, such as `.spec.replicas`.
    pub field: String,
    /// The manager, such as `kubectl-edit`; empty if the member did not say.
    pub manager: String,
}

impl fmt::Display for FieldConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is held by {}", self.field, self.manager)
    }
}

/// Names at most five fields; a whole object in conflict has dozens.
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
