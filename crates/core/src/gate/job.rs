//! The Job of a gate: its name, its object, and its result.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube_core::ResourceExt as _;
use serde_json::{Value, json};
use starling_api::{FIELD_MANAGER, GATE, GROUP_LABEL, ROLLOUT, conditions};

use std::collections::BTreeSet;

use super::{Evaluation, GateId, Side, TaskError};

/// The longest name, since the name of a Job is a label of its pods.
const NAME_LIMIT: usize = 63;
/// The number of hex digits of the hash in a name.
const HASH: usize = 8;
/// The time that a Job is kept after its end, in seconds, unless its template has a value: a day, to read its logs.
const KEPT: u32 = 24 * 60 * 60;
/// The number of characters of a message of the Job controller that are quoted.
const QUOTED: usize = 300;

/// Checks whether a template has a pod. The API server checks the rest.
pub(super) fn check(template: &Value) -> Result<(), TaskError> {
    let pod = template.pointer("/spec/template/spec");
    if pod.is_some_and(Value::is_object) {
        Ok(())
    } else {
        Err(TaskError::MissingPod)
    }
}

/// The ServiceAccounts that Jobs of gates may run as, in the namespace of their group. Without any there are no Jobs: a
/// user who may write a SyncGroup would get the rights of every account of the namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobAccounts(pub BTreeSet<String>);

impl JobAccounts {
    /// Checks whether a Job of this template may be created.
    ///
    /// # Errors
    /// [`TaskError`].
    pub(crate) fn check(&self, template: &Value) -> Result<(), TaskError> {
        let Self(allowed) = self;
        if allowed.is_empty() {
            return Err(TaskError::JobsOff);
        }
        let pod = template.pointer("/spec/template/spec").unwrap_or(&Value::Null);
        let account = pod.get("serviceAccountName").and_then(Value::as_str);
        if !account.is_some_and(|account| allowed.contains(account)) {
            return Err(TaskError::JobAccount {
                account: account.unwrap_or_default().to_owned(),
                allowed: allowed.iter().cloned().collect::<Vec<_>>().join(", "),
            });
        }
        if let Some(field) = find_field(pod, names_secret) {
            return Err(TaskError::JobSecret { field });
        }
        find_field(pod, reaches_node).map_or(Ok(()), |field| Err(TaskError::JobNode { field }))
    }
}

/// Whether a field names a Secret. Kubernetes checks no right of an account when a pod names a Secret of its namespace,
/// so a template with such a field would have all of them. Every field that names one has `secret` in its name; the one
/// that is only used to pull images is allowed.
fn names_secret(name: &str, _: &Value) -> bool {
    name != "imagePullSecrets" && name.to_lowercase().contains("secret")
}

/// Whether a field gives a pod more than its own container: the fields that the Pod Security Standard `baseline`
/// forbids (KEP-2579), as far as they reach the node. The account that an operator allows says nothing about the node,
/// where every Secret of every pod is.
fn reaches_node(name: &str, value: &Value) -> bool {
    match name {
        "hostNetwork" | "hostPID" | "hostIPC" | "privileged" | "hostProcess" => *value == true,
        "hostPath" => !value.is_null(),
        "hostPort" => value.as_u64() != Some(0),
        "capabilities" => {
            let added = value.get("add").and_then(Value::as_array);
            added.is_some_and(|added| !added.is_empty())
        }
        _ => false,
    }
}

/// Returns the path of the first field within a value that is wanted.
fn find_field(value: &Value, is_wanted: fn(&str, &Value) -> bool) -> Option<String> {
    let within = |step: String, value: &Value| {
        let rest = find_field(value, is_wanted)?;
        Some(if rest.is_empty() {
            step
        } else {
            format!("{step}.{rest}")
        })
    };
    match value {
        Value::Object(fields) => fields.iter().find_map(|(name, value)| {
            if is_wanted(name, value) {
                Some(name.clone())
            } else {
                within(name.clone(), value)
            }
        }),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .find_map(|(index, item)| within(index.to_string(), item)),
        _ => None,
    }
}

/// Returns the name of the Job of a gate: `<group>-<rollout>-<stage>-<b|a><index>`, and a hash, since the gate may
/// begin again, and the rest may be too long for a name or have invalid characters.
#[must_use]
pub fn name(group: &str, id: &GateId) -> String {
    let side = match id.side {
        Side::Before => 'b',
        Side::After => 'a',
    };
    let tail = format!("-{side}{}-{}", id.index, &id.key()[..HASH]);
    let head: String = format!("{group}-{}-{}", id.rollout, id.stage)
        .to_lowercase()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(NAME_LIMIT - tail.len())
        .collect();
    format!("{}{tail}", head.trim_end_matches('-'))
}

/// The owner of a Job.
#[derive(Clone, Debug)]
pub struct JobOwner<'a> {
    /// The gate.
    pub id: &'a GateId,
    /// The namespace of the group.
    pub namespace: &'a str,
    /// The name of the group.
    pub group: &'a str,
    /// The group, as the owner of the Job.
    pub owner: &'a OwnerReference,
}

/// Returns the Job for a template. It keeps everything but the identity and the owner.
#[must_use]
pub fn object(template: &Value, owner: &JobOwner<'_>) -> Value {
    let map = |pointer: &str| match template.pointer(pointer) {
        Some(Value::Object(map)) => map.clone(),
        _ => serde_json::Map::new(),
    };
    let mut labels = map("/metadata/labels");
    // A label holds 63 characters.
    if owner.group.len() <= 63 {
        labels.insert(GROUP_LABEL.to_owned(), owner.group.into());
    }
    labels.insert("app.kubernetes.io/managed-by".to_owned(), FIELD_MANAGER.into());
    let mut annotations = map("/metadata/annotations");
    annotations.insert(GATE.to_owned(), owner.id.key().into());
    annotations.insert(ROLLOUT.to_owned(), owner.id.rollout.to_string().into());
    let mut spec = map("/spec");
    spec.entry("ttlSecondsAfterFinished")
        .or_insert_with(|| KEPT.into());
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name(owner.group, owner.id),
            "namespace": owner.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [owner.owner],
        },
        "spec": spec,
    })
}

/// Reports whether a Job belongs to a gate. A restore to another API server removes the owner reference.
#[must_use]
pub fn is_of(job: &Job, id: &GateId) -> bool {
    job.annotations().get(GATE).is_some_and(|key| *key == id.key())
}

/// Returns the result of the Job of a gate.
#[must_use]
pub fn read(job: &Job, id: &GateId) -> Evaluation {
    let name = job.name_any();
    if !is_of(job, id) {
        return Evaluation::Failed(format!(
            "Job {name:?} exists and does not belong to this task; delete it and retry the task"
        ));
    }
    let none = Vec::new();
    let status = job.status.as_ref();
    let conditions = status
        .and_then(|status| status.conditions.as_ref())
        .unwrap_or(&none);
    let is = |type_: &str| conditions.iter().find(|c| c.type_ == type_ && c.status == "True");
    if is("Complete").is_some() {
        return Evaluation::Passed;
    }
    if let Some(condition) = is("Failed") {
        let text = [condition.reason.as_deref(), condition.message.as_deref()];
        let text: Vec<&str> = text
            .into_iter()
            .flatten()
            .filter(|text| !text.is_empty())
            .collect();
        let why = conditions::cut(&text.join(": "), QUOTED);
        return Evaluation::Failed(format!("Job {name:?} failed: {why}"));
    }
    if job.metadata.deletion_timestamp.is_some() {
        return Evaluation::Failed(deleted_message(&name));
    }
    let count = |of: fn(&k8s_openapi::api::batch::v1::JobStatus) -> Option<i32>| {
        status.and_then(of).unwrap_or_default()
    };
    let (active, failed) = (count(|status| status.active), count(|status| status.failed));
    Evaluation::Pending(format!(
        "Job {name:?} is running: {active} pods active, {failed} failed"
    ))
}

/// Returns the message for a Job that was deleted.
#[must_use]
pub fn deleted_message(name: &str) -> String {
    format!("Job {name:?} was deleted before it ended")
}

#[cfg(test)]
mod tests {
    use super::super::tests::id;
    use super::*;

    const OWNER_UID: &str = "5a1ee3c4-9d3f-4b52-8f5e-000000000001";

    fn owner() -> OwnerReference {
        OwnerReference {
            api_version: "starling.dev/v1alpha1".into(),
            kind: "SyncGroup".into(),
            name: "shop".into(),
            uid: OWNER_UID.into(),
            ..OwnerReference::default()
        }
    }

    fn made() -> Value {
        let (id, owner) = (id(), owner());
        let owner = JobOwner {
            id: &id,
            namespace: "fleet",
            group: "shop",
            owner: &owner,
        };
        let template = json!({
            "metadata": {"labels": {"team": "shop", GROUP_LABEL: "other"}, "annotations": {"note": "x"}, "name": "mine", "namespace": "other"},
            "spec": {"backoffLimit": 2, "fieldOfTomorrow": true, "template": {"spec": {"restartPolicy": "Never"}}},
        });
        object(&template, &owner)
    }

    #[test]
    fn tenant_jobs_are_off_and_run_as_allowed_accounts_without_secrets() {
        let template = |pod: Value| json!({"spec": {"template": {"spec": pod}}});
        let allowed = JobAccounts(["smoke".to_owned()].into());
        let plain = template(json!({"serviceAccountName": "smoke", "imagePullSecrets": [{"name": "pull"}]}));
        assert_eq!(allowed.check(&plain), Ok(()));
        let harmless = template(json!({
            "serviceAccountName": "smoke", "hostNetwork": false, "securityContext": {"runAsNonRoot": true},
            "containers": [{"securityContext": {"privileged": false, "capabilities": {"drop": ["ALL"]}}}],
        }));
        assert_eq!(allowed.check(&harmless), Ok(()));
        assert_eq!(JobAccounts::default().check(&plain), Err(TaskError::JobsOff));
        let refused = |pod: Value| allowed.check(&template(pod)).unwrap_err().to_string();
        for pod in [
            json!({}),
            json!({"serviceAccount": "smoke"}),
            json!({"serviceAccountName": "admin"}),
        ] {
            let text = refused(pod);
            assert!(
                text.contains("serviceAccountName") && text.contains("smoke"),
                "{text}"
            );
        }
        for (field, expected) in [
            (
                json!({"volumes": [{"name": "v", "secret": {"secretName": "kubeconfig"}}]}),
                "volumes.0.secret",
            ),
            (
                json!({"volumes": [{"projected": {"sources": [{"secret": {"name": "kubeconfig"}}]}}]}),
                "volumes.0.projected.sources.0.secret",
            ),
            (
                json!({"containers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "s"}}}]}]}),
                "containers.0.env.0.valueFrom.secretKeyRef",
            ),
            (
                json!({"initContainers": [{"envFrom": [{"secretRef": {}}]}]}),
                "initContainers.0.envFrom.0.secretRef",
            ),
            (
                json!({"volumes": [{"csi": {"nodePublishSecretRef": {}}}]}),
                "volumes.0.csi.nodePublishSecretRef",
            ),
            (
                json!({"hostNetwork": true}),
                "hostNetwork: the pod of a task may not reach its node",
            ),
            (json!({"hostPID": true}), "hostPID"),
            (json!({"hostIPC": true}), "hostIPC"),
            (
                json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}),
                "volumes.0.hostPath",
            ),
            (
                json!({"containers": [{"securityContext": {"privileged": true}}]}),
                "containers.0.securityContext.privileged",
            ),
            (
                json!({"initContainers": [{"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]}),
                "initContainers.0.securityContext.capabilities",
            ),
            (
                json!({"containers": [{"ports": [{"hostPort": 80}]}]}),
                "containers.0.ports.0.hostPort",
            ),
            (
                json!({"securityContext": {"windowsOptions": {"hostProcess": true}}}),
                "securityContext.windowsOptions.hostProcess",
            ),
        ] {
            let mut pod = field;
            pod["serviceAccountName"] = "smoke".into();
            let text = refused(pod);
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn a_job_has_its_template_and_its_owner() {
        let job = made();
        let metadata = &job["metadata"];
        assert_eq!(metadata["namespace"], "fleet");
        assert_eq!(metadata["labels"]["team"], "shop");
        assert_eq!(metadata["labels"][GROUP_LABEL], "shop");
        assert_eq!(metadata["annotations"]["note"], "x");
        assert_eq!(metadata["ownerReferences"][0]["uid"], OWNER_UID);
        assert_eq!(job["spec"]["fieldOfTomorrow"], true);
        assert_eq!(job["spec"]["ttlSecondsAfterFinished"], KEPT);
        let mut job: Job = serde_json::from_value(job).unwrap();
        assert!(is_of(&job, &id()));
        job.metadata.owner_references = None;
        assert!(is_of(&job, &id()), "restored to another API server");
        let mut later = id();
        later.begun_at = "2026-01-01T12:00:01Z".parse().unwrap();
        assert!(!is_of(&job, &later), "the gate began again");
    }

    #[test]
    fn a_name_is_valid_for_any_group_and_stage() {
        let mut id = id();
        let plain = name("shop", &id);
        assert!(plain.starts_with("shop-7-canary-a1-"), "{plain}");
        id.begun_at = "2026-01-01T12:00:01Z".parse().unwrap();
        assert_ne!(name("shop", &id), plain);
        for (group, stage) in [
            ("shop.eu".to_owned(), "Wave 1/ä".to_owned()),
            ("g".repeat(253), "s".repeat(63)),
            ("shop".to_owned(), "-".repeat(60)),
        ] {
            id.stage = stage;
            let name = name(&group, &id);
            let well = name
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
            assert!(
                well && name.len() <= NAME_LIMIT && !name.starts_with('-'),
                "{name}"
            );
        }
    }

    #[test]
    fn the_conditions_of_a_job_decide() {
        let read = |status: Value| {
            let mut job = made();
            job["status"] = status;
            super::read(&serde_json::from_value(job).unwrap(), &id())
        };
        let condition = |type_: &str, status: &str| json!({"conditions": [{"type": type_, "status": status, "reason": "BackoffLimitExceeded", "message": "too often"}]});
        assert_eq!(read(condition("Complete", "True")), Evaluation::Passed);
        assert!(
            matches!(read(condition("Failed", "True")), Evaluation::Failed(text) if text.ends_with("failed: BackoffLimitExceeded: too often"))
        );
        for status in [
            condition("Complete", "False"),
            condition("FailureTarget", "True"),
            condition("SuccessCriteriaMet", "True"),
        ] {
            assert!(matches!(read(status), Evaluation::Pending(_)));
        }
        assert!(
            matches!(read(json!({"active": 2, "failed": 1})), Evaluation::Pending(text) if text.contains("2 pods active, 1 failed"))
        );
        let mut foreign = made();
        foreign["metadata"]["annotations"][GATE] = "another".into();
        let foreign = serde_json::from_value(foreign).unwrap();
        assert!(
            matches!(super::read(&foreign, &id()), Evaluation::Failed(text) if text.contains("does not belong to this task"))
        );
    }

    #[test]
    fn a_template_without_a_pod_is_rejected() {
        assert!(check(&json!({"spec": {"template": {"spec": {}}}})).is_ok());
        for template in [
            json!({}),
            json!({"spec": {"template": {}}}),
            json!({"template": {"spec": {}}}),
        ] {
            assert_eq!(check(&template), Err(TaskError::MissingPod), "{template}");
        }
    }
}
