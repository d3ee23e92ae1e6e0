//! OpenAPI operations of resources.

use serde_json::{Map, Value, json};

use super::{definition_name, definitions, list_name, prefix};
use crate::kinds::{Form, Resource, Version};

/// The content types of patches; strategic merge patches need a Go type.
const PATCHES: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/apply-patch+yaml",
    "application/strategic-merge-patch+json",
];

/// What all operations of a resource have in common.
struct Operations<'a> {
    resource: &'a Resource,
    version: &'a Version,
    /// The definition of the object that is sent and returned.
    object: String,
    /// The group, version and kind of that object.
    kind: Value,
}

/// Adds the paths of a resource.
pub(super) fn add(paths: &mut Map<String, Value>, resource: &Resource, version: &Version) {
    let place = if resource.namespaced {
        "/namespaces/{namespace}"
    } else {
        ""
    };
    let base = format!(
        "/{}{place}/{}",
        prefix(&resource.group, &version.name),
        resource.plural
    );
    let own = Operations {
        resource,
        version,
        object: definition_name(resource, version),
        kind: json!({"group": resource.group, "version": version.name, "kind": resource.kind}),
    };
    let verbs: Vec<&str> = version.verbs.iter().map(|verb| &**verb).collect();
    paths.insert(base.clone(), own.collection(&verbs));
    if resource.namespaced && verbs.contains(&"list") {
        let all = format!("/{}/{}", prefix(&resource.group, &version.name), resource.plural);
        paths.insert(all, own.collection(&["list"]));
    }
    let item = format!("{base}/{{name}}");
    if verbs.contains(&"get") {
        paths.insert(item.clone(), own.item(&verbs));
    }
    for subresource in &version.subresources {
        let group = subresource.group.as_deref().unwrap_or(&resource.group);
        let name = subresource.version.as_deref().unwrap_or(&version.name);
        let object = match *subresource.kind == *resource.kind {
            true => own.object.clone(),
            false => {
                definitions::of_kind(group, name, &subresource.kind).map_or_else(String::new, str::to_owned)
            }
        };
        let below = Operations {
            object,
            kind: json!({"group": group, "version": name, "kind": subresource.kind}),
            ..own
        };
        let verbs: Vec<&str> = subresource.verbs.iter().map(|verb| &**verb).collect();
        let mut operations = below.item(&verbs);
        if verbs.contains(&"create") {
            operations["post"] = below.write("post");
        }
        paths.insert(format!("{item}/{}", subresource.name), operations);
    }
}

fn parameter(name: &str, ty: &str) -> Value {
    json!({"name": name, "in": "query", "schema": {"type": ty, "uniqueItems": true}})
}

fn parameters(names: &[&str]) -> Value {
    let ty = |name: &str| match name {
        "allowWatchBookmarks" | "sendInitialEvents" | "watch" | "force" | "orphanDependents" => "boolean",
        "limit" | "timeoutSeconds" | "gracePeriodSeconds" => "integer",
        _ => "string",
    };
    names.iter().map(|name| parameter(name, ty(name))).collect()
}

fn content(types: &[&str], definition: &str) -> Value {
    let schema = match definition {
        "" => json!({"type": "object"}),
        name => json!({"$ref": format!("#/components/schemas/{name}")}),
    };
    let map: Map<String, Value> = types
        .iter()
        .map(|ty| ((*ty).to_owned(), json!({"schema": schema})))
        .collect();
    Value::Object(map)
}

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

impl Operations<'_> {
    fn collection(&self, verbs: &[&str]) -> Value {
        let mut operations = json!({});
        if verbs.contains(&"list") {
            let list = list_name(self.resource, self.version);
            operations["get"] = self.operation("list", &list, LIST);
        }
        if verbs.contains(&"create") {
            operations["post"] = self.write("post");
        }
        if verbs.contains(&"deletecollection") {
            operations["delete"] = self.operation("deletecollection", &format!("{META}.Status"), LIST);
        }
        operations
    }

    fn item(&self, verbs: &[&str]) -> Value {
        let mut operations = json!({});
        if verbs.contains(&"get") {
            operations["get"] = self.operation("get", &self.object, &[]);
        }
        if verbs.contains(&"update") {
            operations["put"] = self.write("put");
        }
        if verbs.contains(&"patch") {
            operations["patch"] = self.patch();
        }
        if verbs.contains(&"delete") {
            let names = [
                "dryRun",
                "gracePeriodSeconds",
                "orphanDependents",
                "propagationPolicy",
            ];
            let mut delete = self.operation("delete", &format!("{META}.Status"), &names);
            let types = ["application/json", "application/yaml"];
            delete["requestBody"] = json!({"content": content(&types, &format!("{META}.DeleteOptions"))});
            operations["delete"] = delete;
        }
        operations
    }

    fn operation(&self, action: &str, answer: &str, query: &[&str]) -> Value {
        let types = ["application/json", "application/yaml"];
        json!({
            "parameters": parameters(query),
            "responses": {"200": {"description": "OK", "content": content(&types, answer)}},
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": self.kind,
        })
    }

    fn write(&self, action: &str) -> Value {
        let names = ["dryRun", "fieldManager", "fieldValidation"];
        let mut write = self.operation(action, &self.object, &names);
        let types = ["application/json", "application/yaml"];
        write["requestBody"] = json!({"content": content(&types, &self.object), "required": true});
        write
    }

    fn patch(&self) -> Value {
        let names = ["dryRun", "fieldManager", "fieldValidation", "force"];
        let mut patch = self.operation("patch", &self.object, &names);
        let types = match self.version.form {
            Form::Builtin(_) => &PATCHES[..],
            Form::Custom(_) => &PATCHES[..3],
        };
        patch["requestBody"] = json!({"content": content(types, &format!("{META}.Patch")), "required": true});
        patch
    }
}

/// The query parameters of a list.
const LIST: &[&str] = &[
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
    "watch",
];
