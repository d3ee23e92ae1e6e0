//! Releases a Sync: removes its finalizer and its member records.

use starling_api::ABANDON;
use starling_core::finalize::Orphaned;

use super::super::super::ReconcileError;
use super::super::observe::Observed;
use crate::controller::context::{Next, SyncContext};

/// Releases the Sync and leaves its objects on the member.
///
/// # Errors
/// As [`release`].
pub(super) async fn orphan(
    context: SyncContext<'_>,
    observed: &Observed,
    why: &Orphaned,
) -> Result<Next, ReconcileError> {
    let why = match why {
        Orphaned::Policy => return release(context, observed).await,
        Orphaned::Suspended => "the Sync is suspended".to_owned(),
        Orphaned::ParentDeleted(what) => format!("{what} is being deleted"),
        Orphaned::GroupLost => "the SyncGroup was deleted without deleting this Sync".into(),
        Orphaned::Wanted => "its SyncGroup has the entry and selects the cluster".into(),
        Orphaned::ClusterGone => "the Cluster was deleted".into(),
        Orphaned::Abandoned => format!("abandoned ({ABANDON})"),
    };
    let cluster = observed.cluster_name();
    let objects = observed.status.inventory.objects;
    let note = format!("left {objects} objects on cluster {cluster}: {why}");
    tracing::info!(sync = %observed.key, %cluster, %why, objects, "objects orphaned");
    context
        .events
        .warning(&*observed.object, "ObjectsOrphaned", note)
        .await;
    release(context, observed).await
}

/// Releases the Sync. The member records are deleted first, so that a later Sync with the same name starts without
/// them.
///
/// # Errors
/// [`ReconcileError`] if a write to the ledger or the management cluster failed.
pub(super) async fn release(context: SyncContext<'_>, observed: &Observed) -> Result<Next, ReconcileError> {
    context
        .ledger
        .drop_owner_records(observed.cluster_id.as_str(), observed.owner.as_str())
        .await?;
    // The counts of deletions were written to its status since it was observed.
    let current = context.objects.syncs.get(&observed.key);
    let current = current.filter(|sync| sync.metadata.uid == observed.object.metadata.uid);
    let object = current.unwrap_or_else(|| observed.object.clone());
    context.hub.set_finalizer(&*object, false).await?;
    Ok(Next::OnEvent)
}
