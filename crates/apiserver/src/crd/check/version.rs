//! The validation of a version besides its schema: subresources, columns, selectable fields, deprecation warning.

use serde_json::{Map, Value, json};
use thiserror::Error;

use super::Shared;
use crate::cause::Cause;
use crate::crd::rules::{FieldPathError, field_path};
use crate::crd::schema::{Schema, text};
use crate::value::{go_json, is_print};

/// The maximum number of selectable fields.
const MAX_SELECTABLE_FIELDS: i64 = 8;

/// The maximum length of a deprecation warning, in bytes.
const MAX_WARNING_LENGTH: usize = 256;

pub(super) fn check_deprecation(version: &Value, path: &str, causes: &mut Vec<Cause>) {
    let Some(warning) = version["deprecationWarning"].as_str() else {
        return;
    };
    let mut problems = Vec::new();
    if version["deprecated"] != true {
        problems.push("can only be set for deprecated versions".to_owned());
    } else {
        if warning.len() > MAX_WARNING_LENGTH {
            problems.push("must be <= 256 characters long".to_owned());
        }
        if warning.is_empty() {
            problems.push("must not be an empty string".to_owned());
        }
        if let Some((place, _)) = warning.char_indices().find(|(_, char)| !is_print(*char)) {
            problems.push(format!(
                "must only contain printable UTF-8 characters; non-printable character found at index {place}"
            ));
        }
    }
    for problem in problems {
        let place = format!("{path}.deprecationWarning");
        causes.push(Cause::invalid(place, &json!(warning), &problem));
    }
}

pub(super) fn check_subresources(subresources: &Value, path: &str, causes: &mut Vec<Cause>) {
    let Some(scale) = subresources.get("scale").and_then(Value::as_object) else {
        return;
    };
    for (name, prefixes, wanted) in [
        (
            "specReplicasPath",
            &[".spec."][..],
            "should be a json path under .spec",
        ),
        (
            "statusReplicasPath",
            &[".status."],
            "should be a json path under .status",
        ),
        (
            "labelSelectorPath",
            &[".spec.", ".status."],
            "should be a json path under either .spec or .status",
        ),
    ] {
        let found = text(scale, name);
        let place = format!("{path}.scale.{name}");
        if found.is_empty() {
            if name != "labelSelectorPath" {
                causes.push(Cause::required(place, ""));
            }
        } else if !found.starts_with('.') {
            let why = "must be a simple json path starting with .";
            causes.push(Cause::invalid(place, &json!(found), why));
        } else if !prefixes.iter().any(|prefix| found.starts_with(prefix)) {
            causes.push(Cause::invalid(place, &json!(found), wanted));
        }
    }
}

pub(super) fn check_columns(columns: &Value, path: &str, causes: &mut Vec<Cause>) {
    const TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
    const FORMATS: [&str; 8] = [
        "byte",
        "date",
        "date-time",
        "double",
        "float",
        "int32",
        "int64",
        "password",
    ];
    let columns = columns.as_array().map(Vec::as_slice).unwrap_or_default();
    for (place, column) in columns.iter().enumerate() {
        let none = Map::new();
        let column = column.as_object().unwrap_or(&none);
        let path = format!("{path}[{place}]");
        if text(column, "name").is_empty() {
            causes.push(Cause::required(format!("{path}.name"), ""));
        }
        let ty = text(column, "type");
        let why = format!("must be one of {}", TYPES.join(","));
        if ty.is_empty() {
            causes.push(Cause::required(format!("{path}.type"), &why));
        } else if !TYPES.contains(&ty.as_str()) {
            causes.push(Cause::invalid(format!("{path}.type"), &json!(ty), &why));
        }
        let format = text(column, "format");
        if !format.is_empty() && !FORMATS.contains(&format.as_str()) {
            let why = format!("must be one of {}", FORMATS.join(","));
            causes.push(Cause::invalid(format!("{path}.format"), &json!(format), &why));
        }
        let json_path = text(column, "jsonPath");
        let place = format!("{path}.JSONPath");
        if json_path.is_empty() {
            causes.push(Cause::required(place, ""));
        } else if !json_path.starts_with('.') {
            let why = "must be a simple json path starting with .";
            causes.push(Cause::invalid(place, &json!(json_path), why));
        }
    }
}

/// Why a path is not that of a selectable field.
#[derive(Debug, Error)]
enum SelectableFieldError {
    #[error("array notation is not allowed")]
    ArrayNotation,
    #[error(transparent)]
    Path(#[from] FieldPathError),
}

/// Returns a selectable field: its path in the form of causes, and its schema.
fn selectable_field<'a>(
    path: &str,
    schema: &'a Schema,
) -> Result<(String, &'a Schema), SelectableFieldError> {
    if path.contains('[') {
        return Err(SelectableFieldError::ArrayNotation);
    }
    Ok(field_path(path, schema)?)
}

pub(super) fn check_selectable(
    selectable: &Value,
    schema: Option<&Value>,
    path: &str,
    causes: &mut Vec<Cause>,
) {
    let selectable = selectable.as_array().map(Vec::as_slice).unwrap_or_default();
    if selectable.is_empty() {
        return;
    }
    let Some(schema) = schema else {
        let why = "may only be set when `version.schema.openAPIV3Schema` is not included";
        causes.push(Cause::invalid(path, &json!(""), why));
        return;
    };
    let schema = Schema::read(schema);
    let mut seen = Vec::new();
    for (place, field) in selectable.iter().enumerate() {
        let place = format!("{path}[{place}].jsonPath");
        let shown = &field["jsonPath"];
        let json_path = shown.as_str().unwrap_or_default();
        if json_path.is_empty() {
            causes.push(Cause::required(place, ""));
            continue;
        }
        let (written, found) = match selectable_field(json_path, &schema) {
            Ok(read) => read,
            Err(error) => {
                let why = format!("is an invalid path: {error}");
                causes.push(Cause::invalid(place, shown, &why));
                continue;
            }
        };
        if written.split('.').next() == Some("metadata") {
            let why = "must not point to fields in metadata";
            causes.push(Cause::invalid(place.clone(), shown, why));
        }
        if !matches!(found.ty.as_str(), "string" | "boolean" | "integer") {
            let why = "must point to a field of type string, boolean or integer. Enum string fields and strings with \
                       formats are allowed.";
            causes.push(Cause::invalid(place.clone(), shown, why));
        }
        if seen.contains(&written) {
            causes.push(Cause::duplicate(place, shown));
        } else {
            seen.push(written);
        }
    }
    if i64::try_from(seen.len()).unwrap_or(i64::MAX) > MAX_SELECTABLE_FIELDS {
        causes.push(Cause::too_many(path, seen.len(), MAX_SELECTABLE_FIELDS));
    }
}

/// Returns the versions in the API server's internal form, without the shared data, as causes show them.
pub(super) fn shown(versions: &[Value], shared: &Shared<'_>) -> String {
    let own = |value: &Value, shared: bool| {
        if shared { "null".to_owned() } else { go_json(value) }
    };
    let entries = versions.iter().map(|version| {
        format!(
            "{{\"Name\":{},\"Served\":{},\"Storage\":{},\"Deprecated\":{},\"DeprecationWarning\":{},\"Schema\":{},\
             \"Subresources\":{},\"AdditionalPrinterColumns\":{},\"SelectableFields\":{}}}",
            go_json(&version["name"]),
            version["served"] == true,
            version["storage"] == true,
            version["deprecated"] == true,
            go_json(&version["deprecationWarning"]),
            own(&version["schema"], shared.schema.is_some()),
            own(&version["subresources"], shared.subresources.is_some()),
            own(&version["additionalPrinterColumns"], shared.columns.is_some()),
            own(&version["selectableFields"], shared.selectable.is_some()),
        )
    });
    format!("[{}]", entries.collect::<Vec<_>>().join(","))
}
