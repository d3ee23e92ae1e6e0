//! The discovery documents: groups, versions, resources.
//!
//! They come in two forms: one document for each group version, and one aggregated document, which `kubectl` requests
//! first. All clusters share the built-in part of each document, which is computed once.

use std::collections::HashMap;
use std::sync::LazyLock;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::kinds::{Registry, Resource, Subresource, Version, precedence};

/// The Kubernetes version that the API server reports and behaves as.
pub(crate) const KUBERNETES_VERSION: &str = "v1.35.4+starling-embedded";

/// Returns the groups of a cluster except the core: the built-in ones, then those of definitions by name.
pub fn group_names(registry: &Registry) -> Vec<String> {
    let mut names: Vec<String> = Registry::builtin_groups().map(str::to_owned).collect();
    for resource in registry.custom() {
        if !names.iter().any(|name| **name == *resource.group) {
            names.push(resource.group.to_string());
        }
    }
    names
}

/// Returns the versions of a group, the preferred one first.
pub fn versions(registry: &Registry, group: &str) -> Vec<String> {
    let mut versions: Vec<String> = Vec::new();
    for resource in registry.all().filter(|resource| *resource.group == *group) {
        for version in &resource.versions {
            if !versions.iter().any(|name| **name == *version.name) {
                versions.push(version.name.to_string());
            }
        }
    }
    versions.sort_by_key(|name| std::cmp::Reverse(precedence(name)));
    versions
}

/// Returns the versions of the core group (`/api`).
pub fn core_versions() -> Value {
    json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
}

/// Returns the groups with their versions (`/apis`).
pub fn groups(registry: &Registry) -> Value {
    let groups: Vec<Value> = group_names(registry)
        .iter()
        .filter_map(|name| {
            let mut group = group(registry, name)?;
            // The items of a list have no `apiVersion` and `kind`.
            if let Some(map) = group.as_object_mut() {
                map.remove("kind");
                map.remove("apiVersion");
            }
            Some(group)
        })
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// Returns a group; `None` if the cluster serves no resource of it.
pub fn group(registry: &Registry, name: &str) -> Option<Value> {
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

/// Documents by group and version.
type Documents = HashMap<(Box<str>, Box<str>), Bytes>;

/// The resource lists of all built-in versions.
static BUILTIN: LazyLock<Documents> = LazyLock::new(|| {
    let registry = Registry::default();
    let mut documents = Documents::new();
    for resource in Registry::builtins() {
        for version in &resource.versions {
            documents
                .entry((resource.group.clone(), version.name.clone()))
                .or_insert_with_key(|(group, version)| {
                    let all: Vec<_> = of_version(&registry, group, version).collect();
                    resource_list(group, version, &all).into()
                });
        }
    }
    documents
});

/// Returns the resources of a version; `None` if the cluster serves none.
pub fn resources(registry: &Registry, group: &str, version: &str) -> Option<Bytes> {
    if !is_extended(registry, group) {
        return BUILTIN.get(&(group.into(), version.into())).cloned();
    }
    let all: Vec<_> = of_version(registry, group, version).collect();
    (!all.is_empty()).then(|| resource_list(group, version, &all).into())
}

/// Returns whether definitions add resources to a group.
pub(crate) fn is_extended(registry: &Registry, group: &str) -> bool {
    registry.custom().any(|resource| *resource.group == *group)
}

/// Returns the resources that a version serves.
pub(crate) fn of_version<'a>(
    registry: &'a Registry,
    group: &'a str,
    version: &'a str,
) -> impl Iterator<Item = (&'a Resource, &'a Version)> {
    registry
        .all()
        .filter(move |resource| *resource.group == *group)
        .filter_map(move |resource| Some((&**resource, &**resource.version(version)?)))
}

fn resource_list(group: &str, version: &str, all: &[(&Resource, &Version)]) -> Vec<u8> {
    let rows: Vec<Value> = all
        .iter()
        .flat_map(|(resource, version)| rows(resource, version))
        .collect();
    let name = match group {
        "" => version.to_owned(),
        group => format!("{group}/{version}"),
    };
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": rows})
        .to_string()
        .into_bytes()
}

/// Returns the entries of a resource and its subresources.
fn rows(resource: &Resource, version: &Version) -> Vec<Value> {
    let mut row = json!({
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": version.verbs,
    });
    add_names(&mut row, resource);
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

/// Adds the short names and categories of a resource.
fn add_names(row: &mut Value, resource: &Resource) {
    for (field, list) in [
        ("shortNames", &resource.short_names),
        ("categories", &resource.categories),
    ] {
        if !list.is_empty() {
            row[field] = json!(list);
        }
    }
}

static AGGREGATED_CORE: LazyLock<Bytes> = LazyLock::new(|| {
    let registry = Registry::default();
    let mut core = aggregated_group(&registry, "");
    core["metadata"] = json!({});
    whole(&core.to_string()).into()
});

/// The built-in groups of the aggregated document, joined by commas.
static AGGREGATED_BUILTIN: LazyLock<HashMap<Box<str>, String>> = LazyLock::new(|| {
    let registry = Registry::default();
    Registry::builtin_groups()
        .map(|group| (group.into(), aggregated_group(&registry, group).to_string()))
        .collect()
});

/// Returns the aggregated document of the core group.
pub fn aggregated_core() -> Bytes {
    AGGREGATED_CORE.clone()
}

/// Returns the aggregated document of all other groups.
pub fn aggregated(registry: &Registry) -> Bytes {
    let groups: Vec<String> = group_names(registry)
        .iter()
        .map(|group| match AGGREGATED_BUILTIN.get(group.as_str()) {
            Some(made) if !is_extended(registry, group) => made.clone(),
            _ => aggregated_group(registry, group).to_string(),
        })
        .collect();
    whole(&groups.join(",")).into()
}

fn whole(items: &str) -> String {
    format!(
        "{{\"kind\":\"APIGroupDiscoveryList\",\"apiVersion\":\"apidiscovery.k8s.io/v2\",\"metadata\":{{}},\"items\":[{items}]}}"
    )
}

fn aggregated_group(registry: &Registry, group: &str) -> Value {
    let versions: Vec<Value> = versions(registry, group)
        .iter()
        .map(|version| {
            let resources: Vec<Value> = of_version(registry, group, version)
                .map(|(resource, version)| aggregated_resource(resource, version))
                .collect();
            json!({"version": version, "resources": resources, "freshness": "Current"})
        })
        .collect();
    json!({"metadata": {"name": group}, "versions": versions})
}

fn aggregated_resource(resource: &Resource, version: &Version) -> Value {
    // Custom resources name the group and version of their kind, built-in ones do not.
    let own = |kind: &str| match &resource.custom {
        Some(_) => json!({"group": resource.group, "version": version.name, "kind": kind}),
        None => json!({"group": "", "version": "", "kind": kind}),
    };
    let mut row = json!({
        "resource": resource.plural,
        "responseKind": own(&resource.kind),
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": resource.singular,
        "verbs": version.verbs,
    });
    add_names(&mut row, resource);
    let below: Vec<Value> = version
        .subresources
        .iter()
        .map(|subresource| {
            let Subresource {
                name,
                kind,
                verbs,
                group,
                version,
            } = subresource;
            let kind = match (group, version) {
                (None, None) => own(kind),
                (group, version) => json!({
                    "group": group.as_deref().unwrap_or_default(),
                    "version": version.as_deref().unwrap_or_default(),
                    "kind": kind,
                }),
            };
            json!({"subresource": name, "responseKind": kind, "verbs": verbs})
        })
        .collect();
    if !below.is_empty() {
        row["subresources"] = Value::Array(below);
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::custom;

    fn registry() -> Registry {
        let mut registry = Registry::default();
        let definition = json!({
            "metadata": {"name": "things.test.dev", "uid": "u"},
            "spec": {
                "group": "test.dev", "scope": "Namespaced",
                "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList",
                          "shortNames": ["th"]},
                "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                              "schema": {"openAPIV3Schema": {"type": "object"}}}],
            },
        });
        registry.serve(custom::resource(&definition).unwrap().unwrap());
        registry
    }

    fn read(bytes: &Bytes) -> Value {
        serde_json::from_slice(bytes).unwrap()
    }

    #[test]
    fn custom_groups_come_after_built_in_groups() {
        let document = read(&aggregated(&registry()));
        let groups = document["items"].as_array().unwrap();
        let last = groups.last().unwrap();
        assert_eq!(last["metadata"]["name"], "test.dev");
        let things = &last["versions"][0]["resources"][0];
        assert_eq!(things["shortNames"], json!(["th"]));
        assert_eq!(
            things["responseKind"],
            json!({"group": "test.dev", "version": "v1", "kind": "Thing"})
        );
        assert_eq!(things["subresources"][0]["subresource"], "status");
        assert!(groups.iter().any(|group| group["metadata"]["name"] == "apps"));
        let without = read(&aggregated(&Registry::default()));
        assert_eq!(without["items"].as_array().unwrap().len(), groups.len() - 1);
    }

    #[test]
    fn each_version_has_a_list_of_resources() {
        let registry = registry();
        let core = read(&resources(&registry, "", "v1").unwrap());
        let names: Vec<&Value> = core["resources"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| &row["name"])
            .collect();
        assert!(names.contains(&&json!("namespaces/status")), "{names:?}");
        let things = read(&resources(&registry, "test.dev", "v1").unwrap());
        assert_eq!(things["resources"][1]["name"], "things/status");
        assert!(resources(&registry, "apps", "v2").is_none());
        assert!(resources(&Registry::default(), "test.dev", "v1").is_none());
        let core = read(&aggregated_core());
        assert_eq!(core["items"][0]["metadata"], json!({}));
    }
}
