//! The planner's independent opinion: whether a plan keeps the rules.
//!
//! [`check`] knows the rules (ADR 30) and not how the planner gets there. It shares the input and output types with
//! it and no code, computes every count and every record again, and says which clusters should start only where
//! the rules do: any plan passes that decides what is true of each cluster and stage, stays within the bounds,
//! leaves no slot idle and passes nobody over.
//!
//! It goes from one cluster at a time (`facts`) to one stage at a time (`stage`) to the whole fleet at one time
//! (`moment`). The rule about time needs no second plan. A plan is right for as long as its decisions and
//! phases are true, so it is checked twice: now, and just before `recheck_at`. Clusters that the plan starts are in
//! flight then; what becomes of them is reported by events, and each event makes a new plan.

mod facts;
mod holds;
mod member;
mod moment;
mod rules;
mod stage;
mod starts;
mod verdict;
mod violation;
mod windows;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use moment::Moment;
use rules::Rules;
pub use violation::Violation;

use super::stages::StageRecord;
use super::types::{Decision, Plan, PlanInput, Progress, Reach};

/// Whether `plan` is a right answer to `input`.
///
/// # Errors
/// The first rule that it breaks.
pub fn check(input: &PlanInput, plan: &Plan) -> Result<(), Violation> {
    every_cluster_is_decided(input, plan)?;
    let rules = Rules::of(input);
    let present = Moment::at(input, plan, &rules, input.now, &input.rollout.stages);
    present.stages_are_true()?;
    present.starts_are_lawful()?;
    present.decisions_are_true()?;
    present.nobody_is_passed_over()?;
    present.bounds_hold()?;
    present.tallies_are_true()?;
    present.verdict_is_true()?;
    is_looked_at_again_in_time(input, plan, &rules)
}

fn every_cluster_is_decided(input: &PlanInput, plan: &Plan) -> Result<(), Violation> {
    let selected: BTreeSet<&String> = input.clusters.keys().collect();
    let decided: BTreeSet<&String> = plan.decisions.keys().collect();
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

/// Nothing that the plan says stops being true before it is looked at again. Too early is no harm.
///
/// Nothing is asked where the clock was set back: of what was seen in the future nobody can say when it changes, and the plan is
/// looked at again with every event and once the clock has caught up.
fn is_looked_at_again_in_time(input: &PlanInput, plan: &Plan, rules: &Rules<'_>) -> Result<(), Violation> {
    if newest(input) > input.now {
        return Ok(());
    }
    let until = match plan.recheck_at {
        Some(at) if at <= input.now => return Err(Violation::RecheckPast { at }),
        Some(at) => at.checked_sub(SignedDuration::from_nanos(1)).unwrap_or(input.now),
        None => Timestamp::MAX,
    };
    for (cluster, decision) in &plan.decisions {
        if let Some(changes) = ends_at(decision).filter(|changes| *changes <= until) {
            return Err(Violation::RecheckAfterDecision {
                cluster: cluster.clone(),
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

/// When time alone ends a decision, by its own word.
fn ends_at(decision: &Decision) -> Option<Timestamp> {
    match decision {
        Decision::InFlight { deadline, .. } => *deadline,
        Decision::Soaking { until } => Some(*until),
        Decision::Hold { recheck_at, .. } => *recheck_at,
        Decision::Done | Decision::Start { .. } | Decision::Failed { .. } => None,
    }
}

/// The latest time of anything that the planner was told of.
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
            let held = match &sync.progress {
                Progress::Held(held) => held.since,
                Progress::Working | Progress::Failing { .. } => None,
            };
            [sync.admitted_at, held].into_iter().flatten()
        });
    let all = records.chain(reached).chain(seen).chain([rollout.started_at]);
    all.max().unwrap_or(rollout.started_at)
}

#[cfg(test)]
mod tests;
