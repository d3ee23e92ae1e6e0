//! Reads anew what may have been written and was not answered, before anything is concluded from the caches.

use starling_api::{SyncGroup, SyncResource};

use super::super::ReconcileError;
use crate::controller::cache::ObjectKey;
use crate::controller::context::Context;
use crate::controller::wake::By;

/// Clears up what is not known of the writes of the last look.
///
/// # Errors
/// [`ReconcileError`] where the management cluster does not tell: then nothing can be planned yet.
pub(super) async fn clear_up(context: &Context, key: &ObjectKey) -> Result<(), ReconcileError> {
    let Some(syncs) = context.unsure.of(key) else {
        return Ok(());
    };
    // What is not there was not written, and what was deleted the watch tells.
    if let Some(found) = context.hub.find::<SyncGroup>(key).await?
        && let Some(change) = context.groups.observe_write(found)
    {
        context.wake_for_group(&change, By::Us);
    }
    for sync in &syncs {
        if let Some(found) = context.hub.find::<SyncResource>(sync).await?
            && let Some(change) = context.syncs.observe_write(found)
        {
            context.wake_for_sync(&change, By::Others);
        }
    }
    context.unsure.forget(key);
    Ok(())
}
