//! Effects on a member: one attempt to apply a target, or one drift check.
//!
//! The ledger contains the intent, and the records that are unconfirmed from then on, before the first request that
//! writes to the member; it contains the outcome after the last request. If the attempt is interrupted, the next one
//! finds the inventory on the member with all claimed objects, and sends again every object without a record, which
//! does not change an applied object.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use starling_api::{ConflictPolicy, ObjectProblem, PendingDeletions, SyncStatus};
use starling_core::apply::ApprovedDeletions;
use starling_core::apply::{
    OwnAttempt, PendingObjects, PruneBlocker, Record, Recorded, all_unconfirmed, unconfirmed_records,
};
use starling_core::deletion_subject::DeletionCause;
use starling_core::object::{ObjectId, RenderedSet};
use starling_core::progress::has_applied;
use starling_core::step::Wanted;

use super::super::ReconcileError;
use super::access::ResponseRecorder;
use super::budgets::{BudgetsOf, DeletionTurn};
use super::evaluate::{
    RecordChanges, end, enter, evaluate, failed, failures_before, interrupted, record_changes, schedule_check,
};
use super::observe::SyncSnapshot;
use super::outcome::{Cause, Done, Outcome};
use super::ownership::ownership;
use super::render::{Render, render};
use super::siblings::SiblingsOf;
use super::validate::ValidSync;
use super::{admission, budgets, deletion_hold, drift, health, prune_grace, report, used_approvals};
use crate::controller::context::SyncContext;
use starling_ledger::{Attempt, AttemptId};
use starling_member::{ApplyJob, ApplyOutcome, DriftReport, Member};

/// Applies `wanted` to the member.
///
/// # Errors
/// [`ReconcileError`] if the intent cannot be recorded; then no request was sent.
pub(super) async fn apply(
    context: SyncContext<'_>,
    sync: &ValidSync<'_>,
    wanted: &Wanted,
) -> Result<Done, ReconcileError> {
    let checks = deletion_hold::waits(sync.observed, wanted)
        || sync.observed.requested()
        || lacks_others(&sync.observed.status, wanted);
    if !checks {
        return attempt(context, sync, wanted, None).await;
    }
    // Deletions may wait for days. The rendered objects are kept in sync in the meantime. A requested reconcile first
    // finds the objects that others hold.
    let member = match enter(context, sync, wanted) {
        Ok(member) => member,
        Err(outcome) => return Ok(outcome.into()),
    };
    let Known { records, .. } = load(context, sync).await;
    answer_request(context, sync.observed, &records).await?;
    match find_drift(context, &member, sync, wanted, &records).await {
        Ok(drift) => attempt(context, sync, wanted, Some(drift.repair)).await,
        Err(outcome) => Ok(outcome.into()),
    }
}

/// The reasons of objects that need another one: its namespace, or the definition of its kind. A definition that is
/// gone is never established.
const MISSING: [&str; 3] = ["NotFound", "UnknownKind", "DefinitionNotEstablished"];

/// Returns whether the last attempt with the target failed because an object needs another one that the member does not
/// have, such as its namespace. The record of that one may say that it is in sync: it was deleted since, or the member
/// was set back. While the attempts fail, no drift check would find that.
fn lacks_others(status: &SyncStatus, wanted: &Wanted) -> bool {
    let is_missing = |problem: &ObjectProblem| MISSING.contains(&problem.reason.as_str());
    status.attempts > 0
        && status.last_attempted_target == wanted.target
        && status.problems.iter().any(is_missing)
}

/// Checks for drift and repairs it.
///
/// # Errors
/// As [`apply`].
pub(super) async fn check(
    context: SyncContext<'_>,
    sync: &ValidSync<'_>,
    wanted: &Wanted,
) -> Result<Done, ReconcileError> {
    let observed = sync.observed;
    let member = match enter(context, sync, wanted) {
        Ok(member) => member,
        Err(outcome) => return Ok(outcome.into()),
    };
    context
        .start_rates
        .wait_for_attempt(&observed.cluster_key())
        .await;
    schedule_check(context, sync);
    let Known { records, .. } = load(context, sync).await;
    answer_request(context, observed, &records).await?;
    // Fewer records than objects mean that the ledger was lost, or is not current. An attempt reads the objects without
    // a record again and writes only those that are not in sync. An object that waits to be pruned is not read, and
    // gets no record, so the others are checked nevertheless.
    let expected = usize::try_from(observed.status.inventory.objects).unwrap_or(usize::MAX);
    let is_incomplete = records.len() < expected;
    if is_incomplete && records.is_empty() {
        return attempt(context, sync, wanted, None).await;
    }
    let Drift { report, repair } = match find_drift(context, &member, sync, wanted, &records).await {
        Ok(drift) => drift,
        Err(outcome) => return Ok(outcome.into()),
    };
    let unread = report.failures.first().map(|(kind, error)| {
        let message = format!("cannot check {} for drift: {}", kind.kind, crate::chain(error));
        Cause::new("DriftCheckFailed", message)
    });
    let is_changed = inventory_has_changed(context, &member, observed, &report).await;
    let is_due = prune_grace::is_due(context, observed) || is_changed;
    if !repair.is_empty() || !report.foreign.is_empty() || observed.requested() || is_due || is_incomplete {
        let mut done = attempt(context, sync, wanted, Some(repair)).await?;
        // A comparison reads each object, and does not show that later checks cannot.
        if let (true, Outcome::Applied(_), Some(cause)) = (observed.requested(), &done.outcome, unread) {
            done.outcome = failed(context, sync, wanted, cause);
        }
        return Ok(done);
    }
    if let Some(cause) = unread {
        return Ok(failed(context, sync, wanted, cause).into());
    }
    health::checked(context, sync, wanted, &records, &report.versions);
    Ok(Outcome::Unchanged.into())
}

/// Returns whether the inventory lists other objects than status: another writer changed it, it was deleted, or the
/// member was set back to a state from before a prune. An attempt reads it, takes back what git has, and decides about
/// the rest. After a failure, status has the inventory of an earlier attempt.
async fn inventory_has_changed(
    context: SyncContext<'_>,
    member: &Member,
    observed: &SyncSnapshot,
    drift: &DriftReport,
) -> bool {
    let status = &observed.status;
    if status.inventory.digest.is_empty() || status.attempts > 0 {
        return false;
    }
    let inventory = member.read_inventory(&observed.owner, observed.deadline()).await;
    // One that cannot be read is reported by the next attempt.
    let Some(now) = inventory
        .ok()
        .filter(|now| now.digest() != status.inventory.digest)
    else {
        return false;
    };
    // The attempt that follows reports one that is missing, as any other attempt does.
    if !now.is_empty() {
        report::inventory_changed(context, observed, now.len(), drift.unrecorded.len()).await;
    }
    true
}

/// The results of a drift check.
struct Drift {
    report: DriftReport,
    /// Objects to repair now.
    repair: BTreeSet<ObjectId>,
}

/// Runs a drift check and records the results.
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
        .find_drift(&observed.owner, records, observed.deadline())
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

/// Runs one attempt. `drifted` contains the objects to repair from a drift check just before; `None` if there was none.
async fn attempt(
    context: SyncContext<'_>,
    sync: &ValidSync<'_>,
    wanted: &Wanted,
    drifted: Option<BTreeSet<ObjectId>>,
) -> Result<Done, ReconcileError> {
    let observed = sync.observed;
    let template = &sync.spec.template;
    let turn = DeletionTurn::begin(context, observed, is_later(sync, wanted));
    let member = match enter(context, sync, wanted) {
        Ok(member) => member,
        Err(outcome) => return Ok(outcome.into()),
    };
    context
        .start_rates
        .wait_for_attempt(&observed.cluster_key())
        .await;
    let Known { records, has_stale } = load(context, sync).await;
    let compare = observed.requested();
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
            return Ok(failed(context, sync, wanted, cause).into());
        }
    };
    let scoped = match scoped(context, &member, sync, wanted, &rendered.set).await {
        Ok(scoped) => scoped,
        Err(outcome) => return Ok(outcome.into()),
    };
    let desired = scoped.as_ref().unwrap_or(&rendered.set);
    let drifted = match drifted {
        Some(drifted) => drifted,
        None => drift::returned(&member, observed, &records).await,
    };
    let ownership = ownership(context, observed, &wanted.revision, desired, &records, &drifted).await;
    let drifted = &drifted | &ownership.handed_over;
    let unconfirmed = unconfirmed_records(desired, &records, &drifted);
    // A grant is of one target. It would allow the same deletions after another target brought the objects back.
    budgets::end_grant(context, observed, |grant| grant.target != wanted.target).await?;
    let begun = begin(context, sync, wanted, &unconfirmed, has_stale).await?;
    let recorder = ResponseRecorder::begin(&member);
    let clock_jumps = context.clock.jumps();
    let granted = budgets::granted(observed, &wanted.target);
    let job = ApplyJob {
        owner: &observed.owner,
        desired,
        records: &records,
        drifted: &drifted,
        kept: &ownership.kept,
        former: &ownership.former,
        compare,
        prune: template.prune,
        allow_empty: template.allow_empty,
        conflicts_override: template.conflicts == ConflictPolicy::Override,
        recreate: template.force,
        siblings: &SiblingsOf { context, observed },
        earlier: budgets::earlier(context, observed, &granted),
        confirm: context.budgets.confirmed_kinds(),
        budgets: &BudgetsOf {
            context,
            observed,
            target: &wanted.target,
            turn: &turn,
        },
        grace: prune_grace::of(context, observed, &clock_jumps),
        approval: ApprovedDeletions {
            subject: used_approvals::subject(
                observed,
                DeletionCause::Prune,
                used_approvals::target(observed, wanted),
            ),
            digests: &observed.approvals.digests(),
        },
        deadline: observed.deadline(),
    };
    let responses = member.apply(job).await;
    recorder.end(context, &observed.cluster_key(), responses.interrupted.as_ref());
    drift::attempted(context, observed, &responses);
    let status = &observed.status;
    let is_same_cluster = status.last_applied_cluster_id == observed.cluster_id.as_str();
    if responses.inventory_was_empty && status.inventory.objects > 0 && is_same_cluster {
        report::inventory_changed(context, observed, 0, 0).await;
    }
    report::relinquished(context, observed, &responses.relinquished).await;
    report::undeleted(context, observed, &responses.undeleted).await;
    let outcome = match &responses.interrupted {
        Some(error) => interrupted(context, &member, sync, wanted, error).await,
        None => evaluate(context, sync, wanted, &responses, &rendered.notes),
    };
    if matches!(outcome, Outcome::Applied(_)) {
        health::applied(context, sync, wanted, desired, &records, &responses);
    }
    finish(context, sync, wanted, begun, &outcome, &responses).await;
    Ok(Done {
        is_stopped: matches!(
            responses.prune_blocker,
            Some(PruneBlocker::Stopped(_) | PruneBlocker::NotGone(_))
        ),
        outcome,
        attempted_at: Some(begun.at),
        pending: responses.interrupted.is_none().then(|| pending(&responses)),
    })
}

/// Returns the render with the IDs that its objects have on the member; `None` if it has them already.
async fn scoped(
    context: SyncContext<'_>,
    member: &Member,
    sync: &ValidSync<'_>,
    wanted: &Wanted,
    rendered: &RenderedSet,
) -> Result<Option<RenderedSet>, Outcome> {
    let observed = sync.observed;
    let recorder = ResponseRecorder::begin(member);
    let scoped = member.scoped(rendered, observed.deadline()).await;
    recorder.end(context, &observed.cluster_key(), scoped.as_ref().err());
    match scoped {
        Ok(scoped) => Ok(scoped),
        Err(error) => Err(interrupted(context, member, sync, wanted, &error).await),
    }
}

/// Returns the objects that an attempt left to delete, for status.
fn pending(responses: &ApplyOutcome) -> Option<PendingDeletions> {
    let mut pending = PendingObjects::of(&responses.inventory).status(&responses.terminating)?;
    match &responses.prune_blocker {
        Some(PruneBlocker::NotGone(objects)) => {
            pending.waiting_for = format!("finalizers of objects that are being deleted: {objects}");
        }
        Some(PruneBlocker::Stopped(why)) => pending.waiting_for.clone_from(why),
        _ => {}
    }
    Some(pending)
}

/// Returns whether an earlier attempt ended with the target, or applied it: what an attempt deletes now was pending or
/// held before, or a person may have stopped the group since, and is no part of the attempt that the group admitted.
fn is_later(sync: &ValidSync<'_>, wanted: &Wanted) -> bool {
    let observed = sync.observed;
    deletion_hold::waits(observed, wanted)
        || failures_before(sync, wanted) > 0
        || has_applied(&observed.status, &wanted.target, &observed.cluster_id)
}

/// A requested reconcile believes no record. Its pass may end without a comparison, and the request is handled then: so
/// the next attempt compares.
///
/// # Errors
/// [`ReconcileError`] if the ledger cannot be written.
async fn answer_request(
    context: SyncContext<'_>,
    observed: &SyncSnapshot,
    records: &BTreeMap<ObjectId, Record>,
) -> Result<(), ReconcileError> {
    if observed.requested() {
        forget_digests(context, observed, records).await?;
    }
    Ok(())
}

/// The same for a pass without an attempt: the Sync waits for something.
///
/// # Errors
/// [`ReconcileError`] if the ledger cannot be read or written.
pub(super) async fn answer_waiting(
    context: SyncContext<'_>,
    observed: &SyncSnapshot,
) -> Result<(), ReconcileError> {
    if !observed.requested() {
        return Ok(());
    }
    let (cluster_id, owner) = (&observed.cluster_id, &observed.owner);
    let recorded = context.ledger.load_records(cluster_id, owner).await?;
    forget_digests(context, observed, &recorded.objects).await
}

/// Makes all records unconfirmed, so that no later attempt believes them.
///
/// # Errors
/// [`ReconcileError`] if the ledger cannot be written.
pub(super) async fn forget_digests(
    context: SyncContext<'_>,
    observed: &SyncSnapshot,
    records: &BTreeMap<ObjectId, Record>,
) -> Result<(), ReconcileError> {
    let (cluster_id, owner) = (&observed.cluster_id, &observed.owner);
    let (unconfirmed, none) = (all_unconfirmed(records), BTreeSet::new());
    if unconfirmed.is_empty() {
        return Ok(());
    }
    let saved = context
        .ledger
        .save_records(cluster_id, owner, &unconfirmed, &none);
    Ok(saved.await?)
}

/// An attempt in the ledger.
#[derive(Clone, Copy)]
struct Begun {
    id: AttemptId,
    at: Timestamp,
}

/// Records the intent of an attempt, and the records that are unconfirmed from then on, in one commit: the writer of
/// the ledger takes all queued writes. Stale records are deleted: those that the attempt does not replace would count
/// as current with it.
async fn begin(
    context: SyncContext<'_>,
    sync: &ValidSync<'_>,
    wanted: &Wanted,
    unconfirmed: &BTreeMap<ObjectId, Record>,
    has_stale: bool,
) -> Result<Begun, ReconcileError> {
    let observed = sync.observed;
    let at = context.clock.now();
    let (cluster_id, owner) = (&observed.cluster_id, &observed.owner);
    let intent = Attempt {
        sync_id: observed.key.to_string(),
        namespace: observed.key.namespace.clone(),
        name: observed.key.name.clone(),
        cluster: observed.cluster_name().into(),
        target: wanted.target.clone(),
        revision: wanted.revision.clone(),
        number: failures_before(sync, wanted) + 1,
        started_at: at,
    };
    let none = BTreeSet::new();
    let drop_stale = async {
        if has_stale {
            context.ledger.drop_owner_records(cluster_id, owner).await
        } else {
            Ok(())
        }
    };
    let (id, (), ()) = tokio::try_join!(
        context.ledger.begin_attempt(&intent),
        drop_stale,
        context.ledger.save_records(cluster_id, owner, unconfirmed, &none),
    )?;
    let previous = observed.last_attempt();
    context
        .caches
        .attempts
        .set(&observed.key, OwnAttempt { previous, at });
    Ok(Begun { id, at })
}

/// Records the outcome of an attempt, and the member records, which belong to it from now on.
async fn finish(
    context: SyncContext<'_>,
    sync: &ValidSync<'_>,
    wanted: &Wanted,
    begun: Begun,
    outcome: &Outcome,
    responses: &ApplyOutcome,
) {
    let observed = sync.observed;
    let (cluster_id, owner) = (&observed.cluster_id, &observed.owner);
    let end = end(outcome, responses, context.clock.now());
    let RecordChanges { upserts, deletes } = record_changes(responses);
    // These writes are one commit: the writer of the ledger takes all queued writes, in this order. The status is
    // written even if this fails, because lost records only cost requests.
    let (finished, saved, dated, ()) = tokio::join!(
        context.ledger.finish_attempt(begun.id, &end),
        context.ledger.save_records(cluster_id, owner, &upserts, &deletes),
        context.ledger.set_record_attempt(cluster_id, owner, begun.at),
        settle_at_once(context, sync, wanted, outcome),
    );
    let results = [finished.map(|_| ()), saved, dated];
    for error in results.into_iter().filter_map(Result::err) {
        tracing::error!(sync = %observed.key, error = %crate::chain(&error), "outcome of an attempt not recorded");
    }
}

/// Settles the admission in the ledger together with the attempt if nothing has to be awaited: without `wait`, or if
/// all objects are healthy once they exist. A failed attempt does not settle the admission, since it is retried; the
/// group settles it at `progressDeadline`.
async fn settle_at_once(context: SyncContext<'_>, sync: &ValidSync<'_>, wanted: &Wanted, outcome: &Outcome) {
    if matches!(outcome, Outcome::Applied(_)) && !health::is_awaited(context, sync, wanted) {
        admission::settle(context, sync, wanted).await;
    }
}

/// The records of the ledger about the objects of a Sync.
struct Known {
    /// The member records; empty if they are not current.
    records: BTreeMap<ObjectId, Record>,
    /// Whether the ledger has records that are not current.
    has_stale: bool,
}

/// Reads the member records of the Sync's objects. A ledger that cannot be read, or that belongs to another attempt
/// than status, counts as lost: every object is checked, and objects in sync are not written. A new Sync also starts
/// without records: those of an earlier Sync (the cluster left the group and came back) do not cover the time in
/// between.
async fn load(context: SyncContext<'_>, sync: &ValidSync<'_>) -> Known {
    let observed = sync.observed;
    let (cluster_id, owner) = (&observed.cluster_id, &observed.owner);
    let loaded = context.ledger.load_records(cluster_id, owner).await;
    let recorded = loaded.unwrap_or_else(|error| {
        tracing::error!(sync = %observed.key, error = %crate::chain(&error), "records of objects not read");
        Recorded::default()
    });
    let objects = recorded.objects.len();
    let own = context.caches.attempts.get(&observed.key);
    if let Some(records) = recorded.current(observed.last_attempt(), own) {
        return Known {
            records,
            has_stale: false,
        };
    }
    if objects > 0 {
        tracing::info!(sync = %observed.key, objects, "records belong to another attempt; reading the objects");
    }
    Known {
        records: BTreeMap::new(),
        has_stale: objects > 0,
    }
}
