//! The defaults of a schema.

use serde_json::Value;

use super::schema::Schema;

/// Sets the defaults of missing fields, and of null fields that are not nullable.
pub(super) fn apply(value: &mut Value, schema: &Schema) {
    match value {
        Value::Object(fields) => {
            for (name, property) in &schema.properties {
                let Some(default) = &property.default else {
                    continue;
                };
                let missing = match fields.get(name) {
                    None => true,
                    Some(Value::Null) => !property.nullable,
                    Some(_) => false,
                };
                if missing {
                    fields.insert(name.clone(), default.clone());
                }
            }
            for (name, value) in fields {
                if let Some(property) = schema.properties.get(name) {
                    apply(value, property);
                } else if let Some(schema) = schema.additional_schema() {
                    replace_null(value, schema);
                    apply(value, schema);
                }
            }
        }
        Value::Array(items) => {
            let Some(schema) = schema.items.as_deref() else {
                return;
            };
            for item in items {
                replace_null(item, schema);
                apply(item, schema);
            }
        }
        _ => {}
    }
}

fn replace_null(value: &mut Value, schema: &Schema) {
    if value.is_null()
        && !schema.nullable
        && let Some(default) = &schema.default
    {
        *value = default.clone();
    }
}
