//! Retries of failed clusters: recorded and journalled like starts, and done once for each request.

use std::time::Duration;

use starling_api::{ActionType, OnFailure};
use starling_core::ids::ClusterName;
use starling_core::simulate::Fate;

use crate::basic;
use crate::block_on;
use crate::faults::Fault;
use crate::idle::{End, run_until_idle};
use crate::invariants::Violation;
use crate::machine::{Machine, PassOutcome, Updates};
use crate::order::Order;
use crate::scenario::{all_on, with_every_fault};
use crate::world::{World, Written};

/// The first release fails on a cluster of the canary, which stops its rollout.
fn world() -> World {
    let mut world = basic::world();
    world.spec.strategy.on_failure = OnFailure::Pause;
    let first = world.api.clusters.get_mut("c1").unwrap();
    first.member.fates.insert("r0".to_owned(), Fate::Fails);
    world
}

fn request(machine: &mut Machine) {
    let later = machine.world.now + Duration::from_secs(5);
    machine.world.go_to(later);
    machine
        .world
        .add_action(ActionType::Retry, Some("c1".into()), None);
}

/// The first retry fails, too, and the second one succeeds.
async fn history(machine: &mut Machine) -> Result<Vec<End>, String> {
    let first = run_until_idle(machine, true).await?;
    request(machine);
    let second = run_until_idle(machine, true).await?;
    machine.world.repair("c1");
    request(machine);
    let third = run_until_idle(machine, true).await?;
    Ok(vec![first, second, third])
}

#[test]
fn a_failed_cluster_is_retried_despite_a_fault_at_any_effect() {
    block_on(async {
        let (outcome, effects) = with_every_fault(world, history).await;
        assert_eq!(outcome.ends, [End::Stopped, End::Stopped, End::Succeeded]);
        assert_eq!(outcome.clusters, all_on("r0"));
        assert_eq!(outcome.good.as_deref(), Some("r0"));
        assert!(effects > 30, "{effects} effects are no history");
    });
}

/// A stopped rollout with a request for a retry that the controller knows.
async fn requested(order: Order) -> Machine {
    let mut machine = Machine::start(world(), Order::Correct).await;
    assert_eq!(run_until_idle(&mut machine, true).await, Ok(End::Stopped));
    machine.order = order;
    request(&mut machine);
    machine.watch(Updates::ALL);
    machine
}

#[test]
fn a_retry_before_its_intent_is_found() {
    let violations = block_on(async {
        let mut machine = requested(Order::SyncBeforeIntent).await;
        machine.pass().await;
        machine.world.violations
    });
    let cluster = ClusterName::new("c1");
    assert_eq!(violations, [Violation::NoIntent { cluster }]);
}

#[test]
fn a_retry_before_its_journal_entry_is_found() {
    let violations = block_on(async {
        let mut machine = requested(Order::JournalLast).await;
        machine.pass().await;
        machine.world.violations
    });
    let cluster = ClusterName::new("c1");
    assert_eq!(violations, [Violation::NotInJournal { cluster }]);
}

/// The Sync is written, the response is lost, and the watch of Syncs lags behind.
async fn lost_response(order: Order) -> Vec<Violation> {
    let retried = |machine: &Machine| {
        let cluster = &machine.world.api.clusters["c1"];
        let sync = cluster.member.observed.as_ref();
        sync.is_some_and(|sync| sync.retried_for.is_some())
    };
    // Finds the effect of that pass that writes the Sync.
    for effect in 0..10 {
        let mut machine = requested(order).await;
        machine.faults.arm(effect, Fault::ResponseLost);
        if machine.pass().await != PassOutcome::Failed || !retried(&machine) {
            continue;
        }
        let updates = Updates {
            syncs: false,
            ..Updates::ALL
        };
        machine.watch(updates);
        machine.faults.disarm();
        machine.pass().await;
        return machine.world.violations;
    }
    panic!("nothing was retried");
}

#[test]
fn a_second_retry_for_one_request_is_found() {
    let cluster = ClusterName::new("c1");
    let violations = block_on(lost_response(Order::NotReadAgain));
    assert_eq!(violations, [Violation::RetriedTwice { cluster }]);
    let violations = block_on(lost_response(Order::Correct));
    assert_eq!(violations, []);
}

#[test]
fn a_retry_without_a_request_is_found() {
    block_on(async {
        let mut machine = Machine::start(world(), Order::Correct).await;
        assert_eq!(run_until_idle(&mut machine, true).await, Ok(End::Stopped));
        let written = Written {
            cluster: "c1".into(),
            release: "r0".into(),
            rollout: 1,
            at: machine.world.now,
            retried_for: Some(machine.world.now),
        };
        let cache = machine.world.api.clone();
        machine.world.write_sync(&written, &[], None, &cache);
        let cluster = ClusterName::new("c1");
        let violations = machine.world.violations;
        assert!(
            violations.contains(&Violation::RetriedWithoutRequest { cluster }),
            "{violations:?}"
        );
    });
}
