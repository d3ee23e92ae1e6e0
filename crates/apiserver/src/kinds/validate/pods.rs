//! The validation of Pods and Pod templates.

use serde_json::{Value, json};

use crate::object::names;
use crate::status::Cause;

/// Checks a `PodSpec`.
pub(super) fn spec(spec: &Value, path: &str, causes: &mut Vec<Cause>) {
    let containers = spec["containers"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    if containers.is_empty() {
        causes.push(Cause::required(format!("{path}.containers"), ""));
    }
    let volumes = volumes(spec, path, causes);
    let mut seen = Vec::new();
    list(
        containers,
        &format!("{path}.containers"),
        &volumes,
        &mut seen,
        causes,
    );
    let init = spec["initContainers"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    list(
        init,
        &format!("{path}.initContainers"),
        &volumes,
        &mut seen,
        causes,
    );
}

fn list<'a>(
    containers: &'a [Value],
    path: &str,
    volumes: &[&str],
    seen: &mut Vec<&'a str>,
    causes: &mut Vec<Cause>,
) {
    for (place, container) in containers.iter().enumerate() {
        let path = format!("{path}[{place}]");
        let name = container["name"].as_str().unwrap_or_default();
        if name.is_empty() {
            causes.push(Cause::required(format!("{path}.name"), ""));
        } else {
            causes.extend(
                names::dns_label(name)
                    .into_iter()
                    .map(|why| Cause::invalid(format!("{path}.name"), &json!(name), why)),
            );
        }
        let image = container["image"].as_str().unwrap_or_default();
        if image.is_empty() {
            // As in Kubernetes, which checks a container without a name no further.
            if !name.is_empty() {
                causes.push(Cause::required(format!("{path}.image"), ""));
            }
        } else if image.trim() != image {
            causes.push(Cause::invalid(
                format!("{path}.image"),
                &container["image"],
                "must not have leading or trailing whitespace",
            ));
        }
        ports(container, &path, causes);
        environment(container, &path, causes);
        mounts(container, &path, volumes, causes);
        if !name.is_empty() {
            if seen.contains(&name) {
                causes.push(Cause::duplicate(format!("{path}.name"), &json!(name)));
            }
            seen.push(name);
        }
    }
}

fn ports(container: &Value, path: &str, causes: &mut Vec<Cause>) {
    for (place, port) in container["ports"].as_array().into_iter().flatten().enumerate() {
        let field = format!("{path}.ports[{place}].containerPort");
        match port["containerPort"].as_i64().unwrap_or_default() {
            0 => causes.push(Cause::required(field, "")),
            1..=65535 => {}
            _ => causes.push(Cause::invalid(
                field,
                &port["containerPort"],
                "must be between 1 and 65535, inclusive",
            )),
        }
    }
}

fn environment(container: &Value, path: &str, causes: &mut Vec<Cause>) {
    for (place, variable) in container["env"].as_array().into_iter().flatten().enumerate() {
        if variable["name"].as_str().unwrap_or_default().is_empty() {
            causes.push(Cause::required(format!("{path}.env[{place}].name"), ""));
        }
        let both =
            variable["valueFrom"].is_object() && !variable["value"].as_str().unwrap_or_default().is_empty();
        if both {
            causes.push(Cause::invalid(
                format!("{path}.env[{place}].valueFrom"),
                &json!(""),
                "may not be specified when `value` is not empty",
            ));
        }
    }
}

/// Checks the volumes and returns their names.
fn volumes<'a>(spec: &'a Value, path: &str, causes: &mut Vec<Cause>) -> Vec<&'a str> {
    let mut names_of_volumes: Vec<&str> = Vec::new();
    for (place, volume) in spec["volumes"].as_array().into_iter().flatten().enumerate() {
        let name = volume["name"].as_str().unwrap_or_default();
        if name.is_empty() {
            causes.push(Cause::required(format!("{path}.volumes[{place}].name"), ""));
        } else if names_of_volumes.contains(&name) {
            causes.push(Cause::duplicate(
                format!("{path}.volumes[{place}].name"),
                &json!(name),
            ));
        }
        names_of_volumes.push(name);
    }
    names_of_volumes
}

fn mounts(container: &Value, path: &str, volumes: &[&str], causes: &mut Vec<Cause>) {
    for (place, mount) in container["volumeMounts"]
        .as_array()
        .into_iter()
        .flatten()
        .enumerate()
    {
        let name = mount["name"].as_str().unwrap_or_default();
        if !volumes.contains(&name) {
            causes.push(Cause {
                reason: "FieldValueNotFound",
                field: format!("{path}.volumeMounts[{place}].name"),
                message: format!("Not found: {name:?}"),
            });
        }
    }
}

/// Checks the immutable fields of a Pod.
pub(super) fn check_update(new: &Value, old: &Value, causes: &mut Vec<Cause>) {
    let fixed = |object: &Value| {
        let mut spec = object["spec"].clone();
        for list in ["containers", "initContainers"] {
            let containers = spec.get_mut(list).and_then(Value::as_array_mut);
            for container in containers.into_iter().flatten() {
                if let Some(container) = container.as_object_mut() {
                    container.remove("image");
                }
            }
        }
        if let Some(spec) = spec.as_object_mut() {
            for field in [
                "activeDeadlineSeconds",
                "tolerations",
                "terminationGracePeriodSeconds",
                "schedulingGates",
            ] {
                spec.remove(field);
            }
            spec.retain(|_, value| !value.is_null());
        }
        spec
    };
    if fixed(new) != fixed(old) {
        causes.push(Cause::forbidden(
            "spec",
            "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
        ));
    }
}
