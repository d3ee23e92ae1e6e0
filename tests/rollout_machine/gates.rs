//! Gates that other systems decide: their results survive no crash before status has them, and are given again.

use starling_api::StageTaskType;
use starling_core::plan::Gate;

use crate::basic;
use crate::block_on;
use crate::idle::{End, run_until_idle};
use crate::invariants::Violation;
use crate::machine::Machine;
use crate::order::Order;
use crate::scenario::{all_on, violation_of, with_every_fault};
use crate::world::World;

/// A Job before the first stage, and a webhook and a metric after it.
fn world() -> World {
    let mut world = basic::world();
    let canary = &mut world.spec.strategy.stages[0];
    canary.before = vec![Gate::Effect(StageTaskType::Job)];
    canary.after = vec![
        Gate::Effect(StageTaskType::Webhook),
        Gate::Effect(StageTaskType::Metric),
    ];
    world
}

/// The first release passes. The first gate of the second one fails, and it is rolled back.
async fn history(machine: &mut Machine) -> Result<Vec<End>, String> {
    let first = run_until_idle(machine, true).await?;
    machine.world.offer_new();
    let second = run_until_idle(machine, true).await?;
    Ok(vec![first, second])
}

#[test]
fn gates_are_decided_despite_a_fault_at_any_effect() {
    block_on(async {
        let (outcome, effects) = with_every_fault(world, history).await;
        assert_eq!(outcome.clusters, all_on("r0"));
        assert_eq!(outcome.held.as_deref(), Some("r1"));
        assert_eq!(outcome.good.as_deref(), Some("r0"));
        assert!(effects > 30, "{effects} effects are no history");
    });
}

#[test]
fn a_result_that_no_other_system_gave_is_found() {
    let violations = block_on(violation_of(Order::GatesInvented, world(), history));
    let stage = "canary".to_owned();
    assert!(
        violations.contains(&Violation::GateInvented { stage }),
        "{violations:?}"
    );
}
