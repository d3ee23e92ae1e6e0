//! Health of what is applied: of one object as kstatus reads it, and of a whole set.
//!
//! [`of`] is `Compute` of sigs.k8s.io/cli-utils `pkg/kstatus/status` as a function of the object and the time:
//! first what holds for every kind (being deleted, a generation that nobody observed, `Reconciling` and `Stalled`),
//! then the kinds that Kubernetes brings (`builtin`), then a `Ready` condition. `tests/oracle` asks the library itself, and
//! `tests/health_oracle.rs` compares every answer. The only deviation: where the library fails or panics because an
//! object has not the form of its kind, the answer here is [`Status::Unknown`].
//!
//! [`Watched`] remembers which objects of a Sync were found healthy and in which version; [`judge`] makes one verdict of
//! those that were not, and [`Cadence`] says when to look again.

mod builtin;
mod cadence;
mod counts;
mod fields;
mod verdict;
mod watched;

use std::fmt;

use jiff::Timestamp;
use serde_json::Value;

pub use self::cadence::Cadence;
pub use self::counts::counts;
pub use self::verdict::{Verdict, judge, summary, waiting_since};
pub use self::watched::{Read, Watched};
use crate::object::ObjectKey;
use fields::{Malformed, conditions, integer, text};

/// How an object stands, in the words of kstatus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// It did not get where its spec wants it, and will not without help.
    Failed,
    /// It is not there.
    NotFound,
    /// It is being deleted.
    Terminating,
    /// Nothing can be told: it could not be read, or has not the form of its kind.
    Unknown,
    /// It is on its way.
    InProgress,
    /// It is what its spec says.
    Current,
}

impl Status {
    /// The word that kstatus has for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "Failed",
            Self::NotFound => "NotFound",
            Self::Terminating => "Terminating",
            Self::Unknown => "Unknown",
            Self::InProgress => "InProgress",
            Self::Current => "Current",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The health of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// How it stands.
    pub status: Status,
    /// Why, for people. Of a custom resource these are its controller's words.
    pub message: String,
}

impl Health {
    /// A status with its explanation.
    #[must_use]
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
        }
    }

    fn current(message: impl Into<String>) -> Self {
        Self::new(Status::Current, message)
    }

    fn in_progress(message: impl Into<String>) -> Self {
        Self::new(Status::InProgress, message)
    }

    fn failed(message: impl Into<String>) -> Self {
        Self::new(Status::Failed, message)
    }
}

/// The health of an object as read from a member. Group and kind are those of `key`: items of a list do not say theirs.
#[must_use]
pub fn of(key: &ObjectKey, object: &Value, now: Timestamp) -> Health {
    compute(key, object, now).unwrap_or_else(|malformed| Health::new(Status::Unknown, malformed.to_string()))
}

fn compute(key: &ObjectKey, object: &Value, now: Timestamp) -> Result<Health, Malformed> {
    if let Some(health) = generic(key, object)? {
        return Ok(health);
    }
    if let Some(health) = builtin::of(key, object, now)? {
        return Ok(health);
    }
    Ok(ready(object)?.unwrap_or_else(|| Health::current("Resource is current")))
}

/// What every kind may say: that it is being deleted, that nobody looked at its spec yet, `Reconciling`, `Stalled`.
fn generic(key: &ObjectKey, object: &Value) -> Result<Option<Health>, Malformed> {
    if text(object, &["metadata", "deletionTimestamp"])?.is_some_and(|time| !time.is_empty()) {
        let health = Health::new(Status::Terminating, "Resource scheduled for deletion");
        return Ok(Some(health));
    }
    if let Some(generation) = integer(object, &["metadata", "generation"])?
        && let Some(observed) = integer(object, &["status", "observedGeneration"])?
        && observed != generation
    {
        return Ok(Some(Health::in_progress(format!(
            "{} generation is {generation}, but latest observed generation is {observed}",
            key.kind
        ))));
    }
    for condition in conditions(object)? {
        match (condition.type_, condition.status) {
            ("Reconciling", "True") => return Ok(Some(Health::in_progress(condition.message))),
            ("Stalled", "True") => return Ok(Some(Health::failed(condition.message))),
            _ => {}
        }
    }
    Ok(None)
}

/// What a `Ready` condition says, if there is one. Whether `False` can become `True` cannot be told from it.
fn ready(object: &Value) -> Result<Option<Health>, Malformed> {
    let said = conditions(object)?
        .into_iter()
        .filter(|condition| condition.type_ == "Ready")
        .find_map(|condition| match condition.status {
            "True" => Some(Health::current("Resource is Ready")),
            "False" | "Unknown" => Some(Health::in_progress(condition.message)),
            _ => None,
        });
    Ok(said)
}
