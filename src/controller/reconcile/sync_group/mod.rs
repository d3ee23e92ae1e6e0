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

use starling_core::plan::plan;

use super::ReconcileError;
use crate::controller::cache::ObjectKey;
use crate::controller::context::{Context, Next};

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
        context.selections.forget(key);
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
    let Some(rolling) = release::ensure(context, &group).await? else {
        return Ok(Next::OnEvent);
    };
    let leaving = leave::observe(context, &group);
    let mut known = context.targets.take(key);
    let input = view::plan_input(
        &group,
        &rolling,
        leaving.held.is_some(),
        &mut known,
        context.now(),
    );
    let plan = plan(&input);
    let said = plan.report(&input);
    known.views.put_back(input.clusters);
    context.targets.put(key, known);
    let admitted = admit::admit(context, &group, &rolling, &plan).await?;
    let left = leave::release(context, &group, &leaving, &plan).await?;
    let reported = report::report(context, &group, &rolling, &said, leaving.held.as_ref()).await?;
    Ok(soonest([
        plan.recheck_at.map(|at| Next::at(at, context.now())),
        rolling.settles_at.map(|at| Next::at(at, context.now())),
        (!admitted).then_some(Next::After(RETRY)),
        left,
        reported,
    ]))
}

fn soonest<const N: usize>(wishes: [Option<Next>; N]) -> Next {
    let waits = wishes.into_iter().flatten().filter_map(|next| match next {
        Next::After(wait) | Next::Retry(wait) => Some(wait),
        Next::OnEvent => None,
    });
    waits.min().map_or(Next::OnEvent, Next::After)
}
