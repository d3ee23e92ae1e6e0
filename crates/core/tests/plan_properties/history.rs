//! Properties of random histories.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;
use starling_api::OnFailure;
use starling_core::plan::{Decision, Direction, HoldReason, Plan, RolloutVerdict, plan};

use crate::arbitrary::limits;
use crate::events::{Event, calm_event, event, fault};
use crate::world::{World, world};
use crate::{config, started};

proptest! {
    #![proptest_config(config(64))]

    /// Any event may happen, and operators may request anything: every plan passes the check, the group itself never
    /// uses a slot too many, and nothing starts before its gates.
    #[test]
    fn no_history_breaks_a_limit(mut world in world(limits()), events in vec(event(), 0..60)) {
        for event in events {
            world.happen(&event);
            world.roll(&event)?;
        }
    }

    /// If no cluster returns whose slot was given away, the limit is absolute: the group is never in flight on more
    /// clusters than it has slots.
    #[test]
    fn a_calm_history_never_has_more_in_flight_than_slots(
        mut world in world(limits()),
        events in vec(calm_event(), 0..60),
    ) {
        for event in events {
            world.happen(&event);
            prop_assert!(world.at_work() <= world.bounds().0, "after {:?}", event);
            world.roll(&event)?;
            prop_assert!(world.at_work() <= world.bounds().0, "after the plan that followed {:?}", event);
        }
    }

    /// A release that cuts its clusters off, fails on them or hangs stops after `maxConcurrency + maxFailures`
    /// clusters, whatever was in progress when it came.
    #[test]
    fn a_bad_release_starts_on_few_clusters(
        mut world in world(limits()),
        before in vec(event(), 0..30),
        faults in vec(fault(), 1..8),
        after in vec(event(), 0..30),
    ) {
        for event in before {
            world.happen(&event);
            world.roll(&event)?;
        }
        world.group_suspended = false;
        world.strategy.on_failure = OnFailure::Pause;
        world.release_everything_anew();
        let (slots, failures) = world.bounds();
        let mut touched = BTreeSet::new();
        for event in after.into_iter().chain(vec![Event::Tick; 20]) {
            if event.is_about_a_member() {
                world.happen_to(&event, |name| !touched.contains(name));
            } else if !event.changes_the_rollout() && !event.is_requested() {
                world.happen(&event);
            }
            for name in world.roll(&event)? {
                world.inject(&name, faults[touched.len() % faults.len()]);
                touched.insert(name);
            }
            prop_assert!(touched.len() <= slots + failures, "{} of {}+{}", touched.len(), slots, failures);
        }
    }

    /// Once faults stop, every reachable admitted cluster finishes in the end, and operators act, the rollout succeeds,
    /// in a number of plans that grows no faster than the fleet.
    #[test]
    fn every_fair_run_settles(
        mut world in world(limits()),
        events in vec(event(), 0..50),
        stay_broken in any::<bool>(),
        picks in vec(any::<u8>(), 1..8),
    ) {
        for event in events {
            world.happen(&event);
            world.roll(&event)?;
        }
        settles(&mut world, stay_broken, &picks)?;
    }

    /// A rollback ends as well, by stages or immediately, and whatever the previous release left behind.
    #[test]
    fn every_rollback_ends(
        mut world in world(limits()),
        events in vec(event(), 0..30),
        at_once in any::<bool>(),
        picks in vec(any::<u8>(), 1..8),
    ) {
        world.release_everything_anew();
        for event in events.iter().filter(|event| !event.changes_the_rollout()) {
            world.happen(event);
            world.roll(event)?;
        }
        world.happen(&Event::RollBack(at_once));
        prop_assert_ne!(world.rollout.direction, Direction::Forward);
        let rollback = plan(&world.input());
        prop_assert!(!matches!(rollback.verdict, RolloutVerdict::RollBack(_)), "{:#?}", rollback);
        settles(&mut world, false, &picks)?;
    }
}

/// Runs until nothing is left to do.
fn settles(world: &mut World, stay_broken: bool, picks: &[u8]) -> Result<(), TestCaseError> {
    world.faults_stop(stay_broken);
    let bound = 40 + 20 * (world.members.len() + world.strategy.stages.len());
    for round in 0..bound {
        let plan = world.plan_and_execute()?;
        if is_settled(&plan) {
            let held = plan.decisions.values().any(waits_for_a_parameter);
            prop_assert!(held || plan.verdict == RolloutVerdict::Succeeded, "{:#?}", plan);
            return Ok(());
        }
        let before = world.input();
        world.people_act(&plan);
        let finished = world.one_finishes(picks[round % picks.len()]);
        let acted = format!("{:?}", world.input()) != format!("{before:?}");
        let idle = started(&plan).is_empty() && !finished && !acted;
        if idle && !(plan.recheck_at.is_none() && world.the_past_recovers()) {
            prop_assert!(plan.recheck_at.is_some(), "stuck: {:#?} {:#?}", before, plan);
            world.now = plan.recheck_at.unwrap();
        }
    }
    prop_assert!(
        false,
        "not settled after {} plans: {:#?}",
        bound,
        plan(&world.input())
    );
    Ok(())
}

/// Whether nothing is left to do except for clusters that are unreachable, skipped, or without a parameter, and every
/// stage has passed, or the group has no clusters.
fn is_settled(plan: &Plan) -> bool {
    let mut stages = plan.stages.iter();
    let stages = plan.decisions.is_empty() || stages.all(|stage| stage.record.passed_at.is_some());
    let clusters = plan.decisions.values().all(|decision| match decision {
        Decision::Done => true,
        Decision::Hold { reason, .. } => {
            matches!(
                reason,
                HoldReason::ClusterUnreachable { .. } | HoldReason::Skipped(_)
            ) || waits_for_a_parameter(decision)
        }
        _ => false,
    });
    stages && clusters
}

fn waits_for_a_parameter(decision: &Decision) -> bool {
    matches!(
        decision,
        Decision::Hold {
            reason: HoldReason::InvalidParameters { .. },
            ..
        }
    )
}
