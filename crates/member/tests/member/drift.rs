//! Drift is found from metadata alone, without a write, and repaired by the next apply.

use std::time::Duration;

use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use starling_api::{FIELD_MANAGER, OWNER_LABEL};
use starling_core::ids::OwnerLabel;

use crate::world::{World, key};

#[tokio::test]
async fn every_kind_of_drift_is_found_and_repaired() {
    let mut world = World::new("drift").await;
    let names = [
        "changed",
        "deleted",
        "equal",
        "field",
        "label",
        "replaced",
        "still",
        "unlabelled",
    ];
    let objects = names.map(|name| world.map(name, &json!({"k": "1", "l": "1"})));
    world.apply_ok(&objects).await;
    let report = world.find_drift().await;
    assert!(
        report.drifted.is_empty() && report.interrupted.is_none(),
        "{report:?}"
    );

    world.edit("changed", &json!({"data": {"k": "2"}})).await;
    world.delete_map("deleted").await;
    world
        .edit("equal", &json!({"data": {"k": "1", "theirs": "x"}}))
        .await;
    world.edit("field", &json!({"data": {"k": null}})).await;
    world
        .edit(
            "label",
            &json!({"metadata": {"labels": {OWNER_LABEL: "another"}}}),
        )
        .await;
    world.delete_map("replaced").await;
    world.create_map("replaced", &json!({"k": "1", "l": "1"})).await;
    world
        .edit("unlabelled", &json!({"metadata": {"labels": null}}))
        .await;

    let version = world.version("changed").await;
    let before = world.member.requests();
    let report = world.find_drift().await;
    let found: Vec<_> = report.drifted.iter().map(|key| key.name.as_str()).collect();
    assert_eq!(found, ["changed", "deleted", "field", "replaced", "unlabelled"]);
    // An object with the label of another owner is not drift, and is not restored.
    assert_eq!(
        report.foreign.into_iter().collect::<Vec<_>>(),
        [(world.map_key("label"), OwnerLabel::new("another"))]
    );
    assert_eq!(
        world.member.requests() - before,
        5,
        "one list, and one request for each object missing from it"
    );
    assert_eq!(world.version("changed").await, version);

    world.drifted = report.drifted;
    assert_eq!(
        world.apply_ok(&objects).await,
        [
            "configured changed",
            "created deleted",
            "configured field",
            "configured replaced",
            "configured unlabelled"
        ]
    );
    for name in names {
        assert_eq!(world.value(name, "k").await.as_deref(), Some("1"), "{name}");
    }
    assert_eq!(world.value("equal", "theirs").await.as_deref(), Some("x"));
    let report = world.find_drift().await;
    assert!(report.drifted.is_empty(), "{report:?}");
}

#[tokio::test]
async fn each_kind_is_one_list_however_many_namespaces() {
    let mut world = World::new("driftkinds").await;
    world.create_namespace("t-driftkinds-two").await;
    let objects = [
        world.map("a", &json!({})),
        world.rendered("v1", "ConfigMap", "t-driftkinds-two", "a", json!({})),
        world.rendered(
            "v1",
            "Secret",
            &world.namespace,
            "s",
            json!({"stringData": {"k": "v"}}),
        ),
        world.rendered(
            "rbac.authorization.k8s.io/v1",
            "ClusterRole",
            "",
            "driftkinds",
            json!({"rules": []}),
        ),
    ];
    world.apply_ok(&objects).await;
    let before = world.member.requests();
    assert!(world.find_drift().await.drifted.is_empty());
    assert_eq!(world.member.requests() - before, 3);
}

/// Guards against a member that was set back to a state from before a prune: the pruned object returned with its line
/// in the inventory, and was in step for ever.
#[tokio::test]
async fn an_object_that_returns_without_a_record_is_found() {
    let mut world = World::new("returned").await;
    let objects = ["x", "y"].map(|name| world.map(name, &json!({"value": "1"})));
    world.apply_ok(&objects).await;
    assert!(world.find_drift().await.unrecorded.is_empty());
    let y = world.map_key("y");
    world.records.remove(&y);
    // A controller copies the label.
    let copy = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
        "name": "copy", "labels": {"starling.dev/owner": world.owner}}});
    let copy = serde_json::from_value(copy).unwrap();
    world.maps().create(&Default::default(), &copy).await.unwrap();
    let report = world.find_drift().await;
    assert_eq!(report.unrecorded, [y].into());
    assert!(report.drifted.is_empty(), "{report:?}");
}

/// More objects than fit on a page.
#[tokio::test]
async fn pages_are_followed() {
    let mut world = World::new("pages").await;
    let objects: Vec<_> = (0..600)
        .map(|n| world.map(&format!("p{n:03}"), &json!({"k": "1"})))
        .collect();
    world.apply_ok(&objects).await;
    world.edit("p000", &json!({"data": {"k": "2"}})).await;
    world.edit("p599", &json!({"data": {"k": "2"}})).await;
    let before = world.member.requests();
    let report = world.find_drift().await;
    let found: Vec<_> = report.drifted.iter().map(|key| key.name.as_str()).collect();
    assert_eq!(found, ["p000", "p599"]);
    assert_eq!(world.member.requests() - before, 2);
}

/// Guards against an unreadable list: an API server writes `null` if it has nothing to list.
#[tokio::test]
async fn an_empty_list_is_drift() {
    let mut world = World::new("driftlast").await;
    world.apply_ok(&[world.map("last", &json!({"k": "1"}))]).await;
    world.delete_map("last").await;
    let report = world.find_drift().await;
    assert!(report.failures.is_empty(), "{report:?}");
    assert_eq!(
        report.drifted.into_iter().collect::<Vec<_>>(),
        [world.map_key("last")]
    );
}

/// The definition of a kind was deleted, and all objects of the kind with it.
#[tokio::test]
async fn objects_of_a_kind_that_is_no_longer_served_have_drifted() {
    let mut world = World::new("driftgone").await;
    let gone = key("gone.example.test", "Gone", &world.namespace, "g");
    world.apply_ok(&[world.map("a", &json!({}))]).await;
    let record = world.records[&world.map_key("a")].clone();
    world.records.insert(gone.clone(), record);
    let report = world.find_drift().await;
    assert!(
        report.failures.is_empty() && report.interrupted.is_none(),
        "{report:?}"
    );
    assert_eq!(report.drifted.into_iter().collect::<Vec<_>>(), [gone]);
}

/// Waits until a write has another time than those before it: `managedFields` has seconds.
async fn next_second() {
    let second = Timestamp::now().as_second();
    while Timestamp::now().as_second() == second {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Guards against values that go back under our own name: the member was restored from a backup, or a controller with a
/// wrong kubeconfig wrote them. Our entry then has the same fields, and another time.
#[tokio::test]
async fn an_older_value_under_our_own_name_is_drift() {
    let mut world = World::new("driftback").await;
    let objects = |value: &str| {
        [
            world.map("back", &json!({"k": value})),
            world.map("same", &json!({"k": "1"})),
        ]
    };
    let (older, newer) = (objects("1"), objects("2"));
    world.apply_ok(&older).await;
    world.apply_ok(&newer).await;
    let fields = world.records[&world.map_key("back")].fields_digest.clone();
    next_second().await;
    let as_starling = PatchParams::apply(FIELD_MANAGER).force();
    for object in &older {
        let body: Value = serde_json::from_slice(&object.body).unwrap();
        let patch = Patch::Apply(body);
        world
            .maps()
            .patch(&object.key.name, &as_starling, &patch)
            .await
            .unwrap();
    }
    assert_eq!(world.value("back", "k").await.as_deref(), Some("1"));

    let before = world.member.requests();
    let report = world.find_drift().await;
    assert_eq!(world.member.requests() - before, 1, "one list, as without drift");
    // An apply that changes nothing keeps the time.
    let found: Vec<_> = report.drifted.iter().map(|key| key.name.as_str()).collect();
    assert_eq!(found, ["back"]);

    world.drifted = report.drifted;
    assert_eq!(world.apply_ok(&newer).await, ["configured back"]);
    assert_eq!(world.value("back", "k").await.as_deref(), Some("2"));
    assert_eq!(
        world.records[&world.map_key("back")].fields_digest,
        fields,
        "the fields are the same"
    );
    let report = world.find_drift().await;
    assert!(report.drifted.is_empty(), "{report:?}");
}

/// Guards against a request without a known response, after which the Sync returned to the release that its status
/// reports as applied: the values are those of the other release, and may have the same fields and, to the second, the
/// same time.
#[tokio::test]
async fn an_unconfirmed_object_that_was_written_since_is_drift() {
    let mut world = World::new("driftunconfirmed").await;
    world
        .apply_ok(&["sent", "unsent"].map(|name| world.map(name, &json!({"k": "1"}))))
        .await;
    let before = world.version("sent").await;
    world
        .apply_ok(&[
            world.map("sent", &json!({"k": "2"})),
            world.map("unsent", &json!({"k": "1"})),
        ])
        .await;
    for (name, version) in [("sent", Some(before)), ("unsent", None)] {
        let key = world.map_key(name);
        let record = world.records.get_mut(&key).unwrap();
        record.digest = String::new();
        record.resource_version = version.unwrap_or(record.resource_version.clone());
    }
    let report = world.find_drift().await;
    assert_eq!(
        report.drifted.into_iter().collect::<Vec<_>>(),
        [world.map_key("sent")]
    );
}
