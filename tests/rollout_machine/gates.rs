//! Gates that other systems decide: their results survive no crash before status has them, and are given again.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use starling_api::{ActionType, OnFailure, StageTaskType};
use starling_core::plan::Gate;

use crate::basic;
use crate::block_on;
use crate::idle::{End, run_until_idle};
use crate::invariants::Violation;
use crate::machine::{Machine, Updates};
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

/// Returns the times at which a gate of the second rollout began.
fn begun_in_second_rollout(machine: &Machine) -> BTreeSet<Timestamp> {
    let gates = machine.world.evaluated_gates.iter();
    gates
        .filter(|gate| gate.rollout == 2)
        .map(|gate| gate.begun_at)
        .collect()
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

/// Guards against an invariant that forbids what operators request: a failed gate begins anew once for each retry, and
/// its record changes.
#[test]
fn a_failed_gate_begins_anew_for_a_retry() {
    let history = async |machine: &mut Machine| {
        run_until_idle(machine, true).await?;
        // The gate of the second rollout fails, and without a rollback the rollout waits for an operator.
        machine.world.offer_new();
        let stopped = run_until_idle(machine, true).await?;
        machine.world.add_action(ActionType::Retry, None, None);
        Ok(vec![stopped, run_until_idle(machine, true).await?])
    };
    let world = || {
        let mut world = world();
        world.spec.strategy.on_failure = OnFailure::Pause;
        world
    };
    block_on(async {
        let mut machine = Machine::start(world(), Order::Correct).await;
        history(&mut machine).await.unwrap();
        let begun = begun_in_second_rollout(&machine);
        assert_eq!(begun.len(), 2, "the gate began twice: {begun:?}");
        with_every_fault(world, history).await;
    });
}

/// Guards against an invariant that needs every failure in the status: a gate that fails after its retry was requested
/// begins anew in the pass that learns of the failure.
#[test]
fn a_gate_that_fails_after_its_retry_was_requested_begins_anew() {
    let history = async |machine: &mut Machine| {
        let first = run_until_idle(machine, true).await?;
        machine.world.offer_new();
        // The first gate of the second rollout begins, and is decided some seconds after the request.
        while !machine.world.evaluated_gates.iter().any(|gate| gate.rollout == 2) {
            machine.watch(Updates::ALL);
            machine.pass().await;
        }
        let later = |machine: &Machine, seconds| machine.world.now + SignedDuration::from_secs(seconds);
        machine.world.go_to(later(machine, 2));
        machine.world.add_action(ActionType::Retry, None, None);
        machine.world.go_to(later(machine, 6));
        let second = run_until_idle(machine, true).await?;
        Ok::<_, String>(vec![first, second])
    };
    block_on(async {
        let mut machine = Machine::start(world(), Order::Correct).await;
        history(&mut machine).await.unwrap();
        let begun = begun_in_second_rollout(&machine);
        assert_eq!(begun.len(), 2, "the gate began twice: {begun:?}");
        assert!(
            machine.world.violations.is_empty(),
            "{:?}",
            machine.world.violations
        );
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
