//! The deletion of a group: its Syncs are deleted first, with the deletion policy of the group.
//!
//! A group has the finalizer if its deletion may require work, because the `deletionPolicy` of the group, of an entry,
//! or of one of its Syncs is `Delete`. Without the finalizer the garbage collector would delete each Sync with its own
//! policy, and a group with `Orphan` could not prevent deletions.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt;
use starling_api::conditions::{self, READY};
use starling_api::{DeletionPolicy, FINALIZER, SyncGroup, SyncResource};
use starling_core::finalize::{ParentDeletion, dependents_first};

use super::super::ReconcileError;
use super::super::parent_deletion::parent_deletion;
use super::super::sync::depends_on;
use super::observe::{self, GroupBlocked};
use super::{leave, report};
use crate::controller::cache::ObjectKey;
use crate::controller::caches::sync_index::GroupSyncs;
use crate::controller::context::{GroupContext, Next};
use crate::controller::event_handlers::ChangedBy;
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
    let failed = delete_syncs(context, &group, &syncs).await?;
    let left = observe::syncs(context, &key);
    report_waiting(context, group, "Deleting", remaining(&left)).await?;
    // The deletion of each Sync enqueues the group, including the last one.
    Ok(if failed || left.is_empty() {
        Next::Retry(waits::GROUP_DELETION_RETRY)
    } else {
        Next::OnEvent
    })
}

/// Deletes the remaining Syncs with the policy of the group. Returns whether the deletion of some failed.
async fn delete_syncs(
    context: GroupContext<'_>,
    object: &SyncGroup,
    syncs: &GroupSyncs,
) -> Result<bool, ReconcileError> {
    let policy = object.spec.deletion_policy;
    let staying: BTreeMap<String, &Arc<SyncResource>> = syncs
        .values()
        .filter(|sync| sync.metadata.deletion_timestamp.is_none())
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
        leave::settle_left(context, object, sync).await?;
        if let Err(error) = leave::remove(context, sync, policy).await {
            tracing::warn!(sync = %sync.name_any(), error = %crate::chain(&error), "Sync not removed");
            failed = true;
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
        "waiting for {} Syncs to be deleted{}",
        left.values().count(),
        first.unwrap_or_default()
    )
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
