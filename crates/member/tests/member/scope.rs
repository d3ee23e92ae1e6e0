//! Objects of cluster-scoped kinds whose manifest has a namespace: the member has them without one, and so have the
//! inventory and the records.

use std::collections::BTreeSet;

use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use serde_json::{Value, json};
use starling_core::inventory::InventoryEntry;
use starling_core::object::{ObjectId, RenderedObject, RenderedSet};
use starling_core::scope::aliases;
use starling_member::MemberError;

use crate::world::{World, key, soon};

/// The group of the definitions of one test.
fn group(world: &World) -> String {
    format!("{}.example.test", world.namespace)
}

/// A definition of the cluster-scoped kind Gadget.
fn definition(world: &World) -> RenderedObject {
    let group = group(world);
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let spec = json!({"spec": {"group": group, "scope": "Cluster",
        "names": {"plural": "gadgets", "singular": "gadget", "kind": "Gadget", "listKind": "GadgetList"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
    world.rendered(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        "",
        &format!("gadgets.{group}"),
        spec,
    )
}

fn gadget(world: &World, namespace: &str, name: &str) -> RenderedObject {
    let version = format!("{}/v1", group(world));
    world.rendered(&version, "Gadget", namespace, name, json!({"spec": {"size": 1}}))
}

fn gadget_key(world: &World, namespace: &str, name: &str) -> ObjectId {
    key(&group(world), "Gadget", namespace, name)
}

/// The Gadget of a name on the member.
async fn live(world: &World, name: &str) -> Option<Value> {
    let kind = GroupVersionKind::gvk(&group(world), "v1", "Gadget");
    let api: Api<DynamicObject> = Api::all_with(world.other.clone(), &ApiResource::from_gvk(&kind));
    let found = api.get_opt(name).await.unwrap()?;
    Some(serde_json::to_value(found).unwrap())
}

async fn inventory_keys(world: &World) -> Vec<String> {
    let inventory = world.inventory().await;
    inventory.iter().map(|(key, _)| key.to_string()).collect()
}

#[tokio::test]
async fn a_namespace_of_a_cluster_scoped_object_is_cleared() {
    let mut world = World::new("scope").await;
    let mut objects = vec![
        definition(&world),
        gadget(&world, "shop", "w"),
        world.rendered(
            "scheduling.k8s.io/v1",
            "PriorityClass",
            "shop",
            "t-scope",
            json!({"value": 7}),
        ),
        world.map("a", &json!({})),
    ];
    let crd = objects[0].key.name.clone();
    let mut created = world.apply_ok(&objects).await;
    created.sort();
    let mut expected = vec![
        "created a".to_owned(),
        format!("created {crd}"),
        "created t-scope".into(),
        "created w".into(),
    ];
    expected.sort();
    assert_eq!(created, expected);
    let first = live(&world, "w").await.unwrap();
    assert_eq!(first["metadata"].get("namespace"), None);
    let keys = inventory_keys(&world).await;
    assert!(
        keys.contains(&"Gadget w".to_owned()) && keys.contains(&"PriorityClass t-scope".to_owned()),
        "{keys:?}"
    );

    // The same render changes nothing, also with another namespace or none, and in a process that knows nothing.
    let outcome = world.apply(&objects).await;
    assert!(outcome.is_complete() && outcome.skipped == 4, "{outcome:?}");
    for namespace in ["other", ""] {
        objects[1] = gadget(&world, namespace, "w");
        let outcome = world.apply(&objects).await;
        assert!(outcome.is_complete() && outcome.skipped == 4, "{outcome:?}");
    }
    objects[1] = gadget(&world, "shop", "w");
    world.restarted();
    let mut unchanged = world.apply_ok(&objects).await;
    unchanged.sort();
    let expected: Vec<_> = expected
        .iter()
        .map(|line| line.replace("created", "unchanged"))
        .collect();
    assert_eq!(unchanged, expected);
    assert_eq!(
        live(&world, "w").await.unwrap()["metadata"]["uid"],
        first["metadata"]["uid"]
    );
    assert!(world.find_drift().await.drifted.is_empty());

    // It is pruned as any other.
    let kept = [objects[0].clone(), objects[3].clone()];
    let done = world.apply_ok(&kept).await;
    assert!(done.contains(&"deleted w".to_owned()), "{done:?}");
    assert_eq!(live(&world, "w").await, None);
    assert!(!inventory_keys(&world).await.contains(&"Gadget w".to_owned()));
}

/// The scope comes from the member if the definition is not a part of the render.
#[tokio::test]
async fn the_scope_is_discovered() {
    let mut world = World::new("discovered").await;
    world.apply_ok(&[definition(&world)]).await;
    let mut other = World::new("discovered-2").await;
    let version = format!("{}/v1", group(&world));
    let gadget = other.rendered(&version, "Gadget", "shop", "w", json!({}));
    assert_eq!(other.apply_ok(std::slice::from_ref(&gadget)).await, ["created w"]);
    assert_eq!(other.find_drift().await.drifted, BTreeSet::new());
    let requests = other.member.requests();
    let outcome = other.apply(std::slice::from_ref(&gadget)).await;
    assert!(outcome.is_complete() && outcome.skipped == 1, "{outcome:?}");
    assert_eq!(
        other.member.requests() - requests,
        1,
        "the inventory; the kind is known"
    );
    let outcome = other.delete(&BTreeSet::new()).await;
    assert!(outcome.is_complete() && outcome.deleted.len() == 1, "{outcome:?}");
    assert_eq!(live(&world, "w").await, None);
}

#[tokio::test]
async fn two_manifests_of_one_object_are_refused_before_anything_is_sent() {
    let world = World::new("same").await;
    let objects = vec![
        definition(&world),
        gadget(&world, "a", "w"),
        gadget(&world, "b", "w"),
    ];
    let set = RenderedSet {
        digest: String::new(),
        objects,
        secrets: Default::default(),
    };
    let error = world.member.scoped(&set, soon()).await.unwrap_err();
    assert!(matches!(error, MemberError::SameObject(_)), "{error:?}");
    assert_eq!(
        error.to_string(),
        "Gadget a/w and Gadget b/w are one object, because the kind is cluster-scoped and metadata.namespace has no \
         effect: remove one of them, or change its metadata.name"
    );
    assert_eq!(world.member.requests(), 0);
}

/// Replaces the line of the Gadget `w` by a claim with a namespace, in a new process.
async fn claim_with_namespace(world: &mut World) {
    let mut inventory = world.inventory().await;
    assert!(inventory.remove(&gadget_key(world, "", "w")));
    inventory.insert(InventoryEntry::new(gadget_key(world, "shop", "w"), ""));
    world
        .member
        .write_inventory(&world.owner, &inventory, soon())
        .await
        .unwrap();
    world.restarted();
}

/// An attempt of a version that knew no scopes claimed the object with its namespace.
#[tokio::test]
async fn an_inventory_entry_with_a_namespace_is_the_same_object() {
    let mut world = World::new("oldlines").await;
    let objects = [
        definition(&world),
        gadget(&world, "shop", "w"),
        gadget(&world, "", "v"),
    ];
    world.apply_ok(&objects).await;
    let uid = live(&world, "w").await.unwrap()["metadata"]["uid"].clone();
    claim_with_namespace(&mut world).await;
    let done = world.apply_ok(&objects).await;
    // A claim without a response is applied again.
    assert!(
        done.contains(&"configured w".to_owned()) && done.len() == 3,
        "{done:?}"
    );
    assert_eq!(live(&world, "w").await.unwrap()["metadata"]["uid"], uid);
    let keys = inventory_keys(&world).await;
    assert_eq!(
        keys.iter()
            .filter(|key| key.starts_with("Gadget"))
            .collect::<Vec<_>>(),
        ["Gadget v", "Gadget w"]
    );

    // Without the object in the render, the old line is the object to delete.
    claim_with_namespace(&mut world).await;
    let outcome = world.apply(&[objects[0].clone(), objects[2].clone()]).await;
    assert!(outcome.failures.is_empty(), "{outcome:?}");
    assert_eq!(outcome.deleted, [gadget_key(&world, "", "w")]);
    assert_eq!(live(&world, "w").await, None);

    // And so it is at the end of the Sync: a sibling that renders it with any namespace keeps it.
    world.apply_ok(&objects).await;
    let uid = live(&world, "w").await.unwrap()["metadata"]["uid"].clone();
    claim_with_namespace(&mut world).await;
    let siblings: BTreeSet<ObjectId> = aliases(&gadget_key(&world, "elsewhere", "w"))
        .chain([objects[0].key.clone()])
        .collect();
    let outcome = world.delete(&siblings).await;
    assert!(outcome.is_complete(), "{outcome:?}");
    assert_eq!(outcome.deleted, [gadget_key(&world, "", "v")]);
    assert_eq!(live(&world, "w").await.unwrap()["metadata"]["uid"], uid);
}
