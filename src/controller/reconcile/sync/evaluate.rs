//! Converts the responses of a member to an [`Outcome`]; the only place that does.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use starling_api::{Changes, DeletionHold, InventorySummary};
use starling_core::apply::{PruneBlocker, Record};
use starling_core::backoff;
use starling_core::object::ObjectId;
use starling_core::step::Wanted;
use tokio::time::Instant;

use super::access::{self, AccessError};
use super::deletion_hold;
use super::outcome::{Applied, Cause, Failure, Outcome};
use super::reason::{problems, reason};
use super::validate::{SERVICE_ACCOUNT_REQUIRED, ValidSync};
use crate::controller::context::SyncContext;
use crate::controller::manifests::BuildNotes;
use crate::controller::waits;
use starling_ledger::{AttemptEnd, AttemptOutcome, NOTHING_WRITTEN, ObjectCounts};
use starling_member::{ApplyOutcome, Change, Member, MemberError};

/// Returns the member if an attempt may begin; see [`access::enter`].
///
/// # Errors
/// The outcome of the attempt that may not begin.
pub(super) fn enter(
    context: SyncContext<'_>,
    sync: &ValidSync<'_>,
    wanted: &Wanted,
) -> Result<Member, Outcome> {
    let account = &sync.spec.template.service_account_name;
    access::enter(context, sync.observed, account).map_err(|error| match error {
        AccessError::Busy(pause) => Outcome::Busy(pause),
        AccessError::NoConnection | AccessError::BreakerOpen => Outcome::Lost {
            message: error.to_string(),
        },
        AccessError::AccountRequired(_) => {
            let cause = Cause::new(SERVICE_ACCOUNT_REQUIRED, crate::chain(&error));
            failed(context, sync, wanted, cause)
        }
        AccessError::Account(_) => {
            let cause = Cause::new("InvalidParameters", crate::chain(&error));
            failed(context, sync, wanted, cause)
        }
    })
}

/// Converts the responses of a member to the outcome of an attempt.
pub(super) fn evaluate(
    context: SyncContext<'_>,
    sync: &ValidSync<'_>,
    wanted: &Wanted,
    responses: &ApplyOutcome,
    notes: &BuildNotes,
) -> Outcome {
    if responses.prune_blocker == Some(PruneBlocker::EmptyRender) {
        let message = "build produced no objects; prune skipped. Set allowEmpty to prune everything";
        return failed(context, sync, wanted, Cause::new("EmptyRender", message));
    }
    if let Some(cause) = objects_failed(responses) {
        return failed(context, sync, wanted, cause);
    }
    match &responses.prune_blocker {
        Some(PruneBlocker::Budget(deletions)) => {
            return over_budget(context, sync, deletion_hold::of(deletions));
        }
        Some(PruneBlocker::Stopped(why)) => {
            // Objects whose grace has ended stay pending, and the target is applied without their deletion.
            if let Some(hold) = &sync.observed.status.held_deletions {
                return stopped(context, sync, hold.clone(), why);
            }
        }
        Some(PruneBlocker::NotCounted(why)) => {
            let message = format!("prune skipped: cannot count the deletions: {why}");
            return failed(context, sync, wanted, Cause::new("DeletionsNotCounted", message));
        }
        Some(PruneBlocker::HandOverUnknown(why)) => {
            let message = format!("prune skipped: another Sync may own these objects: {why}");
            return failed(context, sync, wanted, Cause::new("HandOverUnknown", message));
        }
        // The target is applied; objects that wait for their finalizers stay pending.
        Some(PruneBlocker::Off | PruneBlocker::EmptyRender | PruneBlocker::NotGone(_)) | None => {}
    }
    schedule_check(context, sync);
    Outcome::Applied(Applied {
        changes: changes(responses),
        inventory: inventory(responses),
        notes: notes.clone(),
    })
}

fn objects_failed(responses: &ApplyOutcome) -> Option<Cause> {
    let (first, error) = responses.failures.first()?;
    let others = match responses.failures.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    Some(Cause {
        reason: reason(error),
        message: format!("{first}: {}{others}", crate::chain(error)),
        problems: problems(&responses.failures),
    })
}

/// Returns the outcome if all objects are applied and deletions wait for an approval or for their budget. The interval
/// is that of drift checks, without a backoff, since an approval enqueues the Sync.
fn over_budget(context: SyncContext<'_>, sync: &ValidSync<'_>, hold: DeletionHold) -> Outcome {
    schedule_check(context, sync);
    let deadlines = &context.caches.deadlines;
    let key = &sync.observed.key;
    let now = context.clock.now();
    let seed = sync.observed.uid();
    let until = hold.until.parse().ok();
    if let Some(until) = until.map(|until| waits::after(now, until, seed.as_str()))
        && deadlines.get(key).is_none_or(|check| until < check)
    {
        deadlines.set(key, until);
    }
    let next_check = deadlines.get(key);
    Outcome::Failed(Failure {
        cause: Cause::new(
            deletion_hold::REASON,
            deletion_hold::message(&deletion_hold::HeldSync::of(sync.observed), &hold),
        ),
        attempts: 1,
        retry_at: next_check.unwrap_or_else(|| context.clock.now()),
        deletion_hold: Some(hold),
    })
}

/// Returns the outcome if the deletions may be made, and the group deletes nothing now.
fn stopped(context: SyncContext<'_>, sync: &ValidSync<'_>, hold: DeletionHold, why: &str) -> Outcome {
    schedule_check(context, sync);
    let retry_at = waits::from(context.clock.now(), sync.observed.retry_interval());
    context.caches.deadlines.set(&sync.observed.key, retry_at);
    let message = deletion_hold::message(&deletion_hold::HeldSync::of(sync.observed), &hold);
    Outcome::Failed(Failure {
        cause: Cause::new(deletion_hold::REASON, format!("{why}: {message}")),
        attempts: 1,
        retry_at,
        deletion_hold: Some(hold),
    })
}

/// Returns the outcome of an attempt that ended early. After its `timeout` a probe decides: if the cluster is only
/// slow, the attempt failed; if the cluster is unreachable, the revision has not failed before `progressDeadline`.
pub(super) async fn interrupted(
    context: SyncContext<'_>,
    member: &Member,
    sync: &ValidSync<'_>,
    wanted: &Wanted,
    error: &MemberError,
) -> Outcome {
    let cluster = sync.observed.cluster_key();
    match error {
        MemberError::Throttled { retry_after, .. } => {
            Outcome::Busy(context.availability.throttled(&cluster, *retry_after))
        }
        MemberError::Unreachable { .. } | MemberError::Unauthorized { .. } => lost(context, sync, error),
        MemberError::Deadline { .. } => {
            let deadline = Instant::now() + waits::REACHABLE_TIMEOUT;
            if member.probe(deadline).await.is_err() {
                return lost(context, sync, error);
            }
            let timeout = sync.spec.template.timeout;
            let message = format!("timed out (timeout: {timeout}): {}", crate::chain(error));
            failed(context, sync, wanted, Cause::new("Timeout", message))
        }
        MemberError::SetBack { .. } | MemberError::NoNumber { .. } => {
            Outcome::NotAllowed(Cause::new(reason(error), crate::chain(error)))
        }
        other => failed(
            context,
            sync,
            wanted,
            Cause::new(reason(other), crate::chain(other)),
        ),
    }
}

/// Enqueues the Cluster and returns the outcome: the Cluster loop finds the cause, and enqueues the Syncs when the
/// Cluster changes.
fn lost(context: SyncContext<'_>, sync: &ValidSync<'_>, error: &MemberError) -> Outcome {
    context.handlers.enqueue_cluster(sync.observed.cluster_key());
    Outcome::Lost {
        message: crate::chain(error),
    }
}

/// Returns the outcome of one more consecutive failure at this target, which is retried after a backoff.
pub(super) fn failed(
    context: SyncContext<'_>,
    sync: &ValidSync<'_>,
    wanted: &Wanted,
    cause: Cause,
) -> Outcome {
    let observed = sync.observed;
    let attempts = failures_before(sync, wanted) + 1;
    let wait = backoff::delay(observed.retry_interval(), attempts, observed.uid().as_str());
    let retry_at = waits::from(context.clock.now(), wait);
    context.caches.deadlines.set(&observed.key, retry_at);
    Outcome::Failed(Failure {
        cause,
        attempts,
        retry_at,
        deletion_hold: None,
    })
}

/// Schedules the next drift check: after `interval`, plus or minus a tenth, so that Syncs that were applied together
/// are not checked together forever.
pub(super) fn schedule_check(context: SyncContext<'_>, sync: &ValidSync<'_>) {
    let observed = sync.observed;
    let interval: Duration = sync.spec.template.interval.as_std().max(waits::SYNC_MIN);
    let now = context.clock.now();
    let seed = format!("{}{now}", observed.uid().as_str());
    let wait = waits::around(interval, &seed);
    context
        .caches
        .deadlines
        .set(&observed.key, waits::from(now, wait));
}

pub(super) fn failures_before(sync: &ValidSync<'_>, wanted: &Wanted) -> u32 {
    let status = &sync.observed.status;
    if status.last_attempted_target == wanted.target {
        status.attempts
    } else {
        0
    }
}

/// Changes of the member records after an attempt.
pub(super) struct RecordChanges {
    /// Records of the applied objects.
    pub(super) upserts: BTreeMap<ObjectId, Record>,
    /// Objects that no longer belong to the Sync.
    pub(super) deletes: BTreeSet<ObjectId>,
}

pub(super) fn record_changes(responses: &ApplyOutcome) -> RecordChanges {
    let applied = responses.applied.iter();
    let left = responses.deleted.iter().chain(&responses.released);
    RecordChanges {
        upserts: applied
            .map(|object| (object.key.clone(), object.record.clone()))
            .collect(),
        deletes: left
            .chain(&responses.relinquished)
            .chain(&responses.undeleted)
            .chain(&responses.handed_over)
            .cloned()
            .collect(),
    }
}

fn changes(responses: &ApplyOutcome) -> Changes {
    let count = |change| {
        narrow(
            responses
                .applied
                .iter()
                .filter(|object| object.change == change)
                .count(),
        )
    };
    Changes {
        created: count(Change::Created),
        configured: count(Change::Configured),
        unchanged: count(Change::Unchanged) + narrow(responses.skipped + responses.left_alone.len()),
        deleted: narrow(responses.deleted.len() + responses.deleting),
    }
}

fn inventory(responses: &ApplyOutcome) -> InventorySummary {
    InventorySummary {
        objects: narrow(responses.inventory.len()),
        digest: responses.inventory.digest(),
    }
}

pub(super) fn end(outcome: &Outcome, responses: &ApplyOutcome, ended_at: Timestamp) -> AttemptEnd {
    let changes = changes(responses);
    let counts = ObjectCounts {
        created: changes.created,
        configured: changes.configured,
        unchanged: changes.unchanged,
        deleted: changes.deleted,
        failed: narrow(responses.failures.len()),
    };
    let (outcome, reason, message) = match outcome {
        Outcome::Applied(_) | Outcome::Unchanged => (AttemptOutcome::Succeeded, "Succeeded", String::new()),
        Outcome::Failed(Failure { cause, .. }) => {
            (AttemptOutcome::Failed, cause.reason, cause.message.clone())
        }
        Outcome::Lost { message } if !responses.has_written => {
            (AttemptOutcome::Failed, NOTHING_WRITTEN, message.clone())
        }
        Outcome::Lost { message } => (AttemptOutcome::Failed, "ClusterLost", message.clone()),
        Outcome::NotAllowed(cause) => (AttemptOutcome::Failed, cause.reason, cause.message.clone()),
        Outcome::Busy(_) => (AttemptOutcome::Failed, "Throttled", access::BUSY.to_owned()),
    };
    AttemptEnd {
        outcome,
        reason: reason.to_owned(),
        message,
        counts,
        ended_at,
    }
}

fn narrow(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
