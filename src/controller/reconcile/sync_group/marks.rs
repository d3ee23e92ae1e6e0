//! Prepares a group for a restore to another API server, so that nothing is lost (ADR 44): marks actions and
//! approvals with the rollout that they count for, and sets the owner references of restored Syncs.

use std::sync::Arc;

use futures::StreamExt;
use kube::ResourceExt;
use starling_api::{RolloutStatus, SyncResource};
use starling_core::rollout::operator::{Subject, marks};
use starling_core::{deletion_approval, identity};

use super::super::marks::Marks;
use super::observe::{self, Group};
use crate::controller::context::GroupContext;
use crate::controller::event_handlers::ChangedBy;

/// Maximum number of concurrent writes, as for admissions.
const WIDTH: usize = 16;

/// Returns the rollout that actions must name, without its digest.
pub(super) fn subject<'a>(group: &'a Group, rollout: &'a RolloutStatus) -> Subject<'a> {
    Subject {
        group: &group.key.name,
        since: identity::created_at(&group.object),
        rollout: rollout.id,
        started_at: &rollout.start_time,
        digest: None,
    }
}

/// Writes the marks that are missing.
pub(super) async fn write(context: GroupContext<'_>, group: &Group) {
    let status = group.object.status.as_ref();
    let to = Marks {
        hub: context.hub,
        retries: &context.caches.mark_retries,
        of: &group.key,
        now: context.clock.now(),
    };
    let objects = context.objects;
    for approval in &group.deletion_approvals {
        to.write(
            &objects.deletion_approvals,
            &**approval,
            deletion_approval::marks(approval),
        )
        .await;
    }
    if let Some(rollout) = status.and_then(|status| status.rollout.as_ref()) {
        let of = subject(group, rollout);
        for action in &group.actions {
            let marks = marks(of, action.spec.rollout, &**action);
            to.write(&objects.actions, &**action, marks).await;
        }
        for approval in &group.approvals {
            let marks = marks(of, approval.spec.rollout, &**approval);
            to.write(&objects.approvals, &**approval, marks).await;
        }
    }
    let uid = group.object.uid();
    let syncs = observe::syncs(context, &group.key);
    let restored = syncs.values().filter(|sync| !is_owned_by(sync, uid.as_deref()));
    let restored: Vec<Arc<SyncResource>> = restored.cloned().collect();
    futures::stream::iter(restored)
        .map(|sync| own(context, group, sync))
        .buffer_unordered(WIDTH)
        .collect::<()>()
        .await;
}

fn is_owned_by(sync: &SyncResource, uid: Option<&str>) -> bool {
    let mut owners = sync.owner_references().iter();
    owners.any(|owner| Some(owner.uid.as_str()) == uid)
}

/// Sets the owner reference of a Sync, so that it is deleted with its group.
async fn own(context: GroupContext<'_>, group: &Group, sync: Arc<SyncResource>) {
    if sync.metadata.deletion_timestamp.is_some() {
        return;
    }
    match context.hub.set_owner(&*sync, &group.object).await {
        Ok(written) => {
            if let Some(change) = context.objects.syncs.observe_write(written) {
                context.handlers.on_sync(&change, ChangedBy::Others);
            }
        }
        Err(error) => {
            tracing::warn!(group = %group.key, sync = %sync.name_any(), error = %crate::chain(&error), "owner reference not set");
        }
    }
}
