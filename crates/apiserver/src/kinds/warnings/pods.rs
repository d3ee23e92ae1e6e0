//! Pods and Pod templates, in the order of Kubernetes.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{containers, items, networks, nodes, volumes, whole};

/// Annotations that were replaced by fields.
const ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        r#"non-functional in v1.16+; use the "priorityClassName" field instead"#,
    ),
    (
        "security.alpha.kubernetes.io/sysctls",
        r#"non-functional in v1.11+; use the "sysctls" field instead"#,
    ),
    (
        "security.alpha.kubernetes.io/unsafe-sysctls",
        r#"non-functional in v1.11+; use the "sysctls" field instead"#,
    ),
];
const SECCOMP: &str = "seccomp.security.alpha.kubernetes.io/pod";

/// Checks a Pod, or a template; `at` is its path with a dot at its end, and empty for a Pod.
pub(super) fn check(at: &str, pod: &Value, out: &mut Vec<String>) {
    let spec = &pod["spec"];
    placement(at, spec, out);
    let annotations = &pod["metadata"]["annotations"];
    for (key, why) in ANNOTATIONS {
        if annotations.get(key).is_some() {
            out.push(format!("{at}metadata.annotations[{key}]: {why}"));
        }
    }
    volumes::check(at, spec, out);
    repeated(&format!("{at}spec.hostAliases"), &spec["hostAliases"], "ip", out);
    let secrets = format!("{at}spec.imagePullSecrets");
    repeated(&secrets, &spec["imagePullSecrets"], "name", out);
    for (place, secret) in items(&spec["imagePullSecrets"]) {
        if secret["name"].as_str().unwrap_or_default().is_empty() {
            out.push(format!("{secrets}[{place}].name: invalid empty name \"\""));
        }
    }
    for resource in ["memory", "ephemeral-storage"] {
        whole(&format!("{at}spec.overhead"), &spec["overhead"], resource, out);
    }
    if spec["securityContext"]["seccompProfile"].is_null() && annotations.get(SECCOMP).is_some() {
        out.push(format!(
            r#"{at}metadata.annotations[{SECCOMP}]: non-functional in v1.27+; use the "seccompProfile" field instead"#
        ));
    }
    containers::check(at, pod, out);
    if spec["terminationGracePeriodSeconds"]
        .as_i64()
        .is_some_and(|seconds| seconds < 0)
    {
        out.push(format!(
            "{at}spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1"
        ));
    }
    for affinity in ["podAffinity", "podAntiAffinity"] {
        affinities(
            &format!("{at}spec.affinity.{affinity}"),
            &spec["affinity"][affinity],
            out,
        );
    }
    for (place, server) in items(&spec["dnsConfig"]["nameservers"]) {
        networks::address(&format!("{at}spec.dnsConfig.nameservers[{place}]"), server, out);
    }
    for (place, alias) in items(&spec["hostAliases"]) {
        networks::address(&format!("{at}spec.hostAliases[{place}].ip"), &alias["ip"], out);
    }
}

/// Checks which nodes are chosen.
fn placement(at: &str, spec: &Value, out: &mut Vec<String>) {
    let named = |label: &str| format!("{at}spec.nodeSelector[{label}]");
    nodes::labels(&spec["nodeSelector"], named, out);
    let affinity = &spec["affinity"]["nodeAffinity"];
    let path = format!("{at}spec.affinity.nodeAffinity");
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    for (place, term) in items(&affinity[required]["nodeSelectorTerms"]) {
        let path = format!("{path}.{required}.nodeSelectorTerms[{place}]");
        nodes::term(term, &path, false, out);
    }
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    for (place, term) in items(&affinity[preferred]) {
        let path = format!("{path}.{preferred}[{place}].preference");
        nodes::term(&term["preference"], &path, true, out);
    }
    for (place, constraint) in items(&spec["topologySpreadConstraints"]) {
        let path = format!("{at}spec.topologySpreadConstraints[{place}]");
        let key = constraint["topologyKey"].as_str().unwrap_or_default();
        if let Some(why) = nodes::deprecated(key) {
            out.push(format!("{path}.topologyKey: {key} is {why}"));
        }
        no_selector(&path, constraint, out);
    }
}

fn affinities(path: &str, affinity: &Value, out: &mut Vec<String>) {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    for (place, term) in items(&affinity[required]) {
        no_selector(&format!("{path}.{required}[{place}]"), term, out);
    }
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    for (place, term) in items(&affinity[preferred]) {
        let path = format!("{path}.{preferred}[{place}].podAffinityTerm");
        no_selector(&path, &term["podAffinityTerm"], out);
    }
}

/// Says that a term selects nothing.
fn no_selector(path: &str, term: &Value, out: &mut Vec<String>) {
    if term["labelSelector"].is_null() {
        out.push(format!(
            "{path}.labelSelector: a null labelSelector results in matching no pod"
        ));
    }
}

/// Says which items of a list have the same key as one before them.
fn repeated(path: &str, list: &Value, key: &str, out: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for (place, item) in items(list) {
        let text = item[key].as_str().unwrap_or_default();
        if !seen.insert(text) {
            out.push(format!("{path}[{place}].{key}: duplicate {key} {text:?}"));
        }
    }
}
