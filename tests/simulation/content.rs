//! The content of the repository at each revision, and the expected content of a member.

use serde_json::{Value, json};
use starling_apiserver::journal::{Entry, Verb};
use starling_apiserver::server::ClusterHandle;
use starling_apiserver::state::RESTORED_BY;
use starling_core::inventory::format;

use crate::extras::Extras;
use crate::fakes::git::Tree;
use crate::script::{MEMBERS, member as name_of};
use crate::world::World;

/// The folder that is rolled out.
pub(crate) const FOLDER: &str = "deploy";
/// The entry that is always there.
pub(crate) const APP: &str = "app";
/// The entry that comes and goes, its folder and its namespace.
pub(crate) const EXTRA: &str = "extra";
/// The Secret of somebody else in its namespace.
pub(crate) const FOREIGN: &str = "foreign";
/// Number of revisions.
pub(crate) const REVISIONS: usize = 3;

/// Returns the tree of a revision, counted from 1: a namespace, a ConfigMap, a Deployment; the second revision has one
/// more object than the others, and if it is bad, another object that no member accepts.
pub(crate) fn tree(revision: usize, is_bad: bool, extras: Option<&Extras>) -> Tree {
    let mut objects = vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}),
        setting("settings", revision),
        json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "shop", "annotations": {"revision": revision.to_string()}},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}},
                "template": {"metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [{"name": "web", "image": format!("shop:{revision}")}]}}}}),
    ];
    if revision == 2 {
        objects.push(setting("second", revision));
    }
    if revision == 2 && is_bad {
        objects.push(json!({"apiVersion": "shop.example.com/v1", "kind": "Mistake",
            "metadata": {"name": "mistake", "namespace": "shop"}}));
    }
    let mut tree = Tree::from([(FOLDER.to_owned(), objects)]);
    if let Some(extras) = extras {
        tree.insert(EXTRA.to_owned(), extra_objects(revision, extras));
    }
    tree
}

/// Returns the objects of the entry that comes and goes: those whose deletion deletes others, and those that have to go
/// before them.
fn extra_objects(revision: usize, extras: &Extras) -> Vec<Value> {
    let mut objects = vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": EXTRA}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": EXTRA, "namespace": EXTRA},
            "data": {"revision": revision.to_string(), "cluster": "${CLUSTER}"}}),
    ];
    if extras.has_definition {
        objects.extend([
            json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": {"name": "lamps.example.com"},
                "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "lamps", "kind": "Lamp"},
                    "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
                        {"type": "object", "properties": {"spec": {"type": "object",
                            "properties": {"bright": {"type": "boolean"}}}}}}}]}}),
            json!({"apiVersion": "example.com/v1", "kind": "Lamp", "metadata": {"name": EXTRA, "namespace": EXTRA},
                "spec": {"bright": true}}),
        ]);
    }
    objects
}

/// Returns the first difference of a member from the entry that comes and goes. `left`: the cluster has left its group
/// at some time, so that objects may have stayed behind.
pub(crate) fn missing_extra(
    member: &ClusterHandle,
    extras: &Extras,
    is_wanted: bool,
    left: bool,
) -> Option<String> {
    let key = format!("{EXTRA}/{EXTRA}");
    let map = member.stored("configmaps", &key).map(|stored| stored.read());
    let lamp = member.stored("lamps.example.com", &key);
    if is_wanted {
        let wanted = json!({"revision": REVISIONS.to_string(), "cluster": member.name()});
        return match map {
            None => Some("extra/extra is not there".to_owned()),
            Some(map) if map["data"] != wanted => Some(format!("extra/extra holds {}", map["data"])),
            Some(_) if extras.has_definition && lamp.is_none() => Some("the lamp is not there".to_owned()),
            Some(_) => None,
        };
    }
    let stayed = map.is_some() || lamp.is_some();
    (stayed && !left).then(|| "objects of extra are still there".to_owned())
}

/// Whether a restore brought back objects of the entry that comes and goes, or lost the Sync that would delete them: no
/// Sync of the management cluster names them, and nobody else deletes them. So it is if the last Sync ended while the
/// group had the entry again, which left before it was admitted to the cluster again.
pub(crate) fn is_forgotten(hub: &ClusterHandle, member: &ClusterHandle) -> bool {
    let ending = format!("-{EXTRA}-{}", member.name());
    let journal = hub.journal();
    let of_sync = |entry: &&Entry| &*entry.kind == "Sync" && entry.key().ends_with(&ending);
    let Some(ended) = journal
        .iter()
        .rfind(of_sync)
        .filter(|last| last.verb == Verb::Delete)
    else {
        return false;
    };
    let journal = member.journal();
    let is_restored = |entry: &Entry| entry.time > ended.time && &*entry.manager == RESTORED_BY;
    let of_hub = hub.journal();
    let was_wanted = |entry: &Entry| {
        let event = entry.object.read();
        let (name, note) = (&event["involvedObject"]["name"], &event["message"]);
        (&*entry.kind == "Event" && entry.time <= ended.time)
            && name
                .as_str()
                .is_some_and(|name| name == ended.object.head.name.as_ref())
            && event["involvedObject"]["uid"] == *ended.object.head.uid
            && note
                .as_str()
                .is_some_and(|note| note.contains("has the entry and selects the cluster"))
    };
    &*ended.manager == RESTORED_BY || journal.iter().any(is_restored) || of_hub.iter().any(was_wanted)
}

/// Returns the problem of a member that has lost what it had before Starling.
pub(crate) fn lost_foreign(member: &ClusterHandle, extras: &Extras) -> Option<String> {
    let mut before = extras.made_before.iter().map(|number| name_of(*number));
    if !before.any(|name| name == member.name()) {
        return None;
    }
    let journal = member.journal();
    let of_secret =
        |entry: &&Entry| &*entry.kind == "Secret" && *entry.key() == *format!("{EXTRA}/{FOREIGN}");
    let deleted = journal
        .iter()
        .filter(of_secret)
        .find(|entry| entry.verb == Verb::Delete)?;
    Some(format!(
        "the Secret of somebody else was deleted at {}",
        deleted.time
    ))
}

fn setting(name: &str, revision: usize) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "shop"},
        "data": {"revision": revision.to_string(), "cluster": "${CLUSTER}"}})
}

/// Returns the first difference of a member from the newest revision; `None`: the newest revision is applied. `left`:
/// an object of an earlier revision may have stayed behind.
pub(crate) fn missing(member: &ClusterHandle, left: bool) -> Option<String> {
    let newest = REVISIONS.to_string();
    let read = |table: &str, key: &str| member.stored(table, key).map(|stored| stored.read());
    let settings = read("configmaps", "shop/settings");
    let Some(settings) = settings else {
        return Some("shop/settings is not there".to_owned());
    };
    if settings["data"] != json!({"revision": newest, "cluster": member.name()}) {
        return Some(format!("shop/settings holds {}", settings["data"]));
    }
    let Some(web) = read("deployments.apps", "shop/web") else {
        return Some("shop/web is not there".to_owned());
    };
    let image = &web["spec"]["template"]["spec"]["containers"][0]["image"];
    if *image != format!("shop:{newest}") {
        return Some(format!("shop/web runs {image}"));
    }
    if read("configmaps", "shop/second").is_some() && !left {
        return Some("shop/second is still there".to_owned());
    }
    None
}

/// Whether an inventory on a member has an object whose grace before a prune is not over, or was not pruned since.
pub(crate) fn awaits_prune(world: &World) -> bool {
    let maps = (0..MEMBERS).filter_map(|number| world.config_maps(&name_of(number)).ok());
    maps.flatten().any(|map| {
        let text = map["data"]["inventory"].as_str().unwrap_or_default();
        let shard = format::parse(text);
        shard.is_ok_and(|shard| {
            shard
                .entries
                .entries()
                .any(|entry| entry.listed.left_at.is_some())
        })
    })
}
