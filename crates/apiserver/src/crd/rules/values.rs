//! The conversion of objects to CEL: the declared fields, under names that CEL allows.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, Duration, FixedOffset};
use serde_json::{Map as Json, Value};
use starling_cel::cel::Value as Cel;
use starling_cel::cel::objects::{Key, Map};

use crate::crd::schema::Schema;
use crate::crd::time;

/// The reserved words of CEL.
const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// Returns the name of a field in rules; `None` if rules cannot access the field.
pub(super) fn escape(name: &str) -> Option<Cow<'_, str>> {
    if RESERVED.contains(&name) {
        return Some(Cow::Owned(format!("__{name}__")));
    }
    let fits = |char: char| char.is_ascii_alphanumeric() || "_.-/".contains(char);
    if name.is_empty() || name.starts_with(|char: char| char.is_ascii_digit()) || !name.chars().all(fits) {
        return None;
    }
    if !name.contains(['.', '-', '/']) && !name.contains("__") {
        return Some(Cow::Borrowed(name));
    }
    let escaped = name
        .replace("__", "__underscores__")
        .replace('.', "__dot__")
        .replace('-', "__dash__")
        .replace('/', "__slash__");
    Some(Cow::Owned(escaped))
}

/// Converts a value to the form that rules see.
pub(super) fn to_cel(value: &Value, schema: &Schema, of_resource: bool) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(bool) => Cel::Bool(*bool),
        Value::Number(number) => match number.as_i64() {
            #[expect(clippy::cast_precision_loss, reason = "numbers of a schema are floats in CEL")]
            Some(int) if schema.ty == "number" => Cel::Float(int as f64),
            Some(int) => Cel::Int(int),
            #[expect(clippy::cast_possible_truncation, reason = "an integer may be written as 1.0")]
            None if schema.ty == "integer" => Cel::Int(number.as_f64().unwrap_or_default() as i64),
            None => Cel::Float(number.as_f64().unwrap_or_default()),
        },
        Value::String(text) => text_to_cel(text, schema),
        Value::Array(items) => {
            let item = |item| match schema.items.as_deref() {
                Some(schema) => to_cel(item, schema, schema.embedded),
                None => Cel::Null,
            };
            Cel::List(Arc::new(items.iter().map(item).collect()))
        }
        Value::Object(fields) => Cel::Map(Map {
            map: Arc::new(fields_to_cel(fields, schema, of_resource)),
        }),
    }
}

fn fields_to_cel(fields: &Json<String, Value>, schema: &Schema, of_resource: bool) -> HashMap<Key, Cel> {
    let text = |text: &str| Key::String(Arc::new(text.to_owned()));
    if let Some(schema) = schema.additional_schema() {
        return fields
            .iter()
            .map(|(name, value)| (text(name), to_cel(value, schema, schema.embedded)))
            .collect();
    }
    let mut seen = HashMap::with_capacity(fields.len());
    for (name, value) in fields {
        if of_resource && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
            continue;
        }
        if let (Some(schema), Some(escaped)) = (schema.properties.get(name), escape(name)) {
            seen.insert(text(&escaped), to_cel(value, schema, schema.embedded));
        }
    }
    if of_resource {
        let string = |value: &Value| Cel::String(Arc::new(value.as_str().unwrap_or_default().to_owned()));
        for name in ["apiVersion", "kind"] {
            if let Some(value) = fields.get(name) {
                seen.insert(text(name), string(value));
            }
        }
        if let Some(Value::Object(metadata)) = fields.get("metadata") {
            let shown = ["name", "generateName"]
                .into_iter()
                .filter_map(|name| Some((text(name), string(metadata.get(name)?))));
            let metadata = Map {
                map: Arc::new(shown.collect()),
            };
            seen.insert(text("metadata"), Cel::Map(metadata));
        }
    }
    seen
}

/// Converts a string by its format; a string that does not match its format stays a string.
fn text_to_cel(text: &str, schema: &Schema) -> Cel {
    let read = match schema.format.as_str() {
        "date-time" => date_time(text).map(Cel::Timestamp),
        "date" => date_time(&format!("{text}T00:00:00Z")).map(Cel::Timestamp),
        "duration" => time::duration(text).map(|nanos| Cel::Duration(Duration::nanoseconds(nanos))),
        "byte" => STANDARD
            .decode(text)
            .ok()
            .map(|bytes| Cel::Bytes(Arc::new(bytes))),
        _ => None,
    };
    read.unwrap_or_else(|| Cel::String(Arc::new(text.to_owned())))
}

fn date_time(text: &str) -> Option<DateTime<FixedOffset>> {
    DateTime::parse_from_rfc3339(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_as_in_kubernetes() {
        for (name, escaped) in [
            ("plain_name", Some("plain_name")),
            ("namespace", Some("__namespace__")),
            ("a.b-c/d", Some("a__dot__b__dash__c__slash__d")),
            ("a__b", Some("a__underscores__b")),
            ("9a", None),
            ("é", None),
            ("", None),
        ] {
            assert_eq!(escape(name).as_deref(), escaped, "{name}");
        }
    }
}
