//! Converts the objects of a build to the bytes that are applied to a cluster.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use starling_api::{DISABLED, ENABLED, FORCE, OWNER_LABEL, RECONCILE};
use starling_core::controlled_label::LabelRules;
use starling_core::ids::OwnerLabel;
use starling_core::object::{Directives, ObjectId, Phase, RenderedObject, RenderedSet, set_digest};
use starling_core::scope::{self, SameObject};
use starling_core::secret_values::SecretValues;

use super::manifest::{self, Identity, MissingField};
use super::substitute::substitute;
use super::{Manifests, RenderError, secret};

/// Maximum text that substitution may produce for one cluster: the output limit of a build, so that values do not
/// enlarge a small build beyond it.
const SUBSTITUTED_BYTES: usize = 64 << 20;

/// Fields of `metadata` that the API server writes. In a manifest, they are remains of an export, and some of them make
/// a server-side apply fail.
const SERVER_FIELDS: [&str; 6] = [
    "managedFields",
    "resourceVersion",
    "uid",
    "creationTimestamp",
    "generation",
    "selfLink",
];

/// Creates a rendered set: substitutes, labels, orders and serialises. Pure: equal input gives equal bytes.
///
/// `values` are the parameters of a cluster. Other names are not replaced, `$${NAME}` is a literal `${NAME}`, and
/// without any values the text is unchanged. `owner` is the value of the label [`OWNER_LABEL`] of every object.
///
/// # Errors
/// An object without a name after substitution, an object that Starling itself keeps on a cluster, two objects with the
/// same identity, a label that `labels` refuses, `metadata` or labels that are not a mapping, or a text that becomes
/// too large.
pub fn finish_within(
    labels: &LabelRules,
    manifests: &Manifests,
    values: &BTreeMap<String, String>,
    owner: &OwnerLabel,
) -> Result<RenderedSet, RenderError> {
    let mut remaining = SUBSTITUTED_BYTES;
    let mut objects = Vec::with_capacity(manifests.objects.len());
    let (mut secrets, mut keys, mut written) = (Vec::new(), BTreeSet::new(), Vec::new());
    for (index, object) in manifests.objects.iter().enumerate() {
        let mut object = object.clone();
        substitute(&mut object, values, &mut remaining).map_err(|_| RenderError::TooLarge {
            what: "the substituted text in bytes",
            limit: SUBSTITUTED_BYTES,
        })?;
        let mut identity =
            manifest::identity(&object).map_err(|MissingField(missing)| RenderError::Incomplete {
                origin: "after substitution".to_owned(),
                document: index + 1,
                missing,
            })?;
        written.push(identity.key.clone());
        clear_namespace(&mut object, &mut identity.key);
        if identity.key.is_of_starling() {
            return Err(RenderError::OfStarling { key: identity.key });
        }
        prepare(&mut object, &identity.key, owner, labels)?;
        secret::values(&identity.key, &object, &mut secrets, &mut keys);
        let has_opened = contains(&object, &manifests.opened);
        if has_opened {
            texts(&object, &manifests.opened, &mut secrets);
        }
        let mut rendered = serialise(&object, identity);
        rendered.directives.secret = has_opened;
        objects.push(rendered);
    }
    let keys_as_written = objects.iter().map(|object| &object.key).zip(&written);
    scope::unique(keys_as_written).map_err(duplicate)?;
    objects.sort_by_key(|object| Phase::of(&object.key));
    Ok(RenderedSet {
        digest: set_digest(&objects),
        objects,
        secrets: manifests.opened.with(secrets).with_keys(keys),
    })
}

/// Creates a rendered set whose objects have no label that grants rights; see [`finish_within`].
///
/// # Errors
/// As [`finish_within`].
pub fn finish(
    manifests: &Manifests,
    values: &BTreeMap<String, String>,
    owner: &OwnerLabel,
) -> Result<RenderedSet, RenderError> {
    finish_within(&LabelRules::default(), manifests, values, owner)
}

/// Clears the namespace of an object whose kind Kubernetes defines as cluster-scoped, as a kube-apiserver does. Those
/// of custom resources are cleared when the scope of their kind is known, for a member.
fn clear_namespace(object: &mut Value, key: &mut ObjectId) {
    if key.namespace.is_empty() || !scope::is_cluster_scoped(&key.group, &key.kind) {
        return;
    }
    key.namespace.clear();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("namespace");
    }
}

fn duplicate(same: SameObject) -> RenderError {
    if same.first == same.second {
        RenderError::Duplicate { key: same.first }
    } else {
        RenderError::SameObject(same)
    }
}

/// Returns whether a value of an object was encrypted, or contains one that was.
fn contains(value: &Value, opened: &SecretValues) -> bool {
    if opened.is_empty() {
        return false;
    }
    match value {
        Value::Object(fields) => fields.values().any(|value| contains(value, opened)),
        Value::Array(items) => items.iter().any(|item| contains(item, opened)),
        Value::String(text) => opened.are_in(text),
        Value::Number(number) => opened.are_in(&number.to_string()),
        Value::Null | Value::Bool(_) => false,
    }
}

/// Adds the texts that contain a value that was encrypted: substitution may have changed the value.
fn texts(value: &Value, opened: &SecretValues, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.values().for_each(|value| texts(value, opened, found)),
        Value::Array(items) => items.iter().for_each(|item| texts(item, opened, found)),
        Value::String(text) if opened.are_in(text) => {
            found.push(text.clone());
        }
        Value::Number(number) if opened.are_in(&number.to_string()) => found.push(number.to_string()),
        _ => {}
    }
}

fn prepare(
    object: &mut Value,
    key: &ObjectId,
    owner: &OwnerLabel,
    rules: &LabelRules,
) -> Result<(), RenderError> {
    let not_a_mapping = |field| RenderError::NotAMapping {
        key: key.clone(),
        field,
    };
    let fields = object
        .as_object_mut()
        .ok_or_else(|| not_a_mapping("the object"))?;
    fields.remove("status");
    secret::normalise(key, fields);
    let metadata = fields
        .get_mut("metadata")
        .and_then(Value::as_object_mut)
        .ok_or_else(|| not_a_mapping("metadata"))?;
    for field in SERVER_FIELDS {
        metadata.remove(field);
    }
    let labels = metadata.entry("labels").or_insert(Value::Null);
    if labels.is_null() {
        *labels = Value::Object(Map::new());
    }
    let labels = labels
        .as_object_mut()
        .ok_or_else(|| not_a_mapping("metadata.labels"))?;
    if let Some(label) = rules.refused(key, labels) {
        return Err(RenderError::ControlledLabel {
            key: key.clone(),
            label: label.to_owned(),
        });
    }
    labels.insert(OWNER_LABEL.to_owned(), Value::String(owner.as_str().to_owned()));
    Ok(())
}

fn serialise(object: &Value, identity: Identity) -> RenderedObject {
    let body = object.to_string().into_bytes();
    let digest = digest(Sha256::digest(&body).as_slice());
    let Identity { key, api_version } = identity;
    RenderedObject {
        key,
        api_version,
        body: body.into(),
        digest,
        directives: directives(object),
    }
}

fn directives(object: &Value) -> Directives {
    let annotations = &object["metadata"]["annotations"];
    Directives {
        secret: false,
        left_alone: annotations[RECONCILE] == DISABLED,
        recreate: annotations[FORCE] == ENABLED,
        ignored: None,
    }
}

fn digest(hash: &[u8]) -> String {
    format!("sha256:{}", hex::encode(hash))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn manifests(objects: Vec<Value>) -> Manifests {
        Manifests {
            objects,
            plain: false,
            opened: SecretValues::default(),
        }
    }

    fn body(object: &RenderedObject) -> Value {
        serde_json::from_slice(&object.body).expect("JSON")
    }

    fn object(api: &str, kind: &str, namespace: &str, name: &str) -> Value {
        json!({"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": namespace}})
    }

    const RBAC: &str = "rbac.authorization.k8s.io/v1";

    #[test]
    fn tenant_what_was_encrypted_is_secret_whatever_its_kind() {
        let mut manifests = manifests(vec![
            json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"pin": "a hunter2 b"}}),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "plain"}}),
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"a": "c2VjcmV0LXZhbHVl"}}),
        ]);
        manifests.opened = SecretValues::new(["hunter2".into()]);
        let set = finish(&manifests, &BTreeMap::new(), &OwnerLabel::default()).unwrap();
        let secret = set.objects.iter().filter(|object| object.is_secret());
        let mut kinds: Vec<&str> = secret.map(|object| object.key.kind.as_str()).collect();
        kinds.sort_unstable();
        assert_eq!(kinds, ["Secret", "Widget"]);
        for text in ["got hunter2", "c2VjcmV0LXZhbHVl", "secret-value"] {
            assert!(set.secrets.are_in(text), "{text}");
        }
        assert!(!set.secrets.are_in("plain"));
    }

    #[test]
    fn objects_are_labelled_stripped_and_digested() {
        let exported = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": "a", "namespace": "n", "labels": null, "annotations": {"x": "y"},
                "managedFields": [], "resourceVersion": "1", "uid": "u", "creationTimestamp": null,
                "generation": 3, "selfLink": "/x",
            },
            "data": {"status": "kept"},
            "status": {"phase": "x"},
        });
        let set = finish(
            &manifests(vec![exported]),
            &BTreeMap::new(),
            &OwnerLabel::new("0123"),
        )
        .expect("set");
        let only = &set.objects[0];
        assert_eq!(
            body(only),
            json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": "a", "namespace": "n", "labels": {"starling.dev/owner": "0123"}, "annotations": {"x": "y"}},
                "data": {"status": "kept"},
            })
        );
        assert_eq!(only.digest, digest(Sha256::digest(&only.body).as_slice()));
        assert_eq!(only.digest.len(), "sha256:".len() + 64);
        assert_eq!(
            (only.api_version.as_str(), only.key.to_string().as_str()),
            ("v1", "ConfigMap n/a")
        );
    }

    #[test]
    fn an_object_that_starling_keeps_itself_is_refused() {
        for (api, kind, namespace, name, refused) in [
            (
                "v1",
                "ConfigMap",
                "starling-system",
                "starling-inventory-0f",
                true,
            ),
            (
                "v1",
                "ConfigMap",
                "starling-system",
                "starling-installation",
                true,
            ),
            (
                "v1",
                "ConfigMap",
                "starling-system",
                "starling-hub-0123456789abcdef",
                true,
            ),
            ("v1", "ConfigMap", "starling-system", "starling-deletions", true),
            ("v1", "ConfigMap", "starling-system", "settings", false),
            ("v1", "ConfigMap", "shop", "starling-inventory-0f", false),
            ("v1", "Secret", "starling-system", "starling-inventory-0f", false),
            ("v1", "Namespace", "", "starling-system", false),
            // What `starling cluster add` creates.
            (
                "v1",
                "ServiceAccount",
                "starling-system",
                "starling-0123456789ab",
                true,
            ),
            ("v1", "ServiceAccount", "shop", "starling-0123456789ab", false),
            ("v1", "ServiceAccount", "starling-system", "starling", false),
            (RBAC, "Role", "starling-system", "starling-0123456789ab", true),
            (
                RBAC,
                "RoleBinding",
                "fleet",
                "starling-0123456789ab-impersonate",
                true,
            ),
            (RBAC, "ClusterRole", "", "starling-0123456789ab", true),
            (RBAC, "ClusterRoleBinding", "", "starling-0123456789ab-role", true),
            (RBAC, "ClusterRole", "", "starling-approver", false),
        ] {
            let set = finish(
                &manifests(vec![object(api, kind, namespace, name)]),
                &BTreeMap::new(),
                &OwnerLabel::new("o"),
            );
            let found = matches!(set, Err(RenderError::OfStarling { .. }));
            assert_eq!(found, refused, "{kind} {namespace}/{name}");
        }
        // Parameters of the cluster decide about names, too.
        let values = BTreeMap::from([("NAME".to_owned(), "inventory-0f".to_owned())]);
        let object = object("v1", "ConfigMap", "starling-system", "starling-${NAME}");
        let set = finish(&manifests(vec![object]), &values, &OwnerLabel::new("o"));
        assert!(matches!(set, Err(RenderError::OfStarling { .. })));
    }

    #[test]
    fn tenant_a_label_that_grants_rights_is_refused_also_from_a_value_of_a_cluster() {
        const LABEL: &str = "pod-security.kubernetes.io/enforce";
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "a", "labels": {LABEL: "${LEVEL}"}}});
        let values = |level: &str| BTreeMap::from([("LEVEL".to_owned(), level.to_owned())]);
        let finish = |labels: &LabelRules, level: &str| {
            let manifests = manifests(vec![namespace.clone()]);
            finish_within(labels, &manifests, &values(level), &OwnerLabel::new("o"))
        };
        let strict = LabelRules::default();
        assert!(finish(&strict, "restricted").is_ok());
        let refused = finish(&strict, "privileged").map_or_else(|error| error.to_string(), |_| String::new());
        assert!(
            refused.contains(LABEL) && refused.contains("--allow-controlled-label"),
            "{refused}"
        );
        let allowed = LabelRules::Listed(starling_core::controlled_label::LabelLists {
            allowed: [LABEL.parse().expect("a label")].into(),
            ..Default::default()
        });
        assert!(finish(&allowed, "privileged").is_ok());
    }

    #[test]
    fn directives_are_read_from_annotations() {
        let annotated = |annotations: Value| {
            let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "annotations": annotations}});
            let set = finish(&manifests(vec![object]), &BTreeMap::new(), &OwnerLabel::new("o")).expect("set");
            let Directives {
                left_alone,
                recreate,
                secret: _,
                ignored,
            } = set.objects[0].directives.clone();
            assert_eq!(ignored, None);
            (left_alone, recreate)
        };
        assert_eq!(annotated(json!({})), (false, false));
        assert_eq!(
            annotated(json!({"starling.dev/reconcile": "disabled"})),
            (true, false)
        );
        assert_eq!(
            annotated(json!({"starling.dev/reconcile": "enabled"})),
            (false, false)
        );
        assert_eq!(annotated(json!({"starling.dev/force": "enabled"})), (false, true));
    }

    #[test]
    fn a_foreign_owner_label_is_replaced() {
        let copied = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "a", "labels": {"starling.dev/owner": "other", "app": "x"}}});
        let set = finish(
            &manifests(vec![copied]),
            &BTreeMap::new(),
            &OwnerLabel::new("mine"),
        )
        .expect("set");
        assert_eq!(
            body(&set.objects[0])["metadata"]["labels"],
            json!({"starling.dev/owner": "mine", "app": "x"})
        );
    }

    #[test]
    fn a_cluster_scoped_kind_of_kubernetes_has_no_namespace() {
        let role = |namespace, name| object(RBAC, "ClusterRole", namespace, name);
        let finish = |objects| finish(&manifests(objects), &BTreeMap::new(), &OwnerLabel::new("o"));
        let with = finish(vec![
            role("shop", "r"),
            object("x.io/v1", "ClusterRole", "shop", "r"),
        ])
        .expect("set");
        let keys: Vec<String> = with.objects.iter().map(|object| object.key.to_string()).collect();
        assert_eq!(keys, ["ClusterRole r", "ClusterRole shop/r"]);
        assert!(body(&with.objects[0])["metadata"].get("namespace").is_none());
        let mut without = role("", "r");
        if let Some(metadata) = without["metadata"].as_object_mut() {
            metadata.remove("namespace");
        }
        let without = finish(vec![without]).expect("set");
        assert_eq!(with.objects[0].digest, without.objects[0].digest);
        let error = finish(vec![role("a", "r"), role("b", "r")]).expect_err("one object");
        let text = error.to_string();
        assert!(
            text.contains("ClusterRole a/r and ClusterRole b/r") && text.contains("metadata.namespace"),
            "{text}"
        );
        let error = finish(vec![role("a", "r"), role("a", "r")]).expect_err("twice");
        assert!(matches!(error, RenderError::Duplicate { .. }), "{error}");
    }

    #[test]
    fn the_order_is_by_phase_and_otherwise_as_rendered() {
        let set = finish(
            &manifests(vec![
                object(
                    "admissionregistration.k8s.io/v1",
                    "ValidatingWebhookConfiguration",
                    "",
                    "hook",
                ),
                object("apps/v1", "Deployment", "n", "z"),
                object("v1", "ConfigMap", "n", "a"),
                object("rbac.authorization.k8s.io/v1", "ClusterRole", "", "role"),
                object("v1", "Namespace", "", "n"),
                object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "crd"),
            ]),
            &BTreeMap::new(),
            &OwnerLabel::new("o"),
        )
        .expect("set");
        let names: Vec<_> = set
            .objects
            .iter()
            .map(|object| object.key.name.as_str())
            .collect();
        assert_eq!(names, ["crd", "n", "role", "z", "a", "hook"]);
    }

    #[test]
    fn equal_values_give_equal_bytes_and_different_values_do_not() {
        let input = manifests(vec![json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "n"}, "spec": {"replicas": "${R}"}})]);
        let render = |r: &str| {
            finish(
                &input,
                &BTreeMap::from([("R".to_owned(), r.to_owned())]),
                &OwnerLabel::new("o"),
            )
            .expect("set")
        };
        let (one, again, two) = (render("1"), render("1"), render("2"));
        assert_eq!(
            (&one.digest, &one.objects[0].body),
            (&again.digest, &again.objects[0].body)
        );
        assert_ne!(one.digest, two.digest);
        assert_eq!(body(&two.objects[0])["spec"]["replicas"], 2);
    }

    #[test]
    fn the_set_digest_depends_on_what_is_in_it() {
        let empty = finish(&manifests(vec![]), &BTreeMap::new(), &OwnerLabel::new("o"))
            .expect("set")
            .digest;
        let one = finish(
            &manifests(vec![object("v1", "ConfigMap", "n", "a")]),
            &BTreeMap::new(),
            &OwnerLabel::new("o"),
        );
        assert_ne!(empty, one.expect("set").digest);
    }

    #[test]
    fn objects_with_equal_identity_after_substitution_are_an_error() {
        let input = manifests(vec![
            object("v1", "ConfigMap", "n", "${A}"),
            object("v1", "ConfigMap", "n", "x"),
        ]);
        let error = finish(
            &input,
            &BTreeMap::from([("A".to_owned(), "x".to_owned())]),
            &OwnerLabel::new("o"),
        )
        .expect_err("same");
        assert_eq!(error.to_string(), "ConfigMap n/x occurs twice");
    }

    #[test]
    fn an_empty_name_after_substitution_is_an_error() {
        let input = manifests(vec![object("v1", "ConfigMap", "n", "${A}")]);
        let error = finish(
            &input,
            &BTreeMap::from([("A".to_owned(), String::new())]),
            &OwnerLabel::new("o"),
        )
        .expect_err("no name");
        assert!(error.to_string().contains("metadata.name"), "{error}");
    }

    #[test]
    fn labels_that_are_not_a_mapping_are_an_error() {
        let input = manifests(vec![json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "a", "labels": ["x"]}})]);
        let error = finish(&input, &BTreeMap::new(), &OwnerLabel::new("o")).expect_err("labels");
        assert_eq!(error.to_string(), "ConfigMap a: metadata.labels is not a mapping");
    }
}
