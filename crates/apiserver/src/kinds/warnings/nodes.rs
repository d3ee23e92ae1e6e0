//! Labels of nodes that are deprecated, and where objects select nodes by them.

use serde_json::Value;

use super::items;
use crate::object::names;

const DEPRECATED: [(&str, &str); 8] = [
    (
        "beta.kubernetes.io/arch",
        r#"deprecated since v1.14; use "kubernetes.io/arch" instead"#,
    ),
    (
        "beta.kubernetes.io/os",
        r#"deprecated since v1.14; use "kubernetes.io/os" instead"#,
    ),
    (
        "failure-domain.beta.kubernetes.io/region",
        r#"deprecated since v1.17; use "topology.kubernetes.io/region" instead"#,
    ),
    (
        "failure-domain.beta.kubernetes.io/zone",
        r#"deprecated since v1.17; use "topology.kubernetes.io/zone" instead"#,
    ),
    (
        "beta.kubernetes.io/instance-type",
        r#"deprecated since v1.17; use "node.kubernetes.io/instance-type" instead"#,
    ),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    (
        "scheduler.alpha.kubernetes.io/preferAvoidPods",
        "deprecated since v1.22; use Taints and Tolerations instead",
    ),
    (
        "node-role.kubernetes.io/master",
        r#"use "node-role.kubernetes.io/control-plane" instead"#,
    ),
];

/// Returns why a label of nodes is deprecated.
pub(super) fn deprecated(label: &str) -> Option<&'static str> {
    let (_, why) = DEPRECATED.iter().find(|(name, _)| *name == label)?;
    Some(why)
}

/// Checks a map of labels; `named` are the path of one of them.
pub(super) fn labels(map: &Value, named: impl Fn(&str) -> String, out: &mut Vec<String>) {
    for label in map.as_object().into_iter().flatten().map(|(label, _)| label) {
        if let Some(why) = deprecated(label) {
            out.push(format!("{}: {why}", named(label)));
        }
    }
}

/// Checks the expressions of a selector.
fn expressions(list: &Value, path: &str, out: &mut Vec<String>) {
    for (place, expression) in items(list) {
        let key = expression["key"].as_str().unwrap_or_default();
        if let Some(why) = deprecated(key) {
            out.push(format!("{path}.matchExpressions[{place}].key: {key} is {why}"));
        }
    }
}

/// Checks a label selector of nodes.
pub(super) fn label_selector(selector: &Value, path: &str, out: &mut Vec<String>) {
    expressions(&selector["matchExpressions"], path, out);
    let named = |label: &str| format!("{path}.matchLabels.{label}");
    labels(&selector["matchLabels"], named, out);
}

/// Checks a term of a node selector.
pub(super) fn term(term: &Value, path: &str, checks_values: bool, out: &mut Vec<String>) {
    for (place, expression) in items(&term["matchExpressions"]) {
        let key = expression["key"].as_str().unwrap_or_default();
        let path = format!("{path}.matchExpressions[{place}]");
        if let Some(why) = deprecated(key) {
            out.push(format!("{path}.key: {key} is {why}"));
        }
        for (place, value) in items(&expression["values"]).filter(|_| checks_values) {
            let value = value.as_str().unwrap_or_default();
            out.extend(
                names::label_value(value)
                    .into_iter()
                    .map(|why| format!("{path}.values[{place}]: {value} is invalid, {why}")),
            );
        }
    }
}

pub(super) fn runtime_class(object: &Value, out: &mut Vec<String>) {
    let named = |_: &str| "scheduling.nodeSelector".to_owned();
    labels(&object["scheduling"]["nodeSelector"], named, out);
}
