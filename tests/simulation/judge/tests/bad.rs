//! Histories that each break one rule, and no other.

use serde_json::{Value, json};

use super::broken;
use super::good::settled;
use super::script::{Script, condition, digest, labelled, rendered, revision, sync};
use super::steered::STEERED;
use crate::judge::Rule;

const TWO: &[(&str, &str)] = &[("settings", "2"), ("motd", "hello")];
const THREE: &[(&str, &str)] = &[("settings", "3"), ("motd", "hello")];

/// A second commit is on its way over three clusters that hold the first.
fn rolling() -> Script {
    let mut script = settled();
    script.roll("c2", TWO);
    script
}

/// The same, with another strategy.
fn rolling_with(strategy: Value) -> Script {
    let mut script = settled();
    script.strategy_is(strategy);
    script.pass(5);
    script.roll("c2", TWO);
    script
}

/// The group's entry gets other fields before a second commit rolls.
fn rolling_entry(field: &str, value: Value, maps: &[(&str, &str)]) -> Script {
    let mut script = settled();
    script.edit("SyncGroup", "shop", "kubectl", |group| {
        group["spec"]["syncs"][0][field] = value;
    });
    script.roll("c2", maps);
    script
}

pub(super) fn staged(more: &Value) -> Script {
    let mut script = settled();
    script.label("a", "stage", "canary");
    script.edit("SyncGroup", "shop", "kubectl", |group| {
        let stage = json!({"name": "canary", "clusterSelector": {"matchLabels": {"stage": "canary"}}});
        group["spec"]["rolloutStrategy"]["stages"] = json!([stage]);
        for (field, value) in more.as_object().into_iter().flatten() {
            group["spec"]["rolloutStrategy"][field] = value.clone();
        }
    });
    script.pass(5);
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

/// Twelve objects are there, and a commit without eleven of them is admitted.
pub(super) fn many() -> Script {
    let mut script = Script::over(&["a"]);
    let names: Vec<String> = (0..12).map(|number| format!("map-{number:02}")).collect();
    let maps: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
    script.roll("c1", &maps);
    script.deliver("a", "c1");
    script.roll("c2", &maps[..1]);
    script.admit("a", "c2");
    script
}

/// A commit with a Deployment is admitted on one cluster and written there.
fn workload() -> Script {
    let mut script = settled();
    script.pass(1);
    script.push_objects("c2", vec![deployment("2", -1)]);
    script.observe("c2");
    script.start("c2");
    script.admit("a", "c2");
    script.list_line("a", "apps\tDeployment\tdefault\tweb\t");
    script.member("a", "starling", labelled(deployment("2", 0)));
    script
}

pub(super) type Case = (&'static str, Rule, fn() -> Script);

const CLAIMS: [Case; 12] = [
    ("a claim without any write", Rule::Claim, || {
        let mut script = rolling();
        script.admit("a", "c2");
        script.hold("a");
        script
    }),
    ("a claim with one object missing", Rule::Claim, || {
        let mut script = settled();
        script.roll("c2", &[("settings", "2"), ("more", "1"), ("motd", "hello")]);
        script.admit("a", "c2");
        script.claim("a", "c2");
        script.put_map("a", "settings", "2");
        script.hold("a");
        script
    }),
    ("a claim a moment before the write", Rule::Claim, || {
        let mut script = rolling();
        script.admit("a", "c2");
        script.claim("a", "c2");
        script.hold("a");
        script.put_map("a", "settings", "2");
        script
    }),
    (
        "a claim about an empty cluster of the same name",
        Rule::Claim,
        || {
            let mut script = settled();
            let born = json!({"kind": "Namespace", "metadata": {"name": "kube-system", "uid": "id-new"}});
            script.member("a", "system", born);
            edit_status(&mut script, "a", |status| {
                status["lastAppliedClusterID"] = "id-new".into();
                status["lastAppliedTime"] = "2026-01-01T13:00:00Z".into();
            });
            script
        },
    ),
    ("a claim about another cluster", Rule::Claim, || {
        let mut script = rolling();
        script.admit("a", "c2");
        script.write("a", "c2");
        edit_status(&mut script, "a", |status| {
            status["lastAppliedClusterID"] = "id-b".into();
            status["lastAppliedTime"] = "2026-01-01T13:00:00Z".into();
        });
        script
    }),
    ("one target stands for two things", Rule::Claim, || {
        let mut script = rolling();
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
    (
        "a revision is claimed that renders to nothing",
        Rule::Claim,
        || {
            let mut script = settled();
            script.pass(1);
            script.push_objects("c2", Vec::new());
            script.observe("c3");
            script.start("c3");
            script.admit("a", "c3");
            script.hold("a");
            script
        },
    ),
    ("healthy with the target before", Rule::Health, || {
        let mut script = rolling();
        let old = script.cr("Sync", &sync("a"))["status"]["lastAppliedTarget"].clone();
        script.admit("a", "c2");
        script.write("a", "c2");
        script.hold_unhealthy("a");
        edit_status(&mut script, "a", |status| status["lastHealthyTarget"] = old);
        script
    }),
    ("healthy, but never available", Rule::Health, || {
        let mut script = workload();
        script.hold("a");
        script
    }),
    (
        "healthy, but available with the old template only",
        Rule::Health,
        || {
            let mut script = settled();
            script.member("a", "kubectl", labelled(deployment("1", 2)));
            script.pass(1);
            script.push_objects("c2", vec![deployment("2", -1)]);
            script.observe("c2");
            script.start("c2");
            script.admit("a", "c2");
            script.list_line("a", "apps\tDeployment\tdefault\tweb\t");
            script.member("a", "starling", labelled(deployment("2", 1)));
            script.hold("a");
            script
        },
    ),
    (
        "a rollout succeeds while a cluster is not done",
        Rule::GroupClaim,
        || {
            let mut script = rolling();
            script.deliver("a", "c2");
            script.deliver("b", "c2");
            script.admit("c", "c2");
            script.write("c", "c2");
            script.hold_unhealthy("c");
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
            let mut script = rolling();
            script.deliver("a", "c2");
            edit_group_status(&mut script, |status| status["clusters"]["updated"] = 2.into());
            script
        },
    ),
];

const ENDS: [Case; 7] = [
    ("a group that never began", Rule::Dangling, || {
        let mut script = Script::over(&["a"]);
        script.push("c1", TWO);
        script.observe("c1");
        script.rest();
        script
    }),
    ("an admission without an end", Rule::Dangling, || {
        let mut script = rolling();
        script.deliver("a", "c2");
        script.deliver("b", "c2");
        script.admit("c", "c2");
        script.report();
        script.rest();
        script
    }),
    ("health is waited for without end", Rule::Dangling, || {
        let mut script = rolling();
        script.deliver("a", "c2");
        script.deliver("b", "c2");
        script.admit("c", "c2");
        script.write("c", "c2");
        script.hold_unhealthy("c");
        script.report();
        script.rest();
        script
    }),
    ("a push that no Source saw", Rule::Dangling, || {
        let mut script = settled();
        script.push("c2", TWO);
        script.rest();
        script
    }),
    ("a revision that the group did not roll", Rule::Dangling, || {
        let mut script = settled();
        script.push("c2", TWO);
        script.observe("c2");
        script.rest();
        script
    }),
    (
        "a cluster is forgotten though all is well",
        Rule::Dangling,
        || {
            let mut script = rolling();
            script.deliver("a", "c2");
            script.deliver("b", "c2");
            script.report();
            script.rest();
            script
        },
    ),
    (
        "a rollout that was overtaken and never came",
        Rule::Dangling,
        || {
            let mut script = rolling();
            script.admit("a", "c2");
            script.push("c3", THREE);
            script.observe("c3");
            for cluster in ["a", "b", "c"] {
                if cluster != "a" {
                    script.admit(cluster, "c2");
                }
                script.write(cluster, "c2");
                script.hold(cluster);
            }
            script.report();
            script.rest();
            script
        },
    ),
];

const ORDER: [Case; 14] = [
    ("an object is changed twice for one target", Rule::Doubled, || {
        let mut script = settled();
        let mut map = labelled(rendered("settings", "1"));
        map["metadata"]["annotations"] = json!({"touched": "again"});
        script.member("a", "starling", map);
        script
    }),
    (
        "an object is changed twice, with another object between",
        Rule::Doubled,
        || {
            let mut script = rolling();
            script.admit("a", "c2");
            let mut map = labelled(rendered("settings", "2"));
            map["data"]["stale"] = "rest of an older one".into();
            script.member("a", "starling", map);
            script.write("b", "c1");
            script.member("a", "starling", labelled(rendered("settings", "2")));
            script
        },
    ),
    ("an older commit is written again", Rule::Backwards, || {
        let mut script = rolling();
        script.deliver("a", "c2");
        script.put_map("a", "settings", "1");
        script
    }),
    (
        "a superseded commit is written much later",
        Rule::Backwards,
        || {
            let mut script = rolling();
            script.admit("a", "c2");
            script.roll("c3", THREE);
            script.admit("a", "c3");
            script.pass(60);
            script.put_map("a", "settings", "2");
            script
        },
    ),
    (
        "half of an attempt is written after the next one",
        Rule::Backwards,
        || {
            let mut script = settled();
            script.roll("c2", &[("settings", "2"), ("motd", "two")]);
            script.admit("a", "c2");
            script.put_map("a", "settings", "2");
            script.roll("c3", &[("settings", "3"), ("motd", "three")]);
            script.admit("a", "c3");
            script.put_map("a", "settings", "3");
            script.put_map("a", "motd", "two");
            script
        },
    ),
    ("an older commit is admitted", Rule::Backwards, || {
        let mut script = rolling();
        script.deliver("a", "c2");
        script.start("c1");
        script.admit("a", "c1");
        script
    }),
    (
        "a newer commit is admitted late, after the branch was set back",
        Rule::Backwards,
        || {
            let mut script = rolling();
            script.roll("c1", &[("settings", "1"), ("motd", "hello")]);
            script.admit("a", "c1");
            script.start("c2");
            script.admit("a", "c2");
            script
        },
    ),
    ("a write before the admission", Rule::NotAdmitted, || {
        let mut script = rolling();
        script.put_map("a", "settings", "2");
        script.admit("a", "c2");
        script
    }),
    (
        "a write to a cluster that was never admitted",
        Rule::NotAdmitted,
        || {
            let mut script = settled();
            script.add_cluster("d");
            script.list("d", &["settings".into()]);
            script.put_map("d", "settings", "1");
            script
        },
    ),
    ("a write without an owner", Rule::NotAdmitted, || {
        let mut script = settled();
        script.member("a", "starling", rendered("extra", "1"));
        script
    }),
    ("a write of what nobody has in git", Rule::NotAdmitted, || {
        let mut script = settled();
        script.put_map("a", "settings", "7");
        script
    }),
    (
        "a write of a field that git does not have",
        Rule::NotAdmitted,
        || {
            let mut script = settled();
            let mut map = labelled(rendered("settings", "1"));
            map["metadata"]["managedFields"] = json!([{"manager": "starling", "operation": "Apply",
            "fieldsV1": {"f:data": {"f:value": {}, "f:other": {}}, "f:metadata": {"f:labels": {"f:starling.dev/owner": {}}}}}]);
            script.member("a", "kubectl", rendered("settings", "0"));
            script.member("a", "starling", map);
            script
        },
    ),
    (
        "an admission of what the group does not roll",
        Rule::NotAdmitted,
        || {
            let mut script = settled();
            script.push("c2", TWO);
            script.observe("c2");
            script.admit("a", "c2");
            script
        },
    ),
    (
        "an admission of what no Source has shown",
        Rule::NotAdmitted,
        || {
            let mut script = settled();
            script.push("c2", TWO);
            script.start("c2");
            script.admit("a", "c2");
            script
        },
    ),
];

const BOUNDS: [Case; 12] = [
    ("three at once of two", Rule::Concurrency, || {
        let mut script = rolling();
        for cluster in ["a", "b", "c"] {
            script.admit(cluster, "c2");
        }
        script
    }),
    ("half of three is two", Rule::Concurrency, || {
        let mut script = rolling_with(json!({"maxConcurrency": "50%", "maxFailures": 0}));
        for cluster in ["a", "b", "c"] {
            script.admit(cluster, "c2");
        }
        script
    }),
    ("a hundredth of three is one", Rule::Concurrency, || {
        let mut script = rolling_with(json!({"maxConcurrency": "1%", "maxFailures": 0}));
        script.admit("a", "c2");
        script.admit("b", "c2");
        script
    }),
    ("a slot is free only with health", Rule::Concurrency, || {
        let mut script = rolling_with(json!({"maxConcurrency": 1, "maxFailures": 0}));
        script.admit("a", "c2");
        script.write("a", "c2");
        script.hold_unhealthy("a");
        script.admit("b", "c2");
        script
    }),
    ("a failure gave its slot away", Rule::Concurrency, || {
        let mut script = rolling_with(json!({"maxConcurrency": 1, "maxFailures": 1}));
        script.admit("a", "c2");
        script.fail("a", &["ConfigMap default/settings"]);
        script.admit("b", "c2");
        script.roll("c3", THREE);
        script.pass(5);
        script.admit("a", "c3");
        script
    }),
    ("a lost cluster keeps its slot", Rule::Concurrency, || {
        let mut script = rolling_with(json!({"maxConcurrency": 1, "maxFailures": 0}));
        script.admit("a", "c2");
        script.reach("a", false);
        script.pass(300);
        script.admit("b", "c2");
        script
    }),
    (
        "an older release that is at work has a slot",
        Rule::Concurrency,
        || {
            let mut script = rolling_with(json!({"maxConcurrency": 1, "maxFailures": 0}));
            script.admit("a", "c2");
            script.roll("c3", THREE);
            script.admit("b", "c3");
            script
        },
    ),
    (
        "one is through, and another that is at nothing was out for a moment",
        Rule::Concurrency,
        || {
            let mut script = rolling();
            script.admit("c", "c2");
            script.write("c", "c2");
            script.add_cluster("d");
            script.roll("c3", THREE);
            script.reach("d", false);
            script.reach("d", true);
            script.admit("a", "c3");
            script.hold("c");
            script.admit("b", "c3");
            script.pass(-1);
            script.admit("c", "c3");
            script
        },
    ),
    ("fewer slots were given long ago", Rule::Concurrency, || {
        let mut script = rolling();
        script.strategy_is(json!({"maxConcurrency": 1, "maxFailures": 0}));
        script.pass(10);
        script.admit("a", "c2");
        script.admit("b", "c2");
        script
    }),
    ("one failed of none allowed", Rule::FailureBudget, || {
        let mut script = rolling();
        script.admit("a", "c2");
        script.fail("a", &["ConfigMap default/settings"]);
        script.pass(10);
        script.admit("b", "c2");
        script
    }),
    ("half of three allows one failure", Rule::FailureBudget, || {
        let mut script = rolling_with(json!({"maxConcurrency": 2, "maxFailures": "50%"}));
        for cluster in ["a", "b"] {
            script.admit(cluster, "c2");
            script.fail(cluster, &["ConfigMap default/settings"]);
        }
        script.pass(10);
        script.admit("c", "c2");
        script
    }),
    (
        "lost until the deadline is a failure",
        Rule::FailureBudget,
        || {
            let mut script =
                rolling_with(json!({"maxConcurrency": 1, "maxFailures": 0, "progressDeadline": "1m"}));
            script.admit("a", "c2");
            script.reach("a", false);
            script.pass(90);
            script.admit("b", "c2");
            script
        },
    ),
];

const NEIGHBOURS: [Case; 6] = [
    ("an unreachable cluster stops the others", Rule::Isolation, || {
        let mut script = settled();
        script.reach("a", false);
        script.roll("c2", TWO);
        script.deliver("b", "c2");
        script.report();
        script.rest();
        script
    }),
    (
        "a failing cluster stops the others though that is allowed",
        Rule::Neighbours,
        || {
            let mut script = rolling_with(json!({"maxConcurrency": 1, "maxFailures": 2}));
            script.admit("a", "c2");
            script.fail("a", &["ConfigMap default/settings"]);
            script.report();
            script.rest();
            script
        },
    ),
    ("one bad object stops another", Rule::Neighbours, || {
        let mut script = settled();
        script.roll("c2", &[("settings", "2"), ("motd", "hello"), ("more", "1")]);
        script.admit("a", "c2");
        script.fail("a", &["ConfigMap default/settings"]);
        script.report();
        script.rest();
        script
    }),
    (
        "a failing cluster is not named by its group",
        Rule::Neighbours,
        || {
            let mut script = rolling();
            script.admit("a", "c2");
            script.fail("a", &["ConfigMap default/settings"]);
            script.report();
            edit_group_status(&mut script, |status| status["problems"] = json!([]));
            script.rest();
            script
        },
    ),
    ("a failure without a reason", Rule::Neighbours, || {
        let mut script = rolling();
        script.admit("a", "c2");
        script.fail("a", &["ConfigMap default/settings"]);
        edit_status(&mut script, "a", |status| status["conditions"] = json!([]));
        script.report();
        script.rest();
        script
    }),
    ("a failure that says Ready", Rule::Neighbours, || {
        let mut script = rolling();
        script.admit("a", "c2");
        script.fail("a", &["ConfigMap default/settings"]);
        edit_status(&mut script, "a", |status| {
            status["conditions"] = json!([condition("Ready", "True", "Succeeded")]);
        });
        script.report();
        script.rest();
        script
    }),
];

const DELETIONS: [Case; 14] = [
    ("what git still has is deleted", Rule::Deletion, || {
        let mut script = settled();
        script.remove("a", "starling", "ConfigMap", "motd");
        script
    }),
    (
        "it is made anew though nobody asked for that",
        Rule::Deletion,
        || {
            let mut script = rolling();
            script.admit("a", "c2");
            script.remove("a", "starling", "ConfigMap", "settings");
            script.put_map("a", "settings", "2");
            script
        },
    ),
    ("what no inventory lists is deleted", Rule::Deletion, || {
        let mut script = settled();
        script.member("a", "kubectl", rendered("theirs", "1"));
        script.remove("a", "starling", "ConfigMap", "theirs");
        script
    }),
    (
        "another object of the same name is deleted",
        Rule::Deletion,
        || {
            let mut script = settled();
            script.roll("c2", &[("settings", "1")]);
            script.admit("a", "c2");
            script.remove("a", "kubectl", "ConfigMap", "motd");
            script.member("a", "kubectl", rendered("motd", "theirs"));
            script.remove("a", "starling", "ConfigMap", "motd");
            script
        },
    ),
    ("everything is pruned by an empty render", Rule::Deletion, || {
        let mut script = settled();
        script.roll("c2", &[]);
        script.admit("a", "c2");
        script.remove("a", "starling", "ConfigMap", "motd");
        script
    }),
    ("what asks to be kept is pruned", Rule::Deletion, || {
        let mut script = settled();
        let mut map = script.live("a", "ConfigMap", "motd");
        map["metadata"]["annotations"] = json!({"starling.dev/prune": "disabled"});
        script.member("a", "kubectl", map);
        script.roll("c2", &[("settings", "1")]);
        script.admit("a", "c2");
        script.remove("a", "starling", "ConfigMap", "motd");
        script
    }),
    ("it is pruned with prune: false", Rule::Deletion, || {
        let mut script = rolling_entry("prune", false.into(), &[("settings", "1")]);
        script.admit("a", "c2");
        script.pass(60);
        script.remove("a", "starling", "ConfigMap", "motd");
        script
    }),
    (
        "a Sync that orphans takes its objects along",
        Rule::Deletion,
        || {
            let mut script = settled();
            script.edit("Cluster", "a", "kubectl", |cluster| {
                cluster["metadata"]["labels"] = json!({});
            });
            script.pass(3);
            script.delete_cr("Sync", &sync("a"), "", true);
            script.remove("a", "starling", "ConfigMap", "motd");
            script
        },
    ),
    ("a prune before the commit is admitted", Rule::Deletion, || {
        let mut script = settled();
        script.roll("c2", &[("settings", "1")]);
        script.remove("a", "starling", "ConfigMap", "motd");
        script.admit("a", "c2");
        script
    }),
    (
        "an empty list of clusters takes a Sync away",
        Rule::Deletion,
        || {
            let mut script = settled();
            script.pass(30);
            script.delete_cr("Sync", &sync("a"), "", false);
            script
        },
    ),
    (
        "a namespace is pruned and nobody approved",
        Rule::Deletion,
        || {
            let mut script = settled();
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}});
            let map = rendered("settings", "1");
            for (commit, objects) in [("c2", vec![namespace.clone(), map.clone()]), ("c3", vec![map])] {
                script.pass(1);
                script.push_objects(commit, objects);
                script.observe(commit);
                script.start(commit);
                script.admit("a", commit);
                if commit == "c2" {
                    let mut live = labelled(namespace.clone());
                    live["metadata"]["uid"] = "uid-shop".into();
                    script.list_line("a", "\tNamespace\t\tshop\tuid-shop");
                    script.member("a", "starling", live);
                }
            }
            script.remove("a", "starling", "Namespace", "shop");
            script
        },
    ),
    (
        "most of many objects are pruned and nobody approved",
        Rule::Deletion,
        || {
            let mut script = many();
            script.write("a", "c2");
            script
        },
    ),
    (
        "what another entry has taken over is pruned",
        Rule::Deletion,
        || {
            let mut script = settled();
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
            script.pass(5);
            script.remove("a", "starling", "ConfigMap", "motd");
            script
        },
    ),
    (
        "an object is written and listed afterwards",
        Rule::Unlisted,
        || {
            let mut script = settled();
            script.roll("c2", &[("settings", "1"), ("motd", "hello"), ("more", "1")]);
            script.admit("a", "c2");
            script.put_map("a", "more", "1");
            script.keep_inventory("a");
            script.hold("a");
            script
        },
    ),
];

const WAITS: [Case; 7] = [
    ("clusters wait and nobody says for what", Rule::Silent, || {
        let mut script = rolling();
        edit_group_status(&mut script, |status| status["rollout"]["blockedBy"] = json!([]));
        script.pass(30);
        script
    }),
    ("a reason without a time", Rule::Silent, || {
        let mut script = rolling();
        let blockers = json!([{"reason": "NoSlot", "message": "wait"}]);
        edit_group_status(&mut script, |status| status["rollout"]["blockedBy"] = blockers);
        script.pass(30);
        script
    }),
    ("a share of the jitter without an end", Rule::Silent, || {
        let mut script = rolling();
        let blockers = json!([{"reason": "Jitter", "message": "wait", "since": "2026-01-01T12:00:00Z"}]);
        edit_group_status(&mut script, |status| status["rollout"]["blockedBy"] = blockers);
        script.pass(30);
        script
    }),
    ("a time without a reason", Rule::Silent, || {
        let mut script = rolling();
        let blockers = json!([{"reason": "", "message": "wait", "since": "2026-01-01T12:00:00Z"}]);
        edit_group_status(&mut script, |status| status["rollout"]["blockedBy"] = blockers);
        script.pass(30);
        script
    }),
    (
        "a failure that does not say when it is tried again",
        Rule::Silent,
        || {
            let mut script = rolling();
            script.admit("a", "c2");
            script.fail("a", &["ConfigMap default/settings"]);
            edit_status(&mut script, "a", |status| status["nextAttemptTime"] = "".into());
            script.pass(30);
            script
        },
    ),
    ("a suspended Sync writes", Rule::Suspended, || {
        let mut script = rolling();
        script.admit("a", "c2");
        script.edit("Sync", &sync("a"), "kubectl", |sync| {
            sync["spec"]["suspend"] = true.into();
        });
        script.pass(60);
        script.put_map("a", "settings", "2");
        script
    }),
    ("a suspended cluster is written to", Rule::Suspended, || {
        let mut script = rolling();
        script.admit("a", "c2");
        script.edit("Cluster", "a", "kubectl", |cluster| {
            cluster["spec"]["suspend"] = true.into();
        });
        script.pass(60);
        script.put_map("a", "settings", "2");
        script
    }),
];

const REST: [Case; 3] = [
    ("an object is written at rest", Rule::Quiet, || {
        let mut script = settled();
        script.rest();
        let map = script.live("a", "ConfigMap", "settings");
        script.member("a", "starling", map);
        script
    }),
    ("an inventory is written at rest", Rule::Quiet, || {
        let mut script = settled();
        script.rest();
        script.list("a", &[]);
        script
    }),
    (
        "what nobody touched is written beside a repair",
        Rule::Quiet,
        || {
            let mut script = settled();
            script.rest();
            script.member("a", "kubectl", labelled(rendered("settings", "mine")));
            script.put_map("a", "settings", "1");
            let map = script.live("a", "ConfigMap", "motd");
            script.member("a", "starling", map);
            script
        },
    ),
];

/// T75: a checker that accepts everything, or rejects for the wrong reason, is worse than none.
#[test]
fn t75_each_bad_history_is_rejected_by_its_rule_and_by_no_other() {
    let cases = [
        &CLAIMS[..],
        &ENDS,
        &ORDER,
        &BOUNDS,
        &STEERED,
        &NEIGHBOURS,
        &DELETIONS,
        &WAITS,
        &REST,
    ]
    .concat();
    assert!(cases.len() >= 30, "{} are few", cases.len());
    let wrong: Vec<String> = cases
        .into_iter()
        .filter_map(|(name, rule, script)| {
            let (rules, words) = broken(&script().end());
            let only = rules.len() == 1 && rules.contains(&rule);
            (!only).then(|| format!("{name}: {rule:?} expected, found\n{words}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Without it a rule could be left out of the list, or out of these tests, and nobody would notice.
#[test]
fn every_rule_rejects_something() {
    let all = [
        &CLAIMS[..],
        &ENDS,
        &ORDER,
        &BOUNDS,
        &STEERED,
        &NEIGHBOURS,
        &DELETIONS,
        &WAITS,
        &REST,
    ]
    .concat();
    let rules: std::collections::BTreeSet<Rule> = all.iter().map(|(_, rule, _)| *rule).collect();
    assert_eq!(rules.len(), 21, "{rules:?}");
}
