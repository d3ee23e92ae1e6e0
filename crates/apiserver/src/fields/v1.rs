//! The wire format of field sets, `FieldsV1`.
//!
//! A set is a JSON object with a member for each path element, named `f:`, `k:`, `v:` or `i:` and the element, and
//! `.` for a path that ends where others continue. The elements are in the order of [`PathElement`], which for keys
//! differs from that of the text: port 80 comes before port 443. The API server keeps this order in objects of
//! built-in kinds; custom resources, which it holds as JSON maps, have the order of the text.

use serde::de::Error as _;
use serde_json::{Map, Number, Value};
use thiserror::Error;

use super::{FieldSet, FieldSetBuilder, Node, PathElement};
use crate::value;

/// Why a text is not a field set.
#[derive(Debug, Error)]
pub enum FieldsV1Error {
    /// The text is not JSON.
    #[error("the fields are not JSON")]
    Json(#[source] serde_json::Error),
    /// A value is not an object.
    #[error("the fields below {at:?} are not a JSON object")]
    NotAnObject {
        /// The element; empty for the whole set.
        at: String,
    },
    /// An element cannot be parsed.
    #[error("the step {step:?} is not of the form f:, k:, v: or i: with content of that kind")]
    Step {
        /// The element as it appears in the text.
        step: String,
        /// What is wrong with its content, if that is JSON.
        #[source]
        source: Option<serde_json::Error>,
    },
}

impl FieldSet {
    /// Returns the set as text, byte for byte as the API server writes it in objects of built-in kinds.
    pub fn to_fields_v1(&self) -> String {
        let mut out = String::with_capacity(64);
        write_set(&mut out, self, false);
        out
    }

    /// Returns the set as a JSON value. The elements are in the order of a JSON map, as in custom resources.
    pub fn to_fields_v1_value(&self) -> Value {
        Value::Object(self.to_map(false))
    }

    /// Parses a set.
    ///
    /// # Errors
    /// [`FieldsV1Error`]. Unknown types of elements are ignored, since a later version may define them.
    pub fn from_fields_v1(text: &str) -> Result<Self, FieldsV1Error> {
        let value: Value = serde_json::from_str(text).map_err(FieldsV1Error::Json)?;
        Self::from_fields_v1_value(&value)
    }

    /// Parses a set from a JSON value.
    ///
    /// # Errors
    /// As for [`Self::from_fields_v1`].
    pub fn from_fields_v1_value(value: &Value) -> Result<Self, FieldsV1Error> {
        let (_, set) = read_set("", value)?;
        Ok(set)
    }

    fn to_map(&self, with_self: bool) -> Map<String, Value> {
        let mut map = Map::new();
        if with_self && !self.is_empty() {
            map.insert(".".to_owned(), Value::Object(Map::new()));
        }
        for node in self.nodes() {
            let mut step = String::new();
            write_step(&mut step, &node.element);
            map.insert(step, Value::Object(node.children.to_map(node.member)));
        }
        map
    }
}

fn write_set(out: &mut String, set: &FieldSet, with_self: bool) {
    out.push('{');
    let mut first = true;
    if with_self && !set.is_empty() {
        out.push_str("\".\":{}");
        first = false;
    }
    let mut step = String::new();
    for node in set.nodes() {
        if !first {
            out.push(',');
        }
        first = false;
        step.clear();
        write_step(&mut step, &node.element);
        write_json_string(out, &step);
        out.push(':');
        write_set(out, &node.children, node.member);
    }
    out.push('}');
}

fn write_step(out: &mut String, element: &PathElement) {
    match element {
        PathElement::Field(name) => {
            out.push_str("f:");
            out.push_str(name);
        }
        PathElement::Key(keys) => {
            out.push_str("k:{");
            for (i, (name, value)) in keys.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_json_string(out, name);
                out.push(':');
                write_value(out, value);
            }
            out.push('}');
        }
        PathElement::Value(value) => {
            out.push_str("v:");
            write_value(out, value);
        }
        PathElement::Index(index) => {
            out.push_str("i:");
            out.push_str(&index.to_string());
        }
    }
}

fn write_value(out: &mut String, value: &Value) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(bool) => out.push_str(if *bool { "true" } else { "false" }),
        Value::Number(number) => value::write_json_number(out, number),
        Value::String(text) => write_json_string(out, text),
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_value(out, item);
            }
            out.push(']');
        }
        Value::Object(map) => {
            out.push('{');
            for (i, (key, value)) in map.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_json_string(out, key);
                out.push(':');
                write_value(out, value);
            }
            out.push('}');
        }
    }
}

/// Writes a JSON string like Go's encoder, which escapes the characters that are special in HTML.
pub(crate) fn write_json_string(out: &mut String, text: &str) {
    const HEX: [char; 16] = [
        '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f',
    ];
    out.push('"');
    for char in text.chars() {
        match char {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '<' | '>' | '&' | '\0'..='\u{1f}' => {
                let code = u32::from(char) as usize;
                out.push_str("\\u00");
                out.push(HEX[(code >> 4) & 15]);
                out.push(HEX[code & 15]);
            }
            '\u{2028}' => out.push_str("\\u2028"),
            '\u{2029}' => out.push_str("\\u2029"),
            char => out.push(char),
        }
    }
    out.push('"');
}

/// Parses the children of an element; returns true if the element itself is in the set.
fn read_set(at: &str, value: &Value) -> Result<(bool, FieldSet), FieldsV1Error> {
    let map = match value {
        Value::Object(map) => map,
        Value::Null => return Ok((true, FieldSet::new())),
        _ => return Err(FieldsV1Error::NotAnObject { at: at.to_owned() }),
    };
    let mut member = false;
    let mut builder = FieldSetBuilder::default();
    for (step, below) in map {
        if step == "." {
            member = true;
            continue;
        }
        let Some(element) = read_step(step)? else {
            continue;
        };
        let (member, children) = read_set(step, below)?;
        builder.push(Node {
            element,
            member,
            children,
        });
    }
    let set = builder.build();
    Ok((member || set.is_empty(), set))
}

fn read_step(step: &str) -> Result<Option<PathElement>, FieldsV1Error> {
    let wrong = |source| FieldsV1Error::Step {
        step: step.to_owned(),
        source,
    };
    let (kind, content) = match step.as_bytes() {
        [kind, b':', ..] => (*kind, &step[2..]),
        _ => return Err(wrong(None)),
    };
    let element = match kind {
        b'f' => PathElement::field(content),
        b'v' => PathElement::Value(read_value(content).map_err(|error| wrong(Some(error)))?.into()),
        b'k' => match read_value(content).map_err(|error| wrong(Some(error)))? {
            Value::Object(keys) => PathElement::key(keys),
            _ => {
                return Err(wrong(Some(serde_json::Error::custom(
                    "the keys of an item are a JSON object",
                ))));
            }
        },
        b'i' => PathElement::Index(content.parse().map_err(|_| wrong(None))?),
        _ => return Ok(None),
    };
    Ok(Some(element))
}

/// Parses a value as the API server parses that of an element: every number is a float, which messages show.
fn read_value(text: &str) -> Result<Value, serde_json::Error> {
    let mut value: Value = serde_json::from_str(text)?;
    to_floats(&mut value);
    Ok(value)
}

fn to_floats(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(float) = number.as_f64().and_then(Number::from_f64) {
                *number = float;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(to_floats),
        Value::Object(map) => map.values_mut().for_each(to_floats),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_written_in_the_order_of_its_elements() {
        let text = r#"{"f:spec":{".":{},"f:ports":{"k:{\"port\":443,\"protocol\":\"TCP\"}":{},"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{}}},"f:<":{}},"f:finalizers":{"v:\"a&b\"":{}}}"#;
        let set = FieldSet::from_fields_v1(text).unwrap();
        assert_eq!(
            set.to_fields_v1(),
            r#"{"f:finalizers":{"v:\"a\\u0026b\"":{}},"f:spec":{".":{},"f:\u003c":{},"f:ports":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{}},"k:{\"port\":443,\"protocol\":\"TCP\"}":{}}}}"#
        );
        assert_eq!(
            FieldSet::from_fields_v1_value(&set.to_fields_v1_value()).unwrap(),
            set
        );
    }

    #[test]
    fn unknown_element_types_are_ignored() {
        let set = FieldSet::from_fields_v1(r#"{"x:new":{},"f:a":{"y:other":{}}}"#).unwrap();
        assert_eq!(set.to_fields_v1(), r#"{"f:a":{}}"#);
    }

    #[test]
    fn invalid_sets_are_rejected() {
        for text in [
            "",
            "[]",
            r#"{"f":{}}"#,
            r#"{"k:[1]":{}}"#,
            r#"{"v:x":{}}"#,
            r#"{"i:x":{}}"#,
            r#"{"f:a":1}"#,
        ] {
            assert!(FieldSet::from_fields_v1(text).is_err(), "{text}");
        }
    }
}
