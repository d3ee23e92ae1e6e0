//! What an attempt or a check comes to: the one place that turns a member's answers into a result.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use starling_api::{Changes, DeletionHold, InventorySummary, ObjectProblem};
use starling_core::apply::{PruneHold, Record};
use starling_core::backoff;
use starling_core::digest::{hash64, spread};
use starling_core::object::ObjectKey;
use starling_core::step::Wanted;
use tokio::time::Instant;

use super::attempt::cluster_key;
use super::held;
use super::lane;
use super::observe::Observed;
use crate::controller::context::Context;
use crate::controller::lanes::Pause;
use crate::ledger::{AttemptEnd, AttemptOutcome, ObjectCounts};
use crate::member::{ApplyOutcome, Change, Member, MemberError};

/// How long a cluster may take to show that it is there after an attempt ran out of time.
const STILL_THERE: Duration = Duration::from_secs(5);
/// Problems that a status names at most.
const PROBLEMS: usize = 10;

/// What an attempt or a check came to.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The member holds the target.
    Holds(Held),
    /// A check found nothing changed.
    Unchanged,
    /// It did not get there; the member answered.
    Failed(Failure),
    /// The member asked for a pause: no failure of the revision either.
    Busy {
        /// What happened.
        message: String,
        /// When it is tried again.
        pause: Pause,
    },
    /// The member could not be worked on: no failure of the revision.
    Lost {
        /// What happened.
        message: String,
    },
}

/// The member holds the target.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) changes: Changes,
    pub(super) inventory: InventorySummary,
    /// Rendered without kustomize.
    pub(super) plain: bool,
}

/// Why the member does not hold the target.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) problems: Vec<ObjectProblem>,
    /// Failures in a row at this target, this one included.
    pub(super) attempts: u32,
    pub(super) retry_at: Timestamp,
    /// Deletions that wait for a person, if that is why.
    pub(super) held: Option<DeletionHold>,
}

/// What the member's answers amount to.
pub(super) fn judge(
    context: &Context,
    observed: &Observed,
    wanted: &Wanted,
    applied: &ApplyOutcome,
    plain: bool,
) -> Outcome {
    if applied.prune_hold == Some(PruneHold::EmptyRender) {
        let message =
            "the render has no objects, so nothing is pruned; set allowEmpty if that is meant".into();
        return failed(context, observed, wanted, "EmptyRender", message, Vec::new());
    }
    if let Some((first, error)) = applied.failures.first() {
        let others = match applied.failures.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        let message = format!("{first}: {}{others}", crate::chain(error));
        return failed(
            context,
            observed,
            wanted,
            reason(error),
            message,
            problems(&applied.failures),
        );
    }
    match &applied.prune_hold {
        Some(PruneHold::Budget(deletions)) => {
            return held_back(context, observed, held::in_status(deletions));
        }
        Some(PruneHold::Unsure(why)) => {
            let message = format!("nothing is pruned, for it may have been handed over: {why}");
            return failed(context, observed, wanted, "HandOverUnknown", message, Vec::new());
        }
        Some(PruneHold::Off | PruneHold::EmptyRender) | None => {}
    }
    schedule_check(context, observed);
    Outcome::Holds(Held {
        changes: changes(applied),
        inventory: inventory(applied),
        plain,
    })
}

/// All is applied, and deletions wait for a person. That is no reason to try more and more rarely, or more often than
/// drift is looked for: an approval wakes the Sync.
fn held_back(context: &Context, observed: &Observed, deletions: DeletionHold) -> Outcome {
    schedule_check(context, observed);
    Outcome::Failed(Failure {
        reason: held::REASON,
        message: held::message(&deletions),
        problems: Vec::new(),
        attempts: 1,
        retry_at: context.checks.get(&observed.key).unwrap_or_else(|| context.now()),
        held: Some(deletions),
    })
}

/// What an attempt that ended early amounts to. One that ran into its `timeout` may have met a slow cluster, which is
/// a failure, or one that went away without a word, which is none of the revision's until `progressDeadline`: a
/// question tells.
pub(super) async fn interrupted(
    context: &Context,
    member: &Member,
    observed: &Observed,
    wanted: &Wanted,
    error: &MemberError,
) -> Outcome {
    match error {
        MemberError::Throttled { retry_after, .. } => lane::throttled(context, observed, *retry_after),
        MemberError::Unreachable { .. } | MemberError::Unauthorized { .. } => {
            // The Cluster loop finds out what is the matter, and wakes its Syncs when that changes.
            context.queues.clusters.add(cluster_key(observed));
            Outcome::Lost {
                message: crate::chain(error),
            }
        }
        MemberError::Deadline { .. } => {
            if member.probe(Instant::now() + STILL_THERE).await.is_err() {
                context.queues.clusters.add(cluster_key(observed));
                return Outcome::Lost {
                    message: crate::chain(error),
                };
            }
            let message = format!(
                "not done within timeout ({}): {}",
                observed.spec.template.timeout,
                crate::chain(error)
            );
            failed(context, observed, wanted, "Timeout", message, Vec::new())
        }
        other => failed(
            context,
            observed,
            wanted,
            reason(other),
            crate::chain(other),
            Vec::new(),
        ),
    }
}

pub(super) fn failed(
    context: &Context,
    observed: &Observed,
    wanted: &Wanted,
    reason: &'static str,
    message: String,
    problems: Vec<ObjectProblem>,
) -> Outcome {
    let attempts = failures_before(observed, wanted) + 1;
    let start = observed.spec.template.retry_interval.as_std();
    let wait = backoff::delay(
        start,
        attempts,
        observed.sync.metadata.uid.as_deref().unwrap_or_default(),
    );
    let retry_at = after(context, wait);
    context.checks.set(&observed.key, retry_at);
    Outcome::Failed(Failure {
        reason,
        message,
        problems,
        attempts,
        retry_at,
        held: None,
    })
}

/// The next look for drift: after `interval`, give or take a tenth, so that what was applied together is not
/// looked at together for ever.
pub(super) fn schedule_check(context: &Context, observed: &Observed) {
    let interval = observed
        .spec
        .template
        .interval
        .as_std()
        .max(Duration::from_secs(1));
    let seed = [
        observed.sync.metadata.uid.as_deref().unwrap_or_default(),
        &context.now().to_string(),
    ]
    .concat();
    let wait = interval - interval / 10 + spread(interval / 5, hash64(&[&seed]));
    context.checks.set(&observed.key, after(context, wait));
}

fn after(context: &Context, wait: Duration) -> Timestamp {
    let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::from_hours(24));
    context.now().checked_add(wait).unwrap_or(Timestamp::MAX)
}

pub(super) fn failures_before(observed: &Observed, wanted: &Wanted) -> u32 {
    if observed.status.last_attempted_target == wanted.target {
        observed.status.attempts
    } else {
        0
    }
}

pub(super) fn remembered(applied: &ApplyOutcome) -> (BTreeMap<ObjectKey, Record>, BTreeSet<ObjectKey>) {
    let upserts = applied
        .applied
        .iter()
        .map(|object| (object.key.clone(), object.record.clone()))
        .collect();
    let left = applied.deleted.iter().chain(&applied.released);
    let deletes = left.chain(&applied.spared).cloned().collect();
    (upserts, deletes)
}

fn changes(applied: &ApplyOutcome) -> Changes {
    let count = |change| {
        narrow(
            applied
                .applied
                .iter()
                .filter(|object| object.change == change)
                .count(),
        )
    };
    Changes {
        created: count(Change::Created),
        configured: count(Change::Configured),
        unchanged: count(Change::Unchanged) + narrow(applied.skipped + applied.left_alone.len()),
        deleted: narrow(applied.deleted.len()),
    }
}

fn inventory(applied: &ApplyOutcome) -> InventorySummary {
    InventorySummary {
        objects: narrow(applied.inventory.len()),
        digest: applied.inventory.digest(),
    }
}

pub(super) fn problems(failures: &[(ObjectKey, MemberError)]) -> Vec<ObjectProblem> {
    failures
        .iter()
        .take(PROBLEMS)
        .map(|(object, error)| ObjectProblem {
            object: object.to_string(),
            reason: reason(error).to_owned(),
            message: starling_api::conditions::cut(
                &crate::chain(error),
                starling_api::conditions::MESSAGE_LIMIT,
            ),
        })
        .collect()
}

pub(super) fn end(outcome: &Outcome, applied: &ApplyOutcome, ended_at: Timestamp) -> AttemptEnd {
    let changes = changes(applied);
    let counts = ObjectCounts {
        created: changes.created,
        configured: changes.configured,
        unchanged: changes.unchanged,
        deleted: changes.deleted,
        failed: narrow(applied.failures.len()),
    };
    let (outcome, reason, message) = match outcome {
        Outcome::Holds(_) | Outcome::Unchanged => (AttemptOutcome::Succeeded, "Succeeded", String::new()),
        Outcome::Failed(failure) => (AttemptOutcome::Failed, failure.reason, failure.message.clone()),
        Outcome::Lost { message } => (AttemptOutcome::Failed, "ClusterLost", message.clone()),
        Outcome::Busy { message, .. } => (AttemptOutcome::Failed, "Throttled", message.clone()),
    };
    AttemptEnd {
        outcome,
        reason: reason.to_owned(),
        message,
        counts,
        ended_at,
    }
}

/// The one mapping from what a member answers about an object to a reason.
fn reason(error: &MemberError) -> &'static str {
    match error {
        MemberError::Unreachable { .. } => "Unreachable",
        MemberError::Deadline { .. } => "Timeout",
        MemberError::Unauthorized { .. } => "AuthFailed",
        MemberError::Forbidden { .. } => "Forbidden",
        MemberError::Throttled { .. } => "Throttled",
        MemberError::NotFound { .. } => "NotFound",
        MemberError::Conflict { .. } => "Conflict",
        MemberError::Invalid { .. } => "Invalid",
        MemberError::Immutable { .. } => "Immutable",
        MemberError::NotGone { .. } => "NotGone",
        MemberError::NotEstablished { .. } => "DefinitionNotEstablished",
        MemberError::OwnedByOther { .. } => "OwnedByOther",
        MemberError::UnknownKind { .. } | MemberError::NotServed { .. } => "UnknownKind",
        MemberError::Address { .. } => "InvalidObject",
        MemberError::Account { .. } => "InvalidParameters",
        MemberError::Inventory { .. } => "InventoryUnreadable",
        MemberError::Client { .. }
        | MemberError::Expired { .. }
        | MemberError::Server { .. }
        | MemberError::Garbage { .. }
        | MemberError::TooLarge { .. } => "ServerFailed",
    }
}

fn narrow(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
