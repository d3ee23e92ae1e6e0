//! Explanations of a fleet of four clusters: a canary that requires an approval, the others in a window, with one slot.

use std::time::Duration;

use starling_api::IntOrPercent;

use super::*;
use crate::plan::{Attribution, Reach, ReadStrategy, plan};
use crate::rollout::{PlannerInput, Rolling};
use crate::simulate::{Fate, SimulatedMember, World};

/// A Friday, 11:00 in Berlin.
const BEGIN: &str = "2026-11-20T10:00:00Z";

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn world() -> World {
    let prod = serde_json::json!({"matchLabels": {"tier": "prod"}});
    let strategy = serde_json::json!({
        "maxConcurrency": 1,
        "maxFailures": 0,
        "windows": [{"allow": "Mon-Fri 16:00-20:00", "timeZone": "Europe/Berlin", "clusterSelector": prod}],
        "stages": [{
            "name": "canary",
            "clusterSelector": {"matchLabels": {"tier": "canary"}},
            "afterStageTasks": [{"type": "Approval"}],
        }],
    });
    let strategy = ReadStrategy::new(&serde_json::from_value(strategy).unwrap()).unwrap();
    let members = ["a", "b", "c", "d"].map(|name| {
        let tier = if name == "a" { "canary" } else { "prod" };
        let labels = [("tier".to_owned(), tier.to_owned())].into();
        (
            name.to_owned(),
            SimulatedMember::new(name, labels, Duration::from_secs(60)),
        )
    });
    let mut world = World::new(time(BEGIN), strategy, members.into(), "r1");
    world.settle();
    world
}

fn attribution() -> Attribution {
    Attribution {
        by: "jane".into(),
        reason: "lunch".into(),
        at: time(BEGIN),
    }
}

fn at(world: &mut World, text: &str) {
    world.run(time(text));
    world.now = time(text);
    world.settle();
}

/// Returns the reason and text of each blocker, and what ends the first one.
fn texts(explanation: &Explanation) -> (Vec<(&str, &str)>, &str) {
    let blockers = explanation.blockers.iter();
    let blockers = blockers.map(|blocker| (blocker.reason.as_str(), blocker.text.as_str()));
    (blockers.collect(), &explanation.next)
}

fn of(world: &World, name: &str) -> Explanation {
    let input = world.input().unwrap();
    cluster("web", &input, &plan(&input), name).unwrap()
}

fn durations(world: &World) -> Durations {
    let mut durations = Durations::default();
    durations.learn(&world.input().unwrap().clusters);
    durations
}

/// Returns the rollout of a simulated group, with this input.
fn current<'a>(world: &'a World, rolling: &'a Rolling, input: &'a PlanInput) -> CurrentRollout<'a> {
    CurrentRollout {
        status: &world.status,
        rolling,
        input,
        strategy: &world.strategy,
        on_new_revision: world.on_new_revision,
        rollback: world.rollback,
    }
}

fn estimate(world: &World, name: &str) -> Estimate {
    let PlannerInput { rolling, input } = world.planner_input().unwrap();
    estimate_cluster(current(world, &rolling, &input), &durations(world), name)
}

fn estimated_group(world: &World, durations: &Durations) -> Estimate {
    let PlannerInput { rolling, input } = world.planner_input().unwrap();
    estimate_group(current(world, &rolling, &input), durations)
}

const CLOSED: &str = "the window \"allow Mon,Tue,Wed,Thu,Fri 16:00-20:00 Europe/Berlin\" is closed until 2026-11-20T16:00 Europe/Berlin";

#[test]
fn a_cluster_waits_for_the_stage_before_it_then_its_window_then_a_slot() {
    let mut world = world();
    assert_eq!(
        texts(&of(&world, "b")),
        (
            vec![
                (
                    "StageProgressing",
                    "stage canary is in progress, 1 more cluster required: a"
                ),
                ("WindowClosed", CLOSED),
                ("NoSlot", "a slot: 1 of 1 in use now"),
            ],
            "these clusters are healthy on this release and soaked"
        )
    );
    at(&mut world, "2026-11-20T10:05:00Z");
    assert_eq!(of(&world, "a").state, "is on this release");
    let waits = of(&world, "b");
    assert_eq!(
        texts(&waits).0[0],
        ("AwaitingApproval", "stage canary waits for an approval")
    );
    assert_eq!(
        waits.next,
        "the stage is approved: starling approve web --stage canary --reason \"…\""
    );
    assert_eq!(waits.next_at, None);
    world.approve("canary", attribution());
    at(&mut world, "2026-11-20T10:06:00Z");
    let waits = of(&world, "b");
    assert_eq!(
        texts(&waits),
        (
            vec![("WindowClosed", CLOSED), ("NoSlot", "a slot: 0 of 1 in use now")],
            "the window opens"
        )
    );
    assert_eq!(waits.next_at, Some(time("2026-11-20T15:00:00Z")));
    at(&mut world, "2026-11-20T15:00:30Z");
    assert!(
        of(&world, "b")
            .state
            .starts_with("is being updated to this release; progress deadline: ")
    );
    assert_eq!(
        texts(&of(&world, "c")),
        (
            vec![("NoSlot", "all slots are in use (maxConcurrency 1): b")],
            "one of these clusters is done or failed"
        )
    );
}

#[test]
fn an_estimate_is_what_the_planner_does_if_clusters_take_as_long_as_before() {
    let mut world = world();
    assert_eq!(
        estimate(&world, "b"),
        Estimate::Unknown {
            why: NoEstimate::NoDurations
        }
    );
    at(&mut world, "2026-11-20T10:05:00Z");
    assert_eq!(
        estimate(&world, "b"),
        Estimate::Unknown {
            why: NoEstimate::WaitsForOthers
        }
    );
    world.approve("canary", attribution());
    at(&mut world, "2026-11-20T10:06:00Z");
    for (name, starts, done) in [
        ("b", "2026-11-20T15:00:00Z", "2026-11-20T15:01:00Z"),
        ("c", "2026-11-20T15:01:00Z", "2026-11-20T15:02:00Z"),
        ("d", "2026-11-20T15:02:00Z", "2026-11-20T15:03:00Z"),
    ] {
        let expected = Estimate::At {
            starts_at: Some(time(starts)),
            done_at: time(done),
            recorded: 1,
        };
        assert_eq!(estimate(&world, name), expected, "{name}");
    }
    let whole = estimated_group(&world, &durations(&world));
    assert!(
        matches!(whole, Estimate::At { done_at, .. } if done_at == time("2026-11-20T15:03:00Z")),
        "{whole:?}"
    );
    // The world agrees with the estimate.
    at(&mut world, "2026-11-20T15:03:00Z");
    let input = world.input().unwrap();
    assert_eq!(plan(&input).verdict, RolloutVerdict::Succeeded);
    // The estimate of a cluster that is done is the current time.
    let now = Estimate::At {
        starts_at: None,
        done_at: world.now,
        recorded: 4,
    };
    assert_eq!(estimate(&world, "b"), now);
}

#[test]
fn a_group_names_its_blockers_and_the_blocked_clusters() {
    let mut world = world();
    let group_of = |world: &World| {
        let input = world.input().unwrap();
        group("web", &input, &plan(&input), None)
    };
    let first = group_of(&world);
    assert_eq!(
        first.state,
        "Progressing, stage canary: 0 of 4 clusters are on this release, 1 in flight, 3 waiting"
    );
    assert_eq!(
        texts(&first).0,
        [(
            "StageProgressing",
            "stage canary is in progress, 1 more cluster required: a (b, c, d)"
        )]
    );
    at(&mut world, "2026-11-20T10:05:00Z");
    world.operator.paused = Some(attribution());
    let paused = group_of(&world);
    assert_eq!(
        texts(&paused),
        (
            vec![(
                "Paused",
                "the rollout is paused by jane at 2026-11-20T10:00:00Z (lunch) (b, c, d)"
            )],
            "the rollout is resumed: starling resume web --reason \"…\""
        )
    );
    world.operator.paused = None;
    world.approve("canary", attribution());
    at(&mut world, "2026-11-23T00:00:00Z");
    let through = group_of(&world);
    assert_eq!(through.state, "Succeeded: 4 of 4 clusters are on this release");
    assert!(
        through.blockers.is_empty() && through.next.is_empty(),
        "{through:?}"
    );
}

#[test]
fn a_failed_cluster_is_named_with_the_command_to_retry_it() {
    let mut world = world();
    if let Some(member) = world.members.get_mut("a") {
        member.fates.insert("r1".into(), Fate::Fails);
    }
    at(&mut world, "2026-11-20T10:05:00Z");
    let (own, waits) = (of(&world, "a"), of(&world, "b"));
    assert_eq!(own.state, "failed");
    assert_eq!(texts(&own).0, [("ApplyFailed", "the release does not apply")]);
    assert!(
        own.blockers[0]
            .ends_with
            .ends_with("starling retry web --cluster a --reason \"…\""),
        "{own:?}"
    );
    assert_eq!(
        texts(&waits).0[0],
        ("TooManyFailures", "1 cluster failed (limit 0): a")
    );
}

/// A stage that others wait for also counts clusters that broke after they were done. A retry does nothing for them.
#[test]
fn a_cluster_that_breaks_while_its_stage_waits_is_named() {
    let mut world = world();
    at(&mut world, "2026-11-20T10:05:00Z");
    assert_eq!(of(&world, "a").state, "is on this release");
    if let Some(member) = world.members.get_mut("a") {
        member.break_down(time("2026-11-20T10:05:00Z"));
    }
    world.settle();
    let waits = of(&world, "b");
    assert_eq!(
        texts(&waits).0[0],
        ("TooManyFailures", "1 cluster of stage canary failed (limit 0): a")
    );
    assert_eq!(waits.next, "these clusters recover, or a new revision rolls out");
}

/// A stage names the clusters that it requires, without those that failed within the limit.
#[test]
fn required_clusters_of_a_stage_exclude_failed_ones() {
    let mut world = world();
    let limits = &mut world.strategy.strategy.limits;
    (limits.max_failures, limits.max_concurrency) = (IntOrPercent::Int(1), IntOrPercent::Int(2));
    limits.min_success_time = Duration::from_secs(600);
    if let Some(member) = world.members.get_mut("a") {
        member.fates.insert("r1".into(), Fate::Fails);
    }
    let label = [("tier".to_owned(), "canary".to_owned())].into();
    if let Some(member) = world.members.get_mut("b") {
        member.labels = label;
    }
    at(&mut world, "2026-11-20T10:05:00Z");
    let waits = of(&world, "c");
    assert_eq!(
        texts(&waits).0[0],
        ("Soaking", "stage canary is soaking, 1 more cluster required: b")
    );
    assert_eq!(waits.next_at, Some(time("2026-11-20T10:11:00Z")));
}

/// Each reason has its own message and an end, for a cluster and for a group.
#[test]
fn every_reason_has_a_message() {
    let mut world = world();
    at(&mut world, "2026-11-20T10:05:00Z");
    let input = world.input().unwrap();
    let plan = plan(&input);
    let explainer = Explainer {
        group: "web",
        input: &input,
        plan: &plan,
    };
    let reasons = [
        HoldReason::Skipped(attribution()),
        HoldReason::ClusterSuspended,
        HoldReason::SyncSuspended { entry: "app".into() },
        HoldReason::SyncUnreadable {
            entry: "app".into(),
            sync: "web-b".into(),
        },
        HoldReason::InvalidParameters {
            entry: "app".into(),
            message: "there is no label region".into(),
        },
        HoldReason::ClusterNotProbed,
        HoldReason::ClusterUnreachable {
            reason: "Unreachable".into(),
            message: "no answer".into(),
            since: time(BEGIN),
        },
        HoldReason::GroupSuspended,
        HoldReason::Paused(attribution()),
        HoldReason::Aborted(attribution()),
        HoldReason::MembershipHeld,
        HoldReason::TooManyFailures { stage: None },
        HoldReason::StageWaits {
            stage: 0,
            wait: StageWait::Unproven,
        },
        HoldReason::WindowClosed,
        HoldReason::Jitter,
        HoldReason::NoSlot,
        HoldReason::TooManyUnavailable,
        HoldReason::InstallationLimit,
    ];
    let view = &input.clusters["b"];
    let mut texts = std::collections::BTreeSet::new();
    for (place, reason) in reasons.iter().enumerate() {
        assert_eq!(rank(reason), place, "in the order of HoldReason");
        let blocker = explainer.blocker(reason, None, Some(("b", view)));
        assert_eq!(blocker.reason, reason.as_str());
        assert!(
            !blocker.ends_with.is_empty() && texts.insert(blocker.text),
            "{reason:?}"
        );
    }
}

/// The group, the stage, or both limit the slots: the message names the limit that is reached.
#[test]
fn the_exhausted_limit_is_named() {
    let told_of = |strategy: serde_json::Value| {
        let strategy = ReadStrategy::new(&serde_json::from_value(strategy).unwrap()).unwrap();
        let members = ["a", "b", "c"].map(|name| {
            let member = SimulatedMember::new(name, BTreeMap::new(), Duration::from_secs(60));
            (name.to_owned(), member)
        });
        let mut world = World::new(time(BEGIN), strategy, members.into(), "r1");
        world.settle();
        of(&world, "c").blockers[0].text.clone()
    };
    let slots = |whole: u32, of_stage: Option<u32>| {
        let mut stage = serde_json::json!({"name": "eu", "clusterSelector": {}});
        if let Some(slots) = of_stage {
            stage["maxConcurrency"] = slots.into();
        }
        told_of(serde_json::json!({"maxConcurrency": whole, "maxUnavailable": "100%", "stages": [stage]}))
    };
    for (whole, of_stage, expected) in [
        (2, None, "all slots are in use (maxConcurrency 2): a, b"),
        (2, Some(3), "all slots are in use (maxConcurrency 2): a, b"),
        (
            3,
            Some(2),
            "all slots are in use (maxConcurrency 2 of stage eu): a, b",
        ),
        (
            1,
            Some(1),
            "all slots are in use (maxConcurrency 1 of stage eu): a",
        ),
    ] {
        assert_eq!(slots(whole, of_stage), expected, "{whole} {of_stage:?}");
    }
    let unavailable = |whole: u32, of_stage: u32| {
        let stage = serde_json::json!({"name": "eu", "clusterSelector": {}, "maxUnavailable": of_stage});
        told_of(serde_json::json!({"maxConcurrency": 3, "maxUnavailable": whole, "stages": [stage]}))
    };
    for (whole, of_stage, expected) in [
        (2, 2, "2 clusters in flight or not healthy (maxUnavailable 2)"),
        (1, 2, "1 cluster in flight or not healthy (maxUnavailable 1)"),
        (
            3,
            2,
            "2 clusters in flight or not healthy (maxUnavailable 2 of stage eu)",
        ),
    ] {
        assert_eq!(unavailable(whole, of_stage), expected, "{whole} {of_stage}");
    }
}

#[test]
fn commands_can_be_copied() {
    assert_eq!(
        command("retry", &["web", "--stage", "eu-1.a"]),
        "starling retry web --stage eu-1.a --reason \"…\""
    );
    assert_eq!(
        command("promote", &["web", "--stage", "*"]),
        "starling promote web --stage '*' --reason \"…\""
    );
}

/// A later recovery does not make the duration longer.
#[test]
fn only_a_first_recovery_gives_a_duration() {
    let (admitted, healthy) = (time(BEGIN), time("2026-11-20T10:01:30Z"));
    let first = crate::plan::Progress::healthy_since(healthy);
    assert_eq!(took(Some(admitted), &first), Some(Duration::from_secs(90)));
    assert_eq!(took(None, &first), None);
    assert_eq!(
        took(Some(healthy), &crate::plan::Progress::healthy_since(admitted)),
        None
    );
    let mended = crate::plan::Progress::Applied(crate::plan::Applied {
        since: Some(healthy),
        longest: Duration::from_secs(5),
        problem: None,
    });
    assert_eq!(took(Some(admitted), &mended), None);
}

/// Three clusters with one slot; `a` failed, `b` is in flight, and an operator requested a retry of `a`.
fn retried() -> World {
    let strategy = serde_json::json!({"maxConcurrency": 1, "maxFailures": 1});
    let strategy = ReadStrategy::new(&serde_json::from_value(strategy).unwrap()).unwrap();
    let members = ["a", "b"].map(|name| {
        let member = SimulatedMember::new(name, std::collections::BTreeMap::new(), Duration::from_secs(60));
        (name.to_owned(), member)
    });
    let mut world = World::new(time(BEGIN), strategy, members.into(), "r1");
    let fates = &mut world.members.get_mut("a").unwrap().fates;
    fates.insert("r1".into(), Fate::Fails);
    world.settle();
    at(&mut world, "2026-11-20T10:01:00Z");
    world.operator.retries.push(crate::plan::Retry {
        cluster: Some("a".into()),
        stage: None,
        attribution: Attribution {
            at: time("2026-11-20T10:01:00Z"),
            ..attribution()
        },
    });
    world
}

#[test]
fn a_requested_retry_says_what_it_waits_for() {
    let mut world = retried();
    let waits = of(&world, "a");
    assert_eq!(
        waits.state,
        "failed; a retry is requested since 2026-11-20T10:01:00Z"
    );
    assert_eq!(
        texts(&waits),
        (
            vec![
                ("ApplyFailed", "the release does not apply"),
                ("NoSlot", "all slots are in use (maxConcurrency 1): b"),
            ],
            "the cluster is retried: one of these clusters is done or failed"
        )
    );
    world.operator.paused = Some(attribution());
    let waits = of(&world, "a");
    assert_eq!(
        texts(&waits).0[1],
        (
            "Paused",
            "the rollout is paused by jane at 2026-11-20T10:00:00Z (lunch)"
        )
    );
    world.operator.paused = None;
    // The slot is free: the cluster is retried.
    world.now = time("2026-11-20T10:02:00Z");
    world
        .members
        .get_mut("b")
        .unwrap()
        .live(time("2026-11-20T10:02:00Z"));
    let now = of(&world, "a");
    assert_eq!(now.state, "is retried now (entries: app)");
    assert_eq!(now.blockers, []);
    // Failed again, it only waits for its own Sync.
    world.settle();
    at(&mut world, "2026-11-20T10:03:00Z");
    assert_eq!(of(&world, "a").state, "failed");
    assert_eq!(of(&world, "a").blockers.len(), 1);
}

#[test]
fn syncs_that_are_not_removed_yet_have_a_reason_and_a_time() {
    let mut world = retried();
    world.members.remove("a");
    at(&mut world, "2026-11-20T10:10:00Z");
    let mut input = world.input().unwrap();
    let leaving = |cause| crate::plan::LeavingSync {
        cluster: "gone".into(),
        entry: "app".into(),
        cause,
        policy: starling_api::DeletionPolicy::Delete,
        depends_on: std::collections::BTreeSet::new(),
        removing_since: None,
        suspended: false,
        not_ready: false,
        budget_until: None,
        approval: None,
    };
    let settles_at = time("2026-11-20T10:10:05Z");
    let unselected = crate::plan::LeavingCause::ClusterUnselected {
        settles_at,
        stage: 0,
        windows: Vec::new(),
    };
    input.leaving.insert("web-gone-app".into(), leaving(unselected));
    let removed = leaving(crate::plan::LeavingCause::EntryRemoved);
    input.leaving.insert("web-gone-old".into(), removed);
    let explained = |input: &PlanInput| group("web", input, &plan(input), None);
    let waits = explained(&input);
    assert!(waits.state.starts_with("Succeeded"), "{}", waits.state);
    assert_eq!(
        texts(&waits),
        (
            vec![
                (
                    "Settling",
                    "Syncs of clusters that left the group are not removed yet: web-gone-app"
                ),
                (
                    "ClusterNotDone",
                    "Syncs of entries that left the group are not removed yet: web-gone-old"
                ),
            ],
            "spec.unselectedGrace ends, and no more clusters leave the group for a moment; a cluster that returns \
             before that keeps its objects"
        )
    );
    assert_eq!(waits.next_at, Some(settles_at));
    let mut rolled_back = input.clone();
    rolled_back.leaving.retain(|name, _| name == "web-gone-old");
    rolled_back
        .leaving
        .values_mut()
        .for_each(|sync| sync.approval = Some("sha256:d".into()));
    assert_eq!(
        texts(&explained(&rolled_back)),
        (
            vec![(
                "AutomaticRollback",
                "Syncs of entries that the automatic rollback lacks are not removed: web-gone-old"
            )],
            "this is approved: starling approve-deletions group web --digest sha256:d --reason \"…\""
        )
    );
    input.membership_held = true;
    let held = explained(&input);
    let last = texts(&held).0.pop().unwrap();
    assert_eq!(
        last,
        (
            "MembershipHeld",
            "Syncs are not removed, because too many clusters left the group at once: web-gone-app, web-gone-old"
        )
    );
    input.leaving.clear();
    input.membership_held = false;
    assert_eq!(explained(&input).blockers, []);
}

/// One cluster on release r1, which began to lose the entry `old` five minutes ago.
fn losing(reach: Reach) -> (World, PlanInput) {
    let strategy = ReadStrategy::new(&serde_json::from_value(serde_json::json!({})).unwrap()).unwrap();
    let member = SimulatedMember::new("a", BTreeMap::new(), Duration::from_secs(60));
    let mut world = World::new(time(BEGIN), strategy, [("a".to_owned(), member)].into(), "r1");
    at(&mut world, "2026-11-20T10:05:00Z");
    let mut input = world.input().unwrap();
    input.now = time("2026-11-20T10:10:00Z");
    input.clusters.get_mut("a").unwrap().reach = reach;
    let old = crate::plan::LeavingSync {
        cluster: "a".into(),
        entry: "old".into(),
        cause: crate::plan::LeavingCause::EntryRemoved,
        policy: starling_api::DeletionPolicy::Delete,
        depends_on: std::collections::BTreeSet::new(),
        removing_since: Some(time("2026-11-20T10:05:00Z")),
        suspended: false,
        not_ready: false,
        budget_until: None,
        approval: None,
    };
    input.leaving.insert("web-a-old".into(), old);
    (world, input)
}

fn away() -> Reach {
    Reach::Unreachable {
        reason: "Unreachable".into(),
        message: "no answer".into(),
        since: time("2026-11-20T10:06:00Z"),
    }
}

/// `starling why` reported this cluster as done now, while its plan said that it is in flight and lost.
#[test]
fn a_cluster_that_loses_an_entry_and_is_unreachable_is_not_done() {
    let (world, input) = losing(away());
    let rolling = world.planner_input().unwrap().rolling;
    let decision = plan(&input).decisions.remove("a").unwrap();
    assert!(
        matches!(decision, Decision::InFlight { lost: true, .. }),
        "{decision:?}"
    );
    let mut durations = Durations::default();
    durations.learn(&input.clusters);
    let waits = Estimate::Unknown {
        why: NoEstimate::WaitsForOthers,
    };
    assert_eq!(
        estimate_cluster(current(&world, &rolling, &input), &durations, "a"),
        waits
    );
    let (world, input) = losing(Reach::Ready);
    let reachable = estimate_cluster(current(&world, &rolling, &input), &durations, "a");
    let now = Estimate::At {
        starts_at: None,
        done_at: time("2026-11-20T10:10:00Z"),
        recorded: 1,
    };
    assert_eq!(reachable, now);
}

/// An estimate assumes no recovery: the cluster counts as failed at its deadline.
#[test]
fn a_cluster_that_was_cut_off_is_not_expected_to_be_done() {
    let mut world = world();
    at(&mut world, "2026-11-20T10:05:00Z");
    world.approve("canary", attribution());
    at(&mut world, "2026-11-20T15:00:30Z");
    let durations = durations(&world);
    world
        .members
        .get_mut("b")
        .unwrap()
        .lose(time("2026-11-20T15:00:30Z"));
    let PlannerInput { rolling, input } = world.planner_input().unwrap();
    assert_eq!(
        estimate_cluster(current(&world, &rolling, &input), &durations, "b"),
        Estimate::Unknown {
            why: NoEstimate::WaitsForOthers
        }
    );
}

/// The cluster in progress is lost, so it fails at its deadline. What follows is up to the machine.
#[test]
fn a_rollback_ends_the_estimate() {
    for (known_good, expected) in [
        (Some("r0"), NoEstimate::RolledBack),
        (None, NoEstimate::WaitsForOthers),
    ] {
        let mut world = world();
        world.strategy.strategy.on_failure = starling_api::OnFailure::Rollback;
        world.set_known_good(known_good);
        at(&mut world, "2026-11-20T10:05:00Z");
        world.approve("canary", attribution());
        at(&mut world, "2026-11-20T15:00:30Z");
        let durations = durations(&world);
        world
            .members
            .get_mut("b")
            .unwrap()
            .lose(time("2026-11-20T15:00:30Z"));
        assert_eq!(
            estimated_group(&world, &durations),
            Estimate::Unknown { why: expected },
            "{known_good:?}"
        );
        let PlannerInput { rolling, input } = world.planner_input().unwrap();
        let done = estimate_cluster(current(&world, &rolling, &input), &durations, "a");
        assert!(
            matches!(done, Estimate::At { done_at, .. } if done_at == world.now),
            "{done:?}"
        );
    }
}

/// Programs read this form.
#[test]
fn the_json_form_of_an_estimate_is_stable() {
    let why = NoEstimate::WaitsForOthers;
    assert_eq!(
        serde_json::to_value(Estimate::Unknown { why }).unwrap(),
        serde_json::json!({"unknown": {"why": "waiting for a person or a cluster"}})
    );
}

/// One of two clusters fails within the limit, so the rollout does not succeed, and nothing of it proceeds.
#[test]
fn a_queued_release_ends_the_estimate() {
    let strategy = serde_json::json!({"maxConcurrency": 2, "maxFailures": 1});
    let strategy = ReadStrategy::new(&serde_json::from_value(strategy).unwrap()).unwrap();
    let members = ["a", "b"].map(|name| {
        let member = SimulatedMember::new(name, BTreeMap::new(), Duration::from_secs(60));
        (name.to_owned(), member)
    });
    let mut world = World::new(time(BEGIN), strategy, members.into(), "r1");
    world.on_new_revision = starling_api::OnNewRevision::Queue;
    world.settle();
    world
        .members
        .get_mut("b")
        .unwrap()
        .lose(time("2026-11-20T10:00:30Z"));
    at(&mut world, "2026-11-20T10:01:30Z");
    world.offered = "r2".into();
    world.settle();
    assert_eq!(world.status.queue.len(), 1);
    let why = NoEstimate::Replaced;
    assert_eq!(
        estimated_group(&world, &durations(&world)),
        Estimate::Unknown { why }
    );
}
