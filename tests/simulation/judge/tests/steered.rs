//! Histories of rollouts through stages, with people who say something: such that break a rule, and their neighbours that do not.

use serde_json::{Value, json};

use super::bad::{Case, staged};
use super::broken;
use super::good::settled;
use super::script::{Script, revision};
use crate::judge::{History, Rule};

const TWO: &[(&str, &str)] = &[("settings", "2"), ("motd", "hello")];
const THREE: &[(&str, &str)] = &[("settings", "3"), ("motd", "hello")];
const NOTHING: Value = Value::Null;

/// A canary with these fields and further fields of the strategy; its stage is open, and the second commit rolls.
fn canary(stage: &Value, more: &Value) -> Script {
    let mut own = json!({"name": "canary", "clusterSelector": {"matchLabels": {"stage": "canary"}}});
    for (field, value) in stage.as_object().into_iter().flatten() {
        own[field] = value.clone();
    }
    let mut all = json!({"stages": [own]});
    for (field, value) in more.as_object().into_iter().flatten() {
        all[field] = value.clone();
    }
    let mut script = staged(&all);
    script.stage(0, "startTime");
    script
}

/// The canary lets go, and the rest opens.
fn let_go(script: &mut Script) {
    script.stage(0, "passTime");
    script.stage(1, "startTime");
}

/// Canary and rest get a commit.
fn deliver_all(script: &mut Script, commit: &str) {
    script.stage(0, "startTime");
    script.deliver("a", commit);
    let_go(script);
    script.deliver("b", commit);
    script.deliver("c", commit);
    script.stage(1, "passTime");
    script.report();
}

fn waits_after() -> Value {
    json!({"afterStageTasks": [{"type": "TimedWait", "waitTime": "5m"}]})
}

fn approval_after() -> Value {
    json!({"afterStageTasks": [{"type": "Approval"}]})
}

/// The canary is done, and waits for an approval of `sha256:new` in rollout 2.
fn awaiting() -> Script {
    let mut script = canary(&approval_after(), &NOTHING);
    script.edit("SyncGroup", "shop", "starling", |group| {
        group["status"]["rollout"]["releaseDigest"] = "sha256:new".into();
    });
    script.deliver("a", "c2");
    script.task(0, "afterStageTasks", json!({"type": "Approval"}));
    script
}

/// The third rollout begins, of this release of this commit.
fn begin(script: &mut Script, release: &str, commit: &str, direction: &str) {
    script.edit("SyncGroup", "shop", "starling", |group| {
        let at = group["status"]["rollout"]["startTime"].clone();
        let id = group["status"]["rollout"]["id"].as_i64().unwrap() + 1;
        group["status"]["rollout"] = json!({"id": id, "release": release, "startTime": at, "direction": direction,
            "revisions": [{"sync": "app", "revision": revision(commit)}], "phase": "Pending", "blockedBy": []});
        group["status"]["clusters"] = json!({});
    });
    script.report();
}

/// The release of the first commit.
const GOOD: &str = "sha256:release-c1-1";
/// That of the second.
const BAD: &str = "sha256:release-c2-2";

/// The second commit failed on a canary of three, and the group keeps it back.
fn rolled_back() -> Script {
    let mut script = settled();
    script.edit("SyncGroup", "shop", "kubectl", |group| {
        group["spec"]["rolloutStrategy"]["onFailure"] = "Rollback".into();
    });
    script.pass(5);
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.fail("a", &["ConfigMap default/settings"]);
    begin(&mut script, GOOD, "c1", "Back");
    script.edit("SyncGroup", "shop", "starling", |group| {
        group["status"]["heldRelease"] =
            json!({"release": BAD, "revisions": [{"sync": "app", "revision": revision("c2")}]});
    });
    script.admit_release("a", "c1", GOOD);
    script
}

pub(super) const STEERED: [Case; 35] = [
    ("the second stage before the first", Rule::StageOrder, || {
        let mut script = canary(&NOTHING, &NOTHING);
        script.admit("b", "c2");
        script
    }),
    ("a stage that nobody opened", Rule::StageOrder, || {
        let mut script = staged(&NOTHING);
        script.admit("a", "c2");
        script
    }),
    (
        "a stage opened by the health of the commit before",
        Rule::StageOrder,
        || {
            let mut script = canary(&NOTHING, &NOTHING);
            script.admit("a", "c2");
            script.write("a", "c2");
            script.hold_unhealthy("a");
            let_go(&mut script);
            script.admit("b", "c2");
            script
        },
    ),
    ("a stage that has not soaked", Rule::StageOrder, || {
        let mut script = canary(&NOTHING, &json!({"minSuccessTime": "5m"}));
        script.deliver("a", "c2");
        script.pass(60);
        let_go(&mut script);
        script.admit("b", "c2");
        script
    }),
    (
        "a stage that soaked before a clock jumped",
        Rule::StageOrder,
        || {
            let mut script = canary(&NOTHING, &json!({"minSuccessTime": "5m"}));
            script.deliver("a", "c2");
            script.jump(-200);
            script.pass(310);
            // By its clock it is not two minutes ago.
            script.edit("SyncGroup", "shop", "starling", |group| {
                let since = group["status"]["rollout"]["stages"][0]["startTime"].clone();
                group["status"]["rollout"]["stages"][0]["passTime"] = since;
            });
            script
        },
    ),
    (
        "a stage opens before the one in front let go",
        Rule::StageOrder,
        || {
            let mut script = canary(&NOTHING, &NOTHING);
            script.deliver("a", "c2");
            script.stage(1, "startTime");
            script.admit("b", "c2");
            script
        },
    ),
    ("a wait that is not over", Rule::StageOrder, || {
        let mut script = canary(&waits_after(), &NOTHING);
        script.deliver("a", "c2");
        script.task(
            0,
            "afterStageTasks",
            json!({"type": "TimedWait", "waitTime": "5m"}),
        );
        script.pass(240);
        let_go(&mut script);
        script
    }),
    ("a wait that never began", Rule::StageOrder, || {
        let mut script = canary(&waits_after(), &NOTHING);
        script.deliver("a", "c2");
        script.pass(600);
        let_go(&mut script);
        script
    }),
    ("a wait before the first stage", Rule::StageOrder, || {
        let stage = json!({"beforeStageTasks": [{"type": "TimedWait", "waitTime": "5m"}]});
        canary(&stage, &NOTHING)
    }),
    ("nobody approved", Rule::StageOrder, || {
        let mut script = awaiting();
        let_go(&mut script);
        script
    }),
    ("another release was approved", Rule::StageOrder, || {
        let mut script = awaiting();
        script.approve(2, "canary", "sha256:old");
        let_go(&mut script);
        script
    }),
    ("another rollout was approved", Rule::StageOrder, || {
        let mut script = awaiting();
        script.approve(1, "canary", "sha256:new");
        let_go(&mut script);
        script
    }),
    ("another stage was approved", Rule::StageOrder, || {
        let mut script = awaiting();
        script.approve(2, "*", "sha256:new");
        let_go(&mut script);
        script
    }),
    ("the approval came too late", Rule::StageOrder, || {
        let mut script = awaiting();
        let_go(&mut script);
        script.approve(2, "canary", "sha256:new");
        script
    }),
    ("a canary that nobody saw", Rule::StageOrder, || {
        let mut script = canary(&NOTHING, &NOTHING);
        script.reach("a", false);
        script.pass(5);
        let_go(&mut script);
        script.admit("b", "c2");
        script
    }),
    ("a canary that lost its cluster", Rule::StageOrder, || {
        let mut script = canary(&NOTHING, &NOTHING);
        script.admit("a", "c2");
        script.delete_cr("Cluster", "a", "kubectl", false);
        script.pass(30);
        let_go(&mut script);
        script.admit("b", "c2");
        script
    }),
    (
        "a canary that cannot be reached is waited for",
        Rule::StageOrder,
        || {
            let mut script = canary(&json!({"clusterSelector": {}}), &json!({"onUnreachable": "Wait"}));
            script.reach("c", false);
            script.deliver("a", "c2");
            script.deliver("b", "c2");
            script.stage(0, "passTime");
            script
        },
    ),
    (
        "a stage has fewer slots than the group",
        Rule::Concurrency,
        || {
            let mut script = canary(&json!({"clusterSelector": {}, "maxConcurrency": 1}), &NOTHING);
            script.admit("a", "c2");
            script.admit("b", "c2");
            script
        },
    ),
    ("who soaks has a slot", Rule::Concurrency, || {
        let strategy = json!({"minSuccessTime": "5m", "maxConcurrency": 1});
        let mut script = canary(&json!({"clusterSelector": {}}), &strategy);
        script.deliver("a", "c2");
        script.pass(60);
        script.admit("b", "c2");
        script
    }),
    (
        "a stage allows fewer failures than the group",
        Rule::FailureBudget,
        || {
            let stage = json!({"clusterSelector": {}, "maxFailures": 0});
            let mut script = canary(&stage, &json!({"maxFailures": 2}));
            script.admit("a", "c2");
            script.fail("a", &["ConfigMap default/settings"]);
            script.pass(10);
            script.admit("b", "c2");
            script
        },
    ),
    (
        "what was good goes out while too many fail",
        Rule::FailureBudget,
        || {
            let mut script = joined();
            script.admit("a", "c2");
            script.fail("a", &["ConfigMap default/settings"]);
            script.pass(10);
            admit_good(&mut script, "d");
            script
        },
    ),
    ("what somebody passes over", Rule::Skipped, || {
        let mut script = canary(&json!({"clusterSelector": {}}), &NOTHING);
        script.say("Skip", &json!({"cluster": "b"}));
        script.pass(5);
        script.admit("b", "c2");
        script
    }),
    ("a stage that somebody passes over", Rule::Skipped, || {
        let mut script = canary(&json!({"clusterSelector": {}}), &NOTHING);
        script.admit("a", "c2");
        script.say("Skip", &json!({"stage": "canary"}));
        script.pass(5);
        script.admit("b", "c2");
        script
    }),
    ("a pause", Rule::Paused, || {
        let mut script = canary(&NOTHING, &NOTHING);
        script.say("Pause", &NOTHING);
        script.pass(5);
        script.admit("a", "c2");
        script
    }),
    ("a pause after another one was taken back", Rule::Paused, || {
        let mut script = canary(&NOTHING, &NOTHING);
        for word in ["Pause", "Resume", "Pause"] {
            script.say(word, &NOTHING);
        }
        script.pass(5);
        script.admit("a", "c2");
        script
    }),
    ("a rollout that was given up", Rule::Paused, || {
        let mut script = canary(&json!({"clusterSelector": {}}), &NOTHING);
        script.admit("a", "c2");
        script.say("Abort", &NOTHING);
        script.pass(5);
        script.admit("b", "c2");
        script
    }),
    ("the same once more", Rule::NotAdmitted, || {
        let mut script = canary(&NOTHING, &json!({"maxFailures": 1}));
        script.admit("a", "c2");
        script.fail("a", &["ConfigMap default/settings"]);
        script.pass(5);
        script.admit("a", "c2");
        script
    }),
    ("what was left behind comes back", Rule::Held, || {
        let mut script = rolled_back();
        begin(&mut script, BAD, "c2", "Forward");
        script
    }),
    (
        "what was let go in another rollout comes back",
        Rule::Held,
        || {
            let mut script = rolled_back();
            script.say("Release", &json!({"rollout": 2}));
            begin(&mut script, BAD, "c2", "Forward");
            script
        },
    ),
    ("back, though nobody asked", Rule::Back, || {
        let mut script = settled();
        script.roll("c2", TWO);
        script.admit("a", "c2");
        begin(&mut script, GOOD, "c1", "Back");
        script
    }),
    ("back, though another rollout was to go back", Rule::Back, || {
        let mut script = settled();
        script.say("Rollback", &NOTHING);
        script.roll("c2", TWO);
        script.admit("a", "c2");
        begin(&mut script, GOOD, "c1", "Back");
        script
    }),
    ("back to what never succeeded", Rule::Back, || {
        let mut script = settled();
        script.roll("c2", TWO);
        script.admit("a", "c2");
        script.roll("c3", THREE);
        script.say("Rollback", &NOTHING);
        begin(&mut script, BAD, "c2", "Back");
        script
    }),
    ("back to what somebody had passed over", Rule::Back, || {
        let mut script = settled();
        script.roll("c2", TWO);
        script.deliver("a", "c2");
        script.say("Skip", &json!({"cluster": "b"}));
        script.say("Skip", &json!({"cluster": "c"}));
        script.report();
        script.edit("SyncGroup", "shop", "starling", |group| {
            group["status"]["rollout"]["phase"] = "Succeeded".into();
            group["status"]["clusters"]["held"] = 2.into();
        });
        script.roll("c3", THREE);
        script.say("Rollback", &NOTHING);
        begin(&mut script, BAD, "c2", "Back");
        script
    }),
    ("back to what had succeeded before the last", Rule::Back, || {
        let mut script = settled();
        script.roll("c2", TWO);
        for cluster in ["a", "b", "c"] {
            script.deliver(cluster, "c2");
        }
        script.report();
        script.roll("c3", THREE);
        script.say("Rollback", &NOTHING);
        begin(&mut script, GOOD, "c1", "Back");
        script
    }),
    ("back at once instead of by stages", Rule::Back, || {
        let mut script = settled();
        script.roll("c2", TWO);
        script.say("Rollback", &NOTHING);
        begin(&mut script, GOOD, "c1", "BackAtOnce");
        script
    }),
];

/// A cluster joins the second stage while the first is under way.
fn joined() -> Script {
    let mut script = canary(&NOTHING, &NOTHING);
    script.edit("SyncGroup", "shop", "starling", |group| {
        group["status"]["lastKnownGood"] =
            json!({"release": GOOD, "revisions": [{"sync": "app", "revision": revision("c1")}]});
    });
    script.add_cluster("d");
    script.pass(5);
    script
}

/// A cluster is told what was good before.
fn admit_good(script: &mut Script, cluster: &str) {
    script.admit_release(cluster, "c1", GOOD);
}

fn stages_with_everything() -> History {
    let stage = json!({"beforeStageTasks": [{"type": "TimedWait", "waitTime": "1m"}],
        "afterStageTasks": [{"type": "Approval"}, {"type": "TimedWait", "waitTime": "1m"}], "maxConcurrency": 1});
    let mut script = staged(&json!({"minSuccessTime": "30s", "stages": [
        {"name": "canary", "clusterSelector": {"matchLabels": {"stage": "canary"}}, "maxConcurrency": stage["maxConcurrency"],
            "beforeStageTasks": stage["beforeStageTasks"], "afterStageTasks": stage["afterStageTasks"]}]}));
    script.edit("SyncGroup", "shop", "starling", |group| {
        group["status"]["rollout"]["releaseDigest"] = "sha256:new".into();
    });
    script.task(
        0,
        "beforeStageTasks",
        json!({"type": "TimedWait", "waitTime": "1m"}),
    );
    script.pass(60);
    script.stage(0, "startTime");
    script.deliver("a", "c2");
    script.pass(30);
    script.stage(0, "completionTime");
    script.task(0, "afterStageTasks", json!({"type": "Approval"}));
    script.approve(2, "canary", "sha256:old");
    script.approve(2, "canary", "sha256:new");
    script.task(
        0,
        "afterStageTasks",
        json!({"type": "TimedWait", "waitTime": "1m"}),
    );
    script.pass(60);
    let_go(&mut script);
    script.deliver("b", "c2");
    script.deliver("c", "c2");
    script.pass(30);
    script.stage(1, "passTime");
    script.report();
    script.rest();
    script.end()
}

fn a_person_promotes_and_passes_over() -> History {
    let mut script = canary(&approval_after(), &json!({"minSuccessTime": "10m"}));
    script.say("Promote", &json!({"stage": "canary"}));
    let_go(&mut script);
    script.say("Skip", &json!({"cluster": "c"}));
    script.pass(5);
    script.deliver("a", "c2");
    script.deliver("b", "c2");
    script.end()
}

fn a_pause_is_taken_back() -> History {
    let mut script = canary(&json!({"clusterSelector": {}}), &NOTHING);
    script.say("Pause", &NOTHING);
    // Decided before that was known.
    script.admit("a", "c2");
    script.pass(5);
    script.write("a", "c2");
    script.hold("a");
    script.say("Resume", &NOTHING);
    script.deliver("b", "c2");
    script.deliver("c", "c2");
    script.stage(0, "passTime");
    script.stage(1, "startTime");
    script.stage(1, "passTime");
    script.report();
    script.rest();
    script.end()
}

fn it_goes_back_and_on_again() -> History {
    let mut script = rolled_back();
    script.write("a", "c1");
    script.hold("a");
    script.report();
    script.say("Release", &NOTHING);
    begin(&mut script, BAD, "c2", "Forward");
    for cluster in ["a", "b", "c"] {
        script.admit_release(cluster, "c2", BAD);
        script.write(cluster, "c2");
        script.hold(cluster);
    }
    script.report();
    script.rest();
    script.end()
}

fn a_person_goes_back_at_once() -> History {
    let mut script = staged(&json!({"rollback": {"type": "Immediate"}, "minSuccessTime": "10m"}));
    script.stage(0, "startTime");
    script.deliver("a", "c2");
    script.say("Rollback", &NOTHING);
    begin(&mut script, GOOD, "c1", "BackAtOnce");
    script.admit_release("a", "c1", GOOD);
    script.write("a", "c1");
    script.hold("a");
    script.end()
}

fn what_failed_is_tried_again() -> History {
    let mut script = canary(&NOTHING, &NOTHING);
    script.admit("a", "c2");
    script.fail("a", &["ConfigMap default/settings"]);
    script.pass(5);
    script.say("Retry", &NOTHING);
    script.admit("a", "c2");
    script.write("a", "c2");
    script.hold("a");
    let_go(&mut script);
    script.deliver("b", "c2");
    script.deliver("c", "c2");
    script.report();
    script.rest();
    script.end()
}

fn who_joins_a_closed_stage_gets_what_was_good() -> History {
    let mut script = joined();
    admit_good(&mut script, "d");
    script.write("d", "c1");
    script.hold("d");
    script.deliver("a", "c2");
    let_go(&mut script);
    for cluster in ["b", "c", "d"] {
        script.deliver(cluster, "c2");
    }
    script.report();
    script.rest();
    script.end()
}

fn a_clock_jumps_over_a_soak() -> History {
    let mut script = canary(&NOTHING, &json!({"minSuccessTime": "10m"}));
    script.deliver("a", "c2");
    script.pass(5);
    script.jump(600);
    script.edit("SyncGroup", "shop", "starling", |group| {
        let stages = &mut group["status"]["rollout"]["stages"];
        stages[0]["passTime"] = "2026-01-01T13:00:00Z".into();
        stages[1]["startTime"] = "2026-01-01T13:00:00Z".into();
    });
    script.pass(5);
    script.deliver("b", "c2");
    script.end()
}

fn two_commits_through_stages() -> History {
    let mut script = staged(&NOTHING);
    deliver_all(&mut script, "c2");
    script.roll("c3", THREE);
    deliver_all(&mut script, "c3");
    script.rest();
    script.end()
}

/// A name, and how it is made.
type Neighbour = (&'static str, fn() -> History);

#[test]
fn rollouts_through_stages_without_fault_are_accepted() {
    let histories: [Neighbour; 9] = [
        ("everything", stages_with_everything),
        ("promote and skip", a_person_promotes_and_passes_over),
        ("pause and resume", a_pause_is_taken_back),
        ("back and on", it_goes_back_and_on_again),
        ("back at once", a_person_goes_back_at_once),
        ("again", what_failed_is_tried_again),
        ("joins", who_joins_a_closed_stage_gets_what_was_good),
        ("a jump", a_clock_jumps_over_a_soak),
        ("two commits", two_commits_through_stages),
    ];
    let wrong: Vec<String> = histories
        .iter()
        .map(|(name, history)| (name, broken(&history())))
        .filter(|(_, (rules, _))| !rules.is_empty())
        .map(|(name, (_, words))| format!("{name}:\n{words}"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
