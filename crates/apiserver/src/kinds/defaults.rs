//! The defaults of built-in kinds.
//!
//! As in Kubernetes, defaults belong to structs: a container in a Deployment gets the same defaults as one in a Pod.
//! `defaults.json` holds the constants; defaults that depend on other fields are code.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use super::codec::{GoType, StructName};
use super::pod_resources;

type Fields = Map<String, Value>;

static CONSTANTS: LazyLock<HashMap<String, Vec<(String, Value)>>> = LazyLock::new(|| {
    // The file is part of the program and a test reads it.
    let table: HashMap<String, Fields> =
        serde_json::from_str(include_str!("defaults.json")).unwrap_or_default();
    table
        .into_iter()
        .map(|(name, fields)| {
            (
                name,
                fields.into_iter().filter(|(_, value)| !value.is_null()).collect(),
            )
        })
        .collect()
});

/// Sets the defaults of an object of a built-in kind.
pub fn set(ty: GoType, kind: &str, object: &mut Value) {
    of_kind(kind, object);
    ty.each_struct(object, &mut |name, fields| {
        set_dependent(name, kind, fields);
        for (field, value) in CONSTANTS.get(name).into_iter().flatten() {
            fill(fields, field, || value.clone());
        }
    });
}

fn is_absent(value: Option<&Value>) -> bool {
    value.is_none_or(|value| value.is_null() || value == "")
}

fn fill(fields: &mut Fields, name: &str, value: impl FnOnce() -> Value) {
    if is_absent(fields.get(name)) {
        fields.insert(name.to_owned(), value());
    }
}

fn text<'a>(fields: &'a Fields, name: &str) -> &'a str {
    fields.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn object_at<'a>(fields: &'a mut Fields, name: &str) -> Option<&'a mut Fields> {
    fields.get_mut(name).and_then(Value::as_object_mut)
}

/// Sets the defaults that belong to the object as a whole.
fn of_kind(kind: &str, object: &mut Value) {
    match kind {
        "Namespace" => namespace(object),
        "Job" => job(object),
        "StatefulSet" => stateful_set(object),
        "DaemonSet" => daemon_set(object),
        "Pod" => {
            let spec = &mut object["spec"];
            if spec.is_object() && is_absent(spec.get("enableServiceLinks")) {
                spec["enableServiceLinks"] = json!(true);
            }
            requests_from_limits(spec);
            pod_resources::set_defaults(spec);
        }
        "HorizontalPodAutoscaler"
            if object["apiVersion"] == "autoscaling/v2" && is_empty(object, "metrics") =>
        {
            object["spec"]["metrics"] = json!([{"type": "Resource", "resource": {
                    "name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}]);
        }
        "HorizontalPodAutoscaler"
            if object["apiVersion"] == "autoscaling/v1"
                && is_absent(object["spec"].get("targetCPUUtilizationPercentage")) =>
        {
            object["spec"]["targetCPUUtilizationPercentage"] = json!(80);
        }
        "NetworkPolicy" => {
            let spec = &mut object["spec"];
            if spec["policyTypes"].as_array().is_none_or(Vec::is_empty) {
                let egress = spec["egress"].as_array().is_some_and(|rules| !rules.is_empty());
                spec["policyTypes"] = if egress {
                    json!(["Ingress", "Egress"])
                } else {
                    json!(["Ingress"])
                };
            }
        }
        "Node" => {
            pod_ranges(&mut object["spec"]);
            let status = &mut object["status"];
            if is_absent(status.get("allocatable")) && status["capacity"].is_object() {
                status["allocatable"] = status["capacity"].clone();
            }
        }
        "CustomResourceDefinition" => crate::crd::apply_defaults(object),
        _ => {}
    }
    if kind == "ReplicationController" {
        let labels = object["spec"]["template"]["metadata"]["labels"].clone();
        if labels.is_object() {
            if object["spec"]["selector"].as_object().is_none_or(Map::is_empty) {
                object["spec"]["selector"] = labels;
            }
            labels_of_template(object);
        }
    }
}

/// The first range of a Node stands in a field of its own too, which wins if both are set.
fn pod_ranges(spec: &mut Value) {
    let Some(spec) = spec.as_object_mut() else { return };
    let first = |spec: &Fields| spec.get("podCIDRs")?.get(0)?.as_str().map(str::to_owned);
    let (one, list) = (text(spec, "podCIDR").to_owned(), first(spec));
    if !one.is_empty() && list.as_ref() != Some(&one) {
        spec.insert("podCIDRs".to_owned(), json!([one]));
    } else if let Some(first) = list.filter(|first| !first.is_empty()) {
        spec.insert("podCIDR".to_owned(), json!(first));
    }
}

/// Returns whether a list of the spec is empty.
fn is_empty(object: &Value, list: &str) -> bool {
    object["spec"]
        .get(list)
        .and_then(Value::as_array)
        .is_none_or(Vec::is_empty)
}

/// Claim templates have `apiVersion` and `kind`.
fn stateful_set(object: &mut Value) {
    let claims = object["spec"]
        .get_mut("volumeClaimTemplates")
        .and_then(Value::as_array_mut);
    for claim in claims.into_iter().flatten().filter_map(Value::as_object_mut) {
        fill(claim, "apiVersion", || json!("v1"));
        fill(claim, "kind", || json!("PersistentVolumeClaim"));
    }
}

/// The template generation stands in the annotation that earlier versions used.
fn daemon_set(object: &mut Value) {
    let Some(metadata) = crate::object::metadata::metadata_mut(object) else {
        return;
    };
    let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
    if let Some(annotations) = annotations.as_object_mut() {
        fill(annotations, TEMPLATE_GENERATION, || json!("0"));
    }
}

/// The annotation that holds the template generation of a DaemonSet.
pub(super) const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

fn namespace(object: &mut Value) {
    let name = object["metadata"]["name"].clone();
    if name.as_str().is_none_or(str::is_empty) {
        return;
    }
    let labels = &mut object["metadata"]["labels"];
    if !labels.is_object() {
        *labels = json!({});
    }
    labels["kubernetes.io/metadata.name"] = name;
}

fn job(object: &mut Value) {
    let Some(spec) = object["spec"].as_object_mut() else {
        return;
    };
    let (completions, parallelism) = (
        is_absent(spec.get("completions")),
        is_absent(spec.get("parallelism")),
    );
    if completions && parallelism {
        spec.insert("completions".to_owned(), json!(1));
    }
    if parallelism {
        spec.insert("parallelism".to_owned(), json!(1));
    }
    let per_index = !is_absent(spec.get("backoffLimitPerIndex"));
    fill(spec, "backoffLimit", || {
        if per_index { json!(i32::MAX) } else { json!(6) }
    });
    fill(spec, "completionMode", || json!("NonIndexed"));
    fill(spec, "suspend", || json!(false));
    let with_policy = !is_absent(spec.get("podFailurePolicy"));
    fill(spec, "podReplacementPolicy", || {
        if with_policy {
            json!("Failed")
        } else {
            json!("TerminatingOrFailed")
        }
    });
    fill(spec, "manualSelector", || json!(false));
    labels_of_template(object);
}

/// Copies the labels of the template to an object without labels.
pub(super) fn labels_of_template(object: &mut Value) {
    let labels = object["spec"]["template"]["metadata"]["labels"].clone();
    let has = object["metadata"]["labels"]
        .as_object()
        .is_some_and(|labels| !labels.is_empty());
    if labels.is_object() && !has {
        crate::object::metadata::set(object, "labels", Some(labels));
    }
}

/// Sets missing resource requests to the limits.
fn requests_from_limits(spec: &mut Value) {
    for list in ["containers", "initContainers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let limits = container["resources"]["limits"].clone();
            let Some(limits) = limits.as_object() else {
                continue;
            };
            let requests = &mut container["resources"]["requests"];
            if !requests.is_object() {
                *requests = json!({});
            }
            for (name, amount) in limits {
                if requests.get(name).is_none() {
                    requests[name] = amount.clone();
                }
            }
        }
    }
}

/// Sets the defaults of a struct that depend on its other fields.
fn set_dependent(name: &StructName, kind: &str, fields: &mut Fields) {
    match name {
        "v1.Container" | "v1.EphemeralContainer" => {
            let latest = tag_is_latest(text(fields, "image"));
            fill(fields, "imagePullPolicy", || {
                json!(if latest { "Always" } else { "IfNotPresent" })
            });
        }
        "v1.PodSpec" => pod_spec(kind, fields),
        "v1.ImageVolumeSource" => {
            let latest = tag_is_latest(text(fields, "reference"));
            fill(fields, "pullPolicy", || {
                json!(if latest { "Always" } else { "IfNotPresent" })
            });
        }
        "v1.PodFailurePolicyOnPodConditionsPattern" => fill(fields, "status", || json!("True")),
        "v1.IngressClassParametersReference" => fill(fields, "scope", || json!("Cluster")),
        "v1.Volume" if fields.keys().all(|key| key == "name") => {
            fields.insert("emptyDir".to_owned(), json!({}));
        }
        "v1.DeploymentStrategy" | "v1.DaemonSetUpdateStrategy" | "v1.StatefulSetUpdateStrategy" => {
            if matches!(text(fields, "type"), "" | "RollingUpdate") {
                fill(fields, "rollingUpdate", || json!({}));
            }
        }
        "v1.ServiceSpec" => service_spec(fields),
        "v1.ServicePort" => {
            let absent = match fields.get("targetPort") {
                None | Some(Value::Null) => true,
                Some(value) => value == 0 || value == "",
            };
            if absent && let Some(port) = fields.get("port").cloned() {
                fields.insert("targetPort".to_owned(), port);
            }
        }
        "v1.FlowSchemaSpec" if fields.get("matchingPrecedence").is_none_or(|value| value == 0) => {
            fields.insert("matchingPrecedence".to_owned(), json!(1000));
        }
        "v2.HorizontalPodAutoscalerBehavior" => {
            let percent = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
            let pods = json!({"type": "Pods", "value": 4, "periodSeconds": 15});
            fill_rules(
                fields,
                "scaleDown",
                json!({"selectPolicy": "Max", "policies": [percent]}),
            );
            let up =
                json!({"selectPolicy": "Max", "policies": [pods, percent], "stabilizationWindowSeconds": 0});
            fill_rules(fields, "scaleUp", up);
        }
        "v1.Secret" => secret(fields),
        "v1.Subject" if matches!(kind, "RoleBinding" | "ClusterRoleBinding") => match text(fields, "kind") {
            "User" | "Group" => fill(fields, "apiGroup", || json!("rbac.authorization.k8s.io")),
            _ => {}
        },
        "v1.EndpointPort" if kind == "EndpointSlice" && fields.get("name").is_none_or(Value::is_null) => {
            fields.insert("name".to_owned(), json!(""));
        }
        _ => {}
    }
}

fn pod_spec(kind: &str, fields: &mut Fields) {
    // `serviceAccount` is the deprecated name of `serviceAccountName`.
    let account = match (text(fields, "serviceAccountName"), text(fields, "serviceAccount")) {
        ("", "") => String::new(),
        ("", old) => old.to_owned(),
        (name, _) => name.to_owned(),
    };
    if !account.is_empty() {
        fields.insert("serviceAccountName".to_owned(), json!(account));
        fields.insert("serviceAccount".to_owned(), json!(account));
    }
    // As in Kubernetes, whose templates of Pods have no such default.
    if kind == "Pod" && fields.get("hostNetwork") == Some(&json!(true)) {
        for list in ["containers", "initContainers"] {
            let containers = fields.get_mut(list).and_then(Value::as_array_mut);
            for port in containers
                .into_iter()
                .flatten()
                .filter_map(|container| container.get_mut("ports")?.as_array_mut())
                .flatten()
                .filter_map(Value::as_object_mut)
            {
                if let Some(number) = port.get("containerPort").cloned() {
                    fill(port, "hostPort", || number);
                }
            }
        }
    }
}

fn service_spec(fields: &mut Fields) {
    let ty = match text(fields, "type") {
        "" => "ClusterIP",
        other => other,
    }
    .to_owned();
    let outside = matches!(ty.as_str(), "NodePort" | "LoadBalancer");
    if matches!(text(fields, "sessionAffinity"), "" | "None") {
        fields.remove("sessionAffinityConfig");
    }
    if text(fields, "sessionAffinity") == "ClientIP" {
        fill(fields, "sessionAffinityConfig", || json!({"clientIP": {}}));
        if let Some(config) = object_at(fields, "sessionAffinityConfig") {
            fill(config, "clientIP", || json!({}));
        }
    }
    if outside || ty == "ClusterIP" && fields.get("externalIPs").is_some() {
        fill(fields, "externalTrafficPolicy", || json!("Cluster"));
    }
    if outside || ty == "ClusterIP" {
        fill(fields, "internalTrafficPolicy", || json!("Cluster"));
    }
    if ty == "LoadBalancer" {
        fill(fields, "allocateLoadBalancerNodePorts", || json!(true));
    }
}

/// Sets the missing fields of the scaling rules in one direction.
fn fill_rules(behavior: &mut Fields, direction: &str, defaults: Value) {
    fill(behavior, direction, || json!({}));
    let (Some(rules), Value::Object(defaults)) = (object_at(behavior, direction), defaults) else {
        return;
    };
    for (name, value) in defaults {
        fill(rules, &name, || value);
    }
}

/// Moves `stringData` to `data`.
fn secret(fields: &mut Fields) {
    use base64::Engine as _;
    let Some(Value::Object(texts)) = fields.remove("stringData") else {
        return;
    };
    let data = fields.entry("data").or_insert_with(|| json!({}));
    if !data.is_object() {
        *data = json!({});
    }
    for (name, value) in texts {
        let bytes = value.as_str().unwrap_or_default();
        data[name] = json!(base64::engine::general_purpose::STANDARD.encode(bytes));
    }
}

fn tag_is_latest(image: &str) -> bool {
    // An empty image has no tag, and the content of a digest never changes.
    if image.is_empty() || image.contains('@') || !is_reference(image) {
        return false;
    }
    let last = image.rsplit('/').next().unwrap_or_default();
    match last.split_once(':') {
        None => true,
        Some((_, tag)) => tag == "latest",
    }
}

/// Returns whether an image is a reference at all: other texts have no tag.
fn is_reference(image: &str) -> bool {
    let mut parts: Vec<&str> = image.split('/').collect();
    // The first of several parts may be a host with a port, which may have upper case.
    let is_host = |part: &str| part.contains(['.', ':']) || part == "localhost";
    if parts.len() > 1 && parts.first().is_some_and(|part| is_host(part)) {
        parts.remove(0);
    }
    parts.into_iter().all(|part| {
        let name = part.split(':').next().unwrap_or_default();
        let allowed = |char: char| {
            char.is_ascii_lowercase() || char.is_ascii_digit() || matches!(char, '.' | '_' | '-')
        };
        !name.is_empty() && name.chars().all(allowed)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::codec::go_type;

    #[test]
    fn the_constants_can_be_read() {
        assert!(CONSTANTS.len() >= 50);
    }

    #[test]
    fn a_deployment_gets_the_defaults_of_the_api_server() {
        let ty = go_type("apps/v1", "Deployment").unwrap();
        let mut object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "nginx:1"}]}}}});
        ty.normalize(&mut object).unwrap();
        set(ty, "Deployment", &mut object);
        assert_eq!(
            object["spec"],
            json!({"replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600,
                "selector": {"matchLabels": {"a": "b"}},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": {
                    "containers": [{"name": "c", "image": "nginx:1", "imagePullPolicy": "IfNotPresent", "resources": {},
                        "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}],
                    "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "schedulerName": "default-scheduler",
                    "securityContext": {}, "terminationGracePeriodSeconds": 30}}})
        );
    }
}
