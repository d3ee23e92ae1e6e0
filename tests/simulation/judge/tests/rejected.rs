//! Histories that each break exactly one rule.

use serde_json::{Value, json};
use starling_api::ADMITTED_AT;

use super::accepted::first_commit_applied;
use super::assert_rejected;
use super::script::{Script, THREE, TWO, condition, digest, labelled, rendered, revision, sync};
use super::staged::{NO_FIELDS, STAGED_CASES};
use crate::judge::Rule;

/// Returns a script in which a second commit rolls out to three clusters that have applied the first.
fn second_commit_rolling() -> Script {
    let mut script = first_commit_applied();
    script.roll("c2", TWO);
    script
}

/// Returns the same with another strategy.
fn second_commit_with_strategy(strategy: Value) -> Script {
    let mut script = first_commit_applied();
    script.set_strategy(strategy);
    script.wait(5);
    script.roll("c2", TWO);
    script
}

/// Returns a script in which the group's entry changes before a second commit rolls out.
fn second_commit_with_entry(field: &str, value: Value, maps: &[(&str, &str)]) -> Script {
    let mut script = first_commit_applied();
    script.edit("SyncGroup", "shop", "kubectl", |group| {
        group["spec"]["syncs"][0][field] = value;
    });
    script.roll("c2", maps);
    script
}

/// Returns a script in which a second commit, one cluster at a time, was admitted on a cluster that was lost before
/// anything was written, so that its slot is free.
pub(super) fn returned() -> Script {
    let mut script = second_commit_with_strategy(json!({"maxConcurrency": 1, "maxFailures": 2}));
    script.admit("a", "c2");
    script.set_reachable("a", false);
    script.edit("Sync", &sync("a"), "starling", |sync| {
        let admitted_at = sync["metadata"]["annotations"][ADMITTED_AT].clone();
        sync["status"]["returnedAdmission"] = admitted_at;
    });
    script
}

/// Returns a script in which a second commit, one cluster at a time, has failed on two clusters.
fn two_failed() -> Script {
    let mut script = second_commit_with_strategy(json!({"maxConcurrency": 1, "maxFailures": 2}));
    for cluster in ["a", "b"] {
        script.admit(cluster, "c2");
        script.report_failure(cluster, &["ConfigMap default/settings"]);
        script.wait(5);
    }
    script
}

pub(super) fn staged(more: &Value) -> Script {
    let mut script = first_commit_applied();
    script.label("a", "stage", "canary");
    script.edit("SyncGroup", "shop", "kubectl", |group| {
        let stage = json!({"name": "canary", "clusterSelector": {"matchLabels": {"stage": "canary"}}});
        group["spec"]["rolloutStrategy"]["stages"] = json!([stage]);
        for (field, value) in more.as_object().into_iter().flatten() {
            group["spec"]["rolloutStrategy"][field] = value.clone();
        }
    });
    script.wait(5);
    script.roll("c2", TWO);
    script
}

fn edit_status(script: &mut Script, cluster: &str, change: impl FnOnce(&mut Value)) {
    script.edit("Sync", &sync(cluster), "starling", |sync| {
        change(&mut sync["status"]);
    });
}

fn edit_group_status(script: &mut Script, change: impl FnOnce(&mut Value)) {
    script.edit("SyncGroup", "shop", "starling", |group| {
        change(&mut group["status"]);
    });
}

fn deployment(image: &str, ready: i64) -> Value {
    let mut object = json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"namespace": "default", "name": "web"}, "spec": {"replicas": 2, "image": image}});
    if ready >= 0 {
        object["status"] = json!({"observedGeneration": 1, "updatedReplicas": 2, "readyReplicas": ready});
        object["metadata"]["generation"] = 1.into();
    }
    object
}

/// Returns a script in which a commit without eleven of twelve applied objects is admitted.
pub(super) fn large_prune() -> Script {
    let mut script = Script::over(&["a"]);
    let names: Vec<String> = (0..12).map(|number| format!("map-{number:02}")).collect();
    let maps: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
    script.roll("c1", &maps);
    script.roll_out_to("a", "c1");
    script.roll("c2", &maps[..1]);
    script.admit("a", "c2");
    script
}

/// Returns a script in which a commit with a Deployment is admitted and written on one cluster.
fn deployment_admitted() -> Script {
    let mut script = first_commit_applied();
    script.wait(1);
    script.push_objects("c2", vec![deployment("2", -1)]);
    script.observe("c2");
    script.start("c2");
    script.admit("a", "c2");
    script.add_inventory_line("a", "apps\tDeployment\tdefault\tweb\t");
    script.write_object("a", "starling", labelled(deployment("2", 0)));
    script
}

pub(super) type Case = (&'static str, Rule, fn() -> Script);

const CLAIM_CASES: [Case; 12] = [
    ("a claim without any write", Rule::Claim, || {
        let mut script = second_commit_rolling();
        script.admit("a", "c2");
        script.report_applied("a");
        script
    }),
    ("a claim with one object missing", Rule::Claim, || {
        let mut script = first_commit_applied();
        script.roll("c2", &[("settings", "2"), ("more", "1"), ("motd", "hello")]);
        script.admit("a", "c2");
        script.claim("a", "c2");
        script.apply_map("a", "settings", "2");
        script.report_applied("a");
        script
    }),
    ("a claim a moment before the write", Rule::Claim, || {
        let mut script = second_commit_rolling();
        script.admit("a", "c2");
        script.claim("a", "c2");
        script.report_applied("a");
        script.apply_map("a", "settings", "2");
        script
    }),
    (
        "a claim about an empty cluster of the same name",
        Rule::Claim,
        || {
            let mut script = first_commit_applied();
            let born = json!({"kind": "Namespace", "metadata": {"name": "kube-system", "uid": "id-new"}});
            script.write_object("a", "system", born);
            edit_status(&mut script, "a", |status| {
                status["lastAppliedClusterID"] = "id-new".into();
                status["lastAppliedTime"] = "2026-01-01T13:00:00Z".into();
            });
            script
        },
    ),
    ("a claim about another cluster", Rule::Claim, || {
        let mut script = second_commit_rolling();
        script.admit("a", "c2");
        script.write("a", "c2");
        edit_status(&mut script, "a", |status| {
            status["lastAppliedClusterID"] = "id-b".into();
            status["lastAppliedTime"] = "2026-01-01T13:00:00Z".into();
        });
        script
    }),
    ("one target digest has two meanings", Rule::Claim, || {
        let mut script = second_commit_rolling();
        let old = digest(&script.cr("Sync", &sync("a")));
        script.admit("a", "c2");
        script.write("a", "c2");
        script.admit("c", "c2");
        script.write("c", "c2");
        script.edit("Sync", &sync("c"), "starling", |sync| {
            let revision = sync["spec"]["revision"].clone();
            sync["status"] = json!({"observedGeneration": sync["metadata"]["generation"], "lastAttemptedTarget": old,
                "lastAttemptedRevision": revision, "lastAppliedTarget": old, "lastAppliedRevision": revision,
                "lastAppliedTime": "later", "lastAppliedClusterID": "id-c"});
        });
        script
    }),
    ("a claim about a revision without a render", Rule::Claim, || {
        let mut script = first_commit_applied();
        script.wait(1);
        script.push_objects("c2", Vec::new());
        script.observe("c3");
        script.start("c3");
        script.admit("a", "c3");
        script.report_applied("a");
        script
    }),
    ("healthy with the target before", Rule::Health, || {
        let mut script = second_commit_rolling();
        let old = script.cr("Sync", &sync("a"))["status"]["lastAppliedTarget"].clone();
        script.admit("a", "c2");
        script.write("a", "c2");
        script.report_applied_unhealthy("a");
        edit_status(&mut script, "a", |status| status["lastHealthyTarget"] = old);
        script
    }),
    ("healthy, but never available", Rule::Health, || {
        let mut script = deployment_admitted();
        script.report_applied("a");
        script
    }),
    (
        "healthy, but available with the old template only",
        Rule::Health,
        || {
            let mut script = first_commit_applied();
            script.write_object("a", "kubectl", labelled(deployment("1", 2)));
            script.wait(1);
            script.push_objects("c2", vec![deployment("2", -1)]);
            script.observe("c2");
            script.start("c2");
            script.admit("a", "c2");
            script.add_inventory_line("a", "apps\tDeployment\tdefault\tweb\t");
            script.write_object("a", "starling", labelled(deployment("2", 1)));
            script.report_applied("a");
            script
        },
    ),
    (
        "a rollout succeeds while a cluster is not done",
        Rule::GroupClaim,
        || {
            let mut script = second_commit_rolling();
            script.roll_out_to("a", "c2");
            script.roll_out_to("b", "c2");
            script.admit("c", "c2");
            script.write("c", "c2");
            script.report_applied_unhealthy("c");
            edit_group_status(&mut script, |status| {
                status["rollout"]["phase"] = "Succeeded".into();
            });
            script
        },
    ),
    (
        "more clusters are counted than are done",
        Rule::GroupClaim,
        || {
            let mut script = second_commit_rolling();
            script.roll_out_to("a", "c2");
            edit_group_status(&mut script, |status| status["clusters"]["updated"] = 2.into());
            script
        },
    ),
];

const COMPLETION_CASES: [Case; 7] = [
    ("a group that never began", Rule::Unfinished, || {
        let mut script = Script::over(&["a"]);
        script.push("c1", TWO);
        script.observe("c1");
        script.settle();
        script
    }),
    ("an admission without an end", Rule::Unfinished, || {
        let mut script = second_commit_rolling();
        script.roll_out_to("a", "c2");
        script.roll_out_to("b", "c2");
        script.admit("c", "c2");
        script.report();
        script.settle();
        script
    }),
    ("health is waited for without end", Rule::Unfinished, || {
        let mut script = second_commit_rolling();
        script.roll_out_to("a", "c2");
        script.roll_out_to("b", "c2");
        script.admit("c", "c2");
        script.write("c", "c2");
        script.report_applied_unhealthy("c");
        script.report();
        script.settle();
        script
    }),
    ("a push that no Source saw", Rule::Unfinished, || {
        let mut script = first_commit_applied();
        script.push("c2", TWO);
        script.settle();
        script
    }),
    ("a revision that the group did not roll", Rule::Unfinished, || {
        let mut script = first_commit_applied();
        script.push("c2", TWO);
        script.observe("c2");
        script.settle();
        script
    }),
    (
        "a cluster is not updated without a reason",
        Rule::Unfinished,
        || {
            let mut script = second_commit_rolling();
            script.roll_out_to("a", "c2");
            script.roll_out_to("b", "c2");
            script.report();
            script.settle();
            script
        },
    ),
    (
        "a superseding rollout that never starts",
        Rule::Unfinished,
        || {
            let mut script = second_commit_rolling();
            script.admit("a", "c2");
            script.push("c3", THREE);
            script.observe("c3");
            for cluster in ["a", "b", "c"] {
                if cluster != "a" {
                    script.admit(cluster, "c2");
                }
                script.write(cluster, "c2");
                script.report_applied(cluster);
            }
            script.report();
            script.settle();
            script
        },
    ),
];

const ORDER_CASES: [Case; 14] = [
    (
        "an object is changed twice for one target",
        Rule::Repeated,
        || {
            let mut script = first_commit_applied();
            let mut map = labelled(rendered("settings", "1"));
            map["metadata"]["annotations"] = json!({"touched": "again"});
            script.write_object("a", "starling", map);
            script
        },
    ),
    (
        "an object is changed twice, with another object between",
        Rule::Repeated,
        || {
            let mut script = second_commit_rolling();
            script.admit("a", "c2");
            let mut map = labelled(rendered("settings", "2"));
            map["data"]["stale"] = "rest of an older one".into();
            script.write_object("a", "starling", map);
            script.write("b", "c1");
            script.write_object("a", "starling", labelled(rendered("settings", "2")));
            script
        },
    ),
    ("an older commit is written again", Rule::Backwards, || {
        let mut script = second_commit_rolling();
        script.roll_out_to("a", "c2");
        script.apply_map("a", "settings", "1");
        script
    }),
    (
        "a superseded commit is written much later",
        Rule::Backwards,
        || {
            let mut script = second_commit_rolling();
            script.admit("a", "c2");
            script.roll("c3", THREE);
            script.admit("a", "c3");
            script.wait(60);
            script.apply_map("a", "settings", "2");
            script
        },
    ),
    (
        "a part of an attempt is written after the next one",
        Rule::Backwards,
        || {
            let mut script = first_commit_applied();
            script.roll("c2", &[("settings", "2"), ("motd", "two")]);
            script.admit("a", "c2");
            script.apply_map("a", "settings", "2");
            script.roll("c3", &[("settings", "3"), ("motd", "three")]);
            script.admit("a", "c3");
            script.apply_map("a", "settings", "3");
            script.apply_map("a", "motd", "two");
            script
        },
    ),
    ("an older commit is admitted", Rule::Backwards, || {
        let mut script = second_commit_rolling();
        script.roll_out_to("a", "c2");
        script.start("c1");
        script.admit("a", "c1");
        script
    }),
    (
        "a newer commit is admitted after the branch was reset",
        Rule::Backwards,
        || {
            let mut script = second_commit_rolling();
            script.roll("c1", &[("settings", "1"), ("motd", "hello")]);
            script.admit("a", "c1");
            script.start("c2");
            script.admit("a", "c2");
            script
        },
    ),
    ("a write before the admission", Rule::NotAdmitted, || {
        let mut script = second_commit_rolling();
        script.apply_map("a", "settings", "2");
        script.admit("a", "c2");
        script
    }),
    (
        "a write to a cluster that was never admitted",
        Rule::NotAdmitted,
        || {
            let mut script = first_commit_applied();
            script.add_cluster("d");
            script.write_inventory("d", &["settings".into()]);
            script.apply_map("d", "settings", "1");
            script
        },
    ),
    ("a write without an owner", Rule::NotAdmitted, || {
        let mut script = first_commit_applied();
        script.write_object("a", "starling", rendered("extra", "1"));
        script
    }),
    (
        "a write of an object that is not in git",
        Rule::NotAdmitted,
        || {
            let mut script = first_commit_applied();
            script.apply_map("a", "settings", "7");
            script
        },
    ),
    ("a write of a field that is not in git", Rule::NotAdmitted, || {
        let mut script = first_commit_applied();
        let mut map = labelled(rendered("settings", "1"));
        map["metadata"]["managedFields"] = json!([{"manager": "starling", "operation": "Apply",
            "fieldsV1": {"f:data": {"f:value": {}, "f:other": {}}, "f:metadata": {"f:labels": {"f:starling.dev/owner": {}}}}}]);
        script.write_object("a", "kubectl", rendered("settings", "0"));
        script.write_object("a", "starling", map);
        script
    }),
    (
        "an admission of another revision than the rollout's",
        Rule::NotAdmitted,
        || {
            let mut script = first_commit_applied();
            script.push("c2", TWO);
            script.observe("c2");
            script.admit("a", "c2");
            script
        },
    ),
    (
        "an admission of a revision that no Source had",
        Rule::NotAdmitted,
        || {
            let mut script = first_commit_applied();
            script.push("c2", TWO);
            script.start("c2");
            script.admit("a", "c2");
            script
        },
    ),
];

const LIMIT_CASES: [Case; 15] = [
    ("a cluster without work just returned", Rule::Concurrency, || {
        let mut script = second_commit_rolling();
        script.roll_out_to("a", "c2");
        script.leave_and_return_for_the_third_commit();
        script
    }),
    (
        "two failed clusters are retried in one slot",
        Rule::Concurrency,
        || {
            let mut script = two_failed();
            script.add_action("Retry", &NO_FIELDS);
            script.retry("a", "c2");
            script.retry("b", "c2");
            script
        },
    ),
    ("a retry while paused", Rule::Paused, || {
        let mut script = two_failed();
        script.add_action("Pause", &NO_FIELDS);
        script.add_action("Retry", &NO_FIELDS);
        script.wait(5);
        script.retry("a", "c2");
        script
    }),
    ("three in flight, of two at most", Rule::Concurrency, || {
        let mut script = second_commit_rolling();
        for cluster in ["a", "b", "c"] {
            script.admit(cluster, "c2");
        }
        script
    }),
    ("half of three is two", Rule::Concurrency, || {
        let mut script = second_commit_with_strategy(json!({"maxConcurrency": "50%", "maxFailures": 0}));
        for cluster in ["a", "b", "c"] {
            script.admit(cluster, "c2");
        }
        script
    }),
    ("a hundredth of three is one", Rule::Concurrency, || {
        let mut script = second_commit_with_strategy(json!({"maxConcurrency": "1%", "maxFailures": 0}));
        script.admit("a", "c2");
        script.admit("b", "c2");
        script
    }),
    ("an unhealthy cluster keeps its slot", Rule::Concurrency, || {
        let mut script = second_commit_with_strategy(json!({"maxConcurrency": 1, "maxFailures": 0}));
        script.admit("a", "c2");
        script.write("a", "c2");
        script.report_applied_unhealthy("a");
        script.admit("b", "c2");
        script
    }),
    (
        "the slot of a failed cluster is taken twice",
        Rule::Concurrency,
        || {
            let mut script = second_commit_with_strategy(json!({"maxConcurrency": 1, "maxFailures": 1}));
            script.admit("a", "c2");
            script.report_failure("a", &["ConfigMap default/settings"]);
            script.admit("b", "c2");
            script.roll("c3", THREE);
            script.wait(5);
            script.admit("a", "c3");
            script
        },
    ),
    ("an unreachable cluster keeps its slot", Rule::Concurrency, || {
        let mut script = second_commit_with_strategy(json!({"maxConcurrency": 1, "maxFailures": 0}));
        script.admit("a", "c2");
        script.set_reachable("a", false);
        script.wait(300);
        script.admit("b", "c2");
        script
    }),
    ("an older release in flight has a slot", Rule::Concurrency, || {
        let mut script = second_commit_with_strategy(json!({"maxConcurrency": 1, "maxFailures": 0}));
        script.admit("a", "c2");
        script.roll("c3", THREE);
        script.admit("b", "c3");
        script
    }),
    (
        "one is done, and another without work was deselected for a moment",
        Rule::Concurrency,
        || {
            let mut script = second_commit_rolling();
            script.admit("c", "c2");
            script.write("c", "c2");
            script.add_cluster("d");
            script.roll("c3", THREE);
            script.set_reachable("d", false);
            script.set_reachable("d", true);
            script.admit("a", "c3");
            script.report_applied("c");
            script.admit("b", "c3");
            script.wait(-1);
            script.admit("c", "c3");
            script
        },
    ),
    ("maxConcurrency was reduced long ago", Rule::Concurrency, || {
        let mut script = second_commit_rolling();
        script.set_strategy(json!({"maxConcurrency": 1, "maxFailures": 0}));
        script.wait(10);
        script.admit("a", "c2");
        script.admit("b", "c2");
        script
    }),
    ("one failure, of none allowed", Rule::FailureLimit, || {
        let mut script = second_commit_rolling();
        script.admit("a", "c2");
        script.report_failure("a", &["ConfigMap default/settings"]);
        script.wait(10);
        script.admit("b", "c2");
        script
    }),
    ("half of three allows one failure", Rule::FailureLimit, || {
        let mut script = second_commit_with_strategy(json!({"maxConcurrency": 2, "maxFailures": "50%"}));
        for cluster in ["a", "b"] {
            script.admit(cluster, "c2");
            script.report_failure(cluster, &["ConfigMap default/settings"]);
        }
        script.wait(10);
        script.admit("c", "c2");
        script
    }),
    (
        "unreachable until the deadline is a failure",
        Rule::FailureLimit,
        || {
            let mut script = second_commit_with_strategy(
                json!({"maxConcurrency": 1, "maxFailures": 0, "progressDeadline": "1m"}),
            );
            script.admit("a", "c2");
            script.set_reachable("a", false);
            script.wait(90);
            script.admit("b", "c2");
            script
        },
    ),
];

const ISOLATION_CASES: [Case; 6] = [
    ("an unreachable cluster stops the others", Rule::Isolation, || {
        let mut script = first_commit_applied();
        script.set_reachable("a", false);
        script.roll("c2", TWO);
        script.roll_out_to("b", "c2");
        script.report();
        script.settle();
        script
    }),
    (
        "a failing cluster stops the others though that is allowed",
        Rule::FailureIsolation,
        || {
            let mut script = second_commit_with_strategy(json!({"maxConcurrency": 1, "maxFailures": 2}));
            script.admit("a", "c2");
            script.report_failure("a", &["ConfigMap default/settings"]);
            script.report();
            script.settle();
            script
        },
    ),
    ("one bad object stops another", Rule::FailureIsolation, || {
        let mut script = first_commit_applied();
        script.roll("c2", &[("settings", "2"), ("motd", "hello"), ("more", "1")]);
        script.admit("a", "c2");
        script.report_failure("a", &["ConfigMap default/settings"]);
        script.report();
        script.settle();
        script
    }),
    (
        "a failing cluster is not named by its group",
        Rule::FailureIsolation,
        || {
            let mut script = second_commit_rolling();
            script.admit("a", "c2");
            script.report_failure("a", &["ConfigMap default/settings"]);
            script.report();
            edit_group_status(&mut script, |status| status["problems"] = json!([]));
            script.settle();
            script
        },
    ),
    ("a failure without a reason", Rule::FailureIsolation, || {
        let mut script = second_commit_rolling();
        script.admit("a", "c2");
        script.report_failure("a", &["ConfigMap default/settings"]);
        edit_status(&mut script, "a", |status| status["conditions"] = json!([]));
        script.report();
        script.settle();
        script
    }),
    ("a failure that says Ready", Rule::FailureIsolation, || {
        let mut script = second_commit_rolling();
        script.admit("a", "c2");
        script.report_failure("a", &["ConfigMap default/settings"]);
        edit_status(&mut script, "a", |status| {
            status["conditions"] = json!([condition("Ready", "True", "Succeeded")]);
        });
        script.report();
        script.settle();
        script
    }),
];

const DELETION_CASES: [Case; 14] = [
    (
        "an object that is still in git is deleted",
        Rule::Deletion,
        || {
            let mut script = first_commit_applied();
            script.remove("a", "starling", "ConfigMap", "motd");
            script
        },
    ),
    ("an object is recreated without a request", Rule::Deletion, || {
        let mut script = second_commit_rolling();
        script.admit("a", "c2");
        script.remove("a", "starling", "ConfigMap", "settings");
        script.apply_map("a", "settings", "2");
        script
    }),
    ("an object in no inventory is deleted", Rule::Deletion, || {
        let mut script = first_commit_applied();
        script.write_object("a", "kubectl", rendered("theirs", "1"));
        script.remove("a", "starling", "ConfigMap", "theirs");
        script
    }),
    (
        "another object of the same name is deleted",
        Rule::Deletion,
        || {
            let mut script = first_commit_applied();
            script.roll("c2", &[("settings", "1")]);
            script.admit("a", "c2");
            script.remove("a", "kubectl", "ConfigMap", "motd");
            script.write_object("a", "kubectl", rendered("motd", "theirs"));
            script.remove("a", "starling", "ConfigMap", "motd");
            script
        },
    ),
    ("everything is pruned by an empty render", Rule::Deletion, || {
        let mut script = first_commit_applied();
        script.roll("c2", &[]);
        script.admit("a", "c2");
        script.remove("a", "starling", "ConfigMap", "motd");
        script
    }),
    (
        "an object with the keep annotation is pruned",
        Rule::Deletion,
        || {
            let mut script = first_commit_applied();
            let mut map = script.live("a", "ConfigMap", "motd");
            map["metadata"]["annotations"] = json!({"starling.dev/prune": "disabled"});
            script.write_object("a", "kubectl", map);
            script.roll("c2", &[("settings", "1")]);
            script.admit("a", "c2");
            script.remove("a", "starling", "ConfigMap", "motd");
            script
        },
    ),
    ("an object is pruned with prune: false", Rule::Deletion, || {
        let mut script = second_commit_with_entry("prune", false.into(), &[("settings", "1")]);
        script.admit("a", "c2");
        script.wait(60);
        script.remove("a", "starling", "ConfigMap", "motd");
        script
    }),
    ("a Sync with Orphan deletes its objects", Rule::Deletion, || {
        let mut script = first_commit_applied();
        script.edit("Cluster", "a", "kubectl", |cluster| {
            cluster["metadata"]["labels"] = json!({});
        });
        script.wait(3);
        script.delete_cr("Sync", &sync("a"), "", true);
        script.remove("a", "starling", "ConfigMap", "motd");
        script
    }),
    ("a prune before the commit is admitted", Rule::Deletion, || {
        let mut script = first_commit_applied();
        script.roll("c2", &[("settings", "1")]);
        script.remove("a", "starling", "ConfigMap", "motd");
        script.admit("a", "c2");
        script
    }),
    ("an empty list of clusters deletes a Sync", Rule::Deletion, || {
        let mut script = first_commit_applied();
        script.wait(30);
        script.delete_cr("Sync", &sync("a"), "", false);
        script
    }),
    (
        "a namespace is pruned without an approval",
        Rule::Unapproved,
        || {
            let mut script = first_commit_applied();
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}});
            let map = rendered("settings", "1");
            for (commit, objects) in [("c2", vec![namespace.clone(), map.clone()]), ("c3", vec![map])] {
                script.wait(1);
                script.push_objects(commit, objects);
                script.observe(commit);
                script.start(commit);
                script.admit("a", commit);
                if commit == "c2" {
                    let mut live = labelled(namespace.clone());
                    live["metadata"]["uid"] = "uid-shop".into();
                    script.add_inventory_line("a", "\tNamespace\t\tshop\tuid-shop");
                    script.write_object("a", "starling", live);
                }
            }
            script.remove("a", "starling", "Namespace", "shop");
            script
        },
    ),
    (
        "most of many objects are pruned without an approval",
        Rule::Unapproved,
        || {
            let mut script = large_prune();
            script.write("a", "c2");
            script
        },
    ),
    ("an object of another entry is pruned", Rule::HandOver, || {
        let mut script = first_commit_applied();
        script.edit("SyncGroup", "shop", "kubectl", |group| {
            let more = json!({"name": "more", "sourceRef": {"name": "shop"}, "path": "./more"});
            group["spec"]["syncs"].as_array_mut().unwrap().push(more);
        });
        script.push("c2", &[("settings", "1")]);
        script.push_folder("more", vec![rendered("motd", "hello")]);
        script.observe("c2");
        script.start("c2");
        edit_group_status(&mut script, |status| {
            let rolled = json!({"sync": "more", "revision": revision("c2")});
            status["rollout"]["revisions"]
                .as_array_mut()
                .unwrap()
                .push(rolled);
        });
        script.admit("a", "c2");
        let annotations = script.cr("Sync", &sync("a"))["metadata"]["annotations"].clone();
        script.edit("Sync", "shop-more-a", "starling-group", |sync| {
            sync["metadata"]["annotations"] = annotations;
            sync["spec"] = json!({"groupRef": {"name": "shop", "entry": "more"}, "clusterRef": {"name": "a"},
                "sourceRef": {"name": "shop"}, "path": "./more", "revision": revision("c2")});
        });
        script.wait(5);
        script.remove("a", "starling", "ConfigMap", "motd");
        script
    }),
    (
        "an object is written and listed afterwards",
        Rule::NotListed,
        || {
            let mut script = first_commit_applied();
            script.roll("c2", &[("settings", "1"), ("motd", "hello"), ("more", "1")]);
            script.admit("a", "c2");
            script.apply_map("a", "more", "1");
            script.update_inventory("a");
            script.report_applied("a");
            script
        },
    ),
];

const WAIT_CASES: [Case; 9] = [
    ("clusters wait without a reason", Rule::Unexplained, || {
        let mut script = second_commit_rolling();
        edit_group_status(&mut script, |status| status["rollout"]["blockedBy"] = json!([]));
        script.wait(30);
        script
    }),
    ("a reason without a time", Rule::Unexplained, || {
        let mut script = second_commit_rolling();
        let blockers = json!([{"reason": "NoSlot", "message": "wait"}]);
        edit_group_status(&mut script, |status| status["rollout"]["blockedBy"] = blockers);
        script.wait(30);
        script
    }),
    ("a jitter delay without an end", Rule::Unexplained, || {
        let mut script = second_commit_rolling();
        let blockers = json!([{"reason": "Jitter", "message": "wait", "since": "2026-01-01T12:00:00Z"}]);
        edit_group_status(&mut script, |status| status["rollout"]["blockedBy"] = blockers);
        script.wait(30);
        script
    }),
    ("a time without a reason", Rule::Unexplained, || {
        let mut script = second_commit_rolling();
        let blockers = json!([{"reason": "", "message": "wait", "since": "2026-01-01T12:00:00Z"}]);
        edit_group_status(&mut script, |status| status["rollout"]["blockedBy"] = blockers);
        script.wait(30);
        script
    }),
    (
        "a failure without the time of the next attempt",
        Rule::Unexplained,
        || {
            let mut script = second_commit_rolling();
            script.admit("a", "c2");
            script.report_failure("a", &["ConfigMap default/settings"]);
            edit_status(&mut script, "a", |status| status["nextAttemptTime"] = "".into());
            script.wait(30);
            script
        },
    ),
    ("a suspended Sync writes", Rule::Suspended, || {
        let mut script = second_commit_rolling();
        script.admit("a", "c2");
        script.edit("Sync", &sync("a"), "kubectl", |sync| {
            sync["spec"]["suspend"] = true.into();
        });
        script.wait(60);
        script.apply_map("a", "settings", "2");
        script
    }),
    ("an admission without its slot writes", Rule::WithoutSlot, || {
        let mut script = returned();
        script.set_reachable("a", true);
        script.wait(60);
        script.apply_map("a", "settings", "2");
        script
    }),
    ("a slot is given back and taken twice", Rule::Concurrency, || {
        let mut script = returned();
        script.admit("b", "c2");
        script.set_reachable("a", true);
        script.wait(60);
        script.admit("a", "c2");
        script
    }),
    ("a suspended cluster is written to", Rule::Suspended, || {
        let mut script = second_commit_rolling();
        script.admit("a", "c2");
        script.edit("Cluster", "a", "kubectl", |cluster| {
            cluster["spec"]["suspend"] = true.into();
        });
        script.wait(60);
        script.apply_map("a", "settings", "2");
        script
    }),
];

const IDLE_CASES: [Case; 3] = [
    ("an object is written while idle", Rule::Idle, || {
        let mut script = first_commit_applied();
        script.settle();
        let map = script.live("a", "ConfigMap", "settings");
        script.write_object("a", "starling", map);
        script
    }),
    ("an inventory is written while idle", Rule::Idle, || {
        let mut script = first_commit_applied();
        script.settle();
        script.write_inventory("a", &[]);
        script
    }),
    (
        "an unchanged object is written besides a repair",
        Rule::Idle,
        || {
            let mut script = first_commit_applied();
            script.settle();
            script.write_object("a", "kubectl", labelled(rendered("settings", "mine")));
            script.apply_map("a", "settings", "1");
            let map = script.live("a", "ConfigMap", "motd");
            script.write_object("a", "starling", map);
            script
        },
    ),
];

/// The cases of this file.
pub(super) const CASES: [&[Case]; 9] = [
    &CLAIM_CASES,
    &COMPLETION_CASES,
    &ORDER_CASES,
    &LIMIT_CASES,
    &STAGED_CASES,
    &ISOLATION_CASES,
    &DELETION_CASES,
    &WAIT_CASES,
    &IDLE_CASES,
];

/// T75: a judge that accepts everything, or rejects for the wrong reason, is worse than none.
#[test]
fn t75_each_bad_history_is_rejected_by_its_rule_and_by_no_other() {
    let cases = CASES.concat();
    assert!(cases.len() >= 30, "{} are few", cases.len());
    assert_rejected(&cases);
}
