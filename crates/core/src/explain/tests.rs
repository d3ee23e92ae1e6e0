//! What is told of a fleet of four: a canary that is approved, the others in a window, one at a time.

use std::time::Duration;

use starling_api::IntOrPercent;

use super::*;
use crate::plan::{ReadStrategy, Word, plan};
use crate::simulate::{Fate, Member, World};

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
            Member::new(name, labels, Duration::from_secs(60)),
        )
    });
    let mut world = World::new(time(BEGIN), strategy, members.into(), "r1");
    world.settle();
    world
}

fn word() -> Word {
    Word {
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

/// Reason and text of each link, and what ends the first.
fn told(explanation: &Explanation) -> (Vec<(&str, &str)>, &str) {
    let links = explanation.chain.iter();
    let links = links.map(|link| (link.reason.as_str(), link.text.as_str()));
    (links.collect(), &explanation.next)
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

fn estimate(world: &World, name: &str) -> Estimate {
    estimate_cluster(&world.input().unwrap(), &durations(world), name)
}

const CLOSED: &str = "the window \"allow Mon,Tue,Wed,Thu,Fri 16:00-20:00 Europe/Berlin\" is closed until 2026-11-20T16:00 Europe/Berlin";

#[test]
fn a_cluster_waits_for_the_stage_before_it_then_its_window_then_a_slot() {
    let mut world = world();
    assert_eq!(
        told(&of(&world, "b")),
        (
            vec![
                (
                    "StageProgressing",
                    "stage canary is not through: it needs 1 more of its clusters: a"
                ),
                ("WindowClosed", CLOSED),
                ("NoSlot", "then a slot: 1 of 1 are taken now"),
            ],
            "they are healthy with this release, and soaked"
        )
    );
    at(&mut world, "2026-11-20T10:05:00Z");
    assert_eq!(of(&world, "a").state, "holds this release");
    let waits = of(&world, "b");
    assert_eq!(
        told(&waits).0[0],
        ("AwaitingApproval", "stage canary waits for an approval")
    );
    assert_eq!(
        waits.next,
        "somebody approves it: starling approve web --stage canary --reason \"…\""
    );
    assert_eq!(waits.next_at, None);
    world.approve("canary", word());
    at(&mut world, "2026-11-20T10:06:00Z");
    let waits = of(&world, "b");
    assert_eq!(
        told(&waits),
        (
            vec![
                ("WindowClosed", CLOSED),
                ("NoSlot", "then a slot: 0 of 1 are taken now")
            ],
            "the window opens"
        )
    );
    assert_eq!(waits.next_at, Some(time("2026-11-20T15:00:00Z")));
    at(&mut world, "2026-11-20T15:00:30Z");
    assert!(
        of(&world, "b")
            .state
            .starts_with("is being brought to this release; it counts as failed at")
    );
    assert_eq!(
        told(&of(&world, "c")),
        (
            vec![("NoSlot", "all slots are taken, 1 (maxConcurrency): b")],
            "one of them is healthy, and soaked, or failed"
        )
    );
}

#[test]
fn an_estimate_is_what_the_planner_does_if_clusters_take_as_long_as_before() {
    let mut world = world();
    assert_eq!(
        estimate(&world, "b"),
        Estimate::Unknown {
            why: "it is recorded of no cluster how long it took".into()
        }
    );
    at(&mut world, "2026-11-20T10:05:00Z");
    assert_eq!(
        estimate(&world, "b"),
        Estimate::Unknown {
            why: "it waits for something that time alone does not bring".into()
        }
    );
    world.approve("canary", word());
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
    let whole = estimate_group(&world.input().unwrap(), &durations(&world));
    assert!(
        matches!(whole, Estimate::At { done_at, .. } if done_at == time("2026-11-20T15:03:00Z")),
        "{whole:?}"
    );
    // And so it comes.
    at(&mut world, "2026-11-20T15:03:00Z");
    let input = world.input().unwrap();
    assert_eq!(plan(&input).verdict, Verdict::Through);
    // A cluster that is done is so now.
    let now = Estimate::At {
        starts_at: None,
        done_at: world.now,
        recorded: 4,
    };
    assert_eq!(estimate(&world, "b"), now);
}

#[test]
fn a_group_tells_what_keeps_it_and_whom() {
    let mut world = world();
    let group_of = |world: &World| {
        let input = world.input().unwrap();
        group("web", &input, &plan(&input))
    };
    let first = group_of(&world);
    assert_eq!(
        first.state,
        "Progressing, in stage canary: 0 of 4 clusters hold this release, 1 in flight, 3 waiting"
    );
    assert_eq!(
        told(&first).0,
        [(
            "StageProgressing",
            "stage canary is not through: it needs 1 more of its clusters: a (b, c, d)"
        )]
    );
    at(&mut world, "2026-11-20T10:05:00Z");
    world.steering.paused = Some(word());
    let paused = group_of(&world);
    assert_eq!(
        told(&paused),
        (
            vec![(
                "Paused",
                "the rollout is paused: by jane at 2026-11-20T10:00:00Z (lunch) (b, c, d)"
            )],
            "somebody resumes it: starling resume web --reason \"…\""
        )
    );
    world.steering.paused = None;
    world.approve("canary", word());
    at(&mut world, "2026-11-23T00:00:00Z");
    let through = group_of(&world);
    assert_eq!(through.state, "Succeeded: 4 of 4 clusters hold this release");
    assert!(through.chain.is_empty() && through.next.is_empty(), "{through:?}");
}

#[test]
fn what_failed_is_named_and_how_it_is_tried_again() {
    let mut world = world();
    if let Some(member) = world.members.get_mut("a") {
        member.fates.insert("r1".into(), Fate::Fails);
    }
    at(&mut world, "2026-11-20T10:05:00Z");
    let (own, waits) = (of(&world, "a"), of(&world, "b"));
    assert_eq!(own.state, "failed");
    assert_eq!(told(&own).0, [("ApplyFailed", "the release does not apply")]);
    assert!(
        own.chain[0]
            .ends_with
            .ends_with("starling retry web --cluster a --reason \"…\""),
        "{own:?}"
    );
    assert_eq!(
        told(&waits).0[0],
        ("TooManyFailures", "1 cluster failed, and 0 may: a")
    );
}

/// The stage that is waited for counts what broke after it was done. There is nothing to try again: it recovers, or does not.
#[test]
fn what_broke_while_its_stage_waits_is_named() {
    let mut world = world();
    at(&mut world, "2026-11-20T10:05:00Z");
    assert_eq!(of(&world, "a").state, "holds this release");
    if let Some(member) = world.members.get_mut("a") {
        member.break_down(time("2026-11-20T10:05:00Z"));
    }
    world.settle();
    let waits = of(&world, "b");
    assert_eq!(
        told(&waits).0[0],
        (
            "TooManyFailures",
            "1 cluster of stage canary failed, and 0 may: a"
        )
    );
    assert_eq!(waits.next, "they are healthy again, or a new revision comes");
}

/// What a stage needs is told of the clusters that it needs: one that failed within the budget is none of them.
#[test]
fn what_a_stage_needs_leaves_out_what_failed() {
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
        told(&waits).0[0],
        (
            "Soaking",
            "stage canary has to soak: it needs 1 more of its clusters: b"
        )
    );
    assert_eq!(waits.next_at, Some(time("2026-11-20T10:11:00Z")));
}

/// Each reason has a text of its own and something that ends it, for a cluster and for a group.
#[test]
fn every_reason_is_told() {
    let mut world = world();
    at(&mut world, "2026-11-20T10:05:00Z");
    let input = world.input().unwrap();
    let plan = plan(&input);
    let teller = Teller {
        group: "web",
        input: &input,
        plan: &plan,
    };
    let reasons = [
        HoldReason::Skipped(word()),
        HoldReason::ClusterSuspended,
        HoldReason::SyncSuspended { entry: "app".into() },
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
        HoldReason::Paused(word()),
        HoldReason::Aborted(word()),
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
    ];
    let view = &input.clusters["b"];
    let mut texts = std::collections::BTreeSet::new();
    for (place, reason) in reasons.iter().enumerate() {
        assert_eq!(rank(reason), place, "in the order of HoldReason");
        let link = teller.link(reason, None, Some(("b", view)));
        assert_eq!(link.reason, reason.as_str());
        assert!(
            !link.ends_with.is_empty() && texts.insert(link.text),
            "{reason:?}"
        );
    }
}

/// Slots are those of the group, of the stage, or both: what is told is the bound that is reached.
#[test]
fn the_bound_that_is_full_is_named() {
    let told_of = |strategy: serde_json::Value| {
        let strategy = ReadStrategy::new(&serde_json::from_value(strategy).unwrap()).unwrap();
        let members = ["a", "b", "c"].map(|name| {
            let member = Member::new(name, BTreeMap::new(), Duration::from_secs(60));
            (name.to_owned(), member)
        });
        let mut world = World::new(time(BEGIN), strategy, members.into(), "r1");
        world.settle();
        of(&world, "c").chain[0].text.clone()
    };
    let slots = |whole: u32, of_stage: Option<u32>| {
        let mut stage = serde_json::json!({"name": "eu", "clusterSelector": {}});
        if let Some(slots) = of_stage {
            stage["maxConcurrency"] = slots.into();
        }
        told_of(serde_json::json!({"maxConcurrency": whole, "maxUnavailable": "100%", "stages": [stage]}))
    };
    for (whole, of_stage, expected) in [
        (2, None, "all slots are taken, 2 (maxConcurrency): a, b"),
        (2, Some(3), "all slots are taken, 2 (maxConcurrency): a, b"),
        (3, Some(2), "all slots are taken, 2 of stage eu: a, b"),
        (1, Some(1), "all slots are taken, 1 of stage eu: a"),
    ] {
        assert_eq!(slots(whole, of_stage), expected, "{whole} {of_stage:?}");
    }
    let unavailable = |whole: u32, of_stage: u32| {
        let stage = serde_json::json!({"name": "eu", "clusterSelector": {}, "maxUnavailable": of_stage});
        told_of(serde_json::json!({"maxConcurrency": 3, "maxUnavailable": whole, "stages": [stage]}))
    };
    for (whole, of_stage, expected) in [
        (
            2,
            2,
            "2 clusters in flight or not healthy, and 2 may be (maxUnavailable)",
        ),
        (
            1,
            2,
            "1 cluster in flight or not healthy, and 1 may be (maxUnavailable)",
        ),
        (
            3,
            2,
            "2 clusters in flight or not healthy, and 2 may be (maxUnavailable of stage eu)",
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

/// What was mended later took no longer for that.
#[test]
fn only_what_was_never_broken_tells_how_long_it_took() {
    let (admitted, healthy) = (time(BEGIN), time("2026-11-20T10:01:30Z"));
    let first = crate::plan::Progress::healthy_since(healthy);
    assert_eq!(took(Some(admitted), &first), Some(Duration::from_secs(90)));
    assert_eq!(took(None, &first), None);
    assert_eq!(
        took(Some(healthy), &crate::plan::Progress::healthy_since(admitted)),
        None
    );
    let mended = crate::plan::Progress::Held(crate::plan::Held {
        since: Some(healthy),
        longest: Duration::from_secs(5),
        trouble: None,
    });
    assert_eq!(took(Some(admitted), &mended), None);
}
