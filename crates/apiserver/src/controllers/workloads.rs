//! The workload controllers: they report workloads as healthy, as if nodes ran them.
//!
//! They write only the status and create no ReplicaSets or Pods, so that thousands of clusters fit in one process.
//! They first report the workload as observed and, after the configured time, as healthy.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::objects::{find, replace};
use super::settings::{Health, Settings};
use crate::object::times;
use crate::state::{State, Work};
use crate::status::Status;
use crate::store::TableName;

const MANAGER: &str = "kube-controller-manager";
const NODE_MANAGER: &str = "kubelet";

/// Reconciles one workload.
pub(super) fn reconcile(
    state: &mut State,
    settings: &Settings,
    table: &TableName,
    key: &str,
    now: Timestamp,
) -> Result<(), Status> {
    let Some((target, stored, mut object)) = find(state, table, key, "status") else {
        return Ok(());
    };
    if stored.head.deleting.is_some() {
        return Ok(());
    }
    let kind = target.resource.kind.clone();
    let since = last_change(&object);
    let due = match settings.health_of(&kind, &stored) {
        Health::After(wait) => Some(since + wait),
        Health::Never => None,
        Health::Unattended => return Ok(()),
    };
    let healthy = due.is_some_and(|due| due <= now);
    if let Some(due) = due.filter(|due| *due > now) {
        let work = Work::Workload {
            table: TableName::clone(table),
            key: key.into(),
        };
        state.queue.plan(due, work);
    }
    let nodes = i64::try_from(state.store.count("nodes")).unwrap_or(i64::MAX);
    let Some(status) = status_of(&kind, &object, healthy, nodes, now) else {
        return Ok(());
    };
    let before = &object["status"];
    if same_but_times(before, &status) {
        return Ok(());
    }
    let manager = if *kind == *"Pod" { NODE_MANAGER } else { MANAGER };
    object["status"] = status;
    replace(state, &target, object, manager, now)
}

/// The time of the last change to the desired state: the newest `managedFields` time outside of subresources, or else
/// the creation time.
fn last_change(object: &Value) -> Timestamp {
    let metadata = &object["metadata"];
    let newest = metadata["managedFields"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|entry| entry["subresource"].is_null())
        .filter_map(|entry| times::parse(entry["time"].as_str()?))
        .max();
    newest
        .or_else(|| times::parse(metadata["creationTimestamp"].as_str()?))
        .unwrap_or_default()
}

/// Compares two statuses without their timestamps.
fn same_but_times(before: &Value, after: &Value) -> bool {
    let plain = |status: &Value| {
        let mut status = status.clone();
        for condition in status["conditions"].as_array_mut().into_iter().flatten() {
            if let Some(condition) = condition.as_object_mut() {
                condition.retain(|name, _| {
                    !matches!(
                        name.as_str(),
                        "lastTransitionTime" | "lastUpdateTime" | "lastProbeTime"
                    )
                });
            }
        }
        if let Some(map) = status.as_object_mut() {
            map.retain(|name, value| {
                !matches!(name.as_str(), "startTime" | "completionTime")
                    && !value.is_null()
                    && *value != json!(0)
            });
        }
        status
    };
    plain(before) == plain(after)
}

fn condition(ty: &str, yes: bool, reason: &str, message: &str, now: Timestamp) -> Value {
    json!({"type": ty, "status": if yes { "True" } else { "False" }, "reason": reason, "message": message,
        "lastTransitionTime": times::seconds(now)})
}

/// Returns the new status of a workload; `None` if there is nothing to write.
fn status_of(kind: &str, object: &Value, healthy: bool, nodes: i64, now: Timestamp) -> Option<Value> {
    let generation = &object["metadata"]["generation"];
    let replicas = object["spec"]["replicas"].as_i64().unwrap_or(1);
    let ready = if healthy { replicas } else { 0 };
    match kind {
        "Deployment" => Some(deployment(object, replicas, healthy, now)),
        "ReplicaSet" | "ReplicationController" => Some(json!({
            "observedGeneration": generation, "replicas": replicas, "fullyLabeledReplicas": replicas,
            "readyReplicas": ready, "availableReplicas": ready})),
        "StatefulSet" => {
            let revision = revision_name(object);
            Some(json!({
                "observedGeneration": generation, "replicas": replicas, "readyReplicas": ready,
                "availableReplicas": ready, "currentReplicas": replicas, "updatedReplicas": replicas,
                "currentRevision": revision, "updateRevision": revision, "collisionCount": 0}))
        }
        "DaemonSet" => {
            let ready = if healthy { nodes } else { 0 };
            Some(json!({
                "observedGeneration": generation, "currentNumberScheduled": nodes, "numberMisscheduled": 0,
                "desiredNumberScheduled": nodes, "numberReady": ready, "updatedNumberScheduled": nodes,
                "numberAvailable": ready}))
        }
        "Job" => job(object, healthy, now),
        "Pod" => pod(object, healthy, now),
        "PersistentVolumeClaim" if healthy => Some(json!({
            "phase": "Bound", "accessModes": object["spec"]["accessModes"],
            "capacity": object["spec"]["resources"]["requests"]})),
        "Service" if healthy && object["spec"]["type"] == "LoadBalancer" => {
            // The last two octets are those of the cluster IP.
            let inside: std::net::Ipv4Addr = object["spec"]["clusterIP"].as_str()?.parse().ok()?;
            let [_, _, third, fourth] = inside.octets();
            let address = format!("192.168.{third}.{fourth}");
            Some(json!({"loadBalancer": {"ingress": [{"ip": address, "ipMode": "VIP"}]}}))
        }
        _ => None,
    }
}

/// Returns a name that changes with the Pod template.
fn revision_name(object: &Value) -> String {
    let text = object["spec"]["template"].to_string();
    let hash = text.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    format!(
        "{}-{hash:x}",
        object["metadata"]["name"].as_str().unwrap_or_default()
    )
}

fn deployment(object: &Value, replicas: i64, healthy: bool, now: Timestamp) -> Value {
    let mut status = json!({"observedGeneration": object["metadata"]["generation"]});
    if object["spec"]["paused"] == true && !healthy {
        return status;
    }
    let name = revision_name(object);
    let (available, progress) = if healthy {
        (
            condition(
                "Available",
                true,
                "MinimumReplicasAvailable",
                "Deployment has minimum availability.",
                now,
            ),
            condition(
                "Progressing",
                true,
                "NewReplicaSetAvailable",
                &format!("ReplicaSet \"{name}\" has successfully progressed."),
                now,
            ),
        )
    } else {
        (
            condition(
                "Available",
                replicas == 0,
                if replicas == 0 {
                    "MinimumReplicasAvailable"
                } else {
                    "MinimumReplicasUnavailable"
                },
                if replicas == 0 {
                    "Deployment has minimum availability."
                } else {
                    "Deployment does not have minimum availability."
                },
                now,
            ),
            condition(
                "Progressing",
                true,
                "ReplicaSetUpdated",
                &format!("ReplicaSet \"{name}\" is progressing."),
                now,
            ),
        )
    };
    let mut conditions = vec![available, progress];
    for condition in &mut conditions {
        condition["lastUpdateTime"] = json!(times::seconds(now));
    }
    status["conditions"] = Value::Array(conditions);
    if replicas > 0 {
        status["replicas"] = json!(replicas);
        status["updatedReplicas"] = json!(replicas);
        if healthy {
            status["readyReplicas"] = json!(replicas);
            status["availableReplicas"] = json!(replicas);
        } else {
            status["unavailableReplicas"] = json!(replicas);
        }
    }
    status
}

fn job(object: &Value, healthy: bool, now: Timestamp) -> Option<Value> {
    let done = object["status"]["conditions"].as_array().is_some_and(|list| {
        list.iter()
            .any(|one| one["type"] == "Complete" || one["type"] == "Failed")
    });
    if done || object["spec"]["suspend"] == true {
        return None;
    }
    let completions = object["spec"]["completions"].as_i64().unwrap_or(1);
    let start = object["status"]["startTime"]
        .as_str()
        .map_or_else(|| times::seconds(now), str::to_owned);
    if !healthy {
        let active = object["spec"]["parallelism"].as_i64().unwrap_or(1);
        return Some(
            json!({"startTime": start, "active": active, "ready": 0, "terminating": 0, "uncountedTerminatedPods": {}}),
        );
    }
    let mut conditions = [
        condition(
            "SuccessCriteriaMet",
            true,
            "CompletionsReached",
            "Reached expected number of succeeded pods",
            now,
        ),
        condition(
            "Complete",
            true,
            "CompletionsReached",
            "Reached expected number of succeeded pods",
            now,
        ),
    ];
    for condition in &mut conditions {
        condition["lastProbeTime"] = json!(times::seconds(now));
    }
    Some(
        json!({"startTime": start, "completionTime": times::seconds(now), "succeeded": completions, "ready": 0,
        "terminating": 0, "uncountedTerminatedPods": {}, "conditions": conditions}),
    )
}

fn pod(object: &Value, healthy: bool, now: Timestamp) -> Option<Value> {
    if !healthy || object["status"]["phase"] != "Pending" {
        return None;
    }
    let mut status = object["status"].clone();
    let time = times::seconds(now);
    let conditions: Vec<Value> = [
        "PodReadyToStartContainers",
        "Initialized",
        "Ready",
        "ContainersReady",
        "PodScheduled",
    ]
    .iter()
    .map(|ty| json!({"type": ty, "status": "True", "lastProbeTime": null, "lastTransitionTime": time}))
    .collect();
    let containers: Vec<Value> = object["spec"]["containers"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|container| {
            json!({"name": container["name"], "image": container["image"], "imageID": "", "ready": true, "started": true,
                "restartCount": 0, "state": {"running": {"startedAt": time}}, "lastState": {}})
        })
        .collect();
    status["phase"] = json!("Running");
    status["startTime"] = json!(time);
    status["conditions"] = Value::Array(conditions);
    status["containerStatuses"] = Value::Array(containers);
    Some(status)
}
