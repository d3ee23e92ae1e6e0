//! Runs a Job on the management cluster, in the namespace of the group.

use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt as _;
use serde_json::Value;
use starling_core::gate::Evaluation;
use starling_core::gate::job::{JobOwner, deleted_message, is_of, name, object, read};

use super::gate_task::GateTask;
use crate::controller::hub::HubError;
use crate::controller::object_key::ObjectKey;
use crate::controller::waits;

/// Attempts to delete a Job whose gate is no longer open. After that the Job is logged and left; it is deleted with its
/// group.
const DELETION_ATTEMPTS: u32 = 3;

/// True once the Job has existed.
#[derive(Debug, Default)]
pub(super) struct JobCreated(bool);

/// Creates the Job if it does not exist, and reads its status.
pub(super) async fn check(gate: &GateTask, template: &Value, created: &mut JobCreated) -> Evaluation {
    match try_to_check(gate, template, created).await {
        Ok(evaluation) | Err(evaluation) => evaluation,
    }
}

async fn try_to_check(
    gate: &GateTask,
    template: &Value,
    created: &mut JobCreated,
) -> Result<Evaluation, Evaluation> {
    let key = key(gate);
    if let Some(job) = find(gate, &key).await? {
        created.0 = true;
        return Ok(read(&job, &gate.id));
    }
    if created.0 {
        return Ok(Evaluation::Failed(deleted_message(&key.name)));
    }
    let owner = JobOwner {
        id: &gate.id,
        namespace: &gate.group.namespace,
        group: &gate.group.name,
        owner: &gate.owner,
    };
    gate.tools
        .hub
        .create_job(&key, &object(template, &owner))
        .await
        .map_err(|error| refused(&error))?;
    tracing::info!(group = %gate.group, job = %key, "Job of a gate created");
    Ok(Evaluation::Pending(format!("created Job {:?}", key.name)))
}

/// A request that the API server rejects as invalid fails for good. A missing quota or permission may be granted later.
fn refused(error: &HubError) -> Evaluation {
    let text = crate::chain(error);
    if error.is_invalid() {
        Evaluation::Failed(format!("job.template: {text}"))
    } else {
        Evaluation::error(text)
    }
}

/// Deletes the Job, if it belongs to this gate and has not finished.
pub(super) async fn end(gate: &GateTask) {
    let key = key(gate);
    for attempt in 1..=DELETION_ATTEMPTS {
        match delete(gate, &key).await {
            Ok(()) => return,
            Err(error) => {
                tracing::warn!(group = %gate.group, job = %key, error = %crate::chain(&error), attempt, "cannot delete the Job of a gate");
            }
        }
        tokio::time::sleep(waits::JOB_DELETION_RETRY).await;
    }
}

async fn delete(gate: &GateTask, key: &ObjectKey) -> Result<(), HubError> {
    let job = gate.tools.hub.find::<Job>(key).await?;
    let Some(job) = job.filter(|job| is_of(job, &gate.id)) else {
        return Ok(());
    };
    // A finished Job is kept for its log.
    if matches!(read(&job, &gate.id), Evaluation::Pending(_)) {
        gate.tools.hub.delete(&job).await?;
        tracing::info!(group = %gate.group, job = %job.name_any(), "unfinished Job of a gate deleted");
    }
    Ok(())
}

async fn find(gate: &GateTask, key: &ObjectKey) -> Result<Option<Job>, Evaluation> {
    let found = gate.tools.hub.find::<Job>(key).await;
    found.map_err(|error| Evaluation::error(crate::chain(&error)))
}

fn key(gate: &GateTask) -> ObjectKey {
    ObjectKey::new(&gate.group.namespace, name(&gate.group.name, &gate.id))
}
