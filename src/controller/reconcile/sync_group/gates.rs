//! Starts the tasks of open gates and ends all others. Status already contains the start of each gate.

use kube::Resource as _;
use starling_core::gate::GateId;
use starling_core::gate::webhook::GateRequest;
use starling_core::ids::RolloutNumber;
use starling_core::rollout::{OpenGate, Rolling};

use super::observe::Group;
use crate::controller::context::GroupContext;
use crate::controller::gates::{GateTools, Open};

/// Runs a task for each open gate of a group, and no other.
pub(super) fn run(context: GroupContext<'_>, group: &Group, rolling: &Rolling, open: Vec<OpenGate>) {
    let Some(owner) = group.object.controller_owner_ref(&()) else {
        // Without a UID the group was never stored by an API server.
        return;
    };
    let tools = GateTools {
        hub: context.hub.clone(),
        web: context.web.clone(),
        clock: context.clock.clone(),
        gates: context.caches.gate_tasks.clone(),
        groups: context.queue.clone(),
    };
    let open = open.into_iter().map(|gate| of_group(group, rolling, gate));
    let tasks = &context.caches.gate_tasks;
    tasks.run(&tools, &group.key, &owner, open.collect());
}

fn of_group(group: &Group, rolling: &Rolling, gate: OpenGate) -> Open {
    let OpenGate {
        stage,
        side,
        index,
        begun_at,
        task,
        clusters,
    } = gate;
    let rollout = &rolling.rollout;
    Open {
        request: GateRequest {
            namespace: group.key.namespace.clone(),
            group: group.key.name.clone(),
            rollout: RolloutNumber::of(rollout),
            release: rollout.release.clone(),
            revisions: rollout.revisions.clone(),
            direction: rollout.direction,
            stage: stage.clone(),
            list: side.list(),
            task: index,
            start_time: begun_at.to_string(),
            clusters,
        },
        task,
        id: GateId {
            group_id: group.id.clone(),
            rollout: RolloutNumber::of(rollout),
            stage,
            side,
            index,
            begun_at,
        },
    }
}
