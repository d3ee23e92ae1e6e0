//! Fields and objects that are left to others.

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

    /// Our entry of `managedFields`.
    fn ours(&self) -> Value {
        let entries = self.0.metadata.managed_fields.as_ref().unwrap();
        let ours: Vec<_> = entries
            .iter()
            .filter(|entry| entry.manager.as_deref() == Some(FIELD_MANAGER))
            .collect();
        assert_eq!(ours.len(), 1, "one entry of ours: {entries:?}");
        assert_eq!(ours[0].operation.as_deref(), Some("Apply"));
        ours[0].fields_v1.as_ref().unwrap().0.clone()
    }
}

fn deployments(world: &World) -> Api<Deployment> {
    Api::namespaced(world.other.clone(), &world.namespace)
}

/// As an autoscaler does it: through the subresource.
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

/// T65: an autoscaler changes the replicas of a Deployment; they are its own from then on, and an update of the image is
/// one PATCH as for any other object.
#[tokio::test]
async fn t65_replicas_that_an_autoscaler_changes_are_left_alone() {
    let mut world = World::new("t65hpa").await;
    world.ignore = ignoring(&["/spec/replicas"]);
    assert_eq!(
        world.apply_ok(&[deployment(&world, 3, "a:1")]).await,
        ["created web"]
    );
    let live = Live::of(&world).await;
    assert_eq!(live.replicas(), 3, "it is made as git says");
    assert!(live.ours()["f:spec"]["f:replicas"].is_null());
    assert!(!live.ours()["f:spec"]["f:template"].is_null());
    assert!(drifted(&world).await.is_empty());

    scale(&world, 7).await;
    assert!(drifted(&world).await.is_empty(), "not ours, so no drift");
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

    // A commit that changes nothing but what is ignored is no reason to write.
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

/// The trap of leaving a field out: whoever applied it once and leaves it out later removes it, and the API server's
/// default takes its place. Nobody has scaled yet, and nobody shall be scaled to one.
#[tokio::test]
async fn a_value_that_nobody_else_owns_yet_stays_when_it_is_left_out() {
    let mut world = World::new("ignoretrap").await;
    // First without a rule: the field is ours.
    world.apply_ok(&[deployment(&world, 3, "a:1")]).await;
    assert!(!Live::of(&world).await.ours()["f:spec"]["f:replicas"].is_null());
    world.ignore = ignoring(&["/spec/replicas"]);
    assert_eq!(
        world.apply_ok(&[deployment(&world, 3, "a:2")]).await,
        ["configured web"]
    );
    let live = Live::of(&world).await;
    assert_eq!((live.replicas(), live.image()), (3, "a:2"));
    assert!(live.ours()["f:spec"]["f:replicas"].is_null());
    for image in ["a:3", "a:4"] {
        world.apply_ok(&[deployment(&world, 3, image)]).await;
        assert_eq!(Live::of(&world).await.replicas(), 3);
    }
    // Without the rule git decides again.
    world.ignore = IgnoreRules::default();
    scale(&world, 9).await;
    assert_eq!(
        world.apply_ok(&[deployment(&world, 3, "a:4")]).await,
        ["configured web"]
    );
    assert_eq!(Live::of(&world).await.replicas(), 3);
}

/// An object that is gone is made whole, whether anybody noticed before or not.
#[tokio::test]
async fn an_object_that_is_gone_is_made_with_its_ignored_fields() {
    let mut world = World::new("ignoregone").await;
    world.ignore = ignoring(&["/spec/replicas"]);
    world.apply_ok(&[deployment(&world, 3, "a:1")]).await;
    deployments(&world)
        .delete("web", &DeleteParams::background())
        .await
        .unwrap();
    // Nobody noticed: the object of the record does not exist any more.
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
    assert!(live.ours()["f:spec"]["f:replicas"].is_null());
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

/// A part of an item of a list: the pointer counts, the API server goes by keys.
#[tokio::test]
async fn a_field_of_a_list_item_is_left_to_others() {
    let mut world = World::new("ignoreitem").await;
    world.ignore = ignoring(&["/spec/template/spec/containers/0/image"]);
    world.apply_ok(&[deployment(&world, 3, "a:1")]).await;
    let containers = &Live::of(&world).await.ours()["f:spec"]["f:template"]["f:spec"]["f:containers"];
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

/// Others write to the object while its fields are given up.
#[tokio::test]
async fn giving_up_fields_is_tried_again_when_somebody_else_was_faster() {
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
    assert!(Live::of(&world).await.ours()["f:spec"]["f:replicas"].is_null());
    // A process that died before they were given up finds it out by itself.
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
    assert!(live.ours()["f:spec"]["f:replicas"].is_null());
}

const LEAVE: &str = "starling.dev/reconcile";

#[tokio::test]
async fn an_object_that_somebody_marks_is_left_alone_until_the_mark_is_gone() {
    let mut world = World::new("leave").await;
    let render = |world: &World, value: &str| {
        [
            world.map("a", &json!({"k": value})),
            world.map("b", &json!({"k": value})),
        ]
    };
    world.apply_ok(&render(&world, "1")).await;
    let mark = json!({"metadata": {"annotations": {LEAVE: "disabled"}}, "data": {"k": "mine"}});
    world.edit("a", &mark).await;
    let report = world.find_drift().await;
    assert!(report.drifted.is_empty(), "{report:?}");
    assert_eq!(
        report.left_alone.into_iter().collect::<Vec<_>>(),
        [world.map_key("a")]
    );
    // What the controller writes down of it.
    world
        .records
        .get_mut(&world.map_key("a"))
        .unwrap()
        .terms
        .left_alone = true;

    let version = world.version("a").await;
    let outcome = world.apply(&render(&world, "2")).await;
    assert!(outcome.is_complete());
    assert_eq!(outcome.left_alone, [world.map_key("a")]);
    assert_eq!(world.value("b", "k").await.as_deref(), Some("2"));
    assert_eq!(world.version("a").await, version);
    assert_eq!(world.inventory_names().await, ["a", "b"]);
    // The records are lost: the member is asked, and not written to.
    world.restarted();
    let outcome = world.apply(&render(&world, "2")).await;
    assert!(outcome.is_complete(), "{outcome:?}");
    assert_eq!(world.version("a").await, version);

    world
        .edit("a", &json!({"metadata": {"annotations": {LEAVE: null}}}))
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

/// The mark was set after the last look: one write still comes. Its answer shows the mark, and it is the last one.
#[tokio::test]
async fn a_mark_that_nobody_has_seen_is_seen_in_the_answer_to_the_next_write() {
    let mut world = World::new("leavelate").await;
    world.apply_ok(&[world.map("a", &json!({"k": "1"}))]).await;
    world
        .edit("a", &json!({"metadata": {"annotations": {LEAVE: "disabled"}}}))
        .await;
    world.apply_ok(&[world.map("a", &json!({"k": "2"}))]).await;
    assert_eq!(world.value("a", "k").await.as_deref(), Some("2"));
    assert!(world.records[&world.map_key("a")].terms.left_alone);
    let outcome = world.apply(&[world.map("a", &json!({"k": "3"}))]).await;
    assert_eq!(outcome.left_alone, [world.map_key("a")]);
    assert_eq!(world.value("a", "k").await.as_deref(), Some("2"));
}

#[tokio::test]
async fn an_object_that_git_marks_is_neither_made_nor_changed_nor_pruned() {
    let mut world = World::new("leavegit").await;
    let marked = |world: &World, name: &str, value: &str| {
        let mut object = world.map(name, &json!({"k": value}));
        object.directives.left_alone = true;
        object
    };
    world.apply_ok(&[world.map("a", &json!({"k": "1"}))]).await;
    let objects = [
        marked(&world, "a", "2"),
        marked(&world, "new", "2"),
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
