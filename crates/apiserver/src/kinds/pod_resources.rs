//! The resources of Pods: the defaults of those of a whole Pod, and the QoS class.
//!
//! From `pkg/apis/core/v1/defaults.go`, `pkg/apis/core/v1/helper/qos` and `component-helpers/resource` of Kubernetes.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::quantity;

/// Amounts by the names of resources.
type Amounts = BTreeMap<String, String>;

fn is_hugepages(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// Reports whether a Pod as a whole may have a resource.
fn is_of_pods(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || is_hugepages(name)
}

fn amounts(holder: &Value, what: &str) -> Amounts {
    let map = holder["resources"][what].as_object().into_iter().flatten();
    map.filter_map(|(name, amount)| Some((name.clone(), amount.as_str()?.to_owned())))
        .collect()
}

fn containers<'a>(spec: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    spec[list].as_array().into_iter().flatten()
}

fn is_zero(amount: &str) -> bool {
    quantity::compare(amount, "0") == Some(Ordering::Equal)
}

fn add(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let total = sum.get(name).and_then(|before| quantity::sum(before, amount));
        sum.insert(name.clone(), total.unwrap_or_else(|| amount.clone()));
    }
}

fn raise(highest: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let is_lower = highest
            .get(name)
            .is_none_or(|before| quantity::compare(before, amount) == Some(Ordering::Less));
        if is_lower {
            highest.insert(name.clone(), amount.clone());
        }
    }
}

/// Returns what the containers of a Pod need together: those that run at the same time, at the time with the most.
fn aggregated(spec: &Value, what: &str) -> Amounts {
    let (mut all, mut sidecars, mut highest) = (Amounts::new(), Amounts::new(), Amounts::new());
    for container in containers(spec, "containers") {
        add(&mut all, &amounts(container, what));
    }
    for container in containers(spec, "initContainers") {
        let mut own = amounts(container, what);
        if container["restartPolicy"] == "Always" {
            add(&mut all, &own);
            add(&mut sidecars, &own);
            own.clone_from(&sidecars);
        } else {
            add(&mut own, &sidecars);
        }
        raise(&mut highest, &own);
    }
    raise(&mut all, &highest);
    all
}

/// Sets the defaults of `spec.resources`, after those of the containers. Without any resource there, it stays empty.
pub(super) fn set_defaults(spec: &mut Value) {
    if !spec["resources"].is_object() {
        return;
    }
    let (mut limits, mut requests) = (amounts(spec, "limits"), amounts(spec, "requests"));
    if limits.is_empty() && requests.is_empty() {
        return;
    }
    for (name, amount) in aggregated(spec, "limits") {
        if is_hugepages(&name) {
            limits.entry(name).or_insert(amount);
        }
    }
    if limits.is_empty() {
        return;
    }
    for (name, amount) in aggregated(spec, "requests") {
        if is_of_pods(&name) && !is_hugepages(&name) {
            requests.entry(name).or_insert(amount);
        }
    }
    for (name, amount) in limits.iter().filter(|(name, _)| is_of_pods(name)) {
        requests.entry(name.clone()).or_insert_with(|| amount.clone());
    }
    spec["resources"]["limits"] = json!(limits);
    if !requests.is_empty() {
        spec["resources"]["requests"] = json!(requests);
    }
}

/// Returns the QoS class of a Pod. The resources of the Pod as a whole count instead of those of its containers.
pub(super) fn qos_class(spec: &Value) -> &'static str {
    let counts = |name: &str, amount: &str| matches!(name, "cpu" | "memory") && !is_zero(amount);
    let (mut requests, mut limits, mut guaranteed) = (Amounts::new(), Amounts::new(), true);
    let mut count = |holder: &Value, needs_limits: bool| {
        let of = |what| {
            let mut amounts = amounts(holder, what);
            amounts.retain(|name, amount| counts(name, amount));
            amounts
        };
        let own = of("limits");
        guaranteed &= own.len() == 2 || !needs_limits;
        add(&mut requests, &of("requests"));
        add(&mut limits, &own);
    };
    let of_pod = ["requests", "limits"].iter().any(|what| {
        let amounts = amounts(spec, what);
        amounts.keys().any(|name| is_of_pods(name))
    });
    if of_pod {
        count(spec, !amounts(spec, "limits").is_empty());
    } else {
        for list in ["initContainers", "containers"] {
            containers(spec, list).for_each(|container| count(container, true));
        }
    }
    if requests.is_empty() && limits.is_empty() {
        return "BestEffort";
    }
    let is_limit = |(name, amount): (&String, &String)| {
        limits
            .get(name)
            .is_some_and(|limit| quantity::compare(limit, amount) == Some(Ordering::Equal))
    };
    if guaranteed && requests.len() == limits.len() && requests.iter().all(is_limit) {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(containers: &Value, resources: &Value) -> (Value, &'static str) {
        let mut spec = json!({"containers": containers, "resources": resources});
        set_defaults(&mut spec);
        let class = qos_class(&spec);
        (spec["resources"].take(), class)
    }

    /// From the responses of a kube-apiserver 1.35.
    #[test]
    fn resources_of_a_pod_count_instead_of_those_of_its_containers() {
        let whole = json!({"cpu": "1", "memory": "1Gi"});
        let small = json!({"cpu": "100m", "memory": "1Mi"});
        let bare = json!([{"name": "c"}]);
        for (containers, given, resources, class) in [
            (
                bare.clone(),
                json!({"limits": whole}),
                json!({"limits": whole, "requests": whole}),
                "Guaranteed",
            ),
            (
                bare.clone(),
                json!({"requests": {"cpu": "1"}}),
                json!({"requests": {"cpu": "1"}}),
                "Burstable",
            ),
            (
                bare.clone(),
                json!({"requests": {"cpu": "0"}}),
                json!({"requests": {"cpu": "0"}}),
                "BestEffort",
            ),
            (bare, json!({}), json!({}), "BestEffort"),
            (
                json!([{"resources": {"requests": small}}]),
                json!({"limits": whole}),
                json!({"limits": whole, "requests": small}),
                "Burstable",
            ),
            (
                json!([{"resources": {"requests": {"cpu": "100m", "ephemeral-storage": "1Gi"}}}, {"resources": {"requests": {"cpu": "200m"}}}]),
                json!({"limits": {"memory": "1Gi"}}),
                json!({"limits": {"memory": "1Gi"}, "requests": {"cpu": "300m", "memory": "1Gi"}}),
                "Burstable",
            ),
            (
                json!([{"resources": {"limits": {"hugepages-2Mi": "2Mi"}, "requests": {"hugepages-2Mi": "2Mi", "cpu": "1"}}}]),
                json!({"requests": {"memory": "1Gi"}}),
                json!({"limits": {"hugepages-2Mi": "2Mi"}, "requests": {"cpu": "1", "hugepages-2Mi": "2Mi", "memory": "1Gi"}}),
                "Burstable",
            ),
        ] {
            assert_eq!(settled(&containers, &given), (resources, class), "{given}");
        }
    }

    #[test]
    fn containers_that_run_at_the_same_time_are_added() {
        let cpu = |amount: &str| json!({"resources": {"requests": {"cpu": amount}}});
        let mut sidecar = cpu("100m");
        sidecar["restartPolicy"] = json!("Always");
        let spec = json!({"containers": [cpu("200m"), cpu("1")], "initContainers": [cpu("1300m"), sidecar, cpu("1250m")]});
        assert_eq!(aggregated(&spec, "requests")["cpu"], "1350m");
        assert_eq!(qos_class(&spec), "Burstable");
        let equal = json!({"cpu": "1", "memory": "1024Mi"});
        let spec = json!({"containers": [{"resources": {"requests": equal, "limits": {"cpu": "1000m", "memory": "1Gi"}}}]});
        assert_eq!(qos_class(&spec), "Guaranteed");
        let none = json!({"containers": [cpu("0")]});
        assert_eq!(qos_class(&none), "BestEffort");
    }
}
