//! Definitions of custom resources, and the finalizers of their objects, which need no prefix.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::crd::is_known_format;
use crate::object::names;

/// The finalizers of Kubernetes itself.
const STANDARD: [&str; 3] = ["orphan", "foregroundDeletion", "kubernetes"];

/// Returns the warnings about the finalizers that a custom resource gains.
pub(in crate::kinds) fn check(object: &Value, old: Option<&Value>) -> Vec<String> {
    let all = |object: &Value| -> BTreeSet<String> {
        let list = object["metadata"]["finalizers"].as_array();
        let texts = list.into_iter().flatten().filter_map(Value::as_str);
        texts.map(str::to_owned).collect()
    };
    let before = old.map(all).unwrap_or_default();
    let mut out = Vec::new();
    for name in all(object).difference(&before) {
        let path = format!("metadata.finalizers: {name:?}");
        out.extend(
            names::qualified_name(name)
                .iter()
                .map(|why| format!("{path}: {why}")),
        );
        if !name.contains('/') && !STANDARD.contains(&name.as_str()) {
            let how = if name.contains('.') {
                " including a path (/)"
            } else {
                ""
            };
            out.push(format!("{path}: prefer a domain-qualified finalizer name{how} to avoid accidental conflicts with other finalizer writers"));
        }
    }
    out
}

/// Names the formats of a definition that no API server checks, except for those that it had before.
pub(super) fn definition(object: &Value, old: Option<&Value>, out: &mut Vec<String>) {
    let all = |object: &Value| {
        let mut found = Vec::new();
        for version in object["spec"]["versions"].as_array().into_iter().flatten() {
            unknown(&version["schema"]["openAPIV3Schema"], &mut found);
        }
        found
    };
    let before = old.map(all).unwrap_or_default();
    for format in all(object) {
        if !before.contains(&format) {
            out.push(format!("unrecognized format {format:?}"));
        }
    }
}

/// Collects the unknown formats of a schema and of the schemas within.
fn unknown(schema: &Value, found: &mut Vec<String>) {
    let Some(schema) = schema.as_object() else { return };
    if let Some(format) = schema.get("format").and_then(Value::as_str)
        && !format.is_empty()
        && schema.get("type").is_some_and(|of| of == "string")
        && !is_known_format(format)
    {
        found.push(format.to_owned());
    }
    for part in ["items", "not", "additionalProperties", "additionalItems"] {
        within(schema, part, found);
    }
    for part in ["allOf", "oneOf", "anyOf"] {
        within(schema, part, found);
    }
    for part in ["properties", "patternProperties", "definitions", "dependencies"] {
        let parts = schema.get(part).and_then(Value::as_object);
        for one in parts.into_iter().flat_map(Map::values) {
            unknown(one, found);
        }
    }
}

fn within(schema: &Map<String, Value>, part: &str, found: &mut Vec<String>) {
    match schema.get(part) {
        Some(Value::Array(all)) => all.iter().for_each(|one| unknown(one, found)),
        Some(one) => unknown(one, found),
        None => {}
    }
}
