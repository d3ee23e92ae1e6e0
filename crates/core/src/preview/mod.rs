//! What would change: the difference between the objects of a cluster and what they would be, and clusters by equal difference.
//!
//! What they would be is the answer of the member's own dry run, so its defaults, its admission and the fields of others are in
//! it. Both sides are made canonical first: what an API server writes by itself is no difference.

mod difference;
mod groups;

use serde::Serialize;
use serde_json::Value;

use crate::object::ObjectKey;

pub use difference::{canonical, difference};
pub use groups::{ClusterPreview, Distinct, Failing, Noted, Overview};

/// One field that changes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FieldChange {
    /// Where: `.spec.template.spec.containers[name="web"].image`.
    pub path: String,
    /// What is there; absent: nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Value>,
    /// What would be there; absent: nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Value>,
}

/// What would happen to an object.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "action")]
pub enum Change {
    /// It would be made.
    Create,
    /// Fields of it would change.
    Update {
        /// Which, in order of their paths.
        fields: Vec<FieldChange>,
    },
    /// It would be deleted and made anew, since a field that changes is immutable.
    Recreate,
    /// It would be deleted.
    Delete,
}

/// An object that would change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ObjectChange {
    /// Entry of the group.
    pub entry: String,
    /// Which object.
    #[serde(flatten)]
    pub key: ObjectKey,
    /// What would happen to it.
    #[serde(flatten)]
    pub change: Change,
}

/// Something that would fail.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Failure {
    /// Entry of the group; empty where it is about the whole cluster.
    pub entry: String,
    /// What would fail, and why.
    pub message: String,
}
