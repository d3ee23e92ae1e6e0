//! The Sync loop: applies one Sync to one cluster.
//!
//! observe (caches) → `validate` (pure) → core's [`next_step`] → attempt or check (IO, `attempt`) → health (IO) →
//! report. Most reconciles end at the step: a Sync that is applied and not due for a check costs only reads of caches.
//! An invalid Sync has its own report; attempts take only a `ValidSync`.

mod access;
mod admission;
mod approvals;
mod attempt;
mod budgets;
mod deletion_hold;
mod dependencies;
mod drift;
mod drift_status;
mod evaluate;
mod finalize;
mod health;
mod health_status;
mod observe;
mod outcome;
mod owners;
mod ownership;
mod prune_grace;
mod reason;
mod render;
mod report;
mod resolve;
mod siblings;
mod slot;
mod status;
mod used_approvals;
mod validate;

use std::time::Duration;

use jiff::Timestamp;
use starling_api::SyncResource;
use starling_core::restore::RestoreFinding;
use starling_core::step::{StepInput, SyncStep, next_step};

use super::ReconcileError;
use crate::controller::context::{Next, SyncContext};
use crate::controller::object_key::ObjectKey;
use crate::controller::waits;
pub(super) use dependencies::depends_on;
use observe::SyncSnapshot;
use outcome::{Done, Outcome};
use status::Pass;
use validate::{ValidSync, validate};

/// Reconciles one Sync.
///
/// # Errors
/// [`ReconcileError`] if an intent cannot be recorded or status cannot be written.
pub async fn reconcile(context: SyncContext<'_>, key: &ObjectKey) -> Result<Next, ReconcileError> {
    let passed = pass(context, key).await;
    if let Err(ReconcileError::Ledger(error)) = &passed {
        report::not_recorded(context, key, error).await?;
    }
    passed
}

async fn pass(context: SyncContext<'_>, key: &ObjectKey) -> Result<Next, ReconcileError> {
    let finding = context.writes.held();
    if finding.is_none() && !context.permit.is_valid() {
        return Ok(Next::After(waits::NUMBER_CHECK));
    }
    let Some(observed) = observe::observe(context, key) else {
        return Ok(Next::OnEvent);
    };
    if let Some(finding) = finding {
        return held(context, observed, &finding).await;
    }
    if used_approvals::settle(context, &observed).await? {
        return Ok(Next::After(Duration::ZERO));
    }
    if observed.object.metadata.deletion_timestamp.is_some() {
        return finalize::finalize(context, &observed).await;
    }
    if observed.is_retired() {
        return Ok(await_entry(context, &observed));
    }
    finalize::ensure(context, &observed).await?;
    match validate(&observed, &context.rights.accounts) {
        Ok(_) if observed.awaits_first_probe => Ok(Next::OnEvent),
        Ok(sync) => advance(context, &sync).await,
        Err(blocked) => {
            Box::pin(attempt::answer_waiting(context, &observed)).await?;
            report::blocked(context, &observed, &blocked).await?;
            Ok(Next::OnEvent)
        }
    }
}

/// Records that a Sync waits for its entry to return to the group: nothing else would enqueue a Sync whose target the
/// group has admitted before.
fn await_entry(context: SyncContext<'_>, observed: &SyncSnapshot) -> Next {
    if let Some(entry) = observed.awaited_entry() {
        context.caches.waiting.wait(&entry, &observed.key);
    }
    // The entry may have returned before the wait was recorded.
    let is_retired = |sync: SyncSnapshot| sync.is_retired();
    match observe::observe(context, &observed.key).map(is_retired) {
        Some(false) => Next::After(Duration::ZERO),
        Some(true) | None => Next::OnEvent,
    }
}

/// After a restore, nothing is done until a person releases it; also a deleted Sync waits. The group reports it for its
/// Syncs, so that a finding does not write to every Sync of the fleet.
async fn held(
    context: SyncContext<'_>,
    observed: SyncSnapshot,
    finding: &RestoreFinding,
) -> Result<Next, ReconcileError> {
    if observed.group_key().is_some() {
        return Ok(Next::OnEvent);
    }
    // The cache may have the lost past, which status must not carry into the restored Sync.
    if let Some(sync) = context.hub.find::<SyncResource>(&observed.key).await? {
        report::held(context, &observed.with_object(sync), finding).await?;
    }
    Ok(Next::OnEvent)
}

/// Executes the next step of a valid Sync.
async fn advance(context: SyncContext<'_>, sync: &ValidSync<'_>) -> Result<Next, ReconcileError> {
    let step = decide(context, sync);
    let done: Option<Done> = match &step {
        SyncStep::Apply(wanted) => Some(Box::pin(attempt::apply(context, sync, wanted)).await?),
        SyncStep::CheckDrift(wanted) => Some(Box::pin(attempt::check(context, sync, wanted)).await?),
        // If the objects are unknown, a drift check finds them.
        SyncStep::CheckHealth(wanted) if !health::is_known(context, sync, wanted) => {
            Some(Box::pin(attempt::check(context, sync, wanted)).await?)
        }
        SyncStep::CheckHealth(_)
        | SyncStep::DependencyCycle { .. }
        | SyncStep::DependencyNotReady { .. }
        | SyncStep::AwaitingAdmission
        | SyncStep::AwaitingSlot
        | SyncStep::AwaitingSource
        | SyncStep::ClusterMissing
        | SyncStep::ClusterNotReady { .. }
        | SyncStep::Backoff { .. }
        | SyncStep::Idle { .. } => None,
    };
    if done.is_none() {
        Box::pin(attempt::answer_waiting(context, sync.observed)).await?;
    }
    let attempted_at = done.as_ref().and_then(|done| done.attempted_at);
    let outcome = done.as_ref().map(|done| &done.outcome);
    let health = health::check(context, sync, &step, outcome).await;
    let returned = slot::returned(context, sync).await;
    // An attempt takes minutes. What came of it must not be told of a Sync that was restored meanwhile.
    if !context.permit.is_valid() {
        return Ok(Next::After(waits::NUMBER_CHECK));
    }
    let pass = Pass {
        step: &step,
        returned: returned.as_deref(),
        outcome,
        attempted_at,
        pending: done.as_ref().and_then(|done| done.pending.as_ref()),
        health: health.as_ref(),
    };
    report::report(context, sync, pass).await?;
    if matches!(outcome, Some(Outcome::Applied(_) | Outcome::Unchanged)) {
        budgets::complete(context, sync.observed).await;
    }
    Ok(next(context, sync, &step, done.as_ref()))
}

fn decide(context: SyncContext<'_>, sync: &ValidSync<'_>) -> SyncStep {
    let observed = sync.observed;
    next_step(&StepInput {
        now: context.clock.now(),
        spec: &sync.spec,
        generation: observed.generation(),
        status: &observed.status,
        source_revision: observed.source_revision(),
        dependencies: &observed.dependencies,
        cluster: observed.cluster_state(),
        next_check: next_check(context, observed),
        requested: observed.requested()
            || deletion_hold::is_released(observed)
            || prune_grace::is_undeleted(observed),
        returned: slot::is_returned(context, observed),
    })
}

/// Returns when the objects are checked for drift, or the grace of an object ends, whichever is first; `None`: unknown,
/// so now.
fn next_check(context: SyncContext<'_>, observed: &SyncSnapshot) -> Option<Timestamp> {
    let check = context.caches.deadlines.get(&observed.key)?;
    Some(prune_grace::due(context, observed).map_or(check, |due| due.min(check)))
}

fn next(context: SyncContext<'_>, sync: &ValidSync<'_>, step: &SyncStep, done: Option<&Done>) -> Next {
    let (observed, now) = (sync.observed, context.clock.now());
    let outcome = done.map(|done| &done.outcome);
    match (step, outcome) {
        (_, Some(Outcome::Lost { .. } | Outcome::NotAllowed(_))) => Next::Retry(observed.retry_interval()),
        (_, Some(Outcome::Busy(pause))) => Next::After(pause.left()),
        // The group enqueues the Sync when it is resumed. The cache may not have its state yet.
        (_, Some(Outcome::Applied(_))) if done.is_some_and(|done| done.is_stopped) => {
            Next::Retry(observed.retry_interval())
        }
        (_, Some(Outcome::Failed(failure))) => Next::at(failure.retry_at, now),
        (_, Some(Outcome::Applied(_) | Outcome::Unchanged)) | (SyncStep::CheckHealth(_), None) => {
            let pending = done.and_then(|done| done.pending.as_ref());
            let health = &context.caches.health;
            let times = [
                context.caches.deadlines.get(&observed.key),
                health.next(&observed.key, observed.retry_interval(), now),
                pending.map_or_else(
                    || prune_grace::due(context, observed),
                    |pending| prune_grace::due_of(context, observed, pending.as_ref()),
                ),
            ];
            let soonest = times.into_iter().flatten().min();
            soonest.map_or(Next::OnEvent, |at| Next::at(at, now))
        }
        (SyncStep::Backoff { until } | SyncStep::Idle { until, .. }, None) => Next::at(*until, now),
        // The dependency enqueues the Sync when it is done. The requeue keeps the message up to date.
        (SyncStep::DependencyNotReady { .. }, None) => {
            Next::After(observed.retry_interval().max(waits::SYNC_MIN))
        }
        (
            SyncStep::DependencyCycle { .. }
            | SyncStep::AwaitingAdmission
            | SyncStep::AwaitingSlot
            | SyncStep::AwaitingSource
            | SyncStep::ClusterMissing
            | SyncStep::ClusterNotReady { .. }
            | SyncStep::Apply(_)
            | SyncStep::CheckDrift(_),
            None,
        ) => Next::OnEvent,
    }
}
