//! Ignored fields, and objects with disabled reconciliation.

use http::{Method, StatusCode};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use starling_api::{FIELD_MANAGER, IgnoreRule};
use starling_core::ignore::IgnoreRules;
use starling_core::object::RenderedObject;
use starling_testkit::{Fault, FaultProxy, Match};

use crate::world::{World, connect_to};

fn deployment(world: &World, replicas: u32, image: &str) -> RenderedObject {
    let containers = json!([{"name": "main", "image": image, "env": [{"name": "A", "value": "1"}]}]);
    let spec = json!({"spec": {
        "replicas": replicas,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": containers}}
    }});
    world.rendered("apps/v1", "Deployment", &world.namespace, "web", spec)
}

fn ignoring(paths: &[&str]) -> IgnoreRules {
    let rule: IgnoreRule =
        serde_json::from_value(json!({"paths": paths, "target": {"kind": "Deployment"}})).unwrap();
    IgnoreRules::new(&[rule]).unwrap()
}

struct Live(Deployment);

impl Live {
    async fn of(world: &World) -> Self {
        Self(deployments(world).get("web").await.unwrap())
    }

    fn replicas(&self) -> i32 {
        self.0.spec.as_ref().unwrap().replicas.unwrap()
    }

    fn image(&self) -> &str {
        let pod = self.0.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
        pod.containers[0].image.as_deref().unwrap()
    }

    fn version(&self) -> &str {
        self.0.metadata.resource_version.as_deref().unwrap()
    }

    /// Returns the fields of Starling's entry of `managedFields`.
    fn own_fields(&self) -> Value {
        let entries = self.0.metadata.managed_fields.as_ref().unwrap();
        let own_fields: Vec<_> = entries
            .iter()
            .filter(|entry| entry.manager.as_deref() == Some(FIELD_MANAGER))
            .collect();
        assert_eq!(own_fields.len(), 1, "one entry of Starling: {entries:?}");
        assert_eq!(own_fields[0].operation.as_deref(), Some("Apply"));
        own_fields[0].fields_v1.as_ref().unwrap().0.clone()
    }
}

fn deployments(world: &World) -> Api<Deployment> {
    Api::namespaced(world.other.clone(), &world.namespace)
}

/// Scales as an autoscaler does: through the subresource.
async fn scale(world: &World, replicas: u32) {
    let params = PatchParams {
        field_manager: Some("kube-controller-manager".into()),
        ..PatchParams::default()
    };
    let patch = json!({"spec": {"replicas": replicas}});
    deployments(world)
        .patch_scale("web", &params, &Patch::Merge(patch))
        .await
        .unwrap();
}

async fn edit(world: &World, patch: Value) {
    deployments(world)
        .patch("web", &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
}

async fn drifted(world: &World) -> Vec<String> {
    let report = world.find_drift().await;
    assert!(
        report.failures.is_empty() && report.interrupted.is_none(),
        "{report:?}"
    );
    report.drifted.iter().map(ToString::to_string).collect()
}

/// T65: an autoscaler changes the replicas of a Deployment and owns them from then on. An update of the image is one
/// PATCH, as for any other object.
#[tokio::test]
async fn t65_replicas_that_an_autoscaler_changes_are_ignored() {
    let mut world = World::new("t65hpa").await;
    world.ignore = ignoring(&["/spec/replicas"]);
    assert_eq!(
        world.apply_ok(&[deployment(&world, 3, "a:1")]).await,
        ["created web"]
    );
    let live = Live::of(&world).await;
    assert_eq!(live.replicas(), 3, "it is created as in git");
    assert!(live.own_fields()["f:spec"]["f:replicas"].is_null());
    assert!(!live.own_fields()["f:spec"]["f:template"].is_null());
    assert!(drifted(&world).await.is_empty());

    scale(&world, 7).await;
    assert!(drifted(&world).await.is_empty(), "not owned, so no drift");
    let before = world.member.requests();
    assert_eq!(
        world.apply_ok(&[deployment(&world, 3, "a:2")]).await,
        ["configured web"]
    );
    assert_eq!(
        world.member.requests() - before,
        2,
        "the inventory, and one PATCH"
    );
    let live = Live::of(&world).await;
    assert_eq!((live.replicas(), live.image()), (7, "a:2"));

    // A commit that changes only ignored fields causes no write.
    assert_eq!(
        world.apply_ok(&[deployment(&world, 5, "a:2")]).await,
        Vec::<String>::new()
    );
    assert_eq!(Live::of(&world).await.version(), live.version());
}

/// T65: a hand edit of an ignored field stays, one of any other field is repaired.
#[tokio::test]
async fn t65_a_hand_edit_beside_an_ignored_field_is_repaired() {
    let mut world = World::new("t65hand").await;
    world.ignore = ignoring(&["/spec/replicas"]);
    let object = [deployment(&world, 3, "a:1")];
    world.apply_ok(&object).await;
    edit(&world, json!({"spec": {"replicas": 9}})).await;
    assert!(drifted(&world).await.is_empty());
    let containers = json!([{"name": "main", "image": "theirs"}]);
    let by_hand = json!({"spec": {"replicas": 8, "template": {"spec": {"containers": containers}}}});
    edit(&world, by_hand).await;
    let report = world.find_drift().await;
    assert_eq!(report.drifted.len(), 1);
    world.drifted = report.drifted;
    assert_eq!(world.apply_ok(&object).await, ["configured web"]);
    let live = Live::of(&world).await;
    assert_eq!((live.replicas(), live.image()), (8, "a:1"));
    assert!(drifted(&world).await.is_empty());
}

/// A manager that applied a field and omits it later removes the field, and the default of the API server replaces it.
/// Here no autoscaler has acted yet, and the Deployment must not be scaled to one replica.
#[tokio::test]
async fn an_ignored_value_without_another_owner_is_kept() {
    let mut world = World::new("ignoretrap").await;
    // First without a rule: Starling owns the field.
    world.apply_ok(&[deployment(&world, 3, "a:1")]).await;
    assert!(!Live::of(&world).await.own_fields()["f:spec"]["f:replicas"].is_null());
    world.ignore = ignoring(&["/spec/replicas"]);
    assert_eq!(
        world.apply_ok(&[deployment(&world, 3, "a:2")]).await,
        ["configured web"]
    );
    let live = Live::of(&world).await;
    assert_eq!((live.replicas(), live.image()), (3, "a:2"));
    assert!(live.own_fields()["f:spec"]["f:replicas"].is_null());
    for image in ["a:3", "a:4"] {
        world.apply_ok(&[deployment(&world, 3, image)]).await;
        assert_eq!(Live::of(&world).await.replicas(), 3);
    }
    // Without the rule, the value from git applies again.
    world.ignore = IgnoreRules::default();
    scale(&world, 9).await;
    assert_eq!(
        world.apply_ok(&[deployment(&world, 3, "a:4")]).await,
        ["configured web"]
    );
    assert_eq!(Live::of(&world).await.replicas(), 3);
}

/// A missing object is created with all its fields, whether a drift check noticed it before or not.
#[tokio::test]
async fn a_missing_object_is_created_with_its_ignored_fields() {
    let mut world = World::new("ignoregone").await;
    world.ignore = ignoring(&["/spec/replicas"]);
    world.apply_ok(&[deployment(&world, 3, "a:1")]).await;
    deployments(&world)
        .delete("web", &DeleteParams::background())
        .await
        .unwrap();
    // Not noticed yet: the object of the record does not exist any more.
    assert_eq!(
        world.apply_ok(&[deployment(&world, 3, "a:2")]).await,
        ["created web"]
    );
    assert_eq!(Live::of(&world).await.replicas(), 3);

    deployments(&world)
        .delete("web", &DeleteParams::background())
        .await
        .unwrap();
    let report = world.find_drift().await;
    assert_eq!(report.drifted.len(), 1, "{report:?}");
    world.drifted = report.drifted;
    assert_eq!(
        world.apply_ok(&[deployment(&world, 3, "a:2")]).await,
        ["created web"]
    );
    let live = Live::of(&world).await;
    assert_eq!(live.replicas(), 3);
    assert!(live.own_fields()["f:spec"]["f:replicas"].is_null());
    assert!(drifted(&world).await.is_empty());
}

#[tokio::test]
async fn losing_the_records_writes_to_no_object_with_ignored_fields_that_is_in_step() {
    let mut world = World::new("ignorelost").await;
    world.ignore = ignoring(&["/spec/replicas"]);
    let object = [deployment(&world, 3, "a:1")];
    world.apply_ok(&object).await;
    scale(&world, 6).await;
    let before = Live::of(&world).await;
    world.restarted();
    assert_eq!(world.apply_ok(&object).await, ["unchanged web"]);
    assert_eq!(Live::of(&world).await.version(), before.version());
    assert_eq!(world.apply_ok(&object).await, Vec::<String>::new());
}

/// A field of a list item: the pointer uses an index, the API server uses keys.
#[tokio::test]
async fn a_field_of_a_list_item_is_ignored() {
    let mut world = World::new("ignoreitem").await;
    world.ignore = ignoring(&["/spec/template/spec/containers/0/image"]);
    world.apply_ok(&[deployment(&world, 3, "a:1")]).await;
    let containers = &Live::of(&world).await.own_fields()["f:spec"]["f:template"]["f:spec"]["f:containers"];
    let main = &containers["k:{\"name\":\"main\"}"];
    assert!(
        main["f:image"].is_null() && main["f:env"].is_object(),
        "{containers}"
    );
    let containers = json!([{"name": "main", "image": "theirs"}]);
    let patch = json!({"spec": {"template": {"spec": {"containers": containers}}}});
    deployments(&world)
        .patch("web", &PatchParams::default(), &Patch::Strategic(patch))
        .await
        .unwrap();
    assert!(drifted(&world).await.is_empty());
    assert_eq!(
        world.apply_ok(&[deployment(&world, 4, "a:2")]).await,
        ["configured web"]
    );
    let live = Live::of(&world).await;
    assert_eq!((live.replicas(), live.image()), (4, "theirs"));
}

/// Other writers change the object while its fields are released.
#[tokio::test]
async fn releasing_fields_is_retried_after_a_conflict() {
    let mut world = World::new("ignorerace").await;
    let proxy = FaultProxy::start(world.plane()).await.unwrap();
    world.member = connect_to(&proxy);
    world.ignore = ignoring(&["/spec/replicas"]);
    let conflicts = proxy.on(
        Match::method(Method::PATCH)
            .body_contains("managedFields")
            .times(3),
        Fault::status(StatusCode::CONFLICT),
    );
    assert_eq!(
        world.apply_ok(&[deployment(&world, 3, "a:1")]).await,
        ["created web"]
    );
    assert_eq!(conflicts.fired(), 3);
    assert!(Live::of(&world).await.own_fields()["f:spec"]["f:replicas"].is_null());
    // A process that died before the release continues it.
    let mut crashed = World::new("ignorecrash").await;
    crashed.apply_ok(&[deployment(&crashed, 3, "a:1")]).await;
    crashed.restarted();
    crashed.ignore = ignoring(&["/spec/replicas"]);
    assert_eq!(
        crashed.apply_ok(&[deployment(&crashed, 3, "a:1")]).await,
        ["unchanged web"]
    );
    let live = Live::of(&crashed).await;
    assert_eq!(live.replicas(), 3);
    assert!(live.own_fields()["f:spec"]["f:replicas"].is_null());
}

const RECONCILE_ANNOTATION: &str = "starling.dev/reconcile";

#[tokio::test]
async fn an_object_annotated_on_the_member_is_not_reconciled_until_the_annotation_is_removed() {
    let mut world = World::new("leave").await;
    let render = |world: &World, value: &str| {
        [
            world.map("a", &json!({"k": value})),
            world.map("b", &json!({"k": value})),
        ]
    };
    world.apply_ok(&render(&world, "1")).await;
    let mark =
        json!({"metadata": {"annotations": {RECONCILE_ANNOTATION: "disabled"}}, "data": {"k": "mine"}});
    world.edit("a", &mark).await;
    let report = world.find_drift().await;
    assert!(report.drifted.is_empty(), "{report:?}");
    assert_eq!(
        report.left_alone.into_iter().collect::<Vec<_>>(),
        [world.map_key("a")]
    );
    // What the controller records.
    world
        .records
        .get_mut(&world.map_key("a"))
        .unwrap()
        .management
        .left_alone = true;

    let version = world.version("a").await;
    let outcome = world.apply(&render(&world, "2")).await;
    assert!(outcome.is_complete());
    assert_eq!(outcome.left_alone, [world.map_key("a")]);
    assert_eq!(world.value("b", "k").await.as_deref(), Some("2"));
    assert_eq!(world.version("a").await, version);
    assert_eq!(world.inventory_names().await, ["a", "b"]);
    // The records are lost: the object is read, and not written.
    world.restarted();
    let outcome = world.apply(&render(&world, "2")).await;
    assert!(outcome.is_complete(), "{outcome:?}");
    assert_eq!(world.version("a").await, version);

    world
        .edit(
            "a",
            &json!({"metadata": {"annotations": {RECONCILE_ANNOTATION: null}}}),
        )
        .await;
    let report = world.find_drift().await;
    assert_eq!(
        report.drifted.iter().collect::<Vec<_>>(),
        [&world.map_key("a")],
        "what a commit changed meanwhile is not known, so it is applied"
    );
    world.drifted = report.drifted;
    assert_eq!(world.apply_ok(&render(&world, "2")).await, ["configured a"]);
    assert_eq!(world.value("a", "k").await.as_deref(), Some("2"));
}

/// The annotation was set after the last drift check: one more write is sent. Its response contains the annotation, and
/// it is the last write.
#[tokio::test]
async fn an_unnoticed_annotation_is_read_from_the_response_to_the_next_write() {
    let mut world = World::new("leavelate").await;
    world.apply_ok(&[world.map("a", &json!({"k": "1"}))]).await;
    world
        .edit(
            "a",
            &json!({"metadata": {"annotations": {RECONCILE_ANNOTATION: "disabled"}}}),
        )
        .await;
    world.apply_ok(&[world.map("a", &json!({"k": "2"}))]).await;
    assert_eq!(world.value("a", "k").await.as_deref(), Some("2"));
    assert!(world.records[&world.map_key("a")].management.left_alone);
    let outcome = world.apply(&[world.map("a", &json!({"k": "3"}))]).await;
    assert_eq!(outcome.left_alone, [world.map_key("a")]);
    assert_eq!(world.value("a", "k").await.as_deref(), Some("2"));
}

#[tokio::test]
async fn an_object_annotated_in_git_is_neither_created_nor_changed_nor_pruned() {
    let mut world = World::new("leavegit").await;
    let annotated = |world: &World, name: &str, value: &str| {
        let mut object = world.map(name, &json!({"k": value}));
        object.directives.left_alone = true;
        object
    };
    world.apply_ok(&[world.map("a", &json!({"k": "1"}))]).await;
    let objects = [
        annotated(&world, "a", "2"),
        annotated(&world, "new", "2"),
        world.map("c", &json!({})),
    ];
    let outcome = world.apply(&objects).await;
    assert!(outcome.is_complete());
    assert_eq!(outcome.left_alone, [world.map_key("a"), world.map_key("new")]);
    assert_eq!(world.value("a", "k").await.as_deref(), Some("1"));
    assert!(world.maps().get_opt("new").await.unwrap().is_none());
    assert_eq!(world.inventory_names().await, ["a", "c"]);
    assert_eq!(
        world
            .apply_ok(&[world.map("a", &json!({"k": "2"})), objects[2].clone()])
            .await,
        ["configured a"]
    );
}
