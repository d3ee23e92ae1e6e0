//! The objects that are applied to a member: their IDs, their order, rendered sets.

use std::fmt;

use crate::secret_values::SecretValues;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use starling_api::{
    DELETIONS, IDENTITY_PREFIX, INSTALLATION, INVENTORY_PREFIX, REMOVALS_PREFIX, SYSTEM_NAMESPACE,
};

use crate::fields::Pointer;

/// The identity of an object on a cluster, independent of the API version, like `ObjMetadata` of cli-utils.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectId {
    /// API group; empty for the core group.
    pub group: String,
    /// Kind, such as `Deployment`.
    pub kind: String,
    /// Namespace; empty for a cluster-scoped object.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl fmt::Display for ObjectId {
    /// Writes `Deployment shop/web`, as in `status.problems`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            write!(f, "{} {}", self.kind, self.name)
        } else {
            write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
        }
    }
}

impl ObjectId {
    /// Returns the kind of the object.
    #[must_use]
    pub fn group_kind(&self) -> GroupKind {
        GroupKind {
            group: self.group.clone(),
            kind: self.kind.clone(),
        }
    }

    /// Reports whether Starling itself keeps the object on a cluster: an inventory, the identity of the installation,
    /// the record of its removals, or the count of its deletions.
    #[must_use]
    pub fn is_of_starling(&self) -> bool {
        self.is_of_account()
            || (self.group.is_empty()
                && self.kind == "ConfigMap"
                && self.namespace == SYSTEM_NAMESPACE
                && ([INVENTORY_PREFIX, REMOVALS_PREFIX, IDENTITY_PREFIX]
                    .iter()
                    .any(|prefix| self.name.starts_with(prefix))
                    || [INSTALLATION, DELETIONS].contains(&self.name.as_str())))
    }

    /// Reports whether `starling cluster add` creates such an object for the account of a Cluster
    /// ([`crate::token::account_name`]): with it, a commit would change the permissions of Starling itself.
    fn is_of_account(&self) -> bool {
        let is_kind = match (self.group.as_str(), self.kind.as_str()) {
            ("", "ServiceAccount") => self.namespace == SYSTEM_NAMESPACE,
            ("rbac.authorization.k8s.io", kind) => {
                ["Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"].contains(&kind)
            }
            _ => false,
        };
        let name = self
            .name
            .trim_end_matches("-role")
            .trim_end_matches("-impersonate");
        let hash = name.strip_prefix("starling-").unwrap_or_default();
        is_kind && hash.len() == 12 && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    }

    /// Reports whether the object is of this kind.
    #[must_use]
    pub fn is_of(&self, kind: &GroupKind) -> bool {
        self.group == kind.group && self.kind == kind.kind
    }
}

/// A kind of objects, independent of the API version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKind {
    /// API group; empty for the core group.
    pub group: String,
    /// Kind, such as `Deployment`.
    pub kind: String,
}

/// The phase in which an object is applied, relative to the others of its set. Deletion has an order of its own:
/// [`DeletionStep`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// CustomResourceDefinitions, since other objects may be of their kind.
    Definitions,
    /// Namespaces, since other objects are in them.
    Namespaces,
    /// Other cluster-scoped kinds (roles, classes, volumes).
    ClusterScoped,
    /// All objects in a namespace.
    Namespaced,
    /// Webhooks and aggregated APIs. They can block other requests, so they come last.
    Interceptors,
}

impl Phase {
    /// Returns the phase of an object; an empty namespace means cluster-scoped. A namespaced kind without a namespace
    /// is rejected when the object is written, so its phase does not matter.
    #[must_use]
    pub fn of(key: &ObjectId) -> Self {
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

/// The API groups of Kubernetes itself. Controllers of other groups run on the cluster, and may be part of the set.
const BUILT_IN: [&str; 21] = [
    "",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "apps",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
];

/// The step in which an object is deleted, relative to the others of its set. The next step begins once the objects of
/// this one are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeletionStep {
    /// Custom resources: an operator that is part of the set runs their finalizers, and needs its permissions and
    /// webhooks for that.
    CustomResources,
    /// Webhooks and aggregated APIs: without their backends they block other requests.
    Interceptors,
    /// Objects in a namespace.
    Namespaced,
    /// Cluster-scoped objects such as roles.
    ClusterScoped,
    /// CustomResourceDefinitions, whose deletion deletes all objects of their kind.
    Definitions,
    /// Namespaces, whose deletion deletes all objects in them.
    Namespaces,
}

impl DeletionStep {
    /// Returns the step of an object.
    #[must_use]
    pub fn of(key: &ObjectId) -> Self {
        if !BUILT_IN.contains(&key.group.as_str()) {
            return Self::CustomResources;
        }
        match Phase::of(key) {
            Phase::Definitions => Self::Definitions,
            Phase::Namespaces => Self::Namespaces,
            Phase::ClusterScoped => Self::ClusterScoped,
            Phase::Namespaced => Self::Namespaced,
            Phase::Interceptors => Self::Interceptors,
        }
    }
}

/// One object, serialised once and shared by every cluster with the same content.
#[derive(Clone, Debug)]
pub struct RenderedObject {
    /// The ID of the object.
    pub key: ObjectId,
    /// `apiVersion` as written, such as `apps/v1`.
    pub api_version: String,
    /// The JSON body of the server-side apply, owner label included.
    pub body: Bytes,
    /// `sha256:` and 64 hex digits of `body`.
    pub digest: String,
    /// The directives for writing the object, if they differ from those of other objects.
    pub directives: Directives,
}

/// The directives for writing an object, by its annotations and its Sync.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directives {
    /// The object has `starling.dev/reconcile: disabled`: it is neither applied nor repaired.
    pub left_alone: bool,
    /// The object has `starling.dev/force: enabled`: it is recreated if a changed field is immutable.
    pub recreate: bool,
    /// The object has values that were encrypted in git; they are not shown, as those of a Secret.
    pub secret: bool,
    /// Fields that are not applied once it exists; `body` is without them.
    pub ignored: Option<Ignored>,
}

/// The ignored fields of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ignored {
    /// The fields that the object has.
    pub pointers: Vec<Pointer>,
    /// The digest of `pointers`, by which it is known whether they were released already.
    pub digest: String,
    /// The body with all fields, to create the object.
    pub whole: Bytes,
}

/// The objects of one revision and path, in the order of their [`Phase`], then as rendered.
#[derive(Clone, Debug)]
pub struct RenderedSet {
    /// `sha256:` and 64 hex digits over the digests of all objects, in order.
    pub digest: String,
    /// The objects; no ID occurs twice.
    pub objects: Vec<RenderedObject>,
    /// The values that no message about the objects may contain.
    pub secrets: SecretValues,
}

impl RenderedObject {
    /// Returns whether the values of the object are not shown.
    #[must_use]
    pub fn is_secret(&self) -> bool {
        self.directives.secret || (self.key.group.is_empty() && self.key.kind == "Secret")
    }
}

/// Returns `sha256:` and 64 hex digits over the digests of all objects, in order.
#[must_use]
pub fn set_digest(objects: &[RenderedObject]) -> String {
    let mut hash = Sha256::new();
    for object in objects {
        hash.update(object.digest.as_bytes());
        hash.update(b"\n");
    }
    format!("sha256:{}", hex::encode(hash.finalize()))
}
