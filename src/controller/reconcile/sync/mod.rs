//! The Sync loop: makes one cluster hold what one Sync says.
//!
//! observe (caches) → validate → core's [`next_step`] → attempt or check (IO, `attempt`) → report. Most activations
//! end at the step: a Sync that holds its target and is not due for a check costs a look into the caches.

mod attempt;
mod lane;
mod observe;
mod outcome;
mod report;

use starling_core::step::{Step, StepInput, next_step};

use super::ReconcileError;
use crate::controller::cache::ObjectKey;
use crate::controller::context::{Context, Next, now};
use observe::Observed;
pub(super) use observe::facts;
use outcome::Outcome;

/// Looks at one Sync.
///
/// # Errors
/// [`ReconcileError`] where an intent could not be recorded or the status not be written.
pub async fn reconcile(context: &Context, key: &ObjectKey) -> Result<Next, ReconcileError> {
    let Some(observed) = observe::observe(context, key) else {
        context.checks.forget(key);
        return Ok(Next::OnEvent);
    };
    let step = decide(context, key, &observed);
    let done = match &step {
        Step::Apply(wanted) => Some(attempt::apply(context, &observed, wanted).await?),
        Step::CheckDrift(wanted) => Some(attempt::check(context, &observed, wanted).await?),
        Step::Suspended
        | Step::NotImplemented { .. }
        | Step::Invalid { .. }
        | Step::AwaitingAdmission
        | Step::AwaitingSource
        | Step::ClusterMissing
        | Step::ClusterNotReady { .. }
        | Step::Backoff { .. }
        | Step::Idle { .. } => None,
    };
    report::report(context, &observed, &step, done.as_ref()).await?;
    Ok(next(context, &observed, &step, done.as_ref()))
}

fn decide(context: &Context, key: &ObjectKey, observed: &Observed) -> Step {
    next_step(&StepInput {
        now: now(),
        spec: &observed.spec,
        generation: observed.generation(),
        status: &observed.status,
        not_implemented: &observed.not_implemented,
        invalid: observed.invalid.as_deref(),
        source_revision: observed.source_revision(),
        cluster: observed.cluster_state(),
        next_check: context.checks.get(key),
        requested: observed.requested(),
    })
}

fn next(context: &Context, observed: &Observed, step: &Step, done: Option<&Outcome>) -> Next {
    match (step, done) {
        (_, Some(Outcome::Lost { .. })) => Next::Retry(observed.spec.template.retry_interval.as_std()),
        (_, Some(Outcome::Busy { until, .. })) => Next::at(*until, now()),
        (_, Some(Outcome::Failed(failure))) => Next::at(failure.retry_at, now()),
        (_, Some(Outcome::Holds { .. } | Outcome::Unchanged)) => context
            .checks
            .get(&observed.key)
            .map_or(Next::OnEvent, |at| Next::at(at, now())),
        (Step::Backoff { until } | Step::Idle { until, .. }, None) => Next::at(*until, now()),
        (
            Step::Suspended
            | Step::NotImplemented { .. }
            | Step::Invalid { .. }
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
