//! Reports that a group cannot roll out, or that a queued release cannot.

use std::collections::BTreeSet;

use kube::ResourceExt;
use starling_api::conditions::{self, ConditionStatus, RESTORE_DETECTED};
use starling_api::{Blocker, REQUESTED_AT, SyncGroup, SyncGroupStatus};
use starling_core::restore::RestoreFinding;
use starling_core::rollout::{PassFacts, blocked_status};
use starling_ledger::LedgerError;

use super::super::{ReconcileError, held_after_restore, ledger_unavailable, ready, stalled};
use super::observe::{Group, GroupBlocked};
use crate::controller::context::GroupContext;
use crate::controller::event_handlers::ChangedBy;
use crate::controller::object_key::ObjectKey;

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
    write(context, object, &before, &after).await
}

/// Writes that nothing is done because the ledger does not accept the intents. A requested reconcile stays open.
pub(super) async fn not_recorded(
    context: GroupContext<'_>,
    object: &SyncGroup,
    error: &LedgerError,
) -> Result<(), ReconcileError> {
    let before = object.status.clone().unwrap_or_default();
    let pass = PassFacts {
        now: context.clock.now(),
        generation: before.observed_generation,
        requested_at: None,
    };
    let updates = ledger_unavailable(&crate::chain(error));
    let after = blocked_status(&before, updates, pass);
    write(context, object, &before, &after).await
}

/// Writes that nothing is done after a restore. A requested reconcile stays open.
pub(super) async fn held(
    context: GroupContext<'_>,
    object: &SyncGroup,
    finding: &RestoreFinding,
) -> Result<(), ReconcileError> {
    let before = object.status.clone().unwrap_or_default();
    let now = context.clock.now();
    let pass = PassFacts {
        now,
        generation: object.metadata.generation,
        requested_at: None,
    };
    let mut after = blocked_status(&before, held_after_restore(finding), pass);
    if let Some(rollout) = &mut after.rollout {
        rollout.blocked_by = vec![Blocker {
            reason: RESTORE_DETECTED.into(),
            message: finding.to_string(),
            since: finding.time.to_string(),
            recheck_at: String::new(),
        }];
    }
    let is_new = conditions::find(&before.conditions, RESTORE_DETECTED).is_none();
    write(context, object, &before, &after).await?;
    if is_new {
        let note = finding.to_string();
        context.events.warning(object, RESTORE_DETECTED, note).await;
    }
    Ok(())
}

/// The queued releases that left the queue without a turn.
pub(super) struct LeftQueue {
    /// No longer stored.
    pub(super) dropped: BTreeSet<String>,
    /// Taken back by the Sources.
    pub(super) withdrawn: BTreeSet<String>,
}

/// Records an event for each queued release that left the queue without a turn: it is no longer stored, or the Sources
/// went back to an earlier release.
pub(super) async fn left_queue(context: GroupContext<'_>, group: &Group, left: LeftQueue) {
    let status = group.object.status.as_ref();
    let note = |release: &str, why: &str| {
        let mut queue = status.iter().flat_map(|status| &status.queue);
        let waiting = queue.find(|waiting| waiting.release == *release);
        let revisions = waiting.map(|waiting| waiting.revisions.iter().map(|of| of.revision.as_str()));
        let revisions: Vec<&str> = revisions.into_iter().flatten().collect();
        let revisions = revisions.join(", ");
        format!("queued release {release} ({revisions}) will not roll out: {why}")
    };
    for release in &left.dropped {
        tracing::warn!(group = %group.key, %release, "queued release no longer stored");
        let note = note(release, "its ControllerRevision was deleted or changed");
        let events = &context.events;
        events.warning(&*group.object, "ReleaseDropped", note).await;
    }
    for release in &left.withdrawn {
        tracing::info!(group = %group.key, %release, "queued release taken back");
        let note = note(release, "the Sources offer an earlier release again");
        let events = &context.events;
        events.normal(&*group.object, "ReleaseWithdrawn", note).await;
    }
}

async fn write(
    context: GroupContext<'_>,
    object: &SyncGroup,
    before: &SyncGroupStatus,
    after: &SyncGroupStatus,
) -> Result<(), ReconcileError> {
    if after == before {
        return Ok(());
    }
    let written = context.hub.write_status(object, after).await?;
    let heads = &context.caches.journal_heads;
    heads.wrote(&ObjectKey::of(object), &written);
    if let Some(change) = context.objects.groups.observe_write(written) {
        context.handlers.on_group(&change, ChangedBy::Reconciler);
    }
    Ok(())
}
