//! Objects of cluster-scoped kinds whose manifest has a namespace.
//!
//! A kube-apiserver clears `metadata.namespace` of such an object, so published manifests have it, and kustomize sets
//! it on custom resources of every kind. The namespace is a part of [`ObjectId`]. It is therefore cleared before
//! anything is compared with an ID: for kinds of Kubernetes in the render, and for other kinds once the scope is known
//! from a definition or from the discovery of the member. A render that is not for a member has the IDs as written;
//! [`aliases`] are what such an ID may be on a member.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::Value;
use thiserror::Error;

use crate::digest;
use crate::object::{ObjectId, Phase, RenderedObject, RenderedSet, set_digest};

/// Two manifests of a render are one object, because its kind is cluster-scoped.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{first} and {second} are one object, because the kind is cluster-scoped and metadata.namespace has no effect: remove one of them, or change its metadata.name"
)]
pub struct SameObject {
    /// The ID of the first manifest, as written.
    pub first: ObjectId,
    /// The ID of the second one, as written.
    pub second: ObjectId,
}

/// The cluster-scoped kinds of Kubernetes 1.35 that are stored, by group, from the discovery of a kube-apiserver with
/// all API groups.
const CLUSTER_SCOPED: [(&str, &[&str]); 12] = [
    ("", &["Namespace", "Node", "PersistentVolume"]),
    (
        "admissionregistration.k8s.io",
        &[
            "MutatingAdmissionPolicy",
            "MutatingAdmissionPolicyBinding",
            "MutatingWebhookConfiguration",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
            "ValidatingWebhookConfiguration",
        ],
    ),
    ("apiextensions.k8s.io", &["CustomResourceDefinition"]),
    ("apiregistration.k8s.io", &["APIService"]),
    (
        "certificates.k8s.io",
        &["CertificateSigningRequest", "ClusterTrustBundle"],
    ),
    (
        "flowcontrol.apiserver.k8s.io",
        &["FlowSchema", "PriorityLevelConfiguration"],
    ),
    ("networking.k8s.io", &["IPAddress", "IngressClass", "ServiceCIDR"]),
    ("node.k8s.io", &["RuntimeClass"]),
    (
        "rbac.authorization.k8s.io",
        &["ClusterRole", "ClusterRoleBinding"],
    ),
    ("resource.k8s.io", &["DeviceClass", "ResourceSlice"]),
    ("scheduling.k8s.io", &["PriorityClass"]),
    (
        "storage.k8s.io",
        &[
            "CSIDriver",
            "CSINode",
            "StorageClass",
            "VolumeAttachment",
            "VolumeAttributesClass",
        ],
    ),
];

/// Reports whether Kubernetes itself defines the kind, and it is cluster-scoped.
#[must_use]
pub fn is_cluster_scoped(group: &str, kind: &str) -> bool {
    CLUSTER_SCOPED
        .iter()
        .any(|(of, kinds)| *of == group && kinds.contains(&kind))
}

/// Returns the IDs that a rendered object may have on a member: the one as written, and the one without a namespace, in
/// case the kind is cluster-scoped. No object of a namespaced kind has the latter.
pub fn aliases(key: &ObjectId) -> impl Iterator<Item = ObjectId> + use<> {
    let without = (!key.namespace.is_empty()).then(|| without_namespace(key));
    std::iter::once(key.clone()).chain(without)
}

/// Returns the ID without its namespace.
#[must_use]
pub fn without_namespace(key: &ObjectId) -> ObjectId {
    ObjectId {
        namespace: String::new(),
        ..key.clone()
    }
}

/// Clears the namespace of each object of a cluster-scoped kind, in its ID and its body. `None`: no object has one.
///
/// # Errors
/// [`SameObject`] if two objects differ only in such a namespace.
pub fn cleared(
    set: &RenderedSet,
    is_cluster_scoped: impl Fn(&RenderedObject) -> bool,
) -> Result<Option<RenderedSet>, SameObject> {
    let is_concerned =
        |object: &RenderedObject| !object.key.namespace.is_empty() && is_cluster_scoped(object);
    if !set.objects.iter().any(is_concerned) {
        return Ok(None);
    }
    let cleared = set.objects.iter().map(|object| {
        if is_concerned(object) {
            clear(object)
        } else {
            object.clone()
        }
    });
    let mut objects: Vec<RenderedObject> = cleared.collect();
    let written = set.objects.iter().map(|object| &object.key);
    unique(objects.iter().map(|object| &object.key).zip(written))?;
    objects.sort_by_key(|object| Phase::of(&object.key));
    Ok(Some(RenderedSet {
        digest: set_digest(&objects),
        objects,
        secrets: set.secrets.clone(),
    }))
}

/// Checks that no two objects have the same ID; each is given with the ID as written.
///
/// # Errors
/// [`SameObject`], with both IDs as written.
pub fn unique<'a>(keys: impl Iterator<Item = (&'a ObjectId, &'a ObjectId)>) -> Result<(), SameObject> {
    let mut seen: BTreeMap<&ObjectId, &ObjectId> = BTreeMap::new();
    for (key, written) in keys {
        if let Some(first) = seen.insert(key, written) {
            return Err(SameObject {
                first: first.clone(),
                second: written.clone(),
            });
        }
    }
    Ok(())
}

fn clear(object: &RenderedObject) -> RenderedObject {
    let mut object = object.clone();
    object.key.namespace.clear();
    object.body = without_field(&object.body);
    object.digest = digest::of_bytes(&object.body);
    if let Some(ignored) = &mut object.directives.ignored {
        ignored.whole = without_field(&ignored.whole);
    }
    object
}

/// Returns a body without `metadata.namespace`. A rendered body is JSON; if it were not, the member would refuse it.
fn without_field(body: &Bytes) -> Bytes {
    let Ok(mut value) = serde_json::from_slice::<Value>(body) else {
        return body.clone();
    };
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("namespace");
    }
    value.to_string().into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::object::{Directives, Ignored};

    fn object(kind: &str, namespace: &str, name: &str) -> RenderedObject {
        let body = json!({"metadata": {"name": name, "namespace": namespace}}).to_string();
        RenderedObject {
            key: ObjectId {
                group: "example.test".into(),
                kind: kind.into(),
                namespace: namespace.into(),
                name: name.into(),
            },
            api_version: "example.test/v1".into(),
            digest: digest::of_bytes(body.as_bytes()),
            body: body.into(),
            directives: Directives::default(),
        }
    }

    fn set(objects: Vec<RenderedObject>) -> RenderedSet {
        RenderedSet {
            digest: set_digest(&objects),
            objects,
            secrets: Default::default(),
        }
    }

    fn is_wide(object: &RenderedObject) -> bool {
        object.key.kind == "Wide"
    }

    #[test]
    fn only_objects_of_cluster_scoped_kinds_lose_their_namespace() {
        let narrow = object("Narrow", "shop", "n");
        assert!(cleared(&set(vec![narrow.clone()]), is_wide).unwrap().is_none());
        let mut wide = object("Wide", "shop", "w");
        wide.directives.ignored = Some(Ignored {
            pointers: Vec::new(),
            digest: String::new(),
            whole: wide.body.clone(),
        });
        let before = set(vec![narrow.clone(), wide]);
        let after = cleared(&before, is_wide).unwrap().unwrap();
        let keys: Vec<String> = after
            .objects
            .iter()
            .map(|object| object.key.to_string())
            .collect();
        assert_eq!(keys, ["Wide w", "Narrow shop/n"], "the order of the phases");
        let [wide, kept] = after.objects.as_slice() else {
            panic!("{after:?}")
        };
        let body = r#"{"metadata":{"name":"w"}}"#;
        assert_eq!(wide.body, body);
        assert_eq!(wide.directives.ignored.as_ref().unwrap().whole, body);
        assert_eq!(wide.digest, digest::of_bytes(body.as_bytes()));
        assert_eq!((&kept.body, &kept.digest), (&narrow.body, &narrow.digest));
        assert_ne!(after.digest, before.digest);
        assert!(
            cleared(&after, is_wide).unwrap().is_none(),
            "nothing is left to clear"
        );
    }

    #[test]
    fn two_manifests_of_one_object_are_refused_and_both_are_named() {
        for (first, second) in [("a", "b"), ("", "b"), ("a", "")] {
            let objects = vec![object("Wide", first, "w"), object("Wide", second, "w")];
            let error = cleared(&set(objects.clone()), is_wide).unwrap_err().to_string();
            for object in &objects {
                assert!(error.contains(&object.key.to_string()), "{error}");
            }
            assert!(
                error.contains("metadata.namespace") && error.contains("remove one of them"),
                "{error}"
            );
        }
        let others = vec![
            object("Wide", "a", "w"),
            object("Narrow", "a", "w"),
            object("Wide", "b", "v"),
        ];
        assert!(cleared(&set(others), is_wide).is_ok());
    }

    #[test]
    fn an_alias_has_no_namespace() {
        let key = object("Wide", "a", "w").key;
        let plain = without_namespace(&key);
        assert_eq!(aliases(&key).collect::<Vec<_>>(), [key, plain.clone()]);
        assert_eq!(aliases(&plain).collect::<Vec<_>>(), [plain]);
    }

    #[test]
    fn kinds_of_kubernetes_are_distinguished_by_their_group() {
        assert!(is_cluster_scoped("", "Namespace"));
        assert!(!is_cluster_scoped("example.test", "Namespace"));
        assert!(!is_cluster_scoped("rbac.authorization.k8s.io", "Role"));
    }
}
