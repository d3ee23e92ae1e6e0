//! OpenAPI documents: the operations of the API and the schemas of its kinds.
//!
//! `kubectl` requests the document of a version for `explain`, for the merge keys that `apply` needs, and to find out
//! whether the server validates fields. Definitions of built-in kinds have no descriptions; those of custom resources
//! have the descriptions of their authors.

mod custom;
mod definitions;
mod paths;
mod protobuf;
mod v2;

use std::collections::{BTreeMap, HashMap};
use std::sync::{LazyLock, Mutex, PoisonError};

use bytes::Bytes;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::discovery;
use crate::kinds::{Form, Registry, Resource, Version};

/// A document and its hash.
#[derive(Debug, Clone)]
pub struct Document {
    /// The hash of the content.
    pub hash: String,
    /// The content.
    pub bytes: Bytes,
}

/// The documents of built-in versions, computed on first use.
static BUILTIN: LazyLock<Mutex<HashMap<String, Document>>> = LazyLock::new(Mutex::default);

/// The data that all documents derive from.
static SOURCES: LazyLock<String> = LazyLock::new(|| {
    hash(&[
        definitions::SOURCE,
        include_str!("../kinds/resources.json"),
        env!("CARGO_PKG_VERSION"),
    ])
});

/// Returns the list of documents.
pub fn index(registry: &Registry) -> Value {
    let mut paths = Map::new();
    let mut add = |group: &str, version: &str| {
        let path = prefix(group, version);
        let hash = hash_of(registry, group, version);
        let url = format!("/openapi/v3/{path}?hash={hash}");
        paths.insert(path, json!({"serverRelativeURL": url}));
    };
    add("", "v1");
    for group in discovery::group_names(registry) {
        for version in discovery::versions(registry, &group) {
            add(&group, &version);
        }
    }
    json!({"paths": paths})
}

/// Returns the document of a version; `None` if the cluster serves none of its resources.
pub fn document(registry: &Registry, group: &str, version: &str) -> Option<Document> {
    if !registry.has_version(group, version) {
        return None;
    }
    let hash = hash_of(registry, group, version);
    let made = || BUILTIN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(document) = made().get(&hash) {
        return Some(document.clone());
    }
    let all: Vec<_> = discovery::of_version(registry, group, version).collect();
    let document = Document {
        bytes: write(&all).into(),
        hash,
    };
    if all.iter().all(|(resource, _)| resource.custom.is_none()) {
        made().insert(document.hash.clone(), document.clone());
    }
    Some(document)
}

/// Returns the OpenAPI v2 document as JSON.
pub fn v2(registry: &Registry) -> Document {
    static BUILTIN: LazyLock<Document> =
        LazyLock::new(|| Document::new(v2::document(&Registry::default()).to_string().into()));
    if registry.custom().next().is_none() {
        return BUILTIN.clone();
    }
    Document::new(v2::document(registry).to_string().into())
}

/// Returns the OpenAPI v2 document as protobuf.
pub fn v2_protobuf(registry: &Registry) -> Document {
    static BUILTIN: LazyLock<Document> =
        LazyLock::new(|| Document::new(protobuf::document(&v2::document(&Registry::default())).into()));
    if registry.custom().next().is_none() {
        return BUILTIN.clone();
    }
    Document::new(protobuf::document(&v2::document(registry)).into())
}

impl Document {
    /// Returns a document with the hash of its content.
    pub(crate) fn new(bytes: Bytes) -> Self {
        let digest = Sha256::digest(&bytes);
        Self {
            hash: digest.iter().map(|byte| format!("{byte:02X}")).collect(),
            bytes,
        }
    }
}

fn prefix(group: &str, version: &str) -> String {
    match group {
        "" => format!("api/{version}"),
        group => format!("apis/{group}/{version}"),
    }
}

fn hash(parts: &[&str]) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(part.as_bytes());
        digest.update([0]);
    }
    digest
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02X}"))
        .collect()
}

/// Returns the hash of a document without computing the document.
fn hash_of(registry: &Registry, group: &str, version: &str) -> String {
    let mut parts = vec![SOURCES.clone(), prefix(group, version)];
    for (resource, version) in discovery::of_version(registry, group, version) {
        let Form::Custom(custom) = &version.form else {
            continue;
        };
        let below: Vec<&str> = version.subresources.iter().map(|one| &*one.name).collect();
        parts.push(format!(
            "{}|{}|{}|{}|{below:?}|{}",
            resource.plural,
            resource.kind,
            resource.list_kind,
            resource.namespaced,
            custom.get().openapi()
        ));
    }
    hash(&parts.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Returns the name of a kind's definition.
fn definition_name(resource: &Resource, version: &Version) -> String {
    match &version.form {
        Form::Builtin(_) => definitions::of_kind(&resource.group, &version.name, &resource.kind)
            .map_or_else(String::new, str::to_owned),
        Form::Custom(_) => custom::name(&resource.group, &version.name, &resource.kind),
    }
}

fn list_name(resource: &Resource, version: &Version) -> String {
    match &version.form {
        Form::Builtin(_) => definitions::of_kind(&resource.group, &version.name, &resource.list_kind)
            .map_or_else(String::new, str::to_owned),
        Form::Custom(_) => custom::name(&resource.group, &version.name, &resource.list_kind),
    }
}

fn write(all: &[(&Resource, &Version)]) -> Vec<u8> {
    let mut paths = Map::new();
    let mut custom = BTreeMap::new();
    for (resource, version) in all {
        paths::add(&mut paths, resource, version);
        if let Form::Custom(form) = &version.form {
            custom.insert(
                definition_name(resource, version),
                custom::object(resource, version, form.get().openapi()).to_string(),
            );
            custom.insert(
                list_name(resource, version),
                custom::list(resource, version).to_string(),
            );
        }
    }
    let paths = Value::Object(paths).to_string();
    let mut needed = definitions::Needed::new(&custom);
    needed.add_references(&paths);
    let schemas: Vec<String> = needed
        .into_all()
        .into_iter()
        .map(|(name, text)| format!("{}:{text}", Value::from(name)))
        .collect();
    format!(
        "{{\"openapi\":\"3.0.0\",\"info\":{},\"paths\":{paths},\"components\":{{\"schemas\":{{{}}}}}}}",
        json!({"title": "Kubernetes", "version": discovery::KUBERNETES_VERSION}),
        schemas.join(",")
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::custom as kinds_custom;

    fn read(document: &Document) -> Value {
        serde_json::from_slice(&document.bytes).unwrap()
    }

    pub(super) fn registry() -> Registry {
        let mut registry = Registry::default();
        let definition = json!({
            "metadata": {"name": "things.test.dev", "uid": "u"},
            "spec": {
                "group": "test.dev", "scope": "Namespaced",
                "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
                "versions": [{"name": "v1", "served": true, "storage": true,
                    "subresources": {"scale": {"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n"}},
                    "schema": {"openAPIV3Schema": {
                        "type": "object", "description": "A thing.",
                        "properties": {"spec": {"type": "object", "properties": {
                            "n": {"type": "integer", "nullable": true},
                            "port": {"x-kubernetes-int-or-string": true}}}}}}}],
            },
        });
        registry.serve(kinds_custom::resource(&definition).unwrap().unwrap());
        registry
    }

    /// Collects every reference in a value.
    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                for (name, value) in map {
                    match (name.as_str(), value) {
                        ("$ref", Value::String(text)) => found.push(text.clone()),
                        (_, value) => references(value, found),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            _ => {}
        }
    }

    #[test]
    fn documents_contain_every_definition_that_they_refer_to() {
        let registry = registry();
        let index = index(&registry);
        let mut documents = 0;
        for path in index["paths"].as_object().unwrap().keys() {
            let steps: Vec<&str> = path.split('/').collect();
            let (group, version) = match steps.as_slice() {
                ["api", version] => ("", *version),
                ["apis", group, version] => (*group, *version),
                other => panic!("{other:?}"),
            };
            let document = read(&document(&registry, group, version).unwrap());
            let schemas = document["components"]["schemas"].as_object().unwrap();
            let mut found = Vec::new();
            references(&document, &mut found);
            assert!(!found.is_empty(), "{path}");
            for reference in found {
                let name = reference.strip_prefix("#/components/schemas/").unwrap();
                assert!(schemas.contains_key(name), "{path} {name}");
            }
            documents += 1;
        }
        assert!(documents > 15, "{documents}");
    }

    #[test]
    fn each_stored_kind_has_a_definition() {
        for resource in Registry::builtins() {
            for version in &resource.versions {
                assert!(!definition_name(resource, version).is_empty(), "{resource:?}");
                if version.can("list") {
                    assert!(!list_name(resource, version).is_empty(), "{resource:?}");
                }
            }
        }
    }

    #[test]
    fn a_definition_changes_the_hash_of_its_own_document_only() {
        let (without, with) = (index(&Registry::default()), index(&registry()));
        assert_eq!(without["paths"]["apis/apps/v1"], with["paths"]["apis/apps/v1"]);
        assert!(without["paths"]["apis/test.dev/v1"].is_null());
        assert!(document(&Registry::default(), "test.dev", "v1").is_none());
    }

    #[test]
    fn custom_kinds_have_the_descriptions_of_their_authors() {
        let document = read(&document(&registry(), "test.dev", "v1").unwrap());
        let thing = &document["components"]["schemas"]["dev.test.v1.Thing"];
        assert_eq!(thing["description"], "A thing.");
        assert_eq!(
            thing["x-kubernetes-group-version-kind"],
            json!([{"group": "test.dev", "version": "v1", "kind": "Thing"}])
        );
        assert!(thing["properties"]["metadata"]["allOf"][0]["$ref"].is_string());
        assert_eq!(
            thing["properties"]["spec"]["properties"]["port"]["anyOf"][0]["type"],
            "integer"
        );
        assert!(
            document["paths"]["/apis/test.dev/v1/namespaces/{namespace}/things/{name}/scale"].is_object()
        );
    }

    #[test]
    fn openapi_v2_has_no_broken_references() {
        let document = read(&v2(&registry()));
        let definitions = document["definitions"].as_object().unwrap();
        let mut found = Vec::new();
        references(&document, &mut found);
        for reference in found {
            let name = reference.strip_prefix("#/definitions/").unwrap();
            assert!(definitions.contains_key(name), "{name}");
        }
        let thing = &definitions["dev.test.v1.Thing"]["properties"]["spec"]["properties"];
        assert!(thing["n"]["type"].is_null(), "what may be null has no type");
        assert_eq!(
            definitions["io.k8s.apimachinery.pkg.util.intstr.IntOrString"],
            json!({"type": "string", "format": "int-or-string"})
        );
    }
}
