//! The SyncGroup loop: one Sync per entry and selected cluster, rolled at the pace that the group declares.
//!
//! observe (caches) → validate → which release rolls (core) → expand and plan (core) → admit → report. The state of
//! all Syncs and of this status *is* the state of the rollout: an activation carries no data, and the first
//! activation after a crash goes on from there. A new release is written to status before its first admission, so
//! that what was admitted always finds the rollout it belongs to.

mod admit;
mod finalize;
mod held;
mod leave;
mod observe;
mod release;
mod report;
mod view;

use std::time::Duration;

use release::{Beginning, Offered, Rolling};
use starling_core::course::Course;
use starling_core::plan::{Plan, PlanInput, plan};

use super::ReconcileError;
use observe::Group;

use crate::controller::cache::ObjectKey;
use crate::controller::context::{Context, Next};
use crate::controller::targets::Known;

/// Releases that one look may begin.
const STEPS: usize = 3;
/// Wait after an admission that the management cluster did not take.
const RETRY: Duration = Duration::from_secs(1);

/// Looks at one SyncGroup.
///
/// # Errors
/// [`ReconcileError`] where an intent could not be recorded or the status not be written.
pub async fn reconcile(context: &Context, key: &ObjectKey) -> Result<Next, ReconcileError> {
    // Absence means something only in a complete list: nothing is concluded before there is one.
    let Some(group) = context.groups.get(key) else {
        context.reports.forget(key);
        drop(context.targets.take(key));
        return Ok(Next::OnEvent);
    };
    if group.metadata.deletion_timestamp.is_some() {
        return finalize::finalize(context, group).await;
    }
    finalize::ensure(context, &group).await?;
    let group = match observe::observe(context, group) {
        Ok(group) => group,
        Err(finding) => {
            report::blocked(context, &finding).await?;
            return Ok(Next::OnEvent);
        }
    };
    let offered = release::offered(context, &group);
    let leaving = leave::observe(context, &group);
    let mut known = context.targets.take(key);
    let decided = decide(context, &group, &offered, leaving.held.is_some(), &mut known).await;
    context.targets.put(key, known);
    let Some((rolling, input, plan)) = decided? else {
        return Ok(Next::OnEvent);
    };
    // Time is counted from what is remembered of the stages, so that comes before anything is admitted.
    let rolling = report::keep_stages(context, &group, rolling, &plan).await?;
    let admitted = admit::admit(context, &group, &rolling, &plan).await?;
    let left = leave::release(context, &group, &rolling, &leaving, &plan).await?;
    let reported = report::report(
        context,
        &group,
        &rolling,
        (&plan, &plan.report(&input)),
        leaving.held.as_ref(),
    )
    .await?;
    Ok(soonest([
        plan.recheck_at.map(|at| Next::at(at, context.now())),
        offered.settles_at.map(|at| Next::at(at, context.now())),
        (!admitted).then_some(Next::After(RETRY)),
        left,
        reported,
    ]))
}

/// Which release rolls, and its plan. Another release than the one in status is begun here. `None`: there is nothing to
/// roll.
async fn decide(
    context: &Context,
    group: &Group,
    offered: &Offered,
    membership_held: bool,
    known: &mut Known,
) -> Result<Option<(Rolling, PlanInput, Plan)>, ReconcileError> {
    let mut current = release::current(context, group, offered).await?;
    // A failed rollout is left, what is offered is begun: never more than a few steps.
    for _ in 0..STEPS {
        let planned = current.map(|rolling| {
            let input = view::plan_input(group, &rolling, membership_held, known, context.now());
            let plan = plan(&input);
            (rolling, input, plan)
        });
        let verdict = planned
            .as_ref()
            .map(|(rolling, _, plan)| (rolling, &plan.verdict));
        let course = release::course(group, offered, verdict);
        let before = match course {
            Course::Keep | Course::NothingToGoBackTo => return Ok(planned),
            Course::Enqueue { .. } => {
                let Some((rolling, input, plan)) = planned else {
                    return Ok(None);
                };
                let rolling = release::enqueue(context, group, offered, rolling).await?;
                return Ok(Some((rolling, input, plan)));
            }
            Course::Start {
                release,
                direction,
                hold,
                reason,
            } => {
                let beginning = Beginning {
                    release: &release,
                    direction,
                    hold,
                    reason,
                };
                let before = planned.map(|(rolling, ..)| rolling);
                release::begin(context, group, offered, before, beginning).await?
            }
        };
        let Some(begun) = before else {
            return Ok(None);
        };
        current = Some(begun);
    }
    Ok(None)
}

fn soonest<const N: usize>(wishes: [Option<Next>; N]) -> Next {
    let waits = wishes.into_iter().flatten().filter_map(|next| match next {
        Next::After(wait) | Next::Retry(wait) => Some(wait),
        Next::OnEvent => None,
    });
    waits.min().map_or(Next::OnEvent, Next::After)
}
