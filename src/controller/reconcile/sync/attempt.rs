//! The effects: one attempt at a target, one check for drift.
//!
//! The intent is in the ledger before the first request to the member, the outcome after the last one. Whatever
//! happens in between, the next attempt finds the inventory claimed on the member and sends again what it has no
//! record of, which is a no-op there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use starling_api::{Changes, ConflictPolicy, InventorySummary, ObjectProblem};
use starling_core::apply::{PruneHold, Record};
use starling_core::backoff;
use starling_core::digest::{hash64, spread};
use starling_core::object::{ObjectKey, RenderedSet};
use starling_core::revision::Revision;
use starling_core::step::Wanted;
use tokio::time::Instant;

use super::super::ReconcileError;
use super::observe::Observed;
use super::report;
use crate::controller::cache;
use crate::controller::context::{Context, now};
use crate::controller::members::Connection;
use crate::controller::renders::{RenderFailure, RenderJob, Rendered};
use crate::ledger::{Attempt, AttemptEnd, AttemptOutcome, ObjectCounts};
use crate::member::{ApplyJob, ApplyOutcome, Change, MemberError};

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
}

/// Makes the member hold `wanted`.
///
/// # Errors
/// [`ReconcileError`] where the intent could not be recorded: then nothing was begun.
pub(super) async fn apply(
    context: &Context,
    observed: &Observed,
    wanted: &Wanted,
) -> Result<Outcome, ReconcileError> {
    attempt(context, observed, wanted, &BTreeSet::new()).await
}

/// Looks whether somebody changed what the member holds, and puts it right.
///
/// # Errors
/// As [`apply`].
pub(super) async fn check(
    context: &Context,
    observed: &Observed,
    wanted: &Wanted,
) -> Result<Outcome, ReconcileError> {
    let Some(connection) = &observed.connection else {
        return Ok(no_connection());
    };
    context.pace.attempt(&cluster_key(observed)).await;
    schedule_check(context, observed);
    let records = load(context, observed).await;
    // Fewer records than objects: the ledger was lost. An attempt takes them anew, without a write to what is in step.
    let expected = usize::try_from(observed.status.inventory.objects).unwrap_or(usize::MAX);
    if records.len() < expected {
        return attempt(context, observed, wanted, &BTreeSet::new()).await;
    }
    let report = connection
        .member
        .find_drift(&observed.owner, &records, deadline(observed))
        .await;
    if let Some(error) = report.interrupted {
        return Ok(interrupted(context, connection, observed, wanted, &error).await);
    }
    if !report.drifted.is_empty() {
        tracing::info!(sync = %observed.key, objects = report.drifted.len(), "drift found");
        return attempt(context, observed, wanted, &report.drifted).await;
    }
    if let Some(((_, kind), error)) = report.failures.first() {
        let message = format!("drift of {kind} cannot be looked for: {}", crate::chain(error));
        return Ok(failed(
            context,
            observed,
            wanted,
            "DriftCheckFailed",
            message,
            Vec::new(),
        ));
    }
    Ok(Outcome::Unchanged)
}

async fn attempt(
    context: &Context,
    observed: &Observed,
    wanted: &Wanted,
    drifted: &BTreeSet<ObjectKey>,
) -> Result<Outcome, ReconcileError> {
    let Some(connection) = &observed.connection else {
        return Ok(no_connection());
    };
    context.pace.attempt(&cluster_key(observed)).await;
    let rendered = match render(context, observed, wanted).await {
        Ok(rendered) => rendered,
        Err((reason, message)) => {
            return Ok(failed(context, observed, wanted, reason, message, Vec::new()));
        }
    };
    let intent = Attempt {
        sync_uid: observed.sync.metadata.uid.clone().unwrap_or_default(),
        namespace: observed.key.namespace.clone(),
        name: observed.key.name.clone(),
        cluster: observed.spec.cluster_ref.name.clone(),
        target: wanted.target.clone(),
        revision: wanted.revision.clone(),
        number: failures_before(observed, wanted) + 1,
        started_at: now(),
    };
    let id = context.ledger.begin_attempt(&intent).await?;
    let records = load(context, observed).await;
    let applied = send(connection, observed, &rendered.set, &records, drifted).await;
    let outcome = match &applied.interrupted {
        Some(error) => interrupted(context, connection, observed, wanted, error).await,
        None => judge(context, observed, wanted, &applied, rendered.plain),
    };
    let end = end(&outcome, &applied);
    let (upserts, deletes) = remembered(&applied);
    // One commit: the writer takes all that is queued. Losing this record costs requests, not correctness, so the
    // status is written all the same.
    let (finished, saved, ()) = tokio::join!(
        context.ledger.finish_attempt(id, &end),
        context
            .ledger
            .save_records(observed.cluster_id(), &observed.owner, &upserts, &deletes),
        report::settle(context, observed, wanted, &outcome),
    );
    for error in [finished.map(|_| ()), saved].into_iter().filter_map(Result::err) {
        tracing::error!(sync = %observed.key, error = %crate::chain(&error), "outcome of an attempt not recorded");
    }
    Ok(outcome)
}

async fn send(
    connection: &Arc<Connection>,
    observed: &Observed,
    desired: &RenderedSet,
    records: &BTreeMap<ObjectKey, Record>,
    drifted: &BTreeSet<ObjectKey>,
) -> ApplyOutcome {
    let template = &observed.spec.template;
    let job = ApplyJob {
        owner: &observed.owner,
        desired,
        records,
        drifted,
        prune: template.prune,
        allow_empty: template.allow_empty,
        conflicts_override: template.conflicts == ConflictPolicy::Override,
        deadline: deadline(observed),
    };
    connection.member.apply(job).await
}

async fn render(
    context: &Context,
    observed: &Observed,
    wanted: &Wanted,
) -> Result<Arc<Rendered>, (&'static str, String)> {
    let source = observed.source.as_ref().ok_or_else(|| {
        let message = format!("there is no Source {:?}", observed.spec.template.source_ref.name);
        ("SourceNotFound", message)
    })?;
    let access = context
        .repositories
        .get(&context.hub, source, context.allow_insecure_sources)
        .await
        .map_err(|error| ("SourceNotReady", crate::chain(&error)))?;
    let revision: Revision = wanted.revision.parse().map_err(|error| {
        (
            "InvalidRevision",
            format!("spec.revision: {}", crate::chain(&error)),
        )
    })?;
    let refname = (!revision.name().is_empty()).then(|| refname(source, &revision));
    let job = RenderJob {
        access: &access,
        ignore: &source.spec.ignore,
        commit: revision.commit().as_str(),
        refname: refname.as_deref(),
        timeout: source.spec.timeout.as_std(),
        path: &observed.spec.template.path,
        target_namespace: &observed.spec.template.target_namespace,
        values: &observed.spec.template.substitute,
        owner: &observed.owner,
    };
    context.renders.get(job).await.map_err(|error| {
        let reason = match &error {
            RenderFailure::Tree(_) => "SourceNotReady",
            RenderFailure::Copy(_) => "StorageFailed",
            RenderFailure::Render(_) => "BuildFailed",
        };
        (reason, crate::chain(&error))
    })
}

fn refname(source: &starling_api::Source, revision: &Revision) -> String {
    let folder = if source.spec.reference.branch.is_some() {
        "heads"
    } else {
        "tags"
    };
    format!("refs/{folder}/{}", revision.name())
}

/// What the member's answers amount to.
fn judge(
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
    schedule_check(context, observed);
    Outcome::Holds(Held {
        changes: changes(applied),
        inventory: inventory(applied),
        plain,
    })
}

/// What an attempt that ended early amounts to. One that ran into its `timeout` may have met a slow cluster, which is
/// a failure, or one that went away without a word, which is none of the revision's until `progressDeadline`: a
/// question tells.
async fn interrupted(
    context: &Context,
    connection: &Connection,
    observed: &Observed,
    wanted: &Wanted,
    error: &MemberError,
) -> Outcome {
    match error {
        MemberError::Unreachable { .. }
        | MemberError::Unauthorized { .. }
        | MemberError::Throttled { .. } => {
            // The Cluster loop finds out what is the matter, and wakes its Syncs when that changes.
            context.queues.clusters.add(cluster_key(observed));
            Outcome::Lost {
                message: crate::chain(error),
            }
        }
        MemberError::Deadline { .. } => {
            if connection
                .member
                .probe(Instant::now() + STILL_THERE)
                .await
                .is_err()
            {
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

fn failed(
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
    let retry_at = after(wait);
    context.checks.set(&observed.key, retry_at);
    Outcome::Failed(Failure {
        reason,
        message,
        problems,
        attempts,
        retry_at,
    })
}

fn no_connection() -> Outcome {
    Outcome::Lost {
        message: "there is no connection to the cluster".into(),
    }
}

/// The next look for drift: after `interval`, give or take a tenth, so that what was applied together is not
/// looked at together for ever.
fn schedule_check(context: &Context, observed: &Observed) {
    let interval = observed
        .spec
        .template
        .interval
        .as_std()
        .max(Duration::from_secs(1));
    let seed = [
        observed.sync.metadata.uid.as_deref().unwrap_or_default(),
        &now().to_string(),
    ]
    .concat();
    let wait = interval - interval / 10 + spread(interval / 5, hash64(&[&seed]));
    context.checks.set(&observed.key, after(wait));
}

fn after(wait: Duration) -> Timestamp {
    let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::from_hours(24));
    now().checked_add(wait).unwrap_or(Timestamp::MAX)
}

fn failures_before(observed: &Observed, wanted: &Wanted) -> u32 {
    if observed.status.last_attempted_target == wanted.target {
        observed.status.attempts
    } else {
        0
    }
}

fn cluster_key(observed: &Observed) -> cache::ObjectKey {
    cache::ObjectKey::new(&observed.key.namespace, &observed.spec.cluster_ref.name)
}

fn deadline(observed: &Observed) -> Instant {
    Instant::now()
        + observed
            .spec
            .template
            .timeout
            .as_std()
            .max(Duration::from_secs(1))
}

/// What is known of the objects on the member. A ledger that cannot be read is as good as a lost one: everything is
/// looked at, nothing in step is written. The same where this Sync is new: records of an earlier one (the cluster left
/// the group and came back) say nothing about what happened meanwhile.
async fn load(context: &Context, observed: &Observed) -> BTreeMap<ObjectKey, Record> {
    if observed.status.last_attempted_target.is_empty() {
        return BTreeMap::new();
    }
    context
        .ledger
        .load_records(observed.cluster_id(), &observed.owner)
        .await
        .unwrap_or_else(|error| {
            tracing::error!(sync = %observed.key, error = %crate::chain(&error), "records not read");
            BTreeMap::new()
        })
}

fn remembered(applied: &ApplyOutcome) -> (BTreeMap<ObjectKey, Record>, BTreeSet<ObjectKey>) {
    let upserts = applied
        .applied
        .iter()
        .map(|object| (object.key.clone(), object.record.clone()))
        .collect();
    let deletes = applied.deleted.iter().chain(&applied.released).cloned().collect();
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
        unchanged: count(Change::Unchanged) + narrow(applied.skipped),
        deleted: narrow(applied.deleted.len()),
    }
}

fn inventory(applied: &ApplyOutcome) -> InventorySummary {
    InventorySummary {
        objects: narrow(applied.inventory.len()),
        digest: applied.inventory.digest(),
    }
}

fn problems(failures: &[(ObjectKey, MemberError)]) -> Vec<ObjectProblem> {
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

fn end(outcome: &Outcome, applied: &ApplyOutcome) -> AttemptEnd {
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
    };
    AttemptEnd {
        outcome,
        reason: reason.to_owned(),
        message,
        counts,
        ended_at: now(),
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
        MemberError::UnknownKind { .. } | MemberError::NotServed { .. } => "UnknownKind",
        MemberError::Address { .. } => "InvalidObject",
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
