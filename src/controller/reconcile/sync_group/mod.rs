//! The SyncGroup loop: one Sync for each entry and selected cluster, rolled out by the strategy of the group.
//!
//! *observe* (caches) → *validate* → the rollout machine (core) → the interpreter carries its effects out. The Syncs
//! and the status of the group *are* the state of the rollout: a key carries no data, and the first reconcile after a
//! crash continues from there.

mod api;
pub(in crate::controller) mod close_open;
mod digest;
mod finalize;
mod garbage;
mod gates;
mod group_removal;
mod held;
mod in_flight;
mod leave;
mod machine;
mod marks;
mod observe;
mod offer;
mod preview;
mod remove;
mod report;
mod sync;
mod unconfirmed;
mod validate;
mod view;

use std::time::Duration;

use jiff::Timestamp;
use kube::core::SelectorExt as _;
use starling_api::SyncGroup;
use starling_core::expand;
use starling_core::ids::GroupId;
use starling_core::journal::{Recorder, resume};
use starling_core::rollout::{self, Transition};
use starling_ledger::LedgerError;

use self::api::HubOf;
use self::machine::{GroupObservations, PassTimes, Store};
use self::observe::Group;
pub use self::preview::{PlanPreview, PlanPreviewError, PreviewObjects, preview_plan};
use super::ReconcileError;
use super::cluster::is_reachable;
use crate::controller::caches::metric_tests;
use crate::controller::caches::plan_memo::PlanMemo;
use crate::controller::context::{GroupContext, Next};
use crate::controller::interpreter::{CarriedOut, Interpreter, Interrupted, RecordedGroup};
use crate::controller::object_key::ObjectKey;
use crate::controller::waits;

/// Reconciles one SyncGroup.
///
/// # Errors
/// [`ReconcileError`] if an intent cannot be recorded or status cannot be written.
pub async fn reconcile(context: GroupContext<'_>, key: &ObjectKey) -> Result<Next, ReconcileError> {
    if context.writes.held().is_none() && !context.permit.is_valid() {
        return Ok(Next::After(waits::NUMBER_CHECK));
    }
    let passed = match unconfirmed::clear_up(context, key).await {
        Ok(()) => pass(context, key).await,
        Err(error) => Err(error),
    };
    // A pass that failed may have written status, but not the end of the rollout that status reports.
    if passed.is_err() {
        context.caches.unconfirmed_writes.add_group(key);
    }
    if let (Err(ReconcileError::Ledger(error)), Some(group)) = (&passed, context.objects.groups.get(key))
        && context.permit.is_valid()
    {
        report::not_recorded(context, &group, error).await?;
    }
    passed
}

async fn pass(context: GroupContext<'_>, key: &ObjectKey) -> Result<Next, ReconcileError> {
    // Absence is conclusive only in a complete list. No worker starts before the lists are complete.
    let Some(group) = context.objects.groups.get(key) else {
        in_flight::gone(context, key);
        close_open::of_deleted_groups(context).await?;
        return Ok(Next::OnEvent);
    };
    // A group asks gates and writes Syncs only after its members had the chance to tell that the management cluster was
    // set back (ADR 40).
    let is_awaited = awaits_check(context, &group);
    if let Some(finding) = context.writes.held() {
        context.caches.gate_tasks.forget(key);
        // The cache may have the lost past, which status must not carry into the restored group.
        if let Some(group) = context.hub.find::<SyncGroup>(key).await? {
            report::held(context, &group, &finding).await?;
        }
        return Ok(Next::OnEvent);
    }
    if is_awaited || !context.permit.is_valid() {
        return Ok(Next::After(waits::NUMBER_CHECK));
    }
    if group.metadata.deletion_timestamp.is_some() {
        context.caches.gate_tasks.forget(key);
        let _ = in_flight::not_planned(context, &group, context.clock.now());
        return finalize::finalize(context, group).await;
    }
    finalize::ensure(context, &group).await?;
    let tests = metric_tests::check(&context.caches.metric_tests, key, &group.spec.rollout_strategy).await;
    let observed = observe::observe_checked(context, &tests, group);
    match observed {
        Ok(group) => roll(context, &group).await,
        Err(blocked) => {
            report::blocked(context, &blocked).await?;
            Ok(in_flight::not_planned(
                context,
                &blocked.object,
                context.clock.now(),
            ))
        }
    }
}

/// Returns whether a reachable member of the group has not been checked since the start: one that it selects, or that
/// has a Sync of it.
fn awaits_check(context: GroupContext<'_>, group: &SyncGroup) -> bool {
    let mut pending = context
        .number_checks
        .pending(&context.objects.clusters, is_reachable);
    pending.retain(|key| Some(&key.namespace) == group.metadata.namespace.as_ref());
    if pending.is_empty() {
        return false;
    }
    let syncs = context.objects.syncs.of_group(&ObjectKey::of(group));
    let selector = expand::selector(&group.spec.cluster_selector);
    let is_of_group = |key: &ObjectKey| {
        let cluster = context.objects.clusters.get(key);
        let labels = cluster.and_then(|cluster| cluster.metadata.labels.clone());
        let is_selected = selector
            .as_ref()
            .is_ok_and(|selector| selector.matches(&labels.unwrap_or_default()));
        is_selected || syncs.on(&key.name).next().is_some()
    };
    pending.iter().any(is_of_group)
}

/// Runs one step of the machine and carries its effects out.
async fn roll(context: GroupContext<'_>, group: &Group) -> Result<Next, ReconcileError> {
    let identity = RecordedGroup {
        id: group.id.clone(),
        namespace: group.key.namespace.clone(),
        name: group.key.name.clone(),
    };
    leave::forget(context, group).await?;
    let mut recorder = recorder(context, &group.key, &group.object, &identity.id).await?;
    // The pass has one time, so that records carry the time of their decision.
    let now = context.clock.now();
    let transition = match step(context, group, &recorder, now).await {
        Ok(transition) => transition,
        Err(error) => {
            let _ = in_flight::not_planned(context, &group.object, now);
            context.caches.journal_heads.put(&group.key, recorder);
            return Err(error);
        }
    };
    recorder.forget_read();
    if !context.permit.is_valid() {
        // What was decided may be about a past that is lost.
        let _ = in_flight::not_planned(context, &group.object, now);
        context.caches.journal_heads.put(&group.key, recorder);
        return Ok(Next::After(waits::NUMBER_CHECK));
    }
    // Before the effects, which take a while: what the plan starts is in flight from now on.
    let counts_until = match &transition.decided {
        Some(decided) => {
            in_flight::planned(context, &group.key, decided.in_flight);
            Next::OnEvent
        }
        None => in_flight::not_planned(context, &group.object, now),
    };
    let Transition {
        effects,
        decided,
        again,
        recheck_at,
        blocked: _,
        status: _,
        left: _,
        began: _,
        queued: _,
        dropped,
        withdrawn,
        stuck: _,
    } = transition;
    let mut interpreter = Interpreter {
        group: &identity,
        now,
        ledger: context.ledger,
        api: HubOf {
            context,
            group,
            decided: decided.as_ref(),
            now,
        },
    };
    // If the pass fails, the head of the journal is dropped, and the next pass reads it from the ledger.
    let done = interpreter.carry_out(effects, &mut recorder).await?;
    context.caches.journal_heads.put(&group.key, recorder);
    if let Some(decided) = &decided {
        let prunes = &context.caches.prune_requests;
        prunes.decided(&group.key, &decided.plan.prunes);
    }
    report::left_queue(context, group, report::LeftQueue { dropped, withdrawn }).await;
    let rollout = decided.as_ref().map(|decided| &decided.rolling.rollout);
    held::tell_unmatched(context, group, rollout).await;
    let CarriedOut {
        all_admitted,
        all_removed,
        again: more,
    } = done;
    Ok(soonest([
        again.then_some(Next::After(Duration::ZERO)),
        recheck_at.map(|at| Next::at(at, context.clock.now())),
        (!all_admitted).then_some(Next::After(waits::ADMISSION_RETRY)),
        (!all_removed).then_some(Next::After(waits::REMOVAL_RETRY)),
        more.map(Next::After),
        Some(counts_until),
    ]))
}

async fn step(
    context: GroupContext<'_>,
    group: &Group,
    recorder: &Recorder,
    now: Timestamp,
) -> Result<Transition, ReconcileError> {
    let offer = offer::offer(now, group);
    let clock_jumps = context.clock.jumps();
    let leaving = leave::observe(context, group, now, &clock_jumps);
    let caches = context.caches;
    let times = PassTimes {
        now,
        clock_jumps: &clock_jumps,
        reported_at: caches.status_times.get(&group.key),
    };
    let unselected = leaving.status(group);
    let facts = machine::facts(
        group,
        &offer,
        leaving.held.is_some(),
        &unselected,
        &leaving.kept,
        times,
    );
    let mut memo = caches.plan_memos.take(&group.key);
    let store = Store {
        snapshots: &caches.release_snapshots,
        hub: context.hub,
    };
    let mut observed = GroupObservations {
        group,
        gates: &caches.gate_tasks,
        memo: &mut memo,
        leaving: &leaving,
        store,
        settled: &caches.settled_admissions,
        prunes: Some(&caches.prune_requests),
        awaits_marks: marks::are_missing(context, group),
        policies: Some(context.policies),
        installation_slots: in_flight::begin(context, &group.key, now),
        clock: Some(context.clock),
        now,
    };
    let stepped = machine::drive(rollout::step, &facts, Some(recorder), &mut observed).await;
    keep_memo(context, group, memo);
    let stepped = stepped?.map(|transition| {
        let held = leaving.held.as_ref().and_then(|held| held.until);
        let recheck_at = transition.recheck_at.into_iter().chain(held).min();
        Transition {
            recheck_at,
            ..transition
        }
    });
    stepped.map_err(|source| {
        let error = LedgerError::Encode {
            subject: "an entry of the journal",
            source,
        };
        error.into()
    })
}

/// Puts the memo of a group back, unless the management cluster was set back meanwhile: what was computed for a
/// generation may be of another edit.
fn keep_memo(context: GroupContext<'_>, group: &Group, memo: PlanMemo) {
    if context.permit.is_valid() {
        context.caches.plan_memos.put(&group.key, memo);
    }
}

/// Returns the recorder of a group, which continues its journal.
async fn recorder(
    context: GroupContext<'_>,
    key: &ObjectKey,
    group: &SyncGroup,
    id: &GroupId,
) -> Result<Recorder, LedgerError> {
    let heads = &context.caches.journal_heads;
    if let Some(recorder) = heads.take(key, id, group) {
        return Ok(recorder);
    }
    let entries = context.ledger.journal_tail(id).await?;
    // An entry that cannot be read is not continued: the next entry is whole.
    Ok(resume(&entries).unwrap_or_else(|error| {
        tracing::warn!(group = %key, %error, "journal not readable; the next entry is whole");
        Recorder::default()
    }))
}

impl From<Interrupted<crate::controller::hub::HubError>> for ReconcileError {
    fn from(interrupted: Interrupted<crate::controller::hub::HubError>) -> Self {
        match interrupted {
            Interrupted::Api(error) => Self::Hub(error),
            Interrupted::Ledger(error) => Self::Ledger(error),
        }
    }
}

fn soonest<const N: usize>(candidates: [Option<Next>; N]) -> Next {
    let waits = candidates.into_iter().flatten().filter_map(|next| match next {
        Next::After(wait) | Next::Retry(wait) => Some(wait),
        Next::OnEvent => None,
    });
    waits.min().map_or(Next::OnEvent, Next::After)
}
