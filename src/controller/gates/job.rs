//! Runs a Job on the management cluster, in the namespace of the group.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt as _;
use serde_json::Value;
use starling_core::gate::Tried;
use starling_core::gate::job::{Mine, gone, is_of, name, object, read};

use super::errand::Errand;
use crate::controller::cache::ObjectKey;
use crate::controller::hub::HubError;

/// Tries to delete a Job that nobody waits for. What is left is told in the log, and goes with its group.
const DELETIONS: u32 = 3;
/// The pause between two of them.
const PAUSE: Duration = Duration::from_secs(2);

/// Whether the Job was there before.
#[derive(Debug, Default)]
pub(super) struct Seen(bool);

/// Makes the Job if it was not made yet, and looks how it stands.
pub(super) async fn look(errand: &Errand, template: &Value, seen: &mut Seen) -> Tried {
    match try_to_look(errand, template, seen).await {
        Ok(tried) | Err(tried) => tried,
    }
}

async fn try_to_look(errand: &Errand, template: &Value, seen: &mut Seen) -> Result<Tried, Tried> {
    let key = key(errand);
    if let Some(job) = find(errand, &key).await? {
        seen.0 = true;
        return Ok(read(&job, &errand.id));
    }
    if seen.0 {
        return Ok(Tried::Failed(gone(&key.name)));
    }
    let mine = Mine {
        id: &errand.id,
        namespace: &errand.group.namespace,
        group: &errand.group.name,
        owner: &errand.owner,
    };
    errand
        .hub
        .create_job(&key, &object(template, &mine))
        .await
        .map_err(|error| refused(&error))?;
    tracing::info!(group = %errand.group, job = %key, "a Job of a stage is made");
    Ok(Tried::NotYet(format!("Job {:?} was made", key.name)))
}

/// What the API server calls invalid stays so. A quota or a right that is missing may be given.
fn refused(error: &HubError) -> Tried {
    let text = crate::chain(error);
    if error.is_invalid() {
        Tried::Failed(format!("job.template: {text}"))
    } else {
        Tried::trouble(text)
    }
}

/// Deletes the Job, if it is this gate's and has not ended.
pub(super) async fn end(errand: &Errand) {
    let key = key(errand);
    for attempt in 1..=DELETIONS {
        match delete(errand, &key).await {
            Ok(()) => return,
            Err(error) => {
                tracing::warn!(group = %errand.group, job = %key, %error, attempt, "a Job that nobody waits for is not deleted");
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn delete(errand: &Errand, key: &ObjectKey) -> Result<(), String> {
    let job = errand
        .hub
        .find::<Job>(key)
        .await
        .map_err(|error| crate::chain(&error))?;
    let Some(job) = job.filter(|job| is_of(job, &errand.id)) else {
        return Ok(());
    };
    // One that has ended is kept for those who read its log.
    if matches!(read(&job, &errand.id), Tried::NotYet(_)) {
        errand
            .hub
            .delete(&job)
            .await
            .map_err(|error| crate::chain(&error))?;
        tracing::info!(group = %errand.group, job = %job.name_any(), "a Job that has not ended is deleted");
    }
    Ok(())
}

async fn find(errand: &Errand, key: &ObjectKey) -> Result<Option<Job>, Tried> {
    let found = errand.hub.find::<Job>(key).await;
    found.map_err(|error| Tried::trouble(crate::chain(&error)))
}

fn key(errand: &Errand) -> ObjectKey {
    ObjectKey::new(&errand.group.namespace, name(&errand.group.name, &errand.id))
}
