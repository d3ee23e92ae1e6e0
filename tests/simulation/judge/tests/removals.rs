//! Histories of removals, good and bad.

use serde_json::{Value, json};

use super::accepted::first_commit_applied;
use super::approvals::{line, list, object};
use super::script::{Script, labelled, rendered, sync};
use super::{BadCase, GoodCase, assert_accepted, assert_rejected};
use crate::judge::Rule;

/// Returns three clusters with the first commit, and a group whose clusters lose their objects when they leave.
pub(super) fn deleting(more: &Value) -> Script {
    let mut script = first_commit_applied();
    edit_group(&mut script, |spec| {
        spec["whenUnselected"] = "Delete".into();
        for (field, value) in more.as_object().into_iter().flatten() {
            spec[field] = value.clone();
        }
    });
    script.wait(60);
    script
}

pub(super) fn edit_group(script: &mut Script, change: impl FnOnce(&mut Value)) {
    script.edit("SyncGroup", "shop", "kubectl", |group| change(&mut group["spec"]));
}

pub(super) fn select(script: &mut Script, cluster: &str, selected: bool) {
    script.edit("Cluster", cluster, "kubectl", |cluster| {
        cluster["metadata"]["labels"] = if selected {
            json!({"fleet": "yes"})
        } else {
            json!({})
        };
    });
}

/// The controller begins to delete the Sync of a cluster with its objects.
pub(super) fn begin(script: &mut Script, cluster: &str) {
    script.edit("Sync", &sync(cluster), "starling", |sync| {
        sync["spec"]["deletionPolicy"] = "Delete".into();
    });
    script.delete_cr("Sync", &sync(cluster), "", true);
}

/// The objects of a Sync go, and the Sync.
pub(super) fn end(script: &mut Script, cluster: &str) {
    for map in ["settings", "motd"] {
        script.remove(cluster, "starling", "ConfigMap", map);
    }
    script.update_inventory(cluster);
    script.delete_cr("Sync", &sync(cluster), "", false);
}

/// A cluster leaves, and the controller begins after a minute.
pub(super) fn leaves(script: &mut Script) {
    select(script, "c", false);
    script.wait(60);
    begin(script, "c");
}

pub(super) fn one_leaves(more: &Value) -> Script {
    let mut script = deleting(more);
    leaves(&mut script);
    script
}

fn suspend_sync(script: &mut Script, suspended: bool) {
    script.edit("Sync", &sync("c"), "starling", |sync| {
        sync["spec"]["suspend"] = suspended.into();
    });
}

/// A namespace of this writer, which is then applied, before the Sync is deleted.
pub(super) fn with_object(kind: &str, made_by: &str) -> Script {
    let mut script = Script::over(&["a"]);
    edit_group(&mut script, |spec| spec["whenUnselected"] = "Delete".into());
    let object = object(kind);
    if made_by != "starling" {
        script.write_object("a", made_by, object.clone());
    }
    script.push_objects("c1", vec![object.clone(), rendered("settings", "1")]);
    script.observe("c1");
    script.start("c1");
    script.admit("a", "c1");
    script.write_inventory("a", &[]);
    script.add_inventory_line("a", &line(&object, ""));
    let mut applied = labelled(object);
    if made_by != "starling" {
        applied["metadata"]["uid"] = script.live("a", kind, "shop")["metadata"]["uid"].clone();
    }
    script.write_object("a", "starling", applied);
    script.add_inventory_line("a", "\tConfigMap\tdefault\tsettings\t");
    script.apply_map("a", "settings", "1");
    list(&mut script, &[kind]);
    script.report_applied("a");
    script.report();
    script.wait(60);
    select(&mut script, "a", false);
    script.wait(60);
    begin(&mut script, "a");
    script
}

pub(super) const BAD: [BadCase; 18] = [
    ("a cluster leaves a suspended group", Rule::Removal, || {
        one_leaves(&json!({"suspend": true}))
    }),
    (
        "an orphaned cluster leaves a suspended group",
        Rule::Removal,
        || one_leaves(&json!({"suspend": true, "whenUnselected": "Orphan"})),
    ),
    ("a suspended group is deleted", Rule::Removal, || {
        let mut script = deleting(&json!({"suspend": true, "deletionPolicy": "Delete"}));
        script.delete_cr("SyncGroup", "shop", "kubectl", true);
        script.wait(60);
        begin(&mut script, "a");
        script
    }),
    ("a cluster leaves a paused rollout", Rule::Removal, || {
        let mut script = deleting(&json!({}));
        script.add_action("Pause", &json!({}));
        script.wait(60);
        leaves(&mut script);
        script
    }),
    (
        "a cluster leaves after a pause that followed a resume",
        Rule::Removal,
        || {
            let mut script = deleting(&json!({}));
            for action in ["Pause", "Resume", "Pause"] {
                script.add_action(action, &json!({}));
                script.wait(60);
            }
            leaves(&mut script);
            script
        },
    ),
    ("a suspended Sync leaves", Rule::Removal, || {
        let mut script = deleting(&json!({}));
        suspend_sync(&mut script, true);
        script.wait(60);
        leaves(&mut script);
        script
    }),
    (
        "a cluster leaves before its grace has ended",
        Rule::Removal,
        || one_leaves(&json!({"unselectedGrace": "2m"})),
    ),
    (
        "an orphaned cluster leaves before its grace has ended",
        Rule::Removal,
        || one_leaves(&json!({"unselectedGrace": "2m", "whenUnselected": "Orphan"})),
    ),
    ("a cluster leaves within the default grace", Rule::Removal, || {
        let mut script = deleting(&json!({}));
        edit_group(&mut script, |spec| {
            drop(
                spec.as_object_mut()
                    .and_then(|spec| spec.remove("unselectedGrace")),
            );
        });
        select(&mut script, "c", false);
        script.wait(290);
        begin(&mut script, "c");
        script
    }),
    ("a cluster that had returned leaves", Rule::Removal, || {
        let mut script = deleting(&json!({"unselectedGrace": "2m"}));
        for selected in [false, true, false] {
            select(&mut script, "c", selected);
            script.wait(60);
        }
        begin(&mut script, "c");
        script
    }),
    (
        "a selector that is edited takes a cluster at once",
        Rule::Removal,
        || {
            let mut script = deleting(&json!({"unselectedGrace": "2m", "maxUnselected": "100%"}));
            edit_group(&mut script, |spec| {
                spec["clusterSelector"] = json!({"matchLabels": {"fleet": "other"}});
            });
            script.wait(30);
            begin(&mut script, "c");
            script
        },
    ),
    ("two of three clusters leave at once", Rule::Removal, || {
        let mut script = deleting(&json!({}));
        for cluster in ["b", "c"] {
            select(&mut script, cluster, false);
        }
        script.wait(60);
        begin(&mut script, "c");
        script
    }),
    ("more clusters leave than a number", Rule::Removal, || {
        let mut script = deleting(&json!({"maxUnselected": 2}));
        for cluster in ["a", "b", "c"] {
            select(&mut script, cluster, false);
        }
        script.wait(60);
        begin(&mut script, "c");
        script
    }),
    (
        "two clusters lose their objects in one slot",
        Rule::Removal,
        || {
            let mut script = deleting(&json!({"maxUnselected": "100%"}));
            edit_group(&mut script, |spec| {
                spec["rolloutStrategy"]["maxConcurrency"] = 1.into();
            });
            for cluster in ["b", "c"] {
                select(&mut script, cluster, false);
            }
            script.wait(60);
            begin(&mut script, "b");
            begin(&mut script, "c");
            script
        },
    ),
    (
        "a namespace goes before what is in it",
        Rule::DeletionOrder,
        || {
            let mut script = with_object("Namespace", "starling");
            script.remove("a", "starling", "Namespace", "shop");
            script
        },
    ),
    ("a namespace that a person made is deleted", Rule::Adopted, || {
        let mut script = with_object("Namespace", "kubectl");
        script.remove("a", "starling", "ConfigMap", "settings");
        script.remove("a", "starling", "Namespace", "shop");
        script
    }),
    ("a volume that a person made is deleted", Rule::Adopted, || {
        let mut script = with_object("PersistentVolume", "kubectl");
        script.remove("a", "starling", "ConfigMap", "settings");
        script.remove("a", "starling", "PersistentVolume", "shop");
        script
    }),
    (
        "a definition of another controller is deleted",
        Rule::Adopted,
        || {
            let mut script = with_object("CustomResourceDefinition", "crossplane");
            script.remove("a", "starling", "ConfigMap", "settings");
            script.remove("a", "starling", "CustomResourceDefinition", "shop");
            script
        },
    ),
];

#[test]
fn removals_that_break_one_rule_are_rejected() {
    assert_rejected(&BAD);
}

const GOOD: [GoodCase; 10] = [
    ("after the group was resumed", || {
        let mut script = deleting(&json!({"suspend": true}));
        select(&mut script, "c", false);
        script.wait(60);
        edit_group(&mut script, |spec| spec["suspend"] = false.into());
        begin(&mut script, "c");
        end(&mut script, "c");
        script
    }),
    ("while the suspension is not known", || {
        let mut script = deleting(&json!({}));
        select(&mut script, "c", false);
        script.wait(60);
        edit_group(&mut script, |spec| spec["suspend"] = true.into());
        begin(&mut script, "c");
        script
    }),
    ("after a resume", || {
        let mut script = deleting(&json!({}));
        script.add_action("Pause", &json!({}));
        script.wait(60);
        script.add_action("Resume", &json!({}));
        leaves(&mut script);
        script
    }),
    ("after the grace", || {
        let mut script = deleting(&json!({"unselectedGrace": "50s"}));
        leaves(&mut script);
        end(&mut script, "c");
        script
    }),
    ("after a return that nobody can have noticed", || {
        let mut script = deleting(&json!({"unselectedGrace": "50s"}));
        select(&mut script, "c", false);
        script.wait(30);
        select(&mut script, "c", true);
        select(&mut script, "c", false);
        script.wait(30);
        begin(&mut script, "c");
        script
    }),
    ("one after the other, with an approval", || {
        let mut script = deleting(&json!({}));
        for cluster in ["b", "c"] {
            select(&mut script, cluster, false);
        }
        let used = script.annotate_group("starling.dev/approve-membership", "sha256:these");
        script.edit("SyncGroup", "shop", "starling-deletions", |group| {
            group["status"]["deletions"] = json!({"counts": [], "leaving": ["b", "c"], "used": [used]});
        });
        for cluster in ["b", "c"] {
            script.wait(60);
            begin(&mut script, cluster);
            end(&mut script, cluster);
        }
        script
    }),
    ("after another cluster, which has returned since", || {
        let mut script = deleting(&json!({"maxUnselected": "100%"}));
        edit_group(&mut script, |spec| {
            spec["rolloutStrategy"]["maxConcurrency"] = 1.into();
        });
        select(&mut script, "b", false);
        script.wait(60);
        begin(&mut script, "b");
        end(&mut script, "b");
        select(&mut script, "b", true);
        script.wait(5);
        script.roll_out_to("b", "c1");
        script.report();
        script.wait(60);
        leaves(&mut script);
        script
    }),
    ("two at once in two slots", || {
        let mut script = deleting(&json!({"maxUnselected": "100%"}));
        for cluster in ["b", "c"] {
            select(&mut script, cluster, false);
        }
        script.wait(60);
        begin(&mut script, "b");
        begin(&mut script, "c");
        script
    }),
    ("a namespace after what was in it", || {
        let mut script = with_object("Namespace", "starling");
        script.remove("a", "starling", "ConfigMap", "settings");
        script.remove("a", "starling", "Namespace", "shop");
        script
    }),
    ("a group with its Syncs", || {
        let mut script = deleting(&json!({"deletionPolicy": "Delete"}));
        script.delete_cr("SyncGroup", "shop", "kubectl", true);
        for cluster in ["a", "b", "c"] {
            begin(&mut script, cluster);
            end(&mut script, cluster);
        }
        script
    }),
];

#[test]
fn removals_that_waited_are_accepted() {
    assert_accepted(&GOOD);
}
