use kube::core::DeserializeGuard;
use serde_json::json;
use starling_api::SyncStatus;

use super::super::cache::Event;
use super::*;

/// Returns a Sync of group `of.0` and entry `of.1` on a cluster.
fn sync(name: &str, version: u64, of: (&str, &str), cluster: &str, depends_on: &[&str]) -> SyncResource {
    let depends_on: Vec<_> = depends_on.iter().map(|name| json!({"name": name})).collect();
    let mut sync = json!({
        "apiVersion": "starling.dev/v1alpha1", "kind": "Sync",
        "metadata": {"namespace": "ns", "name": name, "resourceVersion": version.to_string(),
            "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"clusterRef": {"name": cluster}, "sourceRef": {"name": "s"}, "dependsOn": depends_on},
    });
    if !of.0.is_empty() {
        sync["spec"]["groupRef"] = json!({"name": of.0, "entry": of.1});
    }
    serde_json::from_value(sync).unwrap()
}

fn plain(name: &str, version: u64, cluster: &str) -> SyncResource {
    sync(name, version, ("g", "app"), cluster, &[])
}

fn created(mut sync: SyncResource, at: &str) -> SyncResource {
    sync.metadata.creation_timestamp = serde_json::from_value(json!(at)).unwrap();
    sync
}

fn read(sync: SyncResource) -> DeserializeGuard<SyncResource> {
    DeserializeGuard(Ok(sync))
}

/// Returns `cluster/entry=name@version` for each Sync of a group.
fn listed(syncs: &SyncCache, group: &str) -> Vec<String> {
    let of_group = syncs.of_group(&ObjectKey::new("ns", group));
    let list = of_group.iter().map(|(cluster, entry, sync)| {
        let version = sync.resource_version().unwrap();
        format!("{cluster}/{entry}={}@{version}", sync.name_any())
    });
    list.collect()
}

fn cache() -> SyncCache {
    SyncCache::indexed_by(|_| None)
}

#[test]
fn syncs_stand_with_their_group_by_cluster_and_entry() {
    let syncs = cache();
    for (name, of, cluster) in [
        ("b", ("g", "db"), "c1"),
        ("a", ("g", "app"), "c1"),
        ("c", ("g", "app"), "c0"),
        ("other", ("h", "app"), "c0"),
        ("alone", ("", ""), "c0"),
    ] {
        syncs.observe_write(sync(name, 1, of, cluster, &[]));
    }
    assert_eq!(listed(&syncs, "g"), ["c0/app=c@1", "c1/app=a@1", "c1/db=b@1"]);
    assert_eq!(listed(&syncs, "h"), ["c0/app=other@1"]);
    let of_group = syncs.of_group(&ObjectKey::new("ns", "g"));
    assert_eq!(of_group.get("c1", "db").unwrap().name_any(), "b");
    assert!(of_group.get("c0", "db").is_none() && of_group.get("c9", "app").is_none());
    assert_eq!(of_group.on("c1").count(), 2);
    assert!(syncs.of_group(&ObjectKey::new("elsewhere", "g")).is_empty());
}

#[test]
fn events_out_of_order_do_not_bring_back_what_was() {
    let syncs = cache();
    syncs.observe_write(plain("a", 5, "c1"));
    syncs.observe_event(Event::Apply(read(plain("a", 4, "c1"))));
    assert_eq!(listed(&syncs, "g"), ["c1/app=a@5"]);
    syncs.observe_event(Event::Delete(read(plain("a", 7, "c1"))));
    syncs.observe_write(plain("a", 6, "c1"));
    assert!(listed(&syncs, "g").is_empty());
    syncs.observe_write(plain("a", 8, "c1"));
    syncs.observe_delete(&ObjectKey::new("ns", "a"));
    assert!(listed(&syncs, "g").is_empty());
    assert!(
        syncs.index(|index| index.by_group.is_empty()),
        "nothing is left of it"
    );
}

#[test]
fn of_two_with_one_identity_the_older_counts_until_it_goes() {
    let syncs = cache();
    let younger = || created(plain("a-copy", 9, "c1"), "2026-01-02T00:00:00Z");
    syncs.observe_write(younger());
    assert_eq!(listed(&syncs, "g"), ["c1/app=a-copy@9"]);
    syncs.observe_write(plain("z", 1, "c1"));
    assert_eq!(listed(&syncs, "g"), ["c1/app=z@1"]);
    syncs.observe_write(plain("z", 10, "c1"));
    assert_eq!(listed(&syncs, "g"), ["c1/app=z@10"]);
    // Syncs of the same age are ordered by name.
    syncs.observe_write(plain("b", 11, "c1"));
    assert_eq!(listed(&syncs, "g"), ["c1/app=b@11"]);
    let of_group = syncs.of_group(&ObjectKey::new("ns", "g"));
    assert_eq!(
        (of_group.values().count(), of_group.with_copies().count()),
        (1, 3)
    );
    for (name, at, left) in [("b", 12, "c1/app=z@10"), ("z", 13, "c1/app=a-copy@9")] {
        syncs.observe_event(Event::Delete(read(plain(name, at, "c1"))));
        assert_eq!(listed(&syncs, "g"), [left]);
    }
}

#[test]
fn a_sync_that_changes_its_place_stands_in_one() {
    let syncs = cache();
    syncs.observe_write(plain("a", 1, "c1"));
    syncs.observe_write(plain("b", 2, "c1"));
    syncs.observe_write(plain("a", 3, "c2"));
    assert_eq!(listed(&syncs, "g"), ["c1/app=b@2", "c2/app=a@3"]);
    // A renamed group is another group, and gets new Syncs.
    syncs.observe_write(sync("a", 4, ("renamed", "app"), "c2", &[]));
    syncs.observe_write(sync("b", 5, ("", ""), "c1", &[]));
    assert!(listed(&syncs, "g").is_empty());
    assert_eq!(listed(&syncs, "renamed"), ["c2/app=a@4"]);
}

#[test]
fn a_new_list_replaces_what_was_known() {
    let syncs = cache();
    for (name, cluster) in [("a", "c1"), ("b", "c2"), ("c", "c3")] {
        syncs.observe_event(Event::Apply(read(plain(name, 5, cluster))));
    }
    syncs.begin_list();
    syncs.receive(read(plain("b", 5, "c2")));
    syncs.receive(read(plain("c", 6, "c9")));
    let written = plain("d", 7, "c4");
    syncs.observe_write(written);
    assert_eq!(
        listed(&syncs, "g"),
        ["c1/app=a@5", "c2/app=b@5", "c3/app=c@5", "c4/app=d@7"],
        "until the list is complete"
    );
    syncs.complete_list("6");
    assert_eq!(listed(&syncs, "g"), ["c2/app=b@5", "c4/app=d@7", "c9/app=c@6"]);
}

#[test]
fn what_a_reconcile_holds_stays_as_it_was_and_shares_what_did_not_change() {
    let syncs = cache();
    for (name, cluster) in [("a", "c1"), ("b", "c2")] {
        syncs.observe_write(plain(name, 1, cluster));
    }
    let key = ObjectKey::new("ns", "g");
    let held = syncs.of_group(&key);
    syncs.observe_write(plain("a", 2, "c1"));
    let now = syncs.of_group(&key);
    assert_eq!(
        held.get("c1", "app").unwrap().resource_version().as_deref(),
        Some("1")
    );
    assert_eq!(
        now.get("c1", "app").unwrap().resource_version().as_deref(),
        Some("2")
    );
    let shared: Vec<bool> = held
        .clusters()
        .zip(now.clusters())
        .map(|((_, before), (_, after))| Arc::ptr_eq(before, after))
        .collect();
    assert_eq!(shared, [false, true]);
    assert!(Arc::ptr_eq(&now, &syncs.of_group(&key)));
}

#[test]
fn who_depends_on_a_sync_is_known_while_it_says_so() {
    let syncs = cache();
    let on = |name: &str| {
        let names = syncs.dependents(&ObjectKey::new("ns", name));
        names.into_iter().collect::<Vec<_>>().join(" ")
    };
    syncs.observe_write(sync("a", 1, ("g", "app"), "c1", &["db", "base"]));
    syncs.observe_write(sync("b", 2, ("", ""), "c1", &["db"]));
    assert_eq!(
        (on("db"), on("base"), on("a")),
        ("a b".into(), "a".into(), String::new())
    );
    syncs.observe_write(sync("a", 3, ("g", "app"), "c1", &["base"]));
    assert_eq!((on("db"), on("base")), ("b".into(), "a".into()));
    // It has objects left to delete that may need those of the Sync that it depended on.
    let mut leaving = sync("b", 4, ("", ""), "c1", &[]);
    let status = SyncStatus {
        last_depends_on: vec!["db".into()],
        ..SyncStatus::default()
    };
    leaving.status = Some(status);
    syncs.observe_write(leaving);
    assert_eq!((on("db"), on("base")), ("b".into(), "a".into()));
    syncs.observe_write(sync("b", 5, ("", ""), "c1", &[]));
    assert_eq!((on("db"), on("base")), (String::new(), "a".into()));
    syncs.observe_event(Event::Delete(read(sync("a", 6, ("g", "app"), "c1", &["base"]))));
    syncs.observe_delete(&ObjectKey::new("ns", "b"));
    assert!(syncs.index(|index| index.dependents.is_empty()));
}
