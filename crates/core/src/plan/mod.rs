//! The rollout planner: from the wanted and the observed state to one decision per cluster.
//!
//! [`plan`] is a pure function in three steps: *classify* each cluster on its own (`classify`), count the clusters that
//! are in flight and failed (`walk`), then *admit* what may start within the limits (`admit`). Every cluster has
//! exactly one [`Decision`], every hold has a reason, and the plan has the time at which the passage of time alone
//! changes a decision.
//!
//! Five rules keep a rollout safe:
//! - **Done is a pair** of cluster and target (I1). Health with another target does not count.
//! - **A cluster keeps its slot from admission to done**, failure, or `progressDeadline`, whichever release it was
//!   admitted for. A cluster that becomes unreachable after its admission keeps its slot until then and counts as
//!   failed afterwards (`LostAfterAdmission`).
//! - **A release is in flight on at most `maxConcurrency` clusters**, however many clusters are in flight for older
//!   releases. A revision that cuts its clusters off stops after at most `maxConcurrency + maxFailures` of them.
//! - **A cluster in backoff has no slot but counts as failed** from its first failed attempt until it recovers;
//!   becoming unreachable is not recovering. Otherwise a revision that fails everywhere would go through the whole
//!   fleet, one slot at a time.
//! - **Missing entries come before failed ones**: a ready cluster that lacks an entry of the release is started with
//!   it, whatever the state of its other entries, since they may have failed because the entry is missing.

mod admit;
mod candidate;
pub mod check;
mod classifier;
mod classify;
mod end;
mod entry;
mod group_removal;
mod leaving;
mod openings;
mod overlap;
mod prune;
mod prune_request;
pub mod record;
mod removal;
mod removed;
mod report;
mod retry;
mod slots;
mod stages;
mod state;
mod strategy;
mod types;
mod walk;

use admit::{AdmissionResult, Admitter};
use classify::classify_all;
use jiff::Timestamp;
pub use leaving::{LeavingCause, LeavingSync, RemovalDecision, RemovalHold, needed_by_suspended};
pub use overlap::{left_over, overlap};
pub use prune_request::PruneRequest;
use removal::Removals;
pub(crate) use report::{Bucket, bucket, health_problem_when_done};
pub use report::{ClusterProblem, Counts, Report, StartBlocker};
pub use retry::{PendingRetry, REQUEST_RESOLUTION, began_before};
pub use stages::*;
use starling_api::OnFailure;
use state::ClusterState;

use crate::clock_jumps::ClockJumps;
pub use strategy::{Place, ReadStrategy, StrategyError};
pub use types::*;

/// Returns the decision for every cluster of `input`, and the state of each stage.
pub fn plan(input: &PlanInput) -> Plan {
    let states = classify_all(input);
    let rules = walk::rules(input);
    let stages = walk::walk(input, &rules, &states);
    let tally = walk::whole(input, &states, &stages);
    let stop = admit::stop(input, &stages, tally);
    let admitter = Admitter::new(input, &stages, tally, stop.as_ref());
    let AdmissionResult {
        decisions,
        retry_waits,
        known_until,
    } = admitter.admit(&states);
    let removals = Removals {
        input,
        stages: &stages,
        states: &states,
        decisions: &decisions,
        slots: tally.slots,
    };
    let removal = if input.deleting {
        group_removal::decide(input)
    } else {
        removals.decide()
    };
    let others_wait = retry_waits || removal.waits_for_slot;
    let recheck_at = decisions
        .values()
        .filter_map(Decision::recheck_at)
        .chain(removal.decisions.values().filter_map(RemovalDecision::recheck_at))
        .chain(removal.prunes.values().filter_map(RemovalDecision::recheck_at))
        .chain(
            stages
                .iter()
                .filter_map(|stage| gate_ends(&stage.plan, &input.clock_jumps)),
        )
        .chain(admit::leftover_ends(&states, &decisions, others_wait))
        .chain(states.iter().filter_map(|state| state.changes_at))
        .chain(known_until)
        .chain(removal.known_until)
        .filter(|at| *at > input.now)
        .min();
    let stages: Vec<StagePlan> = stages.into_iter().map(|stage| stage.plan).collect();
    Plan {
        verdict: verdict(input, &stages, &states, stop),
        decisions,
        removals: removal.decisions,
        prunes: removal.prunes,
        stages,
        tally,
        recheck_at,
    }
}

/// The clusters of a plan that the limit of the installation counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlightAfter {
    /// Clusters that begin to be in flight with the plan.
    pub begun: usize,
    /// Clusters in flight after the plan is executed.
    pub in_flight: usize,
    /// Clusters that wait for the limit of the installation.
    pub waiting: usize,
}

/// Counts the clusters in flight after `plan` is executed.
#[must_use]
pub fn in_flight_after(input: &PlanInput, plan: &Plan) -> InFlightAfter {
    let begins = |state: &&ClusterState<'_>| {
        let decision = plan.decisions.get(state.name);
        state.slot.is_none() && decision.is_some_and(Decision::begins_work)
    };
    let waits = |decision: &&Decision| {
        matches!(
            decision,
            Decision::Hold {
                reason: HoldReason::InstallationLimit,
                ..
            }
        )
    };
    let states = classify_all(input);
    let begun = states.iter().filter(begins).count();
    // A retry has no hold of its own.
    let retries = input.installation_slots.map_or(0, |_| {
        let requested = !input.operator.retries.is_empty() && retry::stop(input).is_none();
        let waits = |state: &&ClusterState<'_>| {
            let failed = matches!(plan.decisions.get(state.name), Some(Decision::Failed { .. }));
            let stage = plan.stages.get(walk::stage_of(input, state));
            failed && retry::due(input, state, stage.map(|stage| stage.name.as_str())).is_some()
        };
        states.iter().filter(|state| requested && waits(state)).count()
    });
    InFlightAfter {
        begun,
        in_flight: plan.tally.in_flight + begun,
        waiting: plan.decisions.values().filter(waits).count() + retries,
    }
}

/// Returns everything that blocks the start of one cluster now, except for a missing slot. The first reason is the one
/// in the decision. Empty: nothing blocks the cluster, or it does not wait to start.
#[must_use]
pub fn hold_reasons(input: &PlanInput, cluster: &str) -> Vec<(HoldReason, Option<Timestamp>)> {
    let states = classify_all(input);
    let rules = walk::rules(input);
    let stages = walk::walk(input, &rules, &states);
    let tally = walk::whole(input, &states, &stages);
    let stop = admit::stop(input, &stages, tally);
    let admitter = Admitter::new(input, &stages, tally, stop.as_ref());
    let found = states.iter().find(|state| state.name == cluster);
    found.map_or_else(Vec::new, |state| admitter.hold_reasons(state))
}

/// Returns the retry that is requested for a failed cluster, and what it waits for if `plan` does not make it. `None`:
/// no operator requested a retry since the admission of the cluster, or the plan makes it.
#[must_use]
pub fn pending_retry(input: &PlanInput, plan: &Plan, cluster: &str) -> Option<PendingRetry> {
    if !matches!(plan.decisions.get(cluster), Some(Decision::Failed { .. })) {
        return None;
    }
    let states = classify_all(input);
    let state = states.iter().find(|state| state.name == cluster)?;
    let stage = plan.stages.get(walk::stage_of(input, state));
    let due = retry::due(input, state, stage.map(|stage| stage.name.as_str()))?;
    Some(PendingRetry {
        requested_at: due.requested_at,
        reason: retry::stop(input).unwrap_or(HoldReason::NoSlot),
    })
}

/// Returns when time passes the current gate of a stage. That includes a stage with incomplete clusters: its next gate
/// begins then.
fn gate_ends(stage: &StagePlan, jumps: &ClockJumps) -> Option<Timestamp> {
    match &stage.phase {
        StagePhase::Passed | StagePhase::Skipped(_) => return None,
        // While the stage waits, this gate need not be the last that has begun.
        StagePhase::Waiting(StageWait::Gate {
            until: Some(until), ..
        }) => return Some(*until),
        StagePhase::Pending | StagePhase::Waiting(_) | StagePhase::Open => {}
    }
    let gates = if stage.record.opened_at.is_none() {
        &stage.record.before
    } else {
        &stage.record.after
    };
    match gates.last()? {
        GateRecord {
            gate: Gate::TimedWait(wait),
            begun_at,
            ..
        } => jumps.due(*begun_at, *wait),
        _ => None,
    }
}

fn verdict(
    input: &PlanInput,
    stages: &[StagePlan],
    states: &[ClusterState<'_>],
    stop: Option<Stop>,
) -> RolloutVerdict {
    let passed = |stage: &StagePlan| matches!(stage.phase, StagePhase::Passed | StagePhase::Skipped(_));
    let skips_unreachable = !walk::waits_for_unreachable(input);
    // The plan cannot know whether clusters that vanished at once are done. Without clusters, nothing is left to do.
    let nothing_to_do = input.clusters.is_empty() && stop.is_none();
    if !input.membership_held
        && (nothing_to_do || stages.iter().all(passed))
        && states.iter().all(|one| one.is_settled(skips_unreachable))
    {
        return RolloutVerdict::Succeeded;
    }
    let may_roll_back =
        input.strategy.on_failure == OnFailure::Rollback && input.rollout.direction == Direction::Forward;
    match stop {
        None => RolloutVerdict::InProgress,
        Some(stop @ (Stop::TooManyFailures { .. } | Stop::GateFailed { .. })) if may_roll_back => {
            RolloutVerdict::RollBack(stop)
        }
        Some(stop) => RolloutVerdict::Stopped(stop),
    }
}

#[cfg(test)]
mod tests;
