//! The deletion of a group: its Syncs are deleted first, with the deletion policy of the group.
//!
//! A group has the finalizer if its deletion may require work, because the `deletionPolicy` of the group, of an entry,
//! or of one of its Syncs is `Delete`. Without the finalizer the garbage collector would delete each Sync with its own
//! policy, and a group with `Orphan` could not prevent deletions.

use std::sync::Arc;

use kube::ResourceExt;
use kube::api::ListParams;
use starling_api::conditions::{self, READY};
use starling_api::{DeletionPolicy, FINALIZER, GROUP_LABEL, SyncGroup, SyncResource};
use starling_core::finalize::ParentDeletion;
use starling_core::plural::counted;

use super::super::ReconcileError;
use super::super::parent_deletion::parent_deletion;
use super::observe::{self, GroupBlocked};
use super::{group_removal, report};
use crate::controller::caches::sync_index::GroupSyncs;
use crate::controller::context::{GroupContext, Next};
use crate::controller::event_handlers::ChangedBy;
use crate::controller::hub::HubError;
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
        Ok(Some(current)) if current.metadata.uid != group.metadata.uid => return Ok(Next::OnEvent),
        Ok(None) => return Ok(Next::OnEvent),
        Ok(Some(current)) if current.metadata.deletion_timestamp.is_none() => {
            // A deletion is never taken back, except with the whole management cluster.
            tracing::warn!(group = %key, "the management cluster has the group without its deletion: was it set back?");
            return Ok(Next::Retry(waits::GROUP_DELETION_RETRY));
        }
        Ok(Some(current)) => Arc::new(current),
        Err(error) => {
            let message = format!("no Sync is deleted: {}", crate::chain(&error));
            report_waiting(context, group, "AwaitingManagementCluster", message).await?;
            return Ok(Next::Retry(waits::GROUP_DELETION_RETRY));
        }
    };
    let syncs = observe::syncs(context, &key);
    // Nothing has begun yet, and the garbage collector may have finished while no controller was running.
    if !syncs
        .values()
        .any(|sync| sync.metadata.deletion_timestamp.is_some())
    {
        match are_orphaned(context, &group).await {
            Ok(false) => {}
            Ok(true) => return release(context, &group).await,
            Err(error) => {
                let message = format!("no Sync is deleted: {}", crate::chain(&error));
                report_waiting(context, group, "AwaitingManagementCluster", message).await?;
                return Ok(Next::Retry(waits::GROUP_DELETION_RETRY));
            }
        }
    }
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
    let removed = group_removal::pass(context, &group, &syncs).await?;
    // Another group may have been restored under the name.
    if !context.permit.is_valid() {
        return Ok(Next::After(waits::NUMBER_CHECK));
    }
    let left = observe::syncs(context, &key);
    let message = remaining(&left) + &removed.waits_for;
    report_waiting(context, group, "Deleting", message).await?;
    // The deletion of each Sync enqueues the group, including the last one.
    Ok(if !removed.is_complete || left.is_empty() {
        Next::Retry(waits::GROUP_DELETION_RETRY)
    } else {
        let recheck = removed.recheck_at.map(|at| Next::at(at, context.clock.now()));
        recheck.unwrap_or(Next::OnEvent)
    })
}

/// Reports whether the garbage collector has taken the Syncs from their group: after `kubectl delete
/// --cascade=orphan`, it removes the owner references, and then its finalizer, which the controller may never have
/// seen. Read from the management cluster: the watch of Syncs may be behind that of groups.
///
/// # Errors
/// [`HubError`].
async fn are_orphaned(context: GroupContext<'_>, group: &SyncGroup) -> Result<bool, HubError> {
    let namespace = group.namespace().unwrap_or_default();
    let selector = format!("{GROUP_LABEL}={}", group.name_any());
    let params = ListParams::default().labels(&selector);
    let syncs: Vec<SyncResource> = context.hub.list(&namespace, &params).await?;
    let uid = group.metadata.uid.as_ref();
    let mut owners = syncs.iter().flat_map(ResourceExt::owner_references);
    Ok(!syncs.is_empty() && !owners.any(|owner| Some(&owner.uid) == uid))
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
