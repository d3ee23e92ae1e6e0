//! Volumes, claims and classes.

use serde_json::Value;

use super::{items, nodes, whole};

const CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const CLASS_DEPRECATED: &str = "deprecated since v1.8; use \"storageClassName\" attribute instead";
const OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";

/// The plugins of volumes that no longer work, and since when.
const PLUGINS: [(&str, &str); 8] = [
    ("cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    (
        "photonPersistentDisk",
        "deprecated in v1.11, non-functional in v1.16+",
    ),
    ("scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("storageos", "deprecated in v1.22, non-functional in v1.25+"),
    ("flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

/// Returns the name that Kubernetes shows for a plugin.
fn shown(plugin: &str) -> &str {
    match plugin {
        "storageos" => "storageOS",
        plugin => plugin,
    }
}

/// Says which plugin of a volume no longer works.
pub(super) fn plugin(source: &Value, path: &str, plugin: &str, out: &mut Vec<String>) {
    if !source[plugin].is_null()
        && let Some((_, why)) = PLUGINS.iter().find(|(name, _)| *name == plugin)
    {
        out.push(format!("{path}.{}: {why}", shown(plugin)));
    }
}

pub(super) fn volume(object: &Value, out: &mut Vec<String>) {
    let annotations = &object["metadata"]["annotations"];
    if annotations.get(CLASS).is_some() {
        out.push(format!("metadata.annotations[{CLASS}]: {CLASS_DEPRECATED}"));
    }
    if annotations.get(OPTIONS).is_some() {
        out.push(format!(
            "metadata.annotations[{OPTIONS}]: deprecated since v1.31; use \"mountOptions\" attribute instead"
        ));
    }
    let spec = &object["spec"];
    if spec["persistentVolumeReclaimPolicy"] == "Recycle" {
        out.push("spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.".to_owned());
    }
    for (place, term) in items(&spec["nodeAffinity"]["required"]["nodeSelectorTerms"]) {
        let path = format!("spec.nodeAffinity.required.nodeSelectorTerms[{place}]");
        nodes::term(term, &path, false, out);
    }
    for (name, _) in PLUGINS {
        plugin(spec, "spec", name, out);
    }
}

pub(super) fn claim(object: &Value, out: &mut Vec<String>) {
    if object["metadata"]["annotations"].get(CLASS).is_some() {
        out.push(format!("metadata.annotations[{CLASS}]: {CLASS_DEPRECATED}"));
    }
    claim_spec("spec", &object["spec"], out);
}

/// Checks the `spec` of a claim.
pub(super) fn claim_spec(path: &str, spec: &Value, out: &mut Vec<String>) {
    for part in ["requests", "limits"] {
        let amounts = &spec["resources"][part];
        whole(&format!("{path}.resources.{part}"), amounts, "storage", out);
    }
}

pub(super) fn class(object: &Value, out: &mut Vec<String>) {
    for (place, topology) in items(&object["allowedTopologies"]) {
        for (number, expression) in items(&topology["matchLabelExpressions"]) {
            let key = expression["key"].as_str().unwrap_or_default();
            if let Some(why) = nodes::deprecated(key) {
                out.push(format!(
                    "allowedTopologies[{place}].matchLabelExpressions[{number}].key: {why}"
                ));
            }
        }
    }
}

pub(super) fn driver(object: &Value, old: Option<&Value>, out: &mut Vec<String>) {
    let spec = &object["spec"];
    let requests = spec["tokenRequests"]
        .as_array()
        .is_some_and(|all| !all.is_empty());
    let is_new = old.is_none_or(|old| old["spec"]["tokenRequests"] != spec["tokenRequests"]);
    if requests && is_new && spec["serviceAccountTokenInSecrets"].is_null() {
        out.push("spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes".to_owned());
    }
}
