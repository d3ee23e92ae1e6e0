//! What a kind does that others do not: the switches of the API server's registry strategies, and what they set.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::defaults::TEMPLATE_GENERATION;
use super::{Form, Resource, Version};
use crate::object::names::NameRule;
use crate::schema;
use crate::state::State;
use crate::verbs::Target;

/// The switches of a kind.
#[derive(Debug, Clone, Copy)]
pub struct Strategy {
    /// What its names may look like.
    pub names: NameRule,
    /// Whether `metadata.generation` counts the changes of what is wanted.
    pub generation: bool,
    /// Whether the answer to a deletion is the object.
    pub returns_deleted: bool,
    /// Whether a PUT makes what is not there.
    pub create_on_update: bool,
    /// Whether an update may come without a resource version.
    pub unconditional_update: bool,
    /// Whether dependents stay if a deletion says nothing of them.
    pub orphans: bool,
    /// Whether `status` is taken from writes to the object itself.
    pub status_is_reset: bool,
    /// What writes to `status` cannot change.
    pub status_resets: &'static [&'static [&'static str]],
}

pub(crate) use super::services::FIRST as FIRST_ADDRESS;

const SPEC: &[&[&str]] = &[&["spec"]];

impl Strategy {
    /// The switches of a built-in kind.
    pub fn of_builtin(group: &str, kind: &str) -> Self {
        let core = group.is_empty();
        Self {
            names: name_rule(group, kind),
            generation: match kind {
                "Pod" | "PodTemplate" | "ReplicationController" => core,
                "DaemonSet"
                | "StatefulSet"
                | "Deployment"
                | "ReplicaSet"
                | "Job"
                | "CronJob"
                | "Ingress"
                | "IngressClass"
                | "NetworkPolicy"
                | "EndpointSlice"
                | "PodDisruptionBudget"
                | "FlowSchema"
                | "PriorityLevelConfiguration"
                | "PriorityClass"
                | "ValidatingAdmissionPolicy"
                | "ValidatingAdmissionPolicyBinding"
                | "MutatingWebhookConfiguration"
                | "ValidatingWebhookConfiguration"
                | "CustomResourceDefinition" => true,
                _ => false,
            },
            returns_deleted: match kind {
                "ResourceQuota"
                | "PersistentVolume"
                | "ServiceAccount"
                | "PersistentVolumeClaim"
                | "Namespace"
                | "Pod"
                | "Service"
                | "PodTemplate" => core,
                "CSIDriver" | "CSINode" | "StorageClass" | "VolumeAttachment" | "VolumeAttributesClass" => {
                    true
                }
                _ => false,
            },
            create_on_update: matches!(
                kind,
                "RuntimeClass"
                    | "RoleBinding"
                    | "ClusterRoleBinding"
                    | "Role"
                    | "ClusterRole"
                    | "Lease"
                    | "LimitRange"
                    | "Event"
                    | "Service"
                    | "Endpoints"
            ),
            unconditional_update: !matches!(
                kind,
                "RuntimeClass"
                    | "PodDisruptionBudget"
                    | "CSIDriver"
                    | "CSIStorageCapacity"
                    | "VolumeAttachment"
                    | "CSINode"
                    | "Lease"
                    | "ValidatingAdmissionPolicy"
                    | "ValidatingAdmissionPolicyBinding"
                    | "MutatingWebhookConfiguration"
                    | "ValidatingWebhookConfiguration"
                    | "CustomResourceDefinition"
                    | "APIService"
            ),
            orphans: matches!(kind, "Job" | "ReplicationController"),
            // Those of a node come with it.
            status_is_reset: kind != "Node",
            status_resets: match kind {
                "Deployment" => &[&["spec"], &["metadata", "labels"]],
                "Pod" => &[
                    &["spec"],
                    &["metadata", "deletionTimestamp"],
                    &["metadata", "ownerReferences"],
                ],
                "FlowSchema"
                | "PriorityLevelConfiguration"
                | "VolumeAttachment"
                | "CustomResourceDefinition"
                | "APIService" => &[&["spec"], &["metadata"]],
                _ => SPEC,
            },
        }
    }

    /// The switches of custom resources.
    pub const fn of_custom(has_status: bool) -> Self {
        Self {
            names: NameRule::Subdomain,
            generation: true,
            returns_deleted: false,
            create_on_update: false,
            unconditional_update: false,
            orphans: false,
            status_is_reset: has_status,
            status_resets: SPEC,
        }
    }
}

fn name_rule(group: &str, kind: &str) -> NameRule {
    match (group, kind) {
        ("", "Namespace") => NameRule::Label,
        ("", "Service") => NameRule::Label1035,
        ("rbac.authorization.k8s.io", _) => NameRule::PathSegment,
        _ => NameRule::Subdomain,
    }
}

/// The version has a subresource `status`, so that writes to the object leave it alone.
fn has_status(version: &Version) -> bool {
    version.subresource("status").is_some()
}

/// Sets what a new object gets from the server.
pub(crate) fn prepare_create(
    resource: &Resource,
    version: &Version,
    state: &mut State,
    object: &mut Value,
    _now: Timestamp,
) {
    if has_status(version) && resource.strategy.status_is_reset {
        reset_status(resource, version, object);
    }
    if matches!(version.form, Form::Custom(_)) {
        return;
    }
    match (&*resource.group, &*resource.kind) {
        ("", "Namespace") => object["spec"]["finalizers"] = json!(["kubernetes"]),
        ("", "Service") => super::services::allocate(state, object, None),
        ("", "Pod") => {
            object["status"]["qosClass"] = json!(quality(&object["spec"]));
            admit_pod(&mut object["spec"]);
        }
        ("", "PersistentVolumeClaim") => protect(object, "kubernetes.io/pvc-protection"),
        ("", "PersistentVolume") => protect(object, "kubernetes.io/pv-protection"),
        ("apps", "DaemonSet") => set_template_generation(object, 1),
        ("batch", "Job") => job_selector(object),
        ("rbac.authorization.k8s.io", "Role" | "ClusterRole") => no_rules(object),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => prepare_definition(version, object, None),
        _ => {}
    }
}

/// The status of something that nobody has looked at.
fn reset_status(resource: &Resource, version: &Version, object: &mut Value) {
    let empty = match &version.form {
        Form::Builtin(_) => schema::builtin(&version.api_version, &resource.kind)
            .and_then(|builtin| builtin.empty.get("status").cloned()),
        Form::Custom(_) => None,
    };
    let Some(map) = object.as_object_mut() else { return };
    match empty {
        Some(status) => {
            map.insert("status".to_owned(), status);
            if let Form::Builtin(ty) = &version.form {
                super::defaults::set(*ty, &resource.kind, object);
            }
        }
        None => {
            map.remove("status");
        }
    }
}

/// Brings an object that takes the place of another one in line with what the endpoint may change.
pub(crate) fn prepare_update(target: &Target, state: &mut State, new: &mut Value, old: &Value) {
    let (resource, version) = (&target.resource, &target.version);
    match &*target.subresource {
        "status" => only_status(resource, new, old),
        "finalize" => {
            let finalizers = new["spec"]["finalizers"].take();
            new.clone_from(old);
            set_or_remove(new, "spec", "finalizers", finalizers);
        }
        _ => {
            if has_status(version) && resource.strategy.status_is_reset {
                copy_field(new, old, "status");
            }
            if matches!(version.form, Form::Builtin(_)) {
                of_kind(resource, version, state, new, old);
            }
        }
    }
    if resource.strategy.generation && target.subresource != "status" && wanted_differs(version, new, old) {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or_default();
        crate::object::metadata::set(new, "generation", Some(json!(generation + 1)));
    }
}

fn set_or_remove(object: &mut Value, holder: &str, field: &str, value: Value) {
    if let Some(map) = object.get_mut(holder).and_then(Value::as_object_mut) {
        if value.as_array().is_none_or(Vec::is_empty) {
            map.remove(field);
        } else {
            map.insert(field.to_owned(), value);
        }
    }
}

fn copy_field(to: &mut Value, from: &Value, field: &str) {
    if let Some(map) = to.as_object_mut() {
        match from.get(field) {
            Some(value) => map.insert(field.to_owned(), value.clone()),
            None => map.remove(field),
        };
    }
}

/// A write to `status` changes nothing else, but for some of the metadata of built-in kinds.
fn only_status(resource: &Resource, new: &mut Value, old: &Value) {
    let status = new.get("status").cloned();
    let metadata = new["metadata"].take();
    new.clone_from(old);
    if resource.custom.is_none() {
        let labels = old["metadata"].get("labels").cloned();
        new["metadata"] = metadata;
        if resource
            .strategy
            .status_resets
            .iter()
            .any(|path| path == &["metadata", "labels"])
        {
            crate::object::metadata::set(new, "labels", labels);
        }
    }
    if let Some(map) = new.as_object_mut() {
        match status {
            Some(status) => map.insert("status".to_owned(), status),
            None => map.remove("status"),
        };
    }
}

fn of_kind(resource: &Resource, version: &Version, state: &mut State, new: &mut Value, old: &Value) {
    match (&*resource.group, &*resource.kind) {
        ("", "Namespace") => {
            let finalizers = old["spec"]["finalizers"].clone();
            if !new["spec"].is_object() {
                new["spec"] = json!({});
            }
            set_or_remove(new, "spec", "finalizers", finalizers);
        }
        ("", "Service") => super::services::allocate(state, new, Some(old)),
        ("rbac.authorization.k8s.io", "Role" | "ClusterRole") => no_rules(new),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => prepare_definition(version, new, Some(old)),
        ("apps", "DaemonSet") => {
            let before = template_generation(old);
            let changed = new["spec"]["template"] != old["spec"]["template"]
                || new["spec"]["updateStrategy"] != old["spec"]["updateStrategy"];
            set_template_generation(new, if changed { before + 1 } else { before });
        }
        _ => {}
    }
}

/// Whether an update changes what is wanted, and not only what is said of it.
fn wanted_differs(version: &Version, new: &Value, old: &Value) -> bool {
    let none = Map::new();
    let leave_status = match &version.form {
        Form::Custom(custom) => custom.get().has_status(),
        Form::Builtin(_) => true,
    };
    let wanted = |object: &Value| -> Vec<(String, Value)> {
        object
            .as_object()
            .unwrap_or(&none)
            .iter()
            .filter(|(name, _)| {
                let told = matches!(name.as_str(), "metadata" | "apiVersion" | "kind");
                !(told || leave_status && *name == "status")
            })
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    };
    wanted(new) != wanted(old)
}

/// Gives a definition its status, in the form that Go gives it.
fn prepare_definition(version: &Version, object: &mut Value, old: Option<&Value>) {
    crate::crd::prepare(object, old);
    if let Form::Builtin(ty) = &version.form {
        // It has been read before; a status that is the server's own fits.
        let _ = ty.normalize(object);
    }
}

fn template_generation(object: &Value) -> i64 {
    let text = object["metadata"]["annotations"][TEMPLATE_GENERATION].as_str();
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

fn set_template_generation(object: &mut Value, number: i64) {
    object["metadata"]["annotations"][TEMPLATE_GENERATION] = json!(number.to_string());
}

/// What the admission of storage objects adds; its controller takes it away when nothing uses the object.
fn protect(object: &mut Value, finalizer: &str) {
    let Some(metadata) = crate::object::metadata::metadata_mut(object) else {
        return;
    };
    let finalizers = metadata.entry("finalizers").or_insert_with(|| json!([]));
    if let Some(list) = finalizers.as_array_mut()
        && !list.iter().any(|one| one == finalizer)
    {
        list.push(json!(finalizer));
    }
}

/// What admission adds to Pods: priority, and how long they stay on a node that is not well.
fn admit_pod(spec: &mut Value) {
    if spec["priorityClassName"].as_str().is_none_or(str::is_empty) {
        spec["priority"] = json!(0);
        spec["preemptionPolicy"] = json!("PreemptLowerPriority");
    }
    let mut tolerations = spec["tolerations"].as_array().cloned().unwrap_or_default();
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let tolerated = tolerations.iter().any(|one| {
            (one["key"] == key || one["key"].as_str().is_none_or(str::is_empty))
                && (one["effect"] == "NoExecute" || one["effect"].as_str().is_none_or(str::is_empty))
        });
        if !tolerated {
            tolerations.push(
                json!({"effect": "NoExecute", "key": key, "operator": "Exists", "tolerationSeconds": 300}),
            );
        }
    }
    spec["tolerations"] = Value::Array(tolerations);
}

/// The class of a Pod by what its containers ask for.
fn quality(spec: &Value) -> &'static str {
    let containers = || {
        ["initContainers", "containers"]
            .iter()
            .flat_map(|list| spec[*list].as_array().into_iter().flatten())
    };
    let amount = |container: &Value, what: &str, name: &str| container["resources"][what][name].clone();
    let nothing = containers().all(|container| {
        ["cpu", "memory"].iter().all(|name| {
            amount(container, "limits", name).is_null() && amount(container, "requests", name).is_null()
        })
    });
    let guaranteed = containers().all(|container| {
        ["cpu", "memory"].iter().all(|name| {
            let limit = amount(container, "limits", name);
            !limit.is_null() && limit == amount(container, "requests", name)
        })
    });
    if nothing {
        "BestEffort"
    } else if guaranteed {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// Rules are always written; stored and read again, none are null.
fn no_rules(object: &mut Value) {
    if object["rules"].as_array().is_some_and(Vec::is_empty) {
        object["rules"] = Value::Null;
    }
}

/// A Job selects its Pods by its own UID.
fn job_selector(object: &mut Value) {
    if object["spec"]["manualSelector"] == true {
        return;
    }
    let uid = object["metadata"]["uid"].clone();
    let name = object["metadata"]["name"].clone();
    // Labels that come from the template are the same map in the API server, and get what it gets.
    let own = object["metadata"]["labels"].clone();
    let shared = own.is_object() && own == object["spec"]["template"]["metadata"]["labels"];
    object["spec"]["selector"] = json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}});
    let metadata = &mut object["spec"]["template"]["metadata"];
    if !metadata.is_object() {
        *metadata = json!({});
    }
    let labels = &mut metadata["labels"];
    if !labels.is_object() {
        *labels = json!({});
    }
    for label in ["batch.kubernetes.io/controller-uid", "controller-uid"] {
        labels[label] = uid.clone();
    }
    for label in ["batch.kubernetes.io/job-name", "job-name"] {
        labels[label] = name.clone();
    }
    if shared {
        object["metadata"]["labels"] = labels.clone();
    }
    super::defaults::labels_of_template(object);
}
