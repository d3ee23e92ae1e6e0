//! The fields in which two states of one object differ.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::FieldChange;

/// Fields of `metadata` that the API server writes.
const WRITTEN_BY_THE_SERVER: [&str; 8] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
];
/// The placeholder for a value of a Secret.
const HIDDEN: &str = "***";
/// The keys that identify list items in Kubernetes, the most common first.
const ITEM_KEYS: [&str; 7] = [
    "name",
    "containerPort",
    "port",
    "mountPath",
    "devicePath",
    "ip",
    "type",
];

/// Removes the fields of an object that are not part of its intended state: `status`, and what the API server writes
/// into `metadata`.
pub fn canonical(object: &mut Value) {
    let Some(fields) = object.as_object_mut() else {
        return;
    };
    fields.remove("status");
    let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    for field in WRITTEN_BY_THE_SERVER {
        metadata.remove(field);
    }
}

/// Returns the fields in which two canonical states of an object differ, in the order of their paths. `is_secret`:
/// values are hidden, but not that they differ.
#[must_use]
pub fn difference(before: &Value, after: &Value, is_secret: bool) -> Vec<FieldChange> {
    let mut changes = Vec::new();
    compare("", Some(before), Some(after), &mut changes);
    if is_secret {
        changes.iter_mut().for_each(hide);
    }
    changes
}

fn compare(path: &str, before: Option<&Value>, after: Option<&Value>, changes: &mut Vec<FieldChange>) {
    match (before, after) {
        (Some(before), Some(after)) if before == after => {}
        (Some(Value::Object(before)), Some(Value::Object(after))) => objects(path, before, after, changes),
        (Some(Value::Array(before)), Some(Value::Array(after))) => arrays(path, before, after, changes),
        (before, after) => changes.push(FieldChange {
            path: if path.is_empty() {
                ".".to_owned()
            } else {
                path.to_owned()
            },
            from: before.cloned(),
            to: after.cloned(),
        }),
    }
}

fn objects(
    path: &str,
    before: &Map<String, Value>,
    after: &Map<String, Value>,
    changes: &mut Vec<FieldChange>,
) {
    let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    for key in keys {
        compare(&field(path, key), before.get(key), after.get(key), changes);
    }
}

/// Matches list items by the key that identifies them, so that an item that is added at the front is one change. Lists
/// of plain values differ as a whole.
fn arrays(path: &str, before: &[Value], after: &[Value], changes: &mut Vec<FieldChange>) {
    let Some(key) = ITEM_KEYS
        .into_iter()
        .find(|key| identifies(key, before) && identifies(key, after))
    else {
        return by_index(path, before, after, changes);
    };
    let known = changes.len();
    let of = |items: &[Value], wanted: &Value| items.iter().find(|item| &item[key] == wanted).cloned();
    let mut names: Vec<&Value> = before.iter().map(|item| &item[key]).collect();
    names.extend(
        after
            .iter()
            .map(|item| &item[key])
            .filter(|name| !before.iter().any(|item| &item[key] == *name)),
    );
    for name in names {
        let place = format!("{path}[{key}={name}]");
        compare(
            &place,
            of(before, name).as_ref(),
            of(after, name).as_ref(),
            changes,
        );
    }
    if changes.len() == known {
        // The same items in another order, which may matter, as for init containers.
        changes.push(FieldChange {
            path: path.to_owned(),
            from: Some(before.iter().map(|item| item[key].clone()).collect()),
            to: Some(after.iter().map(|item| item[key].clone()).collect()),
        });
    }
}

fn by_index(path: &str, before: &[Value], after: &[Value], changes: &mut Vec<FieldChange>) {
    let structured = before.iter().chain(after).all(Value::is_object);
    if !structured {
        changes.push(FieldChange {
            path: path.to_owned(),
            from: Some(before.into()),
            to: Some(after.into()),
        });
        return;
    }
    for place in 0..before.len().max(after.len()) {
        compare(
            &format!("{path}[{place}]"),
            before.get(place),
            after.get(place),
            changes,
        );
    }
}

fn identifies(key: &str, items: &[Value]) -> bool {
    let mut seen = BTreeSet::new();
    items.iter().all(|item| {
        let value = &item[key];
        (value.is_string() || value.is_number()) && seen.insert(value.to_string())
    })
}

/// Returns `.spec.replicas`; a key with special characters is quoted.
fn field(path: &str, key: &str) -> String {
    let plain = !key.is_empty()
        && key
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
    if plain {
        format!("{path}.{key}")
    } else {
        format!("{path}[{}]", json!(key))
    }
}

/// Hides the values of a Secret, and copies of them in annotations.
fn hide(change: &mut FieldChange) {
    let shown = [
        ".apiVersion",
        ".kind",
        ".type",
        ".immutable",
        ".metadata.labels",
        ".metadata.name",
    ];
    if shown.iter().any(|path| change.path.starts_with(path)) {
        return;
    }
    for side in [&mut change.from, &mut change.to].into_iter().flatten() {
        *side = HIDDEN.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(before: &Value, after: &Value, is_secret: bool) -> Vec<String> {
        let side = |value: &Option<Value>| value.as_ref().map_or("nothing".to_owned(), Value::to_string);
        let changes = difference(before, after, is_secret);
        changes
            .iter()
            .map(|change| format!("{}: {} -> {}", change.path, side(&change.from), side(&change.to)))
            .collect()
    }

    #[test]
    fn fields_are_named_by_their_path() {
        let before = json!({"spec": {"replicas": 2, "paused": true, "same": [1]}, "metadata": {"labels": {"a/b": "x"}}});
        let after = json!({"spec": {"replicas": 3, "same": [1], "new": {"x": 1}}, "metadata": {"labels": {"a/b": "y"}}});
        assert_eq!(
            texts(&before, &after, false),
            [
                r#".metadata.labels["a/b"]: "x" -> "y""#,
                r#".spec.new: nothing -> {"x":1}"#,
                ".spec.paused: true -> nothing",
                ".spec.replicas: 2 -> 3",
            ]
        );
        assert!(difference(&before, &before, false).is_empty());
    }

    #[test]
    fn items_are_matched_by_their_key() {
        let before = json!({"c": [{"name": "web", "image": "a"}, {"name": "log", "image": "l"}]});
        let after =
            json!({"c": [{"name": "new"}, {"name": "web", "image": "b"}, {"name": "log", "image": "l"}]});
        assert_eq!(
            texts(&before, &after, false),
            [
                r#".c[name="web"].image: "a" -> "b""#,
                r#".c[name="new"]: nothing -> {"name":"new"}"#
            ]
        );
        let before = json!({"p": [{"containerPort": 80}, {"containerPort": 81}]});
        let after = json!({"p": [{"containerPort": 81}]});
        assert_eq!(
            texts(&before, &after, false),
            [r#".p[containerPort=80]: {"containerPort":80} -> nothing"#]
        );
    }

    #[test]
    fn a_changed_order_is_a_change() {
        let before = json!({"c": [{"name": "a"}, {"name": "b"}]});
        let after = json!({"c": [{"name": "b"}, {"name": "a"}]});
        assert_eq!(texts(&before, &after, false), [r#".c: ["a","b"] -> ["b","a"]"#]);
    }

    #[test]
    fn lists_without_a_key_differ_as_a_whole_or_by_index() {
        let (before, after) = (json!({"args": ["a", "b"]}), json!({"args": ["b"]}));
        assert_eq!(texts(&before, &after, false), [r#".args: ["a","b"] -> ["b"]"#]);
        let (before, after) = (
            json!({"r": [{"x": 1}, {"x": 2}]}),
            json!({"r": [{"x": 1}, {"x": 3}]}),
        );
        assert_eq!(texts(&before, &after, false), [".r[1].x: 2 -> 3"]);
        // Two items with the same name: the key does not identify them.
        let (before, after) = (
            json!({"r": [{"name": "a", "x": 1}, {"name": "a", "x": 2}]}),
            json!({"r": [{"name": "a", "x": 1}, {"name": "a", "x": 3}]}),
        );
        assert_eq!(texts(&before, &after, false), [".r[1].x: 2 -> 3"]);
    }

    #[test]
    fn fields_that_the_server_writes_are_no_difference() {
        let mut live = json!({"metadata": {"name": "a", "uid": "u", "resourceVersion": "1", "generation": 4,
            "creationTimestamp": "t", "managedFields": []}, "status": {"x": 1}, "spec": {"x": 1}});
        canonical(&mut live);
        assert_eq!(live, json!({"metadata": {"name": "a"}, "spec": {"x": 1}}));
        let mut odd = json!("text");
        canonical(&mut odd);
        assert_eq!(odd, "text");
    }

    #[test]
    fn values_of_secrets_are_hidden() {
        let before = json!({"data": {"password": "aHVudGVyMg=="}, "type": "Opaque",
            "metadata": {"annotations": {"last-applied": "hunter2"}, "labels": {"a": "1"}}});
        let after = json!({"data": {"password": "b3RoZXI=", "more": "bW9yZQ=="}, "type": "Other",
            "metadata": {"annotations": {"last-applied": "other"}, "labels": {"a": "2"}}});
        assert_eq!(
            texts(&before, &after, true),
            [
                r#".data.more: nothing -> "***""#,
                r#".data.password: "***" -> "***""#,
                r#".metadata.annotations.last-applied: "***" -> "***""#,
                r#".metadata.labels.a: "1" -> "2""#,
                r#".type: "Opaque" -> "Other""#,
            ]
        );
        // A Secret without data gets all of it at once.
        let all = texts(&json!({}), &json!({"data": {"password": "aHVudGVyMg=="}}), true);
        assert_eq!(all, [r#".data: nothing -> "***""#]);
    }
}
