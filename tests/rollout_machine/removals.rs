//! Clusters that leave: their Syncs are removed after the journal has an entry, and never while too many clusters leave
//! together; nothing of them stays open in the ledger.

use std::collections::BTreeMap;
use std::time::Duration;

use starling_api::{ActionType, DeletionPolicy, IntOrPercent};
use starling_core::ids::{ClusterName, RolloutNumber};
use starling_core::simulate::{Fate, SimulatedMember};
use starling_ledger::AdmissionOutcome;

use crate::basic::world;
use crate::block_on;
use crate::faults::Fault;
use crate::idle::{End, run_until_idle};
use crate::invariants::Violation;
use crate::machine::{Machine, PassOutcome, Updates};
use crate::order::Order;
use crate::scenario::{all_on, violation_of, with_every_fault};
use crate::world::{Cluster, ID, World};

/// A cluster leaves while it is in flight, and another one after it is done. The second one joins again.
async fn history(machine: &mut Machine) -> Result<Vec<End>, String> {
    machine.watch(Updates::ALL);
    while machine.world.api.clusters["c1"].member.observed.is_none() {
        machine.pass().await;
        let later = machine.world.now + Duration::from_secs(1);
        machine.world.go_to(later);
    }
    machine.world.select("c1", false);
    let first = run_until_idle(machine, true).await?;
    machine.world.select("c6", false);
    let second = run_until_idle(machine, true).await?;
    machine.world.select("c6", true);
    let third = run_until_idle(machine, true).await?;
    Ok(vec![first, second, third])
}

/// The first release never ends on the first cluster.
fn world_with_hanging_cluster() -> World {
    let mut world = world();
    let first = world.api.clusters.get_mut("c1").unwrap();
    first.member.fates.insert("r0".to_owned(), Fate::Hangs);
    world
}

#[test]
fn a_cluster_leaves_despite_a_fault_at_any_effect() {
    block_on(async {
        let (outcome, effects) = with_every_fault(world_with_hanging_cluster, history).await;
        assert_eq!(outcome.ends, [End::Succeeded; 3]);
        let mut clusters = all_on("r0");
        clusters.insert("c1".into(), (None, false));
        assert_eq!(outcome.clusters, clusters);
        assert!(effects > 30, "{effects} effects are no history");
    });
}

#[test]
fn the_admission_of_a_removed_cluster_ends_as_left() {
    block_on(async {
        let mut machine = Machine::start(world_with_hanging_cluster(), Order::Correct).await;
        history(&mut machine).await.unwrap();
        let admissions = machine
            .ledger
            .admissions(&ID, RolloutNumber::new(1))
            .await
            .unwrap();
        let of = |name: &str| {
            let mut rows = admissions.iter().filter(|row| row.admission.key.cluster == name);
            rows.next().and_then(|row| row.end).map(|end| end.outcome)
        };
        assert_eq!(of("c1"), Some(AdmissionOutcome::Left));
        assert_eq!(of("c6"), Some(AdmissionOutcome::Applied));
        assert_eq!(machine.world.violations, []);
    });
}

/// A cluster leaves after the next release was recorded for it, and one that has just joined leaves again: whether
/// their Syncs were written or not.
async fn with_intents(machine: &mut Machine) -> Result<Vec<End>, String> {
    let first = run_until_idle(machine, true).await?;
    machine.world.offer_new();
    machine.world.select("c6", true);
    machine.watch(Updates::ALL);
    machine.pass().await;
    machine.world.select("c1", false);
    machine.world.select("c6", false);
    machine.world.approve_deselection();
    let second = run_until_idle(machine, true).await?;
    Ok(vec![first, second])
}

fn without_the_last() -> World {
    let mut world = world();
    world.select("c6", false);
    world
}

#[test]
fn an_intent_without_a_sync_ends_when_its_cluster_leaves() {
    block_on(async {
        let (outcome, _) = with_every_fault(without_the_last, with_intents).await;
        let mut clusters = all_on("r1");
        clusters.insert("c1".into(), (None, false));
        clusters.insert("c6".into(), (None, false));
        assert_eq!(outcome.clusters, clusters);
    });
}

/// Guards against an admission that stays open until the next start: the write of a Sync was refused, a pause kept the
/// next pass from writing it, and its cluster left after that.
#[test]
fn an_intent_whose_cluster_leaves_later_ends_while_the_process_runs() {
    block_on(async {
        let mut found = 0;
        for effect in 0..8 {
            let mut machine = Machine::start(without_the_last(), Order::Correct).await;
            run_until_idle(&mut machine, true).await.unwrap();
            machine.world.select("c6", true);
            machine.watch(Updates::ALL);
            machine.faults.arm(effect, Fault::Refused);
            machine.pass().await;
            let open = machine.ledger.open_admissions(&ID).await.unwrap();
            if open.is_empty() || machine.world.api.admission("c6").is_some() {
                continue;
            }
            found += 1;
            machine.faults.disarm();
            machine.world.add_action(ActionType::Pause, None, None);
            machine.watch(Updates::ALL);
            assert_eq!(machine.pass().await, PassOutcome::Completed);
            machine.world.select("c6", false);
            machine.world.approve_deselection();
            run_until_idle(&mut machine, true).await.unwrap();
            machine.check_open_admissions().await;
            assert_eq!(machine.world.violations, []);
        }
        assert!(found > 0, "no admission without a Sync");
    });
}

/// Guards against one write of status for each cluster that leaves. A crash between a count and its removals is among
/// the faults of the histories of this module.
#[test]
fn a_hundred_clusters_that_leave_are_counted_with_a_write_for_each_sixteen() {
    block_on(async {
        let cluster = |n: usize| {
            let member = SimulatedMember::new(&format!("uid-{n}"), BTreeMap::new(), Duration::from_secs(10));
            (format!("c{n:03}").into(), Cluster::new(member, 0))
        };
        let mut world = world();
        world.spec.strategy.stages.truncate(1);
        world.spec.strategy.stages[0].before.clear();
        world.spec.strategy.stages[0].after.clear();
        world.spec.strategy.limits.max_concurrency = IntOrPercent::Int(200);
        world.spec.max_unselected = IntOrPercent::Percent(100);
        world.spec.when_unselected = DeletionPolicy::Delete;
        world.api.clusters = (0..110).map(cluster).collect();
        let mut machine = Machine::start(world, Order::Correct).await;
        assert_eq!(run_until_idle(&mut machine, true).await, Ok(End::Succeeded));
        for n in 0..100 {
            machine.world.select(&format!("c{n:03}"), false);
        }
        assert_eq!(run_until_idle(&mut machine, true).await, Ok(End::Succeeded));
        assert_eq!(machine.world.counted.len(), 100);
        assert_eq!(machine.world.count_writes, 7);
        assert_eq!(machine.world.violations, []);
    });
}

#[test]
fn a_removed_cluster_with_an_open_admission_is_found() {
    let violations = block_on(violation_of(
        Order::RemovalNotSettled,
        world_with_hanging_cluster(),
        history,
    ));
    let cluster = ClusterName::new("c1");
    assert!(
        violations.contains(&Violation::OpenWithoutSync { cluster }),
        "{violations:?}"
    );
}

#[test]
fn a_removal_before_its_journal_entry_is_found() {
    block_on(async {
        let mut machine = Machine::start(world(), Order::Correct).await;
        assert_eq!(run_until_idle(&mut machine, true).await, Ok(End::Succeeded));
        machine.order = Order::JournalLast;
        machine.world.select("c6", false);
        assert!(run_until_idle(&mut machine, true).await.is_err());
        let cluster = ClusterName::new("c6");
        assert_eq!(
            machine.world.violations,
            [Violation::RemovalNotInJournal { cluster }]
        );
    });
}

/// Two clusters leave together, although only one may.
async fn two_leave(machine: &mut Machine) -> Result<Vec<End>, String> {
    let first = run_until_idle(machine, true).await?;
    machine.world.select("c5", false);
    machine.world.select("c6", false);
    let second = run_until_idle(machine, true).await?;
    let syncs_stay = ["c5", "c6"].map(|name| machine.world.api.clusters[name].member.observed.is_some());
    if syncs_stay != [true; 2] {
        return Err(format!("{syncs_stay:?}"));
    }
    machine.world.approve_deselection();
    let third = run_until_idle(machine, true).await?;
    Ok(vec![first, second, third])
}

#[test]
fn clusters_that_leave_together_stay_until_an_approval() {
    block_on(async {
        let (outcome, _) = with_every_fault(world, two_leave).await;
        let mut clusters = all_on("r0");
        clusters.insert("c5".into(), (None, false));
        clusters.insert("c6".into(), (None, false));
        assert_eq!(outcome.clusters, clusters);
        assert_eq!(outcome.ends, [End::Succeeded, End::Waits, End::Succeeded]);
    });
}

#[test]
fn a_removal_while_membership_is_held_is_found() {
    let violations = block_on(violation_of(Order::MembershipNotHeld, world(), two_leave));
    let cluster = ClusterName::new("c5");
    assert!(
        violations.contains(&Violation::RemovedWhileHeld { cluster }),
        "{violations:?}"
    );
}

/// A cluster is selected again before its Sync is removed, and the watch of clusters lags behind.
async fn reselected_before_removal(order: Order) -> (Vec<Violation>, bool) {
    let mut machine = Machine::start(world(), order).await;
    run_until_idle(&mut machine, true).await.unwrap();
    machine.world.select("c6", false);
    machine.watch(Updates::ALL);
    machine.pass().await;
    let later = machine.world.now + Duration::from_secs(10);
    machine.world.go_to(later);
    machine.world.select("c6", true);
    let updates = Updates {
        clusters: false,
        ..Updates::ALL
    };
    machine.watch(updates);
    machine.pass().await;
    let sync_stays = machine.world.api.clusters["c6"].member.observed.is_some();
    (machine.world.violations, sync_stays)
}

#[test]
fn a_cluster_that_is_missing_only_in_a_cache_keeps_its_sync() {
    let (violations, sync_stays) = block_on(reselected_before_removal(Order::Correct));
    assert_eq!((violations, sync_stays), (Vec::new(), true));
    let (violations, sync_stays) = block_on(reselected_before_removal(Order::RemovalNotConfirmed));
    let cluster = ClusterName::new("c6");
    assert_eq!(
        (violations, sync_stays),
        (vec![Violation::RemovedSelected { cluster }], false)
    );
}

/// Every cluster has a Sync of an entry that no release has any more, and clusters that leave lose their objects.
fn world_with_old_entry() -> World {
    let mut world = world();
    world.spec.when_unselected = DeletionPolicy::Delete;
    for cluster in world.api.clusters.values_mut() {
        *cluster = cluster.clone().with_old();
    }
    world
}

/// One cluster leaves with both Syncs.
async fn old_entry_goes(machine: &mut Machine) -> Result<Vec<End>, String> {
    machine.watch(Updates::ALL);
    while machine.world.api.clusters["c1"].member.observed.is_none() {
        machine.pass().await;
        let later = machine.world.now + Duration::from_secs(1);
        machine.world.go_to(later);
    }
    machine.world.select("c6", false);
    let first = run_until_idle(machine, true).await?;
    let stays = machine
        .world
        .api
        .clusters
        .iter()
        .filter(|(_, cluster)| cluster.old.is_some());
    let stays: Vec<&ClusterName> = stays.map(|(name, _)| name).collect();
    if stays.is_empty() {
        Ok(vec![first])
    } else {
        Err(format!("{stays:?} keep the entry"))
    }
}

#[test]
fn a_removed_entry_leaves_every_cluster_despite_a_fault_at_any_effect() {
    block_on(async {
        let (outcome, effects) = with_every_fault(world_with_old_entry, old_entry_goes).await;
        let mut clusters = all_on("r0");
        clusters.insert("c6".into(), (None, false));
        assert_eq!(outcome.clusters, clusters);
        assert_eq!(outcome.ends, [End::Succeeded]);
        assert!(effects > 40, "{effects} effects are no history");
    });
}

#[test]
fn the_removal_of_an_entry_before_its_journal_entry_is_found() {
    block_on(async {
        let mut machine = Machine::start(world(), Order::Correct).await;
        assert_eq!(run_until_idle(&mut machine, true).await, Ok(End::Succeeded));
        machine.order = Order::JournalLast;
        let first = machine.world.api.clusters.get_mut("c1").unwrap();
        *first = first.clone().with_old();
        assert!(run_until_idle(&mut machine, true).await.is_err());
        let cluster = ClusterName::new("c1");
        assert_eq!(
            machine.world.violations,
            [Violation::RemovalNotInJournal { cluster }]
        );
    });
}
