//! Drift is found from metadata alone, without a write, and repaired by the next apply.

use serde_json::json;
use starling_api::OWNER_LABEL;

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
        [(world.map_key("label"), "another".to_owned())]
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
