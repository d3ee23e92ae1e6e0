//! A basic history, with every fault at every effect: its outcome is that without faults.

use std::collections::BTreeMap;
use std::time::Duration;

use starling_api::{
    ActionType, DeletionPolicy, IntOrPercent, OnFailure, OnNewRevision, OnUnreachable, RollbackType,
    RolloutPhase,
};
use starling_core::ids::ClusterName;
use starling_core::plan::{Gate, REST, RolloutLimits, StageRules, Strategy};
use starling_core::simulate::{Fate, SimulatedMember};

use crate::arbitrary::t;
use crate::block_on;
use crate::faults::Fault;
use crate::idle::{End, run_until_idle};
use crate::invariants::Violation;
use crate::machine::{Machine, PassOutcome, Updates};
use crate::order::Order;
use crate::scenario::{Outcome, all_on, violation_of, with_every_fault};
use crate::world::{Cluster, Spec, World};

/// Six clusters, two of them in a canary with an approval; `maxConcurrency` is two; no failure is allowed, and a failed
/// release is rolled back.
pub(crate) fn world() -> World {
    let stage = |name: &str, after| StageRules {
        name: name.to_owned(),
        max_concurrency: None,
        max_unavailable: None,
        max_failures: None,
        before: Vec::new(),
        after,
    };
    let strategy = Strategy {
        limits: RolloutLimits {
            max_concurrency: IntOrPercent::Int(2),
            max_unavailable: IntOrPercent::Percent(100),
            max_failures: IntOrPercent::Int(0),
            min_success_time: Duration::from_secs(5),
            progress_deadline: Duration::from_secs(600),
            jitter: Duration::ZERO,
        },
        on_failure: OnFailure::Rollback,
        on_unreachable: OnUnreachable::Skip,
        windows: Vec::new(),
        stages: vec![stage("canary", vec![Gate::Approval]), stage(REST, Vec::new())],
    };
    let spec = Spec {
        strategy,
        on_new_revision: OnNewRevision::Replace,
        rollback: RollbackType::Staged,
        max_unselected: IntOrPercent::Int(1),
        when_unselected: DeletionPolicy::Orphan,
    };
    let clusters = (1..=6).map(|n| {
        let member = SimulatedMember::new(&format!("uid-{n}"), BTreeMap::new(), Duration::from_secs(10));
        (format!("c{n}").into(), Cluster::new(member, usize::from(n > 2)))
    });
    World::new(t(0), spec, clusters.collect())
}

/// The first release succeeds; the second fails on a cluster of the second stage.
async fn history(machine: &mut Machine) -> Result<Vec<End>, String> {
    let first = run_until_idle(machine, true).await?;
    let bad = machine.world.offer_new();
    for (name, cluster) in &mut machine.world.api.clusters {
        if name == "c4" {
            cluster.member.fates.insert(bad.to_string(), Fate::Fails);
        }
    }
    let second = run_until_idle(machine, true).await?;
    Ok(vec![first, second])
}

#[test]
fn a_fault_at_any_effect_does_not_change_the_outcome() {
    block_on(async {
        let (outcome, effects) = with_every_fault(world, history).await;
        assert_eq!(
            outcome,
            Outcome {
                clusters: all_on("r0"),
                rollout: (3, "r0".into(), RolloutPhase::Succeeded),
                held: Some("r1".into()),
                good: Some("r0".into()),
                ends: vec![End::Succeeded, End::Succeeded],
            }
        );
        assert!(effects > 30, "{effects} effects are no history");
    });
}

#[test]
fn a_sync_before_its_intent_is_found() {
    let violations = block_on(violation_of(Order::SyncBeforeIntent, world(), history));
    let cluster = ClusterName::new("c1");
    assert!(
        violations.contains(&Violation::NoIntent { cluster }),
        "{violations:?}"
    );
}

#[test]
fn an_admission_before_the_record_of_its_stage_is_found() {
    let violations = block_on(violation_of(Order::StageAfterAdmission, world(), history));
    let (cluster, stage) = ("c1".into(), "canary".to_owned());
    assert!(
        violations.contains(&Violation::StageNotRecorded { cluster, stage }),
        "{violations:?}"
    );
}

#[test]
fn an_admission_before_its_journal_entry_is_found() {
    let violations = block_on(violation_of(Order::JournalLast, world(), history));
    let cluster = ClusterName::new("c1");
    assert!(
        violations.contains(&Violation::NotInJournal { cluster }),
        "{violations:?}"
    );
}

/// A rollout is written to the status, the response is lost, and the watch of groups lags behind that of Sources: a
/// controller that treats the error as no write would give the rollout number to another release.
async fn lost_response_with_slow_watch(order: Order) -> Vec<Violation> {
    let mut machine = Machine::start(world(), order).await;
    run_until_idle(&mut machine, true).await.unwrap();
    machine.world.offer_new();
    machine.watch(Updates::ALL);
    // The release is stored, the intent recorded, the status written; the journal has no new entry of the previous
    // rollout.
    machine.faults.arm(2, Fault::ResponseLost);
    assert_eq!(machine.pass().await, PassOutcome::Failed);
    assert_eq!(machine.world.rollout().map(|rollout| rollout.id), Some(2));
    machine.world.offer_new();
    machine.watch(Updates {
        group: false,
        ..Updates::ALL
    });
    machine.pass().await;
    machine.world.violations
}

#[test]
fn an_error_treated_as_no_write_is_found() {
    let violations = block_on(lost_response_with_slow_watch(Order::NotReadAgain));
    assert_eq!(violations, [Violation::TwoReleases { rollout: 2 }]);
    let violations = block_on(lost_response_with_slow_watch(Order::Correct));
    assert_eq!(violations, []);
}

/// Guards against a rollback that ends with the same release: a queued release (`Queue`) was rolled back, and started
/// when the rollback had succeeded.
#[test]
fn a_queued_release_that_was_rolled_back_does_not_start() {
    block_on(async {
        let mut world = world();
        world.spec.on_new_revision = OnNewRevision::Queue;
        let mut machine = Machine::start(world, Order::Correct).await;
        assert_eq!(run_until_idle(&mut machine, true).await, Ok(End::Succeeded));
        machine.world.offer_new();
        assert_eq!(run_until_idle(&mut machine, false).await, Ok(End::Waits));
        machine.world.offer_new();
        assert_eq!(run_until_idle(&mut machine, false).await, Ok(End::Waits));
        let queue = |machine: &Machine| -> Vec<String> {
            let queue = machine.world.api.status.queue.iter();
            queue.map(|waiting| waiting.release.clone()).collect()
        };
        assert_eq!(queue(&machine), ["r2"]);
        machine.world.add_action(ActionType::Rollback, None, None);
        assert_eq!(run_until_idle(&mut machine, true).await, Ok(End::Succeeded));
        let status = &machine.world.api.status;
        let rolls = status
            .rollout
            .as_ref()
            .map(|rollout| (rollout.id, rollout.release.as_str()));
        assert_eq!(rolls, Some((3, "r0")));
        let held = status.held_release.as_ref().map(|held| held.release.as_str());
        assert_eq!(held, Some("r2"));
        assert_eq!(queue(&machine), [""; 0]);
    });
}

/// Guards against a rollout that never starts: the single stage of a group without stages has no record, so a promoted
/// one opened again in every pass, and its jitter started again.
#[test]
fn a_group_without_stages_continues_after_a_promote() {
    block_on(async {
        let mut world = world();
        world.spec.strategy.stages.remove(0);
        world.spec.strategy.limits.jitter = Duration::from_secs(300);
        for cluster in world.api.clusters.values_mut() {
            cluster.stage = 0;
        }
        let mut machine = Machine::start(world, Order::Correct).await;
        assert_eq!(machine.pass().await, PassOutcome::Completed);
        machine
            .world
            .add_action(ActionType::Promote, None, Some(REST.to_owned()));
        assert_eq!(run_until_idle(&mut machine, true).await, Ok(End::Succeeded));
    });
}
