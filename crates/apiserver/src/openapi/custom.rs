//! OpenAPI definitions of custom kinds: the schema of the CustomResourceDefinition and the fields of every object.

use serde_json::{Value, json};

use crate::kinds::{Resource, Version};

/// Returns the name of a kind's OpenAPI definition: the reversed group, the version and the kind.
pub(super) fn name(group: &str, version: &str, kind: &str) -> String {
    let mut parts: Vec<&str> = group.split('.').rev().collect();
    parts.extend([version, kind]);
    parts.join(".")
}

fn kinds(resource: &Resource, version: &Version, kind: &str) -> Value {
    json!([{"group": resource.group, "version": version.name, "kind": kind}])
}

fn metadata(kind: &str) -> Value {
    json!({"allOf": [{"$ref": format!("#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.{kind}")}]})
}

/// Returns the definition of the kind.
pub(super) fn object(resource: &Resource, version: &Version, schema: &Value) -> Value {
    let mut schema = if schema.is_object() {
        schema.clone()
    } else {
        json!({"type": "object"})
    };
    complete(&mut schema, true);
    let properties = &mut schema["properties"];
    if !properties.is_object() {
        *properties = json!({});
    }
    for field in ["apiVersion", "kind"] {
        if properties[field].is_null() {
            properties[field] = json!({});
        }
        properties[field]["type"] = json!("string");
    }
    let described = properties["metadata"].get("description").cloned();
    properties["metadata"] = metadata("ObjectMeta");
    if let Some(text) = described {
        properties["metadata"]["description"] = text;
    }
    schema["x-kubernetes-group-version-kind"] = kinds(resource, version, &resource.kind);
    schema
}

/// Returns the definition of the kind's lists.
pub(super) fn list(resource: &Resource, version: &Version) -> Value {
    let item = name(&resource.group, &version.name, &resource.kind);
    json!({
        "type": "object",
        "required": ["items"],
        "description": format!("{} is a list of {}", resource.list_kind, resource.kind),
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": metadata("ListMeta"),
            "items": {"type": "array", "items": {"$ref": format!("#/components/schemas/{item}")}},
        },
        "x-kubernetes-group-version-kind": kinds(resource, version, &resource.list_kind),
    })
}

/// Adds the OpenAPI equivalent of the extensions of a structural schema.
fn complete(schema: &mut Value, is_root: bool) {
    if schema["x-kubernetes-int-or-string"] == true && schema["anyOf"].is_null() {
        schema["anyOf"] = json!([{"type": "integer"}, {"type": "string"}]);
    }
    if !is_root && schema["x-kubernetes-embedded-resource"] == true {
        let properties = &mut schema["properties"];
        if !properties.is_object() {
            *properties = json!({});
        }
        properties["apiVersion"] = json!({"type": "string"});
        properties["kind"] = json!({"type": "string"});
        properties["metadata"] = metadata("ObjectMeta");
    }
    if let Some(fields) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        fields.values_mut().for_each(|field| complete(field, false));
    }
    for below in ["items", "additionalProperties"] {
        if let Some(below) = schema.get_mut(below).filter(|below| below.is_object()) {
            complete(below, false);
        }
    }
}
