//! The rollout plan: from what is wanted and what is observed to one decision per cluster.
//!
//! [`plan`] is a pure function in three steps that read top to bottom: *classify* each cluster by itself
//! (`classify`), count what is in flight and what has failed, then *start* what may start within the limits
//! (`admit`). Every cluster gets exactly one [`Decision`]; every hold has a reason, and the plan the time at
//! which time alone changes something.
//!
//! Five rules carry the safety:
//! - **Done is a pair** of cluster and target (I1). Nothing here looks at health of another target.
//! - **A slot is held from admission to done**, to failure, or to `progressDeadline`, whichever release the work is
//!   for; a cluster that became unreachable after it was admitted keeps its slot until then and counts as failed
//!   afterwards (`LostAfterAdmission`).
//! - **A release spreads no wider than the slots**: it is never under way on more clusters than `maxConcurrency`,
//!   however many were busy with older releases when it came. So a revision that cuts its clusters off stops after
//!   at most `maxConcurrency + maxFailures` of them.
//! - **A cluster in backoff holds no slot but counts as failed**, from its first failed attempt on and until it
//!   recovers; to become unreachable is not to recover. Otherwise a revision that every cluster refuses would march
//!   through the fleet, one slot at a time.
//! - **What is missing comes before what failed**: a ready cluster that lacks an entry of the release is started
//!   with it, whatever became of its other entries, for they may have failed for want of it.

mod admit;
pub mod check;
mod classify;
mod end;
mod entry;
mod openings;
mod overlap;
pub mod record;
mod report;
mod room;
mod stages;
mod standing;
mod strategy;
mod types;
mod walk;

use admit::{Admission, Desk};
use classify::classify_all;
use jiff::Timestamp;
pub use overlap::{left_over, overlap};
pub(crate) use report::{Bucket, bucket, trouble_at_rest};
pub use report::{Counts, Report};
pub use stages::*;
use standing::Standing;
use starling_api::OnFailure;
pub use strategy::{Place, ReadStrategy, StrategyError};
pub use types::*;

/// Decides for every cluster of `input` what happens now, and how far each stage is.
pub fn plan(input: &PlanInput) -> Plan {
    let standings = classify_all(input);
    let rules = walk::rules(input);
    let stages = walk::walk(input, &rules, &standings);
    let tally = walk::whole(input, &standings, &stages);
    let stop = admit::stop(input, &stages, tally);
    let desk = Desk::new(input, &stages, tally, stop.as_ref());
    let Admission {
        decisions,
        known_until,
    } = desk.admit(&standings);
    let recheck_at = decisions
        .values()
        .filter_map(Decision::recheck_at)
        .chain(stages.iter().filter_map(|stage| gate_ends(&stage.plan)))
        .chain(admit::leftover_ends(&standings, &decisions))
        .chain(standings.iter().filter_map(|standing| standing.turns_at))
        .chain(known_until)
        .filter(|at| *at > input.now)
        .min();
    let stages: Vec<StagePlan> = stages.into_iter().map(|stage| stage.plan).collect();
    Plan {
        verdict: verdict(input, &stages, &standings, stop),
        decisions,
        stages,
        tally,
        recheck_at,
    }
}

/// Everything that keeps one cluster back now, but for room: what stands first is its decision. Empty: nothing does, or it
/// is not waiting.
#[must_use]
pub fn everything_in_the_way(input: &PlanInput, cluster: &str) -> Vec<(HoldReason, Option<Timestamp>)> {
    let standings = classify_all(input);
    let rules = walk::rules(input);
    let stages = walk::walk(input, &rules, &standings);
    let tally = walk::whole(input, &standings, &stages);
    let stop = admit::stop(input, &stages, tally);
    let desk = Desk::new(input, &stages, tally, stop.as_ref());
    let asked = standings.iter().find(|standing| standing.name == cluster);
    asked.map_or_else(Vec::new, |standing| desk.everything_in_the_way(standing))
}

/// When time passes a gate of a stage. Also while clusters of it are not through: the gate behind it begins then.
fn gate_ends(stage: &StagePlan) -> Option<Timestamp> {
    match &stage.phase {
        StagePhase::Passed | StagePhase::Skipped(_) => return None,
        // Where the stage stands it need not be the last that has begun.
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
        } => begun_at.checked_add(*wait).ok(),
        _ => None,
    }
}

fn verdict(
    input: &PlanInput,
    stages: &[StagePlan],
    standings: &[Standing<'_>],
    stop: Option<Stop>,
) -> Verdict {
    let passed = |stage: &StagePlan| matches!(stage.phase, StagePhase::Passed | StagePhase::Skipped(_));
    let skips_unreachable = !walk::waits_for_unreachable(input);
    // Of clusters that vanished all at once nobody knows whether they are through. Where there are none, nothing is left to do.
    let nothing_to_do = input.clusters.is_empty() && stop.is_none();
    if !input.membership_held
        && (nothing_to_do || stages.iter().all(passed))
        && standings.iter().all(|one| one.is_settled(skips_unreachable))
    {
        return Verdict::Through;
    }
    let may_go_back =
        input.strategy.on_failure == OnFailure::Rollback && input.rollout.direction == Direction::Forward;
    match stop {
        None => Verdict::Rolls,
        Some(stop @ (Stop::TooManyFailures { .. } | Stop::GateFailed { .. })) if may_go_back => {
            Verdict::RollBack(stop)
        }
        Some(stop) => Verdict::Stopped(stop),
    }
}

#[cfg(test)]
mod tests;
