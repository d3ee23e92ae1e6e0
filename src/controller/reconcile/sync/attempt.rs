//! The effects: one attempt at a target, one drift check.
//!
//! The intent, and which records are unconfirmed from then on, are in the ledger before the first request that writes
//! to the member, the outcome after the last one. Whatever happens in between, the next attempt finds the inventory
//! claimed on the member and sends again what it has no record of, which is a no-op there.

use std::collections::{BTreeMap, BTreeSet};

use starling_api::ConflictPolicy;
use starling_core::apply::{Record, unconfirmed_records};
use starling_core::object::ObjectId;
use starling_core::step::Wanted;

use super::super::ReconcileError;
use super::access::ResponseRecorder;
use super::evaluate::{
    RecordChanges, end, enter, evaluate, failed, failures_before, interrupted, record_changes, schedule_check,
};
use super::outcome::{Cause, Outcome};
use super::ownership::ownership;
use super::render::{Render, render};
use super::siblings::SiblingsOf;
use super::validate::ValidSync;
use super::{admission, deletion_hold, drift, health, report};
use crate::controller::context::SyncContext;
use starling_ledger::{Attempt, AttemptId};
use starling_member::{ApplyJob, ApplyOutcome, DriftReport, Member};

/// Makes the member hold `wanted`.
///
/// # Errors
/// [`ReconcileError`] where the intent could not be recorded: then nothing was begun.
pub(super) async fn apply(
    context: SyncContext<'_>,
    sync: &ValidSync<'_>,
    wanted: &Wanted,
) -> Result<Outcome, ReconcileError> {
    if !deletion_hold::waits(sync.observed, wanted) {
        return attempt(context, sync, wanted, None).await;
    }
    // Deletions may wait for days. What is rendered is kept in step meanwhile.
    let member = match enter(context, sync, wanted) {
        Ok(member) => member,
        Err(outcome) => return Ok(outcome),
    };
    let records = load(context, sync).await;
    match find_drift(context, &member, sync, wanted, &records).await {
        Ok(drift) => attempt(context, sync, wanted, Some(drift.repair)).await,
        Err(outcome) => Ok(outcome),
    }
}

/// Checks whether somebody changed what the member holds, and repairs it.
///
/// # Errors
/// As [`apply`].
pub(super) async fn check(
    context: SyncContext<'_>,
    sync: &ValidSync<'_>,
    wanted: &Wanted,
) -> Result<Outcome, ReconcileError> {
    let observed = sync.observed;
    let member = match enter(context, sync, wanted) {
        Ok(member) => member,
        Err(outcome) => return Ok(outcome),
    };
    context
        .start_rates
        .wait_for_attempt(&observed.cluster_key())
        .await;
    schedule_check(context, sync);
    let records = load(context, sync).await;
    // Fewer records than objects: the ledger was lost. An attempt takes them anew, without a write to what is in step.
    let expected = usize::try_from(observed.status.inventory.objects).unwrap_or(usize::MAX);
    if records.len() < expected {
        return attempt(context, sync, wanted, None).await;
    }
    let Drift { report, repair } = match find_drift(context, &member, sync, wanted, &records).await {
        Ok(drift) => drift,
        Err(outcome) => return Ok(outcome),
    };
    if !repair.is_empty() || !report.foreign.is_empty() {
        return attempt(context, sync, wanted, Some(repair)).await;
    }
    if let Some((kind, error)) = report.failures.first() {
        let message = format!("cannot check {} for drift: {}", kind.kind, crate::chain(error));
        return Ok(failed(
            context,
            sync,
            wanted,
            Cause::new("DriftCheckFailed", message),
        ));
    }
    health::checked(context, sync, wanted, &records, &report.versions);
    Ok(Outcome::Unchanged)
}

/// What a check for drift found.
struct Drift {
    report: DriftReport,
    /// Objects that are to be repaired now.
    repair: BTreeSet<ObjectId>,
}

/// Finds drift, and records what was found.
async fn find_drift(
    context: SyncContext<'_>,
    member: &Member,
    sync: &ValidSync<'_>,
    wanted: &Wanted,
    records: &BTreeMap<ObjectId, Record>,
) -> Result<Drift, Outcome> {
    let observed = sync.observed;
    let recorder = ResponseRecorder::begin(member);
    let report = member
        .find_drift(observed.owner.as_str(), records, observed.deadline())
        .await;
    recorder.end(context, &observed.cluster_key(), report.interrupted.as_ref());
    if let Some(error) = &report.interrupted {
        return Err(interrupted(context, member, sync, wanted, error).await);
    }
    let repair = drift::checked(context, sync, &report, records).await;
    if !report.drifted.is_empty() {
        tracing::info!(sync = %observed.key, objects = report.drifted.len(), repaired = repair.len(), "drift found");
    }
    Ok(Drift { report, repair })
}

/// `drifted` is what a check for drift has just found to be repaired; `None` if there was no check.
async fn attempt(
    context: SyncContext<'_>,
    sync: &ValidSync<'_>,
    wanted: &Wanted,
    drifted: Option<BTreeSet<ObjectId>>,
) -> Result<Outcome, ReconcileError> {
    let observed = sync.observed;
    let template = &sync.spec.template;
    let member = match enter(context, sync, wanted) {
        Ok(member) => member,
        Err(outcome) => return Ok(outcome),
    };
    context
        .start_rates
        .wait_for_attempt(&observed.cluster_key())
        .await;
    let job = Render {
        namespace: &observed.key.namespace,
        template,
        source: observed.source.as_deref(),
        revision: &wanted.revision,
        owner: &observed.owner,
        ignore: &sync.ignore,
    };
    let rendered = match render(context, &job).await {
        Ok(rendered) => rendered,
        Err(error) => {
            let cause = Cause::new(error.reason(), crate::chain(&error));
            return Ok(failed(context, sync, wanted, cause));
        }
    };
    let records = load(context, sync).await;
    let drifted = match drifted {
        Some(drifted) => drifted,
        None => drift::returned(&member, observed, &records).await,
    };
    let ownership = ownership(context, observed, &rendered.set, &records, &drifted).await;
    let drifted = &drifted | &ownership.handed_over;
    let unconfirmed = unconfirmed_records(&rendered.set, &records, &drifted);
    let id = begin(context, sync, wanted, &unconfirmed).await?;
    let recorder = ResponseRecorder::begin(&member);
    let job = ApplyJob {
        owner: observed.owner.as_str(),
        desired: &rendered.set,
        records: &records,
        drifted: &drifted,
        kept: &ownership.kept,
        prune: template.prune,
        allow_empty: template.allow_empty,
        conflicts_override: template.conflicts == ConflictPolicy::Override,
        recreate: template.force,
        siblings: &SiblingsOf { context, observed },
        approved: &deletion_hold::approved(context, observed),
        deadline: observed.deadline(),
    };
    let responses = member.apply(job).await;
    recorder.end(context, &observed.cluster_key(), responses.interrupted.as_ref());
    drift::attempted(context, observed, &responses);
    report::let_go(context, observed, &responses.let_go).await;
    let outcome = match &responses.interrupted {
        Some(error) => interrupted(context, &member, sync, wanted, error).await,
        None => evaluate(context, sync, wanted, &responses, rendered.plain),
    };
    if matches!(outcome, Outcome::Applied(_)) {
        health::applied(context, sync, wanted, &rendered.set, &records, &responses);
    }
    finish(context, sync, wanted, id, &outcome, &responses).await;
    Ok(outcome)
}

/// Records that an attempt begins, and what is not known of the member from then on: one commit, as the writer takes
/// all that is queued.
async fn begin(
    context: SyncContext<'_>,
    sync: &ValidSync<'_>,
    wanted: &Wanted,
    unconfirmed: &BTreeMap<ObjectId, Record>,
) -> Result<AttemptId, ReconcileError> {
    let observed = sync.observed;
    let (cluster_id, owner) = (observed.cluster_id.as_str(), observed.owner.as_str());
    let intent = Attempt {
        sync_uid: observed.uid().as_str().to_owned(),
        namespace: observed.key.namespace.clone(),
        name: observed.key.name.clone(),
        cluster: observed.cluster_name().to_owned(),
        target: wanted.target.clone(),
        revision: wanted.revision.clone(),
        number: failures_before(sync, wanted) + 1,
        started_at: context.clock.now(),
    };
    let none = BTreeSet::new();
    let (id, ()) = tokio::try_join!(
        context.ledger.begin_attempt(&intent),
        context.ledger.save_records(cluster_id, owner, unconfirmed, &none),
    )?;
    Ok(id)
}

/// Records how an attempt ended and what is known of the member again.
async fn finish(
    context: SyncContext<'_>,
    sync: &ValidSync<'_>,
    wanted: &Wanted,
    id: AttemptId,
    outcome: &Outcome,
    responses: &ApplyOutcome,
) {
    let observed = sync.observed;
    let (cluster_id, owner) = (observed.cluster_id.as_str(), observed.owner.as_str());
    let end = end(outcome, responses, context.clock.now());
    let RecordChanges { upserts, deletes } = record_changes(responses);
    // One commit: the writer takes all that is queued. Losing this record costs requests, not correctness, so the
    // status is written all the same.
    let (finished, saved, ()) = tokio::join!(
        context.ledger.finish_attempt(id, &end),
        context.ledger.save_records(cluster_id, owner, &upserts, &deletes),
        settle_at_once(context, sync, wanted, outcome),
    );
    for error in [finished.map(|_| ()), saved].into_iter().filter_map(Result::err) {
        tracing::error!(sync = %observed.key, error = %crate::chain(&error), "outcome of an attempt not recorded");
    }
}

/// Ends the admission in the ledger with the attempt, where nothing has to be waited for: without `wait`, and with
/// objects that are healthy by being there. A failed attempt does not end it: it is tried again; the group ends it at
/// `progressDeadline`.
async fn settle_at_once(context: SyncContext<'_>, sync: &ValidSync<'_>, wanted: &Wanted, outcome: &Outcome) {
    if matches!(outcome, Outcome::Applied(_)) && !health::is_awaited(context, sync, wanted) {
        admission::settle(context, sync, wanted).await;
    }
}

/// Reads what is known of the objects on the member. A ledger that cannot be read is as good as a lost one: everything
/// is checked, nothing in step is written. The same where this Sync is new: records of an earlier one (the cluster left
/// the group and came back) say nothing about what happened meanwhile.
async fn load(context: SyncContext<'_>, sync: &ValidSync<'_>) -> BTreeMap<ObjectId, Record> {
    let observed = sync.observed;
    if observed.status.last_attempted_target.is_empty() {
        return BTreeMap::new();
    }
    context
        .ledger
        .load_records(observed.cluster_id.as_str(), observed.owner.as_str())
        .await
        .unwrap_or_else(|error| {
            tracing::error!(sync = %observed.key, error = %crate::chain(&error), "records not read");
            BTreeMap::new()
        })
}
