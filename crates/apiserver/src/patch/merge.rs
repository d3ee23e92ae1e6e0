//! Merge patch (RFC 7386) as implemented by `evanphx/json-patch` version 4.

use serde_json::{Map, Value};

use super::{MalformedPatch, PatchError};
use crate::value::json_type;

/// Applies a merge patch: null removes a field, maps merge, everything else is replaced.
///
/// Unlike in the RFC, nulls are also removed from maps within lists if the list has no previous value.
///
/// # Errors
/// [`PatchError::Malformed`] for a patch that is not an object.
pub fn merge_patch(mut object: Value, patch: Value) -> Result<Value, PatchError> {
    let patch = match patch {
        Value::Object(patch) => patch,
        Value::Null => return Err(MalformedPatch::Null.into()),
        other => {
            return Err(PatchError::Malformed(MalformedPatch::WrongType {
                found: json_type(&other),
                target: "map[string]interface {}",
            }));
        }
    };
    let Value::Object(fields) = &mut object else {
        return Err(MalformedPatch::Document.into());
    };
    merge(fields, patch);
    Ok(object)
}

fn merge(object: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (name, mut new) in patch {
        if new.is_null() {
            object.remove(&name);
            continue;
        }
        match object.get_mut(&name) {
            Some(Value::Object(old)) => match new {
                Value::Object(new) => merge(old, new),
                new => {
                    object.insert(name, new);
                }
            },
            _ => {
                drop_nulls(&mut new);
                object.insert(name, new);
            }
        }
    }
}

/// Removes the null fields from all maps of a value.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}
