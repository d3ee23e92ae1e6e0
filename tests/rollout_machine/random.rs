//! Random groups and histories, with a fault now and then.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;
use proptest::sample::select;
use starling_api::{ActionType, OnNewRevision, RollbackType};
use starling_core::plan::Gate;
use starling_core::simulate::{Fate, Member};

use crate::arbitrary::{self, t};
use crate::block_on;
use crate::fair::settle;
use crate::faults::{Fault, fault};
use crate::machine::{Machine, News, Order};
use crate::world::{Cluster, Spec, World};

/// What may happen. A number picks the cluster or stage, modulo how many there are.
#[derive(Clone, Debug)]
enum Event {
    /// A release, and what becomes of it on the clusters of a mask.
    Release(Fate, u16),
    /// The commit before the newest is offered again.
    Revert,
    Later(u16),
    /// The time at which something happens by itself.
    Tick,
    Approve(u8),
    Say(ActionType),
    Promote(u8),
    SkipStage(u8),
    SkipCluster(u8),
    Lose(u8),
    Find(u8),
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
    ]
}

/// Mostly all: what lags behind comes with the next look, or the one after that.
fn news() -> impl Strategy<Value = News> {
    let some = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    prop_oneof![
        2 => Just(News::ALL),
        1 => some.prop_map(|(sources, group, syncs, people)| News { sources, group, syncs, people }),
    ]
}

fn spec() -> impl Strategy<Value = Spec> {
    let policy = select(vec![
        OnNewRevision::Replace,
        OnNewRevision::Finish,
        OnNewRevision::Queue,
    ]);
    let rollback = select(vec![RollbackType::Staged, RollbackType::Immediate]);
    (arbitrary::strategy(), policy, rollback).prop_map(|(mut strategy, on_new_revision, rollback)| {
        strategy.windows.clear();
        // Nobody is here to find out about effects.
        for stage in &mut strategy.stages {
            for gate in stage.before.iter_mut().chain(&mut stage.after) {
                if matches!(gate, Gate::Effect(_)) {
                    *gate = Gate::Approval;
                }
            }
        }
        Spec {
            strategy,
            on_new_revision,
            rollback,
        }
    })
}

fn world() -> impl Strategy<Value = World> {
    let clusters = vec((any::<u8>(), 1u64..400), 1..10);
    (spec(), clusters).prop_map(|(spec, clusters)| {
        let stages = spec.strategy.stages.len();
        let clusters = clusters.into_iter().enumerate().map(|(n, (stage, takes))| {
            let cluster = Cluster {
                member: Member::new(&format!("uid-{n}"), BTreeMap::new(), Duration::from_secs(takes)),
                stage: usize::from(stage) % stages,
                rollout: 0,
            };
            (format!("c{n}"), cluster)
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
                cluster.member.fates.insert(release.clone(), *fate);
            }
        }
        Event::Revert => {
            let rolls = machine.world.rollout().map(|rollout| rollout.release.clone());
            let offered = &machine.world.api.offered;
            let mut known = machine.world.api.kept.iter().rev();
            let other = known.find(|release| *release != offered && Some(*release) != rolls.as_ref());
            if let Some(other) = other.cloned().or(rolls) {
                machine.world.api.offered = other;
            }
        }
        Event::Later(seconds) => {
            let later = now + Duration::from_secs((*seconds).into());
            machine.world.go_to(later);
        }
        Event::Tick => {
            let planned = machine.rechecks_at();
            let clusters = machine.world.api.clusters.values();
            let own = clusters.filter_map(|cluster| cluster.member.next_time());
            if let Some(next) = own.chain(planned).filter(|at| *at > now).min() {
                machine.world.go_to(next);
            }
        }
        Event::Approve(pick) => {
            let stage = stage(machine, *pick);
            machine.world.approve(&stage);
        }
        Event::Say(action) => machine.world.say(*action, None, None),
        Event::Promote(pick) => {
            let stage = stage(machine, *pick);
            machine.world.say(ActionType::Promote, None, Some(stage));
        }
        Event::SkipStage(pick) => {
            let stage = stage(machine, *pick);
            machine.world.say(ActionType::Skip, None, Some(stage));
        }
        Event::SkipCluster(pick) => {
            let cluster = cluster(machine, *pick);
            machine.world.say(ActionType::Skip, Some(cluster), None);
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

/// What happens, what the controller hears of it, and which fault strikes at which of the next effects.
type Moment = (Event, News, Option<(usize, Fault)>);

async fn holds(world: World, events: &[Moment], approving: bool) -> Result<(), TestCaseError> {
    let mut machine = Machine::start(world, Order::Right).await;
    for (event, news, fault) in events {
        happen(&mut machine, event);
        if let Some((from_now, fault)) = fault {
            machine.faults.arm(*from_now, *fault);
        }
        machine.watch(*news);
        machine.look().await;
        prop_assert!(
            machine.world.broken.is_empty(),
            "after {:?}: {:?}",
            event,
            machine.world.broken
        );
    }
    machine.faults.disarm();
    let end = settle(&mut machine, approving).await;
    prop_assert!(end.is_ok(), "{:?}", end);
    machine.check_history().await;
    prop_assert!(
        machine.world.broken.is_empty(),
        "at the end: {:?}",
        machine.world.broken
    );
    Ok(())
}

/// So many cases, or as many as `PROPTEST_CASES` says.
fn config(cases: u32) -> ProptestConfig {
    let told = std::env::var("PROPTEST_CASES").ok();
    ProptestConfig {
        cases: told.map_or(cases, |told| told.parse().unwrap()),
        failure_persistence: None,
        // A case is a whole history on a disk.
        max_shrink_iters: 60,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config(48))]

    /// Whatever happens, and whatever goes wrong at whichever effect: no law is broken, and once nothing goes wrong any more the
    /// rollout ends, or says who has to do something.
    #[test]
    fn no_history_of_faults_breaks_a_law_and_every_fair_one_ends(
        world in world(),
        events in vec((event(), news(), weighted(0.5, (0usize..8, fault()))), 0..40),
        approving in any::<bool>(),
    ) {
        block_on(holds(world, &events, approving))?;
    }
}
