//! Normalises Secrets to the form that the API server stores: `stringData` is write-only.
//!
//! The server moves `stringData` into `data` after it has recorded the field managers. An apply with `stringData`
//! therefore owns fields that no object has: an edit of the value would not be drift, and a key that leaves the
//! manifest would not be removed. Flux and Argo CD write `data` for the same reason.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};
use starling_core::object::ObjectId;

/// Writes the strings of `stringData` as `data`, over existing keys, as the API server does. Other values are
/// unchanged, and the API server refuses them.
pub(super) fn normalise(key: &ObjectId, object: &mut Map<String, Value>) {
    if !key.group.is_empty() || key.kind != "Secret" {
        return;
    }
    let texts = object.get("stringData").and_then(Value::as_object);
    let Some(texts) = texts.filter(|texts| texts.values().all(Value::is_string)) else {
        return;
    };
    let encoded: Map<String, Value> = texts
        .iter()
        .filter_map(|(name, text)| Some((name.clone(), STANDARD.encode(text.as_str()?).into())))
        .collect();
    let data = object.entry("data").or_insert_with(|| Map::new().into());
    if data.is_null() {
        *data = Map::new().into();
    }
    if let Some(data) = data.as_object_mut() {
        data.extend(encoded);
        object.remove("stringData");
    }
}

/// Adds the values of a Secret, as they are written and as they are meant, and its keys.
pub(super) fn values(key: &ObjectId, object: &Value, found: &mut Vec<String>, keys: &mut BTreeSet<String>) {
    if !key.group.is_empty() || key.kind != "Secret" {
        return;
    }
    let fields = |name: &str| object[name].as_object().into_iter().flatten();
    let named = fields("data").chain(fields("stringData"));
    keys.extend(named.map(|(name, _)| name.clone()));
    for text in fields("data").filter_map(|(_, value)| value.as_str()) {
        found.push(text.to_owned());
        let decoded = STANDARD.decode(text.trim()).ok();
        found.extend(decoded.and_then(|bytes| String::from_utf8(bytes).ok()));
    }
    let texts = fields("stringData").filter_map(|(_, value)| value.as_str());
    found.extend(texts.map(str::to_owned));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn normalised(kind: &str, rest: Value) -> Value {
        let key = ObjectId {
            group: String::new(),
            kind: kind.into(),
            namespace: "n".into(),
            name: "s".into(),
        };
        let Value::Object(mut object) = rest else {
            panic!("a mapping")
        };
        normalise(&key, &mut object);
        object.into()
    }

    #[test]
    fn strings_become_data_and_other_values_are_unchanged() {
        for (given, expected) in [
            (
                json!({"stringData": {"a": "x"}, "data": {"a": "b2xk", "b": "eQ=="}}),
                json!({"data": {"a": "eA==", "b": "eQ=="}}),
            ),
            (json!({"stringData": {"a": ""}}), json!({"data": {"a": ""}})),
            (json!({"stringData": {}, "data": null}), json!({"data": {}})),
            (json!({"data": {"b": "eQ=="}}), json!({"data": {"b": "eQ=="}})),
            (json!({"stringData": {"a": 1}}), json!({"stringData": {"a": 1}})),
            (json!({"stringData": "x"}), json!({"stringData": "x"})),
            (
                json!({"stringData": {"a": "x"}, "data": ["x"]}),
                json!({"stringData": {"a": "x"}, "data": ["x"]}),
            ),
        ] {
            assert_eq!(normalised("Secret", given.clone()), expected, "{given}");
        }
        let other = json!({"stringData": {"a": "x"}});
        assert_eq!(normalised("ConfigMap", other.clone()), other);
    }
}
