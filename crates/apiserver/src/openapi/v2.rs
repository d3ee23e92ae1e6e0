//! The document in the form of OpenAPI 2, which has one for all and fewer words: what it cannot say is left out.

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
    needed.refer(&Value::Object(all.clone()).to_string());
    let schemas: Map<String, Value> = needed
        .into_all()
        .into_iter()
        .map(|(name, text)| (name.to_owned(), schema(name, text)))
        .collect();
    let paths: Map<String, Value> = all
        .into_iter()
        .map(|(path, operations)| (path, older_operations(operations)))
        .collect();
    let mut document = json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": crate::http::VERSION},
        "paths": paths,
        "definitions": schemas,
    });
    refer(&mut document);
    document
}

/// Brings references into the form that they have here.
fn refer(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                match value {
                    Value::String(text) if name == "$ref" => {
                        *text = text.replace("#/components/schemas/", "#/definitions/");
                    }
                    value => refer(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(refer),
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
            // Written by this program or part of it.
            let mut schema = serde_json::from_str(text).unwrap_or_default();
            older(&mut schema);
            schema
        }
    }
}

/// Takes away what OpenAPI 2 has no words for.
fn older(schema: &mut Value) {
    let Some(map) = schema.as_object_mut() else { return };
    // A reference says all.
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
        fields.values_mut().for_each(older);
    }
    for below in ["items", "additionalProperties"] {
        if let Some(below) = map.get_mut(below) {
            older(below);
        }
    }
}

/// Operations with their bodies among the parameters.
fn older_operations(operations: Value) -> Value {
    let Value::Object(operations) = operations else {
        return operations;
    };
    let all = operations
        .into_iter()
        .map(|(method, operation)| (method, older_operation(&operation)));
    Value::Object(all.collect())
}

fn older_operation(operation: &Value) -> Value {
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
