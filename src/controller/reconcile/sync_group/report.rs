//! Reports that a group cannot roll out.

use kube::ResourceExt;
use starling_api::conditions::{self, ConditionStatus};
use starling_api::{REQUESTED_AT, SyncGroupStatus};

use super::super::{ReconcileError, ready, stalled};
use super::observe::GroupBlocked;
use crate::controller::context::GroupContext;
use crate::controller::event_handlers::ChangedBy;

/// Writes the reason why the group cannot roll out. The rest of status stays.
pub(super) async fn blocked(context: GroupContext<'_>, blocked: &GroupBlocked) -> Result<(), ReconcileError> {
    let GroupBlocked {
        object,
        reason,
        message,
        stalled: is_stalled,
    } = blocked;
    let before = object.status.clone().unwrap_or_default();
    let updates = if *is_stalled {
        stalled(reason, message)
    } else {
        vec![ready(ConditionStatus::False, *reason, message.clone())]
    };
    let after = SyncGroupStatus {
        observed_generation: object.metadata.generation,
        last_handled_reconcile_at: handled(object.annotations().get(REQUESTED_AT), &before),
        conditions: conditions::merge(
            &before.conditions,
            updates,
            object.metadata.generation,
            context.clock.now(),
        ),
        ..before.clone()
    };
    if after == before {
        return Ok(());
    }
    let written = context.hub.write_status(&**object, &after).await?;
    if let Some(change) = context.objects.groups.observe_write(written) {
        context.handlers.on_group(&change, ChangedBy::Reconciler);
    }
    Ok(())
}

fn handled(requested: Option<&String>, before: &SyncGroupStatus) -> String {
    requested
        .cloned()
        .unwrap_or_else(|| before.last_handled_reconcile_at.clone())
}
