//! The deletion of a group: its Syncs are deleted first, with the deletion policy of the group.
//!
//! A group has the finalizer if its deletion may require work, because the `deletionPolicy` of the group, of an entry,
//! or of one of its Syncs is `Delete`. Without the finalizer the garbage collector would delete each Sync with its own
//! policy, and a group with `Orphan` could not prevent deletions.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt;
use starling_api::conditions::{self, READY};
use starling_api::{
    ABANDON, DeletionPolicy, FINALIZER, IntOrPercent, RolloutStrategy, SyncGroup, SyncResource,
};
use starling_core::finalize::{ParentDeletion, dependents_first};
use starling_core::group_deletion::{
    DeletedCluster, DeletedGroup, DeletionWait, NextDeletions, next_deletions,
};
use starling_core::plan::{Reach, ReadStrategy};
use starling_core::plural::counted;

use super::super::ReconcileError;
use super::super::cluster::reach;
use super::super::group_state::{self, is_abandoned};
use super::super::parent_deletion::parent_deletion;
use super::super::sync::depends_on;
use super::observe::{self, GroupBlocked};
use super::{remove, report};
use crate::controller::caches::sync_index::GroupSyncs;
use crate::controller::context::{GroupContext, Next};
use crate::controller::event_handlers::ChangedBy;
use crate::controller::object_key::ObjectKey;
use crate::controller::waits;

/// Adds the finalizer to a group whose deletion may require work, and removes it from any other.
///
/// # Errors
/// [`ReconcileError`] if the finalizer cannot be written.
pub(super) async fn ensure(context: GroupContext<'_>, group: &SyncGroup) -> Result<(), ReconcileError> {
    let deletes = |policy: DeletionPolicy| policy == DeletionPolicy::Delete;
    let syncs = observe::syncs(context, &ObjectKey::of(group));
    let wanted = deletes(group.spec.deletion_policy)
        || group
            .spec
            .syncs
            .iter()
            .any(|entry| deletes(entry.template.deletion_policy))
        || syncs
            .values()
            .any(|sync| deletes(sync.spec.template.deletion_policy));
    if wanted != has_finalizer(group) {
        let written = context.hub.set_finalizer(group, wanted).await?;
        if let Some(change) = context.objects.groups.observe_write(written) {
            context.handlers.on_group(&change, ChangedBy::Reconciler);
        }
    }
    Ok(())
}

fn has_finalizer(group: &SyncGroup) -> bool {
    group.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
}

/// Runs one pass over a group that is being deleted.
///
/// # Errors
/// [`ReconcileError`] if a write to the management cluster or the ledger failed.
pub(super) async fn finalize(
    context: GroupContext<'_>,
    group: Arc<SyncGroup>,
) -> Result<Next, ReconcileError> {
    if !has_finalizer(&group) {
        return Ok(Next::OnEvent);
    }
    let key = ObjectKey::of(&*group);
    // `kubectl delete --cascade=orphan` keeps the Syncs.
    let keeps_syncs = group.finalizers().iter().any(|finalizer| finalizer == "orphan");
    match parent_deletion(context.hub, &key).await {
        ParentDeletion::None if !keeps_syncs => {}
        ParentDeletion::Unknown(why) if !keeps_syncs => {
            let message = format!(
                "no Sync is deleted: cannot determine whether the namespace or a CustomResourceDefinition is being \
                 deleted: {why}"
            );
            report_waiting(context, group, "AwaitingManagementCluster", message).await?;
            return Ok(Next::Retry(waits::GROUP_DELETION_RETRY));
        }
        // The Syncs are deleted with the namespace or the CustomResourceDefinition, detect that themselves, and leave
        // their objects.
        ParentDeletion::None | ParentDeletion::Unknown(_) | ParentDeletion::Deleting(_) => {
            return release(context, &group).await;
        }
    }
    // A person may have suspended the group, and a watch may deliver nothing.
    let group = match context.hub.find::<SyncGroup>(&key).await {
        Ok(Some(current)) if current.metadata.uid == group.metadata.uid => Arc::new(current),
        Ok(_) => return Ok(Next::OnEvent),
        Err(error) => {
            let message = format!("no Sync is deleted: {}", crate::chain(&error));
            report_waiting(context, group, "AwaitingManagementCluster", message).await?;
            return Ok(Next::Retry(waits::GROUP_DELETION_RETRY));
        }
    };
    let syncs = observe::syncs(context, &key);
    if syncs.is_empty() {
        let objects = match group.spec.deletion_policy {
            DeletionPolicy::Delete => {
                "their objects are deleted, except where an event of a Sync says otherwise"
            }
            DeletionPolicy::Orphan => "their objects stay on the clusters",
        };
        let note = format!("all Syncs of the group are deleted; {objects}");
        context.events.normal(&*group, "Deleted", note).await;
        return release(context, &group).await;
    }
    let next = next(context, &group, &syncs);
    let failed = delete_syncs(context, &group, &syncs, &next.clusters).await?;
    let left = observe::syncs(context, &key);
    let message = remaining(&left) + &waits_for(&group, next.waits_for);
    report_waiting(context, group, "Deleting", message).await?;
    // The deletion of each Sync enqueues the group, including the last one.
    Ok(if failed || left.is_empty() {
        Next::Retry(waits::GROUP_DELETION_RETRY)
    } else {
        let recheck = next.recheck_at.map(|at| Next::at(at, context.clock.now()));
        recheck.unwrap_or(Next::OnEvent)
    })
}

/// Returns the clusters whose Syncs are deleted next. With an invalid strategy, one cluster at a time is.
fn next(context: GroupContext<'_>, group: &SyncGroup, syncs: &GroupSyncs) -> NextDeletions {
    let spec = &group.spec;
    let strategy = ReadStrategy::new(&spec.rollout_strategy).or_else(|_| {
        ReadStrategy::new(&RolloutStrategy {
            max_concurrency: IntOrPercent::Int(1),
            ..RolloutStrategy::default()
        })
    });
    let Ok(strategy) = strategy else {
        return NextDeletions::default();
    };
    let namespace = group.namespace().unwrap_or_default();
    let (key, now) = (ObjectKey::of(group), context.clock.now());
    let times = &context.caches.removal_times;
    times.observe(&key, syncs.values().map(|sync| &**sync), now);
    let cluster = |(name, _): (&str, _)| {
        let found = context.objects.clusters.get(&ObjectKey::new(&namespace, name));
        let place = found.as_ref().map(|cluster| strategy.place(cluster.labels()));
        let place = place.unwrap_or_default();
        let cluster = DeletedCluster {
            stage: place.stage,
            windows: place.windows,
            reachable: found.is_some_and(|cluster| reach(&cluster) == Reach::Ready),
            abandoned: syncs.on(name).any(|sync| is_abandoned(sync)),
            remaining: syncs
                .on(name)
                .any(|sync| sync.metadata.deletion_timestamp.is_none()),
            deleting_since: syncs
                .on(name)
                .filter_map(|sync| times.since(&key, sync, now))
                .max(),
        };
        (name.to_owned(), cluster)
    };
    next_deletions(&DeletedGroup {
        now,
        policy: spec.deletion_policy,
        suspended: spec.suspend,
        paused: group_state::is_paused(context.objects, group),
        clock_jumps: &context.clock.jumps(),
        strategy: &strategy.strategy,
        clusters: syncs.clusters().map(cluster).collect(),
    })
}

/// Deletes the remaining Syncs of these clusters with the policy of the group. Returns whether the deletion of some
/// failed.
async fn delete_syncs(
    context: GroupContext<'_>,
    object: &SyncGroup,
    syncs: &GroupSyncs,
    clusters: &[String],
) -> Result<bool, ReconcileError> {
    let policy = object.spec.deletion_policy;
    let staying: BTreeMap<String, &Arc<SyncResource>> = syncs
        .values()
        .filter(|sync| sync.metadata.deletion_timestamp.is_none())
        .filter(|sync| clusters.binary_search(&sync.spec.cluster_ref.name).is_ok())
        .map(|sync| (sync.name_any(), sync))
        .collect();
    let order = dependents_first(
        &staying
            .iter()
            .map(|(name, sync)| (name.clone(), depends_on(sync)))
            .collect(),
    );
    let mut failed = false;
    for sync in order.iter().filter_map(|name| staying.get(name)) {
        // A Sync that cannot be removed may still be applied, and only the first end counts.
        match remove::remove(context, sync, policy).await {
            Ok(()) => remove::end_left(context, object, sync).await?,
            Err(error) => {
                tracing::warn!(sync = %sync.name_any(), error = %crate::chain(&error), "Sync not removed");
                failed = true;
            }
        }
    }
    Ok(failed)
}

fn remaining(left: &GroupSyncs) -> String {
    let first = left.values().find_map(|sync| {
        let status = sync.status.as_ref()?;
        let ready = conditions::find(&status.conditions, READY).filter(|ready| ready.status != "True")?;
        Some(format!("; {}: {}", sync.name_any(), ready.message))
    });
    format!(
        "waiting for {} to be deleted{}",
        counted(left.values().count(), "Sync", "Syncs"),
        first.unwrap_or_default()
    )
}

/// Returns what the next cluster waits for, as a part of a message.
fn waits_for(group: &SyncGroup, wait: Option<DeletionWait>) -> String {
    match wait {
        None => String::new(),
        Some(DeletionWait::Suspended) => {
            "; the group is suspended: to continue, set spec.suspend to false".to_owned()
        }
        Some(DeletionWait::Stage(stage)) => {
            let named = group.spec.rollout_strategy.stages.get(stage);
            match named {
                Some(stage) => format!("; stage {} waits for the stages before it", stage.name),
                None => "; clusters without a stage wait for the stages".to_owned(),
            }
        }
        Some(DeletionWait::Paused) => {
            let name = group.name_any();
            format!("; the rollout is paused: to continue, run starling resume {name}")
        }
        Some(DeletionWait::Unreachable) => {
            format!(
                "; clusters are unreachable, and lose their Syncs when they return; set {ABANDON}: \"true\" on a Sync to leave its objects there"
            )
        }
        Some(DeletionWait::Window) => "; clusters wait for a window".to_owned(),
        Some(DeletionWait::Slot) => "; clusters wait for a slot (maxConcurrency)".to_owned(),
    }
}

async fn report_waiting(
    context: GroupContext<'_>,
    object: Arc<SyncGroup>,
    reason: &'static str,
    message: String,
) -> Result<(), ReconcileError> {
    let blocked = GroupBlocked {
        object,
        reason,
        message,
        stalled: false,
    };
    report::blocked(context, &blocked).await
}

async fn release(context: GroupContext<'_>, group: &SyncGroup) -> Result<Next, ReconcileError> {
    context.hub.set_finalizer(group, false).await?;
    Ok(Next::OnEvent)
}
