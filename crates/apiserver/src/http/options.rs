//! `DeleteOptions` in the body of a request.
//!
//! A server that deletes on what it does not understand deletes too much: a body of another kind, with values of other
//! types or of an unknown content type is refused, as in Kubernetes.

use serde_json::{Value, json};

use super::content::{PROTOBUF, yaml};
use crate::kinds::{codec, protobuf};
use crate::object::json as reader;
use crate::status::Status;
use crate::value::json_type;
use crate::verbs::DeleteOptions;

const KIND: &str = "DeleteOptions";

/// The kinds besides `DeleteOptions` that Kubernetes knows where it decodes them, in every version.
const OTHERS: [&str; 7] = [
    "APIGroup",
    "APIGroupList",
    "APIResourceList",
    "APIVersions",
    "CreateOptions",
    "Status",
    "UpdateOptions",
];

/// Reads a body that is not empty.
///
/// # Errors
/// The `Status` that the API server returns.
pub(super) fn read(content_type: &str, bytes: &[u8]) -> Result<DeleteOptions, Status> {
    let unreadable = |why: &dyn std::fmt::Display| {
        Status::bad_request(format!("couldn't get version/kind; json parse error: {why}"))
    };
    let mut value = match content_type {
        PROTOBUF => protobuf::read_as(bytes, "v1", KIND).map_err(Status::bad_request)?,
        "" | "application/json" => reader::read(bytes).map_err(|why| unreadable(&why))?.0,
        "application/yaml" => yaml(bytes).map_err(|why| unreadable(&why))?,
        _ => return Err(Status::unknown_format()),
    };
    check_kind(&mut value)?;
    if let Some(ty) = codec::go_type("v1", KIND) {
        ty.normalize(&mut value).map_err(Status::bad_request)?;
    }
    DeleteOptions::read(&value)
}

/// Rejects a value that is no object, and an object of another kind. Every version has `DeleteOptions`, so the version
/// may be any.
fn check_kind(value: &mut Value) -> Result<(), Status> {
    if value.is_null() {
        *value = json!({});
    }
    let unreadable = |found: &str, into: &str| {
        Status::bad_request(format!(
            "couldn't get version/kind; json parse error: json: cannot unmarshal {found} into Go {into}"
        ))
    };
    let Some(map) = value.as_object() else {
        return Err(unreadable(
            json_type(value),
            "value of type struct { APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }",
        ));
    };
    for field in ["apiVersion", "kind"] {
        match map.get(field) {
            None | Some(Value::Null | Value::String(_)) => {}
            Some(found) => {
                let into = format!("struct field .{field} of type string");
                return Err(unreadable(json_type(found), &into));
            }
        }
    }
    let text = |field: &str| map.get(field).and_then(Value::as_str).unwrap_or_default();
    let (version, kind) = (text("apiVersion"), text("kind"));
    if version.matches('/').count() > 1 {
        return Err(Status::bad_request(format!(
            "unexpected GroupVersion string: {version}"
        )));
    }
    if kind.is_empty() || kind == KIND {
        return Ok(());
    }
    Err(Status::bad_request(if OTHERS.contains(&kind) {
        format!("converting (v1.{kind}) to (v1.{KIND}): unknown conversion")
    } else {
        let version = if version.is_empty() {
            "meta.k8s.io/v1"
        } else {
            version
        };
        format!(
            "no kind {kind:?} is registered for version {version:?} in scheme \"pkg/runtime/scheme.go:111\""
        )
    }))
}
