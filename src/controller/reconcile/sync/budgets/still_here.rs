//! What the management cluster says just before objects are deleted: a person may have suspended something, asked to
//! keep the objects, or taken an approval back, and a watch may deliver nothing.

use kube::ResourceExt;
use starling_api::{Cluster, SyncResource, UNDELETE, UsedApproval};
use starling_member::DeletionRefusal;

use super::super::observe::SyncSnapshot;
use super::unread;
use crate::controller::context::SyncContext;
use crate::controller::live_approvals;

fn stopped(why: impl Into<String>) -> Result<(), DeletionRefusal> {
    Err(DeletionRefusal::Stopped(why.into()))
}

/// Refuses a prune of a Sync that is suspended, is going, or whose objects a person keeps, and on a cluster that is
/// suspended or going.
///
/// # Errors
/// [`DeletionRefusal`]: nothing may be deleted now.
pub(super) async fn prunes(context: SyncContext<'_>, observed: &SyncSnapshot) -> Result<(), DeletionRefusal> {
    let found = context.hub.find::<SyncResource>(&observed.key).await;
    let found = found.map_err(|error| unread(&error))?;
    let Some(sync) = found.filter(|sync| sync.metadata.uid == observed.object.metadata.uid) else {
        return stopped("the Sync does not exist any more");
    };
    if sync.metadata.deletion_timestamp.is_some() {
        return stopped("the Sync is being deleted");
    }
    if sync.spec.template.suspend {
        return stopped("the Sync is suspended");
    }
    is_not_undeleted(Some(&*observed.object), &sync)?;
    // Such as its `prune` or its `pruneGrace`.
    if sync.metadata.generation != observed.object.metadata.generation {
        return stopped("the Sync was changed, and the watch has not delivered that yet");
    }
    let cluster = context.hub.find::<Cluster>(&observed.cluster_key()).await;
    match cluster.map_err(|error| unread(&error))? {
        Some(cluster) if cluster.metadata.deletion_timestamp.is_some() => {
            stopped("the Cluster is being deleted")
        }
        Some(cluster) if cluster.spec.suspend => stopped("the Cluster is suspended"),
        Some(_) => Ok(()),
        None => stopped("the Cluster does not exist any more"),
    }
}

/// Refuses a prune if a person asked to keep the objects since `known`, which the prune was decided with.
///
/// # Errors
/// [`DeletionRefusal::Stopped`]
pub(super) fn is_not_undeleted<K: ResourceExt>(known: Option<&K>, now: &K) -> Result<(), DeletionRefusal> {
    let request = |object: &K| object.annotations().get(UNDELETE).cloned();
    if known.is_none_or(|known| request(known) == request(now)) {
        return Ok(());
    }
    stopped(
        "a person asked to keep objects that are no longer in git, and the watch has not delivered that yet",
    )
}

/// Refuses deletions if none of their approvals is there any more. `used`: the record with these approvals.
///
/// # Errors
/// [`DeletionRefusal`]: nothing may be deleted now.
pub(super) async fn approves(
    context: SyncContext<'_>,
    observed: &SyncSnapshot,
    used: &[UsedApproval],
) -> Result<(), DeletionRefusal> {
    let status = observed.status.deletions.as_ref();
    let before = status.map_or(&[][..], |deletions| &*deletions.used);
    let of = live_approvals::Subject {
        group: observed.group_key(),
        sync: Some(observed.key.clone()),
    };
    if live_approvals::are_there(context.hub, &of, before, used)
        .await
        .map_err(|error| unread(&error))?
    {
        return Ok(());
    }
    stopped("the approval of these deletions was taken back")
}
