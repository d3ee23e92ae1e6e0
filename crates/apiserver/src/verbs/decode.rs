//! Decoding an object that a client sent: its kind, its fields, its defaults.

use serde_json::{Map, Value};
use thiserror::Error;

use crate::kinds::codec::CodecError;
use crate::kinds::{Form, Registry, defaults};
use crate::object::metadata;
use crate::status::{Cause, Status};
use crate::target::Target;
use crate::write::Validation;

/// A decoded object.
pub(crate) struct Decoded {
    pub(crate) object: Value,
    pub(crate) warnings: Vec<String>,
}

/// Sets `apiVersion` and `kind` if they are missing, and rejects an object of another kind.
pub(crate) fn check_kind(target: &Target, object: &mut Value) -> Result<(), Status> {
    let Some(map) = object.as_object_mut() else {
        return Err(Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go value of type struct {{ APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}",
            target.resource.kind,
            match object {
                Value::Array(_) => "array",
                Value::String(_) => "string",
                Value::Number(_) => "number",
                Value::Bool(_) => "bool",
                _ => "null",
            }
        )));
    };
    let custom = matches!(target.version.form, Form::Custom(_));
    let version = map.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
    if !custom && version.matches('/').count() > 1 {
        let text = Value::Object(map.clone()).to_string();
        let begin = first_characters(&text);
        return Err(Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): unexpected GroupVersion string: {version} ({begin})",
            target.resource.kind
        )));
    }
    if custom
        && map
            .get("apiVersion")
            .is_some_and(|found| *found == *target.version.api_version)
    {
        return check_custom_kind(target, object);
    }
    for (field, expected) in [
        ("apiVersion", &*target.version.api_version),
        ("kind", &*target.resource.kind),
    ] {
        match map.get(field).and_then(Value::as_str) {
            Some(found) if found == expected => {}
            None | Some("") if !custom => {
                map.insert(field.to_owned(), expected.into());
            }
            None | Some("") => {
                return Err(no_kind(target, map));
            }
            Some(_) => return Err(wrong_kind(target, &Value::Object(map.clone()))),
        }
    }
    Ok(())
}

/// Returns the first characters of a body, for a message.
fn first_characters(text: &str) -> String {
    match text.char_indices().nth(30) {
        Some((end, _)) => format!("{} ...", &text[..end]),
        None => text.to_owned(),
    }
}

fn no_kind(target: &Target, map: &Map<String, Value>) -> Status {
    let text = Value::Object(map.clone()).to_string();
    let begin = first_characters(&text);
    Status::bad_request(format!(
        "the object provided is unrecognized (must be of type {}): Object 'Kind' is missing in '{text}' ({begin})",
        target.resource.kind
    ))
}

/// Checks the kind of a custom resource; another kind is a validation error, as in Kubernetes.
fn check_custom_kind(target: &Target, object: &Value) -> Result<(), Status> {
    let found = object["kind"].as_str().unwrap_or_default();
    if found == &*target.resource.kind {
        return Ok(());
    }
    if found.is_empty() {
        return Err(no_kind(target, object.as_object().unwrap_or(&Map::new())));
    }
    let cause = Cause::invalid(
        "kind",
        &object["kind"],
        format!("must be {}", target.resource.kind),
    );
    let name = crate::object::metadata::text(object, "name");
    Err(Status::invalid(&target.resource.group, found, name, vec![cause]))
}

fn wrong_kind(target: &Target, object: &Value) -> Status {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    let (group, version) = text("apiVersion")
        .rsplit_once('/')
        .unwrap_or(("", text("apiVersion")));
    let (kind, wanted) = (text("kind"), &target.resource.kind);
    if matches!(target.version.form, Form::Custom(_)) {
        return Status::bad_request(format!(
            "the API version in the data ({}) does not match the expected API version ({})",
            text("apiVersion"),
            target.version.api_version,
        ));
    }
    let served = Registry::builtins().any(|resource| {
        *resource.group == *group && *resource.kind == *kind && resource.version(version).is_some()
    });
    if served {
        let core = |group: &str, version: &str| match group {
            "" => version.to_owned(),
            group => format!("{}.{version}", group.split('.').next().unwrap_or_default()),
        };
        return Status::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {wanted}: converting ({}.{kind}) to ({}.{wanted}): unknown conversion",
            core("", version),
            match &*target.resource.group {
                "" => "core",
                group => group.split('.').next().unwrap_or_default(),
            }
        ));
    }
    Status::bad_request(format!(
        "{kind} in version {version:?} cannot be handled as a {wanted}: no kind {kind:?} is registered for version {:?} in scheme \"pkg/runtime/scheme.go:111\"",
        text("apiVersion")
    ))
}

/// Why an object cannot be decoded.
#[derive(Debug, Error)]
pub(crate) enum DecodeError {
    /// The object is of another kind.
    #[error(transparent)]
    Kind(Status),
    /// The object does not have the form of its kind.
    #[error(transparent)]
    Form(#[from] FormError),
}

/// Why an object does not have the form of its kind.
#[derive(Debug, Error)]
pub(crate) enum FormError {
    /// An object of a built-in kind.
    #[error(transparent)]
    Builtin(#[from] CodecError),
    /// A custom resource, as a whole.
    #[error("{}", .0.message)]
    Custom(Cause),
    /// A field of a custom resource.
    #[error("{0}")]
    CustomField(Cause),
    /// Strict validation rejects duplicate and unknown fields.
    #[error("strict decoding error: {}", .0.join(", "))]
    Strict(Vec<String>),
}

impl DecodeError {
    /// Returns the response to a request body that cannot be decoded.
    pub(crate) fn of_body(self, target: &Target) -> Status {
        match self {
            Self::Kind(status) => status,
            Self::Form(why) => {
                let kind = &target.resource.kind;
                Status::bad_request(format!(
                    "{kind} in version {:?} cannot be handled as a {kind}: {why}",
                    target.version.name
                ))
            }
        }
    }

    /// Returns the response to a server-side apply whose result cannot be decoded.
    pub(crate) fn of_applied(self, target: &Target, config: &Value) -> Status {
        // Unknown fields have been reported before.
        let Self::Form(FormError::Builtin(why)) = self else {
            return self.of_body(target);
        };
        let kind = crate::managed::version_and_kind(config);
        let text = |name: &str| metadata::text(config, name);
        let by = match why {
            CodecError::Quantity => "",
            CodecError::ValueType { .. }
            | CodecError::FieldType { .. }
            | CodecError::Time { .. }
            | CodecError::Base64(_) => "error decoding from json: ",
        };
        Status::internal_plain(format!(
            "failed to convert new object ({}/{}; {kind}) to proper version: unable to convert unstructured object to {kind}: {by}{why}",
            text("namespace"),
            text("name"),
        ))
    }

    /// Returns the response to a patch whose result cannot be decoded.
    pub(crate) fn of_patched(self, patched: &Value) -> Status {
        match self {
            Self::Kind(status) => status,
            Self::Form(why) => {
                let cause = Cause::invalid("patch", &Value::String(patched.to_string()), why.to_string());
                Status::invalid("", "", "", vec![cause])
            }
        }
    }
}

/// Normalises an object and sets its defaults. `duplicates` are the fields that appear twice in the body.
pub(crate) fn decode(
    target: &Target,
    mut object: Value,
    duplicates: &[String],
    validation: Validation,
) -> Result<Decoded, DecodeError> {
    check_kind(target, &mut object).map_err(DecodeError::Kind)?;
    let kind = &*target.resource.kind;
    // An empty list clears the entries, see `FieldManager::update`.
    let clears = object["metadata"]["managedFields"] == Value::Array(Vec::new());
    let unknown = match &target.version.form {
        Form::Builtin(ty) => {
            let unknown = ty.normalize(&mut object).map_err(FormError::Builtin)?;
            defaults::set(*ty, kind, &mut object);
            unknown
        }
        Form::Custom(version) => version
            .get()
            .decode(&mut object)
            .map_err(|cause| match &*cause.field {
                "" => FormError::Custom(cause),
                _ => FormError::CustomField(cause),
            })?,
    };
    if clears && matches!(target.version.form, Form::Builtin(_)) {
        metadata::set(&mut object, "managedFields", Some(Value::Array(Vec::new())));
    }
    let complaints: Vec<String> = duplicates
        .iter()
        .map(|path| format!("duplicate field {path:?}"))
        .chain(unknown.iter().map(|path| format!("unknown field {path:?}")))
        .collect();
    match validation {
        Validation::Strict if !complaints.is_empty() => Err(FormError::Strict(complaints).into()),
        Validation::Warn => Ok(Decoded {
            object,
            warnings: complaints,
        }),
        _ => Ok(Decoded {
            object,
            warnings: Vec::new(),
        }),
    }
}
