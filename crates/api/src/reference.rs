//! References to objects of the same namespace. There is no field for another namespace, on purpose.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema;

/// Names an object of the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct LocalRef {
    /// Name of the object; empty means none.
    #[serde(default)]
    pub name: String,
}

impl LocalRef {
    /// A reference to `name`.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into() }
    }
}

/// The name behind an optional reference; an empty one counts as none.
#[must_use]
pub fn referenced(reference: Option<&LocalRef>) -> Option<&str> {
    reference.map(|r| r.name.as_str()).filter(|name| !name.is_empty())
}

/// Names a Secret and, if the key is not the usual one, the key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretKeyRef {
    /// Name of the Secret.
    #[serde(default)]
    pub name: String,
    /// Key of the Secret; empty: the first of `value`, `value.yaml`, `kubeconfig` that is there.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
}

/// Which of a Sync's objects something is about; what is empty matches all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectSelector {
    /// API group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Kind.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Namespace.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Labels of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::LabelSelector>")]
    pub label_selector: Option<LabelSelector>,
}
