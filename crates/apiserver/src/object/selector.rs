//! Label selectors and field selectors.

mod fields;
mod labels;
mod structured;

use serde_json::Value;

pub use fields::{FieldSelector, FieldSelectorError, field_value};
pub use labels::{LabelSelector, LabelSelectorError};
pub use structured::{UnknownOperator, is_empty_selector, selects};

/// Returns the key of a `matchExpressions` requirement, and the requirement in text form.
pub fn expression_text(term: &Value) -> (String, String) {
    let key = term["key"].as_str().unwrap_or_default();
    let mut values: Vec<&str> = term["values"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    values.sort_unstable();
    let values = values.join(",");
    let text = match term["operator"].as_str().unwrap_or_default() {
        "In" => format!("{key} in ({values})"),
        "NotIn" => format!("{key} notin ({values})"),
        "DoesNotExist" => format!("!{key}"),
        _ => key.to_owned(),
    };
    (key.to_owned(), text)
}
