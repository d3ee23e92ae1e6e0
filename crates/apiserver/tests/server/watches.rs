//! Watches whose resource changes under them, and what a watch in protobuf gets.

use futures::{StreamExt as _, TryStreamExt as _};
use http_body_util::BodyExt as _;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::world::World;

fn dynamic(client: &Client, api_version: &str, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
    let (group, version) = api_version.split_once('/').unwrap();
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).unwrap()
}

fn versions(spec: &Value) -> Value {
    json!([{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
        "type": "object", "properties": {"spec": {"type": "object", "properties": spec}}}}}])
}

#[tokio::test]
async fn a_watch_ends_when_the_schema_of_its_objects_changes() {
    let world = World::new().await;
    let (_cluster, client) = world.cluster("a").await;
    let definitions = dynamic(
        &client,
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        None,
    );
    let before = versions(&json!({"a": {"type": "string"}}));
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "moths.test.dev"},
        "spec": {"group": "test.dev", "scope": "Namespaced", "versions": before,
            "names": {"plural": "moths", "singular": "moth", "kind": "Moth", "listKind": "MothList"}},
    });
    definitions
        .create(&PostParams::default(), &object(definition))
        .await
        .unwrap();
    let moths = dynamic(&client, "test.dev/v1", "Moth", Some("default"));
    let moth = |name: &str| {
        object(
            json!({"apiVersion": "test.dev/v1", "kind": "Moth", "metadata": {"name": name},
            "spec": {"a": "1", "colour": "red"}}),
        )
    };
    let mut events = moths.watch(&WatchParams::default(), "0").await.unwrap().boxed();

    // A change of the metadata of the definition is no change of the schema.
    let label = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    let params = PatchParams::default();
    definitions
        .patch("moths.test.dev", &params, &label)
        .await
        .unwrap();
    moths
        .create(&PostParams::default(), &moth("before"))
        .await
        .unwrap();
    let Some(WatchEvent::Added(seen)) = events.try_next().await.unwrap() else {
        panic!("the watch is open");
    };
    assert_eq!(seen.data["spec"], json!({"a": "1"}));

    let after = json!({"a": {"type": "string"}, "colour": {"type": "string"}, "size": {"type": "integer", "default": 1}});
    let change = Patch::Merge(json!({"spec": {"versions": versions(&after)}}));
    definitions
        .patch("moths.test.dev", &params, &change)
        .await
        .unwrap();
    moths
        .create(&PostParams::default(), &moth("after"))
        .await
        .unwrap();
    assert!(
        events.try_next().await.unwrap().is_none(),
        "no event shows an object by the schema of before"
    );

    // A watch that goes on from where the other one ended loses nothing.
    let from = seen.resource_version().unwrap();
    let mut events = moths.watch(&WatchParams::default(), &from).await.unwrap().boxed();
    let Some(WatchEvent::Added(seen)) = events.try_next().await.unwrap() else {
        panic!("the object was created");
    };
    assert_eq!(seen.name_any(), "after");
    assert_eq!(seen.data["spec"], json!({"a": "1", "colour": "red", "size": 1}));
}

#[tokio::test]
async fn a_watch_of_a_kind_without_protobuf_gets_json() {
    let world = World::new().await;
    let (_cluster, client) = world.cluster("a").await;
    let services = dynamic(&client, "apiregistration.k8s.io/v1", "APIService", None);
    let service = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": "v1.test.dev"},
        "spec": {"group": "test.dev", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1}});
    services
        .create(&PostParams::default(), &object(service))
        .await
        .unwrap();
    for (accept, code) in [
        ("application/vnd.kubernetes.protobuf, application/json", 200),
        ("application/vnd.kubernetes.protobuf", 406),
    ] {
        let request = http::Request::get(
            "/apis/apiregistration.k8s.io/v1/apiservices?watch=1&resourceVersion=0&timeoutSeconds=1",
        )
        .header("accept", accept)
        .body(kube::client::Body::empty())
        .unwrap();
        let response = client.send(request).await.unwrap();
        assert_eq!(response.status(), code, "{accept}");
        if code != 200 {
            continue;
        }
        assert_eq!(response.headers()["content-type"], "application/json");
        let events = response.into_body().collect().await.unwrap().to_bytes();
        let first: Value =
            serde_json::from_slice(events.split(|byte| *byte == b'\n').next().unwrap()).unwrap();
        assert_eq!(first["type"], "ADDED");
        assert_eq!(first["object"]["metadata"]["name"], "v1.test.dev");
    }
}
