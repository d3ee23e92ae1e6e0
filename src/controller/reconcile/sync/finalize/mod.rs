//! The deletion of a Sync: its objects are deleted or stay, as core decides, and then its finalizer is removed.
//!
//! A Sync has the finalizer if its deletion may require work, because its `deletionPolicy` or that of its group is
//! `Delete`. The finalizer is added before anything is applied. Every pass reads the inventory on the member and
//! continues from there, so that a crash between two requests costs one pass. An invalid Sync is finalized too: the
//! deletion needs the owner label of the objects, and no build.

mod delete;
mod final_check;
mod observe;
mod release;
mod report;

use starling_api::DeletionPolicy;
use starling_core::backoff;
use starling_core::deletion_subject::DeletionCause;
use starling_core::finalize::{Finalize, FinalizeInput, ParentDeletion, Waiting, finalize as decide};

use super::super::ReconcileError;
use super::super::parent_deletion::parent_deletion;
use super::budgets::DeletionTurn;
use super::observe::SyncSnapshot;
use crate::controller::context::{Next, SyncContext};
use crate::controller::event_handlers::ChangedBy;
use crate::controller::waits;
use observe::{has_finalizer, is_abandoned};
use report::LastPass;

/// Adds the finalizer to a Sync whose deletion may require work, and removes it from any other.
///
/// # Errors
/// [`ReconcileError`] if the finalizer cannot be added; then nothing may be applied.
pub(super) async fn ensure(context: SyncContext<'_>, observed: &SyncSnapshot) -> Result<(), ReconcileError> {
    let object = &observed.object;
    let has = has_finalizer(object);
    let group = match observed.group_key() {
        None => false,
        // Without its group the policy is unknown, and the finalizer stays as it is.
        Some(key) => context
            .objects
            .groups
            .get(&key)
            .map_or(has, |group| group.spec.deletion_policy == DeletionPolicy::Delete),
    };
    let wanted = group || object.spec.template.deletion_policy == DeletionPolicy::Delete;
    if wanted != has {
        let written = context.hub.set_finalizer(&**object, wanted).await?;
        if let Some(change) = context.objects.syncs.observe_write(written) {
            context.handlers.on_sync(&change, ChangedBy::Reconciler);
        }
    }
    Ok(())
}

/// Runs one pass over a Sync that is being deleted.
///
/// # Errors
/// [`ReconcileError`] if a write to the management cluster or the ledger failed.
pub(super) async fn finalize(
    context: SyncContext<'_>,
    observed: &SyncSnapshot,
) -> Result<Next, ReconcileError> {
    if !has_finalizer(&observed.object) {
        return Ok(Next::OnEvent);
    }
    if let Some(wait) = backing_off(context, observed) {
        return Ok(wait);
    }
    let current = match observe::current(context, observed).await {
        Ok(Some(sync)) if sync.metadata.deletion_timestamp.is_none() => {
            // A deletion is never taken back, except with the whole management cluster.
            tracing::warn!(sync = %observed.key, "the management cluster has the Sync without its deletion: was it set back?");
            return Ok(Next::Retry(waits::PARENT_RETRY));
        }
        Ok(Some(sync)) => sync,
        Ok(None) => return Ok(Next::OnEvent),
        Err(error) => {
            let waiting = Waiting::ParentUnknown(crate::chain(&error));
            report::waiting(context, observed, &waiting).await?;
            return Ok(Next::Retry(waits::PARENT_RETRY));
        }
    };
    let observed = &observed.clone().with_object(current);
    let decided = decide_now(context, observed).await;
    let turn = DeletionTurn::begin(context, observed, decided.is_late);
    match decided.decision {
        Finalize::Orphan(why) => release::orphan(context, observed, &why).await,
        Finalize::Wait(waiting) => {
            report::waiting(context, observed, &waiting).await?;
            Ok(match waiting {
                // A resumed group enqueues the Sync. The retry is for a watch that delivers nothing.
                Waiting::Group(_) | Waiting::Siblings(_) => Next::Retry(observed.retry_interval()),
                Waiting::ParentUnknown(_) | Waiting::ClusterUnknown(_) | Waiting::NotCounted(_) => {
                    Next::Retry(waits::PARENT_RETRY)
                }
                // A change of the dependents or the Cluster enqueues the Sync.
                Waiting::Dependents(_) | Waiting::Cluster(_) => Next::OnEvent,
            })
        }
        Finalize::Delete => delete::delete(context, observed, decided.cause, &turn).await,
    }
}

/// What is decided about a Sync that is being deleted.
struct Decided {
    decision: Finalize,
    /// Why the objects are deleted, which approvals are of.
    cause: DeletionCause,
    /// Whether the removal gave its slot back.
    is_late: bool,
}

/// Decides by what the management cluster has now. `observed` has the Sync as it is there.
async fn decide_now(context: SyncContext<'_>, observed: &SyncSnapshot) -> Decided {
    let policy = observe::policy(context, observed).await;
    let parent = match policy.parent {
        ParentDeletion::None => parent_deletion(context.hub, &observed.key).await,
        known => known,
    };
    let waiting = observe::dependents(context, observed);
    let decision = decide(&FinalizeInput {
        policy: policy.policy,
        suspended: observed.object.spec.template.suspend,
        needs_others: observe::needs_others(observed, policy.cause),
        group_lost: policy.group_lost,
        stopped: policy.stopped,
        wanted: policy.wanted,
        parent,
        cluster: observe::target(context, observed).await,
        abandoned: is_abandoned(observed),
        dependents: &waiting,
    });
    Decided {
        decision,
        cause: policy.cause,
        is_late: policy.is_late,
    }
}

/// Returns the requeue during the backoff of the last pass. A requested reconcile and an abandoned cluster have no
/// backoff.
fn backing_off(context: SyncContext<'_>, observed: &SyncSnapshot) -> Option<Next> {
    let until = context.caches.deadlines.get(&observed.key)?;
    let template = &observed.object.spec.template;
    let (interval, now) = (template.interval.as_std(), context.clock.now());
    let waits = LastPass::of(&observed.status).is_some()
        && until > now
        // The clock may have been set back since.
        && backoff::is_plausible(until, interval, observed.retry_interval(), now)
        && !observed.requested()
        && !is_abandoned(observed);
    waits.then(|| Next::at(until, now))
}
