//! Histories in which nothing is wrong, though much happens.

use serde_json::json;

use super::bad::many;
use super::broken;
use super::script::{Script, condition, labelled, rendered, revision, sync};
use crate::judge::History;

const ONE: &[(&str, &str)] = &[("settings", "1"), ("motd", "hello")];
const TWO: &[(&str, &str)] = &[("settings", "2"), ("motd", "hello")];
const THREE: &[(&str, &str)] = &[("settings", "3"), ("motd", "hello")];

/// Three clusters that hold the first commit.
pub(super) fn settled() -> Script {
    let mut script = Script::over(&["a", "b", "c"]);
    script.roll("c1", ONE);
    for cluster in ["a", "b", "c"] {
        script.deliver(cluster, "c1");
    }
    script.report();
    script
}

fn a_second_commit_rolls_in_bounded_steps() -> History {
    let mut script = settled();
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.admit("b", "c2");
    script.report();
    script.write("b", "c2");
    script.hold("b");
    script.admit("c", "c2");
    script.report();
    for cluster in ["a", "c"] {
        script.write(cluster, "c2");
        script.hold(cluster);
    }
    script.report();
    script.rest();
    script.end()
}

fn a_newer_commit_overtakes_one_that_was_never_written() -> History {
    let mut script = settled();
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.roll("c3", THREE);
    for cluster in ["a", "b", "c"] {
        script.deliver(cluster, "c3");
    }
    script.report();
    script.rest();
    script.end()
}

fn an_attempt_that_has_begun_ends_after_it_was_superseded() -> History {
    let mut script = settled();
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.claim("a", "c2");
    script.roll("c3", THREE);
    script.admit("a", "c3");
    script.put_map("a", "settings", "2");
    script.write("a", "c3");
    script.hold("a");
    script.end()
}

fn a_branch_is_set_back() -> History {
    let mut script = settled();
    script.roll("c2", TWO);
    script.deliver("a", "c2");
    script.roll("c1", ONE);
    for cluster in ["a", "b", "c"] {
        script.deliver(cluster, "c1");
    }
    script.report();
    script.rest();
    script.end()
}

fn a_rollback_was_asked_for() -> History {
    let mut script = settled();
    script.edit("SyncGroup", "shop", "kubectl", |group| {
        group["spec"]["rolloutStrategy"]["onFailure"] = "Rollback".into();
    });
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.fail("a", &["ConfigMap default/settings"]);
    script.start("c1");
    script.deliver("a", "c1");
    script.end()
}

fn an_answer_is_lost_and_the_attempt_repeated() -> History {
    let mut script = settled();
    script.roll("c2", &[("settings", "2"), ("motd", "hello"), ("more", "1")]);
    script.admit("a", "c2");
    script.claim("a", "c2");
    script.put_map("a", "settings", "2");
    script.fail("a", &["ConfigMap default/settings"]);
    script.pass(30);
    script.write("a", "c2");
    script.hold("a");
    script.end()
}

fn a_cluster_leaves_and_comes_back() -> History {
    let mut script = settled();
    script.label("c", "fleet", "no");
    script.pass(3);
    script.delete_cr("Sync", &sync("c"), "", false);
    script.report();
    script.label("c", "fleet", "yes");
    script.admit("c", "c1");
    script.hold("c");
    script.report();
    script.rest();
    script.end()
}

/// The controller has seen it leave, and not yet that it is back.
fn a_slot_is_taken_from_a_cluster_that_has_just_come_back() -> History {
    let mut script = settled();
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.admit("b", "c2");
    for value in ["no", "yes"] {
        script.label("a", "fleet", value);
        script.pass(-1);
    }
    script.pass(1);
    script.admit("c", "c2");
    script.end()
}

/// It was lost with the older release, and had given its slot to the other one; then it comes back, still at work.
fn a_lost_cluster_comes_back_and_is_told_what_is_newer_in_its_own_slot() -> History {
    let mut script = settled();
    script.strategy_is(json!({"maxConcurrency": 1, "maxFailures": 1}));
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.write("a", "c2");
    script.reach("a", false);
    script.roll("c3", THREE);
    script.pass(3);
    script.admit("b", "c3");
    script.reach("a", true);
    script.pass(3);
    script.hold("a");
    script.admit("a", "c3");
    script.end()
}

/// A cluster that was out took its slot with it when it came back: three are at work where two may be.
fn one_came_back_beside_two() -> Script {
    let mut script = settled();
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.write("a", "c2");
    script.label("a", "fleet", "no");
    script.pass(5);
    script.admit("b", "c2");
    script.admit("c", "c2");
    script.write("c", "c2");
    script.label("a", "fleet", "yes");
    script.pass(5);
    script.roll("c3", THREE);
    script.pass(5);
    script
}

/// The controller has just said that one is through, and decides with what it knew before.
fn one_of_too_many_is_told_what_is_newer_in_its_own_slot() -> History {
    let mut script = one_came_back_beside_two();
    script.hold("c");
    script.admit("c", "c3");
    script.end()
}

/// The same of two, one of them that which came back.
fn two_of_too_many_are_told_what_is_newer_in_their_own_slots() -> History {
    let mut script = one_came_back_beside_two();
    script.hold("a");
    script.pass(-1);
    script.hold("c");
    script.admit("a", "c3");
    script.pass(-1);
    script.admit("c", "c3");
    script.end()
}

/// The controller has seen the Cluster go, and not yet that there is another.
fn a_cluster_is_made_again_while_its_sync_is_taken_away() -> History {
    let mut script = settled();
    script.delete_cr("Cluster", "c", "kubectl", false);
    script.add_cluster("c");
    script.delete_cr("Sync", &sync("c"), "", false);
    script.report();
    script.admit("c", "c1");
    script.hold("c");
    script.report();
    script.rest();
    script.end()
}

/// By a replica that had not seen the newer one.
fn a_status_is_written_over_by_an_older_one() -> History {
    let mut script = settled();
    let (old_sync, old_group) = (script.cr("Sync", &sync("a")), script.cr("SyncGroup", "shop"));
    script.roll("c2", TWO);
    script.deliver("a", "c2");
    let new = script.cr("Sync", &sync("a"));
    script.edit("Sync", &sync("a"), "starling", |sync| {
        sync["status"] = old_sync["status"].clone();
    });
    script.edit("SyncGroup", "shop", "starling", |group| {
        group["status"] = old_group["status"].clone();
    });
    script.edit("Sync", &sync("a"), "starling", |sync| {
        sync["status"] = new["status"].clone();
    });
    script.start("c2");
    script.deliver("b", "c2");
    script.deliver("c", "c2");
    script.admit("a", "c2");
    script.report();
    script.rest();
    script.end()
}

fn what_somebody_changed_is_put_right_each_time() -> History {
    let mut script = settled();
    for _ in 0..2 {
        script.member("a", "kubectl", labelled(rendered("settings", "mine")));
        script.put_map("a", "settings", "1");
    }
    script.remove("a", "kubectl", "ConfigMap", "motd");
    script.put_map("a", "motd", "hello");
    script.keep_inventory("a");
    script.rest();
    script.end()
}

/// Nothing looks for drift while a new commit is applied.
fn what_somebody_changed_before_is_still_claimed() -> History {
    let mut script = settled();
    script.member("a", "kubectl", labelled(rendered("motd", "mine")));
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.put_map("a", "settings", "2");
    script.hold("a");
    script.end()
}

fn an_unreachable_cluster_is_passed_over_and_caught_up_once() -> History {
    let mut script = settled();
    script.reach("b", false);
    script.roll("c2", TWO);
    script.deliver("a", "c2");
    script.deliver("c", "c2");
    script.report();
    script.roll("c3", THREE);
    script.deliver("a", "c3");
    script.deliver("c", "c3");
    script.report();
    script.pass(600);
    script.reach("b", true);
    script.pass(10);
    script.deliver("b", "c3");
    script.report();
    script.rest();
    script.end()
}

fn a_failure_gives_its_slot_back_and_is_named() -> History {
    let mut script = settled();
    script.strategy_is(json!({"maxConcurrency": 1, "maxFailures": 1}));
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.claim("a", "c2");
    script.fail("a", &["ConfigMap default/settings"]);
    script.deliver("b", "c2");
    script.deliver("c", "c2");
    script.report();
    script.rest();
    script.end()
}

fn a_rollout_stops_above_the_budget_and_says_so() -> History {
    let mut script = settled();
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.fail("a", &["ConfigMap default/settings"]);
    script.report();
    script.rest();
    script.end()
}

fn what_left_git_is_pruned() -> History {
    let mut script = settled();
    script.roll("c2", &[("settings", "1")]);
    for cluster in ["a", "b", "c"] {
        script.deliver(cluster, "c2");
    }
    script.report();
    script.rest();
    script.end()
}

fn a_large_prune_is_approved() -> History {
    let mut script = many();
    script.edit("SyncGroup", "shop", "kubectl", |group| {
        group["metadata"]["annotations"] = json!({"starling.dev/approve-deletions": "sha256:these"});
    });
    script.write("a", "c2");
    script.hold("a");
    script.report();
    script.rest();
    script.end()
}

fn an_object_is_made_anew_where_that_was_asked_for() -> History {
    let mut script = settled();
    script.edit("SyncGroup", "shop", "kubectl", |group| {
        group["spec"]["syncs"][0]["force"] = true.into();
    });
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.remove("a", "starling", "ConfigMap", "settings");
    script.put_map("a", "settings", "2");
    script.keep_inventory("a");
    script.hold("a");
    script.end()
}

fn a_sync_is_deleted_with_its_objects() -> History {
    let mut script = settled();
    script.edit("SyncGroup", "shop", "kubectl", |group| {
        group["spec"]["whenUnselected"] = "Delete".into();
    });
    script.edit("Cluster", "c", "kubectl", |cluster| {
        cluster["metadata"]["labels"] = json!({});
    });
    script.pass(3);
    script.edit("Sync", &sync("c"), "starling", |sync| {
        sync["spec"]["deletionPolicy"] = "Delete".into();
    });
    script.delete_cr("Sync", &sync("c"), "", true);
    script.remove("c", "starling", "ConfigMap", "settings");
    script.remove("c", "starling", "ConfigMap", "motd");
    script.keep_inventory("c");
    script.delete_cr("Sync", &sync("c"), "", false);
    script.report();
    script.rest();
    script.end()
}

fn a_suspended_cluster_waits_until_it_is_not() -> History {
    let mut script = settled();
    let suspend = |script: &mut Script, yes: bool| {
        script.edit("Cluster", "b", "kubectl", |cluster| {
            cluster["spec"]["suspend"] = yes.into();
        });
    };
    suspend(&mut script, true);
    script.roll("c2", TWO);
    script.deliver("a", "c2");
    script.deliver("c", "c2");
    script.pass(600);
    suspend(&mut script, false);
    script.pass(5);
    script.deliver("b", "c2");
    script.report();
    script.rest();
    script.end()
}

fn more_slots_are_given_and_used() -> History {
    let mut script = settled();
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.admit("b", "c2");
    script.edit("SyncGroup", "shop", "kubectl", |group| {
        group["spec"]["rolloutStrategy"]["maxConcurrency"] = "100%".into();
    });
    script.admit("c", "c2");
    for cluster in ["a", "b", "c"] {
        script.write(cluster, "c2");
        script.hold(cluster);
    }
    script.report();
    script.rest();
    script.end()
}

fn a_rebuilt_cluster_gets_everything_again() -> History {
    let mut script = settled();
    script.member(
        "a",
        "system",
        json!({"kind": "Namespace", "metadata": {"name": "kube-system", "uid": "id-new"}}),
    );
    script.edit("Cluster", "a", "starling", |cluster| {
        cluster["status"]["clusterID"] = "id-new".into();
    });
    script.list("a", &["settings".into(), "motd".into()]);
    script.member("a", "starling", labelled(rendered("settings", "1")));
    script.member("a", "starling", labelled(rendered("motd", "hello")));
    script.edit("Sync", &sync("a"), "starling", |sync| {
        sync["status"]["lastAppliedClusterID"] = "id-new".into();
        sync["status"]["lastAppliedTime"] = "2026-01-01T13:00:00Z".into();
    });
    script.end()
}

fn a_lost_cluster_keeps_its_slot_until_the_deadline() -> History {
    let mut script = settled();
    script.strategy_is(json!({"maxConcurrency": 1, "maxFailures": 1, "progressDeadline": "1m"}));
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.reach("a", false);
    script.report();
    script.pass(60);
    script.deliver("b", "c2");
    script.deliver("c", "c2");
    script.end()
}

/// Four are at work where three may be: nobody admitted the retry. What follows on the same cluster takes no slot.
fn a_cluster_that_is_at_work_again_is_told_what_is_newer() -> History {
    let mut script = settled();
    script.strategy_is(json!({"maxConcurrency": 1, "maxFailures": 1}));
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.fail("a", &["ConfigMap default/settings"]);
    script.admit("b", "c2");
    script.report();
    script.write("a", "c2");
    script.hold_unhealthy("a");
    script.roll("c3", THREE);
    script.pass(5);
    script.deliver("a", "c3");
    script.deliver("b", "c3");
    script.deliver("c", "c3");
    script.report();
    script.end()
}

fn a_controller_that_is_away_explains_nothing() -> History {
    let mut script = settled();
    script.push("c2", TWO);
    script.observe("c2");
    let mut status = script.cr("SyncGroup", "shop")["status"].clone();
    status["rollout"]["id"] = 2.into();
    status["rollout"]["phase"] = "Pending".into();
    status["rollout"]["revisions"][0]["revision"] = revision("c2").into();
    status["clusters"] = json!({"total": 3, "pending": 3});
    script.edit("SyncGroup", "shop", "starling", |group| {
        group["status"] = status;
    });
    script.sleep(300);
    script.report();
    for cluster in ["a", "b", "c"] {
        script.deliver(cluster, "c2");
    }
    script.report();
    script.rest();
    script.end()
}

fn a_first_stage_is_through_before_the_second() -> History {
    let mut script = settled();
    script.label("a", "stage", "canary");
    script.edit("SyncGroup", "shop", "kubectl", |group| {
        group["spec"]["rolloutStrategy"]["minSuccessTime"] = "30s".into();
        group["spec"]["rolloutStrategy"]["stages"] =
            json!([{"name": "canary", "clusterSelector": {"matchLabels": {"stage": "canary"}}}]);
    });
    script.pass(5);
    script.roll("c2", TWO);
    script.stage(0, "startTime");
    script.deliver("a", "c2");
    script.pass(30);
    script.stage(0, "passTime");
    script.stage(1, "startTime");
    script.deliver("b", "c2");
    script.deliver("c", "c2");
    script.report();
    script.rest();
    script.end()
}

fn a_sync_alone_follows_its_source() -> History {
    let mut script = Script::over(&["a"]);
    script.edit("Sync", "shop-app-a", "kubectl", |sync| {
        sync["spec"] = json!({"clusterRef": {"name": "a"}, "sourceRef": {"name": "shop"}, "path": "./app", "timeout": "10s"});
    });
    let hold = |script: &mut Script, commit: &str, time: &str| {
        script.edit("Sync", "shop-app-a", "starling", |sync| {
            let target = format!("sha256:{commit}");
            sync["status"] = json!({"observedGeneration": 1, "lastAttemptedTarget": target, "lastAttemptedRevision": revision(commit),
                "lastAppliedTarget": target, "lastAppliedRevision": revision(commit), "lastAppliedClusterID": "id-a",
                "lastAppliedTime": time, "lastHealthyTarget": target, "conditions": [condition("Ready", "True", "Succeeded")]});
        });
    };
    for (commit, maps, time) in [("c1", ONE, "12:00"), ("c2", TWO, "12:01")] {
        script.push(commit, maps);
        script.observe(commit);
        script.write("a", commit);
        hold(&mut script, commit, time);
    }
    script.delete_cr("SyncGroup", "shop", "kubectl", false);
    script.rest();
    script.end()
}

/// A name, and how it is made.
type Case = (&'static str, fn() -> History);

/// T75, the other half.
#[test]
fn t75_histories_without_fault_are_accepted() {
    let histories: [Case; 30] = [
        ("bounded steps", a_second_commit_rolls_in_bounded_steps),
        (
            "supersession",
            a_newer_commit_overtakes_one_that_was_never_written,
        ),
        (
            "a superseded attempt ends",
            an_attempt_that_has_begun_ends_after_it_was_superseded,
        ),
        ("a branch is set back", a_branch_is_set_back),
        ("rollback", a_rollback_was_asked_for),
        ("a lost answer", an_answer_is_lost_and_the_attempt_repeated),
        ("leave and rejoin", a_cluster_leaves_and_comes_back),
        (
            "rejoin beside an admission",
            a_slot_is_taken_from_a_cluster_that_has_just_come_back,
        ),
        (
            "its own slot",
            a_lost_cluster_comes_back_and_is_told_what_is_newer_in_its_own_slot,
        ),
        (
            "one of too many",
            one_of_too_many_is_told_what_is_newer_in_its_own_slot,
        ),
        (
            "two of too many",
            two_of_too_many_are_told_what_is_newer_in_their_own_slots,
        ),
        (
            "made again beside a deletion",
            a_cluster_is_made_again_while_its_sync_is_taken_away,
        ),
        ("a stale status", a_status_is_written_over_by_an_older_one),
        ("drift", what_somebody_changed_is_put_right_each_time),
        ("drift unseen", what_somebody_changed_before_is_still_claimed),
        (
            "unreachable",
            an_unreachable_cluster_is_passed_over_and_caught_up_once,
        ),
        ("failure", a_failure_gives_its_slot_back_and_is_named),
        ("failure stops", a_rollout_stops_above_the_budget_and_says_so),
        ("prune", what_left_git_is_pruned),
        ("large prune", a_large_prune_is_approved),
        ("made anew", an_object_is_made_anew_where_that_was_asked_for),
        ("deleted", a_sync_is_deleted_with_its_objects),
        ("suspended", a_suspended_cluster_waits_until_it_is_not),
        ("more slots", more_slots_are_given_and_used),
        ("rebuilt", a_rebuilt_cluster_gets_everything_again),
        ("lost", a_lost_cluster_keeps_its_slot_until_the_deadline),
        ("again", a_cluster_that_is_at_work_again_is_told_what_is_newer),
        ("away", a_controller_that_is_away_explains_nothing),
        ("stages", a_first_stage_is_through_before_the_second),
        ("alone", a_sync_alone_follows_its_source),
    ];
    let wrong: Vec<String> = histories
        .iter()
        .map(|(name, history)| (name, broken(&history())))
        .filter(|(_, (rules, _))| !rules.is_empty())
        .map(|(name, (_, words))| format!("{name}:\n{words}"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
