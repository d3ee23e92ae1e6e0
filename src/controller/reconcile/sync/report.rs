//! Writes status after a pass, if it changes, with its events and log messages.

use starling_api::{SyncResource, SyncStatus, UNDELETE};
use starling_core::object::ObjectId;
use starling_core::restore::RestoreFinding;
use starling_ledger::LedgerError;

use super::super::ReconcileError;
use super::deletion_hold;
use super::health_status::HealthSubject;
use super::observe::SyncSnapshot;
use super::outcome::{Applied, Cause, Failure, Outcome};
use super::prune_grace;
use super::resolve::resolve;
use super::status::{self, Pass};
use super::validate::{SyncBlocked, ValidSync};
use crate::controller::context::SyncContext;
use crate::controller::event_handlers::ChangedBy;
use crate::controller::object_key::ObjectKey;

/// Reports the results of a pass.
///
/// # Errors
/// [`ReconcileError`] if status cannot be written.
pub(super) async fn report(
    context: SyncContext<'_>,
    sync: &ValidSync<'_>,
    pass: Pass<'_>,
) -> Result<(), ReconcileError> {
    let observed = sync.observed;
    let target = observed.target_of(&sync.spec);
    let subject = subject(context, observed, target.as_deref());
    let drift = context.caches.drift.get(&observed.key);
    let after = status::after_pass(sync, pass, &subject, drift.as_ref(), context.clock.now());
    if after == observed.status {
        return Ok(());
    }
    log(observed, pass.outcome);
    write(context, &observed.object, &after).await?;
    record_events(context, observed, &after, pass.outcome).await;
    Ok(())
}

/// Reports the reason why the Sync is not applied.
///
/// # Errors
/// As [`report`].
pub(super) async fn blocked(
    context: SyncContext<'_>,
    observed: &SyncSnapshot,
    blocked: &SyncBlocked,
) -> Result<(), ReconcileError> {
    let spec = resolve(&observed.object.spec, observed.cluster.as_deref());
    let target = spec.ok().and_then(|spec| observed.target_of(&spec));
    let subject = subject(context, observed, target.as_deref());
    let drift = context.caches.drift.get(&observed.key);
    let after = status::blocked(observed, blocked, &subject, drift.as_ref(), context.clock.now());
    if after == observed.status {
        return Ok(());
    }
    write(context, &observed.object, &after).await
}

/// Reports that nothing is written after a restore.
///
/// # Errors
/// As [`report`].
pub(super) async fn held(
    context: SyncContext<'_>,
    observed: &SyncSnapshot,
    finding: &RestoreFinding,
) -> Result<(), ReconcileError> {
    let after = status::held(&observed.status, finding, context.clock.now());
    if after == observed.status {
        return Ok(());
    }
    write(context, &observed.object, &after).await
}

fn subject<'a>(
    context: SyncContext<'_>,
    observed: &'a SyncSnapshot,
    target: Option<&'a str>,
) -> HealthSubject<'a> {
    HealthSubject {
        wait: observed.object.spec.template.wait,
        target,
        cluster_id: &observed.cluster_id,
        next: context
            .caches
            .health
            .next(&observed.key, observed.retry_interval(), context.clock.now()),
        clock_jumps: context.clock.jumps(),
    }
}

async fn write(
    context: SyncContext<'_>,
    sync: &SyncResource,
    after: &SyncStatus,
) -> Result<(), ReconcileError> {
    let key = ObjectKey::of(sync);
    let written = context.hub.write_status(sync, after).await?;
    // The process does not remember what status reports: a status that is set back later would fit the
    // attempt that came after it.
    let own = context.caches.attempts.get(&key);
    if own.is_some_and(|own| after.last_attempt_time == own.at.to_string()) {
        context.caches.attempts.forget(&key);
    }
    if let Some(change) = context.objects.syncs.observe_write(written) {
        context.handlers.on_sync(&change, ChangedBy::Reconciler);
    }
    Ok(())
}

/// Records events for held deletions and for deletions.
async fn record_events(
    context: SyncContext<'_>,
    observed: &SyncSnapshot,
    after: &SyncStatus,
    outcome: Option<&Outcome>,
) {
    let object = &*observed.object;
    let digest = |status: &SyncStatus| status.held_deletions.as_ref().map(|hold| hold.digest.clone());
    if let (true, Some(hold)) = (digest(after) != digest(&observed.status), &after.held_deletions) {
        let note = deletion_hold::condition(&deletion_hold::HeldSync::of(observed), hold).message;
        context.events.warning(object, deletion_hold::REASON, note).await;
    }
    let last = |status: &SyncStatus| {
        status
            .pending_deletions
            .as_ref()
            .map(|pending| pending.last_time.clone())
    };
    if let (true, Some(pending)) = (last(after) > last(&observed.status), &after.pending_deletions) {
        let note = prune_grace::remark(pending, observed);
        context.events.warning(object, "DeletionPending", note).await;
    }
    if let Some(Outcome::Applied(Applied { changes, .. })) = outcome
        && changes.deleted > 0
    {
        let cluster = observed.cluster_name();
        let note = format!(
            "pruned {} objects from cluster {cluster}: no longer in git",
            changes.deleted
        );
        context.events.normal(object, "ObjectsDeleted", note).await;
    }
}

/// Reports objects that a user took back from deletion.
pub(super) async fn undeleted(context: SyncContext<'_>, observed: &SyncSnapshot, objects: &[ObjectId]) {
    if objects.is_empty() {
        return;
    }
    let cluster = observed.cluster_name();
    let names: Vec<String> = objects.iter().map(ToString::to_string).collect();
    let names = names.join(", ");
    tracing::info!(sync = %observed.key, %cluster, objects = %names, "objects taken back from deletion");
    let note = format!("kept on cluster {cluster} and no longer managed, because {UNDELETE} is set: {names}");
    context
        .events
        .normal(&*observed.object, "ObjectsUndeleted", note)
        .await;
}

/// Reports objects that Starling no longer manages and that stay on the member. After that no inventory contains them.
pub(super) async fn relinquished(context: SyncContext<'_>, observed: &SyncSnapshot, objects: &[ObjectId]) {
    if objects.is_empty() {
        return;
    }
    let cluster = observed.cluster_name();
    let names: Vec<String> = objects.iter().map(ToString::to_string).collect();
    let names = names.join(", ");
    tracing::warn!(sync = %observed.key, %cluster, objects = %names, "objects no longer managed");
    let note = format!(
        "not deleted on cluster {cluster}, because they existed before the first apply, or objects in them stay: {names}"
    );
    context
        .events
        .warning(&*observed.object, "ObjectsRelinquished", note)
        .await;
}

/// Reports that the inventory on the member is not the one in status: it lists `listed` objects, of which the member
/// has `returned` without a record. What left git since the inventory in status, and is not listed, is never deleted.
pub(super) async fn inventory_changed(
    context: SyncContext<'_>,
    observed: &SyncSnapshot,
    listed: usize,
    returned: usize,
) {
    let (cluster, before) = (observed.cluster_name(), observed.status.inventory.objects);
    tracing::warn!(sync = %observed.key, objects = listed, before, returned, "inventory changed on the cluster");
    let note = format!(
        "the inventory on cluster {cluster} was changed or set back: it lists {listed} objects, and {before} before; \
         objects that it lacks and that are no longer in git are not deleted"
    );
    context
        .events
        .warning(&*observed.object, "InventoryChanged", note)
        .await;
}

/// Reports that nothing is applied because the ledger does not accept the intent.
///
/// # Errors
/// As [`report`].
pub(super) async fn not_recorded(
    context: SyncContext<'_>,
    key: &ObjectKey,
    error: &LedgerError,
) -> Result<(), ReconcileError> {
    let Some(sync) = context.objects.syncs.get(key) else {
        return Ok(());
    };
    let before = sync.status.clone().unwrap_or_default();
    let after = status::not_recorded(&before, &crate::chain(error), context.clock.now());
    if after == before {
        return Ok(());
    }
    write(context, &sync, &after).await
}

fn log(observed: &SyncSnapshot, outcome: Option<&Outcome>) {
    let (sync, cluster) = (&observed.key, observed.cluster_name());
    match outcome {
        Some(Outcome::Applied(Applied { changes, .. })) => tracing::info!(
            %sync, %cluster, created = changes.created, configured = changes.configured,
            unchanged = changes.unchanged, deleted = changes.deleted, "applied"
        ),
        Some(Outcome::Failed(Failure { cause, .. })) => {
            tracing::warn!(%sync, %cluster, reason = cause.reason, message = %cause.message, "attempt failed");
        }
        Some(Outcome::Lost { message }) => tracing::warn!(%sync, %cluster, %message, "cluster unreachable"),
        Some(Outcome::NotAllowed(Cause { reason, message, .. })) => {
            tracing::warn!(%sync, %cluster, reason, %message, "objects not written");
        }
        Some(Outcome::Busy(pause)) => {
            tracing::info!(%sync, %cluster, until = %pause.until, "requests throttled by the cluster");
        }
        Some(Outcome::Unchanged) | None => {}
    }
}
