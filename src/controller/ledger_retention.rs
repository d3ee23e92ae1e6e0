//! Removes from the ledger what belongs to objects that were deleted.

use jiff::SignedDuration;
use starling_core::identity;
use starling_core::ids::ClusterId;
use starling_ledger::{Existing, Forgotten};

use super::context::Context;
use super::object_key::ObjectKey;

/// For how long the history of a deleted group or Sync stays. Whoever deleted it by mistake notices within days.
const KEPT: SignedDuration = SignedDuration::from_hours(30 * 24);

/// Removes the history of groups and Syncs that were deleted long ago, and the member records of removed clusters. Does
/// nothing while it is not certain what exists.
pub(super) async fn forget_deleted(context: &Context) {
    let (Some(existing), Ok(before)) = (existing(context), context.now().checked_sub(KEPT)) else {
        return;
    };
    match context.adapters.ledger.forget_deleted(&existing, before).await {
        Ok(forgotten) if forgotten == Forgotten::default() => {}
        Ok(Forgotten {
            rollouts,
            admissions,
            attempts,
            records,
        }) => tracing::info!(
            rollouts,
            admissions,
            attempts,
            records,
            "history of deleted objects removed"
        ),
        Err(error) => {
            tracing::warn!(error = %crate::chain(&error), "history of deleted objects not removed");
        }
    }
}

/// Returns what exists; `None` if a list is not complete, or an object cannot be read, so that its identity is not
/// known.
pub(super) fn existing(context: &Context) -> Option<Existing> {
    let (groups, syncs, clusters) = (
        &context.objects.groups,
        &context.objects.syncs,
        &context.objects.clusters,
    );
    let are_complete = groups.is_synced() && syncs.is_synced() && clusters.is_synced();
    let are_readable =
        groups.unreadable().is_empty() && syncs.unreadable().is_empty() && clusters.unreadable().is_empty();
    if !are_complete || !are_readable {
        return None;
    }
    let groups = groups.select(|_| true);
    let syncs = syncs.select(|_| true);
    let clusters = clusters.select(|_| true);
    Some(Existing {
        groups: groups
            .iter()
            .map(|group| identity::id_of(&context.installation, group))
            .collect(),
        syncs: syncs
            .iter()
            .map(|sync| ObjectKey::of(&**sync).to_string())
            .collect(),
        clusters: clusters.iter().map(|cluster| ClusterId::of(cluster)).collect(),
    })
}
