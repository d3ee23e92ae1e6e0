//! Properties of the rollout planner: over random fleets, and over random histories of one fleet.

// clippy.toml lets tests unwrap, but does not count the functions that tests share.
#![allow(clippy::unwrap_used)]

mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use starling_api::{IntOrPercent, RolloutPhase};
use starling_core::plan::check::check;
use starling_core::plan::{
    ClusterView, Decision, EntryView, HoldReason, Limits, ObservedSync, Plan, PlanInput, Progress, Reach,
    plan,
};

use world::{Event, calm_event, curse, event};

/// The release that rolls in random inputs; `OLD` is one before it.
const NEW: &str = "r2";
const OLD: &str = "r1";

fn t(seconds: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(1_700_000_000 + seconds)
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

fn limit() -> impl Strategy<Value = IntOrPercent> {
    prop_oneof![
        4 => (0u32..6).prop_map(IntOrPercent::Int),
        1 => (6u32..60).prop_map(IntOrPercent::Int),
        3 => (0u32..=100).prop_map(IntOrPercent::Percent),
    ]
}

fn limits() -> impl Strategy<Value = Limits> {
    let jitter = prop_oneof![Just(0u64), 1u64..600];
    (limit(), limit(), 1u64..900, jitter).prop_map(|(max_concurrency, max_failures, deadline, jitter)| {
        Limits {
            max_concurrency,
            max_failures,
            progress_deadline: Duration::from_secs(deadline),
            jitter: Duration::from_secs(jitter),
        }
    })
}

fn progress() -> impl Strategy<Value = Progress> {
    prop_oneof![
        3 => Just(Progress::Working),
        3 => Just(Progress::Done),
        1 => Just(Progress::Degraded {
            reason: "HealthCheckFailed".into(),
            message: "not available".into(),
        }),
        1 => prop::option::of(0i64..2000).prop_map(|retry| Progress::Failing {
            reason: "ApplyFailed".into(),
            message: "refused".into(),
            retry_at: retry.map(t),
        }),
    ]
}

fn observed_sync() -> impl Strategy<Value = ObservedSync> {
    // The new target may have been admitted by the older release: it left the entry as it is.
    let admission = prop_oneof![
        1 => Just((None, "")),
        3 => Just((Some("new"), NEW)),
        1 => Just((Some("new"), OLD)),
        3 => Just((Some("old"), OLD)),
        1 => Just((Some("other parameters"), NEW)),
    ];
    let admitted_at = prop_oneof![1 => Just(None), 9 => (0i64..1200).prop_map(Some)];
    (admission, admitted_at, progress(), prop::bool::weighted(0.05)).prop_map(
        |((target, release), admitted_at, progress, suspended)| ObservedSync {
            target: target.map(str::to_owned),
            release: release.to_owned(),
            admitted_at: admitted_at.map(t),
            progress,
            suspended,
        },
    )
}

fn entry() -> impl Strategy<Value = EntryView> {
    let wanted = prop_oneof![
        19 => Just(Ok("new".to_owned())),
        1 => Just(Err("no such label".to_owned())),
    ];
    (wanted, prop::option::weighted(0.8, observed_sync()))
        .prop_map(|(wanted, observed)| EntryView { wanted, observed })
}

fn reach() -> impl Strategy<Value = Reach> {
    prop_oneof![
        12 => Just(Reach::Ready),
        1 => Just(Reach::Unprobed),
        1 => Just(Reach::Suspended),
        2 => Just(world::unreachable(t(0))),
    ]
}

fn cluster() -> impl Strategy<Value = ClusterView> {
    let entries = btree_map(prop::sample::select(&["app", "base", "crds"][..]), entry(), 1..4);
    (any::<u64>(), reach(), entries).prop_map(|(uid, reach, entries)| ClusterView {
        uid: uid.to_string(),
        reach,
        entries: entries
            .into_iter()
            .map(|(name, entry)| (name.to_owned(), entry))
            .collect(),
    })
}

fn input() -> impl Strategy<Value = PlanInput> {
    (
        vec(cluster(), 0..40),
        limits(),
        prop::bool::weighted(0.1),
        0i64..1500,
        0i64..1500,
    )
        .prop_map(|(clusters, limits, suspended, now, started_at)| PlanInput {
            now: t(now),
            limits,
            suspended,
            release: NEW.into(),
            started_at: t(started_at),
            clusters: clusters
                .into_iter()
                .enumerate()
                .map(|(n, cluster)| (format!("c{n:02}"), cluster))
                .collect(),
        })
}

fn started(plan: &Plan) -> BTreeMap<&String, &Vec<String>> {
    plan.decisions
        .iter()
        .filter_map(|(name, decision)| match decision {
            Decision::Start { entries } => Some((name, entries)),
            _ => None,
        })
        .collect()
}

/// The fleet after the plan was executed: what it starts is admitted now, and at work.
fn execute(input: &PlanInput, plan: &Plan) -> PlanInput {
    let mut after = input.clone();
    for (name, entries) in started(plan) {
        let cluster = after.clusters.get_mut(name).unwrap();
        for entry in entries {
            let entry = cluster.entries.get_mut(entry).unwrap();
            entry.observed = Some(ObservedSync {
                target: Some(entry.wanted.clone().unwrap()),
                release: input.release.clone(),
                admitted_at: Some(input.now),
                progress: Progress::Working,
                suspended: false,
            });
        }
    }
    after
}

/// Whether an entry that this release brought has already failed.
fn has_failed(cluster: &ClusterView) -> bool {
    cluster
        .entries
        .values()
        .filter(|entry| entry.wanted.as_ref().ok() == entry.observed.as_ref().and_then(|o| o.target.as_ref()))
        .filter_map(|entry| entry.observed.as_ref())
        .any(|sync| sync.release == NEW && matches!(sync.progress, Progress::Failing { .. }))
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn every_plan_passes_the_checker(input in input()) {
        let plan = plan(&input);
        prop_assert_eq!(check(&input, &plan), Ok(()), "{:#?}", plan);
    }

    #[test]
    fn the_same_input_gives_the_same_plan(input in input()) {
        let mut again = input.clone();
        again.clusters = input.clusters.clone().into_iter().rev().collect();
        prop_assert_eq!(plan(&input), plan(&again));
    }

    /// The bounds in the fewest words, beside the checker: counted from the decisions alone.
    #[test]
    fn a_plan_stays_within_its_bounds(input in input()) {
        let plan = plan(&input);
        let total = input.clusters.len();
        let slots = input.limits.max_concurrency.of_rounded_up(total).max(1);
        let count = |wanted: fn(&Decision) -> bool| plan.decisions.values().filter(|d| wanted(d)).count();
        let starts = count(|d| matches!(d, Decision::Start { .. }));
        let in_flight = count(|d| matches!(d, Decision::InFlight { .. }));
        let failed = count(|d| matches!(d, Decision::Failed { .. }));
        prop_assert_eq!(plan.decisions.len(), total);
        if starts > 0 {
            prop_assert!(failed <= input.limits.max_failures.of_rounded_down(total));
            prop_assert!(!input.suspended);
            let cut_short = started(&plan).into_iter().filter(|(name, _)| {
                let sync = |entry: &EntryView| entry.observed.clone();
                input.clusters[*name].entries.values().filter_map(sync).any(|sync| sync.release == NEW)
            });
            let fresh = starts - cut_short.count();
            prop_assert!(fresh == 0 || in_flight + fresh <= slots, "{} beside {} of {}", fresh, in_flight, slots);
        }
    }

    /// A plan that was executed is satisfied. Only a cluster whose other entries had failed before this plan
    /// completed its admission gives its slot up at once: one other may take it, and one may go on to this
    /// release in the slot it has, because the release is through with one cluster more.
    #[test]
    fn planning_again_after_execution_starts_nothing(input in input()) {
        let first = plan(&input);
        let after = execute(&input, &first);
        let second = plan(&after);
        prop_assert_eq!(check(&after, &second), Ok(()));
        let starts = started(&second);
        let given_up = started(&first).into_keys().filter(|name| has_failed(&input.clusters[*name])).count();
        prop_assert!(starts.len() <= 2 * given_up, "{:?}", starts);
        prop_assert!(starts.keys().all(|name| !started(&first).contains_key(*name)));
    }

    /// Without that exception: no failures, nothing at all.
    #[test]
    fn planning_again_after_execution_starts_nothing_at_all_where_nothing_failed(mut input in input()) {
        for cluster in input.clusters.values_mut() {
            for sync in cluster.entries.values_mut().filter_map(|entry| entry.observed.as_mut()) {
                if matches!(sync.progress, Progress::Failing { .. }) {
                    sync.progress = Progress::Working;
                }
            }
        }
        let after = execute(&input, &plan(&input));
        let second = plan(&after);
        prop_assert_eq!(started(&second), BTreeMap::new());
    }

    /// What breaks after it was done changes no decision, no slot and no budget.
    #[test]
    fn health_at_rest_decides_nothing(input in input()) {
        let mut healthy = input.clone();
        for cluster in healthy.clusters.values_mut() {
            for sync in cluster.entries.values_mut().filter_map(|entry| entry.observed.as_mut()) {
                if sync.progress.is_done() {
                    sync.progress = Progress::Done;
                }
            }
        }
        prop_assert_eq!(plan(&input), plan(&healthy));
    }

    /// The exact meaning of `recheck_at`, with the planner as its own witness.
    #[test]
    fn time_alone_changes_a_decision_at_recheck_and_not_before(input in input()) {
        let mut input = execute(&input, &plan(&input));
        let settled = plan(&input);
        prop_assume!(started(&settled).is_empty());
        let until = settled.recheck_at.unwrap_or(input.now + SignedDuration::from_hours(10_000));
        input.now = until - SignedDuration::from_nanos(1);
        prop_assert_eq!(&plan(&input).decisions, &settled.decisions);
        input.now = until;
        prop_assert_eq!(plan(&input).decisions != settled.decisions, settled.recheck_at.is_some());
    }
}

proptest! {
    #![proptest_config(config(256))]

    /// Anything may happen to the fleet: every plan passes the checker, what the group itself does never
    /// takes a slot too many, and a plan made again without news starts nothing.
    #[test]
    fn no_history_breaks_a_bound(mut world in world::world(limits()), events in vec(event(), 0..80)) {
        for event in events {
            world.happen(&event);
            world.roll(&event)?;
        }
    }

    /// Where nothing comes back that was given up, the bound is absolute: at no time is the group at work on more
    /// clusters than it has slots.
    #[test]
    fn a_calm_history_never_has_more_at_work_than_slots(
        mut world in world::world(limits()),
        events in vec(calm_event(), 0..80),
    ) {
        for event in events {
            world.happen(&event);
            prop_assert!(world.at_work() <= world.bounds().0, "after {:?}", event);
            world.roll(&event)?;
            prop_assert!(world.at_work() <= world.bounds().0, "after the plan that followed {:?}", event);
        }
    }

    /// A release that cuts its clusters off, fails on them or hangs stops after `maxConcurrency + maxFailures`
    /// of them, whatever the fleet was doing when it came.
    #[test]
    fn a_bad_release_touches_few_clusters(
        mut world in world::world(limits()),
        before in vec(event(), 0..30),
        curses in vec(curse(), 1..8),
        after in vec(event(), 0..40),
    ) {
        for event in before {
            world.happen(&event);
            world.roll(&event)?;
        }
        world.group_suspended = false;
        world.release_everything_anew();
        let (slots, failures) = world.bounds();
        let mut touched = BTreeSet::new();
        for event in after.into_iter().chain(vec![Event::Tick; 20]) {
            if event.is_about_a_member() {
                world.happen_to(&event, |name| !touched.contains(name));
            } else if !event.changes_what_rolls() {
                world.happen(&event);
            }
            for name in world.roll(&event)? {
                world.curse(&name, curses[touched.len() % curses.len()]);
                touched.insert(name);
            }
            prop_assert!(touched.len() <= slots + failures, "{} of {}+{}", touched.len(), slots, failures);
        }
    }

    /// Once faults stop and every admitted cluster that can be reached finishes in the end, the rollout
    /// succeeds, in a number of plans that grows with the number of clusters and not faster.
    #[test]
    fn every_fair_run_settles(
        mut world in world::world(limits()),
        events in vec(event(), 0..60),
        stay_broken in any::<bool>(),
        picks in vec(any::<u8>(), 1..8),
    ) {
        for event in events {
            world.happen(&event);
            world.roll(&event)?;
        }
        world.faults_stop(stay_broken);
        let bound = 10 + 8 * world.members.len();
        for round in 0..bound {
            let plan = world.plan_and_execute()?;
            if is_settled(&plan) {
                let report = plan.report(&world.input());
                prop_assert!((report.counts.held > 0) == (report.phase != RolloutPhase::Succeeded));
                return Ok(());
            }
            let finished = world.one_finishes(picks[round % picks.len()]);
            if started(&plan).is_empty() && !finished {
                prop_assert!(plan.recheck_at.is_some(), "stuck: {plan:#?}");
                world.now = plan.recheck_at.unwrap();
            }
        }
        prop_assert!(false, "not settled after {} plans: {:#?}", bound, plan(&world.input()));
    }
}

/// Nothing is left to do but for clusters that nobody can reach, or whose parameters nobody mends.
fn is_settled(plan: &Plan) -> bool {
    plan.decisions.values().all(|decision| match decision {
        Decision::Done => true,
        Decision::Hold { reason, .. } => matches!(
            reason,
            HoldReason::ClusterUnreachable { .. } | HoldReason::InvalidParameters { .. }
        ),
        Decision::Start { .. } | Decision::InFlight { .. } | Decision::Failed { .. } => false,
    })
}
