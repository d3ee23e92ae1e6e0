//! What the cells of each built-in kind say: which function computes them, and the kinds with little to say.

use serde_json::{Value, json};

use super::look::{Look, NONE, UNKNOWN, UNSET};
use super::text;
use super::{scaling, storage, workloads};

/// The cells of an object of a built-in kind.
pub(super) fn of(group: &str, kind: &str, look: &Look<'_>) -> Vec<Value> {
    match (group, kind) {
        ("", "Pod") => workloads::pod(look),
        ("", "PodTemplate") => workloads::pod_template(look),
        ("", "ReplicationController") => workloads::replication_controller(look),
        ("apps", "Deployment") => workloads::deployment(look),
        ("apps", "ReplicaSet") => workloads::replica_set(look),
        ("apps", "StatefulSet") => workloads::stateful_set(look),
        ("apps", "DaemonSet") => workloads::daemon_set(look),
        ("apps", "ControllerRevision") => workloads::controller_revision(look),
        ("batch", "Job") => workloads::job(look),
        ("batch", "CronJob") => workloads::cron_job(look),
        ("policy", "PodDisruptionBudget") => scaling::disruption_budget(look),
        ("autoscaling", "HorizontalPodAutoscaler") => scaling::autoscaler(look),
        ("", "ResourceQuota") => scaling::quota(look),
        ("", "Service") => service(look),
        ("", "Endpoints") => endpoints(look),
        ("discovery.k8s.io", "EndpointSlice") => endpoint_slice(look),
        ("networking.k8s.io", "Ingress") => ingress(look),
        ("networking.k8s.io", "IngressClass") => ingress_class(look),
        ("networking.k8s.io", "NetworkPolicy") => {
            vec![
                look.name(),
                json!(text::selector_or_none(look.at("spec.podSelector"))),
                look.age(),
            ]
        }
        ("networking.k8s.io", "ServiceCIDR") => {
            vec![look.name(), json!(look.texts("spec.cidrs").join(",")), look.age()]
        }
        ("networking.k8s.io", "IPAddress") => address(look),
        ("", "PersistentVolume") => storage::volume(look),
        ("", "PersistentVolumeClaim") => storage::claim(look),
        ("storage.k8s.io", kind) => storage::of(kind, look),
        ("", "Node") => node(look),
        ("", "Event") | ("events.k8s.io", "Event") => event(look),
        ("", "Namespace") => vec![look.name(), json!(look.text("status.phase")), look.age()],
        ("", "Secret") => vec![
            look.name(),
            json!(look.text("type")),
            json!(look.count("data")),
            look.age(),
        ],
        ("", "ConfigMap") => {
            vec![
                look.name(),
                json!(look.count("data") + look.count("binaryData")),
                look.age(),
            ]
        }
        ("", "ServiceAccount") => vec![look.name(), look.age()],
        ("coordination.k8s.io", "Lease") => {
            vec![look.name(), json!(look.text("spec.holderIdentity")), look.age()]
        }
        ("node.k8s.io", "RuntimeClass") => vec![look.name(), json!(look.text("handler")), look.age()],
        ("scheduling.k8s.io", "PriorityClass") => vec![
            look.name(),
            json!(look.number("value")),
            json!(look.flag("globalDefault")),
            look.age(),
            json!(look.text("preemptionPolicy")),
        ],
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => role_binding(look),
        ("certificates.k8s.io", "CertificateSigningRequest") => signing_request(look),
        ("admissionregistration.k8s.io", kind) => admission(kind, look),
        ("apiregistration.k8s.io", "APIService") => api_service(look),
        ("flowcontrol.apiserver.k8s.io", "FlowSchema") => flow_schema(look),
        ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration") => priority_level(look),
        _ => vec![look.name(), json!(look.text("metadata.creationTimestamp"))],
    }
}

/// Addresses of a load balancer: wide tables show all, and the server makes wide ones only.
fn load_balancer(look: &Look<'_>) -> String {
    let mut all: Vec<&str> = look
        .items("status.loadBalancer.ingress")
        .map(|one| one.text_or("ip", one.text("hostname")))
        .filter(|address| !address.is_empty())
        .collect();
    all.sort_unstable();
    all.dedup();
    all.join(",")
}

fn service(look: &Look<'_>) -> Vec<Value> {
    let ty = look.text("spec.type");
    let given = look.texts("spec.externalIPs").join(",");
    let external = match ty {
        "ClusterIP" | "NodePort" if given.is_empty() => NONE.to_owned(),
        "ClusterIP" | "NodePort" => given,
        "LoadBalancer" => match (load_balancer(look), given) {
            (balancer, given) if balancer.is_empty() && given.is_empty() => "<pending>".to_owned(),
            (balancer, given) if given.is_empty() => balancer,
            (balancer, given) if balancer.is_empty() => given,
            (balancer, given) => format!("{balancer},{given}"),
        },
        "ExternalName" => look.text("spec.externalName").to_owned(),
        _ => UNKNOWN.to_owned(),
    };
    let ports: Vec<String> = look
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
    let address = look.texts("spec.clusterIPs").first().copied().unwrap_or(NONE);
    vec![
        look.name(),
        json!(ty),
        json!(address),
        json!(external),
        json!(ports),
        look.age(),
        json!(text::labels(look.at("spec.selector"))),
    ]
}

fn endpoints(look: &Look<'_>) -> Vec<Value> {
    let mut all = Vec::new();
    for subset in look.items("subsets") {
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
    let shown = match look.count("subsets") {
        0 => NONE.to_owned(),
        _ => text::first(&all, 3, ","),
    };
    vec![look.name(), json!(shown), look.age()]
}

fn endpoint_slice(look: &Look<'_>) -> Vec<Value> {
    let shown = |all: &[String]| match text::first(all, 3, ",") {
        text if text.is_empty() => UNSET.to_owned(),
        text => text,
    };
    let ports: Vec<String> = look
        .items("ports")
        .map(|port| match (port.at("port"), port.at("name")) {
            (Some(number), _) => number.to_string(),
            (None, Some(name)) => name.as_str().unwrap_or_default().to_owned(),
            (None, None) => "*".to_owned(),
        })
        .collect();
    let addresses: Vec<String> = look
        .items("endpoints")
        .flat_map(|endpoint| endpoint.texts("addresses"))
        .map(str::to_owned)
        .collect();
    vec![
        look.name(),
        json!(look.text("addressType")),
        json!(shown(&ports)),
        json!(shown(&addresses)),
        look.age(),
    ]
}

fn ingress(look: &Look<'_>) -> Vec<Value> {
    let rules = look.items("spec.rules").len();
    // Rules without a host count among those that there are more of, but not among those that are shown.
    let mut hosts = Vec::new();
    let mut more = false;
    for rule in look.items("spec.rules") {
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
    let ports = if look.count("spec.tls") > 0 {
        "80, 443"
    } else {
        "80"
    };
    vec![
        look.name(),
        json!(
            look.at("spec.ingressClassName")
                .map_or(NONE, |name| name.as_str().unwrap_or_default())
        ),
        json!(hosts),
        json!(load_balancer(look)),
        json!(ports),
        look.age(),
    ]
}

fn ingress_class(look: &Look<'_>) -> Vec<Value> {
    let parameters = match look.at("spec.parameters") {
        None => NONE.to_owned(),
        Some(_) => {
            let group = match look.at("spec.parameters.apiGroup") {
                Some(group) => format!(".{}", group.as_str().unwrap_or_default()),
                None => String::new(),
            };
            let (kind, name) = (
                look.text("spec.parameters.kind"),
                look.text("spec.parameters.name"),
            );
            format!("{kind}{group}/{name}")
        }
    };
    vec![
        look.name(),
        json!(look.text("spec.controller")),
        json!(parameters),
        look.age(),
    ]
}

fn address(look: &Look<'_>) -> Vec<Value> {
    let parent = match look.at("spec.parentRef") {
        None => NONE.to_owned(),
        Some(_) => {
            let part = |name: &str| look.text(&format!("spec.parentRef.{name}"));
            let resource = crate::status::qualified(part("resource"), part("group")).to_lowercase();
            let namespace = match part("namespace") {
                "" => String::new(),
                namespace => format!("/{namespace}"),
            };
            format!("{resource}{namespace}/{}", part("name"))
        }
    };
    vec![look.name(), json!(parent), look.age()]
}

fn node(look: &Look<'_>) -> Vec<Value> {
    let mut status = match look.condition("status.conditions", "Ready") {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if look.flag("spec.unschedulable") {
        status.push_str(",SchedulingDisabled");
    }
    let mut roles: Vec<&str> = look
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
        let mut all = look.items("status.addresses");
        json!(
            all.find(|one| one.text("type") == ty)
                .map_or(NONE, |one| one.text("address"))
        )
    };
    let about = |field: &str| json!(look.text_or(&format!("status.nodeInfo.{field}"), UNKNOWN));
    vec![
        look.name(),
        json!(status),
        json!(roles),
        look.age(),
        json!(look.text("status.nodeInfo.kubeletVersion")),
        address("InternalIP"),
        address("ExternalIP"),
        about("osImage"),
        about("kernelVersion"),
        about("containerRuntimeVersion"),
    ]
}

fn event(look: &Look<'_>) -> Vec<Value> {
    let first = match look.at("firstTimestamp") {
        Some(_) => look.since("firstTimestamp"),
        None => look.since("eventTime"),
    };
    let (last, count) = match look.at("series") {
        Some(_) => (look.since("series.lastObservedTime"), look.number("series.count")),
        None => {
            let last = match look.at("lastTimestamp") {
                Some(_) => look.since("lastTimestamp"),
                None => first.clone(),
            };
            (last, look.number("count").max(1))
        }
    };
    let kind = look.text("involvedObject.kind").to_lowercase();
    let object = match look.text("involvedObject.name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    let component = look.text_or("source.component", look.text("reportingComponent"));
    let source = match look.text_or("source.host", look.text("reportingInstance")) {
        "" => component.to_owned(),
        host => format!("{component}, {host}"),
    };
    vec![
        json!(last),
        json!(look.text("type")),
        json!(look.text("reason")),
        json!(object),
        json!(look.text("involvedObject.fieldPath")),
        json!(source),
        json!(look.text("message").trim()),
        json!(first),
        json!(count),
        look.name(),
    ]
}

fn role_binding(look: &Look<'_>) -> Vec<Value> {
    let role = format!("{}/{}", look.text("roleRef.kind"), look.text("roleRef.name"));
    let subjects = |kind: &str| {
        let names: Vec<String> = look
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
        look.name(),
        json!(role),
        look.age(),
        subjects("User"),
        subjects("Group"),
        subjects("ServiceAccount"),
    ]
}

fn signing_request(look: &Look<'_>) -> Vec<Value> {
    let has = |ty: &str| look.condition("status.conditions", ty).is_some();
    let mut condition = match (has("Denied"), has("Approved")) {
        (true, _) => "Denied",
        (false, true) => "Approved",
        (false, false) => "Pending",
    }
    .to_owned();
    if has("Failed") {
        condition.push_str(",Failed");
    }
    if !look.text("status.certificate").is_empty() {
        condition.push_str(",Issued");
    }
    let duration = match look.at("spec.expirationSeconds").and_then(Value::as_i64) {
        Some(seconds) => super::human(jiff::SignedDuration::from_secs(seconds)),
        None => NONE.to_owned(),
    };
    vec![
        look.name(),
        look.age(),
        json!(look.text_or("spec.signerName", NONE)),
        json!(look.text("spec.username")),
        json!(duration),
        json!(condition),
    ]
}

fn admission(kind: &str, look: &Look<'_>) -> Vec<Value> {
    match kind {
        "ValidatingAdmissionPolicy" => {
            let parameters = match look.at("spec.paramKind") {
                None => UNSET.to_owned(),
                Some(_) => {
                    format!(
                        "{}/{}",
                        look.text("spec.paramKind.apiVersion"),
                        look.text("spec.paramKind.kind")
                    )
                }
            };
            vec![
                look.name(),
                json!(look.count("spec.validations")),
                json!(parameters),
                look.age(),
            ]
        }
        "ValidatingAdmissionPolicyBinding" => {
            let parameters = match look.text("spec.paramRef.name") {
                // The API server prints a Go value here.
                "" if look.at("spec.paramRef.selector").is_some() => {
                    text::selector(look.at("spec.paramRef.selector"))
                }
                "" => UNSET.to_owned(),
                name => format!("{}/{name}", look.text_or("spec.paramRef.namespace", "*")),
            };
            vec![
                look.name(),
                json!(look.text("spec.policyName")),
                json!(parameters),
                look.age(),
            ]
        }
        _ => vec![look.name(), json!(look.count("webhooks")), look.age()],
    }
}

fn api_service(look: &Look<'_>) -> Vec<Value> {
    let service = match look.at("spec.service") {
        None => "Local".to_owned(),
        Some(_) => {
            format!(
                "{}/{}",
                look.text("spec.service.namespace"),
                look.text("spec.service.name")
            )
        }
    };
    let mut conditions = look.items("status.conditions");
    let available = conditions.find(|condition| condition.text("type") == "Available");
    let available = match available.map(|condition| (condition.text("status"), condition.text("reason"))) {
        Some(("True", _)) => "True".to_owned(),
        Some((status, reason)) => format!("{status} ({reason})"),
        None => "Unknown".to_owned(),
    };
    vec![look.name(), json!(service), json!(available), look.age()]
}

fn flow_schema(look: &Look<'_>) -> Vec<Value> {
    let method = match look.at("spec.distinguisherMethod") {
        Some(_) => look.text("spec.distinguisherMethod.type"),
        None => NONE,
    };
    vec![
        look.name(),
        json!(look.text("spec.priorityLevelConfiguration.name")),
        json!(look.number("spec.matchingPrecedence")),
        json!(method),
        look.age(),
        json!(look.condition("status.conditions", "Dangling").unwrap_or("?")),
    ]
}

fn priority_level(look: &Look<'_>) -> Vec<Value> {
    let value = |path: &str| look.at(path).cloned().unwrap_or_else(|| json!(NONE));
    let queuing = |field: &str| value(&format!("spec.limited.limitResponse.queuing.{field}"));
    vec![
        look.name(),
        json!(look.text("spec.type")),
        value("spec.limited.nominalConcurrencyShares"),
        queuing("queues"),
        queuing("handSize"),
        queuing("queueLengthLimit"),
        look.age(),
    ]
}
