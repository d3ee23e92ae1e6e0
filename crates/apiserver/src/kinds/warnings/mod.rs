//! The warnings about an object that is valid: deprecated fields, and values with a meaning that few expect.
//!
//! As in Kubernetes, a write that is refused has none of them. `docs/apiserver-gaps.md` lists what is missing.

mod addresses;
mod containers;
mod custom;
mod networks;
mod nodes;
mod pods;
mod storage;
mod volumes;

use serde_json::Value;

use super::quantity;
use super::resource::Resource;
use crate::object::names;

/// The kinds whose names become those of Pods.
const OWNERS: [&str; 5] = [
    "CronJob",
    "Deployment",
    "Job",
    "ReplicaSet",
    "ReplicationController",
];

/// Numbers above these may hide failed indexes of a Job.
const MANY_COMPLETIONS: i64 = 100_000;
const MANY_AT_ONCE: i64 = 10_000;

pub(super) use custom::check as custom;

/// Returns the warnings about a new object of a built-in kind.
pub(super) fn create(resource: &Resource, object: &Value) -> Vec<String> {
    let mut out = Vec::new();
    if !has_kubernetes_group(resource) {
        return out;
    }
    let kind = &*resource.kind;
    if OWNERS.contains(&kind) {
        label(object, "Pod names and hostnames", &mut out);
    }
    match kind {
        "Pod" => {
            label(object, "the Pod's hostname", &mut out);
            pods::check("", object, &mut out);
        }
        "ResourceQuota" => quota(&object["spec"]["hard"], &mut out),
        "StatefulSet" => {
            templates(kind, object, &mut out);
            stateful(object, "", &mut out);
        }
        _ => {
            templates(kind, object, &mut out);
            always(kind, object, None, &mut out);
        }
    }
    out
}

/// Returns the warnings about an object of a built-in kind that replaces another one.
pub(super) fn update(resource: &Resource, subresource: &str, new: &Value, old: &Value) -> Vec<String> {
    let mut out = Vec::new();
    if !has_kubernetes_group(resource) {
        return out;
    }
    let kind = &*resource.kind;
    if subresource == "status" {
        networks::status(kind, new, &mut out);
        return out;
    }
    let has_changed = if kind == "DaemonSet" {
        new["spec"]["template"] != old["spec"]["template"]
    } else {
        new["metadata"]["generation"] != old["metadata"]["generation"]
    };
    match kind {
        // Kubernetes looks at the template of before.
        "ReplicationController" if has_changed => templates(kind, old, &mut out),
        _ if has_changed => templates(kind, new, &mut out),
        _ => {}
    }
    match kind {
        "StatefulSet" => stateful(new, ".Spec", &mut out),
        _ => always(kind, new, Some(old), &mut out),
    }
    out
}

fn has_kubernetes_group(resource: &Resource) -> bool {
    !matches!(&*resource.group, "events.k8s.io" | "apiregistration.k8s.io")
}

/// What is said of a kind on each write; `old` is the object of before.
fn always(kind: &str, object: &Value, old: Option<&Value>, out: &mut Vec<String>) {
    match kind {
        "CustomResourceDefinition" => custom::definition(object, old, out),
        "CSIDriver" => storage::driver(object, old, out),
        "CSIStorageCapacity" => nodes::label_selector(&object["nodeTopology"], "nodeTopology", out),
        "PersistentVolume" => storage::volume(object, out),
        "PersistentVolumeClaim" => storage::claim(object, out),
        "RuntimeClass" => nodes::runtime_class(object, out),
        "ServiceAccount" => account(object, old, out),
        "StorageClass" => storage::class(object, out),
        _ => networks::check(kind, object, old.is_none(), out),
    }
}

/// Says that a name should be a DNS label.
fn label(object: &Value, used: &str, out: &mut Vec<String>) {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let wrong = names::dns_label(name);
    if !wrong.is_empty() {
        let wrong = wrong.join(" ");
        out.push(format!(
            "metadata.name: this is used in {used}, which can result in surprising behavior; a DNS label is recommended: [{wrong}]"
        ));
    }
}

/// Checks the Pod template of a kind that has one.
fn templates(kind: &str, object: &Value, out: &mut Vec<String>) {
    let (path, template) = match kind {
        "DaemonSet" | "Deployment" | "ReplicaSet" | "ReplicationController" | "StatefulSet" => {
            ("spec.template", &object["spec"]["template"])
        }
        "Job" => {
            job("spec", &object["spec"], out);
            ("spec.template", &object["spec"]["template"])
        }
        "CronJob" => {
            let spec = &object["spec"]["jobTemplate"]["spec"];
            job("spec.jobTemplate.spec", spec, out);
            ("spec.jobTemplate.spec.template", &spec["template"])
        }
        "PodTemplate" => ("template", &object["template"]),
        _ => return,
    };
    if !template.is_null() {
        pods::check(&format!("{path}."), template, out);
    }
}

fn job(path: &str, spec: &Value, out: &mut Vec<String>) {
    let number = |field: &str| spec[field].as_i64().unwrap_or_default();
    if spec["completionMode"] == "Indexed"
        && number("completions") > MANY_COMPLETIONS
        && number("parallelism") > MANY_AT_ONCE
    {
        out.push(format!(
            "{path}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail"
        ));
    }
}

/// Checks what a StatefulSet has beside its template. The path within a claim is Kubernetes' own.
fn stateful(object: &Value, within: &str, out: &mut Vec<String>) {
    for (place, claim) in items(&object["spec"]["volumeClaimTemplates"]) {
        let path = format!("spec.volumeClaimTemplates[{place}]{within}");
        storage::claim_spec(&path, &claim["spec"], out);
    }
    if object["spec"]["revisionHistoryLimit"]
        .as_i64()
        .is_some_and(|limit| limit < 0)
    {
        out.push("spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended".to_owned());
    }
}

fn account(object: &Value, old: Option<&Value>, out: &mut Vec<String>) {
    const KEY: &str = "kubernetes.io/enforce-mountable-secrets";
    let has = |object: &Value| object["metadata"]["annotations"].get(KEY).is_some();
    if has(object) && !old.is_some_and(has) {
        out.push(format!("metadata.annotations[{KEY}]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets"));
    }
}

/// Says which requests of a quota are larger than their limits.
fn quota(hard: &Value, out: &mut Vec<String>) {
    for resource in ["cpu", "memory", "storage", "ephemeral-storage"] {
        let bare = matches!(resource, "cpu" | "memory").then(|| resource.to_owned());
        let request = [Some(format!("requests.{resource}")), bare]
            .into_iter()
            .flatten()
            .find_map(|name| Some((hard[&*name].as_str()?, name)));
        let limit = format!("limits.{resource}");
        if let (Some((request, name)), Some(most)) = (request, hard[&*limit].as_str())
            && quantity::compare(request, most).is_some_and(std::cmp::Ordering::is_gt)
        {
            out.push(format!(
                "ResourceQuota {name} ({request}) should be less than {limit} ({most})"
            ));
        }
    }
}

/// Returns the items of a list with their places.
fn items(list: &Value) -> impl Iterator<Item = (usize, &Value)> {
    list.as_array().into_iter().flatten().enumerate()
}

/// Says that a number of bytes is not whole.
fn whole(path: &str, amounts: &Value, resource: &str, out: &mut Vec<String>) {
    if let Some(amount) = amounts[resource].as_str()
        && quantity::is_fractional(amount)
    {
        out.push(format!(
            "{path}[{resource}]: fractional byte value {amount:?} is invalid, must be an integer"
        ));
    }
}
