//! `LabelSelector` objects: `matchLabels` and `matchExpressions`.

use serde_json::Value;
use thiserror::Error;

/// Why a `LabelSelector` cannot be evaluated.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("{operator:?} is not a valid label selector operator")]
pub struct UnknownOperator {
    /// The operator.
    pub operator: String,
}

/// Returns whether a `LabelSelector` has no requirements, or there is none.
pub fn is_empty_selector(selector: &Value) -> bool {
    let none = |field: &str| match &selector[field] {
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => true,
    };
    none("matchLabels") && none("matchExpressions")
}

/// Returns whether a `LabelSelector` selects an object, of which `label` returns the values of labels.
///
/// # Errors
/// An operator is unknown. As in Kubernetes (`LabelSelectorAsSelector`), that comes before the labels.
pub fn selects<'a>(
    selector: &Value,
    label: impl Fn(&str) -> Option<&'a str>,
) -> Result<bool, UnknownOperator> {
    let mut exact = selector["matchLabels"].as_object().into_iter().flatten();
    let mut all = exact.all(|(name, value)| label(name).is_some_and(|found| value == found));
    for term in selector["matchExpressions"].as_array().into_iter().flatten() {
        let values = term["values"].as_array().map(Vec::as_slice).unwrap_or_default();
        let found = label(term["key"].as_str().unwrap_or_default());
        let is_listed = found.is_some_and(|found| values.iter().any(|value| value == found));
        all &= match term["operator"].as_str().unwrap_or_default() {
            "In" => is_listed,
            "NotIn" => !is_listed,
            "Exists" => found.is_some(),
            "DoesNotExist" => found.is_none(),
            operator => {
                return Err(UnknownOperator {
                    operator: operator.to_owned(),
                });
            }
        };
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requirements_are_joined_and_unknown_operators_come_first() {
        let term = |key: &str, operator: &str, values: &[&str]| json!({"key": key, "operator": operator, "values": values});
        let unknown = || {
            Err(UnknownOperator {
                operator: "Like".to_owned(),
            })
        };
        for (selector, expected) in [
            (json!(null), Ok(true)),
            (json!({}), Ok(true)),
            (json!({"matchLabels": null, "matchExpressions": null}), Ok(true)),
            (json!({"matchLabels": {"a": "1"}}), Ok(true)),
            (json!({"matchLabels": {"a": "2"}}), Ok(false)),
            (json!({"matchLabels": {"b": ""}}), Ok(false)),
            (
                json!({"matchExpressions": [term("a", "In", &["2", "1"])]}),
                Ok(true),
            ),
            (json!({"matchExpressions": [term("a", "In", &["2"])]}), Ok(false)),
            (
                json!({"matchExpressions": [term("a", "NotIn", &["1"])]}),
                Ok(false),
            ),
            (
                json!({"matchExpressions": [term("b", "NotIn", &["1"])]}),
                Ok(true),
            ),
            (json!({"matchExpressions": [term("a", "Exists", &[])]}), Ok(true)),
            (json!({"matchExpressions": [term("b", "Exists", &[])]}), Ok(false)),
            (
                json!({"matchExpressions": [term("a", "DoesNotExist", &[])]}),
                Ok(false),
            ),
            (
                json!({"matchExpressions": [term("b", "DoesNotExist", &[])]}),
                Ok(true),
            ),
            (
                json!({"matchLabels": {"a": "1"}, "matchExpressions": [term("b", "Exists", &[])]}),
                Ok(false),
            ),
            (json!({"matchExpressions": [term("a", "Like", &[])]}), unknown()),
            (
                json!({"matchLabels": {"a": "2"}, "matchExpressions": [term("a", "Like", &[])]}),
                unknown(),
            ),
        ] {
            let found = selects(&selector, |name| (name == "a").then_some("1"));
            assert_eq!(found, expected, "{selector}");
        }
    }

    #[test]
    fn a_selector_is_empty_without_requirements() {
        for (selector, expected) in [
            (json!(null), true),
            (json!({"matchLabels": {}, "matchExpressions": []}), true),
            (json!({"matchLabels": {"a": "1"}}), false),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "Exists"}]}),
                false,
            ),
        ] {
            assert_eq!(is_empty_selector(&selector), expected, "{selector}");
        }
    }
}
