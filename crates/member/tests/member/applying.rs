//! Applies: which requests are sent, and their effect on fields of other managers.

use k8s_openapi::api::apps::v1::Deployment;
use kube::api::Api;
use serde_json::{Value, json};
use starling_core::object::RenderedObject;
use starling_member::{Change, FieldConflict, MemberError};

use crate::world::World;

fn deployment(world: &World, name: &str) -> RenderedObject {
    let spec = json!({"spec": {
        "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [
            {"name": "main", "image": "registry.example/app:1", "ports": [{"containerPort": 80}]}
        ]}}
    }});
    world.rendered("apps/v1", "Deployment", &world.namespace, name, spec)
}

#[tokio::test]
async fn the_first_apply_creates_and_the_second_sends_no_request_for_the_object() {
    let mut world = World::new("first").await;
    let objects = [
        world.map("a", &json!({"k": "1"})),
        world.map("b", &json!({"k": "1"})),
        deployment(&world, "web"),
        world.rendered(
            "rbac.authorization.k8s.io/v1",
            "ClusterRole",
            "",
            "first:role",
            json!({"rules": []}),
        ),
    ];
    assert_eq!(
        world.apply_ok(&objects).await,
        ["created a", "created b", "created web", "created first:role"]
    );
    assert_eq!(world.value("a", "k").await.as_deref(), Some("1"));
    for (key, uid) in world.inventory().await.iter() {
        assert_eq!(*uid, world.records[key].uid, "{key}");
    }
    let before = world.member.requests();
    let outcome = world.apply(&objects).await;
    assert!(
        outcome.is_complete() && outcome.applied.is_empty() && outcome.skipped == 4,
        "{outcome:?}"
    );
    assert_eq!(
        world.member.requests() - before,
        1,
        "the inventory, and nothing for any object"
    );
    // A requested reconcile reads each object, and asks the member for what an apply would make of it.
    world.compare = true;
    let version = world.version("a").await;
    let before = world.member.requests();
    assert_eq!(
        world.apply_ok(&objects).await,
        [
            "unchanged a",
            "unchanged b",
            "unchanged web",
            "unchanged first:role"
        ]
    );
    assert_eq!(world.member.requests() - before, 1 + 2 * 4);
    assert_eq!(world.version("a").await, version);
}

#[tokio::test]
async fn a_change_of_one_object_is_one_patch() {
    let mut world = World::new("change").await;
    let mut objects = vec![
        world.map("a", &json!({"k": "1", "old": "x"})),
        world.map("b", &json!({"k": "1"})),
    ];
    world.apply_ok(&objects).await;
    objects[0] = world.map("a", &json!({"k": "2"}));
    let (before, b) = (world.member.requests(), world.version("b").await);
    assert_eq!(world.apply_ok(&objects).await, ["configured a"]);
    assert_eq!(world.member.requests() - before, 2);
    assert_eq!(world.value("a", "k").await.as_deref(), Some("2"));
    assert_eq!(
        world.value("a", "old").await,
        None,
        "a field that is no longer rendered goes"
    );
    assert_eq!(world.version("b").await, b);
}

/// A body that differs only in its formatting has another digest and changes nothing on the member.
#[tokio::test]
async fn an_equal_object_with_another_body_is_unchanged() {
    let mut world = World::new("equal").await;
    let object = world.map("a", &json!({"k": "1"}));
    world.apply_ok(std::slice::from_ref(&object)).await;
    let version = world.version("a").await;
    let again = RenderedObject {
        digest: "sha256:other".into(),
        ..object
    };
    assert_eq!(world.apply_ok(&[again]).await, ["unchanged a"]);
    assert_eq!(world.version("a").await, version);
}

#[tokio::test]
async fn a_conflict_names_field_and_manager_and_is_not_overridden_by_a_retry() {
    let mut world = World::new("conflict").await;
    world.create_map("a", &json!({"k": "theirs"})).await;
    let objects = [
        world.map("a", &json!({"k": "ours"})),
        world.map("b", &json!({"k": "1"})),
    ];
    for attempt in 0..2 {
        let outcome = world.apply(&objects).await;
        let [(key, MemberError::Conflict { fields, .. })] = outcome.failures.as_slice() else {
            panic!("attempt {attempt}: {outcome:?}");
        };
        assert_eq!(key.name, "a");
        let expected = FieldConflict {
            field: ".data.k".into(),
            manager: "somebody".into(),
        };
        assert_eq!(fields.as_slice(), [expected]);
        assert_eq!(world.value("a", "k").await.as_deref(), Some("theirs"));
        assert_eq!(
            world.value("b", "k").await.as_deref(),
            Some("1"),
            "the neighbour is applied"
        );
    }
    world.conflicts_override = true;
    assert_eq!(world.apply_ok(&objects).await, ["configured a"]);
    assert_eq!(world.value("a", "k").await.as_deref(), Some("ours"));
}

#[tokio::test]
async fn an_owned_object_is_restored_by_force() {
    let mut world = World::new("force").await;
    world.apply_ok(&[world.map("a", &json!({"k": "1"}))]).await;
    world
        .edit("a", &json!({"data": {"k": "edited", "more": "kept"}}))
        .await;
    assert_eq!(
        world.apply_ok(&[world.map("a", &json!({"k": "2"}))]).await,
        ["configured a"]
    );
    assert_eq!(world.value("a", "k").await.as_deref(), Some("2"));
    assert_eq!(
        world.value("a", "more").await.as_deref(),
        Some("kept"),
        "fields of others stay"
    );
}

#[tokio::test]
async fn losing_the_records_writes_to_no_object_that_is_in_step() {
    let mut world = World::new("lost").await;
    let objects = [
        world.map("a", &json!({"k": "1"})),
        world.map("b", &json!({"k": "1"})),
        deployment(&world, "web"),
    ];
    world.apply_ok(&objects).await;
    world.edit("b", &json!({"data": {"k": "edited"}})).await;
    let deployments = Api::<Deployment>::namespaced(world.other.clone(), &world.namespace);
    let web = deployments.get("web").await.unwrap();
    let (records, a) = (world.records.clone(), world.version("a").await);

    world.restarted();
    assert_eq!(
        world.apply_ok(&objects).await,
        ["unchanged a", "configured b", "unchanged web"]
    );
    assert_eq!(world.version("a").await, a);
    assert_eq!(deployments.get("web").await.unwrap(), web);
    assert_eq!(world.value("b", "k").await.as_deref(), Some("1"));
    for name in ["a", "b"] {
        let (then, now) = (
            &records[&world.map_key(name)],
            &world.records[&world.map_key(name)],
        );
        assert_eq!(
            (&then.uid, &then.digest, &then.fields_digest),
            (&now.uid, &now.digest, &now.fields_digest)
        );
    }
    assert_eq!(world.apply_ok(&objects).await, Vec::<String>::new());
}

/// A changed value of a field that Starling owns does not change `managedFields`; only the values differ.
#[tokio::test]
async fn losing_the_records_does_not_hide_a_change_of_the_render() {
    let mut world = World::new("lostchange").await;
    world.apply_ok(&[world.map("a", &json!({"k": "1"}))]).await;
    world.restarted();
    assert_eq!(
        world.apply_ok(&[world.map("a", &json!({"k": "2"}))]).await,
        ["configured a"]
    );
    assert_eq!(world.value("a", "k").await.as_deref(), Some("2"));
    world.delete_map("a").await;
    world.restarted();
    assert_eq!(
        world.apply_ok(&[world.map("a", &json!({"k": "2"}))]).await,
        ["created a"]
    );
}

#[tokio::test]
async fn objects_go_to_their_namespaces_and_a_missing_one_fails_its_objects_only() {
    let mut world = World::new("spaces").await;
    let map = |namespace: &str| {
        world.rendered(
            "v1",
            "ConfigMap",
            namespace,
            "a",
            json!({"data": {"in": namespace}}),
        )
    };
    // The same render creates the second namespace, one phase earlier; the third does not exist.
    let objects = [
        map(&world.namespace),
        map("t-spaces-two"),
        map("t-spaces-none"),
        world.rendered("v1", "Namespace", "", "t-spaces-two", json!({})),
    ];
    let outcome = world.apply(&objects).await;
    let created: Vec<_> = outcome.applied.iter().map(|one| one.key.to_string()).collect();
    assert_eq!(
        created,
        [
            "ConfigMap t-spaces/a",
            "ConfigMap t-spaces-two/a",
            "Namespace t-spaces-two"
        ]
    );
    let [(key, error @ MemberError::NotFound { .. })] = outcome.failures.as_slice() else {
        panic!("{outcome:?}");
    };
    assert_eq!(key.namespace, "t-spaces-none");
    assert!(
        error
            .to_string()
            .contains("namespaces \"t-spaces-none\" not found"),
        "{error}"
    );
}

fn definition(world: &World, plural: &str, kind: &str, group: &str) -> RenderedObject {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object",
        "properties": {"size": {"type": "integer"}}}}});
    let spec = json!({"spec": {"group": group, "scope": "Namespaced",
        "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List")},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
    world.rendered(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        "",
        &format!("{plural}.{group}"),
        spec,
    )
}

#[tokio::test]
async fn a_custom_resource_follows_its_definition() {
    let mut world = World::new("crd").await;
    let group = "crd.example.test";
    let widget = |world: &World, size: Value| {
        let spec = json!({"spec": {"size": size}});
        world.rendered(&format!("{group}/v1"), "Widget", &world.namespace, "w", spec)
    };
    let both = [
        definition(&world, "widgets", "Widget", group),
        widget(&world, json!(1)),
    ];
    assert_eq!(
        world.apply_ok(&both).await,
        ["created widgets.crd.example.test", "created w"]
    );
    let before = world.member.requests();
    let changed = [both[0].clone(), widget(&world, json!(2))];
    assert_eq!(world.apply_ok(&changed).await, ["configured w"]);
    assert_eq!(world.member.requests() - before, 2, "the kind is cached now");
    let invalid = world
        .apply(&[both[0].clone(), widget(&world, json!("large"))])
        .await;
    assert!(
        matches!(invalid.failures.as_slice(), [(_, MemberError::Invalid { .. })]),
        "{invalid:?}"
    );

    // A new process without caches discovers the version of the kind to prune the object.
    world.restarted();
    assert_eq!(
        world.apply_ok(&both[..1]).await,
        ["unchanged widgets.crd.example.test", "deleted w"]
    );
}

#[tokio::test]
async fn unaddressable_objects_are_named_and_the_others_are_applied() {
    let mut world = World::new("address").await;
    let objects = [
        world.rendered("v1", "ConfigMap", "", "lost", json!({})),
        world.rendered("v1", "Namespace", &world.namespace, "t-address-in", json!({})),
        world.rendered(
            "none.example.test/v1",
            "Nothing",
            &world.namespace,
            "n",
            json!({}),
        ),
        world.map("a", &json!({})),
    ];
    let outcome = world.apply(&objects).await;
    let failures: Vec<_> = outcome
        .failures
        .iter()
        .map(|(_, error)| error.to_string())
        .collect();
    assert_eq!(
        failures,
        [
            "ConfigMap lost: it needs a namespace: set metadata.namespace or targetNamespace",
            "Nothing t-address/n: the cluster has no kind Nothing in none.example.test/v1",
        ]
    );
    assert_eq!(
        outcome
            .applied
            .iter()
            .map(|one| one.key.name.as_str())
            .collect::<Vec<_>>(),
        ["a", "t-address-in"],
        "a kube-apiserver clears the namespace of a Namespace, and so does Starling"
    );
}

#[tokio::test]
async fn errors_about_a_secret_do_not_quote_it() {
    let mut world = World::new("secret").await;
    let secret = |data: Value| world.rendered("v1", "Secret", &world.namespace, "s", data);
    let objects = [secret(
        json!({"type": "kubernetes.io/tls", "stringData": {"tls.crt": "hunter2"}}),
    )];
    let outcome = world.apply(&objects).await;
    let [(_, error @ MemberError::Invalid { .. })] = outcome.failures.as_slice() else {
        panic!("{outcome:?}")
    };
    assert!(error.to_string().contains("data[tls.key]"), "{error}");
    assert!(!format!("{outcome:?}").contains("hunter2"));
}

/// The controller runs applies and drift checks on a multi-threaded runtime.
#[tokio::test]
async fn the_futures_are_send() {
    fn moves<T: Send>(value: T) -> T {
        value
    }
    let mut world = World::new("send").await;
    moves(world.apply(&[])).await;
    moves(world.find_drift()).await;
    moves(world.member.probe(crate::world::soon())).await.unwrap();
}

/// Many concurrent objects: all are applied in whatever order they finish, and the changes are reported by name.
#[tokio::test]
async fn two_hundred_objects_are_applied_concurrently() {
    let mut world = World::new("many").await;
    let objects: Vec<_> = (0..200)
        .map(|n| world.map(&format!("m{n:03}"), &json!({"n": n.to_string()})))
        .collect();
    let before = world.member.requests();
    let outcome = world.apply(&objects).await;
    assert!(outcome.is_complete(), "{outcome:?}");
    assert!(outcome.applied.iter().all(|one| one.change == Change::Created));
    assert!(outcome.applied.is_sorted_by(|a, b| a.key < b.key) && outcome.applied.len() == 200);
    assert!(
        world.member.requests() - before <= 200 + 5,
        "one PATCH each, and the inventory"
    );
    assert_eq!(world.inventory().await, outcome.inventory);
}
