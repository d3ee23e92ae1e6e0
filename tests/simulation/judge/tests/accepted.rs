//! Histories without a violation, though much happens.

use serde_json::json;

use super::broken;
use super::rejected::{large_prune, returned};
use super::script::{ONE, Script, THREE, TWO, condition, labelled, rendered, revision, sync};
use crate::judge::History;

/// Returns a script with three clusters that have applied the first commit.
pub(super) fn first_commit_applied() -> Script {
    let mut script = Script::over(&["a", "b", "c"]);
    script.roll("c1", ONE);
    for cluster in ["a", "b", "c"] {
        script.roll_out_to(cluster, "c1");
    }
    script.report();
    script
}

fn a_second_commit_rolls_in_bounded_steps() -> History {
    let mut script = first_commit_applied();
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.admit("b", "c2");
    script.report();
    script.write("b", "c2");
    script.report_applied("b");
    script.admit("c", "c2");
    script.report();
    for cluster in ["a", "c"] {
        script.write(cluster, "c2");
        script.report_applied(cluster);
    }
    script.report();
    script.settle();
    script.end()
}

fn a_newer_commit_supersedes_an_unwritten_one() -> History {
    let mut script = first_commit_applied();
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.roll("c3", THREE);
    for cluster in ["a", "b", "c"] {
        script.roll_out_to(cluster, "c3");
    }
    script.report();
    script.settle();
    script.end()
}

fn a_superseded_attempt_finishes() -> History {
    let mut script = first_commit_applied();
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.claim("a", "c2");
    script.roll("c3", THREE);
    script.admit("a", "c3");
    script.apply_map("a", "settings", "2");
    script.write("a", "c3");
    script.report_applied("a");
    script.end()
}

fn a_branch_is_reset() -> History {
    let mut script = first_commit_applied();
    script.roll("c2", TWO);
    script.roll_out_to("a", "c2");
    script.roll("c1", ONE);
    for cluster in ["a", "b", "c"] {
        script.roll_out_to(cluster, "c1");
    }
    script.report();
    script.settle();
    script.end()
}

fn a_rollback_is_requested() -> History {
    let mut script = first_commit_applied();
    script.edit("SyncGroup", "shop", "kubectl", |group| {
        group["spec"]["rolloutStrategy"]["onFailure"] = "Rollback".into();
    });
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.report_failure("a", &["ConfigMap default/settings"]);
    script.start("c1");
    script.roll_out_to("a", "c1");
    script.end()
}

fn a_response_is_lost_and_the_attempt_is_repeated() -> History {
    let mut script = first_commit_applied();
    script.roll("c2", &[("settings", "2"), ("motd", "hello"), ("more", "1")]);
    script.admit("a", "c2");
    script.claim("a", "c2");
    script.apply_map("a", "settings", "2");
    script.report_failure("a", &["ConfigMap default/settings"]);
    script.wait(30);
    script.write("a", "c2");
    script.report_applied("a");
    script.end()
}

fn a_cluster_leaves_and_comes_back() -> History {
    let mut script = first_commit_applied();
    script.label("c", "fleet", "no");
    script.wait(3);
    script.delete_cr("Sync", &sync("c"), "", false);
    script.report();
    script.label("c", "fleet", "yes");
    script.admit("c", "c1");
    script.report_applied("c");
    script.report();
    script.settle();
    script.end()
}

/// The controller has observed that the cluster left, and not yet that the cluster is back.
fn a_slot_is_taken_from_a_cluster_that_just_returned() -> History {
    let mut script = first_commit_applied();
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.admit("b", "c2");
    for value in ["no", "yes"] {
        script.label("a", "fleet", value);
        script.wait(-1);
    }
    script.wait(1);
    script.admit("c", "c2");
    script.end()
}

/// The cluster became unreachable with the older release, and another cluster took its slot; then it returns, still in
/// flight.
fn an_unreachable_cluster_returns_and_gets_the_newer_release_in_its_own_slot() -> History {
    let mut script = first_commit_applied();
    script.set_strategy(json!({"maxConcurrency": 1, "maxFailures": 1}));
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.write("a", "c2");
    script.set_reachable("a", false);
    script.roll("c3", THREE);
    script.wait(3);
    script.admit("b", "c3");
    script.set_reachable("a", true);
    script.wait(3);
    script.report_applied("a");
    script.admit("a", "c3");
    script.end()
}

/// Nothing was written to the cluster before it was lost: its slot is free for another cluster, and it is admitted
/// again when it is back and a slot is free.
fn a_cluster_that_gave_its_slot_back_is_admitted_again() -> History {
    let mut script = returned();
    script.admit("b", "c2");
    script.write("b", "c2");
    script.set_reachable("a", true);
    script.report_applied("b");
    script.wait(5);
    script.admit("a", "c2");
    script.write("a", "c2");
    script.report_applied("a");
    script.end()
}

/// A cluster that gave its slot back before anything was written is admitted to the last known good commit, as a new
/// cluster is.
fn a_cluster_that_gave_its_slot_back_is_admitted_to_an_older_commit() -> History {
    let mut script = returned();
    script.set_reachable("a", true);
    script.wait(5);
    script.start("c1");
    script.admit("a", "c1");
    script.end()
}

/// The management cluster is set back to before the slot was given back.
fn a_restore_forgets_that_a_slot_was_given_back() -> History {
    let mut script = returned();
    script.set_back("hub");
    script.edit("Sync", &sync("a"), "etcd", |sync| {
        sync["status"]["returnedAdmission"] = "".into();
    });
    script.set_reachable("a", true);
    script.wait(60);
    script.write("a", "c2");
    script.end()
}

/// A cluster that was not selected still has its slot when it returns: three are in flight, and the limit is two.
fn one_returned_beside_two() -> Script {
    let mut script = first_commit_applied();
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.write("a", "c2");
    script.label("a", "fleet", "no");
    script.wait(5);
    script.admit("b", "c2");
    script.admit("c", "c2");
    script.write("c", "c2");
    script.label("a", "fleet", "yes");
    script.wait(5);
    script.roll("c3", THREE);
    script.wait(5);
    script
}

/// The controller has just reported one as done, and decides with an older state.
fn one_of_too_many_gets_the_newer_release_in_its_own_slot() -> History {
    let mut script = one_returned_beside_two();
    script.report_applied("c");
    script.admit("c", "c3");
    script.end()
}

/// The same for two clusters, one of which is the returned one.
fn two_of_too_many_get_the_newer_release_in_their_own_slots() -> History {
    let mut script = one_returned_beside_two();
    script.report_applied("a");
    script.wait(-1);
    script.report_applied("c");
    script.admit("a", "c3");
    script.wait(-1);
    script.admit("c", "c3");
    script.end()
}

/// The controller has observed the deletion of the Cluster, and not yet the new one.
fn a_cluster_is_recreated_while_its_sync_is_deleted() -> History {
    let mut script = first_commit_applied();
    script.delete_cr("Cluster", "c", "kubectl", false);
    script.add_cluster("c");
    script.delete_cr("Sync", &sync("c"), "", false);
    script.report();
    script.admit("c", "c1");
    script.report_applied("c");
    script.report();
    script.settle();
    script.end()
}

/// By a replica that had not observed the newer status.
fn a_status_is_overwritten_by_an_older_one() -> History {
    let mut script = first_commit_applied();
    let (old_sync, old_group) = (script.cr("Sync", &sync("a")), script.cr("SyncGroup", "shop"));
    script.roll("c2", TWO);
    script.roll_out_to("a", "c2");
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
    script.roll_out_to("b", "c2");
    script.roll_out_to("c", "c2");
    script.admit("a", "c2");
    script.report();
    script.settle();
    script.end()
}

fn drift_is_corrected_each_time() -> History {
    let mut script = first_commit_applied();
    for _ in 0..2 {
        script.write_object("a", "kubectl", labelled(rendered("settings", "mine")));
        script.apply_map("a", "settings", "1");
    }
    script.remove("a", "kubectl", "ConfigMap", "motd");
    script.apply_map("a", "motd", "hello");
    script.update_inventory("a");
    script.settle();
    script.end()
}

/// There is no drift check while a new commit is applied.
fn drift_during_a_rollout_is_not_checked() -> History {
    let mut script = first_commit_applied();
    script.write_object("a", "kubectl", labelled(rendered("motd", "mine")));
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.apply_map("a", "settings", "2");
    script.report_applied("a");
    script.end()
}

fn an_unreachable_cluster_is_skipped_and_updated_later() -> History {
    let mut script = first_commit_applied();
    script.set_reachable("b", false);
    script.roll("c2", TWO);
    script.roll_out_to("a", "c2");
    script.roll_out_to("c", "c2");
    script.report();
    script.roll("c3", THREE);
    script.roll_out_to("a", "c3");
    script.roll_out_to("c", "c3");
    script.report();
    script.wait(600);
    script.set_reachable("b", true);
    script.wait(10);
    script.roll_out_to("b", "c3");
    script.report();
    script.settle();
    script.end()
}

fn a_failed_cluster_releases_its_slot_and_is_reported() -> History {
    let mut script = first_commit_applied();
    script.set_strategy(json!({"maxConcurrency": 1, "maxFailures": 1}));
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.claim("a", "c2");
    script.report_failure("a", &["ConfigMap default/settings"]);
    script.roll_out_to("b", "c2");
    script.roll_out_to("c", "c2");
    script.report();
    script.settle();
    script.end()
}

fn a_rollout_stops_above_the_failure_limit() -> History {
    let mut script = first_commit_applied();
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.report_failure("a", &["ConfigMap default/settings"]);
    script.report();
    script.settle();
    script.end()
}

fn objects_removed_from_git_are_pruned() -> History {
    let mut script = first_commit_applied();
    script.roll("c2", &[("settings", "1")]);
    for cluster in ["a", "b", "c"] {
        script.roll_out_to(cluster, "c2");
    }
    script.report();
    script.settle();
    script.end()
}

fn a_large_prune_is_approved() -> History {
    let mut script = large_prune();
    let used = script.annotate_group("starling.dev/approve-deletions", "sha256:these");
    script.grant_approved("a", &used, "target", 11);
    script.claim("a", "c2");
    for number in 1..12 {
        script.remove_uncounted("a", "starling", "ConfigMap", &format!("map-{number:02}"));
    }
    script.update_inventory("a");
    script.report_applied("a");
    script.report();
    script.settle();
    script.end()
}

fn an_object_is_recreated_on_request() -> History {
    let mut script = first_commit_applied();
    script.edit("SyncGroup", "shop", "kubectl", |group| {
        group["spec"]["syncs"][0]["force"] = true.into();
    });
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.remove("a", "starling", "ConfigMap", "settings");
    script.apply_map("a", "settings", "2");
    script.update_inventory("a");
    script.report_applied("a");
    script.end()
}

fn a_sync_is_deleted_with_its_objects() -> History {
    let mut script = first_commit_applied();
    script.edit("SyncGroup", "shop", "kubectl", |group| {
        group["spec"]["whenUnselected"] = "Delete".into();
    });
    script.edit("Cluster", "c", "kubectl", |cluster| {
        cluster["metadata"]["labels"] = json!({});
    });
    script.wait(3);
    script.edit("Sync", &sync("c"), "starling", |sync| {
        sync["spec"]["deletionPolicy"] = "Delete".into();
    });
    script.delete_cr("Sync", &sync("c"), "", true);
    script.remove("c", "starling", "ConfigMap", "settings");
    script.remove("c", "starling", "ConfigMap", "motd");
    script.update_inventory("c");
    script.delete_cr("Sync", &sync("c"), "", false);
    script.report();
    script.settle();
    script.end()
}

fn a_suspended_cluster_waits() -> History {
    let mut script = first_commit_applied();
    let suspend = |script: &mut Script, yes: bool| {
        script.edit("Cluster", "b", "kubectl", |cluster| {
            cluster["spec"]["suspend"] = yes.into();
        });
    };
    suspend(&mut script, true);
    script.roll("c2", TWO);
    script.roll_out_to("a", "c2");
    script.roll_out_to("c", "c2");
    script.wait(600);
    suspend(&mut script, false);
    script.wait(5);
    script.roll_out_to("b", "c2");
    script.report();
    script.settle();
    script.end()
}

fn maxconcurrency_is_raised() -> History {
    let mut script = first_commit_applied();
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.admit("b", "c2");
    script.edit("SyncGroup", "shop", "kubectl", |group| {
        group["spec"]["rolloutStrategy"]["maxConcurrency"] = "100%".into();
    });
    script.admit("c", "c2");
    for cluster in ["a", "b", "c"] {
        script.write(cluster, "c2");
        script.report_applied(cluster);
    }
    script.report();
    script.settle();
    script.end()
}

fn a_rebuilt_cluster_gets_all_objects_again() -> History {
    let mut script = first_commit_applied();
    script.write_object(
        "a",
        "system",
        json!({"kind": "Namespace", "metadata": {"name": "kube-system", "uid": "id-new"}}),
    );
    script.edit("Cluster", "a", "starling", |cluster| {
        cluster["status"]["clusterID"] = "id-new".into();
    });
    script.write_inventory("a", &["settings".into(), "motd".into()]);
    script.write_object("a", "starling", labelled(rendered("settings", "1")));
    script.write_object("a", "starling", labelled(rendered("motd", "hello")));
    script.edit("Sync", &sync("a"), "starling", |sync| {
        sync["status"]["lastAppliedClusterID"] = "id-new".into();
        sync["status"]["lastAppliedTime"] = "2026-01-01T13:00:00Z".into();
    });
    script.end()
}

fn an_unreachable_cluster_keeps_its_slot_until_the_deadline() -> History {
    let mut script = first_commit_applied();
    script.set_strategy(json!({"maxConcurrency": 1, "maxFailures": 1, "progressDeadline": "1m"}));
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.set_reachable("a", false);
    script.report();
    script.wait(60);
    script.roll_out_to("b", "c2");
    script.roll_out_to("c", "c2");
    script.end()
}

/// Four are in flight, and the limit is three: a retry is not an admission. The next admission on the same cluster
/// takes no slot.
fn a_retried_cluster_gets_the_newer_release() -> History {
    let mut script = first_commit_applied();
    script.set_strategy(json!({"maxConcurrency": 1, "maxFailures": 1}));
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.report_failure("a", &["ConfigMap default/settings"]);
    script.admit("b", "c2");
    script.report();
    script.write("a", "c2");
    script.report_applied_unhealthy("a");
    script.roll("c3", THREE);
    script.wait(5);
    script.roll_out_to("a", "c3");
    script.roll_out_to("b", "c3");
    script.roll_out_to("c", "c3");
    script.report();
    script.end()
}

fn a_stopped_controller_explains_nothing() -> History {
    let mut script = first_commit_applied();
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
    script.stop_controller(300);
    script.report();
    for cluster in ["a", "b", "c"] {
        script.roll_out_to(cluster, "c2");
    }
    script.report();
    script.settle();
    script.end()
}

fn the_first_stage_passes_before_the_second() -> History {
    let mut script = first_commit_applied();
    script.label("a", "stage", "canary");
    script.edit("SyncGroup", "shop", "kubectl", |group| {
        group["spec"]["rolloutStrategy"]["minSuccessTime"] = "30s".into();
        group["spec"]["rolloutStrategy"]["stages"] =
            json!([{"name": "canary", "clusterSelector": {"matchLabels": {"stage": "canary"}}}]);
    });
    script.wait(5);
    script.roll("c2", TWO);
    script.stage(0, "startTime");
    script.roll_out_to("a", "c2");
    script.wait(30);
    script.stage(0, "passTime");
    script.stage(1, "startTime");
    script.roll_out_to("b", "c2");
    script.roll_out_to("c", "c2");
    script.report();
    script.settle();
    script.end()
}

fn a_sync_alone_follows_its_source() -> History {
    let mut script = Script::over(&["a"]);
    script.edit("Sync", "shop-app-a", "kubectl", |sync| {
        sync["spec"] = json!({"clusterRef": {"name": "a"}, "sourceRef": {"name": "shop"}, "path": "./app", "timeout": "10s"});
    });
    let report_applied = |script: &mut Script, commit: &str, time: &str| {
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
        report_applied(&mut script, commit, time);
    }
    script.delete_cr("SyncGroup", "shop", "kubectl", false);
    script.settle();
    script.end()
}

/// A cluster that was not selected returns, and gets the newer release in its own slot at once.
fn one_that_just_returned_gets_the_newer_release_in_its_own_slot() -> History {
    let mut script = first_commit_applied();
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.write("a", "c2");
    script.leave_and_return_for_the_third_commit();
    script.end()
}

/// For a clock that was ahead the deadline of a cluster had passed, and another one got its slot. For the clock that
/// was set right both are in flight.
fn a_clock_that_was_ahead_lets_two_have_one_slot() -> History {
    let mut script = first_commit_applied();
    script.set_strategy(json!({"maxConcurrency": 1, "maxFailures": 1}));
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.write("a", "c2");
    script.jump(3600);
    script.wait(5);
    script.admit_by_clock("b", "c2");
    script.roll("c3", THREE);
    script.jump(-3600);
    script.admit_by_clock("a", "c3");
    script.end()
}

/// A name, and the function that creates the history.
type Case = (&'static str, fn() -> History);

/// The second half of T75.
#[test]
fn t75_histories_without_fault_are_accepted() {
    let histories: [Case; 35] = [
        (
            "one that just returned",
            one_that_just_returned_gets_the_newer_release_in_its_own_slot,
        ),
        (
            "a clock that was ahead",
            a_clock_that_was_ahead_lets_two_have_one_slot,
        ),
        ("bounded steps", a_second_commit_rolls_in_bounded_steps),
        ("supersession", a_newer_commit_supersedes_an_unwritten_one),
        ("a superseded attempt finishes", a_superseded_attempt_finishes),
        ("a branch is reset", a_branch_is_reset),
        ("rollback", a_rollback_is_requested),
        ("a lost response", a_response_is_lost_and_the_attempt_is_repeated),
        ("leave and rejoin", a_cluster_leaves_and_comes_back),
        (
            "rejoin beside an admission",
            a_slot_is_taken_from_a_cluster_that_just_returned,
        ),
        (
            "its slot was given back",
            a_cluster_that_gave_its_slot_back_is_admitted_again,
        ),
        (
            "its slot was given back, and an older commit is the last known good one",
            a_cluster_that_gave_its_slot_back_is_admitted_to_an_older_commit,
        ),
        (
            "a restore forgets that a slot was given back",
            a_restore_forgets_that_a_slot_was_given_back,
        ),
        (
            "its own slot",
            an_unreachable_cluster_returns_and_gets_the_newer_release_in_its_own_slot,
        ),
        (
            "one of too many",
            one_of_too_many_gets_the_newer_release_in_its_own_slot,
        ),
        (
            "two of too many",
            two_of_too_many_get_the_newer_release_in_their_own_slots,
        ),
        (
            "recreated during a deletion",
            a_cluster_is_recreated_while_its_sync_is_deleted,
        ),
        ("a stale status", a_status_is_overwritten_by_an_older_one),
        ("drift", drift_is_corrected_each_time),
        ("drift without a check", drift_during_a_rollout_is_not_checked),
        ("unreachable", an_unreachable_cluster_is_skipped_and_updated_later),
        ("failure", a_failed_cluster_releases_its_slot_and_is_reported),
        ("failure stops", a_rollout_stops_above_the_failure_limit),
        ("prune", objects_removed_from_git_are_pruned),
        ("large prune", a_large_prune_is_approved),
        ("recreated", an_object_is_recreated_on_request),
        ("deleted", a_sync_is_deleted_with_its_objects),
        ("suspended", a_suspended_cluster_waits),
        ("more slots", maxconcurrency_is_raised),
        ("rebuilt", a_rebuilt_cluster_gets_all_objects_again),
        (
            "unreachable until the deadline",
            an_unreachable_cluster_keeps_its_slot_until_the_deadline,
        ),
        ("retried", a_retried_cluster_gets_the_newer_release),
        ("away", a_stopped_controller_explains_nothing),
        ("stages", the_first_stage_passes_before_the_second),
        ("alone", a_sync_alone_follows_its_source),
    ];
    let failures: Vec<String> = histories
        .iter()
        .map(|(name, history)| (name, broken(&history())))
        .filter(|(_, (rules, _))| !rules.is_empty())
        .map(|(name, (_, message))| format!("{name}:\n{message}"))
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
