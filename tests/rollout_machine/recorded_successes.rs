//! A success is recorded, even if the next rollout starts immediately; and a release that is not stored any more is not
//! admitted.

use starling_api::{OnNewRevision, ReleaseStatus, RolloutPhase};
use starling_core::ids::RolloutNumber;
use starling_core::simulate::Fate;
use starling_ledger::RolloutOutcome;

use crate::basic::world;
use crate::block_on;
use crate::idle::{End, run_until_idle};
use crate::invariants::Violation;
use crate::machine::{Machine, PassOutcome, Updates};
use crate::order::Order;
use crate::scenario::{all_on, violation_of, with_every_fault};
use crate::world::{ID, World, Written};

/// The next release is offered before the first one has succeeded, and fails.
async fn overlapping(machine: &mut Machine) -> Result<Vec<End>, String> {
    machine.watch(Updates::ALL);
    while machine.world.rollout().is_none() {
        machine.pass().await;
    }
    let bad = machine.world.offer_new();
    let fourth = machine.world.api.clusters.get_mut("c4").unwrap();
    fourth.member.fates.insert(bad.into_string(), Fate::Fails);
    Ok(vec![run_until_idle(machine, true).await?])
}

fn with(policy: OnNewRevision) -> impl Fn() -> World {
    move || {
        let mut world = world();
        world.spec.on_new_revision = policy;
        world
    }
}

/// The next rollout starts as soon as the first one has succeeded: a rollback restores the release that succeeded.
#[test]
fn a_success_is_recorded_if_the_next_rollout_starts_immediately() {
    block_on(async {
        for policy in [OnNewRevision::Finish, OnNewRevision::Queue] {
            let (outcome, _) = with_every_fault(with(policy), overlapping).await;
            assert_eq!(outcome.clusters, all_on("r0"), "{policy:?}");
            assert_eq!(outcome.rollout, (3, "r0".to_owned(), RolloutPhase::Succeeded));
            assert_eq!(outcome.held.as_deref(), Some("r1"));
            assert_eq!(outcome.good.as_deref(), Some("r0"));

            let mut machine = Machine::start(with(policy)(), Order::Correct).await;
            overlapping(&mut machine).await.unwrap();
            let mut ends = Vec::new();
            for row in machine.ledger.rollouts(&ID).await.unwrap() {
                ends.push((row.rollout.id, row.end.map(|end| end.outcome)));
            }
            ends.sort_by_key(|(id, _)| *id);
            let of = |id, outcome| (RolloutNumber::new(id), Some(outcome));
            let expected = [
                of(1, RolloutOutcome::Succeeded),
                of(2, RolloutOutcome::Failed),
                of(3, RolloutOutcome::Succeeded),
            ];
            assert_eq!(ends, expected, "{policy:?}");
            assert!(machine.world.succeeded.contains(&1), "{policy:?}");
        }
    });
}

/// A cluster joins a succeeded rollout, and another release replaces it while the cluster is in flight.
async fn joining(machine: &mut Machine) -> Result<Vec<End>, String> {
    let first = run_until_idle(machine, true).await?;
    machine.world.select("c6", true);
    machine.watch(Updates::ALL);
    while machine.pass().await != PassOutcome::Completed {}
    machine.world.offer_new();
    Ok(vec![first, run_until_idle(machine, true).await?])
}

fn without_one() -> World {
    let mut world = world();
    world.select("c6", false);
    world
}

/// Guards against a success that is not recorded in the ledger: the response to the write of the status with the
/// success was lost, and when the next rollout started, the status reported that the rollout continues because of a
/// cluster that had joined.
#[test]
fn a_success_is_kept_if_a_cluster_joins_later() {
    block_on(async {
        let (outcome, _) = with_every_fault(without_one, joining).await;
        assert_eq!(outcome.rollout, (2, "r1".to_owned(), RolloutPhase::Succeeded));
        assert_eq!(outcome.clusters, all_on("r1"));
    });
}

#[test]
fn a_success_that_is_missing_in_the_ledger_is_found() {
    let world = with(OnNewRevision::Finish)();
    let violations = block_on(violation_of(Order::SuccessForgotten, world, overlapping));
    assert!(
        matches!(violations.first(), Some(Violation::History(_))),
        "{violations:?}"
    );
}

#[test]
fn a_second_write_of_the_status_is_found() {
    let violations = block_on(violation_of(Order::StatusTwice, world(), overlapping));
    assert!(violations.contains(&Violation::StatusTwice), "{violations:?}");
}

#[test]
fn a_release_that_is_not_on_every_cluster_is_not_known_good() {
    let mut world = world();
    let mut status = world.api.status.clone();
    status.last_known_good = Some(ReleaseStatus {
        release: "r0".to_owned(),
        revisions: Vec::new(),
    });
    let cache = world.api.clone();
    world.write_status(&status, &cache);
    let (release, cluster) = ("r0".into(), "c1".into());
    assert!(
        world
            .violations
            .contains(&Violation::GoodReleaseNotOnAllClusters { release, cluster })
    );
}

// ------------------------------------------------------------------ releases that are not stored

/// The release of a rollback is deleted, and so is the Sync of a cluster. A new release follows.
async fn delete_releases(machine: &mut Machine) -> Result<Vec<End>, String> {
    let mut ends = overlapping(machine).await?;
    machine.world.delete_release("r0");
    machine.world.api.clusters.get_mut("c6").unwrap().drop_sync();
    ends.push(run_until_idle(machine, true).await?);
    if machine.world.api.clusters["c6"].member.observed.is_some() {
        return Err("admitted to what is not stored".to_owned());
    }
    machine.world.offer_new();
    ends.push(run_until_idle(machine, true).await?);
    Ok(ends)
}

#[test]
fn a_release_that_is_not_stored_is_not_admitted() {
    block_on(async {
        let (outcome, _) = with_every_fault(with(OnNewRevision::Finish), delete_releases).await;
        assert_eq!(
            outcome.ends,
            [End::Succeeded, End::ReleaseNotStored, End::Succeeded]
        );
        assert_eq!(outcome.clusters, all_on("r2"));
    });
}

/// The release of the rollout is deleted while the Sources still offer it.
async fn losing_the_offered(machine: &mut Machine) -> Result<Vec<End>, String> {
    let mut ends = vec![run_until_idle(machine, true).await?];
    machine.world.delete_release("r0");
    ends.push(run_until_idle(machine, true).await?);
    if !machine.world.api.stored.contains("r0") {
        return Err("r0 is offered and not stored".to_owned());
    }
    Ok(ends)
}

#[test]
fn an_offered_release_that_was_deleted_is_stored_again() {
    block_on(async {
        let (outcome, _) = with_every_fault(world, losing_the_offered).await;
        assert_eq!(outcome.ends, [End::Succeeded, End::Succeeded]);
    });
}

#[test]
fn an_admission_of_a_release_that_is_not_stored_is_found() {
    let mut world = world();
    let written = Written {
        cluster: "c1".into(),
        release: "r9".into(),
        rollout: 1,
        at: world.now,
        retried_for: None,
    };
    let cache = world.api.clone();
    world.write_sync(&written, &[], None, &cache);
    let release = "r9".to_owned();
    assert!(world.violations.contains(&Violation::NotStored { release }));
}

/// A release is replaced during its rollout.
async fn replacing(machine: &mut Machine) -> Result<Vec<End>, String> {
    let first = run_until_idle(machine, true).await?;
    machine.world.offer_new();
    machine.watch(Updates::ALL);
    while machine.pass().await != PassOutcome::Completed {}
    machine.world.offer_new();
    Ok(vec![first, run_until_idle(machine, true).await?])
}

#[test]
fn releases_in_the_status_are_not_deleted() {
    block_on(async {
        let (outcome, _) = with_every_fault(world, replacing).await;
        assert_eq!(outcome.rollout, (3, "r2".to_owned(), RolloutPhase::Succeeded));
        let violations = violation_of(Order::GarbageFirst, world(), replacing).await;
        let release = "r1".to_owned();
        assert!(
            violations.contains(&Violation::NamedReleaseDeleted { release }),
            "{violations:?}"
        );
    });
}

/// The process dies between the intent of a rollout and the status that names it. The ledger and status then tell of
/// two beginnings of one rollout.
#[test]
fn the_ledger_and_status_agree_when_a_rollout_began() {
    block_on(async {
        let mut machine = Machine::start(world(), Order::Correct).await;
        machine.watch(Updates::ALL);
        // The journal is read, the release stored, the intent recorded; then the process dies.
        machine.faults.arm(3, crate::faults::Fault::Before);
        assert_eq!(machine.pass().await, PassOutcome::Restarted);
        assert!(machine.world.rollout().is_none());
        let later = machine.world.now + std::time::Duration::from_secs(3_600);
        machine.world.go_to(later);
        assert_eq!(run_until_idle(&mut machine, true).await, Ok(End::Succeeded));
        let started: jiff::Timestamp = machine.world.rollout().unwrap().start_time.parse().unwrap();
        let rows = machine.ledger.rollouts(&ID).await.unwrap();
        assert_eq!(rows[0].rollout.started_at, started);
    });
}

/// One answer of the ledger is an error, and the process lives on. All other effects are made good by later passes; the
/// end of a rollout is not, until somebody starts the process anew: `starling history` says that it rolls.
#[test]
fn the_end_of_a_rollout_is_recorded_by_the_same_process_after_an_error_of_the_ledger() {
    block_on(async {
        let mut open = Vec::new();
        for effect in 0..60 {
            let mut machine = Machine::start(world(), Order::Correct).await;
            machine.faults = crate::faults::Faults::at(effect, crate::faults::Fault::Refused);
            assert_eq!(run_until_idle(&mut machine, true).await, Ok(End::Succeeded));
            if machine.faults.injected() == 0 {
                break;
            }
            let rows = machine.ledger.rollouts(&ID).await.unwrap();
            let end = rows[0].end.map(|end| end.outcome);
            if end != Some(RolloutOutcome::Succeeded) {
                open.push((effect, end));
            }
        }
        assert_eq!(open, []);
    });
}

/// No law notices a controller that never stores a release: a release that is offered may be admitted without being
/// stored.
#[test]
fn a_controller_that_stores_no_release_is_found() {
    let violations = block_on(violation_of(Order::NothingStored, world(), replacing));
    assert!(
        violations
            .iter()
            .any(|violation| matches!(violation, Violation::NotStored { .. })),
        "{violations:?}"
    );
}
