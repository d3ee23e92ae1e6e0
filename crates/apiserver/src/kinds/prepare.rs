//! The fields that the API server sets in objects before it stores them: those of the registry strategies
//! (`PrepareForCreate`, `PrepareForUpdate`), and those of admission plugins.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::defaults::{self, TEMPLATE_GENERATION};
use super::pod_resources;
use super::resource::{Form, Resource, Version};
use super::services::{self, Addresses};
use super::withheld;
use crate::object::times;
use crate::schema;
use crate::write::Write;

/// Returns whether the version has the subresource `status`, so that other writes do not change the status.
fn has_status(version: &Version) -> bool {
    version.subresource("status").is_some()
}

/// Sets the fields of a new object that the server owns.
pub(crate) fn prepare_create(
    resource: &Resource,
    version: &Version,
    addresses: &mut Addresses,
    object: &mut Value,
) {
    if has_status(version) && resource.strategy.status_is_reset {
        reset_status(resource, version, object);
    }
    let Form::Builtin(ty) = &version.form else {
        return;
    };
    withheld::drop_from(*ty, &resource.kind, object);
    match (&*resource.group, &*resource.kind) {
        ("", "Namespace") => finalize_namespace(&mut object["spec"]),
        ("", "Service") => services::allocate(addresses, object, None),
        ("", "Pod") => {
            object["status"]["qosClass"] = json!(pod_resources::qos_class(&object["spec"]));
            admit_pod(&mut object["spec"]);
            gate_scheduling(object);
        }
        ("", "Node") => taint_node(&mut object["spec"]),
        ("", "PersistentVolumeClaim") => protect(object, "kubernetes.io/pvc-protection"),
        ("", "PersistentVolume") => {
            protect(object, "kubernetes.io/pv-protection");
            object["status"]["lastPhaseTransitionTime"] = object["metadata"]["creationTimestamp"].clone();
        }
        ("", "ServiceAccount") => name_secrets(object),
        ("storage.k8s.io", "VolumeAttributesClass") => protect(object, "kubernetes.io/vac-protection"),
        ("apps", "DaemonSet") => set_template_generation(object, 1),
        ("batch", "Job") => job_selector(object),
        ("rbac.authorization.k8s.io", "Role" | "ClusterRole") => null_if_empty(object, &["rules"]),
        ("discovery.k8s.io", "EndpointSlice") => null_if_empty(object, &["endpoints", "ports"]),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => prepare_definition(version, object, None),
        _ => {}
    }
}

/// Names the user who requests a certificate; what the request says of it does not count.
pub(crate) fn set_requester(resource: &Resource, object: &mut Value, write: &Write<'_>) {
    if &*resource.kind != "CertificateSigningRequest" || &*resource.group != "certificates.k8s.io" {
        return;
    }
    let Some(spec) = object["spec"].as_object_mut() else {
        return;
    };
    spec.remove("extra");
    for (field, value) in [
        ("username", json!(write.user)),
        ("uid", json!(write.uid)),
        ("groups", json!(write.groups)),
    ] {
        if value == "" || value == json!([]) {
            spec.remove(field);
        } else {
            spec.insert(field.to_owned(), value);
        }
    }
}

/// Resets the status of an object that no controller has reconciled.
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
                defaults::set(*ty, &resource.kind, object);
            }
        }
        None => {
            map.remove("status");
        }
    }
}

/// Reverts the changes of an update that its endpoint does not allow, and sets the fields that the server owns.
pub(crate) fn prepare_update(
    resource: &Resource,
    version: &Version,
    subresource: &str,
    addresses: &mut Addresses,
    new: &mut Value,
    old: &Value,
    now: Timestamp,
) {
    match subresource {
        "status" => {
            only_status(resource, new, old);
            match (&*resource.group, &*resource.kind) {
                ("", "PersistentVolume") => date_phase(new, old, now),
                ("", "Node") => drop_node_status(new, old),
                _ => {}
            }
        }
        "finalize" => copy_field(new, old, "status"),
        _ => {
            if let Form::Builtin(ty) = &version.form {
                withheld::drop_from(*ty, &resource.kind, new);
            }
            if has_status(version) {
                copy_field(new, old, "status");
            }
            if let Form::Builtin(_) = &version.form {
                of_kind(resource, version, addresses, new, old);
            }
        }
    }
    let strategy = &resource.strategy;
    let labels_differ =
        || strategy.generation_of_labels && new["metadata"]["labels"] != old["metadata"]["labels"];
    if strategy.generation && subresource != "status" && (labels_differ() || spec_differs(version, new, old))
    {
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

/// Keeps only the status of a write to `status`, and for built-in kinds most of the metadata.
fn only_status(resource: &Resource, new: &mut Value, old: &Value) {
    let status = new.get("status").cloned();
    let metadata = new["metadata"].take();
    new.clone_from(old);
    if resource.custom.is_none() {
        new["metadata"] = metadata;
        for field in resource.strategy.status_keeps {
            crate::object::metadata::set(new, field, old["metadata"].get(*field).cloned());
        }
    }
    if let Some(map) = new.as_object_mut() {
        match status {
            Some(status) => map.insert("status".to_owned(), status),
            None => map.remove("status"),
        };
    }
}

/// Sets when the phase of a PersistentVolume changed, unless the write to its status says when.
fn date_phase(new: &mut Value, old: &Value, now: Timestamp) {
    const TIME: &str = "lastPhaseTransitionTime";
    let (given, before) = (new["status"].get(TIME), old["status"].get(TIME));
    let is_same = new["status"]["phase"] == old["status"]["phase"];
    let is_given = given.is_some_and(|given| !given.is_null() && (is_same || Some(given) != before));
    if is_given {
        return;
    }
    let time = if is_same {
        before.cloned()
    } else {
        Some(json!(times::seconds(now)))
    };
    if let (Some(time), Some(status)) = (time, new["status"].as_object_mut()) {
        status.insert(TIME.to_owned(), time);
    }
}

/// Drops what is left of the dynamic configuration of kubelets.
fn drop_node_status(new: &mut Value, old: &Value) {
    if old["status"].get("config").is_none()
        && let Some(status) = new["status"].as_object_mut()
    {
        status.remove("config");
    }
}

fn of_kind(resource: &Resource, version: &Version, addresses: &mut Addresses, new: &mut Value, old: &Value) {
    match (&*resource.group, &*resource.kind) {
        ("", "Namespace") => {
            let finalizers = old["spec"]["finalizers"].clone();
            if !new["spec"].is_object() {
                new["spec"] = json!({});
            }
            set_or_remove(new, "spec", "finalizers", finalizers);
        }
        ("", "Service") => services::allocate(addresses, new, Some(old)),
        ("", "ServiceAccount") => name_secrets(new),
        ("certificates.k8s.io", "CertificateSigningRequest") => copy_field(new, old, "spec"),
        ("rbac.authorization.k8s.io", "Role" | "ClusterRole") => null_if_empty(new, &["rules"]),
        ("discovery.k8s.io", "EndpointSlice") => null_if_empty(new, &["endpoints", "ports"]),
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

/// Returns whether an update changes the desired state, and not only metadata or status.
fn spec_differs(version: &Version, new: &Value, old: &Value) -> bool {
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
                let is_metadata = matches!(name.as_str(), "metadata" | "apiVersion" | "kind");
                !(is_metadata || leave_status && *name == "status")
            })
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    };
    wanted(new) != wanted(old)
}

/// Sets the status of a definition, in the form that Go writes.
fn prepare_definition(version: &Version, object: &mut Value, old: Option<&Value>) {
    crate::crd::prepare(object, old);
    if let Form::Builtin(ty) = &version.form {
        // The object has been decoded before, and the server's own status matches its type.
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

/// Adds a protection finalizer, which its controller removes when the object is no longer in use.
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

/// Keeps the names of the secrets of a ServiceAccount and nothing else of the references.
fn name_secrets(object: &mut Value) {
    let secrets = object.get_mut("secrets").and_then(Value::as_array_mut);
    for secret in secrets.into_iter().flatten().filter_map(Value::as_object_mut) {
        secret.retain(|field, value| field == "name" && value != "");
    }
}

/// Adds the finalizer of the namespace controller.
fn finalize_namespace(spec: &mut Value) {
    let mut finalizers = spec["finalizers"].as_array().cloned().unwrap_or_default();
    if !finalizers.iter().any(|one| one == "kubernetes") {
        finalizers.push(json!("kubernetes"));
    }
    spec["finalizers"] = Value::Array(finalizers);
}

/// Taints a new Node, which is not ready yet: the admission plugin `TaintNodesByCondition`.
fn taint_node(spec: &mut Value) {
    const NOT_READY: &str = "node.kubernetes.io/not-ready";
    let mut taints = spec["taints"].as_array().cloned().unwrap_or_default();
    let is_tainted = |taint: &Value| taint["key"] == NOT_READY && taint["effect"] == "NoSchedule";
    if !taints.iter().any(is_tainted) {
        taints.push(json!({"effect": "NoSchedule", "key": NOT_READY}));
        spec["taints"] = Value::Array(taints);
    }
}

/// Reports that the scheduling gates of a Pod block its scheduling.
fn gate_scheduling(object: &mut Value) {
    if object["spec"]["schedulingGates"]
        .as_array()
        .is_none_or(Vec::is_empty)
    {
        return;
    }
    let since = object["metadata"]["creationTimestamp"].clone();
    object["status"]["conditions"] = json!([{
        "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
        "message": "Scheduling is blocked due to non-empty scheduling gates",
        "lastProbeTime": null, "lastTransitionTime": since,
    }]);
}

/// Sets the default tolerations of a Pod, as an admission plugin does.
fn admit_pod(spec: &mut Value) {
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

/// Sets empty lists to null, as Kubernetes returns them once they are stored: protobuf has no empty lists.
fn null_if_empty(object: &mut Value, lists: &[&str]) {
    for list in lists {
        if object[*list].as_array().is_some_and(Vec::is_empty) {
            object[*list] = Value::Null;
        }
    }
}

/// Sets the selector of a Job to the UID of the Job.
fn job_selector(object: &mut Value) {
    if object["spec"]["manualSelector"] == true {
        return;
    }
    let uid = object["metadata"]["uid"].clone();
    let name = object["metadata"]["name"].clone();
    // In Kubernetes, labels that default to those of the template share the same map, so they change with it.
    let own = object["metadata"]["labels"].clone();
    let shared = own.is_object() && own == object["spec"]["template"]["metadata"]["labels"];
    // What the request selects besides stays, and is refused.
    let selector = &mut object["spec"]["selector"];
    if !selector.is_object() {
        *selector = json!({});
    }
    selector["matchLabels"]["batch.kubernetes.io/controller-uid"] = uid.clone();
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
    defaults::labels_of_template(object);
}
