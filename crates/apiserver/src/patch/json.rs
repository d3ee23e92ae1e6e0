//! JSON patch (RFC 6902) as implemented by `evanphx/json-patch` version 4.

use std::borrow::Cow;

use serde_json::{Map, Value};
use thiserror::Error;

use super::{MAX_OPERATIONS, MalformedPatch, NotApplicable, PatchError};
use crate::value::json_type;

/// Why an operation fails.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum OperationError {
    /// The operation is of an unknown kind.
    #[error("Unexpected kind: {kind}")]
    UnknownKind {
        /// The kind.
        kind: String,
    },
    /// The operation lacks a member.
    #[error("operation missing {member} field: missing value")]
    NoMember {
        /// The member.
        member: &'static str,
    },
    /// The object does not have the path.
    #[error("doc is missing path: \"{path}\": missing value")]
    NoPath {
        /// The path.
        path: String,
    },
    /// A list does not have the index.
    #[error("error for path '{path}': Unable to access invalid index: {index}: invalid index referenced")]
    InvalidIndex {
        /// The path.
        path: String,
        /// The last segment of the path.
        index: String,
    },
    /// The field to remove does not exist.
    #[error("Unable to remove nonexistent key: {key}: missing value")]
    NoKey {
        /// The field.
        key: String,
    },
    /// The whole object cannot be replaced with a scalar.
    #[error("replace operation value must be object or array")]
    ScalarDocument,
    /// The value is not the one that the test expects.
    #[error("testing value {path} failed: test failed")]
    TestFailed {
        /// The path.
        path: String,
    },
}

/// Applies the operations one after the other.
///
/// # Errors
/// [`PatchError`]; no operation takes effect.
pub fn json_patch(mut object: Value, patch: &Value) -> Result<Value, PatchError> {
    let operations = operations(patch)?;
    if operations.len() > MAX_OPERATIONS {
        return Err(PatchError::TooManyOperations(operations.len()));
    }
    for operation in operations {
        apply(&mut object, operation).map_err(NotApplicable::Operation)?;
    }
    Ok(object)
}

/// Returns the errors about unknown members of operations, for strict field validation.
pub fn unknown_in_json_patch(patch: &Value) -> Vec<String> {
    let operations = patch.as_array().map(Vec::as_slice).unwrap_or_default();
    let mut unknown = Vec::new();
    for (place, operation) in operations.iter().enumerate() {
        for name in operation.as_object().into_iter().flat_map(Map::keys) {
            if !matches!(name.as_str(), "op" | "path" | "from" | "value") {
                unknown.push(format!("json patch unknown field \"[{place}].{name}\""));
            }
        }
    }
    unknown
}

fn operations(patch: &Value) -> Result<Vec<&Map<String, Value>>, MalformedPatch> {
    let not = |value: &Value, target: &'static str| MalformedPatch::WrongType {
        found: json_type(value),
        target,
    };
    let list = match patch {
        Value::Null => return Ok(Vec::new()),
        Value::Array(list) => list,
        other => return Err(not(other, "[]handlers.jsonPatchOp")),
    };
    list.iter()
        .map(|entry| {
            entry
                .as_object()
                .ok_or_else(|| not(entry, "handlers.jsonPatchOp"))
        })
        .collect()
}

type Operation = Map<String, Value>;

fn apply(object: &mut Value, operation: &Operation) -> Result<(), OperationError> {
    let kind = operation.get("op").and_then(Value::as_str).unwrap_or("unknown");
    let value = || operation.get("value").cloned().unwrap_or_default();
    match kind {
        "add" => add(object, text(operation, "path")?, value()),
        "remove" => remove(object, text(operation, "path")?).map(drop),
        "replace" => replace(object, text(operation, "path")?, value()),
        "move" => {
            let moved = remove(object, text(operation, "from")?)?;
            add(object, text(operation, "path")?, moved)
        }
        "copy" => {
            // A missing value is copied as null.
            let copied = get(object, text(operation, "from")?)?
                .cloned()
                .unwrap_or_default();
            add(object, text(operation, "path")?, copied)
        }
        "test" => test(object, text(operation, "path")?, operation.get("value")),
        other => Err(OperationError::UnknownKind {
            kind: other.to_owned(),
        }),
    }
}

fn text<'a>(operation: &'a Operation, member: &'static str) -> Result<&'a str, OperationError> {
    operation
        .get(member)
        .and_then(Value::as_str)
        .ok_or(OperationError::NoMember { member })
}

fn decode(part: &str) -> Cow<'_, str> {
    if !part.contains('~') {
        return Cow::Borrowed(part);
    }
    // Decode in one pass from left to right: `~01` is `~1`.
    let mut out = String::with_capacity(part.len());
    let mut rest = part;
    while let Some(place) = rest.find('~') {
        out.push_str(&rest[..place]);
        let (char, length) = match rest.as_bytes().get(place + 1) {
            Some(b'1') => ('/', 2),
            Some(b'0') => ('~', 2),
            _ => ('~', 1),
        };
        out.push(char);
        rest = &rest[place + length..];
    }
    out.push_str(rest);
    Cow::Owned(out)
}

fn missing(path: &str) -> OperationError {
    OperationError::NoPath {
        path: path.to_owned(),
    }
}

/// Splits a path into its parent's segments and the last segment; `None` for the whole object.
fn split(path: &str) -> Option<(Vec<&str>, Cow<'_, str>)> {
    let mut parts: Vec<&str> = path.split('/').collect();
    let last = parts.pop()?;
    // The text before the first slash is ignored.
    if parts.is_empty() {
        return None;
    }
    parts.remove(0);
    Some((parts, decode(last)))
}

/// Returns the parent of the value that a path names, and the last segment.
fn parent<'a, 'p>(
    object: &'a mut Value,
    path: &'p str,
) -> Result<(&'a mut Value, Cow<'p, str>), OperationError> {
    let (steps, last) = split(path).ok_or_else(|| missing(path))?;
    let mut place = object;
    for step in steps {
        let step = decode(step);
        place = match place {
            Value::Object(map) => map.get_mut(step.as_ref()),
            Value::Array(list) => existing(list, &step).and_then(|index| list.get_mut(index)),
            _ => None,
        }
        .ok_or_else(|| missing(path))?;
    }
    if place.is_object() || place.is_array() {
        Ok((place, last))
    } else {
        Err(missing(path))
    }
}

/// Returns the index of an existing item. Negative indices count from the end.
fn existing(list: &[Value], step: &str) -> Option<usize> {
    let index: i64 = step.parse().ok()?;
    let length = i64::try_from(list.len()).ok()?;
    let index = if index < 0 { index + length } else { index };
    (0..length)
        .contains(&index)
        .then(|| usize::try_from(index).ok())
        .flatten()
}

fn invalid_index(path: &str, index: &str) -> OperationError {
    OperationError::InvalidIndex {
        path: path.to_owned(),
        index: index.to_owned(),
    }
}

fn add(object: &mut Value, path: &str, value: Value) -> Result<(), OperationError> {
    let (place, last) = parent(object, path)?;
    match place {
        Value::Object(map) => {
            map.insert(last.into_owned(), value);
        }
        Value::Array(list) if last == "-" => list.push(value),
        Value::Array(list) => {
            // A new item may come after the last one, which -1 refers to.
            let index: i64 = last.parse().map_err(|_| invalid_index(path, &last))?;
            let length = i64::try_from(list.len()).unwrap_or(i64::MAX);
            let index = if index < 0 { index + length + 1 } else { index };
            let index = (0..=length)
                .contains(&index)
                .then(|| usize::try_from(index).ok())
                .flatten()
                .ok_or_else(|| invalid_index(path, &last))?;
            list.insert(index, value);
        }
        _ => return Err(missing(path)),
    }
    Ok(())
}

fn remove(object: &mut Value, path: &str) -> Result<Value, OperationError> {
    let (place, last) = parent(object, path)?;
    match place {
        Value::Object(map) => map.remove(last.as_ref()).ok_or_else(|| OperationError::NoKey {
            key: last.into_owned(),
        }),
        Value::Array(list) => match existing(list, &last) {
            Some(index) => Ok(list.remove(index)),
            None => Err(invalid_index(path, &last)),
        },
        _ => Err(missing(path)),
    }
}

fn replace(object: &mut Value, path: &str, value: Value) -> Result<(), OperationError> {
    if path.is_empty() {
        if !value.is_object() && !value.is_array() {
            return Err(OperationError::ScalarDocument);
        }
        *object = value;
        return Ok(());
    }
    let (place, last) = parent(object, path)?;
    match place {
        Value::Object(map) => {
            map.insert(last.into_owned(), value);
        }
        Value::Array(list) => {
            let item = existing(list, &last).and_then(|index| list.get_mut(index));
            *item.ok_or_else(|| invalid_index(path, &last))? = value;
        }
        _ => return Err(missing(path)),
    }
    Ok(())
}

/// Returns the value at a path; `None` if its last segment is missing in a map.
fn get<'a>(object: &'a mut Value, path: &str) -> Result<Option<&'a Value>, OperationError> {
    let (place, last) = parent(object, path)?;
    match place {
        Value::Object(map) => Ok(map.get(last.as_ref())),
        Value::Array(list) => match existing(list, &last) {
            Some(index) => Ok(list.get(index)),
            None => Err(invalid_index(path, &last)),
        },
        _ => Err(missing(path)),
    }
}

fn test(object: &mut Value, path: &str, wanted: Option<&Value>) -> Result<(), OperationError> {
    let found = if path.is_empty() {
        Some(&*object)
    } else {
        get(object, path)?
    };
    let same = match (found, wanted) {
        // A missing value equals null.
        (None | Some(Value::Null), wanted) => wanted.is_none_or(Value::is_null),
        (Some(found), Some(wanted)) => found == wanted,
        (Some(_), None) => false,
    };
    if same {
        Ok(())
    } else {
        Err(OperationError::TestFailed {
            path: path.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use serde_json::json;

    use super::*;

    #[test]
    fn a_failed_operation_is_the_source_of_the_error() {
        for (operation, wanted) in [
            (json!({}), "Unexpected kind: unknown"),
            (
                json!({"op": "add"}),
                "operation missing path field: missing value",
            ),
            (
                json!({"op": "move", "path": "/b"}),
                "operation missing from field: missing value",
            ),
            (
                json!({"op": "add", "path": "/x/y"}),
                "doc is missing path: \"/x/y\": missing value",
            ),
            (
                json!({"op": "add", "path": "/list/3"}),
                "error for path '/list/3': Unable to access invalid index: 3: invalid index referenced",
            ),
            (
                json!({"op": "remove", "path": "/x"}),
                "Unable to remove nonexistent key: x: missing value",
            ),
            (
                json!({"op": "replace", "path": "", "value": 1}),
                "replace operation value must be object or array",
            ),
            (
                json!({"op": "test", "path": "/list", "value": 1}),
                "testing value /list failed: test failed",
            ),
        ] {
            let error = json_patch(json!({"list": [1]}), &json!([operation])).unwrap_err();
            assert_eq!((error.code(), error.reason()), (422, "Invalid"));
            assert_eq!(error.source().map(ToString::to_string).as_deref(), Some(wanted));
        }
    }
}
