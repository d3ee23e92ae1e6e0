//! What is applied to a member: object keys, their order, rendered sets.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::fields::Pointer;

/// Names one object of a cluster, whatever version it is read in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectKey {
    /// API group; empty for the core group.
    pub group: String,
    /// Kind, such as `Deployment`.
    pub kind: String,
    /// Namespace; empty for a cluster-scoped object.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl fmt::Display for ObjectKey {
    /// `Deployment shop/web`, as in `status.problems`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            write!(f, "{} {}", self.kind, self.name)
        } else {
            write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
        }
    }
}

/// When an object is applied, relative to the others of its set. Pruning goes the other way round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// CustomResourceDefinitions: others may be of their kind.
    Definitions,
    /// Namespaces: others live in them.
    Namespaces,
    /// Other cluster-scoped kinds (roles, classes, volumes).
    ClusterScoped,
    /// Everything in a namespace.
    Namespaced,
    /// Webhooks and aggregated APIs: they stand in the way of others, so they come last.
    Interceptors,
}

impl Phase {
    /// The phase of an object; an empty namespace means cluster-scoped. That a namespaced kind lacks its namespace is
    /// found out when the object is addressed: it is then not written at all, so its phase does not matter.
    #[must_use]
    pub fn of(key: &ObjectKey) -> Self {
        match (key.group.as_str(), key.kind.as_str()) {
            ("apiextensions.k8s.io", "CustomResourceDefinition") => Self::Definitions,
            ("", "Namespace") => Self::Namespaces,
            (
                "admissionregistration.k8s.io",
                "MutatingWebhookConfiguration"
                | "ValidatingWebhookConfiguration"
                | "MutatingAdmissionPolicy"
                | "MutatingAdmissionPolicyBinding"
                | "ValidatingAdmissionPolicy"
                | "ValidatingAdmissionPolicyBinding",
            )
            | ("apiregistration.k8s.io", "APIService") => Self::Interceptors,
            _ if key.namespace.is_empty() => Self::ClusterScoped,
            _ => Self::Namespaced,
        }
    }
}

/// One object, serialised once and shared by every cluster that gets the same bytes.
#[derive(Clone, Debug)]
pub struct RenderedObject {
    /// Which object it is.
    pub key: ObjectKey,
    /// `apiVersion` as written, such as `apps/v1`.
    pub api_version: String,
    /// The JSON body of the server-side apply, owner label included.
    pub body: Bytes,
    /// `sha256:` and 64 hex digits of `body`.
    pub digest: String,
    /// How it is written, where that differs from the others.
    pub directives: Directives,
}

/// What the object itself, or its Sync, asks for in the way it is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directives {
    /// It carries `starling.dev/reconcile: disabled`: neither applied nor repaired.
    pub left_alone: bool,
    /// It carries `starling.dev/force: enabled`: made anew where a field is immutable.
    pub recreate: bool,
    /// Fields that are left to others once it exists; `body` is without them.
    pub ignored: Option<Ignored>,
}

/// The fields of one object that are left to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ignored {
    /// The fields, those alone that the object has.
    pub pointers: Vec<Pointer>,
    /// Digest of `pointers`: tells whether they were given up already.
    pub digest: String,
    /// The body with all fields, for making the object.
    pub whole: Bytes,
}

/// The objects of one revision and path, in the order of their [`Phase`], then as rendered.
#[derive(Clone, Debug)]
pub struct RenderedSet {
    /// `sha256:` and 64 hex digits over the digests of all objects, in order.
    pub digest: String,
    /// The objects; no key occurs twice.
    pub objects: Vec<RenderedObject>,
}

/// `sha256:` and 64 hex digits over the digests of all objects, in order.
#[must_use]
pub fn set_digest(objects: &[RenderedObject]) -> String {
    let mut hash = Sha256::new();
    for object in objects {
        hash.update(object.digest.as_bytes());
        hash.update(b"\n");
    }
    format!("sha256:{}", hex::encode(hash.finalize()))
}
