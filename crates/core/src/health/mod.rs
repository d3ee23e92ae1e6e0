//! Health of applied objects: of one object by the rules of kstatus, and of a whole set.
//!
//! [`of`] is `Compute` of sigs.k8s.io/cli-utils `pkg/kstatus/status` as a function of the object and the time: first
//! the rules for every kind (deletion, a generation that was not observed, `Reconciling` and `Stalled`), then the
//! built-in kinds (`builtin`), then a `Ready` condition. `tests/oracle` runs the library itself, and
//! `tests/health_oracle.rs` compares every result. The only deviation: where the library fails or panics because an
//! object does not have the schema of its kind, the result here is [`Status::Unknown`].
//!
//! [`HealthRecords`] has the objects of a Sync that were found healthy, with their versions. [`judge`] returns the
//! verdict on the others, and [`Cadence`] when the next health check is due.

mod builtin;
mod cadence;
mod counts;
mod fields;
mod records;
mod verdict;

use std::fmt;

use jiff::Timestamp;
use serde_json::Value;

pub use self::cadence::Cadence;
pub use self::counts::counts;
pub use self::records::{Freshness, HealthRecords};
pub use self::verdict::{HealthVerdict, judge, summary, waiting_since};
use crate::object::ObjectId;
use fields::{Malformed, conditions, integer, text};

/// The status of an object, by kstatus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// The object did not reach the state of its spec, and will not without help.
    Failed,
    /// The object does not exist.
    NotFound,
    /// The object is being deleted.
    Terminating,
    /// The object could not be read, or does not have the schema of its kind.
    Unknown,
    /// The object is not in the state of its spec yet.
    InProgress,
    /// The object is in the state of its spec.
    Current,
}

impl Status {
    /// Returns the name of the status in kstatus.
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
    /// The status.
    pub status: Status,
    /// The message; that of a custom resource is from its controller.
    pub message: String,
}

impl Health {
    /// Returns a status with its message.
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

/// Returns the health of an object that was read from a member. Group and kind are those of `key`: items of a list have
/// none.
#[must_use]
pub fn of(key: &ObjectId, object: &Value, now: Timestamp) -> Health {
    compute(key, object, now).unwrap_or_else(|malformed| Health::new(Status::Unknown, malformed.to_string()))
}

fn compute(key: &ObjectId, object: &Value, now: Timestamp) -> Result<Health, Malformed> {
    if let Some(health) = generic(key, object)? {
        return Ok(health);
    }
    if let Some(health) = builtin::of(key, object, now)? {
        return Ok(health);
    }
    Ok(ready(object)?.unwrap_or_else(|| Health::current("Resource is current")))
}

/// Returns the health by the rules for every kind: deletion, an unobserved generation, `Reconciling`, `Stalled`.
fn generic(key: &ObjectId, object: &Value) -> Result<Option<Health>, Malformed> {
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

/// Returns the health by a `Ready` condition, if there is one. `False` does not show whether it can become `True`.
fn ready(object: &Value) -> Result<Option<Health>, Malformed> {
    let health = conditions(object)?
        .into_iter()
        .filter(|condition| condition.type_ == "Ready")
        .find_map(|condition| match condition.status {
            "True" => Some(Health::current("Resource is Ready")),
            "False" | "Unknown" => Some(Health::in_progress(condition.message)),
            _ => None,
        });
    Ok(health)
}
