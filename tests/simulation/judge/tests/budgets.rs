//! Histories of deletions that exceed a budget, and of some that do not.

use serde_json::{Value, json};

use super::planned::edit_group;
use super::removals::{begin, deleting, select};
use super::script::{Script, sync};
use super::{BadCase, GoodCase, assert_accepted, assert_rejected};
use crate::judge::Rule;

fn names(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| format!("map-{number:03}")).collect()
}

/// Rolls a commit with these maps out to a cluster, which prunes the others under one grant.
fn prune_to(script: &mut Script, commit: &str, maps: &[String]) {
    let maps: Vec<(&str, &str)> = maps.iter().map(|name| (name.as_str(), "1")).collect();
    script.roll(commit, &maps);
    script.roll_out_to("a", commit);
    script.wait(10);
}

/// Returns a cluster with so many maps.
fn with_maps(count: usize, group: &Value) -> Script {
    let mut script = Script::over(&["a"]);
    edit_group(&mut script, |spec| {
        for (field, value) in group.as_object().into_iter().flatten() {
            spec[field] = value.clone();
        }
    });
    prune_to(&mut script, "c0", &names(0..count));
    script
}

/// The objects of a Sync that is deleted go under one grant.
fn go(script: &mut Script, cluster: &str) {
    script.grant(cluster, "deletion", 2);
    for map in ["settings", "motd"] {
        script.remove_uncounted(cluster, "starling", "ConfigMap", map);
    }
    script.update_inventory(cluster);
    script.delete_cr("Sync", &sync(cluster), "", false);
}

/// Three clusters with two objects each in a group that is deleted, with this budget.
fn deleted_group(budget: &Value) -> Script {
    let mut script = deleting(&json!({"deletionPolicy": "Delete", "deletionBudget": budget}));
    script.delete_cr("SyncGroup", "shop", "kubectl", true);
    for cluster in ["a", "b", "c"] {
        begin(&mut script, cluster);
        go(&mut script, cluster);
    }
    script
}

/// Clusters leave a few seconds apart, each after the one before is gone.
fn leave_one_by_one(pause: i64, clusters: &[&str]) -> Script {
    let mut script = deleting(&json!({}));
    for cluster in clusters {
        select(&mut script, cluster, false);
        script.wait(3);
        begin(&mut script, cluster);
        go(&mut script, cluster);
        script.wait(pause);
    }
    script
}

pub(super) const BAD: [BadCase; 9] = [
    ("six commits halve a Sync", Rule::Budget, || {
        let mut script = with_maps(64, &json!({}));
        for (number, left) in [32, 16, 8, 4, 2, 1].into_iter().enumerate() {
            prune_to(&mut script, &format!("h{number}"), &names(0..left));
        }
        script
    }),
    ("one cluster leaves every six seconds", Rule::Budget, || {
        leave_one_by_one(6, &["a", "b"])
    }),
    ("a deleted group exceeds its budget", Rule::Budget, || {
        deleted_group(&json!({"objects": 5}))
    }),
    ("a deleted group exceeds its share", Rule::Budget, || {
        deleted_group(&json!({"objects": "50%"}))
    }),
    (
        "more clusters than the budget within its window",
        Rule::Budget,
        || deleted_group(&json!({"clusters": 2})),
    ),
    ("a grant above the budget", Rule::Budget, || {
        let mut script = with_maps(6, &json!({"deletionBudget": {"objects": 1}}));
        let names = names(0..4);
        let maps: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
        script.roll("c1", &maps);
        script.admit("a", "c1");
        script.grant("a", "target", 2);
        for map in ["map-004", "map-005"] {
            script.remove_uncounted("a", "starling", "ConfigMap", map);
        }
        script
    }),
    ("a budget of a Sync", Rule::Budget, || {
        let mut script = with_maps(6, &json!({}));
        script.edit("Sync", &sync("a"), "kubectl", |sync| {
            sync["spec"]["deletionBudget"] = json!({"objects": 1});
        });
        edit_group(&mut script, |spec| {
            spec["syncs"][0]["deletionBudget"] = json!({"objects": 1});
        });
        prune_to(&mut script, "c1", &names(0..5));
        prune_to(&mut script, "c2", &names(0..4));
        script
    }),
    ("a member that was set back ends no window", Rule::Budget, || {
        let mut script = with_maps(6, &json!({"deletionBudget": {"objects": 1}}));
        prune_to(&mut script, "c1", &names(0..5));
        script.set_back("a");
        script.wait(60);
        prune_to(&mut script, "c2", &names(0..4));
        script
    }),
    ("a clock that jumps back ends no window", Rule::Budget, || {
        let mut script = with_maps(6, &json!({"deletionBudget": {"objects": 1}}));
        prune_to(&mut script, "c1", &names(0..5));
        script.jump(-600);
        script.wait(3000);
        prune_to(&mut script, "c2", &names(0..4));
        script
    }),
];

#[test]
fn deletions_above_a_budget_are_rejected() {
    assert_rejected(&BAD);
}

const GOOD: [GoodCase; 9] = [
    ("a group within its budget", || {
        deleted_group(&json!({"objects": 6}))
    }),
    ("as many clusters as the budget", || {
        deleted_group(&json!({"clusters": "100%"}))
    }),
    ("one cluster an hour", || leave_one_by_one(3700, &["a", "b"])),
    ("a few objects, again and again", || {
        let mut script = with_maps(64, &json!({}));
        for number in 1..9 {
            prune_to(&mut script, &format!("s{number}"), &names(0..64 - number * 4));
        }
        script
    }),
    ("names with a hash, which each release replaces", || {
        let mut script = with_maps(12, &json!({"deletionBudget": {"objects": 6}}));
        for number in 1..8 {
            prune_to(
                &mut script,
                &format!("r{number}"),
                &names(number * 3..number * 3 + 12),
            );
        }
        script
    }),
    ("after the window", || {
        let mut script = with_maps(6, &json!({"deletionBudget": {"objects": 1, "window": "1m"}}));
        prune_to(&mut script, "c1", &names(0..5));
        script.wait(60);
        prune_to(&mut script, "c2", &names(0..4));
        script
    }),
    ("after a window that a jump ended", || {
        let mut script = with_maps(6, &json!({"deletionBudget": {"objects": 1}}));
        prune_to(&mut script, "c1", &names(0..5));
        script.jump(3500);
        script.wait(200);
        prune_to(&mut script, "c2", &names(0..4));
        script
    }),
    ("after the counts were set back", || {
        let mut script = with_maps(6, &json!({"deletionBudget": {"objects": 1}}));
        prune_to(&mut script, "c1", &names(0..5));
        script.set_back("hub");
        script.wait(60);
        prune_to(&mut script, "c2", &names(0..4));
        script
    }),
    ("with an approval", || {
        let mut script = with_maps(6, &json!({"deletionBudget": {"objects": 1}}));
        let names = names(0..4);
        let maps: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
        script.roll("c1", &maps);
        script.admit("a", "c1");
        let used = script.approve_deletions(&json!({"group": "shop"}), "sha256:these");
        script.grant_approved("a", &used, "target", 2);
        for map in ["map-004", "map-005"] {
            script.remove_uncounted("a", "starling", "ConfigMap", map);
        }
        script
    }),
];

#[test]
fn deletions_within_their_budgets_are_accepted() {
    assert_accepted(&GOOD);
}
