//! Histories in which a namespace or a definition is deleted, good and bad.

use serde_json::{Value, json};

use super::approvals::line;
use super::removals::with_object;
use super::script::{OTHER_OWNER, Script, labelled, labelled_by};
use super::{BadCase, GoodCase, assert_accepted, assert_rejected};
use crate::judge::Rule;

/// Returns an object that a namespace or a definition named `shop` contains.
fn content(kind: &str) -> Value {
    match kind {
        "Backup" => json!({"apiVersion": "example.com/v1", "kind": kind,
            "metadata": {"name": "shop", "namespace": "elsewhere"}}),
        _ => json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "shop", "namespace": "shop"}}),
    }
}

/// The other owner has an object, and lists it or not.
fn another_has(script: &mut Script, object: &Value, is_listed: bool) {
    script.write_object("a", "kubectl", labelled_by(OTHER_OWNER, object.clone()));
    let uid = script.live("a", object["kind"].as_str().unwrap(), "shop")["metadata"]["uid"].clone();
    let lines = is_listed.then(|| line(object, uid.as_str().unwrap()));
    script.write_inventory_lines(OTHER_OWNER, "a", lines.as_slice());
}

/// The Sync is deleted: what is in the container may change, and then the container goes.
fn container_goes(kind: &str, changes: impl FnOnce(&mut Script)) -> Script {
    let mut script = with_object(kind, "starling");
    script.remove("a", "starling", "ConfigMap", "settings");
    changes(&mut script);
    script.remove("a", "starling", kind, "shop");
    script
}

pub(super) const BAD: [BadCase; 4] = [
    ("a namespace with a claim of another Sync", Rule::Contents, || {
        container_goes("Namespace", |script| {
            another_has(script, &content("PersistentVolumeClaim"), true);
            script.wait(600);
        })
    }),
    (
        "a definition with an object of another Sync",
        Rule::Contents,
        || {
            container_goes("CustomResourceDefinition", |script| {
                another_has(script, &content("Backup"), true);
                script.wait(600);
            })
        },
    ),
    (
        "a namespace with a Secret that the Sync claimed for another",
        Rule::Contents,
        || {
            container_goes("Namespace", |script| {
                let secret = content("Secret");
                script.write_object("a", "kubectl", labelled_by(OTHER_OWNER, secret.clone()));
                script.write_inventory_lines(OTHER_OWNER, "a", &[line(&secret, "")]);
                script.wait(600);
            })
        },
    ),
    (
        "a namespace with a Secret of its own that is to be kept",
        Rule::Contents,
        || {
            container_goes("Namespace", |script| {
                let secret = content("Secret");
                let mut kept = labelled(secret.clone());
                kept["metadata"]["annotations"] = json!({"starling.dev/prune": "disabled"});
                script.write_object("a", "kubectl", kept);
                script.add_inventory_line("a", &line(&secret, ""));
                script.wait(600);
            })
        },
    ),
];

#[test]
fn containers_that_go_with_what_has_to_stay_are_rejected() {
    assert_rejected(&BAD);
}

const GOOD: [GoodCase; 5] = [
    ("a namespace with what nobody has", || {
        container_goes("Namespace", |script| {
            script.write_object("a", "kubectl", content("Secret"));
            script.wait(600);
        })
    }),
    ("a namespace with what its owner does not list any more", || {
        container_goes("Namespace", |script| {
            another_has(script, &content("Secret"), false);
            script.wait(600);
        })
    }),
    ("a namespace while another Sync takes something in it", || {
        container_goes("Namespace", |script| {
            another_has(script, &content("Secret"), true);
        })
    }),
    ("a namespace with what is being deleted", || {
        container_goes("Namespace", |script| {
            let mut secret = content("Secret");
            secret["metadata"]["deletionTimestamp"] = "2026-01-01T12:00:00Z".into();
            another_has(script, &secret, true);
            script.wait(600);
        })
    }),
    ("a definition with objects of another kind", || {
        container_goes("CustomResourceDefinition", |script| {
            another_has(script, &content("Secret"), true);
            script.wait(600);
        })
    }),
];

#[test]
fn containers_that_go_alone_are_accepted() {
    assert_accepted(&GOOD);
}
