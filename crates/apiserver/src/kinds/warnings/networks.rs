//! Services, their endpoints, and other kinds with addresses.

use serde_json::Value;

use super::{addresses, items};

/// The endpoints that these write are in standard form, so Kubernetes does not look at them.
const CONTROLLERS: [&str; 2] = [
    "endpointslice-controller.k8s.io",
    "endpointslicemirroring-controller.k8s.io",
];

/// Checks an object that is written; `is_new` unless it replaces another one.
pub(super) fn check(kind: &str, object: &Value, is_new: bool, out: &mut Vec<String>) {
    match kind {
        "Service" => service(object, out),
        "Endpoints" => endpoints(object, out),
        "EndpointSlice" => slice(object, is_new, out),
        "Ingress" if is_new => ingress(object, out),
        "NetworkPolicy" => policy(object, out),
        "Node" => node(object, out),
        _ => {}
    }
}

/// Checks the status of an object.
pub(super) fn status(kind: &str, object: &Value, out: &mut Vec<String>) {
    let status = &object["status"];
    match kind {
        "Service" | "Ingress" => {
            for (place, ingress) in items(&status["loadBalancer"]["ingress"]) {
                let path = format!("status.loadBalancer.ingress[{place}]");
                address(&path, &ingress["ip"], out);
            }
        }
        "Pod" => {
            for list in ["podIPs", "hostIPs"] {
                for (place, item) in items(&status[list]) {
                    address(&format!("status.{list}[{place}].ip"), &item["ip"], out);
                }
            }
        }
        _ => {}
    }
}

/// Checks an address.
pub(super) fn address(path: &str, value: &Value, out: &mut Vec<String>) {
    out.extend(value.as_str().and_then(|value| addresses::address(path, value)));
}

/// Checks a range.
fn range(path: &str, value: &Value, out: &mut Vec<String>) {
    out.extend(
        value
            .as_str()
            .into_iter()
            .flat_map(|value| addresses::range(path, value)),
    );
}

fn service(object: &Value, out: &mut Vec<String>) {
    const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
    if object["metadata"]["annotations"].get(HINTS).is_some() {
        out.push(format!(
            "annotation {HINTS} is deprecated, please use service.kubernetes.io/topology-mode instead"
        ));
    }
    let spec = &object["spec"];
    let text = |field: &str| spec[field].as_str().unwrap_or_default();
    let is_headless = text("clusterIP") == "None";
    if !is_headless && !text("clusterIP").is_empty() {
        for (place, value) in items(&spec["clusterIPs"]) {
            address(&format!("spec.clusterIPs[{place}]"), value, out);
        }
    }
    let has_external = items(&spec["externalIPs"]).next().is_some();
    if is_headless && text("type") == "ClusterIP" {
        let ignored = [
            ("loadBalancerIP", !text("loadBalancerIP").is_empty()),
            ("externalIPs", has_external),
            ("SessionAffinity", text("sessionAffinity") != "None"),
        ];
        let ignored = ignored.into_iter().filter(|(_, is_set)| *is_set);
        out.extend(ignored.map(|(field, _)| format!("spec.{field} is ignored for headless services")));
    }
    for (place, value) in items(&spec["externalIPs"]) {
        address(&format!("spec.externalIPs[{place}]"), value, out);
    }
    address("spec.loadBalancerIP", &spec["loadBalancerIP"], out);
    for (place, value) in items(&spec["loadBalancerSourceRanges"]) {
        range(&format!("spec.loadBalancerSourceRanges[{place}]"), value, out);
    }
    let is_name = text("type") == "ExternalName";
    if is_name && has_external {
        out.push(r#"spec.externalIPs is ignored when spec.type is "ExternalName""#.to_owned());
    }
    if !is_name && !text("externalName").is_empty() {
        out.push(r#"spec.externalName is ignored when spec.type is not "ExternalName""#.to_owned());
    }
    if text("trafficDistribution") == "PreferClose" {
        out.push(r#"spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone""#.to_owned());
    }
}

fn endpoints(object: &Value, out: &mut Vec<String>) {
    if object["metadata"]["labels"]["endpoints.kubernetes.io/managed-by"] == "endpoint-controller" {
        return;
    }
    for (place, subset) in items(&object["subsets"]) {
        for list in ["addresses", "notReadyAddresses"] {
            for (number, item) in items(&subset[list]) {
                let path = format!("subsets[{place}].{list}[{number}].ip");
                address(&path, &item["ip"], out);
            }
        }
    }
}

fn slice(object: &Value, is_new: bool, out: &mut Vec<String>) {
    if is_new && object["addressType"] == "FQDN" {
        out.push("spec.addressType: FQDN endpoints are deprecated".to_owned());
    }
    let manager = &object["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"];
    if CONTROLLERS.iter().any(|name| manager == name) {
        return;
    }
    for (place, endpoint) in items(&object["endpoints"]) {
        for (number, value) in items(&endpoint["addresses"]) {
            address(&format!("endpoints[{place}].addresses[{number}]"), value, out);
        }
    }
}

fn ingress(object: &Value, out: &mut Vec<String>) {
    const CLASS: &str = "kubernetes.io/ingress.class";
    if object["metadata"]["annotations"].get(CLASS).is_some() && object["spec"]["ingressClassName"].is_null()
    {
        out.push(format!(
            "annotation {CLASS:?} is deprecated, please use 'spec.ingressClassName' instead"
        ));
    }
}

fn policy(object: &Value, out: &mut Vec<String>) {
    for (rules, peers) in [("ingress", "from"), ("egress", "to")] {
        for (place, rule) in items(&object["spec"][rules]) {
            for (number, peer) in items(&rule[peers]) {
                let path = format!("spec.{rules}[{place}].{peers}[{number}].ipBlock");
                range(&format!("{path}.cidr"), &peer["ipBlock"]["cidr"], out);
                for (place, value) in items(&peer["ipBlock"]["except"]) {
                    range(&format!("{path}.except[{place}]"), value, out);
                }
            }
        }
    }
}

fn node(object: &Value, out: &mut Vec<String>) {
    let spec = &object["spec"];
    if !spec["configSource"].is_null() {
        out.push("spec.configSource: the feature is removed".to_owned());
    }
    if !spec["externalID"].as_str().unwrap_or_default().is_empty() {
        out.push("spec.externalID: this field is deprecated, and is unused by Kubernetes".to_owned());
    }
    for (place, value) in items(&spec["podCIDRs"]) {
        range(&format!("spec.podCIDRs[{place}]"), value, out);
    }
}
