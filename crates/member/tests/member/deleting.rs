//! Deletion of an owner: all its objects on a member are deleted, and no others.

use std::collections::BTreeSet;

use http::{Method, StatusCode};
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;
use starling_core::object::ObjectId;
use starling_member::MemberError;

use starling_testkit::{Fault, FaultProxy, Match, Stage};

use crate::world::{World, connect_to};

fn names(keys: &[ObjectId]) -> Vec<&str> {
    keys.iter().map(|key| key.name.as_str()).collect()
}

async fn has_inventory(world: &World) -> bool {
    let name = format!("starling-inventory-{}", world.owner);
    world.system_maps().get_opt(&name).await.unwrap().is_some()
}

#[tokio::test]
async fn objects_are_deleted_in_reverse_order_and_the_inventory_last() {
    let mut world = World::new("ending").await;
    let role = json!({"rules": []});
    let own = format!("ending-{}", world.namespace);
    let namespace = world.rendered("v1", "Namespace", "", &own, json!({}));
    let objects = [
        namespace,
        world.rendered("rbac.authorization.k8s.io/v1", "ClusterRole", "", &own, role),
        world.map("a", &json!({})),
        world.rendered(
            "admissionregistration.k8s.io/v1",
            "ValidatingWebhookConfiguration",
            "",
            &own,
            json!({"webhooks": []}),
        ),
    ];
    world.apply_ok(&objects).await;
    let proxy = FaultProxy::start(world.plane()).await.unwrap();
    world.member = connect_to(&proxy);
    let outcome = world.delete(&BTreeSet::new()).await;
    // Without a controller manager, a namespace never finishes its deletion.
    assert_eq!(names(&outcome.terminating), [own.as_str()], "{outcome:?}");
    assert_eq!(names(&outcome.deleted), ["a", &own, &own]);
    assert!(outcome.failures.is_empty() && outcome.interrupted.is_none());
    let order: Vec<String> = proxy
        .requests()
        .iter()
        .filter(|request| request.method == Method::DELETE)
        .map(|request| {
            let parts: Vec<&str> = request.path.rsplit('/').collect();
            parts[1].to_owned()
        })
        .collect();
    assert_eq!(
        order,
        [
            "validatingwebhookconfigurations",
            "configmaps",
            "clusterroles",
            "namespaces"
        ]
    );
    assert_eq!(world.inventory_names().await, [own.as_str()]);
    assert!(has_inventory(&world).await, "it lists the remaining objects");
}

/// Protected, handed over, foreign and missing objects leave the inventory without a delete.
#[tokio::test]
async fn objects_that_must_not_be_deleted_are_released() {
    let mut world = World::new("staying").await;
    let all = ["goes", "protected", "untouched", "taken", "replaced", "gone"];
    let objects: Vec<_> = all.iter().map(|name| world.map(name, &json!({}))).collect();
    world.apply_ok(&objects).await;
    let annotate = |annotation: &str| json!({"metadata": {"annotations": {annotation: "disabled"}}});
    world.edit("protected", &annotate(starling_api::PRUNE)).await;
    world.edit("untouched", &annotate(starling_api::RECONCILE)).await;
    world.delete_map("replaced").await;
    world.create_map("replaced", &json!({})).await;
    world.delete_map("gone").await;
    world.create_map("theirs", &json!({})).await;
    let outcome = world.delete(&[world.map_key("taken")].into()).await;
    assert!(outcome.is_complete(), "{outcome:?}");
    assert_eq!(names(&outcome.deleted), ["goes"]);
    assert_eq!(
        names(&outcome.released),
        ["gone", "protected", "replaced", "taken", "untouched"]
    );
    for name in ["protected", "untouched", "taken", "replaced", "theirs"] {
        assert!(world.maps().get_opt(name).await.unwrap().is_some(), "{name}");
    }
    assert!(!has_inventory(&world).await);
}

/// Another writer replaces the object between the read and the delete: the delete contains the UID that was read.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_is_replaced_at_the_last_moment_is_not_deleted() {
    for second_pass in [true, false] {
        let mut world = World::new(if second_pass { "racing-prune" } else { "racing-end" }).await;
        let objects = [world.map("a", &json!({})), world.map("b", &json!({"k": "ours"}))];
        world.apply_ok(&objects).await;
        let proxy = FaultProxy::start(world.plane()).await.unwrap();
        world.member = connect_to(&proxy);
        let maps: Api<k8s_openapi::api::core::v1::ConfigMap> = world.maps();
        let replaced = proxy.on(
            Match::method(Method::DELETE)
                .path_ends_with("/configmaps/b")
                .times(1),
            Fault::hook(move |stage, _| {
                if stage == Stage::Before {
                    let replacement = json!({"metadata": {"name": "b"}, "data": {"k": "theirs"}});
                    tokio::task::block_in_place(|| {
                        tokio::runtime::Handle::current().block_on(async {
                            maps.delete("b", &DeleteParams::default()).await.unwrap();
                            let replacement = serde_json::from_value(replacement).unwrap();
                            maps.create(&PostParams::default(), &replacement).await.unwrap();
                        });
                    });
                }
            }),
        );
        let failures = if second_pass {
            world.apply(&objects[..1]).await.failures
        } else {
            world.delete(&BTreeSet::new()).await.failures
        };
        assert_eq!(replaced.fired(), 1);
        assert!(
            matches!(&failures[..], [(key, MemberError::Conflict { .. })] if key.name == "b"),
            "{failures:?}"
        );
        assert_eq!(world.value("b", "k").await.as_deref(), Some("theirs"));
        // The next pass reads the new owner, and drops the entry.
        if second_pass {
            assert_eq!(world.apply_ok(&objects[..1]).await, ["released b"]);
        } else {
            let outcome = world.delete(&BTreeSet::new()).await;
            assert_eq!(
                (names(&outcome.released), outcome.is_complete()),
                (vec!["b"], true)
            );
            assert!(!has_inventory(&world).await);
        }
        assert_eq!(world.value("b", "k").await.as_deref(), Some("theirs"));
    }
}

/// Wherever the deletion was interrupted, the next pass continues from the state of the member.
#[tokio::test]
async fn an_interrupted_deletion_is_continued() {
    let object = || {
        Match::method(Method::DELETE)
            .path_ends_with("/configmaps/b")
            .times(1)
    };
    let inventory = || {
        Match::method(Method::DELETE)
            .path_contains("/starling-inventory-")
            .times(1)
    };
    for (number, (matching, fault)) in [
        (object(), Fault::CutBefore),
        (object(), Fault::CutAfter),
        (inventory(), Fault::CutBefore),
        (inventory(), Fault::CutAfter),
    ]
    .into_iter()
    .enumerate()
    {
        let mut world = World::new(&format!("cutend{number}")).await;
        let objects = ["a", "b", "c"].map(|name| world.map(name, &json!({})));
        world.apply_ok(&objects).await;
        world.create_map("theirs", &json!({})).await;
        let proxy = FaultProxy::start(world.plane()).await.unwrap();
        world.member = connect_to(&proxy);
        let cut = proxy.on(matching, fault);
        let first = world.delete(&BTreeSet::new()).await;
        assert_eq!(cut.fired(), 1, "case {number}");
        assert!(
            matches!(first.interrupted, Some(MemberError::Unreachable { .. })),
            "case {number}: {first:?}"
        );
        world.restarted();
        let second = world.delete(&BTreeSet::new()).await;
        assert!(second.is_complete(), "case {number}: {second:?}");
        assert!(!has_inventory(&world).await, "case {number}");
        let remaining: Vec<_> = world.maps().list(&Default::default()).await.unwrap().items;
        let remaining: Vec<_> = remaining
            .iter()
            .filter_map(|map| map.metadata.name.as_deref())
            .collect();
        assert_eq!(remaining, ["theirs"], "case {number}");
    }
}

/// A server that lags does not have the object when the deletions are counted, and has it when they are sent: what no
/// budget counted and no approval names stays until the next attempt.
#[tokio::test]
async fn an_object_that_was_not_counted_is_not_deleted() {
    let lags = || {
        Match::method(Method::GET)
            .path_ends_with("/configmaps/b")
            .times(1)
    };
    let mut world = World::new("uncounted").await;
    let objects = ["a", "b"].map(|name| world.map(name, &json!({"k": name})));
    world.apply_ok(&objects).await;
    let proxy = FaultProxy::start(world.plane()).await.unwrap();
    world.member = connect_to(&proxy);
    let lag = proxy.on(lags(), Fault::status(StatusCode::NOT_FOUND));
    let first = world.delete(&BTreeSet::new()).await;
    assert_eq!(lag.fired(), 1);
    assert_eq!(
        (
            names(&first.deleted),
            names(&first.undecided),
            first.is_complete()
        ),
        (vec!["a"], vec!["b"], false)
    );
    assert_eq!(world.value("b", "k").await.as_deref(), Some("b"));
    let second = world.delete(&BTreeSet::new()).await;
    assert_eq!((names(&second.deleted), second.is_complete()), (vec!["b"], true));
    assert!(!has_inventory(&world).await);
}
