//! Lists, labels and selectors as text.

use serde_json::Value;

use super::view::{NONE, View};
use crate::object::selector::expression_text;

/// Formats labels, or returns `<none>`.
pub(super) fn labels(labels: Option<&Value>) -> String {
    let pairs: Vec<String> = labels
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()))
        .collect();
    or_none(pairs.join(","))
}

fn or_none(text: String) -> String {
    if text.is_empty() { NONE.to_owned() } else { text }
}

/// Formats a `LabelSelector`, or returns `<none>`.
pub(super) fn selector_or_none(selector: Option<&Value>) -> String {
    or_none(self::selector(selector))
}

/// Formats a `LabelSelector`; empty for an empty selector.
pub(super) fn selector(selector: Option<&Value>) -> String {
    let field = |name: &str| selector.and_then(|selector| selector.get(name));
    let exact = field("matchLabels")
        .and_then(Value::as_object)
        .into_iter()
        .flatten();
    let terms = field("matchExpressions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let mut all: Vec<(String, String)> = exact
        .map(|(name, value)| {
            (
                name.clone(),
                format!("{name}={}", value.as_str().unwrap_or_default()),
            )
        })
        .chain(terms.map(expression_text))
        .collect();
    all.sort_by(|left, right| left.0.cmp(&right.0));
    all.into_iter()
        .map(|(_, text)| text)
        .collect::<Vec<_>>()
        .join(",")
}

/// Formats the first items of a list and the number of the others.
pub(super) fn first(list: &[String], most: usize, between: &str) -> String {
    if list.len() <= most {
        return list.join(between);
    }
    format!("{} + {} more...", list[..most].join(between), list.len() - most)
}

/// Returns the names and images of containers.
pub(super) fn containers(view: &View<'_>, path: &str) -> [Value; 2] {
    let all = |field: &str| {
        let texts: Vec<&str> = view.items(path).map(|container| container.text(field)).collect();
        Value::from(texts.join(","))
    };
    [all("name"), all("image")]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_are_formatted_as_in_kubectl() {
        for (given, text) in [
            (json!(null), "<none>"),
            (json!({}), "<none>"),
            (json!({"matchLabels": {"b": "2", "a": "1"}}), "a=1,b=2"),
            (
                json!({"matchLabels": {"b": ""}, "matchExpressions": [
                    {"key": "c", "operator": "In", "values": ["y", "x"]},
                    {"key": "a", "operator": "NotIn", "values": ["z"]},
                    {"key": "e", "operator": "Exists"},
                    {"key": "d", "operator": "DoesNotExist"}]}),
                "a notin (z),b=,c in (x,y),!d,e",
            ),
        ] {
            assert_eq!(selector_or_none(Some(&given)), text, "{given}");
        }
    }

    #[test]
    fn long_lists_end_with_the_number_of_other_items() {
        let list = ["a", "b", "c", "d"].map(str::to_owned);
        assert_eq!(first(&list, 3, ","), "a,b,c + 1 more...");
        assert_eq!(first(&list, 4, ","), "a,b,c,d");
    }
}
