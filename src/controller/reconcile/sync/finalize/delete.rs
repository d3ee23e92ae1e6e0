//! One pass over the objects of a Sync that is being deleted.

use std::collections::{BTreeMap, BTreeSet};

use starling_core::apply::{ApprovedDeletions, HeldDeletions};
use starling_core::backoff;
use starling_core::deletion_approval::ENDING;
use starling_core::deletion_subject::DeletionCause;
use starling_core::finalize::Waiting;
use starling_core::ids::OwnerLabel;
use starling_core::object::ObjectId;

use super::super::super::ReconcileError;
use super::super::access::{self, AccessError, ResponseRecorder};
use super::super::attempt::forget_digests;
use super::super::budgets::{BudgetsOf, DeletionTurn};
use super::super::deletion_hold;
use super::super::observe::SyncSnapshot;
use super::super::owners;
use super::super::report as sync_report;
use super::super::resolve::resolve;
use super::super::siblings::SiblingsOf;
use super::super::used_approvals;
use super::final_check::FinalCheck;
use super::release::{release, release_to_copy};
use super::report::{self, LastPass, UnfinishedDeletion};
use crate::controller::context::{Next, SyncContext};
use crate::controller::waits;
use starling_member::{DeleteJob, DeleteOutcome, Member, MemberError, OtherOwner};

/// Deletes the objects, and releases the Sync when none is left.
///
/// # Errors
/// [`ReconcileError`] if a write to the management cluster or the ledger failed.
pub(super) async fn delete(
    context: SyncContext<'_>,
    observed: &SyncSnapshot,
    cause: DeletionCause,
    turn: &DeletionTurn<'_>,
) -> Result<Next, ReconcileError> {
    let owners = owners::all(context, observed);
    if let Some(copy) = owners.get(&observed.owner).filter(|copy| !copy.goes) {
        tracing::info!(sync = %observed.key, copy = %copy.name, "objects left to a copy of the Sync");
        return release_to_copy(context, observed).await;
    }
    let member = match enter(context, observed) {
        Ok(member) => member,
        Err(error) => {
            let next = match &error {
                AccessError::Busy(pause) => Next::After(pause.left()),
                AccessError::NoConnection
                | AccessError::BreakerOpen
                | AccessError::AccountRequired(_)
                | AccessError::Account(_) => retry(observed),
            };
            return report_no_access(context, observed, crate::chain(&error), next).await;
        }
    };
    context
        .start_rates
        .wait_for_attempt(&observed.cluster_key())
        .await;
    let siblings = match Box::pin(SiblingsOf { context, observed }.current_objects()).await {
        Ok(siblings) => siblings,
        Err(error) => {
            let waiting = Waiting::Siblings(crate::chain(&error));
            report::waiting(context, observed, &waiting).await?;
            return Ok(retry(observed));
        }
    };
    let others = Others {
        siblings: &siblings,
        owners: &owners,
    };
    // Before the first object goes: a management cluster that is set back may not know of the deletion, and the next
    // attempt would believe the records.
    let recorded = context
        .ledger
        .load_records(&observed.cluster_id, &observed.owner)
        .await?;
    forget_digests(context, observed, &recorded.objects).await?;
    let deleted = pass(context, observed, (cause, turn), &member, others).await;
    if deleted.is_complete() {
        return complete(context, observed, &deleted).await;
    }
    if let Some(held) = &deleted.held {
        return self::held(context, observed, held).await;
    }
    if let Some(why) = &deleted.stopped {
        report::waiting(context, observed, &Waiting::Group(why.clone())).await?;
        // What stops it enqueues the Sync when it ends. The retry is for a watch that delivers nothing.
        return Ok(retry(observed));
    }
    if let Some(why) = &deleted.not_counted {
        report::waiting(context, observed, &Waiting::NotCounted(why.clone())).await?;
        return Ok(Next::Retry(waits::PARENT_RETRY));
    }
    if let Some(MemberError::Throttled { retry_after, .. }) = &deleted.interrupted {
        let pause = context
            .availability
            .throttled(&observed.cluster_key(), *retry_after);
        let (error, next) = (AccessError::Busy(pause), Next::After(pause.left()));
        return report_no_access(context, observed, crate::chain(&error), next).await;
    }
    match &deleted.interrupted {
        Some(error) if error.is_connectivity() || matches!(error, MemberError::Unauthorized { .. }) => {
            // The Cluster loop finds the cause.
            context.handlers.enqueue_cluster(observed.cluster_key());
            report_no_access(context, observed, crate::chain(error), retry(observed)).await
        }
        interrupted => {
            if interrupted.is_none() {
                turn.goes_on();
            }
            unfinished(context, observed, &deleted).await
        }
    }
}

/// Returns the member. An account with unresolved parameters is rejected here; the account of a Sync whose other
/// parameters do not resolve is accepted.
fn enter(context: SyncContext<'_>, observed: &SyncSnapshot) -> Result<Member, AccessError> {
    let spec = &observed.object.spec;
    let resolved = resolve(spec, observed.cluster.as_deref());
    let spec = resolved.as_deref().unwrap_or(spec);
    access::enter(context, observed, &spec.template.service_account_name)
}

/// What other Syncs have on the member.
#[derive(Clone, Copy)]
struct Others<'a> {
    siblings: &'a BTreeSet<ObjectId>,
    owners: &'a BTreeMap<OwnerLabel, OtherOwner>,
}

async fn pass(
    context: SyncContext<'_>,
    observed: &SyncSnapshot,
    (cause, turn): (DeletionCause, &DeletionTurn<'_>),
    member: &Member,
    Others { siblings, owners }: Others<'_>,
) -> DeleteOutcome {
    let job = DeleteJob {
        owner: &observed.owner,
        siblings,
        owners,
        confirm: context.budgets.confirmed_kinds(),
        budgets: &FinalCheck {
            budgets: BudgetsOf {
                context,
                observed,
                target: ENDING,
                turn,
            },
        },
        approval: ApprovedDeletions {
            subject: used_approvals::subject(observed, cause, used_approvals::last_target(observed)),
            digests: &observed.approvals.digests(),
        },
        deadline: observed.deadline(),
    };
    let recorder = ResponseRecorder::begin(member);
    let deleted = member.delete(job).await;
    recorder.end(context, &observed.cluster_key(), deleted.interrupted.as_ref());
    deleted
}

/// Reports deletions that exceed a budget. They are decided again when the budget allows them, and at the interval: its
/// limits may have changed.
async fn held(
    context: SyncContext<'_>,
    observed: &SyncSnapshot,
    held: &HeldDeletions,
) -> Result<Next, ReconcileError> {
    let hold = deletion_hold::of(held);
    report::held(context, observed, &hold).await?;
    let now = context.clock.now();
    let interval = observed
        .object
        .spec
        .template
        .interval
        .as_std()
        .max(waits::SYNC_MIN);
    let check = waits::from(now, interval);
    let until = held.excess.as_ref().and_then(|excess| excess.until);
    let until = until.map(|until| waits::after(now, until, observed.uid().as_str()));
    Ok(Next::at(until.map_or(check, |until| until.min(check)), now))
}

async fn complete(
    context: SyncContext<'_>,
    observed: &SyncSnapshot,
    deleted: &DeleteOutcome,
) -> Result<Next, ReconcileError> {
    let cluster = observed.cluster_name();
    let (gone, stay) = (deleted.deleted.len(), deleted.released.len());
    tracing::info!(sync = %observed.key, %cluster, deleted = gone, released = stay, "objects deleted");
    sync_report::relinquished(context, observed, &deleted.relinquished).await;
    let note = format!("deleted all objects from cluster {cluster}");
    context
        .events
        .normal(&*observed.object, "ObjectsDeleted", note)
        .await;
    release(context, observed).await
}

/// Returns the requeue while the cluster is not available. A change of the Cluster enqueues the Sync; the retry is for
/// a cluster that was unreachable for such a short time that its status did not change.
fn retry(observed: &SyncSnapshot) -> Next {
    Next::Retry(observed.retry_interval())
}

/// Reports that no request may be sent to the cluster.
async fn report_no_access(
    context: SyncContext<'_>,
    observed: &SyncSnapshot,
    why: String,
    next: Next,
) -> Result<Next, ReconcileError> {
    report::waiting(context, observed, &Waiting::Cluster(why)).await?;
    Ok(next)
}

/// Reports the remaining objects, and retries after a backoff.
async fn unfinished(
    context: SyncContext<'_>,
    observed: &SyncSnapshot,
    deleted: &DeleteOutcome,
) -> Result<Next, ReconcileError> {
    // A container waits for the Sync that deletes what is in it.
    let is_waiting = |error: &MemberError| matches!(error, MemberError::InUse { .. });
    let are_waiting = deleted.failures.iter().all(|(_, error)| is_waiting(error));
    let (pass, start) = if are_waiting && deleted.interrupted.is_none() {
        (LastPass::Deleting, waits::DELETING_RETRY)
    } else {
        (LastPass::Failed, observed.retry_interval())
    };
    let before = LastPass::of(&observed.status).map_or(0, |_| observed.status.attempts);
    let passes = before.saturating_add(1);
    let wait = backoff::delay(start, passes, observed.uid().as_str());
    let until = waits::from(context.clock.now(), wait);
    context.caches.deadlines.set(&observed.key, until);
    let unfinished = UnfinishedDeletion {
        pass,
        deleted,
        passes,
        until,
    };
    report::unfinished(context, observed, unfinished).await?;
    Ok(Next::at(until, context.clock.now()))
}
