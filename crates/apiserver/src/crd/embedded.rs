//! Embedded resources, `x-kubernetes-embedded-resource`: values with `apiVersion`, `kind` and `metadata`.

use serde_json::{Map, Value, json};

use super::lists::{child, key};
use super::schema::Schema;
use crate::cause::Cause;
use crate::value::{go_type, json_type};

/// The JSON type of a metadata field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Int,
    /// A map of strings.
    Texts,
    /// A list of strings.
    List,
    /// A list of objects.
    Objects,
}

/// The fields of `metadata` with their Go types.
const FIELDS: [(&str, Kind, &str); 15] = [
    ("annotations", Kind::Texts, "map[string]string"),
    ("creationTimestamp", Kind::Text, "v1.Time"),
    ("deletionGracePeriodSeconds", Kind::Int, "int64"),
    ("deletionTimestamp", Kind::Text, "v1.Time"),
    ("finalizers", Kind::List, "[]string"),
    ("generateName", Kind::Text, "string"),
    ("generation", Kind::Int, "int64"),
    ("labels", Kind::Texts, "map[string]string"),
    ("managedFields", Kind::Objects, "[]v1.ManagedFieldsEntry"),
    ("name", Kind::Text, "string"),
    ("namespace", Kind::Text, "string"),
    ("ownerReferences", Kind::Objects, "[]v1.OwnerReference"),
    ("resourceVersion", Kind::Text, "string"),
    ("selfLink", Kind::Text, "string"),
    ("uid", Kind::Text, "types.UID"),
];

/// Converts the metadata of an object to its canonical form; returns the paths of unknown fields. The entries of
/// `managedFields` stay unchanged.
///
/// # Errors
/// The first field of the wrong type.
pub(super) fn coerce_root(object: &mut Value) -> Result<Vec<String>, Cause> {
    let mut unknown = Vec::new();
    if let Value::Object(fields) = object {
        let managed = fields
            .get_mut("metadata")
            .and_then(Value::as_object_mut)
            .and_then(|metadata| metadata.remove("managedFields"))
            .filter(|managed| *managed != json!([]));
        let read = coerce_metadata(fields, "", &mut unknown);
        read.map_err(|cause| {
            // The message omits the field, since the object is not decoded at all.
            let at = cause.message.find("json: cannot").unwrap_or_default();
            Cause {
                field: String::new(),
                message: cause.message[at..].to_owned(),
                ..cause
            }
        })?;
        if let (Some(managed), Some(Value::Object(metadata))) = (managed, fields.get_mut("metadata")) {
            metadata.insert("managedFields".to_owned(), managed);
        }
    }
    unknown.sort_unstable();
    Ok(unknown)
}

/// Converts the metadata of embedded resources to its canonical form; returns the paths of unknown fields.
///
/// # Errors
/// The first field of the wrong type.
pub(super) fn coerce(value: &mut Value, schema: &Schema) -> Result<Vec<String>, Cause> {
    let mut unknown = Vec::new();
    walk(value, schema, "", &mut unknown)?;
    unknown.sort_unstable();
    Ok(unknown)
}

fn walk(value: &mut Value, schema: &Schema, path: &str, unknown: &mut Vec<String>) -> Result<(), Cause> {
    match value {
        Value::Object(fields) => {
            if schema.embedded {
                for name in ["apiVersion", "kind"] {
                    if let Some(found) = fields.get(name).filter(|found| !found.is_string()) {
                        return Err(Cause::invalid(child(path, name), found, "must be a string"));
                    }
                }
                coerce_metadata(fields, path, unknown)?;
            }
            for (name, value) in fields.iter_mut() {
                if let Some(below) = schema.properties.get(name) {
                    walk(value, below, &child(path, name), unknown)?;
                } else if let Some(below) = schema.additional_schema() {
                    walk(value, below, &key(path, name), unknown)?;
                }
            }
            Ok(())
        }
        Value::Array(items) => {
            let Some(schema) = schema.items.as_deref() else {
                return Ok(());
            };
            for (index, item) in items.iter_mut().enumerate() {
                walk(item, schema, &format!("{path}[{index}]"), unknown)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn coerce_metadata(
    object: &mut Map<String, Value>,
    path: &str,
    unknown: &mut Vec<String>,
) -> Result<(), Cause> {
    let place = child(path, "metadata");
    let Some(metadata) = object.get_mut("metadata") else {
        return Ok(());
    };
    let problem = match &*metadata {
        Value::Object(fields) => fields.iter().find_map(|(name, value)| {
            let (_, kind, ty) = FIELDS.iter().find(|(field, ..)| field == name)?;
            type_mismatch(*kind, ty, value)
                .map(|(found, ty)| (found, format!("struct field ObjectMeta.{name} of type {ty}")))
        }),
        Value::Null => None,
        other => Some((json_type(other), "value of type v1.ObjectMeta".to_owned())),
    };
    if let Some((found, into)) = problem {
        let why = format!("json: cannot unmarshal {found} into Go {into}");
        return Err(Cause::invalid(place, metadata, &why));
    }
    let Value::Object(fields) = metadata else {
        *metadata = json!({});
        return Ok(());
    };
    fields.retain(|name, value| {
        let known = FIELDS.iter().any(|(field, ..)| field == name);
        if !known {
            unknown.push(format!("{place}.{name}"));
        }
        // Empty fields are omitted.
        let empty = [json!(null), json!(""), json!(0), json!({}), json!([])];
        known && !empty.contains(value)
    });
    Ok(())
}

/// Returns the type of a value and the type that its field requires; `None` if they match.
fn type_mismatch<'a>(kind: Kind, ty: &'a str, value: &Value) -> Option<(&'static str, &'a str)> {
    fn first_mismatch<'a, 'v>(
        mut values: impl Iterator<Item = &'v Value>,
        fits: fn(&Value) -> bool,
        ty: &'a str,
    ) -> Option<(&'static str, &'a str)> {
        values
            .find(|value| !fits(value))
            .map(|value| (json_type(value), ty))
    }
    let text = |value: &Value| value.is_string() || value.is_null();
    match (kind, value) {
        (_, Value::Null) | (Kind::Text, Value::String(_)) | (Kind::Int, Value::Number(_)) => None,
        (Kind::Texts, Value::Object(map)) => first_mismatch(map.values(), text, "string"),
        (Kind::List, Value::Array(list)) => first_mismatch(list.iter(), text, "string"),
        (Kind::Objects, Value::Array(list)) => {
            let item = ty.trim_start_matches("[]");
            first_mismatch(list.iter(), Value::is_object, item)
        }
        (_, other) => Some((json_type(other), ty)),
    }
}

/// Returns what is wrong with embedded resources.
pub(super) fn check(value: &Value, schema: &Schema) -> Vec<Cause> {
    let mut causes = Vec::new();
    check_value(value, schema, "", &mut causes);
    causes
}

fn check_value(value: &Value, schema: &Schema, path: &str, causes: &mut Vec<Cause>) {
    match value {
        Value::Object(fields) => {
            if schema.embedded {
                check_object(fields, path, causes);
            }
            for (name, value) in fields {
                if let Some(below) = schema.properties.get(name) {
                    check_value(value, below, &child(path, name), causes);
                } else if let Some(below) = schema.additional_schema() {
                    check_value(value, below, &key(path, name), causes);
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = schema.items.as_deref() {
                for (index, item) in items.iter().enumerate() {
                    check_value(item, schema, &format!("{path}[{index}]"), causes);
                }
            }
        }
        _ => {}
    }
}

fn check_object(fields: &Map<String, Value>, path: &str, causes: &mut Vec<Cause>) {
    for name in ["apiVersion", "kind"] {
        let place = child(path, name);
        match fields.get(name) {
            None => causes.push(Cause::required(place, "")),
            Some(Value::String(text)) if text.is_empty() => {
                causes.push(Cause::invalid(place, &json!(""), "must not be empty"));
            }
            Some(value @ Value::String(text)) => {
                let problem = if name == "kind" {
                    super::names::dns_1035_label(&text.to_lowercase())
                        .err()
                        .map(|why| format!("may have mixed case, but should otherwise match: {why}"))
                } else {
                    let slashes = text.matches('/').count();
                    (slashes > 1).then(|| format!("unexpected GroupVersion string: {text}"))
                };
                causes.extend(problem.map(|why| Cause::invalid(place, value, &why)));
            }
            Some(other) => causes.push(Cause::invalid(place, other, "must be a string")),
        }
    }
    if let Some(metadata) = fields.get("metadata").filter(|it| !it.is_object()) {
        let why = format!("metadata is a {}", go_type(metadata));
        causes.push(Cause::invalid(child(path, "metadata"), metadata, &why));
    }
}
