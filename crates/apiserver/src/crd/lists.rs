//! The check of lists that are sets or have keys for duplicate items.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::schema::Schema;
use crate::cause::Cause;

/// Returns the duplicate items, each once, at its second position.
pub(super) fn check(value: &Value, schema: &Schema) -> Vec<Cause> {
    let mut causes = Vec::new();
    if let Value::Object(fields) = value {
        check_fields(fields, schema, "", &mut causes);
    }
    causes
}

fn check_fields(fields: &Map<String, Value>, schema: &Schema, path: &str, causes: &mut Vec<Cause>) {
    for (name, value) in fields {
        if let Some(below) = schema.additional_schema() {
            check_value(value, below, &key(path, name), causes);
        }
        if let Some(below) = schema.properties.get(name) {
            check_value(value, below, &child(path, name), causes);
        }
    }
}

/// Returns `path[name]`, the path of an undeclared field in causes.
pub(super) fn key(path: &str, name: &str) -> String {
    let path = if path.is_empty() { "<nil>" } else { path };
    format!("{path}[{name}]")
}

/// Returns `path.name`.
pub(super) fn child(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

fn check_value(value: &Value, schema: &Schema, path: &str, causes: &mut Vec<Cause>) {
    match value {
        Value::Object(fields) => check_fields(fields, schema, path, causes),
        Value::Array(items) => {
            match schema.list_type.as_str() {
                "set" => {
                    let places = duplicates(items);
                    causes.extend(
                        places.map(|place| Cause::duplicate(format!("{path}[{place}]"), &items[place])),
                    );
                }
                "map" => check_keys(items, &schema.list_keys, path, causes),
                _ => {}
            }
            if let Some(schema) = &schema.items {
                for (index, item) in items.iter().enumerate() {
                    check_value(item, schema, &format!("{path}[{index}]"), causes);
                }
            }
        }
        _ => {}
    }
}

fn check_keys(items: &[Value], names: &[String], path: &str, causes: &mut Vec<Cause>) {
    let stranger = items.iter().position(|item| !item.is_object() && !item.is_null());
    if let Some(place) = stranger {
        let why = "must be an object for an array of list-type map";
        causes.push(Cause::invalid(format!("{path}[{place}]"), &items[place], why));
        return;
    }
    let keys: Vec<Value> = items
        .iter()
        .map(|item| {
            let mut keys = json!({});
            for name in names {
                if let Some(value) = item.get(name) {
                    keys[name] = value.clone();
                }
            }
            keys
        })
        .collect();
    for place in duplicates(&keys) {
        causes.push(Cause::duplicate(format!("{path}[{place}]"), &keys[place]));
    }
}

/// Returns the second positions of values that occur more than once.
fn duplicates(values: &[Value]) -> impl Iterator<Item = usize> {
    let mut seen: HashMap<String, usize> = HashMap::with_capacity(values.len());
    values.iter().enumerate().filter_map(move |(place, value)| {
        let times = seen.entry(value.to_string()).or_default();
        *times += 1;
        (*times == 2).then_some(place)
    })
}
