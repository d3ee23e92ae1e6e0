//! Causes: what is wrong with the fields of an object.
//!
//! The texts are those of apimachinery's `field.Error`, since clients match on them.

use std::fmt;

use serde_json::Value;

use crate::value;

/// A cause of a rejected request: an entry of `details.causes` of the response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// The reason, such as `FieldValueInvalid`.
    pub reason: &'static str,
    /// The path of the field; `<nil>` for the whole object.
    pub field: String,
    /// The message, without the path.
    pub message: String,
}

impl Cause {
    fn new(reason: &'static str, field: impl Into<String>, message: String) -> Self {
        Self {
            reason,
            field: field.into(),
            message,
        }
    }

    /// Returns the cause of an invalid value.
    pub fn invalid(field: impl Into<String>, bad: &Value, detail: impl AsRef<str>) -> Self {
        let message = with_detail(&with_value("Invalid value", bad), detail.as_ref());
        Self::new("FieldValueInvalid", field, message)
    }

    /// Returns the cause of an invalid value that is too large to be shown.
    pub fn invalid_unshown(field: impl Into<String>, detail: &str) -> Self {
        Self::new("FieldValueInvalid", field, with_detail("Invalid value", detail))
    }

    /// Returns the cause of an invalid value, shown as the given text.
    pub(crate) fn invalid_shown(field: impl Into<String>, shown: &str, detail: &str) -> Self {
        let message = with_detail(&format!("Invalid value: {shown}"), detail);
        Self::new("FieldValueInvalid", field, message)
    }

    /// Returns the cause of a value of the wrong type.
    pub fn type_invalid(field: impl Into<String>, bad: &Value, detail: &str) -> Self {
        let message = with_detail(&with_value("Invalid value", bad), detail);
        Self::new("FieldValueTypeInvalid", field, message)
    }

    /// Returns the cause of a missing field.
    pub fn required(field: impl Into<String>, detail: &str) -> Self {
        Self::new("FieldValueRequired", field, with_detail("Required value", detail))
    }

    /// Returns the cause of a field that must not be set.
    pub fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self::new("FieldValueForbidden", field, with_detail("Forbidden", detail))
    }

    /// Returns the cause of a value that is not one of the supported values.
    pub fn not_supported(
        field: impl Into<String>,
        bad: &Value,
        supported: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Self {
        let supported: Vec<_> = supported
            .into_iter()
            .map(|value| value::quoted(value.as_ref()))
            .collect();
        let detail = if supported.is_empty() {
            String::new()
        } else {
            format!("supported values: {}", supported.join(", "))
        };
        let message = with_detail(&with_value("Unsupported value", bad), &detail);
        Self::new("FieldValueNotSupported", field, message)
    }

    /// Returns the cause of a duplicate value.
    pub fn duplicate(field: impl Into<String>, bad: &Value) -> Self {
        Self::new("FieldValueDuplicate", field, with_value("Duplicate value", bad))
    }

    /// Returns the cause of a duplicate value that is too large to be shown.
    pub fn duplicate_unshown(field: impl Into<String>) -> Self {
        Self::new("FieldValueDuplicate", field, "Duplicate value".to_owned())
    }

    /// Returns the cause of a string that is too long.
    pub fn too_long(field: impl Into<String>, most: i64) -> Self {
        let bytes = if most == 1 { "byte" } else { "bytes" };
        let message = format!("Too long: may not be more than {most} {bytes}");
        Self::new("FieldValueTooLong", field, message)
    }

    /// Returns the cause of a list or map with too many entries.
    pub fn too_many(field: impl Into<String>, count: usize, most: i64) -> Self {
        let items = if most == 1 { "item" } else { "items" };
        let message = format!("Too many: {count}: must have at most {most} {items}");
        Self::new("FieldValueTooMany", field, message)
    }

    /// Returns the cause of a server error.
    pub fn internal(field: impl Into<String>, detail: &str) -> Self {
        Self::new("InternalError", field, with_detail("Internal error", detail))
    }
}

/// Writes the cause as it appears in the message of the response.
impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

fn with_detail(what: &str, detail: &str) -> String {
    if detail.is_empty() {
        what.to_owned()
    } else {
        format!("{what}: {detail}")
    }
}

fn with_value(what: &str, bad: &Value) -> String {
    match bad {
        Value::Bool(_) | Value::Number(_) => format!("{what}: {}", value::plain(bad)),
        Value::String(text) => format!("{what}: {}", value::quoted(text)),
        other => format!("{what}: {}", value::go_json(other)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn causes_match_the_servers_texts() {
        for (cause, text) in [
            (
                Cause::invalid("a.b", &json!("x\"y"), "why"),
                r#"a.b: Invalid value: "x\"y": why"#,
            ),
            (
                Cause::invalid("<nil>", &json!(null), "why"),
                "<nil>: Invalid value: null: why",
            ),
            (
                Cause::type_invalid("a", &json!({"b": "<"}), "why"),
                r#"a: Invalid value: {"b":"\u003c"}: why"#,
            ),
            (Cause::required("a", ""), "a: Required value"),
            (
                Cause::not_supported("a", &json!(1.5), ["b", "c"]),
                r#"a: Unsupported value: 1.5: supported values: "b", "c""#,
            ),
            (
                Cause::too_long("a", 1),
                "a: Too long: may not be more than 1 byte",
            ),
            (
                Cause::too_many("a", 3, 2),
                "a: Too many: 3: must have at most 2 items",
            ),
            (
                Cause::duplicate("a[1]", &json!({"k": 1})),
                r#"a[1]: Duplicate value: {"k":1}"#,
            ),
        ] {
            assert_eq!(cause.to_string(), text);
        }
    }
}
