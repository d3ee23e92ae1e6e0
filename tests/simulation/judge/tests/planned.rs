//! Histories of Syncs that a group deletes, good and bad: after a plan, after a live read, and as a part of the
//! release.

use serde_json::{Value, json};

use super::removals::{begin, deleting, one_leaves, select};
use super::script::{ONE, Script, TWO, revision, sync};
use super::{BadCase, GoodCase, assert_accepted, assert_rejected};
use crate::judge::Rule;

/// Edits the spec of the group.
pub(super) fn edit_group(script: &mut Script, change: impl FnOnce(&mut Value)) {
    script.edit("SyncGroup", "shop", "kubectl", |group| change(&mut group["spec"]));
}

/// Returns three clusters with the entries `app` and `more`, which renders nothing. The strategy has these fields too.
pub(super) fn two_entries(strategy: &Value) -> Script {
    let mut script = Script::over(&["a", "b", "c"]);
    edit_group(&mut script, |spec| {
        let more =
            json!({"name": "more", "sourceRef": {"name": "shop"}, "path": "./more", "allowEmpty": true});
        spec["syncs"].as_array_mut().unwrap().push(more);
        for (field, value) in strategy.as_object().into_iter().flatten() {
            spec["rolloutStrategy"][field] = value.clone();
        }
    });
    roll_both(&mut script, "c1");
    for cluster in ["a", "b", "c"] {
        script.roll_out_to(cluster, "c1");
        script.roll_out_more(cluster, "c1");
    }
    script
}

/// Pushes, observes and starts a commit of both entries.
pub(super) fn roll_both(script: &mut Script, commit: &str) {
    script.push(commit, if commit == "c1" { ONE } else { TWO });
    script.push_folder("more", Vec::new());
    script.observe(commit);
    script.start(commit);
    script.edit("SyncGroup", "shop", "starling", |group| {
        let rolled = json!({"sync": "more", "revision": revision(commit)});
        let revisions = group["status"]["rollout"]["revisions"].as_array_mut();
        revisions.unwrap().push(rolled);
    });
}

/// Removes the entry `more` from the spec, and begins a release without it.
fn remove_entry(script: &mut Script) {
    edit_group(script, |spec| {
        spec["syncs"].as_array_mut().unwrap().truncate(1);
    });
    script.wait(20);
    script.roll("c2", TWO);
}

/// Returns the same, with the release of the other entry on the clusters.
fn entry_removed(strategy: &Value, on: &[&str]) -> Script {
    let mut script = two_entries(strategy);
    remove_entry(&mut script);
    for cluster in on {
        script.roll_out_to(cluster, "c2");
    }
    script
}

/// The controller begins to delete the Sync of the removed entry.
fn begin_entry(mut script: Script, cluster: &str) -> Script {
    script.delete_cr("Sync", &format!("shop-more-{cluster}"), "", true);
    script
}

/// A release takes all slots, and then the controller begins to delete the Sync of cluster `c`.
fn roll_in_all_slots(mut script: Script) -> Script {
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.admit("b", "c2");
    script.wait(5);
    begin(&mut script, "c");
    script
}

fn staged() -> Value {
    let stage = json!({"name": "canary", "clusterSelector": {"matchLabels": {"stage": "canary"}}});
    json!({"stages": [stage]})
}

/// Returns a release without the entry, in a group with a canary, whose stage is open.
fn staged_removal() -> Script {
    let mut script = two_entries(&json!({}));
    script.label("a", "stage", "canary");
    edit_group(&mut script, |spec| {
        spec["rolloutStrategy"]["stages"] = staged()["stages"].clone();
    });
    remove_entry(&mut script);
    script.stage(0, "startTime");
    script.roll_out_to("a", "c2");
    script
}

/// An automatic rollback to a release without the entry `more`.
fn automatic_rollback() -> Script {
    let mut script = entry_removed(&json!({}), &["a", "b", "c"]);
    script.edit("SyncGroup", "shop", "starling", |group| {
        group["status"]["rollout"]["automatic"] = true.into();
    });
    script.wait(5);
    script
}

/// A rollout without the entry `more` and with an approval of its removal, long after the entry came back to the spec.
fn with_entry_in_spec(direction: &str) -> Script {
    let mut script = automatic_rollback();
    script.edit("SyncGroup", "shop", "kubectl", |group| {
        let mut more = group["spec"]["syncs"][0].clone();
        more["name"] = "more".into();
        group["spec"]["syncs"].as_array_mut().unwrap().push(more);
    });
    script.edit("SyncGroup", "shop", "starling", |group| {
        group["status"]["rollout"]["direction"] = direction.into();
    });
    script.wait(600);
    script.approve_deletions(&json!({"group": "shop"}), "sha256:these");
    script
}

/// A cluster left, and plans were made after that.
fn plans(removing: &[&[&str]]) -> Script {
    let mut script = deleting(&json!({}));
    script.plan(&[]);
    select(&mut script, "c", false);
    for syncs in removing {
        script.wait(30);
        script.plan(syncs);
    }
    script.wait(10);
    begin(&mut script, "c");
    script
}

/// Returns a cluster that left and returned before its Sync is deleted.
fn returned(back: impl FnOnce(&mut Script)) -> Script {
    let mut script = deleting(&json!({}));
    select(&mut script, "c", false);
    script.wait(30);
    back(&mut script);
    script.wait(3);
    begin(&mut script, "c");
    script
}

fn in_window(window: &Value) -> Script {
    entry_removed(&json!({"windows": [window]}), &["a"])
}

pub(super) const BAD: [BadCase; 23] = [
    ("a removal that no plan has", Rule::Unplanned, || plans(&[])),
    ("a removal that the plan holds", Rule::Unplanned, || {
        plans(&[&[], &["shop-app-b"]])
    }),
    ("a removal of an earlier plan", Rule::Unplanned, || {
        plans(&[&["shop-app-c"], &[]])
    }),
    ("an entry goes that the plan holds", Rule::Unplanned, || {
        let mut script = entry_removed(&json!({}), &["a"]);
        script.plan(&["shop-more-b"]);
        begin_entry(script, "a")
    }),
    (
        "labels returned while the watch was frozen",
        Rule::LiveRead,
        || returned(|script| select(script, "c", true)),
    ),
    ("a selector was put back", Rule::LiveRead, || {
        let mut script = deleting(&json!({"maxUnselected": "100%"}));
        for fleet in ["other", "yes"] {
            edit_group(&mut script, |spec| {
                spec["clusterSelector"] = json!({"matchLabels": {"fleet": fleet}});
            });
        }
        script.wait(4);
        begin(&mut script, "c");
        script
    }),
    ("a cluster was created again", Rule::LiveRead, || {
        returned(|script| {
            script.delete_cr("Cluster", "c", "kubectl", false);
            script.add_cluster("c");
        })
    }),
    ("an entry returned before the delete", Rule::LiveRead, || {
        let mut script = two_entries(&json!({}));
        let syncs = script.cr("SyncGroup", "shop")["spec"]["syncs"].clone();
        edit_group(&mut script, |spec| {
            spec["syncs"].as_array_mut().unwrap().truncate(1);
        });
        edit_group(&mut script, |spec| spec["syncs"] = syncs);
        script.wait(5);
        begin_entry(script, "a")
    }),
    (
        "a label returned with a restart of the lag",
        Rule::LiveRead,
        || {
            let mut script = deleting(&json!({}));
            for selected in [false, true, false, true] {
                select(&mut script, "c", selected);
            }
            script.wait(4);
            begin(&mut script, "c");
            script
        },
    ),
    ("an entry goes before the others are done", Rule::Removal, || {
        begin_entry(entry_removed(&json!({}), &[]), "a")
    }),
    (
        "an entry goes on a cluster whose other entry failed",
        Rule::Removal,
        || {
            let mut script = entry_removed(&json!({}), &[]);
            script.admit("a", "c2");
            script.report_failure("a", &["ConfigMap default/settings"]);
            begin_entry(script, "a")
        },
    ),
    (
        "an entry goes after too many clusters failed",
        Rule::Removal,
        || {
            let mut script = entry_removed(&json!({}), &["a"]);
            script.admit("b", "c2");
            script.report_failure("b", &["ConfigMap default/settings"]);
            script.wait(5);
            begin_entry(script, "a")
        },
    ),
    ("an entry goes while all slots roll", Rule::Removal, || {
        let mut script = entry_removed(&json!({}), &["a"]);
        script.admit("b", "c2");
        script.admit("c", "c2");
        begin_entry(script, "a")
    }),
    ("an entry goes before its stage opened", Rule::Removal, || {
        let mut script = staged_removal();
        script.label("a", "stage", "main");
        script.wait(5);
        begin_entry(script, "a")
    }),
    ("an entry goes in a denied window", Rule::Removal, || {
        begin_entry(in_window(&json!({"deny": "12:00-13:00"})), "a")
    }),
    ("an entry goes outside the allowed windows", Rule::Removal, || {
        begin_entry(in_window(&json!({"allow": "13:00-11:00"})), "a")
    }),
    ("an entry goes that the spec has", Rule::Deletion, || {
        begin_entry(with_entry_in_spec("Forward"), "a")
    }),
    ("an automatic rollback removes an entry", Rule::Removal, || {
        begin_entry(automatic_rollback(), "a")
    }),
    (
        "an automatic rollback removes an entry with an older approval",
        Rule::Removal,
        || {
            let mut script = two_entries(&json!({}));
            script.approve_deletions(&json!({"group": "shop"}), "sha256:these");
            script.wait(10);
            remove_entry(&mut script);
            script.roll_out_to("a", "c2");
            script.edit("SyncGroup", "shop", "starling", |group| {
                group["status"]["rollout"]["automatic"] = true.into();
            });
            begin_entry(script, "a")
        },
    ),
    (
        "an entry goes while its cluster is skipped",
        Rule::Removal,
        || {
            let mut script = entry_removed(&json!({}), &["a"]);
            script.add_action("Skip", &json!({"cluster": "a"}));
            script.wait(5);
            begin_entry(script, "a")
        },
    ),
    ("a cluster leaves while all slots roll", Rule::Removal, || {
        let mut script = deleting(&json!({}));
        select(&mut script, "c", false);
        script.wait(60);
        roll_in_all_slots(script)
    }),
    ("a cluster leaves in a closed window", Rule::Removal, || {
        one_leaves(
            &json!({"rolloutStrategy": {"maxConcurrency": 2, "progressDeadline": "10m",
            "windows": [{"deny": "12:00-13:00"}]}}),
        )
    }),
    (
        "a deleted group takes more clusters than slots",
        Rule::Removal,
        || {
            let mut script = deleting(&json!({"deletionPolicy": "Delete"}));
            script.delete_cr("SyncGroup", "shop", "kubectl", true);
            for cluster in ["a", "b", "c"] {
                begin(&mut script, cluster);
            }
            script
        },
    ),
];

#[test]
fn removals_without_a_plan_or_a_read_are_rejected() {
    assert_rejected(&BAD);
}

const GOOD: [GoodCase; 15] = [
    ("after a plan that removes it", || plans(&[&["shop-app-c"]])),
    ("after a plan that was just replaced", || {
        let mut script = deleting(&json!({}));
        select(&mut script, "c", false);
        script.wait(30);
        script.plan(&["shop-app-c"]);
        script.plan(&[]);
        script.wait(-1);
        script.delete_cr("Sync", &sync("c"), "", true);
        script
    }),
    ("with a plan of another group's Sync after it", || {
        plans(&[&["shop-app-c"], &["shop-app-a", "shop-app-c"]])
    }),
    ("after a label that returned when it had been read", || {
        let mut script = deleting(&json!({}));
        select(&mut script, "c", false);
        script.wait(30);
        select(&mut script, "c", true);
        script.delete_cr("Sync", &sync("c"), "", true);
        script
    }),
    ("of an entry, after the others are done", || {
        begin_entry(entry_removed(&json!({}), &["a"]), "a")
    }),
    ("of an entry, with a free slot", || {
        let mut script = entry_removed(&json!({}), &["a"]);
        script.admit("b", "c2");
        begin_entry(script, "a")
    }),
    ("of an entry, as long as few clusters failed", || {
        let mut script = entry_removed(&json!({"maxFailures": 1}), &["a"]);
        script.admit("b", "c2");
        script.report_failure("b", &["ConfigMap default/settings"]);
        script.wait(5);
        begin_entry(script, "a")
    }),
    ("of an entry, in its open stage", || {
        begin_entry(staged_removal(), "a")
    }),
    ("of an entry, in a window", || {
        begin_entry(in_window(&json!({"allow": "12:00-13:00"})), "a")
    }),
    ("of an entry, just before a window closes", || {
        let mut script = entry_removed(&json!({}), &["a"]);
        script.set_strategy(json!({"maxConcurrency": 2, "windows": [{"deny": "12:00-13:00"}]}));
        begin_entry(script, "a")
    }),
    ("of an entry, by an automatic rollback with an approval", || {
        let mut script = automatic_rollback();
        script.approve_deletions(&json!({"group": "shop"}), "sha256:these");
        begin_entry(script, "a")
    }),
    ("of an entry that the spec has and a rollback lacks", || {
        begin_entry(with_entry_in_spec("Back"), "a")
    }),
    ("of a cluster, while a slot is free", || {
        let mut script = deleting(&json!({}));
        select(&mut script, "c", false);
        script.wait(60);
        script.roll("c2", TWO);
        script.admit("a", "c2");
        begin(&mut script, "c");
        script
    }),
    (
        "of a cluster that loses another Sync, while all slots roll",
        || {
            let mut script = two_entries(&json!({}));
            edit_group(&mut script, |spec| spec["whenUnselected"] = "Delete".into());
            select(&mut script, "c", false);
            script.wait(60);
            let script = begin_entry(script, "c");
            roll_in_all_slots(script)
        },
    ),
    ("of a deleted group, in its slots", || {
        let mut script = deleting(&json!({"deletionPolicy": "Delete"}));
        script.delete_cr("SyncGroup", "shop", "kubectl", true);
        for cluster in ["a", "b"] {
            begin(&mut script, cluster);
        }
        script
    }),
];

#[test]
fn removals_with_a_plan_and_a_read_are_accepted() {
    assert_accepted(&GOOD);
}
