//! The cells of built-in kinds: the function that computes those of each kind, and the kinds with few columns.

use serde_json::{Value, json};

use super::text;
use super::view::{NONE, UNKNOWN, UNSET, View};
use super::{scaling, storage, workloads};

/// Returns the cells of an object of a built-in kind.
pub(super) fn of(group: &str, kind: &str, view: &View<'_>) -> Vec<Value> {
    match (group, kind) {
        ("", "Pod") => workloads::pod(view),
        ("", "PodTemplate") => workloads::pod_template(view),
        ("", "ReplicationController") => workloads::replication_controller(view),
        ("apps", "Deployment") => workloads::deployment(view),
        ("apps", "ReplicaSet") => workloads::replica_set(view),
        ("apps", "StatefulSet") => workloads::stateful_set(view),
        ("apps", "DaemonSet") => workloads::daemon_set(view),
        ("apps", "ControllerRevision") => workloads::controller_revision(view),
        ("batch", "Job") => workloads::job(view),
        ("batch", "CronJob") => workloads::cron_job(view),
        ("policy", "PodDisruptionBudget") => scaling::disruption_budget(view),
        ("autoscaling", "HorizontalPodAutoscaler") => scaling::autoscaler(view),
        ("", "ResourceQuota") => scaling::quota(view),
        ("", "Service") => service(view),
        ("", "Endpoints") => endpoints(view),
        ("discovery.k8s.io", "EndpointSlice") => endpoint_slice(view),
        ("networking.k8s.io", "Ingress") => ingress(view),
        ("networking.k8s.io", "IngressClass") => ingress_class(view),
        ("networking.k8s.io", "NetworkPolicy") => {
            vec![
                view.name(),
                json!(text::selector_or_none(view.at("spec.podSelector"))),
                view.age(),
            ]
        }
        ("networking.k8s.io", "ServiceCIDR") => {
            vec![view.name(), json!(view.texts("spec.cidrs").join(",")), view.age()]
        }
        ("networking.k8s.io", "IPAddress") => address(view),
        ("", "PersistentVolume") => storage::volume(view),
        ("", "PersistentVolumeClaim") => storage::claim(view),
        ("storage.k8s.io", kind) => storage::of(kind, view),
        ("", "Node") => node(view),
        ("", "Event") | ("events.k8s.io", "Event") => event(view),
        ("", "Namespace") => vec![view.name(), json!(view.text("status.phase")), view.age()],
        ("", "Secret") => vec![
            view.name(),
            json!(view.text("type")),
            json!(view.count("data")),
            view.age(),
        ],
        ("", "ConfigMap") => {
            vec![
                view.name(),
                json!(view.count("data") + view.count("binaryData")),
                view.age(),
            ]
        }
        ("", "ServiceAccount") => vec![view.name(), view.age()],
        ("coordination.k8s.io", "Lease") => {
            vec![view.name(), json!(view.text("spec.holderIdentity")), view.age()]
        }
        ("node.k8s.io", "RuntimeClass") => vec![view.name(), json!(view.text("handler")), view.age()],
        ("scheduling.k8s.io", "PriorityClass") => vec![
            view.name(),
            json!(view.number("value")),
            json!(view.flag("globalDefault")),
            view.age(),
            json!(view.text("preemptionPolicy")),
        ],
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => role_binding(view),
        ("certificates.k8s.io", "CertificateSigningRequest") => signing_request(view),
        ("admissionregistration.k8s.io", kind) => admission(kind, view),
        ("apiregistration.k8s.io", "APIService") => api_service(view),
        ("flowcontrol.apiserver.k8s.io", "FlowSchema") => flow_schema(view),
        ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration") => priority_level(view),
        _ => vec![view.name(), json!(view.text("metadata.creationTimestamp"))],
    }
}

/// Returns the addresses of a load balancer; all of them, as in the wide output.
fn load_balancer(view: &View<'_>) -> String {
    let mut all: Vec<&str> = view
        .items("status.loadBalancer.ingress")
        .map(|one| one.text_or("ip", one.text("hostname")))
        .filter(|address| !address.is_empty())
        .collect();
    all.sort_unstable();
    all.dedup();
    all.join(",")
}

fn service(view: &View<'_>) -> Vec<Value> {
    let ty = view.text("spec.type");
    let given = view.texts("spec.externalIPs").join(",");
    let external = match ty {
        "ClusterIP" | "NodePort" if given.is_empty() => NONE.to_owned(),
        "ClusterIP" | "NodePort" => given,
        "LoadBalancer" => match (load_balancer(view), given) {
            (balancer, given) if balancer.is_empty() && given.is_empty() => "<pending>".to_owned(),
            (balancer, given) if given.is_empty() => balancer,
            (balancer, given) if balancer.is_empty() => given,
            (balancer, given) => format!("{balancer},{given}"),
        },
        "ExternalName" => view.text("spec.externalName").to_owned(),
        _ => UNKNOWN.to_owned(),
    };
    let ports: Vec<String> = view
        .items("spec.ports")
        .map(|port| match port.number("nodePort") {
            0 => format!("{}/{}", port.number("port"), port.text("protocol")),
            node => format!("{}:{node}/{}", port.number("port"), port.text("protocol")),
        })
        .collect();
    let ports = if ports.is_empty() {
        NONE.to_owned()
    } else {
        ports.join(",")
    };
    let address = view.texts("spec.clusterIPs").first().copied().unwrap_or(NONE);
    vec![
        view.name(),
        json!(ty),
        json!(address),
        json!(external),
        json!(ports),
        view.age(),
        json!(text::labels(view.at("spec.selector"))),
    ]
}

fn endpoints(view: &View<'_>) -> Vec<Value> {
    let mut all = Vec::new();
    for subset in view.items("subsets") {
        let addresses = || subset.items("addresses").map(|address| address.text("ip"));
        if subset.count("ports") == 0 {
            all.extend(addresses().map(str::to_owned));
        }
        for port in subset.items("ports") {
            let number = port.number("port");
            all.extend(addresses().map(|ip| match ip.contains(':') {
                true => format!("[{ip}]:{number}"),
                false => format!("{ip}:{number}"),
            }));
        }
    }
    let shown = match view.count("subsets") {
        0 => NONE.to_owned(),
        _ => text::first(&all, 3, ","),
    };
    vec![view.name(), json!(shown), view.age()]
}

fn endpoint_slice(view: &View<'_>) -> Vec<Value> {
    let shown = |all: &[String]| match text::first(all, 3, ",") {
        text if text.is_empty() => UNSET.to_owned(),
        text => text,
    };
    let ports: Vec<String> = view
        .items("ports")
        .map(|port| match (port.at("port"), port.at("name")) {
            (Some(number), _) => number.to_string(),
            (None, Some(name)) => name.as_str().unwrap_or_default().to_owned(),
            (None, None) => "*".to_owned(),
        })
        .collect();
    let addresses: Vec<String> = view
        .items("endpoints")
        .flat_map(|endpoint| endpoint.texts("addresses"))
        .map(str::to_owned)
        .collect();
    vec![
        view.name(),
        json!(view.text("addressType")),
        json!(shown(&ports)),
        json!(shown(&addresses)),
        view.age(),
    ]
}

fn ingress(view: &View<'_>) -> Vec<Value> {
    let rules = view.items("spec.rules").len();
    // As in Kubernetes, rules without a host count for `+ N more...` but are not shown.
    let mut hosts = Vec::new();
    let mut more = false;
    for rule in view.items("spec.rules") {
        more = more || hosts.len() == 3;
        if !more && !rule.text("host").is_empty() {
            hosts.push(rule.text("host"));
        }
    }
    let hosts = match (hosts.is_empty(), more) {
        (true, _) => "*".to_owned(),
        (false, false) => hosts.join(","),
        (false, true) => format!("{} + {} more...", hosts.join(","), rules - 3),
    };
    let ports = if view.count("spec.tls") > 0 {
        "80, 443"
    } else {
        "80"
    };
    vec![
        view.name(),
        json!(
            view.at("spec.ingressClassName")
                .map_or(NONE, |name| name.as_str().unwrap_or_default())
        ),
        json!(hosts),
        json!(load_balancer(view)),
        json!(ports),
        view.age(),
    ]
}

fn ingress_class(view: &View<'_>) -> Vec<Value> {
    let parameters = match view.at("spec.parameters") {
        None => NONE.to_owned(),
        Some(_) => {
            let group = match view.at("spec.parameters.apiGroup") {
                Some(group) => format!(".{}", group.as_str().unwrap_or_default()),
                None => String::new(),
            };
            let (kind, name) = (
                view.text("spec.parameters.kind"),
                view.text("spec.parameters.name"),
            );
            format!("{kind}{group}/{name}")
        }
    };
    vec![
        view.name(),
        json!(view.text("spec.controller")),
        json!(parameters),
        view.age(),
    ]
}

fn address(view: &View<'_>) -> Vec<Value> {
    let parent = match view.at("spec.parentRef") {
        None => NONE.to_owned(),
        Some(_) => {
            let part = |name: &str| view.text(&format!("spec.parentRef.{name}"));
            let resource = crate::status::qualified(part("resource"), part("group")).to_lowercase();
            let namespace = match part("namespace") {
                "" => String::new(),
                namespace => format!("/{namespace}"),
            };
            format!("{resource}{namespace}/{}", part("name"))
        }
    };
    vec![view.name(), json!(parent), view.age()]
}

fn node(view: &View<'_>) -> Vec<Value> {
    let mut status = match view.condition("status.conditions", "Ready") {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if view.flag("spec.unschedulable") {
        status.push_str(",SchedulingDisabled");
    }
    let mut roles: Vec<&str> = view
        .at("metadata.labels")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(
            |(name, value)| match name.strip_prefix("node-role.kubernetes.io/") {
                Some(role) => Some(role),
                None => value.as_str().filter(|_| name == "kubernetes.io/role"),
            },
        )
        .filter(|role| !role.is_empty())
        .collect();
    roles.sort_unstable();
    roles.dedup();
    let roles = if roles.is_empty() {
        NONE.to_owned()
    } else {
        roles.join(",")
    };
    let address = |ty: &str| {
        let mut all = view.items("status.addresses");
        json!(
            all.find(|one| one.text("type") == ty)
                .map_or(NONE, |one| one.text("address"))
        )
    };
    let about = |field: &str| json!(view.text_or(&format!("status.nodeInfo.{field}"), UNKNOWN));
    vec![
        view.name(),
        json!(status),
        json!(roles),
        view.age(),
        json!(view.text("status.nodeInfo.kubeletVersion")),
        address("InternalIP"),
        address("ExternalIP"),
        about("osImage"),
        about("kernelVersion"),
        about("containerRuntimeVersion"),
    ]
}

fn event(view: &View<'_>) -> Vec<Value> {
    let first = match view.at("firstTimestamp") {
        Some(_) => view.age_at("firstTimestamp"),
        None => view.age_at("eventTime"),
    };
    let (last, count) = match view.at("series") {
        Some(_) => (
            view.age_at("series.lastObservedTime"),
            view.number("series.count"),
        ),
        None => {
            let last = match view.at("lastTimestamp") {
                Some(_) => view.age_at("lastTimestamp"),
                None => first.clone(),
            };
            (last, view.number("count").max(1))
        }
    };
    let kind = view.text("involvedObject.kind").to_lowercase();
    let object = match view.text("involvedObject.name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    let component = view.text_or("source.component", view.text("reportingComponent"));
    let source = match view.text_or("source.host", view.text("reportingInstance")) {
        "" => component.to_owned(),
        host => format!("{component}, {host}"),
    };
    vec![
        json!(last),
        json!(view.text("type")),
        json!(view.text("reason")),
        json!(object),
        json!(view.text("involvedObject.fieldPath")),
        json!(source),
        json!(view.text("message").trim()),
        json!(first),
        json!(count),
        view.name(),
    ]
}

fn role_binding(view: &View<'_>) -> Vec<Value> {
    let role = format!("{}/{}", view.text("roleRef.kind"), view.text("roleRef.name"));
    let subjects = |kind: &str| {
        let names: Vec<String> = view
            .items("subjects")
            .filter(|subject| subject.text("kind") == kind)
            .map(|subject| match kind {
                "ServiceAccount" => format!("{}/{}", subject.text("namespace"), subject.text("name")),
                _ => subject.text("name").to_owned(),
            })
            .collect();
        json!(names.join(", "))
    };
    vec![
        view.name(),
        json!(role),
        view.age(),
        subjects("User"),
        subjects("Group"),
        subjects("ServiceAccount"),
    ]
}

fn signing_request(view: &View<'_>) -> Vec<Value> {
    let has = |ty: &str| view.condition("status.conditions", ty).is_some();
    let mut condition = match (has("Denied"), has("Approved")) {
        (true, _) => "Denied",
        (false, true) => "Approved",
        (false, false) => "Pending",
    }
    .to_owned();
    if has("Failed") {
        condition.push_str(",Failed");
    }
    if !view.text("status.certificate").is_empty() {
        condition.push_str(",Issued");
    }
    let duration = match view.at("spec.expirationSeconds").and_then(Value::as_i64) {
        Some(seconds) => super::human(jiff::SignedDuration::from_secs(seconds)),
        None => NONE.to_owned(),
    };
    vec![
        view.name(),
        view.age(),
        json!(view.text_or("spec.signerName", NONE)),
        json!(view.text("spec.username")),
        json!(duration),
        json!(condition),
    ]
}

fn admission(kind: &str, view: &View<'_>) -> Vec<Value> {
    match kind {
        "ValidatingAdmissionPolicy" => {
            let parameters = match view.at("spec.paramKind") {
                None => UNSET.to_owned(),
                Some(_) => {
                    format!(
                        "{}/{}",
                        view.text("spec.paramKind.apiVersion"),
                        view.text("spec.paramKind.kind")
                    )
                }
            };
            vec![
                view.name(),
                json!(view.count("spec.validations")),
                json!(parameters),
                view.age(),
            ]
        }
        "ValidatingAdmissionPolicyBinding" => {
            let parameters = match view.text("spec.paramRef.name") {
                // Kubernetes prints a Go value here.
                "" if view.at("spec.paramRef.selector").is_some() => {
                    text::selector(view.at("spec.paramRef.selector"))
                }
                "" => UNSET.to_owned(),
                name => format!("{}/{name}", view.text_or("spec.paramRef.namespace", "*")),
            };
            vec![
                view.name(),
                json!(view.text("spec.policyName")),
                json!(parameters),
                view.age(),
            ]
        }
        _ => vec![view.name(), json!(view.count("webhooks")), view.age()],
    }
}

fn api_service(view: &View<'_>) -> Vec<Value> {
    let service = match view.at("spec.service") {
        None => "Local".to_owned(),
        Some(_) => {
            format!(
                "{}/{}",
                view.text("spec.service.namespace"),
                view.text("spec.service.name")
            )
        }
    };
    let mut conditions = view.items("status.conditions");
    let available = conditions.find(|condition| condition.text("type") == "Available");
    let available = match available.map(|condition| (condition.text("status"), condition.text("reason"))) {
        Some(("True", _)) => "True".to_owned(),
        Some((status, reason)) => format!("{status} ({reason})"),
        None => "Unknown".to_owned(),
    };
    vec![view.name(), json!(service), json!(available), view.age()]
}

fn flow_schema(view: &View<'_>) -> Vec<Value> {
    let method = match view.at("spec.distinguisherMethod") {
        Some(_) => view.text("spec.distinguisherMethod.type"),
        None => NONE,
    };
    vec![
        view.name(),
        json!(view.text("spec.priorityLevelConfiguration.name")),
        json!(view.number("spec.matchingPrecedence")),
        json!(method),
        view.age(),
        json!(view.condition("status.conditions", "Dangling").unwrap_or("?")),
    ]
}

fn priority_level(view: &View<'_>) -> Vec<Value> {
    let value = |path: &str| view.at(path).cloned().unwrap_or_else(|| json!(NONE));
    let queuing = |field: &str| value(&format!("spec.limited.limitResponse.queuing.{field}"));
    vec![
        view.name(),
        json!(view.text("spec.type")),
        value("spec.limited.nominalConcurrencyShares"),
        queuing("queues"),
        queuing("handSize"),
        queuing("queueLengthLimit"),
        view.age(),
    ]
}
