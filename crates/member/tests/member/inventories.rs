//! The inventory on the member: shards, loss, damage, and their effect on an apply.

use serde_json::json;
use starling_core::apply::PruneBlocker;
use starling_core::inventory::{Inventory, InventoryEntry};
use starling_member::{MemberError, MemberLimits};

use crate::world::{World, key, soon};

fn entries(world: &World, names: std::ops::Range<usize>, uid: &str) -> Inventory {
    let id = |n| key("", "ConfigMap", &world.namespace, &format!("object-{n:03}"));
    names.map(|n| InventoryEntry::new(id(n), uid)).collect()
}

async fn shards(world: &World) -> usize {
    let maps = world
        .system_maps()
        .list_metadata(&kube::api::ListParams::default())
        .await
        .unwrap();
    let prefix = format!("starling-inventory-{}", world.owner);
    maps.items
        .iter()
        .filter(|map| {
            map.metadata
                .name
                .as_deref()
                .is_some_and(|name| name.starts_with(&prefix))
        })
        .count()
}

#[tokio::test]
async fn an_inventory_grows_and_shrinks_over_shards() {
    let limits = MemberLimits {
        shard_bytes: 1024,
        ..MemberLimits::default()
    };
    let world = World::with_limits("shards", limits).await;
    // Grow, gain UIDs, shift in both directions, shrink to one shard, become empty.
    let steps = [
        entries(&world, 0..10, ""),
        entries(&world, 0..100, ""),
        entries(&world, 0..100, "11111111-2222-3333-4444-555555555555"),
        entries(&world, 50..150, "11111111-2222-3333-4444-555555555555"),
        entries(&world, 60..65, ""),
        Inventory::new(),
    ];
    let mut counts = Vec::new();
    for wanted in steps {
        world
            .member
            .write_inventory(&world.owner, &wanted, soon())
            .await
            .unwrap();
        let read = world.inventory().await;
        assert!(
            read.claims_the_same(&wanted),
            "{} entries, wanted {}",
            read.len(),
            wanted.len()
        );
        counts.push(shards(&world).await);
        let before = world.member.requests();
        world
            .member
            .write_inventory(&world.owner, &read, soon())
            .await
            .unwrap();
        let reads = if counts.last() > Some(&1) {
            counts.last().unwrap() + 1
        } else {
            1
        };
        assert_eq!(
            world.member.requests() - before,
            reads as u64,
            "an unchanged inventory is not written"
        );
    }
    assert!(counts[1] > 1 && counts[2] > counts[1], "{counts:?}");
    assert_eq!((counts[0], counts[4], counts[5]), (1, 1, 0), "{counts:?}");
}

#[tokio::test]
async fn an_apply_over_several_shards_converges() {
    let limits = MemberLimits {
        shard_bytes: 512,
        ..MemberLimits::default()
    };
    let mut world = World::with_limits("shardapply", limits).await;
    let objects: Vec<_> = (0..30)
        .map(|n| world.map(&format!("o{n:02}"), &json!({})))
        .collect();
    world.apply_ok(&objects).await;
    assert!(shards(&world).await > 2);
    // This many deletions need an approval, and the inventory keeps the entries.
    let blocked = world.apply(&objects[..2]).await;
    let Some(PruneBlocker::Budget(deletions)) = blocked.prune_blocker else {
        panic!("not held: {blocked:?}")
    };
    assert_eq!(
        (deletions.deletions, deletions.of, blocked.deleted.len()),
        (28, 30, 0)
    );
    assert_eq!(world.inventory_names().await.len(), 30);
    world.approved = [deletions.digest].into_iter().collect();
    assert_eq!(world.apply_ok(&objects[..2]).await.len(), 28);
    assert_eq!(
        (world.inventory_names().await, shards(&world).await),
        (vec!["o00".into(), "o01".into()], 1)
    );
}

#[tokio::test]
async fn after_a_lost_inventory_rendered_objects_are_adopted_and_nothing_is_deleted() {
    let mut world = World::new("lostinventory").await;
    let objects = [world.map("a", &json!({})), world.map("b", &json!({"k": "1"}))];
    world.apply_ok(&objects).await;
    let name = format!("starling-inventory-{}", world.owner);
    world
        .system_maps()
        .delete(&name, &kube::api::DeleteParams::default())
        .await
        .unwrap();
    let version = world.version("a").await;
    assert_eq!(world.apply_ok(&objects[..1]).await, Vec::<String>::new());
    assert_eq!(world.version("a").await, version);
    assert_eq!(world.value("b", "k").await.as_deref(), Some("1"));
    assert_eq!(world.inventory_names().await, ["a"]);
    assert_ne!(
        world
            .inventory()
            .await
            .uid(&world.map_key("a"))
            .map(|uid| uid.as_str()),
        Some("")
    );
}

#[tokio::test]
async fn an_inventory_that_cannot_be_read_stops_the_attempt_before_any_write() {
    let mut world = World::new("damaged").await;
    world.apply_ok(&[world.map("a", &json!({"k": "1"}))]).await;
    let name = format!("starling-inventory-{}", world.owner);
    let future = json!({"data": {"inventory": "starling-inventory/2 shards=1\n"}});
    let patch = kube::api::Patch::Merge(&future);
    world
        .system_maps()
        .patch(&name, &kube::api::PatchParams::default(), &patch)
        .await
        .unwrap();
    let outcome = world
        .apply(&[world.map("a", &json!({"k": "2"})), world.map("b", &json!({}))])
        .await;
    assert!(
        matches!(outcome.interrupted, Some(MemberError::Inventory { .. })),
        "{outcome:?}"
    );
    assert_eq!(world.value("a", "k").await.as_deref(), Some("1"));
    assert!(world.maps().get_opt("b").await.unwrap().is_none());
}
