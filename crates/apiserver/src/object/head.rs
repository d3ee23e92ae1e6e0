//! What the server has to know of an object without reading it.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::times;

/// The part of an object's metadata that requests are decided on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Namespace; empty for a cluster-scoped object.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
    /// UID.
    pub uid: Arc<str>,
    /// Labels, by name.
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// Owner references.
    pub owners: Box<[Owner]>,
    /// Finalizers.
    pub finalizers: Box<[Box<str>]>,
    /// When its deletion began, or was to be over; none if it is not being deleted.
    pub deleting: Option<Timestamp>,
}

/// An owner reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// `apiVersion` of the owner.
    pub api_version: Box<str>,
    /// Kind of the owner.
    pub kind: Box<str>,
    /// Name of the owner.
    pub name: Box<str>,
    /// UID of the owner.
    pub uid: Box<str>,
    /// Whether a foreground deletion of the owner waits for this object.
    pub blocks: bool,
}

impl Head {
    /// Reads the head of an object.
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

    /// The value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        let place = self
            .labels
            .binary_search_by(|(label, _)| (**label).cmp(name))
            .ok()?;
        self.labels.get(place).map(|(_, value)| &**value)
    }

    /// The key of the object in its table, see [`key`].
    pub fn key(&self) -> Box<str> {
        key(&self.namespace, &self.name)
    }

    /// Whether it has a finalizer.
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

/// The key of an object among those of its resource: `namespace/name` or `name`. Its order is that of lists.
pub fn key(namespace: &str, name: &str) -> Box<str> {
    if namespace.is_empty() {
        name.into()
    } else {
        format!("{namespace}/{name}").into()
    }
}
