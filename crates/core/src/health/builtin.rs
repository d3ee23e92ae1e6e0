//! The built-in kinds with health rules of their own.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::Health;
use super::fields::{Malformed, conditions, integer, integer_or, nested, text_or};
use crate::object::ObjectId;

/// The time that a pod may be unschedulable before it counts as failed; the number is from kstatus.
const SCHEDULE_WINDOW: Duration = Duration::from_secs(15);
/// The `progressDeadlineSeconds` with which the Deployment controller has no deadline: the largest int32.
const NO_DEADLINE: i64 = 2_147_483_647;

/// Returns the health of an object of a built-in kind; `None`: it is of another kind.
pub(super) fn of(key: &ObjectId, object: &Value, now: Timestamp) -> Result<Option<Health>, Malformed> {
    let health = match (key.group.as_str(), key.kind.as_str()) {
        ("", "ConfigMap" | "Secret") | ("batch", "CronJob") => Health::current("Resource is always ready"),
        ("", "Service") => service(object),
        ("", "Pod") => pod(object, now)?,
        ("", "PersistentVolumeClaim") => claim(object),
        ("apps", "StatefulSet") => stateful_set(object),
        ("apps" | "extensions", "DaemonSet") => daemon_set(&key.kind, object)?,
        ("apps" | "extensions", "Deployment") => deployment(object)?,
        ("apps" | "extensions", "ReplicaSet") => replica_set(object)?,
        ("policy", "PodDisruptionBudget") => Health::current("AllowedDisruptions has been computed."),
        ("batch", "Job") => job(object)?,
        ("apiextensions.k8s.io", "CustomResourceDefinition") => definition(object)?,
        _ => return Ok(None),
    };
    Ok(Some(health))
}

fn status(object: &Value, name: &str) -> i64 {
    integer_or(object, &["status", name], 0)
}

/// Returns the health by the first of the pairs (name, have, want) in which something is missing.
fn short_of(pairs: &[(&str, i64, i64)]) -> Option<Health> {
    pairs
        .iter()
        .find(|(_, have, want)| want > have)
        .map(|(name, have, want)| Health::in_progress(format!("{name}: {have}/{want}")))
}

/// Returns the health with more pods than wanted.
fn too_many(have: i64, want: i64) -> Option<Health> {
    (have > want).then(|| Health::in_progress(format!("Pending termination: {}", have.wrapping_sub(want))))
}

fn deployment(object: &Value) -> Result<Health, Malformed> {
    let deadline = integer_or(object, &["spec", "progressDeadlineSeconds"], NO_DEADLINE);
    // Without a deadline the controller sets no condition `Progressing`.
    let (mut progressed, mut available) = (deadline == NO_DEADLINE, false);
    for condition in conditions(object)? {
        match condition.type_ {
            "Progressing" if condition.reason == "ProgressDeadlineExceeded" => {
                return Ok(Health::failed("Progress deadline exceeded"));
            }
            "Progressing" => {
                progressed |= condition.status == "True" && condition.reason == "NewReplicaSetAvailable";
            }
            "Available" => available |= condition.status == "True",
            _ => {}
        }
    }
    let wanted = integer_or(object, &["spec", "replicas"], 1);
    let (replicas, updated) = (status(object, "replicas"), status(object, "updatedReplicas"));
    let unfinished = short_of(&[("Replicas", replicas, wanted), ("Updated", updated, wanted)])
        .or_else(|| too_many(replicas, wanted))
        .or_else(|| {
            short_of(&[
                ("Available", status(object, "availableReplicas"), updated),
                ("Ready", status(object, "readyReplicas"), wanted),
            ])
        });
    Ok(match unfinished {
        Some(health) => health,
        None if !progressed => Health::in_progress("ReplicaSet not Available"),
        None if !available => Health::in_progress("Deployment not Available"),
        None => Health::current(format!("Deployment is available. Replicas: {replicas}")),
    })
}

fn replica_set(object: &Value) -> Result<Health, Malformed> {
    let failing = conditions(object)?
        .iter()
        .any(|condition| condition.type_ == "ReplicaFailure" && condition.status == "True");
    if failing {
        return Ok(Health::in_progress("Replica Failure condition. Check Pods"));
    }
    let wanted = integer_or(object, &["spec", "replicas"], 1);
    let replicas = status(object, "replicas");
    let unfinished = short_of(&[
        ("Labelled", status(object, "fullyLabeledReplicas"), wanted),
        ("Available", status(object, "availableReplicas"), wanted),
        ("Ready", status(object, "readyReplicas"), wanted),
    ]);
    Ok(unfinished
        .or_else(|| too_many(replicas, wanted))
        .unwrap_or_else(|| Health::current(format!("ReplicaSet is available. Replicas: {replicas}"))))
}

/// The controller sets no conditions, so a failure is not visible.
fn stateful_set(object: &Value) -> Health {
    let strategy = ["spec", "updateStrategy"];
    if text_or(object, &[strategy[0], strategy[1], "type"], "") == "OnDelete" {
        return Health::current("StatefulSet is using the ondelete update strategy");
    }
    let wanted = integer_or(object, &["spec", "replicas"], 1);
    let replicas = status(object, "replicas");
    let unfinished = short_of(&[
        ("Replicas", replicas, wanted),
        ("Ready", status(object, "readyReplicas"), wanted),
    ])
    .or_else(|| too_many(replicas, wanted));
    if let Some(health) = unfinished {
        return health;
    }
    let partition = integer_or(
        object,
        &[strategy[0], strategy[1], "rollingUpdate", "partition"],
        -1,
    );
    if partition != -1 {
        let updated = status(object, "updatedReplicas");
        return short_of(&[("updated", updated, wanted.wrapping_sub(partition))])
            .unwrap_or_else(|| Health::current(format!("Partition rollout complete. updated: {updated}")));
    }
    if let Some(health) = short_of(&[("current", status(object, "currentReplicas"), wanted)]) {
        return health;
    }
    let revision = |name| text_or(object, &["status", name], "");
    if revision("currentRevision") != revision("updateRevision") {
        return Health::in_progress("Waiting for updated revision to match current");
    }
    Health::current(format!(
        "All replicas scheduled as expected. Replicas: {replicas}"
    ))
}

/// The controller always writes both generations, so without them it has not observed the object.
fn daemon_set(kind: &str, object: &Value) -> Result<Health, Malformed> {
    for path in [["metadata", "generation"], ["status", "observedGeneration"]] {
        if integer(object, &path)?.is_none() {
            return Ok(Health::in_progress(format!(
                "{kind} {} not found",
                path.join(".")
            )));
        }
    }
    let wanted = integer_or(object, &["status", "desiredNumberScheduled"], -1);
    if wanted == -1 {
        return Ok(Health::in_progress("Missing .status.desiredNumberScheduled"));
    }
    let unfinished = short_of(&[
        ("Current", status(object, "currentNumberScheduled"), wanted),
        ("Updated", status(object, "updatedNumberScheduled"), wanted),
        ("Available", status(object, "numberAvailable"), wanted),
        ("Ready", status(object, "numberReady"), wanted),
    ]);
    let done = || Health::current(format!("All replicas scheduled as expected. Replicas: {wanted}"));
    Ok(unfinished.unwrap_or_else(done))
}

fn claim(object: &Value) -> Health {
    match text_or(object, &["status", "phase"], "unknown") {
        "Bound" => Health::current("PVC is Bound"),
        phase => Health::in_progress(format!("PVC is not Bound. phase: {phase}")),
    }
}

/// A pod without a controller: a pod that has ended is in the state of its spec, whatever its exit code.
fn pod(object: &Value, now: Timestamp) -> Result<Health, Malformed> {
    let conditions = conditions(object)?;
    match text_or(object, &["status", "phase"], "") {
        "Succeeded" => Ok(Health::current("Pod has completed successfully")),
        "Failed" => Ok(Health::current("Pod has completed, but not successfully")),
        "Running" => {
            if conditions
                .iter()
                .any(|c| c.type_ == "Ready" && c.status == "True")
            {
                return Ok(Health::current("Pod is Ready"));
            }
            let crashing = crash_looping(object)?;
            if crashing.is_empty() {
                return Ok(Health::in_progress("Pod is running but is not Ready"));
            }
            Ok(Health::failed(format!(
                "Containers in CrashLoop state: {}",
                crashing.join(",")
            )))
        }
        "Pending" => {
            let scheduled = conditions
                .iter()
                .find(|c| c.type_ == "PodScheduled" && c.status == "False");
            if scheduled.is_none_or(|condition| condition.reason != "Unschedulable") {
                return Ok(Health::in_progress("Pod is in the Pending phase"));
            }
            Ok(if is_new(object, now) {
                Health::in_progress("Pod has not been scheduled")
            } else {
                Health::failed("Pod could not be scheduled")
            })
        }
        "" => Ok(Health::in_progress("Pod phase not available")),
        _ => Err(Malformed {
            field: "status.phase".into(),
            expected: "a known phase",
        }),
    }
}

/// Reports whether a pod is so new that the scheduler may still place it.
fn is_new(object: &Value, now: Timestamp) -> bool {
    let made: Option<Timestamp> = text_or(object, &["metadata", "creationTimestamp"], "")
        .parse()
        .ok();
    let window = SignedDuration::try_from(SCHEDULE_WINDOW).unwrap_or(SignedDuration::ZERO);
    made.is_some_and(|made| made.duration_since(now) > -window)
}

/// Returns the names of the containers in CrashLoopBackOff.
fn crash_looping(object: &Value) -> Result<Vec<&str>, Malformed> {
    let statuses = match nested(object, &["status", "containerStatuses"])? {
        None => return Ok(Vec::new()),
        Some(value) => value.as_array().ok_or_else(|| malformed("", "a list"))?,
    };
    let mut names = Vec::new();
    for container in statuses {
        let container = container
            .as_object()
            .ok_or_else(|| malformed("[]", "an object"))?;
        let Some(name) = container.get("name") else {
            continue;
        };
        let name = name.as_str().ok_or_else(|| malformed("[].name", "a string"))?;
        let Some(state) = container.get("state") else {
            continue;
        };
        let state = state
            .as_object()
            .ok_or_else(|| malformed("[].state", "an object"))?;
        let Some(waiting) = state.get("waiting") else {
            continue;
        };
        let waiting = waiting
            .as_object()
            .ok_or_else(|| malformed("[].state.waiting", "an object"))?;
        let Some(reason) = waiting.get("reason") else {
            continue;
        };
        let reason = reason
            .as_str()
            .ok_or_else(|| malformed("[].state.waiting.reason", "a string"))?;
        if reason == "CrashLoopBackOff" {
            names.push(name);
        }
    }
    Ok(names)
}

fn malformed(what: &str, expected: &'static str) -> Malformed {
    Malformed {
        field: format!("status.containerStatuses{what}"),
        expected,
    }
}

/// A running Job is in the state of its spec, whatever its duration.
fn job(object: &Value) -> Result<Health, Malformed> {
    let parallelism = integer_or(object, &["spec", "parallelism"], 1);
    let completions = integer_or(object, &["spec", "completions"], parallelism);
    let (succeeded, failed) = (status(object, "succeeded"), status(object, "failed"));
    for condition in conditions(object)?.iter().filter(|c| c.status == "True") {
        match condition.type_ {
            "Complete" => {
                return Ok(Health::current(format!(
                    "Job Completed. succeeded: {succeeded}/{completions}"
                )));
            }
            "Failed" => {
                return Ok(Health::failed(format!(
                    "Job Failed. failed: {failed}/{completions}"
                )));
            }
            _ => {}
        }
    }
    if text_or(object, &["status", "startTime"], "").is_empty() {
        return Ok(Health::in_progress("Job not started"));
    }
    Ok(Health::current(format!(
        "Job in progress. success:{succeeded}, active: {}, failed: {failed}",
        status(object, "active")
    )))
}

fn service(object: &Value) -> Health {
    let balanced = text_or(object, &["spec", "type"], "ClusterIP") == "LoadBalancer";
    if balanced && text_or(object, &["spec", "clusterIP"], "").is_empty() {
        return Health::in_progress("ClusterIP not set. Service type: LoadBalancer");
    }
    Health::current("Service is ready")
}

fn definition(object: &Value) -> Result<Health, Malformed> {
    for condition in conditions(object)? {
        match (condition.type_, condition.status) {
            ("NamesAccepted", "False") => return Ok(Health::failed(condition.message)),
            ("Established", "False") if condition.reason != "Installing" => {
                return Ok(Health::failed(condition.message));
            }
            ("Established", "True") => return Ok(Health::current("CRD is established")),
            _ => {}
        }
    }
    Ok(Health::in_progress("Install in progress"))
}
