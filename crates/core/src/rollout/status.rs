//! Derives the status of a group from the plan of its rollout.

use jiff::Timestamp;
use starling_api::conditions::{
    self, ConditionStatus, ConditionUpdate, MESSAGE_LIMIT, PROGRESSING, READY, cut,
};
use starling_api::{
    Blocker, ClusterCounts, ClusterProblem, GroupDeletionHold, ReleaseStatus, RolloutPhase, RolloutStatus,
    SyncGroupStatus,
};

use super::observe::{Facts, PassFacts};
use crate::plan::{Counts, Plan, Report, record};

/// Maximum number of clusters with problems in status; the ledger has all of them.
const PROBLEMS: usize = 10;

/// The parts of a status, in addition to the previous one.
pub(super) struct Parts<'a> {
    pub(super) rollout: &'a RolloutStatus,
    pub(super) plan: &'a Plan,
    pub(super) report: &'a Report,
    /// Conditions other than those of the rollout.
    pub(super) conditions: Vec<ConditionUpdate>,
    /// Deletions that wait for an approval.
    pub(super) held_deletions: Vec<GroupDeletionHold>,
}

/// Returns the status after a plan.
pub(super) fn status(before: &SyncGroupStatus, parts: Parts<'_>, facts: &Facts<'_>) -> SyncGroupStatus {
    let Parts {
        rollout,
        plan,
        report,
        conditions: more,
        held_deletions,
    } = parts;
    let now = facts.now;
    let mut rollout = rollout.clone();
    rollout.phase = report.phase;
    rollout.stage.clone_from(&report.stage);
    rollout.stages = record::stage_statuses(plan, &report.soaks);
    rollout.blocked_by = blockers(&rollout.blocked_by, report, now);
    let last_known_good = if report.is_known_good {
        Some(release_of(&rollout))
    } else {
        before.last_known_good.clone()
    };
    let mut updates = updates(report, &rollout.blocked_by);
    updates.extend(more);
    SyncGroupStatus {
        observed_generation: facts.generation,
        last_handled_reconcile_at: handled(before, facts.requested_at),
        identity: facts.identity.or(before.identity.as_ref()).cloned(),
        clusters: counts(report.counts),
        conditions: conditions::merge(&before.conditions, updates, facts.generation, now),
        rollout: Some(rollout),
        last_known_good,
        held_release: before.held_release.clone(),
        queue: before.queue.clone(),
        unselected: facts.unselected.to_vec(),
        kept_entries: facts.kept_entries.to_vec(),
        deletions: before.deletions.clone(),
        held_deletions,
        problems: problems(&before.problems, report, now),
    }
}

/// Returns the status of a group that cannot roll out, for the reason in `updates`. The last rollout stays as it is.
#[must_use]
pub fn blocked_status(
    before: &SyncGroupStatus,
    updates: Vec<ConditionUpdate>,
    pass: PassFacts<'_>,
) -> SyncGroupStatus {
    SyncGroupStatus {
        observed_generation: pass.generation,
        last_handled_reconcile_at: handled(before, pass.requested_at),
        conditions: conditions::merge(&before.conditions, updates, pass.generation, pass.now),
        ..before.clone()
    }
}

fn handled(before: &SyncGroupStatus, requested_at: Option<&str>) -> String {
    requested_at
        .unwrap_or(&before.last_handled_reconcile_at)
        .to_owned()
}

/// Whether the rollout in a status has succeeded. The rollout of a group without clusters is not over, although nothing
/// is left to do.
#[must_use]
pub fn has_succeeded(status: &SyncGroupStatus) -> bool {
    let phase = status.rollout.as_ref().map(|rollout| rollout.phase);
    phase == Some(RolloutPhase::Succeeded) && status.clusters.total > 0
}

/// Returns the release of a rollout in the form of status.
pub(super) fn release_of(rollout: &RolloutStatus) -> ReleaseStatus {
    ReleaseStatus {
        release: rollout.release.clone(),
        revisions: rollout.revisions.clone(),
    }
}

fn counts(counts: Counts) -> ClusterCounts {
    let Counts {
        total,
        updated,
        progressing,
        pending,
        failed,
        unreachable,
        on_hold,
    } = counts;
    ClusterCounts {
        total,
        updated,
        progressing,
        pending,
        failed,
        unreachable,
        held: on_hold,
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
        on_hold,
    } = report.counts;
    let summary = format!(
        "{updated} of {total} clusters updated, {progressing} progressing, {pending} pending, {failed} failed, {unreachable} unreachable, {on_hold} on hold"
    );
    let why = blocked_by
        .first()
        .map(|blocker| format!("; {}: {}", blocker.reason, blocker.message));
    let degraded = match report.degraded {
        0 => String::new(),
        clusters => format!("; {clusters} of the updated clusters are no longer healthy"),
    };
    let message = summary + &degraded + &why.unwrap_or_default();
    let (status, reason) = match report.phase {
        RolloutPhase::Succeeded if total == 0 => (ConditionStatus::True, "NoClustersSelected"),
        // The rollout stays succeeded; later failures are reported here and among the problems (ADR 10).
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
    vec![
        ConditionUpdate {
            type_: READY,
            status,
            reason: reason.to_owned(),
            message,
        },
        progress,
    ]
}

/// Returns the blockers. A known blocker keeps its time.
fn blockers(before: &[Blocker], report: &Report, now: Timestamp) -> Vec<Blocker> {
    report
        .blocked_by
        .iter()
        .map(|blocker| Blocker {
            reason: blocker.reason.to_owned(),
            message: blocker.message.clone(),
            since: before
                .iter()
                .find(|known| known.reason == blocker.reason)
                .map_or_else(|| now.to_string(), |known| known.since.clone()),
            recheck_at: blocker.recheck_at.map(|at| at.to_string()).unwrap_or_default(),
        })
        .collect()
}

/// Returns the problems. A known problem keeps its time.
fn problems(before: &[ClusterProblem], report: &Report, now: Timestamp) -> Vec<ClusterProblem> {
    report
        .problems
        .iter()
        .take(PROBLEMS)
        .map(|problem| {
            let known = before
                .iter()
                .find(|known| known.cluster == problem.cluster && known.reason == problem.reason);
            let since = problem
                .since
                .map(|at| at.to_string())
                .or_else(|| known.map(|known| known.since.clone()));
            ClusterProblem {
                cluster: problem.cluster.to_string(),
                reason: problem.reason.clone(),
                message: cut(&problem.message, MESSAGE_LIMIT),
                since: since.unwrap_or_else(|| now.to_string()),
            }
        })
        .collect()
}
