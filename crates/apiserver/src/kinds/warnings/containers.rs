//! The containers of a Pod.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{items, whole};

const SECCOMP: &str = "container.seccomp.security.alpha.kubernetes.io";
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io";

/// Checks all containers of a Pod or template, at a path with a dot at its end.
pub(super) fn check(at: &str, pod: &Value, out: &mut Vec<String>) {
    let all = all(at, &pod["spec"]);
    for (path, container) in &all {
        annotations(at, pod, container, out);
        for part in ["limits", "requests"] {
            let amounts = &container["resources"][part];
            whole(&format!("{path}.resources.{part}"), amounts, "memory", out);
        }
        for part in ["limits", "requests"] {
            let amounts = &container["resources"][part];
            whole(
                &format!("{path}.resources.{part}"),
                amounts,
                "ephemeral-storage",
                out,
            );
        }
        environment(path, container, out);
    }
    ports(&all, out);
    names_of_ports(&all, out);
}

/// Returns all containers with their paths.
fn all<'a>(at: &str, spec: &'a Value) -> Vec<(String, &'a Value)> {
    ["initContainers", "containers", "ephemeralContainers"]
        .into_iter()
        .flat_map(|list| {
            items(&spec[list]).map(move |(place, container)| (format!("{at}spec.{list}[{place}]"), container))
        })
        .collect()
}

/// Checks annotations of a container that were replaced by its fields.
fn annotations(at: &str, pod: &Value, container: &Value, out: &mut Vec<String>) {
    let name = container["name"].as_str().unwrap_or_default();
    let context = &container["securityContext"];
    let key = format!("{SECCOMP}/{name}");
    if context["seccompProfile"].is_null() && pod["metadata"]["annotations"].get(&key).is_some() {
        out.push(format!(
            r#"{at}metadata.annotations[{key}]: non-functional in v1.27+; use the "seccompProfile" field instead"#
        ));
    }
    let key = format!("{APP_ARMOR}/{name}");
    let profile = pod["metadata"]["annotations"][&*key].as_str();
    let of_pod = &pod["spec"]["securityContext"]["appArmorProfile"];
    if let Some(profile) = profile
        && !at.is_empty()
        && context["appArmorProfile"].is_null()
        && !(same_profile(profile, of_pod))
    {
        out.push(format!(
            r#"{at}metadata.annotations[{key}]: deprecated since v1.30; use the "appArmorProfile" field instead"#
        ));
    }
}

/// Reports whether an annotation means the profile of a field.
fn same_profile(annotation: &str, field: &Value) -> bool {
    match annotation {
        "unconfined" => field["type"] == "Unconfined",
        "runtime/default" => field["type"] == "RuntimeDefault",
        other => {
            let name = other.strip_prefix("localhost/");
            field["type"] == "Localhost" && name.is_some() && field["localhostProfile"].as_str() == name
        }
    }
}

/// Says which variables hide others of the same name.
fn environment(path: &str, container: &Value, out: &mut Vec<String>) {
    let mut seen = Vec::new();
    for (place, variable) in items(&container["env"]) {
        let name = variable["name"].as_str().unwrap_or_default();
        if !seen.contains(&name) {
            seen.push(name);
            continue;
        }
        let reference = format!("$({name})");
        let value = variable["value"].as_str().unwrap_or_default();
        if !variable["valueFrom"].is_null() || value == reference || !value.contains(&reference) {
            out.push(format!(
                "{path}.env[{place}]: hides previous definition of {name:?}, which may be dropped when using apply"
            ));
        }
    }
}

/// Says which ports cannot be told apart.
fn ports(all: &[(String, &Value)], out: &mut Vec<String>) {
    let mut seen: BTreeMap<String, Vec<(String, &Value)>> = BTreeMap::new();
    for (path, container) in all {
        for (place, port) in items(&container["ports"]) {
            let path = format!("{path}.ports[{place}]");
            if !text(port, "hostIP").is_empty() && number(port, "hostPort") == 0 {
                out.push(format!("{path}: hostIP set without hostPort: {}", shown(port)));
            }
            let key = format!("{}/{}", number(port, "containerPort"), text(port, "protocol"));
            let others = seen.entry(key).or_default();
            for (other_path, other) in others.iter() {
                if let Some(how) = conflict(port, other) {
                    out.push(format!("{path}: {how} port definition with {other_path}"));
                }
            }
            others.push((path, port));
        }
    }
}

/// Returns how two ports of the same number and protocol are in conflict.
fn conflict(one: &Value, other: &Value) -> Option<&'static str> {
    let (port, other_port) = (number(one, "hostPort"), number(other, "hostPort"));
    let (address, other_address) = (text(one, "hostIP"), text(other, "hostIP"));
    if port == other_port && address == other_address {
        Some("duplicate")
    } else if port == 0 || other_port == 0 {
        Some("overlapping")
    } else {
        let is_one_empty = address.is_empty() != other_address.is_empty();
        (port == other_port && is_one_empty).then_some("dangerously ambiguous")
    }
}

fn names_of_ports(all: &[(String, &Value)], out: &mut Vec<String>) {
    let mut seen: BTreeMap<&str, String> = BTreeMap::new();
    for (path, container) in all {
        for (place, port) in items(&container["ports"]) {
            let (name, path) = (text(port, "name"), format!("{path}.ports[{place}]"));
            match seen.get(name) {
                _ if name.is_empty() => {}
                Some(other) => out.push(format!(
                    "{path}: duplicate port name {name:?} with {other}, services and probes that select ports by name will use {other}"
                )),
                None => {
                    seen.insert(name, path);
                }
            }
        }
    }
}

/// Returns a port as Go prints it.
fn shown(port: &Value) -> String {
    format!(
        "{{Name:{} HostPort:{} ContainerPort:{} Protocol:{} HostIP:{}}}",
        text(port, "name"),
        number(port, "hostPort"),
        number(port, "containerPort"),
        text(port, "protocol"),
        text(port, "hostIP")
    )
}

fn text<'a>(port: &'a Value, field: &str) -> &'a str {
    port[field].as_str().unwrap_or_default()
}

fn number(port: &Value, field: &str) -> i64 {
    port[field].as_i64().unwrap_or_default()
}
