//! The gates of a plan that another system has to decide now.

use super::effect::OpenGate;
use super::observe::Facts;
use super::planned::Planned;
use crate::gate::Side;
use crate::gate::webhook::Clusters;
use crate::plan::{Gate, GateRecord, ReadStrategy, RolloutVerdict, StagePhase, StagePlan, Stop};

/// Returns the gates that are open. An aborted rollout has none.
pub(super) fn open(planned: &Planned, facts: &Facts<'_>) -> Vec<OpenGate> {
    let plan = &planned.plan;
    if matches!(plan.verdict, RolloutVerdict::Stopped(Stop::Aborted(_))) {
        return Vec::new();
    }
    let stages = plan.stages.iter();
    stages
        .filter(|stage| !matches!(stage.phase, StagePhase::Passed | StagePhase::Skipped(_)))
        .flat_map(|stage| Side::ALL.map(|side| (stage, side)))
        .filter_map(|(stage, side)| open_at(facts.strategy, stage, side))
        .collect()
}

/// Returns the open gate of a side. Gates pass one after the other, so only the last gate that has begun can be open.
/// All gates before a stage that has opened have passed.
fn open_at(strategy: &ReadStrategy, stage: &StagePlan, side: Side) -> Option<OpenGate> {
    let records = match side {
        Side::Before if stage.record.opened_at.is_none() => &stage.record.before,
        Side::Before => return None,
        Side::After => &stage.record.after,
    };
    let GateRecord {
        gate: Gate::Effect(kind),
        begun_at,
        result: None,
    } = records.last()?
    else {
        return None;
    };
    let index = records.len() - 1;
    let task = strategy.effect(&stage.name, side, index)?;
    (task.effect.kind() == *kind).then(|| OpenGate {
        stage: stage.name.clone(),
        side,
        index,
        begun_at: *begun_at,
        task: task.clone(),
        clusters: Clusters {
            total: stage.tally.total,
            updated: stage.tally.done,
            failed: stage.tally.failed,
        },
    })
}
