//! Reads fields of objects of any schema, with the tolerance of the Go library: see each function.

use std::fmt;

use serde_json::Value;

/// A field that does not have the schema of its kind.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed {
    pub(super) field: String,
    pub(super) expected: &'static str,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not {}", self.field, self.expected)
    }
}

/// A condition; missing fields are empty.
#[derive(Clone, Copy, Debug)]
pub(super) struct Condition<'a> {
    pub(super) type_: &'a str,
    pub(super) status: &'a str,
    pub(super) reason: &'a str,
    pub(super) message: &'a str,
}

/// Returns the value at a path. Everything below `null` is missing; a `null` at the end is a value.
pub(super) fn nested<'a>(object: &'a Value, path: &[&str]) -> Result<Option<&'a Value>, Malformed> {
    let mut value = object;
    for (depth, name) in path.iter().enumerate() {
        match value {
            Value::Null => return Ok(None),
            Value::Object(fields) => match fields.get(*name) {
                Some(inner) => value = inner,
                None => return Ok(None),
            },
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                return Err(Malformed {
                    field: path[..depth].join("."),
                    expected: "an object",
                });
            }
        }
    }
    Ok(Some(value))
}

/// Returns a field that must be a string if it exists.
pub(super) fn text<'a>(object: &'a Value, path: &[&str]) -> Result<Option<&'a str>, Malformed> {
    let read = |value: &'a Value| {
        value.as_str().ok_or_else(|| Malformed {
            field: path.join("."),
            expected: "a string",
        })
    };
    nested(object, path)?.map(read).transpose()
}

/// Returns a field that must be an integer if it exists.
pub(super) fn integer(object: &Value, path: &[&str]) -> Result<Option<i64>, Malformed> {
    let read = |value: &Value| {
        value.as_i64().ok_or_else(|| Malformed {
            field: path.join("."),
            expected: "an integer",
        })
    };
    nested(object, path)?.map(read).transpose()
}

/// Returns a string, or the default.
pub(super) fn text_or<'a>(object: &'a Value, path: &[&str], default: &'a str) -> &'a str {
    text(object, path).ok().flatten().unwrap_or(default)
}

/// Returns an integer, or the default.
pub(super) fn integer_or(object: &Value, path: &[&str], default: i64) -> i64 {
    integer(object, path).ok().flatten().unwrap_or(default)
}

/// Returns `status.conditions`: missing and `null` are empty; anything else than a list of objects with strings is
/// malformed.
pub(super) fn conditions(object: &Value) -> Result<Vec<Condition<'_>>, Malformed> {
    const EMPTY: Condition<'static> = Condition {
        type_: "",
        status: "",
        reason: "",
        message: "",
    };
    match nested(object, &["status", "conditions"])? {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(items)) => items
            .iter()
            .enumerate()
            .map(|(index, item)| match item {
                Value::Null => Ok(EMPTY),
                item => condition(index, item),
            })
            .collect(),
        Some(_) => Err(Malformed {
            field: "status.conditions".into(),
            expected: "a list",
        }),
    }
}

fn condition(index: usize, item: &Value) -> Result<Condition<'_>, Malformed> {
    let malformed = |what: &str, expected| Malformed {
        field: format!("status.conditions[{index}]{what}"),
        expected,
    };
    let fields = item.as_object().ok_or_else(|| malformed("", "an object"))?;
    let text = |name: &'static str| match fields.get(name) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text.as_str()),
        Some(_) => Err(malformed(&format!(".{name}"), "a string")),
    };
    Ok(Condition {
        type_: text("type")?,
        status: text("status")?,
        reason: text("reason")?,
        message: text("message")?,
    })
}
