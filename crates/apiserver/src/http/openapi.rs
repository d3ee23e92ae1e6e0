//! OpenAPI documents: which operations there are and what their queries may hold.
//!
//! This is what `kubectl` looks at before it sends an object: whether the server checks fields itself.

use serde_json::{Map, Value, json};

use super::discovery::{group_names, versions};
use crate::kinds::{Registry, Resource};

/// The list of documents.
pub(super) fn root(registry: &Registry) -> Value {
    let mut paths = Map::new();
    let mut add = |path: String| {
        let url = format!("/openapi/v3/{path}?hash=0");
        paths.insert(path, json!({"serverRelativeURL": url}));
    };
    add("api/v1".to_owned());
    for group in group_names(registry) {
        for version in versions(registry, &group) {
            add(format!("apis/{group}/{version}"));
        }
    }
    json!({"paths": paths})
}

/// The document of a version; none if nothing is served in it.
pub(super) fn document(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    let prefix = if group.is_empty() {
        format!("/api/{version}")
    } else {
        format!("/apis/{group}/{version}")
    };
    let mut paths = Map::new();
    for resource in registry.all().filter(|resource| *resource.group == *group) {
        if resource.version(version).is_some() {
            let place = if resource.namespaced {
                "/namespaces/{namespace}"
            } else {
                ""
            };
            let path = format!("{prefix}{place}/{}/{{name}}", resource.plural);
            paths.insert(path, json!({"patch": patch(resource, group, version)}));
        }
    }
    (!paths.is_empty()).then(|| {
        json!({
            "openapi": "3.0.0",
            "info": {"title": "Kubernetes", "version": "v1.35.4"},
            "paths": paths,
            "components": {"schemas": {}},
        })
    })
}

fn patch(resource: &Resource, group: &str, version: &str) -> Value {
    let parameter = |name: &str, ty: &str| json!({"name": name, "in": "query", "schema": {"type": ty}});
    json!({
        "parameters": [
            parameter("dryRun", "string"),
            parameter("fieldManager", "string"),
            parameter("fieldValidation", "string"),
            parameter("force", "boolean"),
        ],
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": "patch",
        "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": resource.kind},
    })
}
