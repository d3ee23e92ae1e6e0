//! The metadata that the server needs without parsing an object.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::times;

/// The part of an object's metadata on which requests and controllers decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The namespace; empty for a cluster-scoped object.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
    /// The UID.
    pub uid: Arc<str>,
    /// The labels, sorted by name.
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// The owner references.
    pub owners: Box<[Owner]>,
    /// The finalizers.
    pub finalizers: Box<[Box<str>]>,
    /// The deletion timestamp; `None` if the object is not being deleted.
    pub deleting: Option<Timestamp>,
}

/// An owner reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The `apiVersion` of the owner.
    pub api_version: Box<str>,
    /// The kind of the owner.
    pub kind: Box<str>,
    /// The name of the owner.
    pub name: Box<str>,
    /// The UID of the owner.
    pub uid: Box<str>,
    /// Whether a foreground deletion of the owner waits for this object (`blockOwnerDeletion`).
    pub blocks: bool,
}

impl Head {
    /// Reads the metadata of an object.
    pub fn of(object: &Value) -> Self {
        let metadata = &object["metadata"];
        let text = |name: &str| metadata[name].as_str().unwrap_or_default();
        let list = |name: &str| metadata[name].as_array().map(Vec::as_slice).unwrap_or_default();
        let labels = metadata["labels"].as_object().into_iter().flatten();
        Self {
            namespace: text("namespace").into(),
            name: text("name").into(),
            uid: text("uid").into(),
            labels: labels
                .filter_map(|(name, value)| Some((name.as_str().into(), value.as_str()?.into())))
                .collect(),
            owners: list("ownerReferences").iter().map(Owner::of).collect(),
            finalizers: list("finalizers")
                .iter()
                .filter_map(|one| Some(one.as_str()?.into()))
                .collect(),
            deleting: metadata["deletionTimestamp"].as_str().and_then(times::parse),
        }
    }

    /// Returns the value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        let place = self
            .labels
            .binary_search_by(|(label, _)| (**label).cmp(name))
            .ok()?;
        self.labels.get(place).map(|(_, value)| &**value)
    }

    /// Returns the key of the object in its table, see [`key`].
    pub fn key(&self) -> Box<str> {
        key(&self.namespace, &self.name)
    }

    /// Returns whether the object has a finalizer.
    pub fn has_finalizer(&self, name: &str) -> bool {
        self.finalizers.iter().any(|one| **one == *name)
    }
}

impl Owner {
    /// Reads an owner reference.
    pub fn of(reference: &Value) -> Self {
        let text = |name: &str| reference[name].as_str().unwrap_or_default().into();
        Self {
            api_version: text("apiVersion"),
            kind: text("kind"),
            name: text("name"),
            uid: text("uid"),
            blocks: reference["blockOwnerDeletion"] == true,
        }
    }
}

/// Returns the key of an object in the table of its resource: `namespace/name` or `name`. Lists are in the order of
/// keys.
pub fn key(namespace: &str, name: &str) -> Box<str> {
    if namespace.is_empty() {
        name.into()
    } else {
        format!("{namespace}/{name}").into()
    }
}
