//! Reports that a group cannot roll out.

use kube::ResourceExt;
use starling_api::REQUESTED_AT;
use starling_api::conditions::ConditionStatus;
use starling_core::rollout::{PassFacts, blocked_status};

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
    let pass = PassFacts {
        now: context.clock.now(),
        generation: object.metadata.generation,
        requested_at: object.annotations().get(REQUESTED_AT).map(String::as_str),
    };
    let after = blocked_status(&before, updates, pass);
    if after == before {
        return Ok(());
    }
    let written = context.hub.write_status(&**object, &after).await?;
    if let Some(change) = context.objects.groups.observe_write(written) {
        context.handlers.on_group(&change, ChangedBy::Reconciler);
    }
    Ok(())
}
