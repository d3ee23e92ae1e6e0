//! Documents about what is served: groups, versions, resources.

use hyper::Response;
use serde_json::{Value, json};

use super::body::Body;
use super::json as as_json;
use super::openapi;
use super::request::Call;
use super::route::Route;
use crate::kinds::{Registry, Resource, Version};
use crate::status::Status;

/// Answers a request for a document.
pub(super) fn answer(call: &Call) -> Result<Response<Body>, Status> {
    let Route::Discovery(steps) = &call.route else {
        return Err(Status::no_such_resource());
    };
    if !matches!(call.method.as_str(), "GET" | "HEAD") {
        return Err(Status::method_not_allowed());
    }
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    let state = call.cluster.state();
    let registry = &state.registry;
    let document = match steps.as_slice() {
        ["api"] => json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}),
        ["api", "v1"] => resources(registry, "", "v1")?,
        ["apis"] => json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups(registry)}),
        ["apis", name] => group(registry, name).ok_or_else(Status::no_such_resource)?,
        ["apis", name, version] => resources(registry, name, version)?,
        ["openapi", "v3"] => openapi::root(registry),
        ["openapi", "v3", "api", version] => {
            openapi::document(registry, "", version).ok_or_else(Status::no_such_resource)?
        }
        ["openapi", "v3", "apis", group, version] => {
            openapi::document(registry, group, version).ok_or_else(Status::no_such_resource)?
        }
        _ => return Err(Status::no_such_resource()),
    };
    Ok(as_json(200, document.to_string().into_bytes()))
}

/// The groups of a cluster but for the core: the built-in ones, then those of definitions by name.
pub(crate) fn group_names(registry: &Registry) -> Vec<String> {
    let mut names: Vec<String> = Registry::builtin_groups().map(str::to_owned).collect();
    for resource in registry.custom() {
        if !names.iter().any(|name| **name == *resource.group) {
            names.push(resource.group.to_string());
        }
    }
    names
}

/// The versions of a group, the preferred one first.
pub(crate) fn versions(registry: &Registry, group: &str) -> Vec<String> {
    let mut versions: Vec<String> = Vec::new();
    for resource in registry.all().filter(|resource| *resource.group == *group) {
        for version in &resource.versions {
            if !versions.iter().any(|name| **name == *version.name) {
                versions.push(version.name.to_string());
            }
        }
    }
    versions.sort_by_key(|name| std::cmp::Reverse(crate::kinds::custom::precedence(name)));
    versions
}

fn groups(registry: &Registry) -> Vec<Value> {
    group_names(registry)
        .iter()
        .filter_map(|name| {
            let mut group = group(registry, name)?;
            // Within a list only the list says what it is.
            if let Some(map) = group.as_object_mut() {
                map.remove("kind");
                map.remove("apiVersion");
            }
            Some(group)
        })
        .collect()
}

fn group(registry: &Registry, name: &str) -> Option<Value> {
    let versions: Vec<Value> = versions(registry, name)
        .iter()
        .map(|version| json!({"groupVersion": format!("{name}/{version}"), "version": version}))
        .collect();
    let preferred = versions.first()?.clone();
    Some(json!({
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": name,
        "versions": versions,
        "preferredVersion": preferred,
    }))
}

fn resources(registry: &Registry, group: &str, version: &str) -> Result<Value, Status> {
    let mut list = Vec::new();
    for resource in registry.all().filter(|resource| *resource.group == *group) {
        if let Some(version) = resource.version(version) {
            list.extend(rows(resource, version));
        }
    }
    if list.is_empty() {
        return Err(Status::no_such_resource());
    }
    let name = if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    };
    Ok(json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": list}))
}

/// A resource and what lies below it.
fn rows(resource: &Resource, version: &Version) -> Vec<Value> {
    let mut row = json!({
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": version.verbs,
    });
    for (field, list) in [
        ("shortNames", &resource.short_names),
        ("categories", &resource.categories),
    ] {
        if !list.is_empty() {
            row[field] = json!(list);
        }
    }
    if !version.storage_hash.is_empty() {
        row["storageVersionHash"] = json!(version.storage_hash);
    }
    let mut rows = vec![row];
    for subresource in &version.subresources {
        let mut row = json!({
            "name": format!("{}/{}", resource.plural, subresource.name),
            "singularName": "",
            "namespaced": resource.namespaced,
            "kind": subresource.kind,
            "verbs": subresource.verbs,
        });
        for (field, text) in [("group", &subresource.group), ("version", &subresource.version)] {
            if let Some(text) = text {
                row[field] = json!(text);
            }
        }
        rows.push(row);
    }
    rows
}
