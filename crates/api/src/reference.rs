//! References to objects in the same namespace. There is no field for another namespace, on purpose.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema;

/// Reference to an object in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct LocalRef {
    /// Name of the object. An empty name counts as no reference.
    #[serde(default)]
    pub name: String,
}

impl LocalRef {
    /// Returns a reference to `name`.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into() }
    }
}

/// Returns the name in an optional reference; `None` if it is empty.
#[must_use]
pub fn referenced(reference: Option<&LocalRef>) -> Option<&str> {
    reference.map(|r| r.name.as_str()).filter(|name| !name.is_empty())
}

/// Reference to a key of a Secret in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretKeyRef {
    /// Name of the Secret.
    #[serde(default)]
    pub name: String,
    /// Key in the Secret. Defaults to the first of `value`, `value.yaml` and `kubeconfig` that exists.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
}

/// Selector of objects of a Sync. An object must match every field that is set; an empty selector matches all
/// objects.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectSelector {
    /// API group of the objects.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// API version of the objects, without the group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Kind of the objects.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Namespace of the objects.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name of the object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Label selector that the labels of the objects must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::LabelSelector>")]
    pub label_selector: Option<LabelSelector>,
}
