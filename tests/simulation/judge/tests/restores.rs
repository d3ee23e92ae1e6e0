//! Histories of clusters that were set back, of suspended Syncs, and of retries, good and bad.

use serde_json::{Value, json};

use super::accepted::first_commit_applied;
use super::deletions::report_restore;
use super::planned::{edit_group, roll_both, two_entries};
use super::removals::{begin, deleting, select};
use super::script::{Script, TWO, condition, labelled, rendered, sync};
use super::{BadCase, GoodCase, assert_accepted, assert_rejected};
use crate::judge::Rule;

/// Returns a management cluster that was set back since its write 7 to a member, and a prune that is admitted.
fn set_back(mut script: Script) -> Script {
    script.know_writes("starling", &json!({"taken": {"one": 7}}));
    script.number("a", "one/7");
    script.set_back("hub");
    script.know_writes("etcd", &json!({"taken": {"one": 5}}));
    script
}

fn without_motd() -> Script {
    let mut script = first_commit_applied();
    script.roll("c2", &[("settings", "1")]);
    script.admit("a", "c2");
    script
}

fn later(mut script: Script) -> Script {
    script.wait(60);
    script
}

fn prune(mut script: Script) -> Script {
    script.remove("a", "starling", "ConfigMap", "motd");
    script
}

/// A person edits an object, and the controller repairs it.
fn repair(mut script: Script) -> Script {
    script.write_object("a", "kubectl", labelled(rendered("settings", "mine")));
    script.apply_map("a", "settings", "1");
    script
}

/// A member was set back to before the second commit, with the objects of the first.
fn member_set_back() -> Script {
    let mut script = first_commit_applied();
    script.roll("c2", TWO);
    script.roll_out_to("a", "c2");
    script.set_back("a");
    script.write_object("a", "etcd", labelled(rendered("settings", "1")));
    script.wait(30);
    script
}

fn suspend_sync(script: &mut Script) {
    script.edit("Sync", &sync("a"), "kubectl", |sync| {
        sync["spec"]["suspend"] = true.into();
    });
    script.wait(60);
}

/// Returns a second commit, two clusters at a time, that failed on the first.
fn failed_on_a() -> Script {
    let mut script = first_commit_applied();
    script.set_strategy(json!({"maxConcurrency": 2, "maxFailures": 2}));
    script.wait(5);
    script.roll("c2", TWO);
    script.admit("a", "c2");
    script.report_failure("a", &["ConfigMap default/settings"]);
    script.wait(5);
    script
}

/// Returns two entries on a cluster, of which one failed, if at all, and the other is in progress. Then both are
/// retried in one pass.
fn both_entries_retried(has_failed: bool) -> Script {
    let mut script = two_entries(&json!({"maxFailures": 2}));
    script.wait(5);
    roll_both(&mut script, "c2");
    script.admit("a", "c2");
    script.admit_more("a", "c2");
    if has_failed {
        script.report_failure("a", &["ConfigMap default/settings"]);
    }
    script.wait(5);
    let mut script = retry_for(script, &json!({}));
    script.admit_more("a", "c2");
    script
}

fn retry_for(mut script: Script, fields: &Value) -> Script {
    script.add_action("Retry", fields);
    script.retry("a", "c2");
    script
}

/// A repetition of an admission that is done, in a group with this change.
fn repeated(change: impl FnOnce(&mut Script)) -> Script {
    let mut script = first_commit_applied();
    change(&mut script);
    script.wait(60);
    script.admit("a", "c1");
    script
}

fn held_membership(script: &mut Script) {
    script.edit("SyncGroup", "shop", "starling", |group| {
        group["status"]["conditions"] = json!([condition("MembershipHeld", "True", "TooMany")]);
    });
}

/// The group reports that the management cluster was set back. A new commit was pushed and observed.
fn reported() -> Script {
    let mut script = first_commit_applied();
    script.store_finding(true);
    report_restore(&mut script, true);
    script.push("c2", TWO);
    script.observe("c2");
    script.wait(5);
    script
}

/// The group admits what it has rolled out before, while it reports the restore.
fn admitted_again() -> Script {
    let mut script = first_commit_applied();
    script.store_finding(true);
    report_restore(&mut script, true);
    script.wait(5);
    script.admit("a", "c1");
    script
}

pub(super) const BAD: [BadCase; 24] = [
    (
        "a rollout begins after a reported restore",
        Rule::AfterRestore,
        || {
            let mut script = reported();
            script.start("c2");
            script
        },
    ),
    (
        "a cluster is admitted after a reported restore",
        Rule::AfterRestore,
        admitted_again,
    ),
    (
        "a rollout begins after the second of two findings",
        Rule::AfterRestore,
        || {
            let mut script = reported();
            script.store_finding(false);
            script.store_finding(true);
            script.start("c2");
            script
        },
    ),
    ("a repair after an unreported restore", Rule::AfterRestore, || {
        repair(later(set_back(first_commit_applied())))
    }),
    ("a prune after an unreported restore", Rule::AfterRestore, || {
        prune(later(set_back(without_motd())))
    }),
    (
        "a Sync ends after an unreported restore",
        Rule::AfterRestore,
        || {
            let mut script = deleting(&json!({}));
            select(&mut script, "a", false);
            script.wait(60);
            begin(&mut script, "a");
            prune(later(set_back(script)))
        },
    ),
    (
        "the controller releases its own restore",
        Rule::AfterRestore,
        || {
            let mut script = later(set_back(without_motd()));
            script.know_writes(
                "starling",
                &json!({"taken": {"one": 5}, "released": {"one": [[6, 7]]}}),
            );
            prune(script)
        },
    ),
    (
        "the controller takes the lost numbers again",
        Rule::AfterRestore,
        || {
            let mut script = set_back(without_motd());
            script.know_writes("starling", &json!({"taken": {"one": 8}}));
            prune(later(script))
        },
    ),
    ("a person releases another number", Rule::AfterRestore, || {
        let mut script = later(set_back(without_motd()));
        script.know_writes(
            "jane",
            &json!({"taken": {"one": 5}, "released": {"one": [[6, 6]]}}),
        );
        prune(script)
    }),
    (
        "a claim from records before the member was set back",
        Rule::Claim,
        || {
            let mut script = member_set_back();
            script.report_applied("a");
            script
        },
    ),
    (
        "a claim about an object that the set-back removed",
        Rule::Claim,
        || {
            let mut script = first_commit_applied();
            script.set_back("a");
            script.remove_uncounted("a", "etcd", "ConfigMap", "motd");
            script.wait(30);
            script.report_applied("a");
            script
        },
    ),
    ("a suspended Sync prunes", Rule::Suspended, || {
        let mut script = without_motd();
        suspend_sync(&mut script);
        prune(script)
    }),
    (
        "a suspended Sync prunes what lost its label",
        Rule::Suspended,
        || {
            let mut script = without_motd();
            let mut live = rendered("motd", "hello");
            live["metadata"]["uid"] = script.live("a", "ConfigMap", "motd")["metadata"]["uid"].clone();
            script.write_object("a", "kubectl", live);
            suspend_sync(&mut script);
            prune(script)
        },
    ),
    ("an admission in a suspended group", Rule::Suspended, || {
        let mut script = first_commit_applied();
        edit_group(&mut script, |spec| spec["suspend"] = true.into());
        script.wait(5);
        script.roll("c2", TWO);
        script.admit("a", "c2");
        script
    }),
    (
        "an admission while the membership is held",
        Rule::Suspended,
        || {
            let mut script = first_commit_applied();
            script.roll("c2", TWO);
            held_membership(&mut script);
            script.wait(5);
            script.admit("a", "c2");
            script
        },
    ),
    ("a retry in a suspended group", Rule::Suspended, || {
        let mut script = failed_on_a();
        edit_group(&mut script, |spec| spec["suspend"] = true.into());
        script.wait(5);
        retry_for(script, &json!({}))
    }),
    ("a repeated done admission while paused", Rule::Paused, || {
        repeated(|script| script.add_action("Pause", &json!({})))
    }),
    (
        "a repeated done admission in a suspended group",
        Rule::Suspended,
        || repeated(|script| edit_group(script, |spec| spec["suspend"] = true.into())),
    ),
    ("a retry of another cluster", Rule::NotAdmitted, || {
        retry_for(failed_on_a(), &json!({"cluster": "b"}))
    }),
    ("two retries for one request", Rule::NotAdmitted, || {
        let mut script = retry_for(failed_on_a(), &json!({}));
        script.report_failure("a", &["ConfigMap default/settings"]);
        script.wait(5);
        script.retry("a", "c2");
        script
    }),
    ("a retry before the request", Rule::NotAdmitted, || {
        let mut script = failed_on_a();
        script.retry("a", "c2");
        script.add_action("Retry", &json!({}));
        script
    }),
    (
        "a request that is older than the admission",
        Rule::NotAdmitted,
        || {
            let mut script = first_commit_applied();
            script.set_strategy(json!({"maxConcurrency": 2, "maxFailures": 2}));
            script.wait(5);
            script.roll("c2", TWO);
            script.add_action("Retry", &json!({}));
            script.wait(10);
            script.admit("a", "c2");
            script.report_failure("a", &["ConfigMap default/settings"]);
            script.wait(5);
            script.retry("a", "c2");
            script
        },
    ),
    ("a retry of a cluster in flight", Rule::NotAdmitted, || {
        let mut script = first_commit_applied();
        script.roll("c2", TWO);
        script.admit("a", "c2");
        script.wait(5);
        retry_for(script, &json!({}))
    }),
    (
        "a retry of two entries of a cluster in flight",
        Rule::NotAdmitted,
        || both_entries_retried(false),
    ),
];

#[test]
fn writes_after_a_restore_and_wrong_retries_are_rejected() {
    assert_rejected(&BAD);
}

const GOOD: [GoodCase; 13] = [
    ("a rollout begins with the pass after the release", || {
        let mut script = reported();
        script.store_finding(false);
        script.start("c2");
        report_restore(&mut script, false);
        script.roll_out_to("a", "c2");
        script
    }),
    ("the rollout of a restored management cluster goes on", || {
        let mut script = first_commit_applied();
        script.roll("c2", TWO);
        script.roll_out_to("a", "c2");
        script.set_back("hub");
        script.start("c1");
        script.admit("a", "c1");
        script
    }),
    (
        "an admission in the pass that ends a hold of clusters that left",
        || {
            let mut script = first_commit_applied();
            script.roll("c2", TWO);
            held_membership(&mut script);
            script.wait(5);
            script.admit("a", "c2");
            script.edit("SyncGroup", "shop", "starling", |group| {
                group["status"]["conditions"] = json!([condition("MembershipHeld", "False", "Settled")]);
            });
            script
        },
    ),
    ("while an attempt is under way", || {
        prune(set_back(without_motd()))
    }),
    ("on a member without a lost number", || {
        let mut script = without_motd();
        script.know_writes("starling", &json!({"taken": {"one": 7}}));
        script.number("a", "one/4");
        script.set_back("hub");
        script.know_writes("etcd", &json!({"taken": {"one": 5}}));
        prune(later(script))
    }),
    ("after a person released the number", || {
        let mut script = later(set_back(without_motd()));
        script.know_writes(
            "jane",
            &json!({"taken": {"one": 5}, "released": {"one": [[6, 7]]}}),
        );
        prune(script)
    }),
    ("a claim after the member was written again", || {
        let mut script = member_set_back();
        script.apply_map("a", "settings", "2");
        script.report_applied("a");
        script
    }),
    ("a claim about what the set-back kept", || {
        let mut script = first_commit_applied();
        script.set_back("a");
        script.wait(30);
        script.report_applied("a");
        script
    }),
    ("a retry on request", || {
        retry_for(failed_on_a(), &json!({"cluster": "a"}))
    }),
    ("a retry of two entries, of which one failed", || {
        both_entries_retried(true)
    }),
    ("two retries for two requests", || {
        let mut script = retry_for(failed_on_a(), &json!({}));
        script.report_failure("a", &["ConfigMap default/settings"]);
        script.wait(5);
        retry_for(script, &json!({}))
    }),
    ("a retry above the failure limit", || {
        let mut script = failed_on_a();
        script.set_strategy(json!({"maxConcurrency": 2, "maxFailures": 0}));
        script.wait(5);
        retry_for(script, &json!({}))
    }),
    ("an admission while the suspension is not known", || {
        let mut script = first_commit_applied();
        script.roll("c2", TWO);
        edit_group(&mut script, |spec| spec["suspend"] = true.into());
        script.admit("a", "c2");
        script
    }),
];

#[test]
fn writes_after_a_release_and_requested_retries_are_accepted() {
    assert_accepted(&GOOD);
}
