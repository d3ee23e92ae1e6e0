//! Resumes after a start: continues the work of the last process, spread over time.
//!
//! Keys with a due time in the ledger wait until then. All other keys are due now, and are spread by full jitter over a
//! time that grows with the number of objects, so that members and git hosts do not get all requests at once. Syncs
//! that are not in sync come first: their spread is short.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use starling_api::SyncResource;
use starling_core::digest::{hash64, spread};
use starling_core::ids::ClusterId;
use starling_core::{backoff, progress, target};
use starling_ledger::LedgerError;

use super::context::Context;
use super::queues::Loop;
use super::reconcile::sync_group::close_open;
use crate::controller::object_key::ObjectKey;

/// Enqueues every known object.
///
/// # Errors
/// [`LedgerError`] if interrupted attempts cannot be recorded.
pub(super) async fn resume(context: &Context) -> Result<(), LedgerError> {
    for interrupted in context.adapters.ledger.interrupted_attempts().await? {
        let attempt = &interrupted.attempt;
        tracing::info!(sync = %attempt.name, namespace = %attempt.namespace, cluster = %attempt.cluster, revision = %attempt.revision, "attempt was interrupted; retrying");
    }
    context.adapters.ledger.close_interrupted(context.now()).await?;
    close_interrupted(context).await?;
    let due_times = due_times(context).await;
    let boot = context.now().to_string();

    let sources: Vec<_> = context
        .objects
        .sources
        .select(|_| true)
        .iter()
        .map(|object| ObjectKey::of(&**object))
        .collect();
    let clusters: Vec<_> = context
        .objects
        .clusters
        .select(|_| true)
        .iter()
        .map(|object| ObjectKey::of(&**object))
        .collect();
    let groups: Vec<_> = context
        .objects
        .groups
        .select(|_| true)
        .iter()
        .map(|object| ObjectKey::of(&**object))
        .collect();
    // Each Source is listed once after a start, independent of the ledger: a push may have happened while no process
    // ran. Clusters are probed because connections exist only in this process, and groups cost no request.
    enqueue(context, Loop::Source, sources, &boot);
    enqueue(context, Loop::Cluster, clusters, &boot);
    enqueue(context, Loop::SyncGroup, groups, &boot);

    let mut due = Vec::new();
    for sync in context.objects.syncs.select(|_| true) {
        let key = ObjectKey::of(&*sync);
        let leaves = sync.metadata.deletion_timestamp.is_some();
        if !leaves && is_in_step(context, &key, &sync) {
            let check = next_check(&sync, due_times.get(&key).copied(), &boot, context.now());
            context.caches.sync.deadlines.set(&key, check);
            let wait = check
                .duration_since(context.now())
                .try_into()
                .unwrap_or(Duration::ZERO);
            context.queues.syncs.add_after(key, wait);
        } else {
            due.push(key);
        }
    }
    enqueue(context, Loop::Sync, due, &boot);
    Ok(())
}

/// Ends in the ledger what the last process left open: of groups that exist, and of groups that were deleted meanwhile.
async fn close_interrupted(context: &Context) -> Result<(), LedgerError> {
    let context = context.of_group();
    for group in context.objects.groups.select(|_| true) {
        close_open::of_group(context, &group).await?;
    }
    close_open::of_deleted_groups(context).await
}

fn enqueue(context: &Context, of: Loop, keys: Vec<ObjectKey>, boot: &str) {
    let count = keys.len();
    for key in keys {
        let delay = backoff::start_delay(count, &format!("{} {key} {boot}", of.as_str()));
        of.queue(&context.queues).add_after(key, delay);
    }
}

/// Returns the time of the next drift check of a Sync that is in sync: the recorded time, if it is plausible, or a time
/// within its interval.
fn next_check(sync: &SyncResource, recorded: Option<Timestamp>, boot: &str, now: Timestamp) -> Timestamp {
    let template = &sync.spec.template;
    let (interval, retry_interval) = (template.interval.as_std(), template.retry_interval.as_std());
    let is_plausible = |due: &Timestamp| backoff::is_plausible(*due, interval, retry_interval, now);
    let recorded = recorded.filter(|due| *due > now && is_plausible(due));
    recorded.unwrap_or_else(|| {
        let wait = spread(interval, hash64(&[&sync.uid().unwrap_or_default(), boot]));
        now.saturating_add(SignedDuration::try_from(wait).unwrap_or_default())
            .unwrap_or(now)
    })
}

fn is_in_step(context: &Context, key: &ObjectKey, sync: &SyncResource) -> bool {
    let cluster = context
        .objects
        .clusters
        .get(&ObjectKey::new(&key.namespace, &sync.spec.cluster_ref.name));
    let id = cluster.as_deref().map(ClusterId::of).unwrap_or_default();
    let (Some(status), Some(target)) = (&sync.status, target::of_spec(&sync.spec)) else {
        return false;
    };
    progress::is_settled(status, sync.spec.template.wait, &target, &id)
}

/// Returns the recorded due time of each Sync; nothing if the ledger cannot be read.
async fn due_times(context: &Context) -> BTreeMap<ObjectKey, Timestamp> {
    match context.adapters.ledger.load_queue().await {
        Ok(queue) => queue
            .into_iter()
            .filter(|due| due.key.kind == Loop::Sync.as_str())
            .map(|due| (ObjectKey::new(due.key.namespace, due.key.name), due.at))
            .collect(),
        Err(error) => {
            tracing::warn!(error = %crate::chain(&error), "cannot read the queue from the ledger");
            BTreeMap::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against a wait of a year: the clock was wrong when the time was recorded.
    #[test]
    fn a_recorded_check_counts_only_within_the_longest_wait() {
        let sync: SyncResource = serde_json::from_value(serde_json::json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "Sync",
            "metadata": {"name": "web", "namespace": "shop", "uid": "u"},
            "spec": {"clusterRef": {"name": "eu"}, "sourceRef": {"name": "s"}, "interval": "30m"},
        }))
        .unwrap();
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let after = |minutes: i64| now + SignedDuration::from_mins(minutes);
        assert_eq!(next_check(&sync, Some(after(32)), "boot", now), after(32));
        for recorded in [None, Some(after(-1)), Some(after(365 * 24 * 60))] {
            let check = next_check(&sync, recorded, "boot", now);
            assert!(now <= check && check <= after(30), "{recorded:?}: {check}");
        }
    }
}
