//! Which objects a prune deletes, and which it does not.

use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use starling_api::OWNER_LABEL;
use starling_core::apply::PruneBlocker;

use crate::world::World;

#[tokio::test]
async fn only_objects_that_left_the_render_are_deleted() {
    let mut world = World::new("prune").await;
    let objects = [world.map("a", &json!({})), world.map("b", &json!({}))];
    world.apply_ok(&objects).await;
    world.create_map("theirs", &json!({})).await;
    // Copied labels are no proof of ownership.
    world
        .edit(
            "theirs",
            &json!({"metadata": {"labels": {OWNER_LABEL: world.owner}}}),
        )
        .await;
    assert_eq!(world.apply_ok(&objects[..1]).await, ["deleted b"]);
    assert_eq!(world.inventory_names().await, ["a"]);
    let remaining: Vec<_> = world
        .maps()
        .list_metadata(&kube::api::ListParams::default())
        .await
        .unwrap()
        .items
        .into_iter()
        .filter_map(|map| map.metadata.name)
        .collect();
    assert_eq!(remaining, ["a", "theirs"]);
}

#[tokio::test]
async fn an_empty_render_deletes_nothing_unless_allowed() {
    let mut world = World::new("empty").await;
    let objects = [world.map("a", &json!({"k": "1"}))];
    world.apply_ok(&objects).await;
    let outcome = world.apply(&[]).await;
    assert!(outcome.is_complete() && outcome.deleted.is_empty());
    assert_eq!(outcome.prune_blocker, Some(PruneBlocker::EmptyRender));
    assert_eq!(world.value("a", "k").await.as_deref(), Some("1"));
    assert_eq!(world.inventory_names().await, ["a"]);

    world.allow_empty = true;
    assert_eq!(world.apply_ok(&[]).await, ["deleted a"]);
    let name = format!("starling-inventory-{}", world.owner);
    assert!(
        world.system_maps().get_opt(&name).await.unwrap().is_none(),
        "an empty inventory is deleted"
    );
}

#[tokio::test]
async fn without_prune_the_entry_stays_for_later() {
    let mut world = World::new("noprune").await;
    let objects = [world.map("a", &json!({})), world.map("b", &json!({"k": "1"}))];
    world.apply_ok(&objects).await;
    world.prune = false;
    let outcome = world.apply(&objects[..1]).await;
    assert_eq!(
        (outcome.prune_blocker, outcome.deleted.len()),
        (Some(PruneBlocker::Off), 0)
    );
    assert_eq!(world.value("b", "k").await.as_deref(), Some("1"));
    world.prune = true;
    assert_eq!(world.apply_ok(&objects[..1]).await, ["deleted b"]);
}

#[tokio::test]
async fn an_object_recreated_by_another_writer_is_not_deleted() {
    let mut world = World::new("recreated").await;
    let objects = [world.map("a", &json!({})), world.map("b", &json!({}))];
    world.apply_ok(&objects).await;
    world.delete_map("b").await;
    let uid = world.create_map("b", &json!({"k": "theirs"})).await;
    assert_eq!(world.apply_ok(&objects[..1]).await, ["released b"]);
    assert_eq!(world.maps().get("b").await.unwrap().metadata.uid, Some(uid));
    assert_eq!(world.inventory_names().await, ["a"]);
}

#[tokio::test]
async fn an_object_that_is_gone_is_released() {
    let mut world = World::new("gone").await;
    let objects = [world.map("a", &json!({})), world.map("b", &json!({}))];
    world.apply_ok(&objects).await;
    world.delete_map("b").await;
    assert_eq!(world.apply_ok(&objects[..1]).await, ["released b"]);
}

/// Guards against the move of an object from one Sync to another: the first must not delete what the second applies.
#[tokio::test]
async fn an_object_that_was_handed_over_is_not_deleted() {
    let mut from = World::new("handed-from").await;
    let mut to = World::new("handed-to").await;
    to.namespace.clone_from(&from.namespace);
    let objects = [from.map("a", &json!({})), from.map("b", &json!({"k": "1"}))];
    from.apply_ok(&objects).await;
    assert_eq!(
        to.apply_ok(&[to.map("b", &json!({"k": "1"}))]).await,
        ["configured b"]
    );
    assert_eq!(from.apply_ok(&objects[..1]).await, ["released b"]);
    assert_eq!(from.value("b", "k").await.as_deref(), Some("1"));
}

#[tokio::test]
async fn nothing_is_deleted_while_something_fails() {
    let mut world = World::new("failing").await;
    let objects = [world.map("a", &json!({})), world.map("b", &json!({"k": "1"}))];
    world.apply_ok(&objects).await;
    let broken = world.rendered("v1", "ConfigMap", "t-failing-none", "c", json!({}));
    let outcome = world.apply(&[objects[0].clone(), broken]).await;
    assert_eq!((outcome.failures.len(), outcome.deleted.len()), (1, 0));
    assert_eq!(world.value("b", "k").await.as_deref(), Some("1"));
}

/// A process that died between the apply and the write of the inventory leaves a claim without UID.
#[tokio::test]
async fn a_claim_without_uid_deletes_only_applied_objects() {
    let mut world = World::new("claim").await;
    let objects = [
        world.map("a", &json!({})),
        world.map("b", &json!({})),
        world.map("c", &json!({})),
    ];
    world.apply_ok(&objects[..2]).await;
    // `c` is a foreign object with a copied owner label; `b` has only the claim.
    world.create_map("c", &json!({})).await;
    world
        .edit("c", &json!({"metadata": {"labels": {OWNER_LABEL: world.owner}}}))
        .await;
    let claims = ["a", "b", "c"].map(|name| starling_core::inventory::Entry {
        key: world.map_key(name),
        uid: String::new(),
    });
    let claims = claims.into_iter().collect();
    world
        .member
        .write_inventory(&world.owner, &claims, crate::world::soon())
        .await
        .unwrap();
    assert_eq!(world.apply_ok(&objects[..1]).await, ["deleted b", "released c"]);
    assert!(world.maps().get_opt("c").await.unwrap().is_some());
    let inventory = world.inventory().await;
    assert_eq!(
        inventory.uid(&world.map_key("a")),
        Some(world.records[&world.map_key("a")].uid.as_str())
    );
}

/// An object whose deletion a finalizer blocks leaves the inventory once the member has accepted the delete.
#[tokio::test]
async fn a_finalizer_does_not_block_the_next_attempt() {
    let mut world = World::new("finalizer").await;
    let objects = [world.map("a", &json!({})), world.map("b", &json!({}))];
    world.apply_ok(&objects).await;
    world
        .edit("b", &json!({"metadata": {"finalizers": ["example.test/hold"]}}))
        .await;
    assert_eq!(world.apply_ok(&objects[..1]).await, ["deleted b"]);
    assert_eq!(world.apply_ok(&objects[..1]).await, Vec::<String>::new());
    assert!(
        world
            .maps()
            .get("b")
            .await
            .unwrap()
            .metadata
            .deletion_timestamp
            .is_some()
    );
    let release = json!({"metadata": {"finalizers": null}});
    let maps: Api<k8s_openapi::api::core::v1::ConfigMap> = world.maps();
    maps.patch("b", &PatchParams::default(), &Patch::Merge(release))
        .await
        .unwrap();
}
