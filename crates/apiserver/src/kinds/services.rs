//! The fields of Services that the server allocates: cluster IPs, node ports, IP families.

use std::net::Ipv4Addr;

use serde_json::{Map, Value, json};

/// The first cluster IP, as with the default `--service-cluster-ip-range`; the Service `kubernetes` has it.
pub(crate) const FIRST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// The node ports, `--service-node-port-range`.
const NODE_PORTS: std::ops::Range<u32> = 30000..32768;

/// The allocator of cluster IPs and node ports.
#[derive(Debug, Clone, Default)]
pub struct Addresses {
    /// The number of allocated cluster IPs.
    pub given: u32,
    /// The number of allocated node ports.
    pub ports: u32,
}

/// Allocates the missing fields of a Service. The addresses of deleted Services are not reused.
pub(super) fn allocate(addresses: &mut Addresses, object: &mut Value, old: Option<&Value>) {
    let Some(spec) = object["spec"].as_object_mut() else {
        return;
    };
    let ty = spec
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    if let Some(old) = old.and_then(|old| old["spec"].as_object()) {
        drop_of_type(spec, &ty, old);
    }
    if ty == "ExternalName" {
        return;
    }
    for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        if let Some(before) = old.and_then(|old| old["spec"].get(field))
            && spec.get(field).is_none_or(Value::is_null)
        {
            spec.insert(field.to_owned(), before.clone());
        }
    }
    let address = spec
        .get("clusterIP")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let chosen = spec.get("clusterIPs").and_then(Value::as_array);
    if address.is_empty() && old.is_none() && chosen.is_some_and(|list| !list.is_empty()) {
        // The validation refuses addresses without the first of them.
        return;
    }
    if address.is_empty() {
        let next = u32::from(FIRST) + addresses.given;
        addresses.given += 1;
        spec.insert("clusterIP".to_owned(), json!(Ipv4Addr::from(next).to_string()));
    }
    let address = spec.get("clusterIP").cloned().unwrap_or_default();
    spec.insert("clusterIPs".to_owned(), json!([address]));
    // A headless Service without a selector is dual-stack, since its endpoints may be of either family.
    let selects = spec
        .get("selector")
        .and_then(Value::as_object)
        .is_some_and(|selector| !selector.is_empty());
    let both = address == "None" && !selects && !spec.contains_key("ipFamilyPolicy");
    let (families, policy) = if both {
        (json!(["IPv4", "IPv6"]), "RequireDualStack")
    } else {
        (json!(["IPv4"]), "SingleStack")
    };
    spec.entry("ipFamilies").or_insert(families);
    spec.entry("ipFamilyPolicy").or_insert_with(|| json!(policy));
    health_check(addresses, spec, &ty, old);
    let wants_ports = ty == "NodePort"
        || ty == "LoadBalancer" && spec.get("allocateLoadBalancerNodePorts") != Some(&json!(false));
    let ports = spec.get_mut("ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten() {
        let has = port["nodePort"].as_i64().unwrap_or_default() != 0;
        if wants_ports && !has {
            let before = old.and_then(|old| {
                old["spec"]["ports"]
                    .as_array()?
                    .iter()
                    .find(|other| other["port"] == port["port"] && other["protocol"] == port["protocol"])
                    .and_then(|other| other.get("nodePort").cloned())
            });
            port["nodePort"] = before.unwrap_or_else(|| node_port(addresses));
        }
    }
}

/// Removes the fields that only the previous type has, unless the update changes them.
fn drop_of_type(spec: &mut Map<String, Value>, ty: &str, old: &Map<String, Value>) {
    let before = old.get("type").and_then(Value::as_str).unwrap_or_default();
    let outside = |ty: &str, spec: &Map<String, Value>| {
        matches!(ty, "NodePort" | "LoadBalancer") || ty == "ClusterIP" && spec.contains_key("externalIPs")
    };
    let mut leaves: Vec<&str> = Vec::new();
    if before == "LoadBalancer" && ty != "LoadBalancer" {
        leaves.extend([
            "allocateLoadBalancerNodePorts",
            "loadBalancerClass",
            "healthCheckNodePort",
        ]);
    }
    if outside(before, old) && !outside(ty, spec) {
        leaves.push("externalTrafficPolicy");
    }
    for field in leaves {
        if spec.get(field) == old.get(field) {
            spec.remove(field);
        }
    }
    let has_ports = |ty: &str| matches!(ty, "NodePort" | "LoadBalancer");
    if !has_ports(before) || has_ports(ty) {
        return;
    }
    let ports = |spec: &Map<String, Value>| -> Vec<Value> {
        let list = spec.get("ports").and_then(Value::as_array);
        list.into_iter()
            .flatten()
            .filter_map(|port| port.get("nodePort").cloned())
            .collect()
    };
    // Releases the node ports, unless the update sets one that the Service did not have before.
    let had = ports(old);
    if ports(spec).iter().all(|port| had.contains(port)) {
        let list = spec.get_mut("ports").and_then(Value::as_array_mut);
        for port in list.into_iter().flatten().filter_map(Value::as_object_mut) {
            port.remove("nodePort");
        }
    }
}

fn node_port(addresses: &mut Addresses) -> Value {
    let count = NODE_PORTS.end - NODE_PORTS.start;
    addresses.ports += 1;
    json!(NODE_PORTS.start + addresses.ports % count)
}

/// Allocates the health check port of a load balancer with `externalTrafficPolicy: Local`.
fn health_check(addresses: &mut Addresses, spec: &mut Map<String, Value>, ty: &str, old: Option<&Value>) {
    const FIELD: &str = "healthCheckNodePort";
    if ty != "LoadBalancer" || spec.get("externalTrafficPolicy") != Some(&json!("Local")) {
        return;
    }
    let none = |value: Option<&Value>| value.is_none_or(|value| value.is_null() || *value == 0);
    if none(spec.get(FIELD)) {
        let before = old
            .and_then(|old| old["spec"].get(FIELD))
            .filter(|before| !none(Some(before)));
        let port = before.cloned().unwrap_or_else(|| node_port(addresses));
        spec.insert(FIELD.to_owned(), port);
    }
}
