//! Histories of deletions that need an approval, of their order, and of objects that another Sync has, good and bad.

use serde_json::{Value, json};

use super::accepted::first_commit_applied;
use super::planned::edit_group;
use super::removals::{begin, select, with_object};
use super::script::{OTHER_OWNER, Script, digest, labelled, labelled_by, rendered, revision, sync};
use super::{BadCase, GoodCase, assert_accepted, assert_rejected};
use crate::judge::Rule;

/// Returns an object of this kind that the first commit has and the second has not, which is admitted.
fn object_left_git(kind: &str, change: impl FnOnce(&mut Value)) -> Script {
    let mut script = with_steps(&[kind]);
    let mut live = script.live("a", kind, "shop");
    change(&mut live);
    if live != script.live("a", kind, "shop") {
        script.write_object("a", "kubectl", live);
    }
    script.wait(1);
    script.push_objects("c2", vec![rendered("settings", "1")]);
    script.observe("c2");
    script.start("c2");
    script.admit("a", "c2");
    script
}

/// Returns a cluster with an object of each kind, named `shop`, and a ConfigMap.
fn with_steps(kinds: &[&str]) -> Script {
    let mut script = Script::over(&["a"]);
    edit_group(&mut script, |spec| spec["whenUnselected"] = "Delete".into());
    let objects: Vec<Value> = kinds.iter().map(|kind| object(kind)).collect();
    let mut all = vec![rendered("settings", "1")];
    all.extend(objects.clone());
    script.push_objects("c1", all);
    script.observe("c1");
    script.start("c1");
    script.admit("a", "c1");
    script.write_inventory("a", &[]);
    for object in &objects {
        script.add_inventory_line("a", &line(object, ""));
        script.write_object("a", "starling", labelled(object.clone()));
    }
    script.add_inventory_line("a", "\tConfigMap\tdefault\tsettings\t");
    script.apply_map("a", "settings", "1");
    list(&mut script, kinds);
    script.report_applied("a");
    script.report();
    script.wait(60);
    script
}

/// Returns an object: of the whole cluster, or an instance of a definition.
pub(super) fn object(kind: &str) -> Value {
    let (version, namespace) = match kind {
        "CustomResourceDefinition" => ("apiextensions.k8s.io/v1", ""),
        "DaemonSet" => ("apps/v1", "default"),
        "Backup" => ("example.com/v1", "default"),
        _ => ("v1", ""),
    };
    let mut object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": "shop"}});
    if !namespace.is_empty() {
        object["metadata"]["namespace"] = namespace.into();
    }
    if kind == "CustomResourceDefinition" {
        object["spec"] = json!({"group": "example.com", "names": {"kind": "Backup"}});
    }
    object
}

pub(super) fn line(object: &Value, uid: &str) -> String {
    let version = object["apiVersion"].as_str().unwrap();
    let (group, _) = version.split_once('/').unwrap_or_default();
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    format!(
        "{group}\t{}\t{namespace}\tshop\t{uid}",
        object["kind"].as_str().unwrap()
    )
}

/// Writes the inventory with the UIDs of the ConfigMap and of an object of each kind.
pub(super) fn list(script: &mut Script, kinds: &[&str]) {
    script.write_inventory("a", &["settings".to_owned()]);
    for kind in kinds {
        let uid = script.live("a", kind, "shop")["metadata"]["uid"].clone();
        script.add_inventory_line("a", &line(&object(kind), uid.as_str().unwrap()));
    }
}

fn protect(object: &mut Value) {
    object["metadata"]["annotations"] = json!({"starling.dev/deletion": "Confirm"});
}

fn namespace_left_git() -> Script {
    object_left_git("Namespace", |_| {})
}

/// The controller deletes the object under an approved grant.
fn carry_out(mut script: Script, used: &Value) -> Script {
    script.grant_approved("a", used, "target", 1);
    script.remove_uncounted("a", "starling", "Namespace", "shop");
    script
}

/// The same Namespace is in git again, and leaves it again.
fn returns_and_leaves_again(script: &mut Script) {
    script.wait(60);
    script.edit("Sync", &sync("a"), "starling-deletions", |sync| {
        sync["status"]["deletions"]["grant"] = Value::Null;
    });
    for (commit, objects) in [
        ("c3", vec![object("Namespace"), rendered("settings", "1")]),
        ("c4", vec![rendered("settings", "1")]),
    ] {
        script.push_objects(commit, objects);
        script.observe(commit);
        script.start(commit);
        script.admit("a", commit);
        if commit == "c3" {
            script.add_inventory_line("a", "\tNamespace\t\tshop\t");
            script.write_object("a", "starling", labelled(object("Namespace")));
            list(script, &["Namespace"]);
        }
        script.wait(60);
    }
}

/// A cluster leaves with this object, which is deleted after the ConfigMap.
fn ends_with(kind: &str, change: impl FnOnce(&mut Script)) -> Script {
    let mut script = with_steps(&[kind]);
    change(&mut script);
    leave(&mut script);
    script.remove("a", "starling", "ConfigMap", "settings");
    script.remove("a", "starling", kind, "shop");
    script
}

fn leave(script: &mut Script) {
    select(script, "a", false);
    script.wait(60);
    begin(script, "a");
}

/// Returns a Sync of another group that renders the ConfigMap `motd` of the first.
fn with_other_group(script: &mut Script, admitted: bool) {
    script.push("c2", &[("settings", "1")]);
    script.push_folder("other", vec![rendered("motd", "hello")]);
    script.observe("c2");
    script.start("c2");
    script.edit("SyncGroup", "other", "kubectl", |group| {
        group["spec"] = json!({"clusterSelector": {"matchLabels": {"fleet": "yes"}},
            "syncs": [{"name": "app", "sourceRef": {"name": "shop"}, "path": "./other"}]});
        group["status"] = json!({"rollout": {"id": 1, "release": "sha256:other", "phase": "Progressing",
            "revisions": [{"sync": "app", "revision": revision("c2")}],
            "blockedBy": [{"reason": "NoSlot", "message": "wait", "since": "2026-01-01T12:00:00Z"}]}});
    });
    if admitted {
        script.edit("Sync", "other-app-a", "starling-group", |sync| {
            sync["metadata"]["annotations"] =
                json!({"starling.dev/rollout": "1", "starling.dev/release": "sha256:other"});
            sync["spec"] = json!({"groupRef": {"name": "other", "entry": "app"}, "clusterRef": {"name": "a"},
                "sourceRef": {"name": "shop"}, "path": "./other", "revision": revision("c2")});
        });
        script.wait(5);
    }
}

/// The object moves to the group, and the first one deletes it.
fn moves(admitted: bool) -> Script {
    let mut script = first_commit_applied();
    with_other_group(&mut script, admitted);
    script.admit("a", "c2");
    script.remove("a", "starling", "ConfigMap", "motd");
    script
}

/// A cluster leaves with a Namespace of this writer, and Starling takes its label away.
fn relinquished(made_by: &str) -> Script {
    let mut script = with_object("Namespace", made_by);
    script.remove("a", "starling", "ConfigMap", "settings");
    let mut live = script.live("a", "Namespace", "shop");
    live["metadata"]["labels"] = json!({});
    script.write_object("a", "starling", live);
    script
}

pub(super) const BAD: [BadCase; 23] = [
    ("what Starling made loses its label", Rule::NotAdmitted, || {
        relinquished("starling")
    }),
    ("any annotation", Rule::Unapproved, || {
        let mut script = namespace_left_git();
        script.annotate_group("starling.dev/approve-deletions", "sha256:these");
        script.remove("a", "starling", "Namespace", "shop");
        script
    }),
    (
        "approved with the digest of another list",
        Rule::Unapproved,
        || {
            let mut script = namespace_left_git();
            let target = digest(&script.cr("Sync", &sync("a")));
            script.edit("Sync", &sync("a"), "starling", |sync| {
                sync["status"]["lastAttemptedTarget"] = target.clone().into();
                sync["status"]["lastAttemptedRevision"] = revision("c2").into();
                sync["status"]["heldDeletions"] = json!({"digest": "sha256:these", "deletions": 1, "of": 2});
            });
            let used = script.approve_deletions(&json!({"group": "shop"}), "sha256:others");
            script.grant_approved("a", &used, &target, 1);
            script.remove_uncounted("a", "starling", "Namespace", "shop");
            script
        },
    ),
    ("a record of another digest", Rule::Unapproved, || {
        let mut script = namespace_left_git();
        let mut used = script.approve_deletions(&json!({"group": "shop"}), "sha256:others");
        used["digest"] = "sha256:these".into();
        carry_out(script, &used)
    }),
    ("the same list twice with one approval", Rule::Unapproved, || {
        let mut script = namespace_left_git();
        let used = script.approve_deletions(&json!({"group": "shop"}), "sha256:these");
        let mut script = carry_out(script, &used);
        returns_and_leaves_again(&mut script);
        carry_out(script, &used)
    }),
    ("another object under the same grant", Rule::Unapproved, || {
        let mut script = object_left_git("Namespace", |_| {});
        let used = script.approve_deletions(&json!({"group": "shop"}), "sha256:these");
        let mut script = carry_out(script, &used);
        returns_and_leaves_again(&mut script);
        script.grant("a", "target", 1);
        script.remove_uncounted("a", "starling", "Namespace", "shop");
        script
    }),
    ("an approval older than its Sync", Rule::Unapproved, || {
        let mut script = namespace_left_git();
        let used = script.approve_deletions(&json!({"sync": sync("a")}), "sha256:these");
        script.delete_cr("Cluster", "a", "kubectl", false);
        script.wait(20);
        script.delete_cr("Sync", &sync("a"), "", false);
        script.add_cluster("a");
        script.admit("a", "c2");
        let name = sync("a");
        script.edit("Sync", &name, "starling", |sync| {
            sync["metadata"]["uid"] = "another".into();
        });
        carry_out(script, &used)
    }),
    ("an approval of another group", Rule::Unapproved, || {
        let mut script = namespace_left_git();
        let used = script.approve_deletions(&json!({"group": "other"}), "sha256:these");
        carry_out(script, &used)
    }),
    ("an approval of another Sync", Rule::Unapproved, || {
        let mut script = namespace_left_git();
        let used = script.approve_deletions(&json!({"sync": sync("b")}), "sha256:these");
        carry_out(script, &used)
    }),
    ("an approval that does not exist", Rule::Unapproved, || {
        let script = namespace_left_git();
        let used = json!({"name": "word-1", "uid": "word-1", "digest": "sha256:these", "time": ""});
        carry_out(script, &used)
    }),
    ("a protected object is pruned", Rule::Unapproved, || {
        let mut script = object_left_git("DaemonSet", protect);
        script.remove("a", "starling", "DaemonSet", "shop");
        script
    }),
    ("a protected object ends with its Sync", Rule::Unapproved, || {
        ends_with("Namespace", |script| {
            let mut live = script.live("a", "Namespace", "shop");
            protect(&mut live);
            script.write_object("a", "kubectl", live);
        })
    }),
    (
        "a kind that an operator added is pruned",
        Rule::Unapproved,
        || {
            let mut script = object_left_git("DaemonSet", |_| {});
            script.confirm_kind("apps", "DaemonSet");
            script.remove("a", "starling", "DaemonSet", "shop");
            script
        },
    ),
    (
        "a kind that an operator added ends with its Sync",
        Rule::Unapproved,
        || ends_with("Namespace", |script| script.confirm_kind("", "Namespace")),
    ),
    ("an adopted object of an added kind", Rule::Adopted, || {
        let mut script = with_object("ClusterRole", "kubectl");
        script.confirm_kind("", "ClusterRole");
        script.remove("a", "starling", "ConfigMap", "settings");
        let used = script.approve_deletions(&json!({"group": "shop"}), "sha256:these");
        script.grant_approved("a", &used, "deletion", 2);
        script.remove_uncounted("a", "starling", "ClusterRole", "shop");
        script
    }),
    ("a definition before its instance", Rule::DeletionOrder, || {
        let mut script = with_steps(&["CustomResourceDefinition", "Backup"]);
        leave(&mut script);
        script.remove("a", "starling", "ConfigMap", "settings");
        script.remove("a", "starling", "CustomResourceDefinition", "shop");
        script
    }),
    ("an operator before its instances", Rule::DeletionOrder, || {
        let mut script = with_steps(&["Backup", "DaemonSet"]);
        leave(&mut script);
        script.remove("a", "starling", "DaemonSet", "shop");
        script
    }),
    ("a line is dropped to pass the order", Rule::DeletionOrder, || {
        let mut script = with_steps(&["CustomResourceDefinition", "Backup"]);
        leave(&mut script);
        script.remove("a", "starling", "ConfigMap", "settings");
        script.write_inventory("a", &[]);
        let uid = script.live("a", "CustomResourceDefinition", "shop")["metadata"]["uid"].clone();
        let line = line(&object("CustomResourceDefinition"), uid.as_str().unwrap());
        script.add_inventory_line("a", &line);
        script.remove("a", "starling", "CustomResourceDefinition", "shop");
        script
    }),
    ("a prune takes a namespace first", Rule::DeletionOrder, || {
        let mut script = with_steps(&["Namespace", "DaemonSet"]);
        script.push_objects("c2", vec![rendered("settings", "1")]);
        script.observe("c2");
        script.start("c2");
        script.admit("a", "c2");
        let used = script.approve_deletions(&json!({"group": "shop"}), "sha256:these");
        carry_out(script, &used)
    }),
    (
        "another group renders it and it is pruned",
        Rule::HandOver,
        || moves(true),
    ),
    (
        "another group renders it and it ends with its Sync",
        Rule::HandOver,
        || {
            let mut script = first_commit_applied();
            edit_group(&mut script, |spec| spec["whenUnselected"] = "Delete".into());
            with_other_group(&mut script, true);
            edit_group(&mut script, |spec| {
                spec["clusterSelector"] = json!({"matchLabels": {"fleet": "no"}});
                spec["maxUnselected"] = "100%".into();
            });
            script.wait(60);
            begin(&mut script, "a");
            script.remove("a", "starling", "ConfigMap", "motd");
            script
        },
    ),
    ("deleted and made anew by the next group", Rule::HandOver, || {
        let mut script = moves(true);
        script.write_inventory_of(OTHER_OWNER, "a", &["motd"]);
        script.write_object(
            "a",
            "starling",
            labelled_by(OTHER_OWNER, rendered("motd", "hello")),
        );
        script
    }),
    (
        "deleted uncounted and made anew by the next group",
        Rule::Uncounted,
        || {
            let mut script = first_commit_applied();
            with_other_group(&mut script, false);
            script.admit("a", "c2");
            script.remove_uncounted("a", "starling", "ConfigMap", "motd");
            with_other_sync(&mut script);
            script.write_inventory_of(OTHER_OWNER, "a", &["motd"]);
            script.write_object(
                "a",
                "starling",
                labelled_by(OTHER_OWNER, rendered("motd", "hello")),
            );
            script
        },
    ),
];

/// The other group admits its Sync.
fn with_other_sync(script: &mut Script) {
    script.edit("Sync", "other-app-a", "starling-group", |sync| {
        sync["metadata"]["annotations"] =
            json!({"starling.dev/rollout": "1", "starling.dev/release": "sha256:other"});
        sync["spec"] = json!({"groupRef": {"name": "other", "entry": "app"}, "clusterRef": {"name": "a"},
            "sourceRef": {"name": "shop"}, "path": "./other", "revision": revision("c2")});
    });
}

#[test]
fn deletions_without_an_approval_or_out_of_order_are_rejected() {
    assert_rejected(&BAD);
}

const GOOD: [GoodCase; 13] = [
    ("not at all: another Sync has an object and gives it back", || {
        let mut script = first_commit_applied();
        with_other_group(&mut script, true);
        script.write_inventory_of(OTHER_OWNER, "a", &["motd"]);
        let mut live = script.live("a", "ConfigMap", "motd");
        let own = live.clone();
        live["metadata"]["labels"] = json!({"starling.dev/owner": OTHER_OWNER});
        for object in [live, own] {
            script.write_object("a", "starling", object);
        }
        script
    }),
    ("of what another Sync had before, which is let go of", || {
        let mut script = first_commit_applied();
        with_other_group(&mut script, false);
        script.admit("a", "c2");
        script.wait(5);
        with_other_sync(&mut script);
        script.write_inventory_of(OTHER_OWNER, "a", &["motd"]);
        let mut live = script.live("a", "ConfigMap", "motd");
        for labels in [json!({"starling.dev/owner": OTHER_OWNER}), json!({})] {
            live["metadata"]["labels"] = labels;
            script.write_object("a", "starling", live.clone());
        }
        script
    }),
    ("of what is let go of", || relinquished("kubectl")),
    ("with an approval of the group", || {
        let mut script = namespace_left_git();
        let used = script.approve_deletions(&json!({"group": "shop"}), "sha256:these");
        carry_out(script, &used)
    }),
    ("with an approval of the Sync", || {
        let mut script = namespace_left_git();
        let used = script.approve_deletions(&json!({"sync": sync("a")}), "sha256:these");
        carry_out(script, &used)
    }),
    ("with an annotation", || {
        let mut script = namespace_left_git();
        let used = script.annotate_group("starling.dev/approve-deletions", "sha256:more,sha256:these");
        let mut used = used;
        used["digest"] = "sha256:these".into();
        carry_out(script, &used)
    }),
    ("with two approvals, twice", || {
        let mut script = namespace_left_git();
        let used = script.approve_deletions(&json!({"group": "shop"}), "sha256:these");
        let mut script = carry_out(script, &used);
        returns_and_leaves_again(&mut script);
        let used = script.approve_deletions(&json!({"group": "shop"}), "sha256:these");
        carry_out(script, &used)
    }),
    ("of the list that was held", || {
        let mut script = namespace_left_git();
        let target = digest(&script.cr("Sync", &sync("a")));
        script.edit("Sync", &sync("a"), "starling", |sync| {
            sync["status"]["lastAttemptedTarget"] = target.clone().into();
            sync["status"]["lastAttemptedRevision"] = revision("c2").into();
            sync["status"]["heldDeletions"] = json!({"digest": "sha256:these", "deletions": 1, "of": 2});
        });
        let used = script.approve_deletions(&json!({"group": "shop"}), "sha256:these");
        script.grant_approved("a", &used, &target, 1);
        script.remove_uncounted("a", "starling", "Namespace", "shop");
        script
    }),
    ("of what needs none", || ends_with("Namespace", |_| {})),
    ("in order", || {
        let mut script = with_steps(&["CustomResourceDefinition", "Backup", "DaemonSet"]);
        leave(&mut script);
        for kind in ["Backup", "DaemonSet"] {
            script.remove("a", "starling", kind, "shop");
        }
        script.remove("a", "starling", "ConfigMap", "settings");
        script.remove("a", "starling", "CustomResourceDefinition", "shop");
        script
    }),
    ("while a copy of the label stays", || {
        let mut script = with_steps(&["Namespace"]);
        let copy = json!({"apiVersion": "v1", "kind": "DaemonSet", "metadata": {"namespace": "default", "name": "copy"}});
        script.write_object("a", "controller", labelled(copy));
        leave(&mut script);
        script.remove("a", "starling", "ConfigMap", "settings");
        script.remove("a", "starling", "Namespace", "shop");
        script
    }),
    ("before another group has it", || moves(false)),
    ("that a group renders which the cluster has left", || {
        let mut script = first_commit_applied();
        with_other_group(&mut script, true);
        script.edit("SyncGroup", "other", "kubectl", |group| {
            group["spec"]["clusterSelector"] = json!({"matchLabels": {"fleet": "no"}});
        });
        script.wait(5);
        script.admit("a", "c2");
        script.remove("a", "starling", "ConfigMap", "motd");
        script
    }),
];

#[test]
fn deletions_with_an_approval_and_in_order_are_accepted() {
    assert_accepted(&GOOD);
}
