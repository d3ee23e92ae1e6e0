//! An independent check of plans: whether a plan keeps the rules.
//!
//! [`check`] implements the rules (ADR 30) and not the planner. It shares the input and output types with the planner
//! but no code, computes every count and record again, and prescribes which clusters start only where the rules do. A
//! plan passes if its decisions are true of each cluster and stage, it stays within the limits, leaves no usable slot
//! free, and starts clusters in order.
//!
//! The check proceeds from one cluster at a time (`facts`) to one stage at a time (`stage`) to the whole fleet at one
//! time (`moment`). The rule about time needs no second plan: a plan is right as long as its decisions and phases are
//! true, so it is checked now and just before `recheck_at`. Clusters that the plan starts are in flight then; events
//! report their progress, and each event makes a new plan.

mod facts;
mod holds;
mod member;
mod moment;
mod prunes;
mod removals;
mod retries;
mod rules;
mod stage;
mod starts;
mod verdict;
mod violation;
mod windows;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use moment::Moment;
use rules::CheckedRules;
pub use violation::Violation;

use super::leaving::RemovalDecision;
use super::stages::StageRecord;
use super::types::{Decision, Plan, PlanInput, Progress, Reach};
use crate::ids::ClusterName;

/// Checks whether `plan` is a right plan for `input`.
///
/// # Errors
/// The first rule that it breaks.
pub fn check(input: &PlanInput, plan: &Plan) -> Result<(), Violation> {
    every_cluster_is_decided(input, plan)?;
    let rules = CheckedRules::of(input);
    let present = Moment::at(input, plan, &rules, input.now, &input.rollout.stages);
    present.stages_are_true()?;
    present.starts_are_lawful()?;
    present.decisions_are_true()?;
    present.retries_are_lawful()?;
    present.removals_are_lawful()?;
    present.prunes_are_lawful()?;
    present.starts_are_in_order()?;
    present.bounds_hold()?;
    present.tallies_are_true()?;
    present.verdict_is_true()?;
    next_plan_is_in_time(input, plan, &rules)
}

fn every_cluster_is_decided(input: &PlanInput, plan: &Plan) -> Result<(), Violation> {
    let selected: BTreeSet<&ClusterName> = input.clusters.keys().collect();
    let decided: BTreeSet<&ClusterName> = plan.decisions.keys().collect();
    if let Some(&cluster) = selected.difference(&decided).next() {
        return Err(Violation::Undecided {
            cluster: cluster.clone(),
        });
    }
    decided.difference(&selected).next().map_or(Ok(()), |&cluster| {
        Err(Violation::NotSelected {
            cluster: cluster.clone(),
        })
    })
}

/// Checks that nothing in the plan becomes wrong before the next plan. A next plan that is too early does no harm.
///
/// Skips the check if the clock was set back: when something observed in the future changes is unknown, and the next
/// plan comes with every event and once the clock has caught up.
fn next_plan_is_in_time(input: &PlanInput, plan: &Plan, rules: &CheckedRules<'_>) -> Result<(), Violation> {
    if newest(input) > input.now {
        return Ok(());
    }
    let until = match plan.recheck_at {
        Some(at) if at <= input.now => return Err(Violation::RecheckPast { at }),
        Some(at) => at.checked_sub(SignedDuration::from_nanos(1)).unwrap_or(input.now),
        None => Timestamp::MAX,
    };
    let decisions = plan
        .decisions
        .iter()
        .map(|(name, decision)| (name.as_str(), ends_at(decision)));
    let removals = plan.removals.iter().chain(&plan.prunes);
    let removals = removals.map(|(name, decision)| match decision {
        RemovalDecision::Remove | RemovalDecision::Removing => (name.as_str(), None),
        RemovalDecision::Hold { recheck_at, .. } => (name.as_str(), *recheck_at),
    });
    for (subject, ends) in decisions.chain(removals) {
        if let Some(changes) = ends.filter(|changes| *changes <= until) {
            return Err(Violation::RecheckAfterDecision {
                subject: subject.to_string(),
                at: plan.recheck_at,
                changes,
            });
        }
    }
    let kept: BTreeMap<String, StageRecord> = plan
        .stages
        .iter()
        .map(|stage| (stage.name.clone(), stage.record.clone()))
        .collect();
    let later = Moment::at(input, plan, rules, until, &kept);
    let holds = later.decisions_are_true().and_then(|()| later.stages_are_true());
    holds.map_err(|stale| Violation::RecheckLate {
        at: plan.recheck_at,
        stale: Box::new(stale),
    })
}

/// Returns when time alone ends a decision, according to the decision.
fn ends_at(decision: &Decision) -> Option<Timestamp> {
    match decision {
        Decision::InFlight { deadline, .. } => *deadline,
        Decision::Soaking { until } => Some(*until),
        Decision::Hold { recheck_at, .. } => *recheck_at,
        Decision::Done
        | Decision::Start { .. }
        | Decision::Retry { .. }
        | Decision::Remove { .. }
        | Decision::Failed { .. } => None,
    }
}

/// Returns the latest time in the input.
fn newest(input: &PlanInput) -> Timestamp {
    let rollout = &input.rollout;
    let records = rollout.stages.values().flat_map(|record| {
        let gates = record.before.iter().chain(&record.after);
        [record.opened_at, record.completed_at, record.passed_at]
            .into_iter()
            .flatten()
            .chain(gates.map(|gate| gate.begun_at))
    });
    let reached = input
        .clusters
        .values()
        .filter_map(|cluster| match &cluster.reach {
            Reach::Unreachable { since, .. } => Some(*since),
            Reach::Ready | Reach::Unprobed | Reach::Suspended => None,
        });
    let entries = input
        .clusters
        .values()
        .flat_map(|cluster| cluster.entries.values());
    let seen = entries
        .filter_map(|entry| entry.observed.as_ref())
        .flat_map(|sync| {
            let applied = match &sync.progress {
                Progress::Applied(applied) => applied.since,
                Progress::Working | Progress::Failing { .. } => None,
            };
            [sync.admitted_at, applied].into_iter().flatten()
        });
    let all = records.chain(reached).chain(seen).chain([rollout.started_at]);
    all.max().unwrap_or(rollout.started_at)
}

#[cfg(test)]
mod tests;
