//! After a start: goes on where the last process stopped, and not everywhere at once.
//!
//! What the ledger says is due in the future waits until then. Everything else is due now and is spread by full
//! jitter over a time that grows with the number of objects, so that neither the members nor the git hosts see a
//! herd. What is not in step goes first: its spread is short.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use starling_api::{RolloutPhase, SyncResource};
use starling_core::digest::{hash64, spread};
use starling_core::{backoff, progress, target};

use super::cache::ObjectKey;
use super::context::Context;
use super::work::Loop;
use crate::ledger::{LedgerError, RolloutOutcome};

/// Puts every known object into its queue.
///
/// # Errors
/// [`LedgerError`] where what was interrupted could not be written down.
pub(super) async fn resume(context: &Context) -> Result<(), LedgerError> {
    for interrupted in context.ledger.interrupted_attempts().await? {
        let attempt = &interrupted.attempt;
        tracing::info!(sync = %attempt.name, namespace = %attempt.namespace, cluster = %attempt.cluster, revision = %attempt.revision, "attempt was interrupted; it is made again");
    }
    context.ledger.close_interrupted(context.now()).await?;
    close_rollouts(context).await?;
    let remembered = remembered(context).await;
    let boot = context.now().to_string();

    let sources: Vec<_> = context
        .sources
        .select(|_| true)
        .iter()
        .map(|object| ObjectKey::of(&**object))
        .collect();
    let clusters: Vec<_> = context
        .clusters
        .select(|_| true)
        .iter()
        .map(|object| ObjectKey::of(&**object))
        .collect();
    let groups: Vec<_> = context
        .groups
        .select(|_| true)
        .iter()
        .map(|object| ObjectKey::of(&**object))
        .collect();
    // A Source is asked once at the start whatever the ledger says: a push may have come while nobody looked. The
    // same for clusters, whose connections live in this process, and groups, which cost a look into the caches.
    enqueue(context, Loop::Source, sources, &boot);
    enqueue(context, Loop::Cluster, clusters, &boot);
    enqueue(context, Loop::SyncGroup, groups, &boot);

    let mut due = Vec::new();
    for sync in context.syncs.select(|_| true) {
        let key = ObjectKey::of(&*sync);
        let leaves = sync.metadata.deletion_timestamp.is_some();
        if !leaves && is_in_step(context, &key, &sync) {
            let check = next_check(&sync, remembered.get(&key).copied(), &boot, context.now());
            context.checks.set(&key, check);
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

/// Ends in the ledger what the last process ended in a group's status and could no longer write down. A rollout
/// that is open beyond the one in status is an intent that was never carried out: the group takes its ID again.
async fn close_rollouts(context: &Context) -> Result<(), LedgerError> {
    for group in context.groups.select(|_| true) {
        let Some(status) = &group.status else { continue };
        let Some(current) = &status.rollout else { continue };
        // In a group without clusters a rollout is not over, though nothing is left to do.
        let is_over = current.phase == RolloutPhase::Succeeded && status.clusters.total > 0;
        let uid = group.uid().unwrap_or_default();
        for record in context.ledger.rollouts(&uid).await? {
            if let (None, Some(outcome)) = (record.end, outcome(current.id, is_over, &record.rollout.id)) {
                context
                    .ledger
                    .end_rollout(&uid, &record.rollout.id, outcome, context.now())
                    .await?;
            }
        }
    }
    Ok(())
}

/// How the rollout with this ID ended, as the group's status tells; `None` if it did not. `is_over`: the current one has succeeded.
fn outcome(current: i64, is_over: bool, id: &str) -> Option<RolloutOutcome> {
    let id: i64 = id.parse().ok()?;
    match id.cmp(&current) {
        Ordering::Less => Some(RolloutOutcome::Superseded),
        Ordering::Equal => is_over.then_some(RolloutOutcome::Succeeded),
        Ordering::Greater => None,
    }
}

fn enqueue(context: &Context, of: Loop, keys: Vec<ObjectKey>, boot: &str) {
    let count = keys.len();
    for key in keys {
        let delay = backoff::start_delay(count, &format!("{} {key} {boot}", of.as_str()));
        of.queue(context).add_after(key, delay);
    }
}

/// When a Sync that is in step is next checked for drift: as the ledger remembers, otherwise some time within its
/// interval.
fn next_check(sync: &SyncResource, remembered: Option<Timestamp>, boot: &str, now: Timestamp) -> Timestamp {
    remembered.filter(|due| *due > now).unwrap_or_else(|| {
        let wait = spread(
            sync.spec.template.interval.as_std(),
            hash64(&[&sync.uid().unwrap_or_default(), boot]),
        );
        now.saturating_add(SignedDuration::try_from(wait).unwrap_or_default())
            .unwrap_or(now)
    })
}

fn is_in_step(context: &Context, key: &ObjectKey, sync: &SyncResource) -> bool {
    let cluster = context
        .clusters
        .get(&ObjectKey::new(&key.namespace, &sync.spec.cluster_ref.name));
    let id = cluster
        .and_then(|cluster| Some(cluster.status.as_ref()?.cluster_id.clone()))
        .unwrap_or_default();
    let (Some(status), Some(target)) = (&sync.status, target::of_spec(&sync.spec)) else {
        return false;
    };
    progress::is_settled(status, sync.spec.template.wait, &target, &id)
}

/// When the last process wanted to look at each Sync. A ledger that cannot be read remembers nothing.
async fn remembered(context: &Context) -> BTreeMap<ObjectKey, Timestamp> {
    match context.ledger.load_queue().await {
        Ok(queue) => queue
            .into_iter()
            .filter(|due| due.key.kind == Loop::Sync.as_str())
            .map(|due| (ObjectKey::new(due.key.namespace, due.key.name), due.at))
            .collect(),
        Err(error) => {
            tracing::warn!(error = %crate::chain(&error), "the queue was not read from the ledger");
            BTreeMap::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_of_a_group_tells_how_the_rollouts_up_to_its_own_ended() {
        for (is_over, id, expected) in [
            (true, "7", Some(RolloutOutcome::Succeeded)),
            (false, "7", None),
            (false, "6", Some(RolloutOutcome::Superseded)),
            // An intent that was never carried out.
            (true, "8", None),
            (true, "x", None),
        ] {
            assert_eq!(outcome(7, is_over, id), expected, "{id}");
        }
    }
}
