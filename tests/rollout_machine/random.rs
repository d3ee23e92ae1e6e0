//! Random groups and histories with faults.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;
use proptest::sample::select;
use starling_api::{ActionType, DeletionPolicy, IntOrPercent, OnNewRevision, RollbackType};
use starling_core::simulate::{Fate, SimulatedMember};

use crate::arbitrary::{self, t};
use crate::block_on;
use crate::faults::{Fault, fault};
use crate::idle::run_until_idle;
use crate::machine::{Machine, Updates};
use crate::order::Order;
use crate::world::{Cluster, Spec, World};

/// An event. A number selects the cluster or stage, modulo their count.
#[derive(Clone, Debug)]
enum Event {
    /// A release, and its fate on the clusters of a mask.
    Release(Fate, u16),
    /// The commit before the newest is offered again.
    Revert,
    /// Time passes.
    Later(u16),
    /// Time advances to the next scheduled event.
    Tick,
    Approve(u8),
    Say(ActionType),
    Promote(u8),
    SkipStage(u8),
    SkipCluster(u8),
    Lose(u8),
    Find(u8),
    /// Retry what failed, everywhere or on one cluster.
    Retry(Option<u8>),
    /// The next try on a cluster succeeds.
    Mend(u8),
    Leave(u8),
    Join(u8),
    ApproveDeselection,
    /// A cluster has something to prune, or its prune ends.
    Prune(u8),
    /// The stored release of the rollout is deleted.
    LoseRelease,
}

fn event() -> impl Strategy<Value = Event> {
    let fates = select(vec![Fate::Healthy, Fate::Fails, Fate::Hangs, Fate::CutsOff]);
    let said = select(vec![
        ActionType::Pause,
        ActionType::Resume,
        ActionType::Resume,
        ActionType::Abort,
        ActionType::Rollback,
        ActionType::Rollback,
        ActionType::Release,
    ]);
    prop_oneof![
        3 => (fates, any::<u16>()).prop_map(|(fate, mask)| Event::Release(fate, mask)),
        1 => Just(Event::Revert),
        2 => (0u16..900).prop_map(Event::Later),
        12 => Just(Event::Tick),
        4 => any::<u8>().prop_map(Event::Approve),
        3 => said.prop_map(Event::Say),
        1 => any::<u8>().prop_map(Event::Promote),
        1 => any::<u8>().prop_map(Event::SkipStage),
        1 => any::<u8>().prop_map(Event::SkipCluster),
        1 => any::<u8>().prop_map(Event::Lose),
        1 => any::<u8>().prop_map(Event::Find),
        2 => weighted(0.5, any::<u8>()).prop_map(Event::Retry),
        1 => any::<u8>().prop_map(Event::Mend),
        1 => any::<u8>().prop_map(Event::Leave),
        1 => any::<u8>().prop_map(Event::Join),
        1 => Just(Event::ApproveDeselection),
        3 => any::<u8>().prop_map(Event::Prune),
        1 => Just(Event::LoseRelease),
    ]
}

/// Mostly all watches; the others deliver before the next pass or the one after it.
fn updates() -> impl Strategy<Value = Updates> {
    let some = any::<[bool; 5]>();
    let some = some.prop_map(|[sources, group, clusters, syncs, actions]| Updates {
        sources,
        group,
        clusters,
        syncs,
        actions,
    });
    prop_oneof![2 => Just(Updates::ALL), 1 => some]
}

fn spec() -> impl Strategy<Value = Spec> {
    let policy = select(vec![
        OnNewRevision::Replace,
        OnNewRevision::Finish,
        OnNewRevision::Queue,
    ]);
    let rollback = select(vec![RollbackType::Staged, RollbackType::Immediate]);
    let unselected = select(vec![IntOrPercent::Int(1), IntOrPercent::Percent(100)]);
    let when_unselected = select(vec![DeletionPolicy::Orphan, DeletionPolicy::Delete]);
    let policies = (policy, rollback, unselected, when_unselected);
    (arbitrary::strategy(), policies).prop_map(
        |(mut strategy, (on_new_revision, rollback, max_unselected, when_unselected))| {
            strategy.windows.clear();
            Spec {
                strategy,
                on_new_revision,
                rollback,
                max_unselected,
                when_unselected,
            }
        },
    )
}

fn world() -> impl Strategy<Value = World> {
    let clusters = vec((any::<u8>(), 1u64..400, any::<u8>()), 1..10);
    (spec(), clusters).prop_map(|(spec, clusters)| {
        let stages = spec.strategy.stages.len();
        let clusters = clusters.into_iter().enumerate().map(|(n, (stage, takes, old))| {
            let member =
                SimulatedMember::new(&format!("uid-{n}"), BTreeMap::new(), Duration::from_secs(takes));
            let cluster = Cluster::new(member, usize::from(stage) % stages);
            let has_old = old % 4 == 0;
            (
                format!("c{n}").into(),
                if has_old { cluster.with_old() } else { cluster },
            )
        });
        World::new(t(0), spec, clusters.collect())
    })
}

fn happen(machine: &mut Machine, event: &Event) {
    let now = machine.world.now + Duration::from_secs(1);
    machine.world.go_to(now);
    let stage = |machine: &Machine, pick: u8| {
        let stages = &machine.world.spec.strategy.stages;
        stages[usize::from(pick) % stages.len()].name.clone()
    };
    let cluster = |machine: &Machine, pick: u8| {
        let clusters = &machine.world.api.clusters;
        clusters
            .keys()
            .nth(usize::from(pick) % clusters.len())
            .unwrap()
            .clone()
    };
    match event {
        Event::Release(fate, mask) => {
            let release = machine.world.offer_new();
            let clusters = machine.world.api.clusters.values_mut().enumerate();
            for (_, cluster) in clusters.filter(|(place, _)| mask >> place & 1 == 1) {
                cluster.member.fates.insert(release.to_string(), *fate);
            }
        }
        Event::Revert => {
            let rolls = machine.world.rollout().map(|rollout| (&rollout.release).into());
            let offered = &machine.world.api.offered;
            let mut known = machine.world.releases.iter().rev();
            let other = known.find(|release| *release != offered && Some(*release) != rolls.as_ref());
            if let Some(other) = other.cloned().or(rolls) {
                machine.world.api.offered = other;
            }
        }
        Event::Later(seconds) => {
            let later = now + Duration::from_secs((*seconds).into());
            machine.world.go_to(later);
        }
        Event::Prune(pick) => {
            let cluster = cluster(machine, *pick);
            machine.memory.prune_or_end(cluster);
        }
        Event::Tick => {
            let planned = machine.rechecks_at();
            let clusters = machine.world.api.clusters.values();
            let own = clusters.filter_map(|cluster| cluster.next_time());
            let gates = machine.memory.gates.next_time(now);
            if let Some(next) = own.chain(planned).chain(gates).filter(|at| *at > now).min() {
                machine.world.go_to(next);
            }
        }
        Event::Approve(pick) => {
            let stage = stage(machine, *pick);
            machine.world.approve(&stage);
        }
        Event::Say(action) => machine.world.add_action(*action, None, None),
        Event::Promote(pick) => {
            let stage = stage(machine, *pick);
            machine.world.add_action(ActionType::Promote, None, Some(stage));
        }
        Event::SkipStage(pick) => {
            let stage = stage(machine, *pick);
            machine.world.add_action(ActionType::Skip, None, Some(stage));
        }
        Event::SkipCluster(pick) => {
            let cluster = cluster(machine, *pick);
            machine.world.add_action(ActionType::Skip, Some(cluster), None);
        }
        Event::Retry(pick) => {
            let cluster = pick.map(|pick| cluster(machine, pick));
            machine.world.add_action(ActionType::Retry, cluster, None);
        }
        Event::Mend(pick) => {
            let cluster = cluster(machine, *pick);
            machine.world.repair(&cluster);
        }
        Event::Leave(pick) | Event::Join(pick) => {
            let cluster = cluster(machine, *pick);
            machine.world.select(&cluster, matches!(event, Event::Join(_)));
        }
        Event::ApproveDeselection => machine.world.approve_deselection(),
        Event::LoseRelease => {
            if let Some(release) = machine.world.rollout().map(|rollout| rollout.release.clone()) {
                machine.world.delete_release(&release);
            }
        }
        Event::Lose(pick) | Event::Find(pick) => {
            let name = cluster(machine, *pick);
            let member = &mut machine.world.api.clusters.get_mut(&name).unwrap().member;
            if matches!(event, Event::Lose(_)) {
                member.lose(now);
            } else {
                member.find_again();
            }
        }
    }
}

/// An event, the watches that deliver updates, and the fault at one of the next effects.
type Moment = (Event, Updates, Option<(usize, Fault)>);

async fn holds(world: World, events: &[Moment], approving: bool) -> Result<(), TestCaseError> {
    let mut machine = Machine::start(world, Order::Correct).await;
    for (event, updates, fault) in events {
        happen(&mut machine, event);
        if let Some((from_now, fault)) = fault {
            machine.faults.arm(*from_now, *fault);
        }
        machine.watch(*updates);
        machine.pass().await;
        prop_assert!(
            machine.world.violations.is_empty(),
            "after {:?}: {:?}",
            event,
            machine.world.violations
        );
    }
    machine.faults.disarm();
    let end = run_until_idle(&mut machine, approving).await;
    prop_assert!(end.is_ok(), "{:?}", end);
    machine.check_history().await;
    prop_assert!(
        machine.world.violations.is_empty(),
        "at the end: {:?}",
        machine.world.violations
    );
    Ok(())
}

/// The number of cases, or that of `PROPTEST_CASES`.
fn config(cases: u32) -> ProptestConfig {
    let found = std::env::var("PROPTEST_CASES").ok();
    ProptestConfig {
        cases: found.map_or(cases, |found| found.parse().unwrap()),
        failure_persistence: None,
        // A case is a whole history on a disk.
        max_shrink_iters: 60,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config(48))]

    /// For any events and faults at any effects: no invariant is violated, and without further faults, the rollout ends
    /// or reports what it waits for.
    #[test]
    fn no_faults_violate_an_invariant_and_every_history_ends(
        world in world(),
        events in vec((event(), updates(), weighted(0.5, (0usize..8, fault()))), 0..40),
        approving in any::<bool>(),
    ) {
        block_on(holds(world, &events, approving))?;
    }
}
