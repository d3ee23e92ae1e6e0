//! The end of a group: its Syncs go first, and its own policy decides over theirs.
//!
//! A group carries the finalizer while its deletion may mean work: it, an entry, or one of its Syncs says `deletionPolicy: Delete`.
//! Without it the garbage collector would delete the Syncs each by its own policy, and a group that says `Orphan` could not keep them
//! from deleting.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;
use starling_api::conditions::{self, READY};
use starling_api::{DeletionPolicy, FINALIZER, SyncGroup, SyncResource};
use starling_core::finalize::{Surroundings, dependents_first};

use super::super::ReconcileError;
use super::super::surroundings::surroundings;
use super::super::sync::depends_on;
use super::observe::{self, Blocked};
use super::{leave, report};
use crate::controller::cache::ObjectKey;
use crate::controller::context::{Context, Next};
use crate::controller::roster::Roster;
use crate::controller::wake::By;

/// Wait after the management cluster did not say or take something.
const RETRY: Duration = Duration::from_secs(5);

/// Puts the finalizer on a group whose deletion may mean work, and takes it off any other.
///
/// # Errors
/// [`ReconcileError`] if it could not be put on.
pub(super) async fn ensure(context: &Context, group: &SyncGroup) -> Result<(), ReconcileError> {
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
        if let Some(change) = context.groups.observe_write(written) {
            context.wake_for_group(&change, By::Us);
        }
    }
    Ok(())
}

fn has_finalizer(group: &SyncGroup) -> bool {
    group.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
}

/// One pass over a group that is being deleted.
///
/// # Errors
/// [`ReconcileError`] where the management cluster or the ledger did not take something.
pub(super) async fn finalize(context: &Context, group: Arc<SyncGroup>) -> Result<Next, ReconcileError> {
    if !has_finalizer(&group) {
        return Ok(Next::OnEvent);
    }
    let key = ObjectKey::of(&*group);
    // `kubectl delete --cascade=orphan`: the Syncs are meant to stay.
    let keeps_syncs = group.finalizers().iter().any(|finalizer| finalizer == "orphan");
    match surroundings(context, &key.namespace).await {
        Surroundings::Stay if !keeps_syncs => {}
        Surroundings::Unknown(why) if !keeps_syncs => {
            let message = format!("nothing is deleted until it is known what else goes: {why}");
            tell(context, group, "AwaitingManagementCluster", message).await?;
            return Ok(Next::Retry(RETRY));
        }
        // Its Syncs go with the namespace or the definition, find that out by themselves, and leave their objects.
        Surroundings::Stay | Surroundings::Unknown(_) | Surroundings::Go(_) => {
            return release(context, &group).await;
        }
    }
    let syncs = observe::syncs(context, &key);
    if syncs.is_empty() {
        let objects = match group.spec.deletion_policy {
            DeletionPolicy::Delete => {
                "and their objects with them, except where an event at the Sync says otherwise"
            }
            DeletionPolicy::Orphan => "and their objects stay where they are",
        };
        let note = format!("all Syncs of the group are gone, {objects}");
        context.events.normal(&*group, "Deleted", note).await;
        return release(context, &group).await;
    }
    let failed = take_all_away(context, &group, &syncs).await?;
    let left = observe::syncs(context, &key);
    tell(context, group, "Deleting", what_is_left(&left)).await?;
    // The Syncs that go wake the group, the last of them too.
    Ok(if failed || left.is_empty() {
        Next::Retry(RETRY)
    } else {
        Next::OnEvent
    })
}

/// Deletes the Syncs that are not being deleted yet, with the group's policy. Returns whether some were not taken.
async fn take_all_away(
    context: &Context,
    object: &SyncGroup,
    syncs: &Roster,
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
        if let Err(error) = leave::take_away(context, object, sync, policy).await? {
            tracing::warn!(sync = %sync.name_any(), error = %crate::chain(&error), "not taken away");
            failed = true;
        }
    }
    Ok(failed)
}

fn what_is_left(left: &Roster) -> String {
    let first = left.values().find_map(|sync| {
        let status = sync.status.as_ref()?;
        let ready = conditions::find(&status.conditions, READY).filter(|ready| ready.status != "True")?;
        Some(format!("; {}: {}", sync.name_any(), ready.message))
    });
    format!(
        "{} Syncs have to go first{}",
        left.values().count(),
        first.unwrap_or_default()
    )
}

async fn tell(
    context: &Context,
    object: Arc<SyncGroup>,
    reason: &'static str,
    message: String,
) -> Result<(), ReconcileError> {
    let finding = Blocked {
        object,
        reason,
        message,
        stalled: false,
    };
    report::blocked(context, &finding).await
}

async fn release(context: &Context, group: &SyncGroup) -> Result<Next, ReconcileError> {
    context.hub.set_finalizer(group, false).await?;
    context.reports.forget(&ObjectKey::of(group));
    Ok(Next::OnEvent)
}
