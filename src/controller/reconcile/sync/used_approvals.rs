//! The record of the approvals of deletions that a Sync has used up, and the target that an approval is of.

use kube::ResourceExt;
use starling_api::RELEASE;
use starling_core::deletion_approval;
use starling_core::deletion_subject::{ApprovalScope, ApprovalSubject, DeletionCause};
use starling_core::step::Wanted;

use super::super::ReconcileError;
use super::super::marks::{Marks, with_verdict};
use super::budgets;
use super::observe::SyncSnapshot;
use crate::controller::caches::sync_to_delete_from;
use crate::controller::context::SyncContext;
use crate::controller::object_key::ObjectKey;
use crate::controller::unmatched_approvals;

/// Brings the record of used approvals up to date: those that no longer exist are forgotten, and what exists before the
/// first pass over a Sync is none of its approvals. Returns whether it was changed.
///
/// # Errors
/// [`ReconcileError`] if the record cannot be stored; then nothing may be deleted.
pub(super) async fn settle(
    context: SyncContext<'_>,
    observed: &SyncSnapshot,
) -> Result<bool, ReconcileError> {
    mark(context, observed).await;
    tell_unmatched(context, observed).await;
    let approvals = &observed.approvals;
    let known = observed.status.deletions.as_ref();
    let known = known.map_or(&[][..], |deletions| &deletions.used);
    let of_group = observed.group_key();
    // The annotation of a group that cannot be read may still be there.
    if of_group.is_some_and(|group| observed.group.is_none() && context.objects.groups.is_unreadable(&group))
    {
        return Ok(false);
    }
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

/// Marks the DeletionApprovals of the Sync. Those of its group are marked by the group.
async fn mark(context: SyncContext<'_>, observed: &SyncSnapshot) {
    let ObjectKey { namespace, name } = &observed.key;
    let to = Marks {
        hub: context.hub,
        retries: &context.caches.mark_retries,
        of: &observed.key,
        now: context.clock.now(),
    };
    let cache = &context.objects.deletion_approvals;
    for approval in cache.indexed(&sync_to_delete_from(namespace, name)) {
        let marks = with_verdict(context.policies, deletion_approval::marks(&approval), &*approval);
        to.write(cache, &*approval, marks).await;
    }
}

/// Records an event for approvals of the Sync alone while nothing is held that they could approve. Its group tells of
/// those for all its Syncs.
async fn tell_unmatched(context: SyncContext<'_>, observed: &SyncSnapshot) {
    let is_first = observed.status.observed_generation.is_none();
    let own = observed.approvals.clone().without(|approval| approval.is_shared);
    let unmatched = match &observed.status.held_deletions {
        None if !is_first => own.unmatched(context.clock.now()),
        _ => String::new(),
    };
    let reported = &context.caches.reported_approvals;
    unmatched_approvals::report(context.events, &*observed.object, reported, unmatched).await;
}

/// Returns what replaces the objects that an attempt deletes, as the digest of an approval covers it. Clusters of a
/// group with different parameters have different targets, and the same release.
pub(super) fn target<'a>(observed: &'a SyncSnapshot, wanted: &'a Wanted) -> &'a str {
    if observed.object.spec.group_ref.is_none() {
        return &wanted.target;
    }
    let release = observed.object.annotations().get(RELEASE);
    release.unwrap_or(&wanted.revision)
}

/// Returns what the objects of a Sync that is deleted belong to: the release or the target that applied them.
pub(super) fn last_target(observed: &SyncSnapshot) -> &str {
    let release = observed.object.annotations().get(RELEASE);
    release.unwrap_or(&observed.status.last_applied_target)
}

/// Returns what approvals of deletions of this Sync have to be of.
pub(super) fn subject<'a>(
    observed: &'a SyncSnapshot,
    cause: DeletionCause,
    target: &'a str,
) -> ApprovalSubject<'a> {
    let of = observed.object.spec.group_ref.as_ref();
    let scope = ApprovalScope {
        namespace: &observed.key.namespace,
        group: of.map_or("", |of| &of.name),
        name: of.map_or(&observed.key.name, |of| &of.entry),
    };
    ApprovalSubject::new(scope, cause, target, observed.cluster_id.as_str())
}
