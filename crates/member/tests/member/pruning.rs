//! Which objects a prune deletes, and which it does not.

use std::collections::BTreeSet;
use std::time::Duration;

use http::{Method, StatusCode};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::Role;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt as _;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams,
};
use serde_json::json;
use starling_api::OWNER_LABEL;
use starling_core::apply::{ApprovedDigests, Grace, PendingObjects, PruneBlocker};
use starling_core::inventory::{InventoryEntry, Origin};
use starling_core::object::{ObjectId, RenderedObject};
use starling_member::MemberError;
use starling_testkit::{Fault, FaultProxy, Match, wait};

use crate::ordering::{definition, instance};
use crate::world::{World, connect, connect_to, key, soon};

const TIMEOUT: Duration = Duration::from_secs(30);

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

/// A release renames every object. By the next attempt the new objects are in the inventory, and the old ones are no
/// more than half of it.
#[tokio::test]
async fn a_hold_holds_when_the_inventory_has_grown() {
    let mut world = World::new("hold-holds").await;
    let named = |world: &World, prefix: &str| -> Vec<RenderedObject> {
        let names = (0..12).map(|n| format!("{prefix}-{n:02}"));
        names.map(|name| world.map(&name, &json!({}))).collect()
    };
    let (old, new) = (named(&world, "old"), named(&world, "new"));
    world.apply_ok(&old).await;
    for attempt in 0..3 {
        if attempt == 2 {
            world.restarted();
        }
        let outcome = world.apply(&new).await;
        let Some(PruneBlocker::Budget(held)) = &outcome.prune_blocker else {
            panic!("attempt {attempt}: {outcome:?}");
        };
        assert_eq!((held.deletions, held.of), (12, 12), "attempt {attempt}");
        assert!(outcome.deleted.is_empty());
    }
    // What comes back is not held any more; the rest is still most of what there was.
    let mut more = new.clone();
    more.extend_from_slice(&old[..2]);
    let outcome = world.apply(&more).await;
    assert!(
        matches!(&outcome.prune_blocker, Some(PruneBlocker::Budget(held)) if (held.deletions, held.of) == (10, 12)),
        "{outcome:?}"
    );
    more.extend_from_slice(&old[2..6]);
    let outcome = world.apply(&more).await;
    assert_eq!((outcome.deleted.len(), outcome.prune_blocker), (6, None));
}

/// Guards against a namespace that loses its labels, which may admit its pods, while the deletions that the same commit
/// brings are held or wait for a grace.
#[tokio::test]
async fn what_is_given_up_waits_for_a_hold_and_for_a_grace() {
    for is_held in [true, false] {
        let mut world = World::new(&format!("given-up-{is_held}")).await;
        let name = world.namespace.clone();
        let mut namespace = world.rendered("v1", "Namespace", "", &name, json!({}));
        let mut body: serde_json::Value = serde_json::from_slice(&namespace.body).unwrap();
        body["metadata"]["labels"]["team"] = "shop".into();
        namespace.body = body.to_string().into();
        let maps = |world: &World, prefix: &str| -> Vec<RenderedObject> {
            let names = (0..12).map(|n| format!("{prefix}-{n:02}"));
            names.map(|name| world.map(&name, &json!({}))).collect()
        };
        let (old, new) = (maps(&world, "old"), maps(&world, "new"));
        let mut first = old.clone();
        first.push(namespace.clone());
        world.apply_ok(&first).await;
        assert!(owner_of(&world, &name).await.is_some());

        let rest = if is_held { &new } else { &old };
        if !is_held {
            world.grace = Grace {
                length: Duration::from_secs(3600),
                now: "2026-11-24T00:00:00Z".parse().unwrap(),
                ..Grace::none()
            };
        }
        for _ in 0..2 {
            let outcome = world.apply(rest).await;
            assert_eq!(
                matches!(outcome.prune_blocker, Some(PruneBlocker::Budget(_))),
                is_held,
                "{outcome:?}"
            );
            assert!(outcome.relinquished.is_empty(), "{outcome:?}");
            assert!(owner_of(&world, &name).await.is_some());
            assert!(world.inventory_names().await.contains(&name));
        }
        world.grace.length = Duration::ZERO;
        let outcome = world.apply(&old).await;
        assert_eq!(
            outcome.relinquished,
            std::slice::from_ref(&namespace.key),
            "{outcome:?}"
        );
        assert_eq!(owner_of(&world, &name).await, None);
    }
}

async fn owner_of(world: &World, namespace: &str) -> Option<String> {
    let namespaces: Api<Namespace> = Api::all(world.other.clone());
    let labels = namespaces.get(namespace).await.unwrap().metadata.labels;
    labels.unwrap_or_default().remove(OWNER_LABEL)
}

async fn is_terminating(world: &World, namespace: &str) -> bool {
    let namespaces: Api<Namespace> = Api::all(world.other.clone());
    let found = namespaces.get_opt(namespace).await.unwrap();
    found.is_none_or(|found| found.metadata.deletion_timestamp.is_some())
}

/// A person made the namespace, and keeps things in it that no inventory lists.
#[tokio::test]
async fn a_namespace_that_was_there_before_is_relinquished_of_and_not_deleted() {
    for deleted_with_its_sync in [false, true] {
        let mut world = World::new(&format!("adopted-{deleted_with_its_sync}")).await;
        let name = world.namespace.clone();
        let mut namespace = world.rendered("v1", "Namespace", "", &name, json!({}));
        let mut body: serde_json::Value = serde_json::from_slice(&namespace.body).unwrap();
        body["metadata"]["labels"]["team"] = "shop".into();
        namespace.body = body.to_string().into();
        let map = world.map("a", &json!({}));
        world.apply_ok(&[namespace, map.clone()]).await;
        assert_eq!(
            owner_of(&world, &name).await.as_deref(),
            Some(world.owner.as_str())
        );
        if deleted_with_its_sync {
            let outcome = world.delete(&BTreeSet::new()).await;
            assert!(outcome.is_complete(), "{outcome:?}");
            assert_eq!(
                (outcome.deleted, outcome.relinquished),
                (vec![world.map_key("a")], vec![key("", "Namespace", "", &name)])
            );
        } else {
            let outcome = world.apply(&[map]).await;
            assert!(
                outcome.is_complete() && outcome.prune_blocker.is_none(),
                "{outcome:?}"
            );
            assert_eq!(outcome.relinquished, [key("", "Namespace", "", &name)]);
            assert_eq!(world.inventory_names().await, ["a"]);
        }
        assert!(!is_terminating(&world, &name).await);
        assert_eq!(owner_of(&world, &name).await, None);
        let namespaces: Api<Namespace> = Api::all(world.other.clone());
        let labels = namespaces.get(&name).await.unwrap().metadata.labels.unwrap();
        assert!(!labels.contains_key("team"), "{labels:?}");
    }
}

/// An object that was being deleted when an attempt saw it last, and is gone now, is not pending for a grace that the
/// next release brings.
#[tokio::test]
async fn an_object_that_is_gone_has_no_grace() {
    let mut world = World::new("gone-before").await;
    let (a, b, c) = (
        world.map("a", &json!({})),
        world.map("b", &json!({})),
        world.map("c", &json!({})),
    );
    world.apply_ok(&[a.clone(), b.clone(), c]).await;
    world.maps().delete("c", &DeleteParams::default()).await.unwrap();
    world.grace = Grace {
        length: Duration::from_secs(3600),
        now: "2026-11-24T00:00:00Z".parse().unwrap(),
        ..Grace::none()
    };
    let outcome = world.apply(std::slice::from_ref(&a)).await;
    assert!(outcome.failures.is_empty(), "{outcome:?}");
    assert_eq!(world.inventory_names().await, ["a", "b"]);
    let pending = PendingObjects::of(&outcome.inventory).status(&[]).unwrap();
    assert_eq!((pending.count, pending.objects), (1, vec![b.key.to_string()]));
}

/// A person takes objects back: they stay as they are, and not as empty shells.
#[tokio::test]
async fn an_object_that_is_taken_back_keeps_its_content() {
    let mut world = World::new("taken-back").await;
    let map = |data: &serde_json::Value| world.map("b", data);
    let (content, other) = (map(&json!({"k": "1"})), map(&json!({"k": "2"})));
    let mut role = world.rendered(
        "rbac.authorization.k8s.io/v1",
        "Role",
        &world.namespace,
        "r",
        json!({"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]}),
    );
    let mut body: serde_json::Value = serde_json::from_slice(&role.body).unwrap();
    body["metadata"]["annotations"] = json!({"team": "shop"});
    role.body = body.to_string().into();
    let a = world.map("a", &json!({}));
    world.apply_ok(&[a.clone(), content.clone(), role.clone()]).await;
    world.edit("b", &json!({"data": {"theirs": "t"}})).await;

    world.grace = Grace {
        length: Duration::from_secs(3600),
        now: "2026-11-24T00:00:00Z".parse().unwrap(),
        ..Grace::none()
    };
    world.apply_ok(std::slice::from_ref(&a)).await;
    world.grace.undeleted = Some(world.grace.now);
    let outcome = world.apply(std::slice::from_ref(&a)).await;
    assert_eq!(
        outcome.undeleted,
        [content.key.clone(), role.key.clone()],
        "{outcome:?}"
    );
    assert_eq!(world.inventory_names().await, ["a"]);

    assert_eq!(world.value("b", "k").await.as_deref(), Some("1"));
    assert_eq!(world.value("b", "theirs").await.as_deref(), Some("t"));
    let live = world.maps().get("b").await.unwrap();
    assert!(!live.labels().contains_key(OWNER_LABEL), "{live:?}");
    let roles: Api<Role> = Api::namespaced(world.other.clone(), &world.namespace);
    let live = roles.get("r").await.unwrap();
    assert!(!live.labels().contains_key(OWNER_LABEL), "{live:?}");
    assert_eq!(live.annotations().get("team").map(String::as_str), Some("shop"));
    assert_eq!(live.rules.map(|rules| rules.len()), Some(1));
    let managers = live.metadata.managed_fields.unwrap();
    assert!(
        managers
            .iter()
            .all(|entry| entry.manager.as_deref() != Some("starling")),
        "{managers:?}"
    );

    // Git has it again, with the same values: it is adopted. Other values are reported as a conflict.
    assert_eq!(world.apply_ok(&[a.clone(), content]).await, ["configured b"]);
    world.grace.now = "2026-11-24T01:00:00Z".parse().unwrap();
    world.apply_ok(std::slice::from_ref(&a)).await;
    world.grace.undeleted = Some(world.grace.now);
    world.apply_ok(std::slice::from_ref(&a)).await;
    assert_eq!(world.value("b", "k").await.as_deref(), Some("1"));
    let outcome = world.apply(&[a, other]).await;
    let [(_, error)] = &outcome.failures[..] else {
        panic!("{outcome:?}");
    };
    assert!(error.to_string().contains("starling-released"), "{error}");
}

/// A person made the object and protects it: there is nothing to approve.
#[tokio::test]
async fn an_adopted_object_that_asks_for_an_approval_is_relinquished_of() {
    for deleted_with_its_sync in [false, true] {
        let mut world = World::new(&format!("adopted-confirm-{deleted_with_its_sync}")).await;
        world.create_map("theirs", &json!({"k": "1"})).await;
        let confirm = json!({"metadata": {"annotations": {"starling.dev/deletion": "Confirm"}}});
        world.edit("theirs", &confirm).await;
        let (a, theirs) = (
            world.map("a", &json!({})),
            world.map("theirs", &json!({"k": "1"})),
        );
        world.apply_ok(&[a.clone(), theirs.clone()]).await;
        if deleted_with_its_sync {
            let outcome = world.delete(&BTreeSet::new()).await;
            assert!(outcome.is_complete(), "{outcome:?}");
            assert_eq!(outcome.relinquished, [theirs.key]);
        } else {
            let outcome = world.apply(&[a]).await;
            assert!(outcome.prune_blocker.is_none(), "{outcome:?}");
            assert_eq!(outcome.relinquished, [theirs.key]);
        }
        assert_eq!(world.value("theirs", "k").await.as_deref(), Some("1"));
        let live = world.maps().get("theirs").await.unwrap();
        assert!(!live.labels().contains_key(OWNER_LABEL), "{live:?}");
    }
}

/// Values that an apply took from another manager by force: nobody knows what was there before, so they stay.
#[tokio::test]
async fn what_is_relinquished_of_keeps_its_content() {
    let mut world = World::new("let-go-content").await;
    let group = "letgo.example.test";
    let definition = definition(&world, group, "gizmos", "gizmo", "Gizmo");
    let theirs: CustomResourceDefinition = serde_json::from_slice(&definition.body).unwrap();
    let definitions: Api<CustomResourceDefinition> = Api::all(world.other.clone());
    let mut theirs = theirs;
    theirs.spec.names.short_names = Some(vec!["before".into()]);
    theirs.metadata.labels = None;
    definitions.create(&PostParams::default(), &theirs).await.unwrap();
    let mut body: serde_json::Value = serde_json::from_slice(&definition.body).unwrap();
    body["spec"]["names"]["shortNames"] = json!(["after"]);
    body["metadata"]["labels"]["team"] = "shop".into();
    let ours = RenderedObject {
        body: body.to_string().into(),
        ..definition
    };
    let map = world.map("a", &json!({}));
    world.conflicts_override = true;
    world.apply_ok(&[ours.clone(), map.clone()]).await;
    let outcome = world.apply(&[map]).await;
    assert_eq!(
        outcome.relinquished,
        std::slice::from_ref(&ours.key),
        "{outcome:?}"
    );
    let live = definitions.get(&ours.key.name).await.unwrap();
    assert_eq!(live.spec.names.short_names, Some(vec!["after".to_owned()]));
    assert!(live.metadata.labels.is_none_or(|labels| labels.is_empty()));
}

#[tokio::test]
async fn a_namespace_that_an_apply_created_is_deleted_once_that_is_approved() {
    let mut world = World::new("made").await;
    let name = "t-made-by-us";
    let namespace = world.rendered("v1", "Namespace", "", name, json!({}));
    let map = world.map("a", &json!({}));
    world.apply_ok(&[namespace, map.clone()]).await;
    let outcome = world.apply(std::slice::from_ref(&map)).await;
    let Some(PruneBlocker::Budget(held)) = outcome.prune_blocker else {
        panic!("{outcome:?}");
    };
    world.approved = [held.digest].into_iter().collect();
    // Nothing deletes its content here.
    let outcome = world.apply(&[map]).await;
    assert!(outcome.is_complete(), "{outcome:?}");
    assert_eq!((&*outcome.terminating[0].name, outcome.deleting), (name, 1));
    // Its approval is used up by then, a grace may begin, and a person may want it back: nothing is decided any more.
    world.approved = ApprovedDigests::default();
    let undeleted = Some(jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1));
    for (length, undeleted) in [
        (Duration::ZERO, None),
        (Duration::from_secs(3600), None),
        (Duration::ZERO, undeleted),
    ] {
        world.grace = Grace {
            length,
            now: jiff::Timestamp::now(),
            undeleted,
            ..Grace::none()
        };
        let map = world.map("a", &json!({}));
        let outcome = world.apply(&[map]).await;
        assert!(
            matches!(outcome.prune_blocker, Some(PruneBlocker::NotGone(_))),
            "{outcome:?}"
        );
        assert_eq!((&*outcome.terminating[0].name, outcome.deleting), (name, 0));
        assert!(world.inventory_names().await.contains(&name.to_owned()));
    }
    assert!(is_terminating(&world, name).await);
}

/// Empties the inventory except for claims, as if the attempt had ended before it wrote what it found.
async fn leave_claims(world: &World, names: &[&str]) {
    let claims = { names.iter() }.map(|name| InventoryEntry::new(world.map_key(name), ""));
    let none = starling_core::inventory::Inventory::new();
    let (member, owner) = (&world.member, &world.owner);
    member.write_inventory(owner, &none, soon()).await.unwrap();
    let claims = claims.collect();
    member.write_inventory(owner, &claims, soon()).await.unwrap();
}

async fn origins(world: &World) -> Vec<Origin> {
    let inventory = world.inventory().await;
    inventory.entries().map(|entry| entry.listed.origin).collect()
}

/// The response to the first apply was lost: only the claim is left. The object itself shows who created it.
#[tokio::test]
async fn an_object_whose_first_response_was_lost_shows_who_created_it() {
    let mut world = World::new("lost-response").await;
    let (ours, theirs) = (world.map("ours", &json!({})), world.map("theirs", &json!({})));
    world.apply_ok(std::slice::from_ref(&ours)).await;
    world.create_map("theirs", &json!({"k": "1"})).await;
    leave_claims(&world, &["ours", "theirs"]).await;
    world.restarted();
    world.apply_ok(&[ours, theirs]).await;
    assert_eq!(origins(&world).await, [Origin::Created, Origin::Adopted]);
}

/// The responses are in the ledger, and the attempt ended before it could write the inventory. The objects are in step,
/// and nevertheless the next attempt has to find out where they come from, also if it is interrupted itself.
#[tokio::test]
async fn objects_whose_origin_was_not_written_are_asked_for_it() {
    let mut world = World::new("lost-origin").await;
    world.create_map("theirs", &json!({"k": "1"})).await;
    let (ours, theirs) = (world.map("ours", &json!({})), world.map("theirs", &json!({})));
    let objects = [ours, theirs];
    world.apply_ok(&objects).await;
    leave_claims(&world, &["ours", "theirs"]).await;
    let changes = world.apply_ok(&objects).await;
    assert_eq!(changes, ["unchanged ours", "unchanged theirs"]);
    assert_eq!(origins(&world).await, [Origin::Created, Origin::Adopted]);
    let requests = world.member.requests();
    world.apply_ok(&objects).await;
    assert_eq!(
        world.member.requests() - requests,
        1,
        "the inventory is read, and nothing else"
    );
}

/// An object with ignored fields is created with them, and then Starling gives them up: the last response is that of an
/// object that exists.
#[tokio::test]
async fn an_object_with_ignored_fields_is_created_by_its_first_apply() {
    let mut world = World::new("ignored-origin").await;
    let rule = serde_json::from_value(json!({"paths": ["/data/left"]})).unwrap();
    world.ignore = starling_core::ignore::IgnoreRules::new(&[rule]).unwrap();
    world.create_map("theirs", &json!({"left": "theirs"})).await;
    let objects = ["ours", "theirs"].map(|name| world.map(name, &json!({"k": "1", "left": "first"})));
    world.apply_ok(&objects).await;
    assert_eq!(origins(&world).await, [Origin::Created, Origin::Adopted]);
}

/// The object moves from one group to another. Guards against an origin that is that of the last owner's first apply:
/// what a person had made would count as created, or what Starling had created as adopted.
#[tokio::test]
async fn an_object_that_is_handed_over_keeps_its_origin() {
    let mut world = World::new("origin-moves").await;
    world.create_map("theirs", &json!({"k": "1"})).await;
    let render = |world: &World| [world.map("ours", &json!({})), world.map("theirs", &json!({}))];
    let objects = render(&world);
    world.apply_ok(&objects).await;
    let first = std::mem::replace(&mut world.owner, "fedcba9876543210fedcba9876543210".into());
    let names = ["ours", "theirs"];
    world.former = names
        .map(|name| (world.map_key(name), [first.clone()].into()))
        .into();
    world.restarted();
    world.records.clear();
    let objects = render(&world);
    world.apply_ok(&objects).await;
    let entries = world.inventory().await;
    let origins: Vec<Origin> = entries.entries().map(|entry| entry.listed.origin).collect();
    assert_eq!(origins, [Origin::Created, Origin::Adopted]);
    // A line of another object of that name says nothing.
    let lines =
        names.map(|name| InventoryEntry::new(world.map_key(name), "another").with_origin(Origin::Created));
    let member = &world.member;
    member
        .write_inventory(&first, &lines.into_iter().collect(), soon())
        .await
        .unwrap();
    world.owner = "0123456789abcdef0123456789abcdef".into();
    world.records.clear();
    let objects = render(&world);
    world.apply_ok(&objects).await;
    let entries = world.inventory().await;
    let origins: Vec<Origin> = entries.entries().map(|entry| entry.listed.origin).collect();
    assert_eq!(origins, [Origin::Adopted, Origin::Adopted]);
}

/// Serves the only version of a definition or not, and waits until discovery says so.
async fn serve(world: &World, definition: &RenderedObject, group: &str, served: bool) {
    let definitions: Api<CustomResourceDefinition> = Api::all(world.other.clone());
    let patch = json!([{"op": "replace", "path": "/spec/versions/0/served", "value": served}]);
    let patch = Patch::Json::<()>(serde_json::from_value(patch).unwrap());
    definitions
        .patch(&definition.key.name, &PatchParams::default(), &patch)
        .await
        .unwrap();
    wait::until(TIMEOUT, "discovery follows", async || {
        let groups = world.other.list_api_groups().await.unwrap().groups;
        groups.iter().any(|found| found.name == group) == served
    })
    .await
    .unwrap();
}

/// A definition that serves no version takes its kind out of discovery, and its objects stay where they are.
#[tokio::test]
async fn a_kind_that_is_not_served_for_a_while_is_not_gone() {
    let mut world = World::new("unserved").await;
    let group = "unserved.example.test";
    let definition = definition(&world, group, "gizmos", "gizmo", "Gizmo");
    let (gizmo, map) = (instance(&world, group, "Gizmo"), world.map("a", &json!({})));
    world
        .apply_ok(&[definition.clone(), gizmo.clone(), map.clone()])
        .await;
    serve(&world, &definition, group, false).await;
    // A process that does not know the kind.
    world.member = connect(world.plane(), *world.member.limits());
    let without = [definition.clone(), map];
    let outcome = world.apply(&without).await;
    assert!(
        matches!(&outcome.failures[..], [(key, MemberError::NotEstablished { .. })] if *key == gizmo.key),
        "{outcome:?}"
    );
    assert!(world.inventory().await.contains(&gizmo.key));
    serve(&world, &definition, group, true).await;
    assert_eq!(world.apply_ok(&without).await, ["deleted one"]);
}

/// The definition of another group with the same kind and a similar name says nothing about a kind that is gone.
#[tokio::test]
async fn a_definition_of_another_group_does_not_keep_a_kind_that_is_gone() {
    let mut world = World::new("similar").await;
    let group = "similar.example.test";
    let (gone, other) = (
        definition(&world, group, "gizmos", "gizmo", "Gizmo"),
        definition(&world, &format!("other.{group}"), "gizmos", "gizmo", "Gizmo"),
    );
    let (gizmo, map) = (instance(&world, group, "Gizmo"), world.map("a", &json!({})));
    let definitions: Api<CustomResourceDefinition> = Api::all(world.other.clone());
    for theirs in [&gone, &other] {
        let theirs = serde_json::from_slice(&theirs.body).unwrap();
        definitions.create(&PostParams::default(), &theirs).await.unwrap();
    }
    let client = world.other.clone();
    let serves = async |group: &str| {
        let groups = client.list_api_groups().await.unwrap().groups;
        groups.iter().any(|found| found.name == group)
    };
    wait::until(TIMEOUT, "both groups served", async || {
        serves(group).await && serves(&format!("other.{group}")).await
    })
    .await
    .unwrap();
    world.apply_ok(&[gizmo.clone(), map.clone()]).await;
    definitions
        .delete(&gone.key.name, &DeleteParams::default())
        .await
        .unwrap();
    wait::until(TIMEOUT, "discovery follows", async || !serves(group).await)
        .await
        .unwrap();
    // A process that does not know the kind.
    world.member = connect(world.plane(), *world.member.limits());
    world.apply_ok(&[map]).await;
    assert!(!world.inventory().await.contains(&gizmo.key));
}

/// A custom resource with a finalizer, a stand-in for the operator that runs the finalizer, and the definition.
pub(crate) struct Operated {
    pub(crate) objects: Vec<RenderedObject>,
    gizmos: Api<DynamicObject>,
}

impl Operated {
    pub(crate) async fn apply(world: &mut World, group: &str) -> Self {
        let definition = definition(world, group, "gizmos", "gizmo", "Gizmo");
        let objects = vec![
            definition,
            instance(world, group, "Gizmo"),
            world.map("operator", &json!({})),
        ];
        world.apply_ok(&objects).await;
        let kind = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1", "Gizmo"), "gizmos");
        let gizmos = Api::namespaced_with(world.other.clone(), &world.namespace, &kind);
        let operated = Self { objects, gizmos };
        operated.finalizers(&json!(["example.test/hold"])).await;
        operated
    }

    pub(crate) async fn finalizers(&self, finalizers: &serde_json::Value) {
        let patch = Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
        self.gizmos
            .patch("one", &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    /// Whether the operator and the definition are still there.
    pub(crate) async fn has_operator(&self, world: &World) -> bool {
        let definitions: Api<CustomResourceDefinition> = Api::all(world.other.clone());
        let definition = definitions.get(&self.objects[0].key.name).await.unwrap();
        let operator = world.maps().get_opt("operator").await.unwrap();
        operator.is_some() && definition.metadata.deletion_timestamp.is_none()
    }
}

/// Told to go within a second of each other, the operator would be gone before it has run the finalizer, and the
/// definition would stay for ever.
#[tokio::test]
async fn what_an_object_needs_to_go_is_pruned_after_it() {
    let mut world = World::new("prune-order").await;
    let operated = Operated::apply(&mut world, "pruneorder.example.test").await;
    let keep = [world.map("a", &json!({}))];
    let Some(PruneBlocker::Budget(held)) = world.apply(&keep).await.prune_blocker else {
        panic!("a definition is deleted without an approval");
    };
    (world.approved, world.timeout) = ([held.digest].into_iter().collect(), Duration::from_secs(4));
    let outcome = world.apply(&keep).await;
    assert!(
        matches!(&outcome.failures[..], [(_, MemberError::Terminating { finalizers, .. })] if finalizers[..] == ["example.test/hold"]),
        "{outcome:?}"
    );
    assert!(outcome.deleted.is_empty(), "{outcome:?}");
    assert!(operated.has_operator(&world).await);
    assert!(world.inventory().await.contains(&operated.objects[1].key));
    operated.finalizers(&json!(null)).await;
    world.timeout = TIMEOUT;
    world.apply_ok(&keep).await;
    assert_eq!(world.inventory_names().await, ["a"]);
}

#[tokio::test]
async fn what_an_object_needs_to_go_is_deleted_after_it_with_the_sync() {
    let mut world = World::new("delete-order").await;
    let operated = Operated::apply(&mut world, "deleteorder.example.test").await;
    let delete = async || world.delete(&BTreeSet::new()).await;
    for _ in 0..2 {
        let outcome = delete().await;
        assert_eq!(outcome.terminating, [operated.objects[1].key.clone()]);
        assert!(outcome.deleted.is_empty(), "{outcome:?}");
        assert!(operated.has_operator(&world).await);
    }
    operated.finalizers(&json!(null)).await;
    wait::until(TIMEOUT, "everything is gone", async || {
        delete().await.is_complete()
    })
    .await
    .unwrap();
    assert!(world.inventory().await.is_empty());
}

/// The server refuses to delete the custom resource.
#[tokio::test]
async fn what_fails_to_go_stops_what_comes_after_it() {
    let mut world = World::new("delete-stops").await;
    let operated = Operated::apply(&mut world, "deletestops.example.test").await;
    let proxy = FaultProxy::start(world.plane()).await.unwrap();
    world.member = connect_to(&proxy);
    let refusal = Match::method(Method::DELETE).path_ends_with("/gizmos/one");
    let _refused = proxy.on(refusal, Fault::status(StatusCode::INTERNAL_SERVER_ERROR));
    let outcome = world.delete(&BTreeSet::new()).await;
    assert!(
        !outcome.is_complete() && outcome.deleted.is_empty(),
        "{outcome:?}"
    );
    assert!(operated.has_operator(&world).await);
    operated.finalizers(&json!(null)).await;
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
    let claims = ["a", "b", "c"].map(|name| InventoryEntry::new(world.map_key(name), ""));
    let claims = claims.into_iter().collect();
    world
        .member
        .write_inventory(&world.owner, &claims, crate::world::soon())
        .await
        .unwrap();
    assert_eq!(
        world.apply_ok(&objects[..1]).await,
        ["unchanged a", "deleted b", "released c"]
    );
    assert!(world.maps().get_opt("c").await.unwrap().is_some());
    let inventory = world.inventory().await;
    assert_eq!(
        inventory.uid(&world.map_key("a")),
        Some(&world.records[&world.map_key("a")].uid)
    );
}

/// An object whose deletion a finalizer blocks stays in the inventory until it is gone, and blocks no apply.
#[tokio::test]
async fn a_finalizer_does_not_block_the_next_attempt_and_its_object_is_not_forgotten() {
    let mut world = World::new("finalizer").await;
    let objects = [world.map("a", &json!({})), world.map("b", &json!({}))];
    world.apply_ok(&objects).await;
    world
        .edit("b", &json!({"metadata": {"finalizers": ["example.test/hold"]}}))
        .await;
    for sent in [1, 0] {
        let outcome = world.apply(&objects[..1]).await;
        assert!(outcome.is_complete() && outcome.deleted.is_empty(), "{outcome:?}");
        assert_eq!(
            (&outcome.terminating[..], outcome.deleting),
            (&[objects[1].key.clone()][..], sent)
        );
        assert!(
            matches!(&outcome.prune_blocker, Some(PruneBlocker::NotGone(object)) if object.contains("/b"))
        );
        assert_eq!(world.inventory_names().await, ["a", "b"]);
    }
    let release = json!({"metadata": {"finalizers": null}});
    let maps: Api<k8s_openapi::api::core::v1::ConfigMap> = world.maps();
    maps.patch("b", &PatchParams::default(), &Patch::Merge(release))
        .await
        .unwrap();
    let outcome = world.apply(&objects[..1]).await;
    assert_eq!((outcome.terminating, outcome.prune_blocker), (Vec::new(), None));
    assert_eq!(world.inventory_names().await, ["a"]);
}

/// One commit removes the custom resource, and the next one its operator. Guards against an object that is forgotten
/// while it waits for its finalizer, which the operator runs.
#[tokio::test]
async fn an_operator_that_leaves_later_is_pruned_after_the_objects_that_wait_for_it() {
    let mut world = World::new("prune-later").await;
    let operated = Operated::apply(&mut world, "prunelater.example.test").await;
    let resource = operated.objects[1].key.clone();
    let without = |removed: &[&ObjectId]| -> Vec<RenderedObject> {
        let stays = |object: &&RenderedObject| !removed.contains(&&object.key);
        operated.objects.iter().filter(stays).cloned().collect()
    };
    let outcome = world.apply(&without(&[&resource])).await;
    assert_eq!(
        outcome.terminating,
        std::slice::from_ref(&resource),
        "{outcome:?}"
    );
    let operator = operated
        .objects
        .iter()
        .find(|object| object.key.name == "operator")
        .unwrap();
    world.timeout = Duration::from_secs(4);
    let outcome = world.apply(&without(&[&resource, &operator.key])).await;
    assert!(
        matches!(&outcome.failures[..], [(key, MemberError::Terminating { .. })] if *key == resource),
        "{outcome:?}"
    );
    assert!(operated.has_operator(&world).await);
    operated.finalizers(&json!(null)).await;
    world.timeout = TIMEOUT;
    assert!(
        world
            .apply(&without(&[&resource, &operator.key]))
            .await
            .is_complete()
    );
    assert!(!operated.has_operator(&world).await);
}

/// A Sync that is deleted after its prune began waits for what the prune left.
#[tokio::test]
async fn the_end_of_a_sync_waits_for_objects_that_a_prune_left_terminating() {
    let mut world = World::new("prune-ends").await;
    let objects = [world.map("a", &json!({})), world.map("b", &json!({}))];
    world.apply_ok(&objects).await;
    world
        .edit("b", &json!({"metadata": {"finalizers": ["example.test/hold"]}}))
        .await;
    world.apply(&objects[..1]).await;
    let delete = async || world.delete(&BTreeSet::new()).await;
    let outcome = delete().await;
    assert!(!outcome.is_complete(), "{outcome:?}");
    assert_eq!(outcome.terminating, [objects[1].key.clone()]);
    world.edit("b", &json!({"metadata": {"finalizers": null}})).await;
    assert!(delete().await.is_complete());
    assert!(world.inventory().await.is_empty());
}

/// A server that lags does not have the object when the deletions are counted, and has it when they are sent.
#[tokio::test]
async fn an_object_that_was_not_counted_is_not_pruned() {
    let mut world = World::new("uncounted-prune").await;
    let objects = ["a", "b", "c"].map(|name| world.map(name, &json!({"k": name})));
    world.apply_ok(&objects).await;
    let proxy = FaultProxy::start(world.plane()).await.unwrap();
    world.member = connect_to(&proxy);
    let reads = Match::method(Method::GET)
        .path_ends_with("/configmaps/b")
        .times(2);
    let lag = proxy.on(reads, Fault::status(StatusCode::NOT_FOUND));
    let first = world.apply(&objects[..1]).await;
    assert_eq!(lag.fired(), 2, "when the list is made, and when it is counted");
    assert_eq!(
        first.prune_blocker,
        Some(PruneBlocker::NotGone(objects[1].key.to_string()))
    );
    assert_eq!(world.value("b", "k").await.as_deref(), Some("b"));
    assert_eq!(world.value("c", "k").await, None);
    assert_eq!(world.inventory_names().await, ["a", "b"]);
    assert_eq!(world.apply_ok(&objects[..1]).await, ["deleted b"]);
}
