//! OpenAPI: which documents, paths and methods both servers list, and of which kinds.

use std::collections::{BTreeMap, BTreeSet};

use kube::Client;
use serde_json::{Value, json};
use starling_apiserver::controllers::Controllers;

use crate::requests::side::client;
use crate::requests::{embedded, real};

/// The documents that the embedded server does not have, since it does not serve what they describe.
const NOT_SERVED: [&str; 4] = [
    ".well-known/openid-configuration",
    "apis/resource.k8s.io",
    "apis/resource.k8s.io/v1",
    "openid/v1/jwks",
];

/// The ends of paths that are documented, and that the embedded server answers with 404 or 501.
const NOT_LISTED: [&str; 14] = [
    "/api/v1/componentstatuses",
    "/api/v1/componentstatuses/{name}",
    "/bindings",
    "/pods/{name}/attach",
    "/pods/{name}/binding",
    "/pods/{name}/ephemeralcontainers",
    "/pods/{name}/exec",
    "/pods/{name}/log",
    "/pods/{name}/portforward",
    "/pods/{name}/resize",
    "/{name}/proxy",
    "/{name}/proxy/{path}",
    "/.well-known/openid-configuration/",
    "/openid/v1/jwks/",
];

const DEFINITION: &str = "{
    apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: pages.openapi.dev},
    spec: {group: openapi.dev, scope: Namespaced, names: {plural: pages, kind: Page}, versions: [
      {name: v1, served: true, storage: true, subresources: {status: {}},
       schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object}, status: {type: object}}}}}]}}";

async fn get(client: &Client, path: &str) -> Value {
    let request = http::Request::get(path).body(Vec::new()).unwrap();
    client.request(request).await.unwrap()
}

/// Returns the documents of the index.
async fn names(client: &Client) -> BTreeSet<String> {
    let index = get(client, "/openapi/v3").await;
    index["paths"].as_object().unwrap().keys().cloned().collect()
}

/// Creates a custom kind, and waits until it is documented.
async fn define(client: &Client) {
    let definition: Value = serde_saphyr::from_str(DEFINITION).unwrap();
    let request = http::Request::post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
        .header("content-type", "application/json")
        .body(definition.to_string().into_bytes())
        .unwrap();
    client.request::<Value>(request).await.unwrap();
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(30);
    while !names(client).await.contains("apis/openapi.dev/v1") {
        assert!(
            tokio::time::Instant::now() < deadline,
            "no document of a custom kind"
        );
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

/// Returns what a document says of each path and method: the action, the kind, and the schema of the response.
fn operations(document: &Value) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        // Both servers have one path for objects and one for watches of them; the latter is deprecated.
        if path.contains("/watch/") || NOT_LISTED.iter().any(|end| path.ends_with(end)) {
            continue;
        }
        for (method, operation) in methods.as_object().unwrap() {
            if method == "parameters" {
                continue;
            }
            let action = operation["x-kubernetes-action"].as_str().unwrap_or_default();
            let answer = &operation["responses"]["200"];
            let schema = answer
                .get("schema")
                .unwrap_or(&answer["content"]["application/json"]["schema"]);
            let said = json!({
                "action": action.strip_suffix("collection").unwrap_or(action),
                "kind": operation["x-kubernetes-group-version-kind"],
                "schema": schema["$ref"],
            });
            all.insert(format!("{method} {path}"), said);
        }
    }
    all
}

/// Adds how two documents differ.
fn compare(name: &str, real: &Value, embedded: &Value, out: &mut Vec<String>) -> usize {
    let (wanted, found) = (operations(real), operations(embedded));
    for (operation, said) in &wanted {
        match found.get(operation) {
            None => out.push(format!("{name}: {operation} is not documented here")),
            Some(here) if here != said => out.push(format!("{name}: {operation}: {said} and here {here}")),
            Some(_) => {}
        }
    }
    let more = found.keys().filter(|operation| !wanted.contains_key(*operation));
    out.extend(more.map(|operation| format!("{name}: {operation} is documented here alone")));
    found.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_servers_document_the_same_paths() {
    let ((_planes, real), (server, _listening)) = tokio::join!(real(false), embedded(Controllers::none()));
    let cluster = server.create_cluster("openapi").unwrap();
    let here = client(&cluster.kubeconfig()).await;
    tokio::join!(define(&real), define(&here));

    let mut wanted = names(&real).await;
    wanted.retain(|name| !NOT_SERVED.contains(&name.as_str()));
    assert_eq!(names(&here).await, wanted, "the documents of the index");
    let (mut differences, mut count) = (Vec::new(), 0);
    for name in &wanted {
        let path = format!("/openapi/v3/{name}");
        let (there, here) = (get(&real, &path).await, get(&here, &path).await);
        count += compare(name, &there, &here, &mut differences);
    }
    let (there, here) = (get(&real, "/openapi/v2").await, get(&here, "/openapi/v2").await);
    let mut there = there;
    let paths = there["paths"].as_object_mut().unwrap();
    paths.retain(|path, _| !path.starts_with("/apis/resource.k8s.io/"));
    count += compare("openapi/v2", &there, &here, &mut differences);
    eprintln!("{count} operations of {} documents compared", wanted.len() + 1);
    assert!(
        differences.is_empty(),
        "{} differences:\n{}",
        differences.len(),
        differences.join("\n")
    );
}
