//! The removal of a Sync. The policy for its objects is written to the Sync before the Sync is deleted, and the Sync
//! then carries it out.

use std::sync::Arc;

use kube::ResourceExt;
use starling_api::{DeletionPolicy, FINALIZER, REMOVAL, SyncGroup, SyncResource};
use starling_core::identity;
use starling_core::ids::{ClusterName, EntryName};
use starling_core::plan::LeavingCause;
use starling_core::rollout::Removal;
use starling_ledger::{EntryOnCluster, LedgerError};

use super::observe::Group;
use crate::controller::context::GroupContext;
use crate::controller::event_handlers::ChangedBy;
use crate::controller::hub::HubError;
use crate::controller::object_key::ObjectKey;
use crate::controller::removal;

/// Writes the deletion policy to a Sync, deletes the Sync, and marks the removal as decided. The Sync may be deleted
/// already, by a person or the garbage collector.
///
/// # Errors
/// [`HubError`].
pub(super) async fn remove(
    context: GroupContext<'_>,
    sync: &Arc<SyncResource>,
    policy: DeletionPolicy,
) -> Result<(), HubError> {
    let sync = set_policy(context, sync, policy).await?;
    let left = match sync.metadata.deletion_timestamp {
        Some(_) => Some(sync.clone()),
        None => context.hub.delete_unchanged(&*sync).await?.map(Arc::new),
    };
    match left {
        None => context.objects.syncs.observe_delete(&ObjectKey::of(&*sync)),
        Some(left) => {
            let Some(mark) = removal::mark(&left) else {
                return Ok(());
            };
            let mark = [(REMOVAL.to_owned(), mark)].into();
            let marked = context.hub.annotate(&*left, &mark).await?;
            if let Some(change) = context.objects.syncs.observe_write(marked) {
                context.handlers.on_sync(&change, ChangedBy::Others);
            }
        }
    }
    let cluster = &sync.spec.cluster_ref.name;
    tracing::info!(sync = %sync.name_any(), %cluster, ?policy, "Sync removed from the group");
    Ok(())
}

/// Writes the deletion policy to a Sync, unless the Sync has it already. Also a Sync whose objects stay has the
/// finalizer from now on if it has written to its member: its release leaves a number there, without which a management
/// cluster that is set back later would write the objects again (ADR 40).
async fn set_policy(
    context: GroupContext<'_>,
    sync: &Arc<SyncResource>,
    policy: DeletionPolicy,
) -> Result<Arc<SyncResource>, HubError> {
    let has_finalizer = sync.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
    let has_written = sync
        .status
        .as_ref()
        .is_some_and(|status| !status.last_attempt_time.is_empty());
    let needs_it = policy == DeletionPolicy::Delete || has_written;
    if sync.spec.template.deletion_policy == policy && has_finalizer == needs_it {
        return Ok(sync.clone());
    }
    let written = context.hub.set_deletion_policy(sync, policy, needs_it).await?;
    context.objects.syncs.observe_write(written.clone());
    Ok(Arc::new(written))
}

/// Records an event for objects that stay on a member, since the Sync that would report them is deleted.
pub(super) async fn report_orphans(context: GroupContext<'_>, group: &Group, removal: &Removal) {
    let Removal {
        sync, cluster, entry, ..
    } = removal;
    let (reason, note) = match removal.cause {
        LeavingCause::ClusterUnselected { .. } => (
            "ClusterLeft",
            format!("cluster {cluster} left the group; the objects of {sync} stay on the cluster"),
        ),
        // The group reports it once.
        LeavingCause::GroupDeleted { .. } => return,
        LeavingCause::EntryRemoved => (
            "EntryRemoved",
            format!(
                "entry {entry} was removed from the group; the remaining objects of {sync} stay on cluster {cluster}"
            ),
        ),
    };
    context.events.normal(&*group.object, reason, note).await;
}

/// Ends in the ledger what is open of the entry of a Sync on its cluster, whatever its target.
///
/// # Errors
/// [`LedgerError`].
pub(super) async fn end_left(
    context: GroupContext<'_>,
    group: &SyncGroup,
    sync: &SyncResource,
) -> Result<(), LedgerError> {
    let id = identity::id_of(context.installation, group);
    let Some(of) = &sync.spec.group_ref else {
        return Ok(());
    };
    let place = EntryOnCluster {
        group_id: &id,
        entry: &EntryName::from(&of.entry),
        cluster: &ClusterName::from(&sync.spec.cluster_ref.name),
    };
    context.ledger.leave(place, context.clock.now()).await?;
    Ok(())
}
