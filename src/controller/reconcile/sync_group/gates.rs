//! Which gates of a group somebody else has to decide now: pure, from the plan.

use kube::{Resource as _, ResourceExt as _};
use starling_core::gate::webhook::{Clusters, GateRequest};
use starling_core::gate::{GateId, Side};
use starling_core::plan::{Gate, GateRecord, Plan, RolloutVerdict, StagePhase, StagePlan, Stop};

use starling_core::rollout::Rolling;

use super::observe::Group;
use crate::controller::context::GroupContext;
use crate::controller::gates::{GateTools, Open};

/// Has the gates carried out that are open now, and those ended that are not any more. What begun is written to status
/// already.
pub(super) fn carry_out(context: GroupContext<'_>, group: &Group, rolling: &Rolling, plan: &Plan) {
    let Some(owner) = group.object.controller_owner_ref(&()) else {
        // It has no UID: it never was at an API server.
        return;
    };
    let open = open(group, rolling, plan);
    let tools = GateTools {
        hub: context.hub.clone(),
        web: context.web.clone(),
        clock: context.clock.clone(),
        gates: context.caches.gate_tasks.clone(),
        groups: context.queue.clone(),
    };
    context.caches.gate_tasks.run(&tools, &group.key, &owner, open);
}

/// The gates that have begun and of which nothing was found. A rollout that somebody gave up waits for none.
fn open(group: &Group, rolling: &Rolling, plan: &Plan) -> Vec<Open> {
    if matches!(plan.verdict, RolloutVerdict::Stopped(Stop::Aborted(_))) {
        return Vec::new();
    }
    let stages = plan.stages.iter();
    stages
        .filter(|stage| !matches!(stage.phase, StagePhase::Passed | StagePhase::Skipped(_)))
        .flat_map(|stage| Side::ALL.map(|side| (stage, side)))
        .filter_map(|(stage, side)| open_at(group, rolling, stage, side))
        .collect()
}

/// Gates are passed one after the other: only the last that has begun can be open. Those before a stage that has opened
/// are passed.
fn open_at(group: &Group, rolling: &Rolling, stage: &StagePlan, side: Side) -> Option<Open> {
    let records = match side {
        Side::Before if stage.record.opened_at.is_none() => &stage.record.before,
        Side::Before => return None,
        Side::After => &stage.record.after,
    };
    let GateRecord {
        gate: Gate::Effect(kind),
        begun_at,
        found: None,
    } = records.last()?
    else {
        return None;
    };
    let id = GateId {
        group_uid: group.object.uid().unwrap_or_default(),
        rollout: rolling.rollout.id,
        stage: stage.name.clone(),
        side,
        index: records.len() - 1,
        begun_at: *begun_at,
    };
    let task = group.strategy.effect(&id.stage, side, id.index)?;
    if task.effect.kind() != *kind {
        return None;
    }
    Some(Open {
        question: question(group, rolling, stage, &id),
        task: task.clone(),
        id,
    })
}

fn question(group: &Group, rolling: &Rolling, stage: &StagePlan, id: &GateId) -> GateRequest {
    GateRequest {
        namespace: group.key.namespace.clone(),
        group: group.key.name.clone(),
        rollout: id.rollout,
        release: rolling.rollout.release.clone(),
        revisions: rolling.rollout.revisions.clone(),
        direction: rolling.rollout.direction,
        stage: id.stage.clone(),
        list: id.side.list(),
        task: id.index,
        start_time: id.begun_at.to_string(),
        clusters: Clusters {
            total: stage.tally.total,
            updated: stage.tally.done,
            failed: stage.tally.failed,
        },
    }
}
