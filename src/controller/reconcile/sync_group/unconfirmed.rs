//! Confirms the writes of a pass that failed, before the caches are used: reads the written objects again, and ends in
//! the ledger what status has ended, and admissions whose cluster left before their Sync was written.

use starling_api::{SyncGroup, SyncResource};

use super::super::ReconcileError;
use super::close_open;
use crate::controller::context::GroupContext;
use crate::controller::event_handlers::ChangedBy;
use crate::controller::object_key::ObjectKey;

/// Reads the objects of unconfirmed writes again, and ends the rollouts that status has ended.
///
/// # Errors
/// [`ReconcileError`] if the management cluster does not respond; then no plan is possible yet.
pub(super) async fn clear_up(context: GroupContext<'_>, key: &ObjectKey) -> Result<(), ReconcileError> {
    let Some(syncs) = context.caches.unconfirmed_writes.of(key) else {
        if context.caches.awaited_syncs.is_set(key)
            && let Some(group) = context.objects.groups.get(key)
        {
            close_open::of_group(context, &group).await?;
        }
        return Ok(());
    };
    // A missing object was not written, and the watch reports deletions.
    if let Some(found) = context.hub.find::<SyncGroup>(key).await?
        && let Some(change) = context.objects.groups.observe_write(found)
    {
        context.handlers.on_group(&change, ChangedBy::Reconciler);
    }
    for sync in &syncs {
        if let Some(found) = context.hub.find::<SyncResource>(sync).await?
            && let Some(change) = context.objects.syncs.observe_write(found)
        {
            context.handlers.on_sync(&change, ChangedBy::Others);
        }
    }
    if let Some(group) = context.objects.groups.get(key) {
        close_open::of_group(context, &group).await?;
    }
    context.caches.unconfirmed_writes.forget(key);
    Ok(())
}
