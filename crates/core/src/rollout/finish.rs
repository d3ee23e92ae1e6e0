//! The effects of a plan that stays in force.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use starling_api::{RolloutPhase, SyncGroupStatus};

use super::effect::{Action, Admission, Outcome, Removal};
use super::gates;
use super::observe::{Facts, Observations, Rolling};
use super::planned::Planned;
use super::status::has_succeeded;
use crate::finalize::dependents_first;
use crate::ids::{RolloutNumber, SyncName};
use crate::plan::{
    AdmittedRelease, Decision, FailureReason, Gate, Plan, PlanInput, RemovalDecision, Report, record,
};

/// Minimum time between two writes that only report more clusters as done. A rollout over a thousand clusters would
/// otherwise write its status a thousand times.
const REPORT_INTERVAL: SignedDuration = SignedDuration::from_millis(250);

/// Whether status has new records of stages, which must be durable before anything is admitted: times count from there.
pub(super) fn records_stages(before: &SyncGroupStatus, after: &SyncGroupStatus) -> bool {
    let recorded = |status: &SyncGroupStatus| status.rollout.as_ref().map(record::recorded);
    recorded(before) != recorded(after)
}

/// Returns when a write is due that changes only counts; `None`: it is due now.
pub(super) fn too_early(
    before: &SyncGroupStatus,
    after: &SyncGroupStatus,
    facts: &Facts<'_>,
) -> Option<Timestamp> {
    // The rollout of a group without clusters is not over; its end is reported with the first cluster.
    let phase = |status: &SyncGroupStatus| {
        let rollout = status.rollout.as_ref();
        rollout.map(|rollout| (rollout.id, rollout.phase, status.clusters.total == 0))
    };
    let says_more = phase(before) != phase(after)
        || before.observed_generation != after.observed_generation
        || before.last_known_good != after.last_known_good;
    let last = facts.reported_at.filter(|_| !says_more)?;
    // A clock that was set back would delay every report until it reaches the old time again.
    let due = last.checked_add(REPORT_INTERVAL).ok()?;
    (last <= facts.now && due > facts.now).then_some(due)
}

/// Returns the actions that execute the plan, in order: admissions are recorded before they are made, and removals and
/// prunes follow them.
pub(super) fn actions(planned: &Planned, facts: &Facts<'_>) -> Vec<Action> {
    let Planned {
        rolling, input, plan, ..
    } = planned;
    let mut actions = vec![Action::EvaluateGates(gates::open(planned, facts))];
    let admissions = admissions(rolling, input, plan, facts.now);
    if !admissions.is_empty() {
        actions.push(Action::RecordAdmissions(admissions.clone()));
        actions.push(Action::Admit(admissions));
    }
    let removals = removals(input, plan);
    if !removals.is_empty() {
        actions.push(Action::RemoveSyncs(removals));
    }
    let allowed = allowed_prunes(plan);
    if !allowed.is_empty() {
        actions.push(Action::AllowPrunes(allowed));
    }
    actions
}

/// Returns the Syncs whose deletions a plan allows.
pub(super) fn allowed_prunes(plan: &Plan) -> Vec<SyncName> {
    let prunes = plan.prunes.iter();
    let prunes = prunes.filter(|(_, decision)| **decision == RemovalDecision::Remove);
    prunes.map(|(sync, _)| sync.clone()).collect()
}

/// Whether the rollout is over by its report. The rollout of a group without clusters begins with the first cluster.
fn is_over(report: &Report) -> bool {
    report.phase == RolloutPhase::Succeeded && report.counts.total > 0
}

/// Whether the rollout is over by a status.
fn was_over(before: &SyncGroupStatus, rollout: RolloutNumber) -> bool {
    before
        .rollout
        .as_ref()
        .is_some_and(|current| RolloutNumber::of(current) == rollout)
        && has_succeeded(before)
}

fn succeeded(rollout: RolloutNumber) -> Action {
    Action::EndRollout {
        rollout,
        outcome: Outcome::Succeeded,
    }
}

/// Returns the recorded success of a rollout that continues because a cluster joined. It precedes the status that no
/// longer reports the success: if the response to that status write was lost, the ledger does not have the success yet.
/// Of two records, the first one counts.
pub(super) fn resumed(report: &Report, before: &SyncGroupStatus, rollout: RolloutNumber) -> Option<Action> {
    (was_over(before, rollout) && !is_over(report)).then(|| succeeded(rollout))
}

/// Returns the success of a rollout that status reports for the first time.
pub(super) fn succeeds(report: &Report, before: &SyncGroupStatus, rollout: RolloutNumber) -> Option<Action> {
    (is_over(report) && !was_over(before, rollout)).then(|| succeeded(rollout))
}

/// Returns the computation of the release digest, if an approval needs it.
pub(super) fn digest(report: &Report, input: &PlanInput) -> Option<Action> {
    let needed = needs_digest(input) && report.phase != RolloutPhase::Succeeded;
    needed.then_some(Action::DigestRelease)
}

/// Whether the release needs an approval. Without clusters, the digest would not cover the objects of later clusters.
fn needs_digest(input: &PlanInput) -> bool {
    let mut stages = input.strategy.stages.iter();
    let approved = stages.any(|stage| {
        stage
            .before
            .iter()
            .chain(&stage.after)
            .any(|gate| *gate == Gate::Approval)
    });
    approved && !input.membership_held && !input.clusters.is_empty()
}

/// Returns the ends of admissions whose time is over, which only the plan notices. They are settled before status
/// reports them. To settle an admission again changes nothing: only the first end counts.
pub(super) fn settlements(planned: &Planned, observed: &dyn Observations) -> Vec<Action> {
    failures(planned, observed, |cluster, reason| {
        is_time_over(&planned.input, cluster, reason)
    })
}

/// Returns the ends of the failed admissions of a rollout that another one replaces. The next admissions would end them
/// as superseded, and nobody would see that they had failed.
pub(super) fn last_settlements(planned: &Planned, observed: &dyn Observations) -> Vec<Action> {
    failures(planned, observed, |_, _| true)
}

fn failures(
    planned: &Planned,
    observed: &dyn Observations,
    has_ended: impl Fn(&str, &FailureReason) -> bool,
) -> Vec<Action> {
    let Planned { rolling, plan, .. } = planned;
    let mut actions = Vec::new();
    for (cluster, decision) in &plan.decisions {
        let Decision::Failed { reason, .. } = decision else {
            continue;
        };
        if !has_ended(cluster, reason) {
            continue;
        }
        let entries = rolling.snapshot.entries.iter();
        let admissions = entries.filter_map(|entry| observed.admission(cluster, &entry.name));
        let open = admissions.filter(|admission| !observed.is_settled(admission));
        actions.extend(open.map(|admission| Action::SettleAdmission {
            admission,
            reason: reason.as_str().to_owned(),
        }));
    }
    actions
}

/// Whether the admission of a failed cluster has ended. A cluster whose Sync fails has until `progressDeadline`, like
/// every other one: its Sync retries.
fn is_time_over(input: &PlanInput, cluster: &str, reason: &FailureReason) -> bool {
    let FailureReason::AttemptFailed { .. } = reason else {
        return true;
    };
    let entries = input.clusters.get(cluster).into_iter();
    let syncs = entries
        .flat_map(|view| view.entries.values())
        .filter_map(|entry| entry.observed.as_ref());
    let admitted = syncs.filter(|sync| sync.release == input.rollout.release);
    let last = admitted.filter_map(|sync| sync.admitted_at).max();
    let deadline = input.strategy.limits.progress_deadline;
    // Without a recorded time no time is left, as for the plan.
    let due = last.and_then(|last| input.clock_jumps.due(last, deadline));
    due.is_none_or(|due| due <= input.now)
}

fn admissions(rolling: &Rolling, input: &PlanInput, plan: &Plan, now: Timestamp) -> Vec<Admission> {
    let mut admissions = Vec::new();
    for (cluster, decision) in &plan.decisions {
        let (entries, to, retried_for) = match decision {
            Decision::Start { entries, to } => (entries, *to, None),
            Decision::Retry {
                entries,
                requested_at,
            } => (entries, AdmittedRelease::Release, Some(*requested_at)),
            Decision::Done
            | Decision::Remove { .. }
            | Decision::InFlight { .. }
            | Decision::Soaking { .. }
            | Decision::Failed { .. }
            | Decision::Hold { .. } => continue,
        };
        let (Some(snapshot), Some(view)) = (rolling.snapshot_to(to), input.clusters.get(cluster)) else {
            continue;
        };
        for entry in entries {
            let view = view.entries.get(entry);
            let before = view.and_then(|view| view.observed.as_ref()?.admitted_at);
            let target = view.and_then(|view| match to {
                AdmittedRelease::Release => view.wanted.as_ref().ok(),
                AdmittedRelease::LastKnownGood => view.known_good.as_ref(),
            });
            admissions.extend(target.map(|target| Admission {
                cluster: cluster.clone(),
                entry: entry.clone(),
                release: snapshot.digest.clone(),
                rollout: rolling.number(),
                target: target.clone(),
                revision: snapshot.revision(entry).to_owned(),
                at: apart(now, before),
                retried_for,
            }));
        }
    }
    admissions
}

/// Returns the time of an admission: now, unless the last admission of the Sync has that time, because the clock went
/// back. An admission is named by its time, and the last one may have given its slot back
/// ([`slot_return`](crate::slot_return)).
fn apart(now: Timestamp, before: Option<Timestamp>) -> Timestamp {
    let later = now.checked_add(SignedDuration::from_millis(1)).ok();
    later.filter(|_| before == Some(now)).unwrap_or(now)
}

/// Returns the removals of the plan. Syncs that depend on others come before them.
pub(super) fn removals(input: &PlanInput, plan: &Plan) -> Vec<Removal> {
    let removed = plan
        .removals
        .iter()
        .filter(|(_, decision)| **decision == RemovalDecision::Remove);
    let leaving: BTreeMap<_, _> = removed
        .filter_map(|(name, _)| Some((name.clone(), input.leaving.get(name)?)))
        .collect();
    let order = dependents_first(
        &leaving
            .iter()
            .map(|(name, sync)| (name.clone(), sync.depends_on.iter().cloned().collect()))
            .collect(),
    );
    let removal = |name: SyncName| {
        let sync = leaving.get(&name)?;
        Some(Removal {
            sync: name,
            cluster: sync.cluster.clone(),
            entry: sync.entry.clone(),
            policy: sync.policy,
            cause: sync.cause.clone(),
        })
    };
    order.into_iter().filter_map(removal).collect()
}
