//! Histories of objects that go while their group is stopped, and late: good and bad.

use serde_json::{Value, json};

use super::deletions::{prune, without_motd};
use super::removals::{deleting, edit_group, end, leaves, one_leaves};
use super::script::Script;
use super::{BadCase, GoodCase, assert_accepted, assert_rejected};
use crate::judge::Rule;

/// Longer than an attempt can be under way.
const LONG: i64 = 60;

fn suspend(script: &mut Script, suspend: bool) {
    edit_group(script, |spec| spec["suspend"] = suspend.into());
}

/// No window is open from now on. Histories begin at noon.
fn close(script: &mut Script, windows: &Value) {
    edit_group(script, |spec| {
        spec["rolloutStrategy"]["windows"] = windows.clone();
    });
}

fn closed() -> Value {
    json!([{"deny": "10:00-20:00"}])
}

/// The objects of the cluster that leaves go long after its removal began.
fn late(windows: &Value) -> Script {
    let mut script = one_leaves(&json!({}));
    script.wait(900);
    close(&mut script, windows);
    script.wait(LONG);
    end(&mut script, "c");
    script
}

pub(super) const BAD: [BadCase; 5] = [
    (
        "a removal that was decided goes on in a suspended group",
        Rule::Stopped,
        || {
            let mut script = one_leaves(&json!({}));
            suspend(&mut script, true);
            script.wait(LONG);
            end(&mut script, "c");
            script
        },
    ),
    (
        "a removal that was decided goes on in a paused rollout",
        Rule::Stopped,
        || {
            let mut script = deleting(&json!({}));
            leaves(&mut script);
            script.add_action("Pause", &json!({}));
            script.wait(LONG);
            end(&mut script, "c");
            script
        },
    ),
    (
        "a first attempt prunes in a suspended group",
        Rule::Stopped,
        || {
            let mut script = without_motd(&json!({}));
            suspend(&mut script, true);
            script.wait(LONG);
            prune(script)
        },
    ),
    (
        "a first attempt prunes in a paused rollout",
        Rule::Stopped,
        || {
            let mut script = without_motd(&json!({}));
            script.add_action("Pause", &json!({}));
            script.wait(LONG);
            prune(script)
        },
    ),
    ("a late removal in a closed window", Rule::Stopped, || {
        late(&closed())
    }),
];

#[test]
fn deletions_in_stopped_groups_are_rejected() {
    assert_rejected(&BAD);
}

const GOOD: [GoodCase; 5] = [
    ("an attempt that began before the suspension", || {
        let mut script = one_leaves(&json!({}));
        suspend(&mut script, true);
        script.wait(2);
        end(&mut script, "c");
        script
    }),
    ("after a group was resumed", || {
        let mut script = one_leaves(&json!({}));
        suspend(&mut script, true);
        script.wait(LONG);
        suspend(&mut script, false);
        end(&mut script, "c");
        script
    }),
    ("a removal in its slot, after its window", || {
        let mut script = one_leaves(&json!({}));
        close(&mut script, &closed());
        script.wait(LONG);
        end(&mut script, "c");
        script
    }),
    ("a late removal in an open window", || late(&json!([]))),
    ("a late removal that has begun", || {
        let mut script = one_leaves(&json!({}));
        script.wait(900);
        script.remove("c", "starling", "ConfigMap", "settings");
        script.update_inventory("c");
        close(&mut script, &closed());
        script.wait(LONG);
        script.remove("c", "starling", "ConfigMap", "motd");
        script
    }),
];

#[test]
fn deletions_that_waited_for_their_group_are_accepted() {
    assert_accepted(&GOOD);
}
