//! The OpenAPI v2 document: one document for all versions, without the schema features that OpenAPI v2 lacks.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{custom, definition_name, definitions, list_name, paths};
use crate::discovery;
use crate::kinds::{Form, Registry};

pub(super) fn document(registry: &Registry) -> Value {
    let (mut all, mut own) = (Map::new(), BTreeMap::new());
    for group in std::iter::once(String::new()).chain(discovery::group_names(registry)) {
        for name in discovery::versions(registry, &group) {
            for (resource, version) in discovery::of_version(registry, &group, &name) {
                paths::add(&mut all, resource, version);
                let Form::Custom(form) = &version.form else {
                    continue;
                };
                let object = custom::object(resource, version, form.get().openapi());
                own.insert(definition_name(resource, version), object.to_string());
                own.insert(
                    list_name(resource, version),
                    custom::list(resource, version).to_string(),
                );
            }
        }
    }
    let mut needed = definitions::Needed::new(&own);
    needed.add_references(&Value::Object(all.clone()).to_string());
    let schemas: Map<String, Value> = needed
        .into_all()
        .into_iter()
        .map(|(name, text)| (name.to_owned(), schema(name, text)))
        .collect();
    let paths: Map<String, Value> = all
        .into_iter()
        .map(|(path, operations)| (path, downgrade_operations(operations)))
        .collect();
    let mut document = json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": discovery::KUBERNETES_VERSION},
        "paths": paths,
        "definitions": schemas,
    });
    rewrite_references(&mut document);
    document
}

/// Rewrites references to the form of OpenAPI v2.
fn rewrite_references(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                match value {
                    Value::String(text) if name == "$ref" => {
                        *text = text.replace("#/components/schemas/", "#/definitions/");
                    }
                    value => rewrite_references(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(rewrite_references),
        _ => {}
    }
}

fn schema(name: &str, text: &str) -> Value {
    match name {
        "io.k8s.apimachinery.pkg.api.resource.Quantity" => json!({"type": "string"}),
        "io.k8s.apimachinery.pkg.util.intstr.IntOrString" => {
            json!({"type": "string", "format": "int-or-string"})
        }
        _ => {
            // This program wrote the text.
            let mut schema = serde_json::from_str(text).unwrap_or_default();
            downgrade_schema(&mut schema);
            schema
        }
    }
}

/// Removes the schema features that OpenAPI v2 lacks.
fn downgrade_schema(schema: &mut Value) {
    let Some(map) = schema.as_object_mut() else { return };
    // A schema with a reference has no other fields.
    let reference = map
        .get("allOf")
        .and_then(|all| all.as_array()?.first()?.get("$ref").cloned());
    let may_be_null = map.remove("nullable") == Some(Value::Bool(true));
    if may_be_null {
        map.remove("type");
        map.remove("format");
        map.remove("items");
        map.remove("properties");
    }
    for name in ["default", "allOf", "anyOf", "oneOf", "not"] {
        map.remove(name);
    }
    if let Some(reference) = reference {
        map.insert("$ref".to_owned(), reference);
    }
    if map.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true)) {
        map.remove("properties");
        if map.remove("items").is_some() {
            map.remove("type");
        }
    }
    if let Some(fields) = map.get_mut("properties").and_then(Value::as_object_mut) {
        fields.values_mut().for_each(downgrade_schema);
    }
    for below in ["items", "additionalProperties"] {
        if let Some(below) = map.get_mut(below) {
            downgrade_schema(below);
        }
    }
}

/// Rewrites operations so that their bodies are parameters.
fn downgrade_operations(operations: Value) -> Value {
    let Value::Object(operations) = operations else {
        return operations;
    };
    let all = operations
        .into_iter()
        .map(|(method, operation)| (method, downgrade_operation(&operation)));
    Value::Object(all.collect())
}

fn downgrade_operation(operation: &Value) -> Value {
    let types = |content: &Value| -> Vec<String> {
        content
            .as_object()
            .into_iter()
            .flatten()
            .map(|(ty, _)| ty.clone())
            .collect()
    };
    let schema = |content: &Value| -> Value {
        let first = content.as_object().and_then(|map| map.values().next());
        first.map(|one| one["schema"].clone()).unwrap_or_default()
    };
    let answers = &operation["responses"]["200"]["content"];
    let sent = &operation["requestBody"]["content"];
    let mut parameters: Vec<Value> = operation["parameters"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|one| json!({"name": one["name"], "in": "query", "type": one["schema"]["type"], "uniqueItems": true}))
        .collect();
    if sent.is_object() {
        let required = operation["requestBody"]["required"] == true;
        parameters.insert(
            0,
            json!({"name": "body", "in": "body", "required": required, "schema": schema(sent)}),
        );
    }
    json!({
        "consumes": if sent.is_object() { types(sent) } else { vec!["*/*".to_owned()] },
        "produces": types(answers),
        "schemes": ["https"],
        "parameters": parameters,
        "responses": {"200": {"description": "OK", "schema": schema(answers)}},
        "x-kubernetes-action": operation["x-kubernetes-action"],
        "x-kubernetes-group-version-kind": operation["x-kubernetes-group-version-kind"],
    })
}
