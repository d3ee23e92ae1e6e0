//! The validation of built-in kinds, as far as the manifests of a fleet need it.
//!
//! This is a part of Kubernetes' validation: required fields, immutable fields, names and numbers.
//! `docs/apiserver-gaps.md` lists what is missing. Causes and their order are those of Kubernetes.

mod certificates;
mod enumerations;
mod pods;
mod services;
mod workloads;

use serde_json::{Value, json};

use super::resource::Resource;
use crate::object::names;
use crate::status::Cause;

pub(super) use enumerations::check as enumerations;

/// Returns what is wrong with a new object.
pub fn create(resource: &Resource, object: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    common(resource, object, &mut causes);
    causes
}

/// Returns what is wrong with an object that replaces another one.
pub fn update(resource: &Resource, new: &Value, old: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let immutable_first = matches!(&*resource.kind, "ConfigMap" | "Secret");
    if immutable_first {
        immutable(resource, new, old, &mut causes);
    }
    common(resource, new, &mut causes);
    if !immutable_first {
        immutable(resource, new, old, &mut causes);
    }
    causes
}

/// Returns what is wrong with a status.
pub fn status(resource: &Resource, object: &Value) -> Vec<Cause> {
    let inside = &*resource.kind == "Service" && object["spec"]["type"] != "LoadBalancer";
    let ingress = object["status"]["loadBalancer"]["ingress"].as_array();
    if inside && ingress.is_some_and(|list| !list.is_empty()) {
        return vec![Cause::forbidden(
            "status.loadBalancer.ingress",
            "may only be used when `spec.type` is 'LoadBalancer'",
        )];
    }
    let mut causes = Vec::new();
    if &*resource.kind == "CertificateSigningRequest" {
        certificates::check_status(object, &mut causes);
    }
    causes
}

/// Checks that finalizers of built-in kinds have a prefix or are Kubernetes' own.
pub fn finalizers(object: &Value) -> Vec<Cause> {
    let list = object["metadata"]["finalizers"].as_array().into_iter().flatten();
    list.enumerate()
        .filter(|(_, name)| {
            let name = name.as_str().unwrap_or_default();
            !name.contains('/') && !matches!(name, "kubernetes" | "orphan" | "foregroundDeletion")
        })
        .map(|(place, name)| {
            Cause::invalid(
                format!("metadata.finalizers[{place}]"),
                name,
                "name is neither a standard finalizer name nor is it fully qualified",
            )
        })
        .collect()
}

fn common(resource: &Resource, object: &Value, causes: &mut Vec<Cause>) {
    match (&*resource.group, &*resource.kind) {
        ("", "ConfigMap") => {
            keys(object, "data", causes);
            for name in object["data"].as_object().into_iter().flat_map(|map| map.keys()) {
                if object["binaryData"].get(name).is_some() {
                    let why = "duplicate of key present in binaryData";
                    causes.push(Cause::invalid(format!("data[{name}]"), &json!(name), why));
                }
            }
            keys(object, "binaryData", causes);
        }
        ("", "Secret") => {
            keys(object, "data", causes);
            secret(object, causes);
        }
        ("", "Service") => services::check(object, causes),
        ("", "Pod") => pods::spec(&object["spec"], "spec", causes),
        ("apps", kind @ ("Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet")) => {
            workloads::check(kind, &object["spec"], causes);
        }
        ("batch", "Job") => {
            generated_selector(&object["spec"], causes);
            job(&object["spec"], "spec", causes);
        }
        ("batch", "CronJob") => {
            required_text(&object["spec"], "schedule", "spec", causes);
            job(
                &object["spec"]["jobTemplate"]["spec"],
                "spec.jobTemplate.spec",
                causes,
            );
        }
        ("autoscaling", "HorizontalPodAutoscaler") => {
            let most = &object["spec"]["maxReplicas"];
            if most.as_i64().unwrap_or_default() < 1 {
                causes.push(Cause::invalid("spec.maxReplicas", most, "must be greater than 0"));
            }
        }
        ("certificates.k8s.io", "CertificateSigningRequest") => certificates::check(object, causes),
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy") => {
            causes.extend(crate::admission::check_policy(object));
        }
        ("rbac.authorization.k8s.io", "Role" | "ClusterRole") => {
            for (place, rule) in object["rules"].as_array().into_iter().flatten().enumerate() {
                policy_rule(rule, resource.namespaced, &format!("rules[{place}]"), causes);
            }
        }
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => {
            let kinds: &[&str] = if resource.namespaced {
                &["Role", "ClusterRole"]
            } else {
                &["ClusterRole"]
            };
            let kind = object["roleRef"]["kind"].as_str().unwrap_or_default();
            if !kinds.contains(&kind) {
                causes.push(Cause::not_supported_text("roleRef.kind", kind, kinds));
            }
            if object["roleRef"]["name"].as_str().unwrap_or_default().is_empty() {
                causes.push(Cause::required("roleRef.name", ""));
            }
            for (place, subject) in object["subjects"].as_array().into_iter().flatten().enumerate() {
                role_subject(
                    subject,
                    resource.namespaced,
                    &format!("subjects[{place}]"),
                    causes,
                );
            }
        }
        _ => {}
    }
}

/// Checks the keys in the data of a ConfigMap or a Secret.
fn keys(object: &Value, field: &str, causes: &mut Vec<Cause>) {
    for name in object[field].as_object().into_iter().flat_map(|map| map.keys()) {
        causes.extend(
            names::config_key(name)
                .into_iter()
                .map(|why| Cause::invalid(format!("{field}[{name}]"), &json!(name), why)),
        );
    }
}

/// Checks the keys that the type of a Secret requires.
fn secret(object: &Value, causes: &mut Vec<Cause>) {
    let data = &object["data"];
    let mut required = |name: &str| causes.push(Cause::required(format!("data[{name}]"), ""));
    let has = |name: &str| data.get(name).is_some();
    match object["type"].as_str().unwrap_or_default() {
        "kubernetes.io/service-account-token" => {
            let name = "kubernetes.io/service-account.name";
            let given = object["metadata"]["annotations"][name].as_str();
            if given.unwrap_or_default().is_empty() {
                causes.push(Cause::required(format!("metadata.annotations[{name}]"), ""));
            }
        }
        "kubernetes.io/dockercfg" if !has(".dockercfg") => required(".dockercfg"),
        "kubernetes.io/dockerconfigjson" if !has(".dockerconfigjson") => required(".dockerconfigjson"),
        "kubernetes.io/basic-auth" if !has("username") && !has("password") => {
            required("username");
            required("password");
        }
        "kubernetes.io/ssh-auth" if data["ssh-privatekey"].as_str().unwrap_or_default().is_empty() => {
            required("ssh-privatekey");
        }
        "kubernetes.io/tls" => {
            for name in ["tls.crt", "tls.key"] {
                if !has(name) {
                    required(name);
                }
            }
        }
        _ => {}
    }
}

/// Checks a subject of a role binding.
fn role_subject(subject: &Value, namespaced: bool, path: &str, causes: &mut Vec<Cause>) {
    const GROUP: &str = "rbac.authorization.k8s.io";
    let text = |field: &str| subject[field].as_str().unwrap_or_default();
    if text("name").is_empty() {
        causes.push(Cause::required(format!("{path}.name"), ""));
    }
    let group = match text("kind") {
        "ServiceAccount" => "",
        "User" | "Group" => GROUP,
        other => {
            let known = ["ServiceAccount", "User", "Group"];
            causes.push(Cause::not_supported_text(format!("{path}.kind"), other, &known));
            return;
        }
    };
    if text("kind") == "ServiceAccount" && !text("name").is_empty() {
        causes.extend(
            names::dns_subdomain(text("name"))
                .into_iter()
                .map(|why| Cause::invalid(format!("{path}.name"), &subject["name"], why)),
        );
    }
    if text("apiGroup") != group {
        causes.push(Cause::not_supported_text(
            format!("{path}.apiGroup"),
            text("apiGroup"),
            &[group],
        ));
    }
    if text("kind") == "ServiceAccount" && text("namespace").is_empty() && !namespaced {
        causes.push(Cause::required(format!("{path}.namespace"), ""));
    }
}

/// Checks a rule of a role.
fn policy_rule(rule: &Value, namespaced: bool, path: &str, causes: &mut Vec<Cause>) {
    let empty = |field: &str| rule[field].as_array().is_none_or(Vec::is_empty);
    if empty("verbs") {
        causes.push(Cause::required(
            format!("{path}.verbs"),
            "verbs must contain at least one value",
        ));
    }
    if !empty("nonResourceURLs") {
        let field = format!("{path}.nonResourceURLs");
        let urls = &rule["nonResourceURLs"];
        if namespaced {
            let why = "namespaced rules cannot apply to non-resource URLs";
            causes.push(Cause::invalid(&field, urls, why));
        }
        if !["apiGroups", "resources", "resourceNames"].into_iter().all(empty) {
            let why = "rules cannot apply to both regular resources and non-resource URLs";
            causes.push(Cause::invalid(&field, urls, why));
        }
        return;
    }
    if empty("apiGroups") {
        causes.push(Cause::required(
            format!("{path}.apiGroups"),
            "resource rules must supply at least one api group",
        ));
    }
    if empty("resources") {
        causes.push(Cause::required(
            format!("{path}.resources"),
            "resource rules must supply at least one resource",
        ));
    }
}

fn required_text(object: &Value, field: &str, path: &str, causes: &mut Vec<Cause>) {
    if object[field].as_str().unwrap_or_default().is_empty() {
        causes.push(Cause::required(format!("{path}.{field}"), ""));
    }
}

fn not_negative(object: &Value, field: &str, path: &str, causes: &mut Vec<Cause>) {
    let value = &object[field];
    if value.as_i64().is_some_and(|number| number < 0) {
        causes.push(Cause::invalid(
            format!("{path}.{field}"),
            value,
            "must be greater than or equal to 0",
        ));
    }
}

/// Checks that the selector of a Job is the one that the server generates, unless the Job selects for itself.
fn generated_selector(spec: &Value, causes: &mut Vec<Cause>) {
    let selector = &spec["selector"];
    let labels = selector["matchLabels"]
        .as_object()
        .map_or(0, serde_json::Map::len);
    let more = selector["matchExpressions"]
        .as_array()
        .is_some_and(|terms| !terms.is_empty());
    if spec["manualSelector"] != true && (labels > 1 || more) {
        causes.push(Cause::invalid(
            "spec.selector",
            selector,
            "`selector` not auto-generated",
        ));
    }
}

fn job(spec: &Value, path: &str, causes: &mut Vec<Cause>) {
    for field in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
    ] {
        not_negative(spec, field, path, causes);
    }
    let template = format!("{path}.template.spec");
    pods::spec(&spec["template"]["spec"], &template, causes);
    match spec["template"]["spec"]["restartPolicy"]
        .as_str()
        .unwrap_or_default()
    {
        "OnFailure" | "Never" => {}
        "Always" => causes.push(Cause {
            reason: "FieldValueRequired",
            field: format!("{template}.restartPolicy"),
            message: "Required value: valid values: \"OnFailure\", \"Never\"".to_owned(),
        }),
        other => causes.push(Cause::not_supported_text(
            format!("{template}.restartPolicy"),
            other,
            &["OnFailure", "Never"],
        )),
    }
}

const IMMUTABLE: &str = "field is immutable";

fn immutable(resource: &Resource, new: &Value, old: &Value, causes: &mut Vec<Cause>) {
    let mut same = |path: &str| {
        let pointer = format!("/{}", path.replace('.', "/"));
        let (after, before) = (new.pointer(&pointer), old.pointer(&pointer));
        if after.unwrap_or(&Value::Null) != before.unwrap_or(&Value::Null) {
            causes.push(Cause::invalid(path, after.unwrap_or(&Value::Null), IMMUTABLE));
        }
    };
    match (&*resource.group, &*resource.kind) {
        ("apps", "Deployment" | "ReplicaSet" | "DaemonSet") => same("spec.selector"),
        ("apps", "StatefulSet") => stateful_set(new, old, causes),
        ("batch", "Job") => {
            same("spec.completions");
            same("spec.selector");
            same("spec.template");
            same("spec.completionMode");
        }
        ("", "Secret") => {
            same("type");
            check_unchanged(new, old, &["data"], causes);
        }
        ("", "ConfigMap") => check_unchanged(new, old, &["data", "binaryData"], causes),
        ("", "Service") => services::check_update(new, old, causes),
        ("", "PersistentVolumeClaim") => claim(new, old, causes),
        ("", "Pod") => pods::check_update(new, old, causes),
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding")
            if new["roleRef"] != old["roleRef"] =>
        {
            let at = |field: &str| json!(new["roleRef"][field].as_str().unwrap_or_default());
            let shown = format!(
                "{{\"APIGroup\":{},\"Kind\":{},\"Name\":{}}}",
                at("apiGroup"),
                at("kind"),
                at("name")
            );
            causes.push(Cause::invalid_shown("roleRef", &shown, "cannot change roleRef"));
        }
        ("storage.k8s.io", "StorageClass") => {
            for field in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
                same(field);
            }
        }
        ("scheduling.k8s.io", "PriorityClass") if new["value"] != old["value"] => {
            causes.push(Cause::forbidden("value", "may not be changed in an update."));
        }
        ("node.k8s.io", "RuntimeClass") => same("handler"),
        _ => {}
    }
}

/// Checks that fields are unchanged if `immutable` is set.
fn check_unchanged(new: &Value, old: &Value, fields: &[&str], causes: &mut Vec<Cause>) {
    if old["immutable"] != true {
        return;
    }
    if new["immutable"] != true {
        causes.push(Cause::forbidden(
            "immutable",
            "field is immutable when `immutable` is set",
        ));
    }
    for field in fields {
        if new[*field] != old[*field] {
            causes.push(Cause::forbidden(
                *field,
                "field is immutable when `immutable` is set",
            ));
        }
    }
}

fn stateful_set(new: &Value, old: &Value, causes: &mut Vec<Cause>) {
    const MAY_CHANGE: [&str; 7] = [
        "replicas",
        "ordinals",
        "template",
        "updateStrategy",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
        "minReadySeconds",
    ];
    let fixed = |object: &Value| {
        let mut spec = object["spec"].clone();
        if let Some(spec) = spec.as_object_mut() {
            spec.retain(|name, _| !MAY_CHANGE.contains(&name.as_str()));
        }
        spec
    };
    if fixed(new) != fixed(old) {
        causes.push(Cause::forbidden(
            "spec",
            "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden",
        ));
    }
}

fn claim(new: &Value, old: &Value, causes: &mut Vec<Cause>) {
    let fixed = |object: &Value| {
        let mut spec = object["spec"].clone();
        if let Some(spec) = spec.as_object_mut() {
            for name in ["resources", "volumeAttributesClassName", "volumeName"] {
                spec.remove(name);
            }
        }
        spec
    };
    if fixed(new) != fixed(old) {
        causes.push(Cause::forbidden(
            "spec",
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
        ));
    }
}
