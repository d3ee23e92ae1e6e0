//! Sets of fields in the format of `metadata.managedFields` (`fieldsV1`), and JSON pointers.
//!
//! A set is a tree of keys: `f:name` is a field, `k:{…}` a list item by its keys, `v:…` an item by its value, `i:0` an
//! item by its index, and `.` means that the node itself belongs to the set. So does a node without children.

mod pointer;

use std::fmt;

use serde_json::{Map, Value};

pub use self::pointer::{Pointer, PointerError, remove};

/// The key of a node that belongs to the set in addition to its children.
const ITSELF: &str = ".";

/// The fields that one manager owns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet(Map<String, Value>);

/// One field of a set: the keys on its path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldPath(Vec<String>);

impl FieldSet {
    /// Parses `fieldsV1`; a value that is no mapping is an empty set.
    #[must_use]
    pub fn new(fields: Value) -> Self {
        match fields {
            Value::Object(fields) => Self(fields),
            _ => Self::default(),
        }
    }

    /// Returns the set in the format of `fieldsV1`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        Value::Object(self.0.clone())
    }

    /// Reports whether a field, or a field that contains it, is in the set.
    #[must_use]
    pub fn contains(&self, path: &FieldPath) -> bool {
        let mut node = &self.0;
        for (depth, key) in path.0.iter().enumerate() {
            match node.get(key).and_then(Value::as_object) {
                // An atomic parent contains all that is in it.
                None => return depth > 0 && node.is_empty(),
                Some(next) => node = next,
            }
        }
        is_member(node)
    }

    /// Returns the fields of this set that are not in `now`, in order.
    #[must_use]
    pub fn lost(&self, now: &Self) -> Vec<FieldPath> {
        let mut members = Vec::new();
        collect(&self.0, &mut Vec::new(), &mut members);
        members.retain(|path| !now.contains(path));
        members
    }

    /// Returns the set without a field and all that is in it. `object` is the object that was applied: with it, a
    /// number in the pointer is resolved to an item of a list.
    #[must_use]
    pub fn without(&self, pointer: &Pointer, object: &Value) -> Self {
        let mut fields = self.0.clone();
        remove_at(&mut fields, pointer.tokens(), object);
        Self(fields)
    }
}

impl fmt::Display for FieldPath {
    /// Writes `.spec.template.spec.containers[name="main"].image`, as an API server names fields in conflicts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for key in &self.0 {
            match key.split_once(':') {
                Some(("f", name)) => write!(f, ".{name}")?,
                Some(("k", keys)) => write!(f, "[{}]", item_keys(keys))?,
                Some(("v", value)) => write!(f, "[={value}]")?,
                Some(("i", place)) => write!(f, "[{place}]")?,
                _ => write!(f, ".{key}")?,
            }
        }
        Ok(())
    }
}

fn item_keys(keys: &str) -> String {
    let keys: Map<String, Value> = serde_json::from_str(keys).unwrap_or_default();
    let keys: Vec<String> = keys
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    keys.join(",")
}

fn is_member(node: &Map<String, Value>) -> bool {
    node.is_empty() || node.contains_key(ITSELF)
}

fn collect(node: &Map<String, Value>, path: &mut Vec<String>, members: &mut Vec<FieldPath>) {
    if !path.is_empty() && is_member(node) {
        members.push(FieldPath(path.clone()));
    }
    for (key, child) in node {
        if let (false, Some(child)) = (key == ITSELF, child.as_object()) {
            path.push(key.clone());
            collect(child, path, members);
            path.pop();
        }
    }
}

/// Removes the field at the path of the tokens. A parent that becomes empty is removed too: without children it would
/// be read as a field of its own.
fn remove_at(fields: &mut Map<String, Value>, tokens: &[String], object: &Value) {
    let Some((token, rest)) = tokens.split_first() else {
        return;
    };
    let Some(key) = child_key(fields, token, object) else {
        return;
    };
    if rest.is_empty() {
        fields.remove(&key);
        return;
    }
    let inner = child(object, token);
    let Some(node) = fields.get_mut(&key).and_then(Value::as_object_mut) else {
        return;
    };
    let was_leaf = node.is_empty();
    remove_at(node, rest, inner);
    if node.is_empty() && !was_leaf {
        fields.remove(&key);
    }
}

fn child<'a>(object: &'a Value, token: &str) -> &'a Value {
    match object {
        Value::Array(items) => token.parse().ok().and_then(|n: usize| items.get(n)),
        Value::Object(fields) => fields.get(token),
        _ => None,
    }
    .unwrap_or(&Value::Null)
}

/// Returns the key under which a set has the child of `object` that a token names.
fn child_key(fields: &Map<String, Value>, token: &str, object: &Value) -> Option<String> {
    if !object.is_array() {
        let key = format!("f:{token}");
        return fields.contains_key(&key).then_some(key);
    }
    let item = child(object, token);
    fields.keys().find(|key| names_item(key, token, item)).cloned()
}

fn names_item(key: &str, place: &str, item: &Value) -> bool {
    match key.split_once(':') {
        Some(("k", keys)) => serde_json::from_str::<Map<String, Value>>(keys).is_ok_and(|keys| {
            // A key that has its default in the item (`protocol` of a port) is no mismatch.
            keys.iter()
                .all(|(name, value)| item.get(name).is_none_or(|found| found == value))
        }),
        Some(("v", value)) => serde_json::from_str::<Value>(value).is_ok_and(|value| value == *item),
        Some(("i", index)) => index == place,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(fields: Value) -> FieldSet {
        FieldSet::new(fields)
    }

    fn names(paths: &[FieldPath]) -> Vec<String> {
        paths.iter().map(ToString::to_string).collect()
    }

    fn deployment() -> (FieldSet, Value) {
        let fields = json!({"f:spec": {"f:replicas": {}, "f:template": {"f:spec": {"f:containers": {
            "k:{\"name\":\"side\"}": {".": {}, "f:name": {}, "f:image": {}},
            "k:{\"name\":\"main\"}": {".": {}, "f:name": {}, "f:image": {},
                "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}}},
        }}}}, "f:metadata": {"f:finalizers": {"v:\"a\"": {}}}});
        let object = json!({"spec": {"replicas": 3, "template": {"spec": {"containers": [
            {"name": "main", "image": "x", "ports": [{"containerPort": 80}]}, {"name": "side", "image": "y"}]}}},
            "metadata": {"finalizers": ["a"]}});
        (set(fields), object)
    }

    #[test]
    fn lost_fields_are_named_as_the_server_names_them() {
        let (before, object) = deployment();
        let mut now = before.clone();
        for pointer in ["/spec/replicas", "/spec/template/spec/containers/0/image"] {
            now = now.without(&pointer.parse().unwrap(), &object);
        }
        assert_eq!(
            names(&before.lost(&now)),
            [
                ".spec.replicas",
                ".spec.template.spec.containers[name=\"main\"].image"
            ]
        );
        assert!(now.lost(&before).is_empty());
        assert_eq!(
            names(&before.lost(&FieldSet::default())).len(),
            names(&before.lost(&set(Value::Null))).len()
        );
    }

    #[test]
    fn a_part_of_an_atomic_field_is_in_the_set_with_it() {
        let part = &set(json!({"f:data": {"f:k": {}}})).lost(&FieldSet::default())[0];
        for (fields, held) in [
            (json!({"f:data": {"f:k": {}}}), true),
            (json!({"f:data": {}}), true),
            (json!({"f:data": {".": {}, "f:other": {}}}), false),
            (json!({"f:data": {"f:other": {}}}), false),
            (json!({}), false),
        ] {
            assert_eq!(set(fields.clone()).contains(part), held, "{fields}");
        }
    }

    #[test]
    fn a_pointer_removes_its_field_and_empty_parents() {
        let object = json!({"spec": {"replicas": 3}, "data": {"a": "1", "b": "2"}});
        for (fields, pointer, expected) in [
            (json!({"f:spec": {"f:replicas": {}}}), "/spec/replicas", json!({})),
            (
                json!({"f:spec": {".": {}, "f:replicas": {}}}),
                "/spec/replicas",
                json!({"f:spec": {".": {}}}),
            ),
            (
                json!({"f:data": {"f:a": {}, "f:b": {}}}),
                "/data/a",
                json!({"f:data": {"f:b": {}}}),
            ),
            (json!({"f:data": {"f:a": {}}}), "/data", json!({})),
            (json!({"f:data": {}}), "/data/a", json!({"f:data": {}})),
            (
                json!({"f:data": {"f:a": {}}}),
                "/data/none",
                json!({"f:data": {"f:a": {}}}),
            ),
        ] {
            let left = set(fields).without(&pointer.parse().unwrap(), &object);
            assert_eq!(left.to_json(), expected, "{pointer}");
        }
    }

    #[test]
    fn items_of_lists_are_found_by_key_value_and_index() {
        let (fields, object) = deployment();
        for (pointer, lost) in [
            (
                "/spec/template/spec/containers/1/image",
                ".spec.template.spec.containers[name=\"side\"].image",
            ),
            (
                "/spec/template/spec/containers/0/ports/0/containerPort",
                ".spec.template.spec.containers[name=\"main\"].ports[containerPort=80,protocol=\"TCP\"].containerPort",
            ),
            ("/metadata/finalizers/0", ".metadata.finalizers[=\"a\"]"),
        ] {
            let left = fields.without(&pointer.parse().unwrap(), &object);
            assert_eq!(names(&fields.lost(&left)), [lost]);
        }
        let by_place = set(json!({"f:l": {"i:0": {}, "i:1": {}}}));
        let left = by_place.without(&"/l/1".parse().unwrap(), &json!({"l": [1, 2]}));
        assert_eq!(left.to_json(), json!({"f:l": {"i:0": {}}}));
    }
}
