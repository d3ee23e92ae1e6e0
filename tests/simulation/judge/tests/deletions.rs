//! Histories of deletions, good and bad: what is counted before, the grace before a prune, and restores.

use serde_json::{Value, json};

use super::accepted::first_commit_applied;
use super::removals::{begin, deleting, one_leaves, select};
use super::script::{Script, condition, labelled, rendered};
use super::{BadCase, GoodCase, assert_accepted, assert_rejected};
use crate::judge::Rule;

/// A second commit without one of two objects is admitted on a cluster. The entry has these fields too.
pub(super) fn without_motd(fields: &Value) -> Script {
    let mut script = first_commit_applied();
    script.edit("SyncGroup", "shop", "kubectl", |group| {
        for (field, value) in fields.as_object().into_iter().flatten() {
            group["spec"]["syncs"][0][field] = value.clone();
        }
    });
    script.roll("c2", &[("settings", "1")]);
    script.admit("a", "c2");
    script
}

/// A second commit replaces both objects by another one.
fn replaced() -> Script {
    let mut script = first_commit_applied();
    script.roll("c2", &[("other", "1")]);
    script.admit("a", "c2");
    script.claim("a", "c2");
    script.apply_map("a", "other", "1");
    script
}

/// The controller reports that the management cluster was set back, or that a person released it.
pub(super) fn report_restore(script: &mut Script, held: bool) {
    script.edit("SyncGroup", "shop", "starling", |group| {
        let status = if held { "True" } else { "False" };
        group["status"]["conditions"] = json!([condition("RestoreDetected", status, "SetBack")]);
    });
}

fn restored(mut script: Script) -> Script {
    report_restore(&mut script, true);
    script.wait(60);
    script
}

pub(super) fn prune(mut script: Script) -> Script {
    script.remove("a", "starling", "ConfigMap", "motd");
    script
}

fn prune_uncounted(mut script: Script) -> Script {
    script.remove_uncounted("a", "starling", "ConfigMap", "motd");
    script
}

/// The objects of the cluster that leaves are deleted under this grant.
fn ends_under(grant: Option<(&str, u64)>) -> Script {
    let mut script = one_leaves(&json!({}));
    if let Some((target, objects)) = grant {
        script.grant("c", target, objects);
    }
    for map in ["settings", "motd"] {
        script.remove_uncounted("c", "starling", "ConfigMap", map);
    }
    script
}

/// An object is pruned after its grace, and after plans that allow prunes of these Syncs.
fn after_grace(plans: &[&[&str]]) -> Script {
    let mut script = without_motd(&json!({"pruneGrace": "1h"}));
    script.report_applied("a");
    script.wait(3601);
    for prunes in plans {
        script.plan_with(&[], prunes);
    }
    prune(script)
}

pub(super) const BAD: [BadCase; 15] = [
    ("a prune is not counted", Rule::Uncounted, || {
        prune_uncounted(without_motd(&json!({})))
    }),
    ("a prune under the grant of a deletion", Rule::Uncounted, || {
        let mut script = without_motd(&json!({}));
        script.grant("a", "deletion", 1);
        prune_uncounted(script)
    }),
    ("a prune under a grant that ended", Rule::Uncounted, || {
        let mut script = without_motd(&json!({}));
        script.grant("a", "target", 1);
        script.edit("Sync", "shop-app-a", "starling-deletions", |sync| {
            sync["status"]["deletions"]["grant"] = Value::Null;
        });
        script.wait(60);
        prune_uncounted(script)
    }),
    ("more is pruned than was granted", Rule::Uncounted, || {
        let mut script = replaced();
        script.grant("a", "target", 1);
        script.remove_uncounted("a", "starling", "ConfigMap", "settings");
        prune_uncounted(script)
    }),
    ("a Sync that is deleted counts nothing", Rule::Uncounted, || {
        ends_under(None)
    }),
    (
        "a Sync that is deleted loses more than was granted",
        Rule::Uncounted,
        || ends_under(Some(("deletion", 1))),
    ),
    (
        "a Sync that is deleted continues the grant of a prune",
        Rule::Uncounted,
        || ends_under(Some(("target", 2))),
    ),
    ("a prune before its grace has ended", Rule::Deletion, || {
        let mut script = without_motd(&json!({"pruneGrace": "1h"}));
        script.wait(3500);
        prune(script)
    }),
    (
        "a prune after the whole grace of an earlier commit",
        Rule::Deletion,
        || {
            let mut script = without_motd(&json!({"pruneGrace": "1h"}));
            script.wait(2000);
            script.roll("c3", &[("settings", "1"), ("motd", "hello")]);
            script.roll_out_to("a", "c3");
            script.roll("c4", &[("settings", "1")]);
            script.admit("a", "c4");
            script.wait(2000);
            prune(script)
        },
    ),
    ("a prune after its grace without a plan", Rule::Unplanned, || {
        after_grace(&[&["shop-app-b"]])
    }),
    (
        "a prune long after the plan that allowed it",
        Rule::Unplanned,
        || {
            let mut script = without_motd(&json!({"pruneGrace": "1h"}));
            script.report_applied("a");
            script.plan_with(&[], &["shop-app-a"]);
            script.plan_with(&[], &[]);
            script.wait(3601);
            prune(script)
        },
    ),
    ("a repair after a restore", Rule::AfterRestore, || {
        let mut script = restored(first_commit_applied());
        script.write_object("a", "kubectl", labelled(rendered("settings", "mine")));
        script.apply_map("a", "settings", "1");
        script
    }),
    ("a prune after a restore", Rule::AfterRestore, || {
        prune(restored(without_motd(&json!({}))))
    }),
    ("a cluster leaves after a restore", Rule::Removal, || {
        let mut script = deleting(&json!({}));
        select(&mut script, "c", false);
        let mut script = restored(script);
        begin(&mut script, "c");
        script
    }),
    ("a group is deleted after a restore", Rule::Removal, || {
        let mut script = deleting(&json!({"deletionPolicy": "Delete"}));
        script.delete_cr("SyncGroup", "shop", "kubectl", true);
        let mut script = restored(script);
        begin(&mut script, "a");
        script
    }),
];

#[test]
fn deletions_that_break_one_rule_are_rejected() {
    assert_rejected(&BAD);
}

const GOOD: [GoodCase; 9] = [
    ("under a grant of both objects", || {
        let mut script = replaced();
        script.grant("a", "target", 2);
        script.remove_uncounted("a", "starling", "ConfigMap", "settings");
        prune_uncounted(script)
    }),
    ("under a grant that ended while an attempt was under way", || {
        let mut script = without_motd(&json!({}));
        script.grant("a", "target", 1);
        script.edit("Sync", "shop-app-a", "starling-deletions", |sync| {
            sync["status"]["deletions"]["grant"] = Value::Null;
        });
        prune_uncounted(script)
    }),
    ("of a prune that was under way when its Sync was deleted", || {
        let mut script = deleting(&json!({}));
        script.roll("c2", &[("settings", "1")]);
        script.admit("c", "c2");
        select(&mut script, "c", false);
        script.wait(60);
        begin(&mut script, "c");
        script.grant("c", "target", 1);
        script.remove_uncounted("c", "starling", "ConfigMap", "motd");
        script
    }),
    ("after the grace", || {
        let mut script = without_motd(&json!({"pruneGrace": "1h"}));
        script.wait(3601);
        prune(script)
    }),
    ("after the grace, as a plan allows", || {
        after_grace(&[&["shop-app-b"], &["shop-app-a"]])
    }),
    ("after the grace, by attempts that have failed so far", || {
        let mut script = without_motd(&json!({"pruneGrace": "1h"}));
        script.report_failure("a", &["ConfigMap shop/settings"]);
        script.wait(3601);
        script.plan_with(&[], &["shop-app-b"]);
        prune(script)
    }),
    ("of a Sync under one grant", || ends_under(Some(("deletion", 2)))),
    ("while the restore is not known", || {
        let mut script = without_motd(&json!({}));
        report_restore(&mut script, true);
        prune(script)
    }),
    ("after a person released the restore", || {
        let mut script = restored(without_motd(&json!({})));
        report_restore(&mut script, false);
        prune(script)
    }),
];

#[test]
fn deletions_that_are_counted_and_waited_for_are_accepted() {
    assert_accepted(&GOOD);
}
