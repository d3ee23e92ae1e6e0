//! The record of the approvals of deletions that a Sync has used up, and the target that an approval is of.

use kube::ResourceExt;
use starling_api::RELEASE;
use starling_core::step::Wanted;

use super::super::ReconcileError;
use super::budgets;
use super::observe::Observed;
use crate::controller::context::SyncContext;

/// Brings the record of used approvals up to date: those that no longer exist are forgotten, and what exists before the
/// first pass over a Sync is none of its approvals. Returns whether it was changed.
///
/// # Errors
/// [`ReconcileError`] if the record cannot be stored; then nothing may be deleted.
pub(super) async fn settle(context: SyncContext<'_>, observed: &Observed) -> Result<bool, ReconcileError> {
    let approvals = &observed.approvals;
    let known = observed.status.deletions.as_ref();
    let known = known.map_or(&[][..], |deletions| &deletions.used);
    let is_first = observed.status.observed_generation.is_none();
    let used = if is_first {
        Some(approvals.used_before(context.clock.now()))
    } else {
        approvals.forgotten()
    };
    let Some(used) = used.filter(|used| used != known) else {
        return Ok(false);
    };
    let to = budgets::context(context);
    context.budgets.set_used(to, &observed.key, used).await?;
    Ok(true)
}

/// Returns what replaces the objects that an attempt deletes, as the digest of an approval covers it. Clusters of a
/// group with different parameters have different targets, and the same release.
pub(super) fn target<'a>(observed: &'a Observed, wanted: &'a Wanted) -> &'a str {
    if observed.object.spec.group_ref.is_none() {
        return &wanted.target;
    }
    let release = observed.object.annotations().get(RELEASE);
    release.unwrap_or(&wanted.revision)
}
