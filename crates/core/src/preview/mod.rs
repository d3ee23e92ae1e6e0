//! Previews: the differences between the live objects of a cluster and the applied ones, and clusters by equal
//! differences.
//!
//! The applied objects are the response of a dry run on the member, so they include its defaults, its admission and the
//! fields of other managers. Both sides are made canonical first: fields that an API server writes are no difference.

mod difference;
mod groups;

use serde::Serialize;
use serde_json::Value;

use crate::object::ObjectId;

pub use difference::{canonical, difference};
pub use groups::{ClusterPreview, Distinct, Failing, Noted, Overview};

/// One field that changes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FieldChange {
    /// The path, such as `.spec.template.spec.containers[name="web"].image`.
    pub path: String,
    /// The present value, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Value>,
    /// The new value, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Value>,
}

/// The change of an object.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "action")]
pub enum PreviewChange {
    /// The object is created.
    Create,
    /// Some of its fields change.
    Update {
        /// The fields, in the order of their paths.
        fields: Vec<FieldChange>,
    },
    /// The object is deleted and recreated, since a field that changes is immutable.
    Recreate,
    /// The object is deleted.
    Delete,
}

/// An object that changes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ObjectChange {
    /// The entry of the group.
    pub entry: String,
    /// The ID of the object.
    #[serde(flatten)]
    pub key: ObjectId,
    /// The change.
    #[serde(flatten)]
    pub change: PreviewChange,
}

/// A failure of an apply.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Failure {
    /// The entry of the group; empty if the failure is of the whole cluster.
    pub entry: String,
    /// The message.
    pub message: String,
}
