//! Histories of rollouts through stages with operator actions: some break a rule, and similar ones do not.

use serde_json::{Value, json};

use super::accepted::first_commit_applied;
use super::broken;
use super::rejected::{Case, staged};
use super::script::{Script, THREE, TWO, revision};
use crate::judge::{History, Rule};

pub(super) const NO_FIELDS: Value = Value::Null;

/// Returns a script with a canary with these fields and further fields of the strategy; the stage is open, and the
/// second commit rolls.
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

/// Passes the canary, and opens the stage of the remaining clusters.
fn pass_canary(script: &mut Script) {
    script.stage(0, "passTime");
    script.stage(1, "startTime");
}

/// Rolls a commit out to all clusters.
fn roll_out_to_all(script: &mut Script, commit: &str) {
    script.stage(0, "startTime");
    script.roll_out_to("a", commit);
    pass_canary(script);
    script.roll_out_to("b", commit);
    script.roll_out_to("c", commit);
    script.stage(1, "passTime");
    script.report();
}

fn wait_after() -> Value {
    json!({"afterStageTasks": [{"type": "TimedWait", "waitTime": "5m"}]})
}

fn approval_after() -> Value {
    json!({"afterStageTasks": [{"type": "Approval"}]})
}

/// Returns a script in which the canary is done, and waits for an approval of `sha256:new` in rollout 2.
fn awaiting_approval() -> Script {
    let mut script = canary(&approval_after(), &NO_FIELDS);
    script.edit("SyncGroup", "shop", "starling", |group| {
        group["status"]["rollout"]["releaseDigest"] = "sha256:new".into();
    });
    script.roll_out_to("a", "c2");
    script.task(0, "afterStageTasks", json!({"type": "Approval"}));
    script
}

/// Starts the third rollout, of this release of this commit.
fn start_third_rollout(script: &mut Script, release: &str, commit: &str, direction: &str) {
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
/// The release of the second commit.
const BAD: &str = "sha256:release-c2-2";

/// Returns a script in which the second commit failed on a canary of three, and its release is held.
fn rolled_back() -> Script {
    let mut script = first_commit_applied();
    script.edit("SyncGroup", "shop", "kubectl", |group| {
        group["spec"]["rolloutStrategy"]["onFailure"] = "Rollback".into();
    });
    script.wait(5);
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.report_failure("a", &["ConfigMap default/settings"]);
    start_third_rollout(&mut script, GOOD, "c1", "Back");
    script.edit("SyncGroup", "shop", "starling", |group| {
        group["status"]["heldRelease"] =
            json!({"release": BAD, "revisions": [{"sync": "app", "revision": revision("c2")}]});
    });
    script.admit_release("a", "c1", GOOD);
    script
}

pub(super) const STAGED_CASES: [Case; 35] = [
    ("the second stage before the first", Rule::StageOrder, || {
        let mut script = canary(&NO_FIELDS, &NO_FIELDS);
        script.admit("b", "c2");
        script
    }),
    (
        "an admission in a stage that is not open",
        Rule::StageOrder,
        || {
            let mut script = staged(&NO_FIELDS);
            script.admit("a", "c2");
            script
        },
    ),
    (
        "a stage opened by the health of the previous commit",
        Rule::StageOrder,
        || {
            let mut script = canary(&NO_FIELDS, &NO_FIELDS);
            script.admit("a", "c2");
            script.write("a", "c2");
            script.report_applied_unhealthy("a");
            pass_canary(&mut script);
            script.admit("b", "c2");
            script
        },
    ),
    ("a stage that has not soaked", Rule::StageOrder, || {
        let mut script = canary(&NO_FIELDS, &json!({"minSuccessTime": "5m"}));
        script.roll_out_to("a", "c2");
        script.wait(60);
        pass_canary(&mut script);
        script.admit("b", "c2");
        script
    }),
    (
        "a stage that soaked before a clock jumped",
        Rule::StageOrder,
        || {
            let mut script = canary(&NO_FIELDS, &json!({"minSuccessTime": "5m"}));
            script.roll_out_to("a", "c2");
            script.jump(-200);
            script.wait(310);
            // By the controller's clock it is less than two minutes ago.
            script.edit("SyncGroup", "shop", "starling", |group| {
                let since = group["status"]["rollout"]["stages"][0]["startTime"].clone();
                group["status"]["rollout"]["stages"][0]["passTime"] = since;
            });
            script
        },
    ),
    (
        "a stage opens before the previous one has passed",
        Rule::StageOrder,
        || {
            let mut script = canary(&NO_FIELDS, &NO_FIELDS);
            script.roll_out_to("a", "c2");
            script.stage(1, "startTime");
            script.admit("b", "c2");
            script
        },
    ),
    ("a wait that is not over", Rule::StageOrder, || {
        let mut script = canary(&wait_after(), &NO_FIELDS);
        script.roll_out_to("a", "c2");
        script.task(
            0,
            "afterStageTasks",
            json!({"type": "TimedWait", "waitTime": "5m"}),
        );
        script.wait(240);
        pass_canary(&mut script);
        script
    }),
    ("a wait that never began", Rule::StageOrder, || {
        let mut script = canary(&wait_after(), &NO_FIELDS);
        script.roll_out_to("a", "c2");
        script.wait(600);
        pass_canary(&mut script);
        script
    }),
    ("a wait before the first stage", Rule::StageOrder, || {
        let stage = json!({"beforeStageTasks": [{"type": "TimedWait", "waitTime": "5m"}]});
        canary(&stage, &NO_FIELDS)
    }),
    ("nobody approved", Rule::StageOrder, || {
        let mut script = awaiting_approval();
        pass_canary(&mut script);
        script
    }),
    ("another release was approved", Rule::StageOrder, || {
        let mut script = awaiting_approval();
        script.approve(2, "canary", "sha256:old");
        pass_canary(&mut script);
        script
    }),
    ("another rollout was approved", Rule::StageOrder, || {
        let mut script = awaiting_approval();
        script.approve(1, "canary", "sha256:new");
        pass_canary(&mut script);
        script
    }),
    ("another stage was approved", Rule::StageOrder, || {
        let mut script = awaiting_approval();
        script.approve(2, "*", "sha256:new");
        pass_canary(&mut script);
        script
    }),
    ("the approval came too late", Rule::StageOrder, || {
        let mut script = awaiting_approval();
        pass_canary(&mut script);
        script.approve(2, "canary", "sha256:new");
        script
    }),
    ("a canary without a success", Rule::StageOrder, || {
        let mut script = canary(&NO_FIELDS, &NO_FIELDS);
        script.set_reachable("a", false);
        script.wait(5);
        pass_canary(&mut script);
        script.admit("b", "c2");
        script
    }),
    ("a canary that lost its cluster", Rule::StageOrder, || {
        let mut script = canary(&NO_FIELDS, &NO_FIELDS);
        script.admit("a", "c2");
        script.delete_cr("Cluster", "a", "kubectl", false);
        script.wait(30);
        pass_canary(&mut script);
        script.admit("b", "c2");
        script
    }),
    (
        "a canary that cannot be reached is waited for",
        Rule::StageOrder,
        || {
            let mut script = canary(&json!({"clusterSelector": {}}), &json!({"onUnreachable": "Wait"}));
            script.set_reachable("c", false);
            script.roll_out_to("a", "c2");
            script.roll_out_to("b", "c2");
            script.stage(0, "passTime");
            script
        },
    ),
    (
        "a stage has fewer slots than the group",
        Rule::Concurrency,
        || {
            let mut script = canary(&json!({"clusterSelector": {}, "maxConcurrency": 1}), &NO_FIELDS);
            script.admit("a", "c2");
            script.admit("b", "c2");
            script
        },
    ),
    ("a soaking cluster has a slot", Rule::Concurrency, || {
        let strategy = json!({"minSuccessTime": "5m", "maxConcurrency": 1});
        let mut script = canary(&json!({"clusterSelector": {}}), &strategy);
        script.roll_out_to("a", "c2");
        script.wait(60);
        script.admit("b", "c2");
        script
    }),
    (
        "a stage allows fewer failures than the group",
        Rule::FailureLimit,
        || {
            let stage = json!({"clusterSelector": {}, "maxFailures": 0});
            let mut script = canary(&stage, &json!({"maxFailures": 2}));
            script.admit("a", "c2");
            script.report_failure("a", &["ConfigMap default/settings"]);
            script.wait(10);
            script.admit("b", "c2");
            script
        },
    ),
    (
        "the last good release is admitted above the failure limit",
        Rule::FailureLimit,
        || {
            let mut script = with_late_cluster();
            script.admit("a", "c2");
            script.report_failure("a", &["ConfigMap default/settings"]);
            script.wait(10);
            admit_good(&mut script, "d");
            script
        },
    ),
    ("an admission on a skipped cluster", Rule::Skipped, || {
        let mut script = canary(&json!({"clusterSelector": {}}), &NO_FIELDS);
        script.add_action("Skip", &json!({"cluster": "b"}));
        script.wait(5);
        script.admit("b", "c2");
        script
    }),
    ("an admission in a skipped stage", Rule::Skipped, || {
        let mut script = canary(&json!({"clusterSelector": {}}), &NO_FIELDS);
        script.admit("a", "c2");
        script.add_action("Skip", &json!({"stage": "canary"}));
        script.wait(5);
        script.admit("b", "c2");
        script
    }),
    ("a pause", Rule::Paused, || {
        let mut script = canary(&NO_FIELDS, &NO_FIELDS);
        script.add_action("Pause", &NO_FIELDS);
        script.wait(5);
        script.admit("a", "c2");
        script
    }),
    ("a second pause after a resume", Rule::Paused, || {
        let mut script = canary(&NO_FIELDS, &NO_FIELDS);
        for action in ["Pause", "Resume", "Pause"] {
            script.add_action(action, &NO_FIELDS);
        }
        script.wait(5);
        script.admit("a", "c2");
        script
    }),
    ("an admission in an aborted rollout", Rule::Paused, || {
        let mut script = canary(&json!({"clusterSelector": {}}), &NO_FIELDS);
        script.admit("a", "c2");
        script.add_action("Abort", &NO_FIELDS);
        script.wait(5);
        script.admit("b", "c2");
        script
    }),
    ("a repeated admission", Rule::NotAdmitted, || {
        let mut script = canary(&NO_FIELDS, &json!({"maxFailures": 1}));
        script.admit("a", "c2");
        script.report_failure("a", &["ConfigMap default/settings"]);
        script.wait(5);
        script.admit("a", "c2");
        script
    }),
    ("a held release starts again", Rule::HeldRelease, || {
        let mut script = rolled_back();
        start_third_rollout(&mut script, BAD, "c2", "Forward");
        script
    }),
    (
        "a release that was released in another rollout starts again",
        Rule::HeldRelease,
        || {
            let mut script = rolled_back();
            script.add_action("Release", &json!({"rollout": 2}));
            start_third_rollout(&mut script, BAD, "c2", "Forward");
            script
        },
    ),
    ("a rollback without a request", Rule::Rollback, || {
        let mut script = first_commit_applied();
        script.roll("c2", TWO);
        script.admit("a", "c2");
        start_third_rollout(&mut script, GOOD, "c1", "Back");
        script
    }),
    (
        "a rollback that was requested for another rollout",
        Rule::Rollback,
        || {
            let mut script = first_commit_applied();
            script.add_action("Rollback", &NO_FIELDS);
            script.roll("c2", TWO);
            script.admit("a", "c2");
            start_third_rollout(&mut script, GOOD, "c1", "Back");
            script
        },
    ),
    (
        "a rollback to a release that never succeeded",
        Rule::Rollback,
        || {
            let mut script = first_commit_applied();
            script.roll("c2", TWO);
            script.admit("a", "c2");
            script.roll("c3", THREE);
            script.add_action("Rollback", &NO_FIELDS);
            start_third_rollout(&mut script, BAD, "c2", "Back");
            script
        },
    ),
    (
        "a rollback to a release with skipped clusters",
        Rule::Rollback,
        || {
            let mut script = first_commit_applied();
            script.roll("c2", TWO);
            script.roll_out_to("a", "c2");
            script.add_action("Skip", &json!({"cluster": "b"}));
            script.add_action("Skip", &json!({"cluster": "c"}));
            script.report();
            script.edit("SyncGroup", "shop", "starling", |group| {
                group["status"]["rollout"]["phase"] = "Succeeded".into();
                group["status"]["clusters"]["held"] = 2.into();
            });
            script.roll("c3", THREE);
            script.add_action("Rollback", &NO_FIELDS);
            start_third_rollout(&mut script, BAD, "c2", "Back");
            script
        },
    ),
    (
        "a rollback to an older success than the last",
        Rule::Rollback,
        || {
            let mut script = first_commit_applied();
            script.roll("c2", TWO);
            for cluster in ["a", "b", "c"] {
                script.roll_out_to(cluster, "c2");
            }
            script.report();
            script.roll("c3", THREE);
            script.add_action("Rollback", &NO_FIELDS);
            start_third_rollout(&mut script, GOOD, "c1", "Back");
            script
        },
    ),
    (
        "an immediate rollback instead of a staged one",
        Rule::Rollback,
        || {
            let mut script = first_commit_applied();
            script.roll("c2", TWO);
            script.add_action("Rollback", &NO_FIELDS);
            start_third_rollout(&mut script, GOOD, "c1", "BackAtOnce");
            script
        },
    ),
];

/// Returns a script in which a cluster joins the second stage while the first is in progress.
fn with_late_cluster() -> Script {
    let mut script = canary(&NO_FIELDS, &NO_FIELDS);
    script.edit("SyncGroup", "shop", "starling", |group| {
        group["status"]["lastKnownGood"] =
            json!({"release": GOOD, "revisions": [{"sync": "app", "revision": revision("c1")}]});
    });
    script.add_cluster("d");
    script.wait(5);
    script
}

/// Admits the last known good release on a cluster.
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
    script.wait(60);
    script.stage(0, "startTime");
    script.roll_out_to("a", "c2");
    script.wait(30);
    script.stage(0, "completionTime");
    script.task(0, "afterStageTasks", json!({"type": "Approval"}));
    script.approve(2, "canary", "sha256:old");
    script.approve(2, "canary", "sha256:new");
    script.task(
        0,
        "afterStageTasks",
        json!({"type": "TimedWait", "waitTime": "1m"}),
    );
    script.wait(60);
    pass_canary(&mut script);
    script.roll_out_to("b", "c2");
    script.roll_out_to("c", "c2");
    script.wait(30);
    script.stage(1, "passTime");
    script.report();
    script.settle();
    script.end()
}

fn an_operator_promotes_and_skips() -> History {
    let mut script = canary(&approval_after(), &json!({"minSuccessTime": "10m"}));
    script.add_action("Promote", &json!({"stage": "canary"}));
    pass_canary(&mut script);
    script.add_action("Skip", &json!({"cluster": "c"}));
    script.wait(5);
    script.roll_out_to("a", "c2");
    script.roll_out_to("b", "c2");
    script.end()
}

fn a_rollout_is_paused_and_resumed() -> History {
    let mut script = canary(&json!({"clusterSelector": {}}), &NO_FIELDS);
    script.add_action("Pause", &NO_FIELDS);
    // Decided before the pause was known.
    script.admit("a", "c2");
    script.wait(5);
    script.write("a", "c2");
    script.report_applied("a");
    script.add_action("Resume", &NO_FIELDS);
    script.roll_out_to("b", "c2");
    script.roll_out_to("c", "c2");
    script.stage(0, "passTime");
    script.stage(1, "startTime");
    script.stage(1, "passTime");
    script.report();
    script.settle();
    script.end()
}

fn a_rollback_and_a_release_of_the_held_release() -> History {
    let mut script = rolled_back();
    script.write("a", "c1");
    script.report_applied("a");
    script.report();
    script.add_action("Release", &NO_FIELDS);
    start_third_rollout(&mut script, BAD, "c2", "Forward");
    for cluster in ["a", "b", "c"] {
        script.admit_release(cluster, "c2", BAD);
        script.write(cluster, "c2");
        script.report_applied(cluster);
    }
    script.report();
    script.settle();
    script.end()
}

fn an_operator_rolls_back_immediately() -> History {
    let mut script = staged(&json!({"rollback": {"type": "Immediate"}, "minSuccessTime": "10m"}));
    script.stage(0, "startTime");
    script.roll_out_to("a", "c2");
    script.add_action("Rollback", &NO_FIELDS);
    start_third_rollout(&mut script, GOOD, "c1", "BackAtOnce");
    script.admit_release("a", "c1", GOOD);
    script.write("a", "c1");
    script.report_applied("a");
    script.end()
}

fn a_failed_cluster_is_retried() -> History {
    let mut script = canary(&NO_FIELDS, &NO_FIELDS);
    script.admit("a", "c2");
    script.report_failure("a", &["ConfigMap default/settings"]);
    script.wait(5);
    script.add_action("Retry", &NO_FIELDS);
    script.admit("a", "c2");
    script.write("a", "c2");
    script.report_applied("a");
    pass_canary(&mut script);
    script.roll_out_to("b", "c2");
    script.roll_out_to("c", "c2");
    script.report();
    script.settle();
    script.end()
}

fn a_cluster_that_joins_a_closed_stage_gets_the_last_good_release() -> History {
    let mut script = with_late_cluster();
    admit_good(&mut script, "d");
    script.write("d", "c1");
    script.report_applied("d");
    script.roll_out_to("a", "c2");
    pass_canary(&mut script);
    for cluster in ["b", "c", "d"] {
        script.roll_out_to(cluster, "c2");
    }
    script.report();
    script.settle();
    script.end()
}

fn a_clock_jumps_over_the_soak_time() -> History {
    let mut script = canary(&NO_FIELDS, &json!({"minSuccessTime": "10m"}));
    script.roll_out_to("a", "c2");
    script.wait(5);
    script.jump(600);
    script.edit("SyncGroup", "shop", "starling", |group| {
        let stages = &mut group["status"]["rollout"]["stages"];
        stages[0]["passTime"] = "2026-01-01T13:00:00Z".into();
        stages[1]["startTime"] = "2026-01-01T13:00:00Z".into();
    });
    script.wait(5);
    script.roll_out_to("b", "c2");
    script.end()
}

fn two_commits_through_stages() -> History {
    let mut script = staged(&NO_FIELDS);
    roll_out_to_all(&mut script, "c2");
    script.roll("c3", THREE);
    roll_out_to_all(&mut script, "c3");
    script.settle();
    script.end()
}

/// A name, and the function that creates the history.
type AcceptedCase = (&'static str, fn() -> History);

#[test]
fn correct_rollouts_through_stages_are_accepted() {
    let histories: [AcceptedCase; 9] = [
        ("everything", stages_with_everything),
        ("promote and skip", an_operator_promotes_and_skips),
        ("pause and resume", a_rollout_is_paused_and_resumed),
        (
            "rollback and release",
            a_rollback_and_a_release_of_the_held_release,
        ),
        ("immediate rollback", an_operator_rolls_back_immediately),
        ("retry", a_failed_cluster_is_retried),
        (
            "a late cluster",
            a_cluster_that_joins_a_closed_stage_gets_the_last_good_release,
        ),
        ("a jump", a_clock_jumps_over_the_soak_time),
        ("two commits", two_commits_through_stages),
    ];
    let failures: Vec<String> = histories
        .iter()
        .map(|(name, history)| (name, broken(&history())))
        .filter(|(_, (rules, _))| !rules.is_empty())
        .map(|(name, (_, message))| format!("{name}:\n{message}"))
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
