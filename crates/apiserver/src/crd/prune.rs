//! The removal of fields that a schema does not declare, and of nulls that it does not allow.

use serde_json::{Map, Value};

use super::schema::{Additional, Schema};

/// The fields that every resource has, whatever its schema declares.
const OF_RESOURCES: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Removes undeclared fields and returns their paths, sorted.
pub(super) fn prune(object: &mut Value, schema: &Schema) -> Vec<String> {
    let mut walk = Walk {
        path: String::new(),
        unknown: Vec::new(),
    };
    if schema.preserve_unknown {
        walk.below_preserved(object, schema, true);
    } else if let Value::Object(fields) = object {
        walk.fields(fields, Some(schema), true);
    }
    walk.unknown.sort_unstable();
    walk.unknown
}

/// Removes undeclared fields from a value that is not a resource, such as a default.
pub(super) fn prune_value(value: &mut Value, schema: &Schema) {
    let mut walk = Walk {
        path: String::new(),
        unknown: Vec::new(),
    };
    walk.value(value, Some(schema));
}

struct Walk {
    path: String,
    unknown: Vec<String>,
}

impl Walk {
    fn at_key(&mut self, key: &str, visit: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        if length > 0 {
            self.path.push('.');
        }
        self.path.push_str(key);
        visit(self);
        self.path.truncate(length);
    }

    fn at_index(&mut self, index: usize, visit: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        self.path.push_str(&format!("[{index}]"));
        visit(self);
        self.path.truncate(length);
    }

    fn report(&mut self, key: &str) {
        self.at_key(key, |walk| walk.unknown.push(walk.path.clone()));
    }

    fn value(&mut self, value: &mut Value, schema: Option<&Schema>) {
        if let Some(schema) = schema.filter(|schema| schema.preserve_unknown) {
            return self.below_preserved(value, schema, false);
        }
        match value {
            Value::Object(fields) => self.fields(fields, schema, false),
            Value::Array(items) => {
                let schema = schema.and_then(|schema| schema.items.as_deref());
                for (index, item) in items.iter_mut().enumerate() {
                    self.at_index(index, |walk| walk.value(item, schema));
                }
            }
            _ => {}
        }
    }

    fn fields(&mut self, fields: &mut Map<String, Value>, schema: Option<&Schema>, root: bool) {
        let Some(schema) = schema else {
            fields.keys().for_each(|key| self.report(key));
            fields.clear();
            return;
        };
        let of_resource = root || schema.embedded;
        fields.retain(|key, value| {
            if of_resource && OF_RESOURCES.contains(&key.as_str()) {
                return true;
            }
            let (known, below) = match (schema.properties.get(key), &schema.additional) {
                (Some(property), _) => (true, Some(property)),
                (None, Some(Additional::Schema(schema))) => (true, Some(schema.as_ref())),
                (None, Some(Additional::Any)) => (true, None),
                (None, Some(Additional::None) | None) => (false, None),
            };
            if known {
                self.at_key(key, |walk| walk.value(value, below));
            } else if !OF_RESOURCES.contains(&key.as_str()) || !self.path.is_empty() {
                self.report(key);
            }
            known
        });
    }

    /// Prunes the declared fields below a value whose undeclared fields are preserved.
    fn below_preserved(&mut self, value: &mut Value, schema: &Schema, root: bool) {
        match value {
            Value::Object(fields) => {
                for (key, value) in fields {
                    if (root || schema.embedded) && OF_RESOURCES.contains(&key.as_str()) {
                        continue;
                    }
                    let below = match (schema.properties.get(key), &schema.additional) {
                        (Some(property), _) => Some(property),
                        (None, Some(Additional::Schema(schema))) => Some(schema.as_ref()),
                        (None, Some(Additional::Any)) => None,
                        (None, Some(Additional::None) | None) => continue,
                    };
                    self.at_key(key, |walk| walk.value(value, below));
                }
            }
            Value::Array(items) => {
                let Some(schema) = schema.items.as_deref() else {
                    return;
                };
                for (index, item) in items.iter_mut().enumerate() {
                    self.at_index(index, |walk| walk.below_preserved(item, schema, false));
                }
            }
            _ => {}
        }
    }
}

/// Removes null fields that are not nullable and have no default.
pub(super) fn drop_nulls(value: &mut Value, schema: Option<&Schema>) {
    match value {
        Value::Object(fields) => fields.retain(|name, value| {
            let below = schema.and_then(|schema| schema.field(name));
            let drop = value.is_null() && below.is_some_and(|it| !it.nullable && it.default.is_none());
            if !drop {
                drop_nulls(value, below);
            }
            !drop
        }),
        Value::Array(items) => {
            let below = schema.and_then(|schema| schema.items.as_deref());
            items.iter_mut().for_each(|item| drop_nulls(item, below));
        }
        _ => {}
    }
}
