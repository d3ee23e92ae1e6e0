//! The migration from client-side to server-side apply with kubectl.
//!
//! Client-side `kubectl apply` keeps the last configuration in an annotation and owns its fields as an updater. When
//! a manager named kubectl then uses server-side apply, fields that the annotation has and that are unchanged since
//! do not conflict, and the annotation is kept up to date.

use serde_json::{Value, json};

use super::conflict::Conflicts;
use crate::fields::write_json_string;
use crate::schema::Type;
use crate::typed::Duplicates;

/// The only manager that migrates.
pub(super) const MANAGER: &str = "kubectl";

const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The size limit of an object's annotations, in bytes.
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// Returns the conflicts that the last configuration does not resolve.
pub(super) fn unresolved(conflicts: Conflicts, live: &Value, ty: &Type, version: &str) -> Option<Conflicts> {
    let Some(allowed) = unchanged_fields(live, ty, version) else {
        return Some(conflicts);
    };
    if conflicts.fields().difference(&allowed).is_empty() {
        return None;
    }
    let rest = conflicts
        .0
        .into_iter()
        .filter(|conflict| !allowed.has(&conflict.path.0));
    Some(Conflicts(rest.collect()))
}

/// Returns the fields of the last configuration whose values are unchanged.
fn unchanged_fields(live: &Value, ty: &Type, version: &str) -> Option<crate::fields::FieldSet> {
    let last: Value = serde_json::from_str(annotation(live)?).ok()?;
    if last["apiVersion"] != *version {
        return None;
    }
    ty.check(live, Duplicates::Refused).ok()?;
    let last = ty.check(&last, Duplicates::Refused).ok()?;
    let changed = last.compare(live);
    Some(
        last.to_field_set()
            .difference(&changed.modified)
            .difference(&changed.added)
            .difference(&changed.removed),
    )
}

fn annotation(object: &Value) -> Option<&str> {
    let text = object
        .get("metadata")?
        .get("annotations")?
        .get(ANNOTATION)?
        .as_str()?;
    (!text.is_empty()).then_some(text)
}

/// Updates the annotation with the configuration, if the object has it.
pub(super) fn refresh(new: &mut Option<Value>, live: &Value, config: &Value) {
    if annotation(new.as_ref().unwrap_or(live)).is_none() {
        return;
    }
    let text = as_annotation(config);
    if annotation(new.as_ref().unwrap_or(live)) == Some(&text) {
        return;
    }
    let object = new.get_or_insert_with(|| live.clone());
    let Some(annotations) = object
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut)
    else {
        return;
    };
    annotations.insert(ANNOTATION.to_owned(), json!(text));
    let size: usize = annotations
        .iter()
        .map(|(name, value)| name.len() + value.as_str().map_or(0, str::len))
        .sum();
    if size > MAX_ANNOTATIONS {
        annotations.remove(ANNOTATION);
    }
}

/// Formats a configuration as kubectl does: without the annotation, with a final newline.
fn as_annotation(config: &Value) -> String {
    let mut config = config.clone();
    if let Some(annotations) = config
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut)
    {
        annotations.remove(ANNOTATION);
    }
    let mut text = String::new();
    write(&mut text, &config);
    text.push('\n');
    text
}

fn write(out: &mut String, value: &Value) {
    match value {
        Value::Array(items) => {
            out.push('[');
            for (place, item) in items.iter().enumerate() {
                if place > 0 {
                    out.push(',');
                }
                write(out, item);
            }
            out.push(']');
        }
        Value::Object(map) => {
            out.push('{');
            for (place, (name, value)) in map.iter().enumerate() {
                if place > 0 {
                    out.push(',');
                }
                write_json_string(out, name);
                out.push(':');
                write(out, value);
            }
            out.push('}');
        }
        Value::String(text) => write_json_string(out, text),
        Value::Number(number) => crate::value::write_json_number(out, number),
        Value::Null | Value::Bool(_) => out.push_str(&value.to_string()),
    }
}
