//! Within one apply, definitions are established before objects of their kinds are applied.

use std::time::Duration;

use http::{Method, StatusCode};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::{Value, json};
use starling_core::object::RenderedObject;
use starling_member::MemberError;
use starling_testkit::{Fault, FaultProxy, Match, wait};
use tokio::sync::Mutex;

use crate::world::{World, connect_to, key};

const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) fn definition(
    world: &World,
    group: &str,
    plural: &str,
    singular: &str,
    kind: &str,
) -> RenderedObject {
    let name = format!("{plural}.{group}");
    let body = definition_body(group, plural, singular, kind);
    world.rendered(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        "",
        &name,
        body,
    )
}

fn definition_body(group: &str, plural: &str, singular: &str, kind: &str) -> Value {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object",
        "properties": {"size": {"type": "integer"}}}}});
    json!({"spec": {"group": group, "scope": "Namespaced",
        "names": {"plural": plural, "singular": singular, "kind": kind, "listKind": format!("{kind}List")},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}})
}

pub(crate) fn instance(world: &World, group: &str, kind: &str) -> RenderedObject {
    let spec = json!({"spec": {"size": 1}});
    world.rendered(&format!("{group}/v1"), kind, &world.namespace, "one", spec)
}

/// Responds with a definition that the controllers of the member have not processed yet.
fn not_established() -> Fault {
    let condition = json!({"type": "Established", "status": "False", "reason": "Installing", "message": "the initial names have been accepted"});
    let body = json!({"metadata": {"name": "x"}, "status": {"conditions": [condition]}});
    Fault::Status {
        code: StatusCode::OK,
        headers: Vec::new(),
        body: body.to_string().into(),
    }
}

/// T35: it takes time until the definition is established and its kind is served. One apply is enough, and objects of
/// other kinds do not wait.
#[tokio::test]
async fn t35_a_definition_and_its_object_in_one_apply_however_long_it_takes() {
    let mut world = World::new("t35slow").await;
    let group = "t35slow.example.test";
    let proxy = FaultProxy::start(world.plane()).await.unwrap();
    world.member = connect_to(&proxy);
    let definition_path = format!("/customresourcedefinitions/widgets.{group}");
    let slow = proxy.on(
        Match::method(Method::GET)
            .path_ends_with(definition_path.clone())
            .times(5),
        not_established(),
    );
    let unserved = proxy.on(
        Match::method(Method::GET)
            .path_ends_with(format!("/apis/{group}/v1"))
            .times(3),
        Fault::status(StatusCode::NOT_FOUND),
    );
    let objects = [
        definition(&world, group, "widgets", "widget", "Widget"),
        instance(&world, group, "Widget"),
        world.map("a", &json!({"k": "1"})),
    ];
    assert_eq!(
        world.apply_ok(&objects).await,
        ["created a", "created widgets.t35slow.example.test", "created one"]
    );
    assert_eq!((slow.fired(), unserved.fired()), (5, 3));
    let requests = proxy.requests();
    let position = |method: &Method, path: &str| {
        let found = requests
            .iter()
            .rposition(|request| request.method == *method && request.path.ends_with(path));
        found.unwrap_or_else(|| panic!("no {method} of {path}"))
    };
    let last_read = position(&Method::GET, &definition_path);
    assert!(position(&Method::PATCH, "/configmaps/a") < last_read);
    assert!(position(&Method::PATCH, "/widgets/one") > last_read);
    let sent_too_early = requests[..last_read]
        .iter()
        .any(|request| request.path.ends_with("/widgets/one"));
    assert!(!sent_too_early);

    // The kind is cached now: a change of the object is one PATCH, and a change of the definition waits again.
    let before = world.member.requests();
    let changed = world.rendered(
        &format!("{group}/v1"),
        "Widget",
        &world.namespace,
        "one",
        json!({"spec": {"size": 2}}),
    );
    let objects = [objects[0].clone(), changed, objects[2].clone()];
    assert_eq!(world.apply_ok(&objects).await, ["configured one"]);
    assert_eq!(world.member.requests() - before, 2);
}

/// T35: a definition with conflicting names is never established by waiting. The error names the definition, its object
/// is not sent, and the others are applied. Once the names are free, everything is applied.
#[tokio::test]
async fn t35_a_definition_that_is_never_established_is_named_and_stops_no_other_kind() {
    let mut world = World::new("t35never").await;
    let group = "t35never.example.test";
    let definitions: Api<CustomResourceDefinition> = Api::all(world.other.clone());
    let existing: CustomResourceDefinition = serde_json::from_value({
        let mut body = definition_body(group, "takens", "gizmo", "Taken");
        body["metadata"] = json!({"name": format!("takens.{group}")});
        body
    })
    .unwrap();
    definitions
        .create(&PostParams::default(), &existing)
        .await
        .unwrap();
    wait::until(TIMEOUT, "the first definition established", async || {
        let found = definitions.get(&format!("takens.{group}")).await.unwrap();
        let conditions = found
            .status
            .and_then(|status| status.conditions)
            .unwrap_or_default();
        conditions
            .iter()
            .any(|c| c.type_ == "Established" && c.status == "True")
    })
    .await
    .unwrap();

    let hook = json!({"webhooks": []});
    let objects = [
        definition(&world, group, "gizmos", "gizmo", "Gizmo"),
        instance(&world, group, "Gizmo"),
        world.map("a", &json!({"k": "1"})),
        world.rendered(
            "admissionregistration.k8s.io/v1",
            "ValidatingWebhookConfiguration",
            "",
            "t35never",
            hook,
        ),
    ];
    let outcome = world.apply(&objects).await;
    let [(failed, error @ MemberError::NotEstablished { .. })] = outcome.failures.as_slice() else {
        panic!("{outcome:?}");
    };
    assert_eq!(failed, &key(group, "Gizmo", &world.namespace, "one"));
    let text = error.to_string();
    assert!(
        text.contains("CustomResourceDefinition gizmos.t35never.example.test has names that conflict"),
        "{text}"
    );
    let mut applied: Vec<_> = outcome.applied.iter().map(|one| one.key.name.as_str()).collect();
    applied.sort_unstable();
    assert_eq!(applied, ["a", "gizmos.t35never.example.test", "t35never"]);

    definitions
        .delete(&format!("takens.{group}"), &DeleteParams::default())
        .await
        .unwrap();
    let world = Mutex::new(world);
    wait::until(TIMEOUT, "everything applied", async || {
        let outcome = world.lock().await.apply(&objects).await;
        if outcome.is_complete() {
            Ok(())
        } else {
            Err(format!("{:?}", outcome.failures))
        }
    })
    .await
    .unwrap();
    let world = world.into_inner();
    let gizmo = key(group, "Gizmo", &world.namespace, "one");
    assert!(world.records.contains_key(&gizmo));
}

/// T35: waiting takes at most half of the time of the attempt, so that the other objects are applied.
#[tokio::test]
async fn t35_a_definition_that_takes_too_long_leaves_time_for_the_others() {
    let mut world = World::new("t35late").await;
    let group = "t35late.example.test";
    let proxy = FaultProxy::start(world.plane()).await.unwrap();
    world.member = connect_to(&proxy);
    let definition_path = format!("/customresourcedefinitions/widgets.{group}");
    let hold = proxy.on(
        Match::method(Method::GET).path_ends_with(definition_path),
        not_established(),
    );
    world.timeout = Duration::from_secs(6);
    let objects = [
        definition(&world, group, "widgets", "widget", "Widget"),
        instance(&world, group, "Widget"),
        world.map("a", &json!({"k": "1"})),
        world.rendered(
            "admissionregistration.k8s.io/v1",
            "ValidatingWebhookConfiguration",
            "",
            "t35late",
            json!({"webhooks": []}),
        ),
    ];
    let outcome = world.apply(&objects).await;
    assert!(outcome.interrupted.is_none(), "{outcome:?}");
    let [(failed, error)] = outcome.failures.as_slice() else {
        panic!("{outcome:?}");
    };
    assert_eq!(failed.kind, "Widget");
    assert!(
        error
            .to_string()
            .ends_with("is not established: the initial names have been accepted"),
        "{error}"
    );
    assert_eq!(
        outcome.applied.len(),
        3,
        "the webhooks, a phase later, too: {outcome:?}"
    );
    assert!(hold.fired() > 3);
    proxy.clear();
    assert_eq!(world.apply_ok(&objects).await, ["created one"]);
}
