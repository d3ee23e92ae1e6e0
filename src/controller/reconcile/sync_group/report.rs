//! Writes how far the group is into its status: at once when the phase changes, otherwise a few times a second.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use starling_api::conditions::{
    self, ConditionStatus, ConditionUpdate, IMPLICIT_STAGE, MESSAGE_LIMIT, PROGRESSING, STAGES_OVERLAP, cut,
};
use starling_api::{
    Blocker, ClusterCounts, ClusterProblem, REQUESTED_AT, ReleaseStatus, RolloutPhase, RolloutStatus,
    StageStatus, SyncGroupStatus,
};
use starling_core::membership::HeldDeparture;
use starling_core::plan::{Counts, Report, record};

use super::super::{ReconcileError, ready, stalled};
use super::observe::{Blocked, Group};
use super::{Decided, held, tidy};
use crate::controller::context::{Context, Next};
use crate::controller::wake::By;
use crate::ledger::RolloutOutcome;

/// Least time between two writes that say only that more clusters are done. A rollout over a thousand clusters
/// would otherwise write its status a thousand times.
const PAUSE: Duration = Duration::from_millis(250);
/// Clusters in trouble that are named; the rest is in the ledger.
const PROBLEMS: usize = 10;

/// Writes what is to be remembered of the stages, where that is new.
pub(super) async fn keep_stages(
    context: &Context,
    group: &Group,
    mut decided: Decided,
) -> Result<Decided, ReconcileError> {
    let mut stages = record::stage_statuses(&decided.plan, &decided.said.soaks);
    let rolling = &mut decided.rolling;
    tell_of_gates(context, group, rolling.rollout.id, &mut stages);
    let after = RolloutStatus {
        stages,
        ..rolling.rollout.clone()
    };
    if record::recorded(&after) == record::recorded(&rolling.rollout) {
        return Ok(decided);
    }
    rolling.rollout = after;
    rolling.status.rollout = Some(rolling.rollout.clone());
    let written = context.hub.write_status(&*group.object, &rolling.status).await?;
    if let Some(change) = context.groups.observe_write(written) {
        context.wake_for_group(&change, By::Us);
    }
    Ok(decided)
}

/// Writes what the plan says. `Some`: it was put off, and this is when to look again.
pub(super) async fn report(
    context: &Context,
    group: &Group,
    decided: &Decided,
    departure: Option<&HeldDeparture>,
) -> Result<Option<Next>, ReconcileError> {
    let now = context.now();
    let Decided {
        rolling,
        said: report,
        ..
    } = decided;
    let before = &rolling.status;
    let mut after = status(group, decided, departure, now);
    if let Some(rollout) = &mut after.rollout {
        tell_of_gates(context, group, rollout.id, &mut rollout.stages);
    }
    if after == *before {
        return Ok(None);
    }
    let phase_before = before.rollout.as_ref().map(|rollout| rollout.phase);
    let same_phase =
        phase_before == Some(report.phase) && before.observed_generation == after.observed_generation;
    if let (true, Some(wait)) = (same_phase, too_early(context, group, now)) {
        return Ok(Some(Next::After(wait)));
    }
    let written = context.hub.write_status(&*group.object, &after).await?;
    context.reports.set(&group.key, now);
    if let Some(change) = context.groups.observe_write(written) {
        context.wake_for_group(&change, By::Us);
    }
    held::tell(context, group, before, &after).await;
    if phase_before != Some(report.phase) {
        phase_changed(context, group, report, &after, now).await?;
    }
    Ok(None)
}

/// Says of the tasks that are open what their last try came to.
fn tell_of_gates(context: &Context, group: &Group, rollout: i64, stages: &mut [StageStatus]) {
    let uid = group.object.uid().unwrap_or_default();
    context.gates.tell(&group.key, &uid, rollout, stages);
}

/// Writes why the group cannot be rolled; what has rolled stays as it is.
pub(super) async fn blocked(context: &Context, blocked: &Blocked) -> Result<(), ReconcileError> {
    let Blocked {
        object,
        reason,
        message,
        stalled: is_stalled,
    } = blocked;
    let before = object.status.clone().unwrap_or_default();
    let updates = if *is_stalled {
        stalled(reason, message)
    } else {
        vec![ready(ConditionStatus::False, *reason, message.clone())]
    };
    let after = SyncGroupStatus {
        observed_generation: object.metadata.generation,
        last_handled_reconcile_at: handled(object.annotations().get(REQUESTED_AT), &before),
        conditions: conditions::merge(
            &before.conditions,
            updates,
            object.metadata.generation,
            context.now(),
        ),
        ..before.clone()
    };
    if after == before {
        return Ok(());
    }
    let written = context.hub.write_status(&**object, &after).await?;
    if let Some(change) = context.groups.observe_write(written) {
        context.wake_for_group(&change, By::Us);
    }
    Ok(())
}

fn too_early(context: &Context, group: &Group, now: Timestamp) -> Option<Duration> {
    let since = now.duration_since(context.reports.get(&group.key)?);
    // A clock that was set back would put every write off until it is where it was.
    if since.is_negative() {
        return None;
    }
    let pause = SignedDuration::try_from(PAUSE).ok()?;
    Duration::try_from(pause - since)
        .ok()
        .filter(|wait| !wait.is_zero())
}

async fn phase_changed(
    context: &Context,
    group: &Group,
    report: &Report,
    after: &SyncGroupStatus,
    now: Timestamp,
) -> Result<(), ReconcileError> {
    let id = after.rollout.as_ref().map_or(0, |rollout| rollout.id);
    tracing::info!(group = %group.key, rollout = id, phase = ?report.phase, updated = report.counts.updated, total = report.counts.total, failed = report.counts.failed, "rollout changed phase");
    // In a group without clusters there was nothing to do yet: it begins with the first of them.
    if report.phase == RolloutPhase::Succeeded && report.counts.total > 0 {
        let uid = group.object.uid().unwrap_or_default();
        context
            .ledger
            .end_rollout(&uid, &id.to_string(), RolloutOutcome::Succeeded, now)
            .await?;
        tidy::tidy(context, group, after).await;
    }
    Ok(())
}

fn status(
    group: &Group,
    decided: &Decided,
    departure: Option<&HeldDeparture>,
    now: Timestamp,
) -> SyncGroupStatus {
    let Decided {
        rolling,
        asked: _,
        plan,
        said: report,
        overlap,
        left_over,
        draft: _,
    } = decided;
    let before = &rolling.status;
    let mut rollout = rolling.rollout.clone();
    rollout.phase = report.phase;
    rollout.stage.clone_from(&report.stage);
    rollout.stages = record::stage_statuses(plan, &report.soaks);
    rollout.blocked_by = blockers(&rollout.blocked_by, report, now);
    let last_known_good = if report.is_known_good {
        Some(ReleaseStatus {
            release: rollout.release.clone(),
            revisions: rollout.revisions.clone(),
        })
    } else {
        before.last_known_good.clone()
    };
    let generation = group.object.metadata.generation;
    let mut updates = updates(report, &rollout.blocked_by);
    updates.extend(held::conditions(group, departure));
    let several = |message| told(STAGES_OVERLAP, "ClusterInSeveralStages", message);
    updates.extend(overlap.clone().map(several));
    let none = |message| told(IMPLICIT_STAGE, "ClustersInNoStage", message);
    updates.extend(left_over.clone().map(none));
    SyncGroupStatus {
        observed_generation: generation,
        last_handled_reconcile_at: handled(group.object.annotations().get(REQUESTED_AT), before),
        clusters: counts(report.counts),
        conditions: conditions::merge(&before.conditions, updates, generation, now),
        rollout: Some(rollout),
        last_known_good,
        held_release: before.held_release.clone(),
        queue: before.queue.clone(),
        problems: problems(&before.problems, report, now),
    }
}

fn handled(asked: Option<&String>, before: &SyncGroupStatus) -> String {
    asked
        .cloned()
        .unwrap_or_else(|| before.last_handled_reconcile_at.clone())
}

fn counts(counts: Counts) -> ClusterCounts {
    let Counts {
        total,
        updated,
        progressing,
        pending,
        failed,
        unreachable,
        held,
    } = counts;
    ClusterCounts {
        total,
        updated,
        progressing,
        pending,
        failed,
        unreachable,
        held,
    }
}

fn updates(report: &Report, blocked_by: &[Blocker]) -> Vec<ConditionUpdate> {
    let Counts {
        total,
        updated,
        progressing,
        pending,
        failed,
        unreachable,
        held,
    } = report.counts;
    let summary = format!(
        "{updated} of {total} clusters updated, {progressing} progressing, {pending} pending, {failed} failed, {unreachable} unreachable, {held} held"
    );
    let why = blocked_by
        .first()
        .map(|blocker| format!("; {}: {}", blocker.reason, blocker.message));
    let degraded = match report.degraded {
        0 => String::new(),
        clusters => format!("; {clusters} of the updated are not healthy any more"),
    };
    let message = summary + &degraded + &why.unwrap_or_default();
    let (status, reason) = match report.phase {
        RolloutPhase::Succeeded if total == 0 => (ConditionStatus::True, "NoClustersSelected"),
        // The rollout is over and stays so; what broke since is told here and among the problems (ADR 10).
        RolloutPhase::Succeeded if report.degraded > 0 => (ConditionStatus::False, "Degraded"),
        RolloutPhase::Succeeded => (ConditionStatus::True, "Succeeded"),
        RolloutPhase::Pending | RolloutPhase::Progressing | RolloutPhase::RollingBack => {
            (ConditionStatus::False, "Progressing")
        }
        RolloutPhase::Paused => (ConditionStatus::False, "Paused"),
        RolloutPhase::Failed => (ConditionStatus::False, "Failed"),
        RolloutPhase::Superseded => (ConditionStatus::False, "Superseded"),
    };
    let under_way = matches!(
        report.phase,
        RolloutPhase::Pending | RolloutPhase::Progressing | RolloutPhase::RollingBack
    );
    let progress = ConditionUpdate {
        type_: PROGRESSING,
        status: if under_way {
            ConditionStatus::True
        } else {
            ConditionStatus::False
        },
        reason: format!("{:?}", report.phase),
        message: message.clone(),
    };
    vec![ready(status, reason, message), progress]
}

/// Something that people are told for as long as it is so.
fn told(type_: &'static str, reason: &str, message: String) -> ConditionUpdate {
    ConditionUpdate {
        type_,
        status: ConditionStatus::True,
        reason: reason.into(),
        message,
    }
}

/// Blockers keep the time since which they block.
fn blockers(before: &[Blocker], report: &Report, now: Timestamp) -> Vec<Blocker> {
    report
        .blocked_by
        .iter()
        .map(|(reason, message, recheck_at)| Blocker {
            reason: (*reason).to_owned(),
            message: message.clone(),
            since: before
                .iter()
                .find(|known| known.reason == *reason)
                .map_or_else(|| now.to_string(), |known| known.since.clone()),
            recheck_at: recheck_at.map(|at| at.to_string()).unwrap_or_default(),
        })
        .collect()
}

/// Problems keep the time since which they are one.
fn problems(before: &[ClusterProblem], report: &Report, now: Timestamp) -> Vec<ClusterProblem> {
    report
        .problems
        .iter()
        .take(PROBLEMS)
        .map(|(cluster, reason, message, since)| {
            let known = before
                .iter()
                .find(|known| known.cluster == *cluster && known.reason == *reason);
            let since = since
                .map(|at| at.to_string())
                .or_else(|| known.map(|known| known.since.clone()));
            ClusterProblem {
                cluster: cluster.clone(),
                reason: reason.clone(),
                message: cut(message, MESSAGE_LIMIT),
                since: since.unwrap_or_else(|| now.to_string()),
            }
        })
        .collect()
}
