//! The validation of Services.

use serde_json::{Value, json};

use crate::status::Cause;

const TYPES: [&str; 4] = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];

/// Checks a Service.
pub(super) fn check(object: &Value, causes: &mut Vec<Cause>) {
    let spec = &object["spec"];
    let ty = spec["type"].as_str().unwrap_or_default();
    let ports = spec["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    let headless = spec["clusterIP"] == "None";
    if ports.is_empty() && !headless && ty != "ExternalName" {
        causes.push(Cause::required("spec.ports", ""));
    }
    if ty == "ExternalName" && spec["externalName"].as_str().unwrap_or_default().is_empty() {
        causes.push(Cause::required("spec.externalName", ""));
    }
    let mut seen: Vec<&Value> = Vec::new();
    for (place, port) in ports.iter().enumerate() {
        let path = format!("spec.ports[{place}]");
        let name = &port["name"];
        if name.as_str().unwrap_or_default().is_empty() {
            if ports.len() > 1 {
                causes.push(Cause::required(format!("{path}.name"), ""));
            }
        } else if seen.contains(&name) {
            causes.push(Cause::duplicate(format!("{path}.name"), name));
        }
        seen.push(name);
        let number = port["port"].as_i64().unwrap_or_default();
        if !(1..=65535).contains(&number) {
            causes.push(Cause::invalid(
                format!("{path}.port"),
                &json!(number),
                "must be between 1 and 65535, inclusive",
            ));
        }
        let target = &port["targetPort"];
        if target
            .as_i64()
            .is_some_and(|number| !(1..=65535).contains(&number))
        {
            causes.push(Cause::invalid(
                format!("{path}.targetPort"),
                target,
                "must be between 1 and 65535, inclusive",
            ));
        }
    }
    let addresses = spec["clusterIPs"].as_array().is_some_and(|list| !list.is_empty());
    if addresses && spec["clusterIP"].as_str().unwrap_or_default().is_empty() && ty != "ExternalName" {
        let why = "must be empty when `clusterIP` is not specified";
        causes.push(Cause::invalid("spec.clusterIPs", &spec["clusterIPs"], why));
    }
    crate::object::metadata::check_labels(&spec["selector"], "spec.selector", causes);
    if !TYPES.contains(&ty) {
        causes.push(Cause::not_supported_text("spec.type", ty, &TYPES));
    }
}

/// Checks the immutable fields of a Service.
pub(super) fn check_update(new: &Value, old: &Value, causes: &mut Vec<Cause>) {
    let (before, after) = (&old["spec"], &new["spec"]);
    let stays = before["type"] != "ExternalName" && after["type"] != "ExternalName";
    if stays && before["clusterIP"].is_string() && before["clusterIP"] != after["clusterIP"] {
        causes.push(Cause::invalid(
            "spec.clusterIPs[0]",
            &json!([after["clusterIP"]]),
            "may not change once set",
        ));
    }
}
