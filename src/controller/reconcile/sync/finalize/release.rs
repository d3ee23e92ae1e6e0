//! Releases a Sync: removes its finalizer and its member records.

use std::collections::BTreeSet;

use starling_api::ABANDON;
use starling_core::finalize::Orphaned;
use starling_core::ids::OwnerLabel;
use tokio::time::Instant;

use super::super::super::ReconcileError;
use super::super::access;
use super::super::observe::SyncSnapshot;
use super::super::owners;
use crate::controller::context::{Next, SyncContext};
use crate::controller::object_key::ObjectKey;
use crate::controller::waits;

/// Releases the Sync and leaves its objects on the member.
///
/// # Errors
/// As [`release`].
pub(super) async fn orphan(
    context: SyncContext<'_>,
    observed: &SyncSnapshot,
    why: &Orphaned,
) -> Result<Next, ReconcileError> {
    record(context, observed).await;
    if context.writes.held().is_some() {
        // The end of the hold enqueues the Sync.
        return Ok(Next::OnEvent);
    }
    let why = match why {
        Orphaned::Policy => return release(context, observed).await,
        Orphaned::Suspended => "the Sync is suspended".to_owned(),
        Orphaned::ParentDeleted(what) => format!("{what} is being deleted"),
        Orphaned::GroupLost => "the SyncGroup was deleted without deleting this Sync".into(),
        Orphaned::Wanted => "its SyncGroup has the entry and selects the cluster".into(),
        Orphaned::ClusterGone => "the Cluster was deleted".into(),
        Orphaned::OtherCluster => {
            "the Cluster connects to another cluster than the one they were applied to".into()
        }
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

/// Leaves the number of the release on the member. If the management cluster is restored later, it does not know this
/// number, and does not write the objects that people have changed in the meantime. A member that cannot be reached
/// delays no release.
async fn record(context: SyncContext<'_>, observed: &SyncSnapshot) {
    // Not as the account of the Sync, which an operator may require and which may be gone.
    let Ok(member) = access::enter_as_kubeconfig_user(context, observed) else {
        return;
    };
    let deadline = Instant::now() + waits::PROBE_TIMEOUT;
    if let Err(error) = member.record_release(&observed.owner, deadline).await {
        let error = crate::chain(&error);
        tracing::warn!(sync = %observed.key, %error, "release not recorded on the member");
    }
}

/// Releases a Sync that has a copy: another Sync of the same entry on the same cluster. Both have one inventory and one
/// set of member records, which stay.
///
/// # Errors
/// [`ReconcileError`] if the management cluster cannot be written.
pub(super) async fn release_to_copy(
    context: SyncContext<'_>,
    observed: &SyncSnapshot,
) -> Result<Next, ReconcileError> {
    context.hub.set_finalizer(&*observed.object, false).await?;
    Ok(Next::OnEvent)
}

/// Releases the Sync. The member records are deleted first, so that a later Sync with the same name starts without
/// them.
///
/// # Errors
/// [`ReconcileError`] if a write to the ledger or the management cluster failed.
pub(super) async fn release(
    context: SyncContext<'_>,
    observed: &SyncSnapshot,
) -> Result<Next, ReconcileError> {
    let others = others_with_its_objects(context, observed).await;
    context
        .ledger
        .drop_owner_records(&observed.cluster_id, &observed.owner)
        .await?;
    // The counts of deletions were written to its status since it was observed.
    let current = context.objects.syncs.get(&observed.key);
    let current = current.filter(|sync| sync.metadata.uid == observed.object.metadata.uid);
    let object = current.unwrap_or_else(|| observed.object.clone());
    context.hub.set_finalizer(&*object, false).await?;
    for other in others {
        context.caches.deadlines.set(&other, context.clock.now());
        context.handlers.enqueue_sync(other);
    }
    Ok(Next::OnEvent)
}

/// Returns the other Syncs on the member that have objects of the Sync: a cluster that was in another group for a while
/// brought them there and back. Until they take them back, with the next check for drift, nobody keeps these objects.
async fn others_with_its_objects(context: SyncContext<'_>, observed: &SyncSnapshot) -> Vec<ObjectKey> {
    let (cluster_id, owner) = (&observed.cluster_id, &observed.owner);
    let read = async {
        let recorded = context.ledger.load_records(cluster_id, owner).await?;
        let objects = recorded.objects.into_keys().collect();
        context.ledger.other_owners(cluster_id, owner, &objects).await
    };
    // A ledger that cannot be read delays the check until its interval.
    let owners: BTreeSet<OwnerLabel> = read.await.unwrap_or_default().into_values().flatten().collect();
    let others = owners::others(context, observed).into_iter();
    others
        .filter(|other| owners.contains(&other.owner))
        .map(|other| other.key)
        .collect()
}
