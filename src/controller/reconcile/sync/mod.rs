//! The Sync loop: makes one cluster hold what one Sync says.
//!
//! observe (caches) → validate → core's [`next_step`] → attempt or check (IO, `attempt`) → health (IO) → report. Most
//! activations end at the step: a Sync that holds its target and is not due for a check costs a look into the caches.

mod attempt;
mod dependencies;
mod finalize;
mod health;
mod held;
mod lane;
mod observe;
mod outcome;
mod ownership;
mod report;
mod siblings;
mod standing;
mod verdict;

use std::time::Duration;

use starling_core::step::{Step, StepInput, next_step};

use super::ReconcileError;
use crate::controller::cache::ObjectKey;
use crate::controller::context::{Context, Next};
pub(super) use finalize::depends_on;
use observe::Observed;
use outcome::Outcome;

/// Shortest wait for a dependency.
const MIN_WAIT: Duration = Duration::from_secs(1);

/// Looks at one Sync.
///
/// # Errors
/// [`ReconcileError`] where an intent could not be recorded or the status not be written.
pub async fn reconcile(context: &Context, key: &ObjectKey) -> Result<Next, ReconcileError> {
    let Some(observed) = observe::observe(context, key) else {
        context.checks.forget(key);
        context.healths.forget(key);
        context.standings.forget(key);
        return Ok(Next::OnEvent);
    };
    if observed.sync.metadata.deletion_timestamp.is_some() {
        return finalize::finalize(context, &observed).await;
    }
    if finalize::is_retired(context, &observed) {
        return Ok(Next::OnEvent);
    }
    finalize::ensure(context, &observed).await?;
    let step = decide(context, key, &observed);
    let done = match &step {
        Step::Apply(wanted) => Some(attempt::apply(context, &observed, wanted).await?),
        Step::CheckDrift(wanted) => Some(attempt::check(context, &observed, wanted).await?),
        Step::CheckHealth(wanted) => health::prepare(context, &observed, wanted).await?,
        Step::Suspended
        | Step::NotImplemented { .. }
        | Step::Invalid { .. }
        | Step::DependencyCycle { .. }
        | Step::DependencyNotReady { .. }
        | Step::AwaitingAdmission
        | Step::AwaitingSource
        | Step::ClusterMissing
        | Step::ClusterNotReady { .. }
        | Step::Backoff { .. }
        | Step::Idle { .. } => None,
    };
    let look = health::look(context, &observed, &step, done.as_ref()).await;
    report::report(context, &observed, &step, done.as_ref(), look.as_ref()).await?;
    Ok(next(context, &observed, &step, done.as_ref()))
}

fn decide(context: &Context, key: &ObjectKey, observed: &Observed) -> Step {
    next_step(&StepInput {
        now: context.now(),
        spec: &observed.spec,
        generation: observed.generation(),
        status: &observed.status,
        not_implemented: &observed.not_implemented,
        invalid: observed.invalid.as_ref().map(|invalid| invalid.message.as_str()),
        source_revision: observed.source_revision(),
        dependencies: &observed.dependencies,
        cluster: observed.cluster_state(),
        next_check: context.checks.get(key),
        requested: observed.requested() || held::is_released(context, observed),
    })
}

fn next(context: &Context, observed: &Observed, step: &Step, done: Option<&Outcome>) -> Next {
    match (step, done) {
        (_, Some(Outcome::Lost { .. })) => Next::Retry(observed.spec.template.retry_interval.as_std()),
        (_, Some(Outcome::Busy { pause, .. })) => Next::After(pause.left()),
        (_, Some(Outcome::Failed(failure))) => Next::at(failure.retry_at, context.now()),
        (_, Some(Outcome::Holds { .. } | Outcome::Unchanged)) | (Step::CheckHealth(_), None) => {
            let times = [
                context.checks.get(&observed.key),
                context.healths.next(&observed.key),
            ];
            let soonest = times.into_iter().flatten().min();
            soonest.map_or(Next::OnEvent, |at| Next::at(at, context.now()))
        }
        (Step::Backoff { until } | Step::Idle { until, .. }, None) => Next::at(*until, context.now()),
        // What it waits for wakes it; the time is for a message that tells how that stands now.
        (Step::DependencyNotReady { .. }, None) => {
            Next::After(observed.spec.template.retry_interval.as_std().max(MIN_WAIT))
        }
        (
            Step::Suspended
            | Step::NotImplemented { .. }
            | Step::Invalid { .. }
            | Step::DependencyCycle { .. }
            | Step::AwaitingAdmission
            | Step::AwaitingSource
            | Step::ClusterMissing
            | Step::ClusterNotReady { .. }
            | Step::Apply(_)
            | Step::CheckDrift(_),
            None,
        ) => Next::OnEvent,
    }
}
