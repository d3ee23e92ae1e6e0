//! One small history, with every fault at every effect: it ends as it does without.

use std::collections::BTreeMap;
use std::time::Duration;

use starling_api::{
    ActionType, IntOrPercent, OnFailure, OnNewRevision, OnUnreachable, RollbackType, RolloutPhase,
};
use starling_core::plan::{Gate, Limits, Progress, REST, StageRules, Strategy};
use starling_core::simulate::{Fate, Member};

use crate::arbitrary::t;
use crate::block_on;
use crate::fair::{End, settle};
use crate::faults::{FAULTS, Fault, Faults};
use crate::law::Broken;
use crate::machine::{Looked, Machine, News, Order};
use crate::world::{Cluster, Spec, World};

/// Six clusters, two of them in a canary that a person approves; two at a time; nothing may fail, and what does is gone back
/// from.
fn world() -> World {
    let stage = |name: &str, after| StageRules {
        name: name.to_owned(),
        max_concurrency: None,
        max_unavailable: None,
        max_failures: None,
        before: Vec::new(),
        after,
    };
    let strategy = Strategy {
        limits: Limits {
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
    };
    let clusters = (1..=6).map(|n| {
        let cluster = Cluster {
            member: Member::new(&format!("uid-{n}"), BTreeMap::new(), Duration::from_secs(10)),
            stage: usize::from(n > 2),
            rollout: 0,
        };
        (format!("c{n}"), cluster)
    });
    World::new(t(0), spec, clusters.collect())
}

/// What a history ended with. Times are its own.
#[derive(Clone, Debug, PartialEq)]
struct Outcome {
    clusters: BTreeMap<String, (Option<String>, bool)>,
    rollout: (i64, String, RolloutPhase),
    held: Option<String>,
    good: Option<String>,
    ends: [End; 2],
}

/// The first release goes through; the second fails on a cluster of the second stage.
async fn play(machine: &mut Machine) -> Result<Outcome, String> {
    let first = settle(machine, true).await?;
    let bad = machine.world.offer_new();
    for (name, cluster) in &mut machine.world.api.clusters {
        if name == "c4" {
            cluster.member.fates.insert(bad.clone(), Fate::Fails);
        }
    }
    let second = settle(machine, true).await?;
    machine.check_history().await;
    if !machine.world.broken.is_empty() {
        return Err(format!("{:?}", machine.world.broken));
    }
    let status = &machine.world.api.status;
    let rollout = status.rollout.clone().unwrap_or_default();
    let clusters = machine.world.api.clusters.iter().map(|(name, cluster)| {
        let sync = cluster.member.observed.as_ref();
        let holds = sync.is_some_and(|sync| matches!(sync.progress, Progress::Held(_)));
        (name.clone(), (sync.and_then(|sync| sync.target.clone()), holds))
    });
    Ok(Outcome {
        clusters: clusters.collect(),
        rollout: (rollout.id, rollout.release, rollout.phase),
        held: status.held_release.as_ref().map(|held| held.release.clone()),
        good: status.last_known_good.as_ref().map(|good| good.release.clone()),
        ends: [first, second],
    })
}

async fn play_with(faults: Faults) -> (Machine, Result<Outcome, String>) {
    let mut machine = Machine::start(world(), Order::Right).await;
    machine.faults = faults;
    let outcome = play(&mut machine).await;
    (machine, outcome)
}

#[test]
fn whatever_effect_is_cut_short_the_history_ends_the_same() {
    block_on(async {
        let (machine, expected) = play_with(Faults::default()).await;
        let expected = expected.unwrap();
        let everywhere_back = (1..=6).map(|n| (format!("c{n}"), (Some("r0".to_owned()), true)));
        assert_eq!(
            expected,
            Outcome {
                clusters: everywhere_back.collect(),
                rollout: (3, "r0".into(), RolloutPhase::Succeeded),
                held: Some("r1".into()),
                good: Some("r0".into()),
                ends: [End::Through, End::Through],
            }
        );
        let effects = machine.faults.reached();
        assert!(effects > 30, "{effects} effects are no history");
        for effect in 0..effects {
            for fault in FAULTS {
                let (machine, outcome) = play_with(Faults::at(effect, fault)).await;
                assert_eq!(outcome.as_ref(), Ok(&expected), "{fault:?} at effect {effect}");
                assert!(
                    machine.faults.struck == 1,
                    "{fault:?} at effect {effect} did not happen"
                );
            }
        }
    });
}

/// A controller that does things in the wrong order is found out.
async fn caught(order: Order) -> Vec<Broken> {
    let mut machine = Machine::start(world(), order).await;
    let played = play(&mut machine).await;
    assert!(played.is_err(), "{order:?} was not noticed: {played:?}");
    machine.world.broken
}

#[test]
fn a_sync_before_its_intent_is_found() {
    let broken = block_on(caught(Order::SyncBeforeIntent));
    let cluster = "c1".to_owned();
    assert!(broken.contains(&Broken::NoIntent { cluster }), "{broken:?}");
}

#[test]
fn an_admission_before_the_record_of_its_stage_is_found() {
    let broken = block_on(caught(Order::StageAfterAdmission));
    let (cluster, stage) = ("c1".to_owned(), "canary".to_owned());
    assert!(
        broken.contains(&Broken::StageNotRecorded { cluster, stage }),
        "{broken:?}"
    );
}

#[test]
fn an_admission_before_the_journal_tells_of_it_is_found() {
    let broken = block_on(caught(Order::JournalAfterAdmission));
    let cluster = "c1".to_owned();
    assert!(broken.contains(&Broken::NotInJournal { cluster }), "{broken:?}");
}

/// A rollout is written to status, the answer is lost, and the watch of groups is behind that of Sources: whoever takes an error
/// for a write that was not done gives its number to another release.
async fn a_lost_answer_and_a_slow_watch(order: Order) -> Vec<Broken> {
    let mut machine = Machine::start(world(), order).await;
    settle(&mut machine, true).await.unwrap();
    machine.world.offer_new();
    machine.watch(News::ALL);
    // The release is kept, the intent recorded, the status written; the journal has no news of the one before.
    machine.faults.arm(2, Fault::AnswerLost);
    assert_eq!(machine.look().await, Looked::Failed);
    assert_eq!(machine.world.rollout().map(|rollout| rollout.id), Some(2));
    machine.world.offer_new();
    machine.watch(News {
        group: false,
        ..News::ALL
    });
    machine.look().await;
    machine.world.broken
}

#[test]
fn who_takes_an_error_for_a_write_that_was_not_done_is_found() {
    let broken = block_on(a_lost_answer_and_a_slow_watch(Order::NotReadAgain));
    assert_eq!(broken, [Broken::TwoReleases { rollout: 2 }]);
    let broken = block_on(a_lost_answer_and_a_slow_watch(Order::Right));
    assert_eq!(broken, []);
}

/// Guards against a way back that ends where it began: a release waited for its turn (`Queue`), a person went back from it, and its
/// turn came when the way back was through.
#[test]
fn a_release_that_was_gone_back_from_while_it_waited_has_no_turn() {
    block_on(async {
        let mut world = world();
        world.spec.on_new_revision = OnNewRevision::Queue;
        let mut machine = Machine::start(world, Order::Right).await;
        assert_eq!(settle(&mut machine, true).await, Ok(End::Through));
        machine.world.offer_new();
        assert_eq!(settle(&mut machine, false).await, Ok(End::Waits));
        machine.world.offer_new();
        assert_eq!(settle(&mut machine, false).await, Ok(End::Waits));
        let queue = |machine: &Machine| -> Vec<String> {
            let queue = machine.world.api.status.queue.iter();
            queue.map(|waiting| waiting.release.clone()).collect()
        };
        assert_eq!(queue(&machine), ["r2"]);
        machine.world.say(ActionType::Rollback, None, None);
        assert_eq!(settle(&mut machine, true).await, Ok(End::Through));
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

/// Guards against a rollout that never starts: nothing is recorded of the one stage of a group without stages, so a promoted one
/// opened anew with every look, and its jitter began again.
#[test]
fn a_group_without_stages_goes_on_where_somebody_promotes_it() {
    block_on(async {
        let mut world = world();
        world.spec.strategy.stages.remove(0);
        world.spec.strategy.limits.jitter = Duration::from_secs(300);
        for cluster in world.api.clusters.values_mut() {
            cluster.stage = 0;
        }
        let mut machine = Machine::start(world, Order::Right).await;
        assert_eq!(machine.look().await, Looked::Through);
        machine
            .world
            .say(ActionType::Promote, None, Some(REST.to_owned()));
        assert_eq!(settle(&mut machine, true).await, Ok(End::Through));
    });
}
