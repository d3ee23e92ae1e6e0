//! Replaces values that servers generate by names, in the order of their first occurrence.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

/// The values so far, on both sides.
#[derive(Default)]
pub(crate) struct Pair {
    real: Names,
    embedded: Names,
}

#[derive(Default)]
struct Names {
    uids: HashMap<String, usize>,
    /// Revisions of objects; those of lists and bookmarks depend on other writes.
    revisions: HashMap<String, usize>,
    /// Whether revisions of objects are distinguished.
    ordered: bool,
}

impl Pair {
    /// Distinguishes revisions of objects, which only the script writes.
    pub(crate) fn ordered() -> Self {
        let mut pair = Self::default();
        (pair.real.ordered, pair.embedded.ordered) = (true, true);
        pair
    }

    /// Returns both responses with names instead of values.
    pub(crate) fn both(&mut self, real: &Value, embedded: &Value) -> (Value, Value) {
        (self.real.value("", real), self.embedded.value("", embedded))
    }
}

/// Fields that contain a time.
const TIMES: [&str; 14] = [
    "lastPhaseTransitionTime",
    "creationTimestamp",
    "deletionTimestamp",
    "time",
    "lastTransitionTime",
    "lastUpdateTime",
    "lastProbeTime",
    "startTime",
    "completionTime",
    "expirationTimestamp",
    "renewTime",
    "acquireTime",
    "firstTimestamp",
    "lastTimestamp",
];

impl Names {
    fn value(&mut self, name: &str, value: &Value) -> Value {
        match value {
            Value::Object(map) => {
                let map = &self.unordered(map);
                let list =
                    map.contains_key("items") || map.get("type").is_some_and(|kind| kind == "BOOKMARK");
                let mut out: Map<String, Value> = map
                    .iter()
                    .map(|(name, value)| {
                        let value = match (name.as_str(), value) {
                            ("metadata", Value::Object(_)) if list => self.list(value),
                            ("managedFields", Value::Array(entries)) => self.managed(entries),
                            ("nodePort" | "healthCheckNodePort", Value::Number(port))
                                if port.as_u64().is_some_and(|port| port >= 30_000) =>
                            {
                                json!("<port>")
                            }
                            _ => self.value(name, value),
                        };
                        (self.text(name), value)
                    })
                    .collect();
                // Both servers create the same objects in a namespace, but at different times.
                if let Some(Value::Array(items)) = out.get_mut("items") {
                    items.retain(|item| {
                        let name = &item["metadata"]["name"];
                        name != "kube-root-ca.crt" || item["data"].is_null()
                    });
                }
                Value::Object(out)
            }
            Value::Array(items) => items.iter().map(|item| self.value(name, item)).collect(),
            Value::String(text) => Value::String(self.string(name, text)),
            other => other.clone(),
        }
    }

    /// For several causes in maps (data, labels, fields of a CustomResource), the real server has any order; their
    /// message is compared by its letters.
    fn unordered(&self, map: &Map<String, Value>) -> Map<String, Value> {
        let mut map = map.clone();
        let Some(details) = map.get("details") else {
            return map;
        };
        let several = details["causes"]
            .as_array()
            .is_some_and(|causes| causes.len() > 1);
        if !self.ordered || !several {
            return map;
        }
        if let Some(causes) = map["details"]["causes"].as_array_mut() {
            causes.sort_by_key(ToString::to_string);
        }
        let message = self.text(map["message"].as_str().unwrap_or_default());
        let mut letters: Vec<char> = message.chars().collect();
        letters.sort_unstable();
        map["message"] = json!(letters.into_iter().collect::<String>());
        map
    }

    /// The metadata of a list.
    fn list(&mut self, meta: &Value) -> Value {
        let mut meta = meta.clone();
        if let Some(revision) = meta.get_mut("resourceVersion") {
            *revision = json!("");
        }
        self.value("metadata", &meta)
    }

    /// Entries are sorted by time, which differs on the two sides. The order is checked, and then replaced by one that
    /// does not depend on times.
    fn managed(&mut self, entries: &[Value]) -> Value {
        let text = |entry: &Value, name: &str| entry[name].as_str().unwrap_or_default().to_owned();
        let right = entries.is_sorted_by_key(|entry| {
            ["operation", "time", "manager", "apiVersion", "subresource"].map(|name| text(entry, name))
        });
        let mut out: Vec<Value> = entries.iter().map(|entry| self.value("", entry)).collect();
        out.sort_by_key(|entry| {
            ["operation", "manager", "apiVersion", "subresource"].map(|name| text(entry, name))
        });
        if !right {
            out.push(json!("in the wrong order"));
        }
        Value::Array(out)
    }

    fn string(&mut self, name: &str, text: &str) -> String {
        match name {
            "uid" | "controller-uid" | "batch.kubernetes.io/controller-uid" => self.uid(text),
            "resourceVersion" if !text.is_empty() && text != "0" => self.revision(text),
            "continue" if !text.is_empty() => "<continue>".to_owned(),
            "clusterIP" | "clusterIPs" | "ip" if text.starts_with(|char: char| char.is_ascii_digit()) => {
                "<address>".to_owned()
            }
            "token" if !text.is_empty() => "<token>".to_owned(),
            name if TIMES.contains(&name) => "<time>".to_owned(),
            _ => self.text(text),
        }
    }

    fn uid(&mut self, text: &str) -> String {
        let next = self.uids.len();
        let number = *self.uids.entry(text.to_owned()).or_insert(next);
        format!("<uid {number}>")
    }

    fn revision(&mut self, text: &str) -> String {
        if !self.ordered {
            return "<revision>".to_owned();
        }
        let next = self.revisions.len();
        let number = *self.revisions.entry(text.to_owned()).or_insert(next);
        format!("<revision {number}>")
    }

    /// UIDs, names and revisions within a text.
    fn text(&self, text: &str) -> String {
        let mut out = text.to_owned();
        if text.len() >= 36 {
            for (uid, number) in self.uids.iter().filter(|(uid, _)| uid.len() == 36) {
                if out.contains(uid) {
                    out = out.replace(uid, &format!("<uid {number}>"));
                }
            }
        }
        // Generated names start with `gen-` and a number in the random sequences.
        if let Some(at) = out.find("gen-") {
            let end = out[at + 4..]
                .find('-')
                .map_or(out.len(), |length| at + 5 + length);
            if out
                .get(end..end + 5)
                .is_some_and(|made| made.bytes().all(|byte| byte.is_ascii_alphanumeric()))
            {
                out.replace_range(end..end + 5, "*****");
            }
        }
        for word in [
            "ResourceVersion in record (",
            "current: ",
            "resource version: ",
            "the ResourceVersion in the precondition (",
            "ResourceVersion in precondition: ",
            "ResourceVersion in object meta: ",
        ] {
            if let Some(at) = out.find(word) {
                let from = at + word.len();
                let to = out[from..]
                    .find(|char: char| !char.is_ascii_digit())
                    .map_or(out.len(), |length| from + length);
                out.replace_range(from..to, "N");
            }
        }
        // The storage prefix of the real server.
        out.replace("Key: /real/", "Key: /")
            .replace("Key: /registry/", "Key: /")
    }
}

/// Collects the differences of two values.
pub(crate) fn diff(path: &str, real: &Value, embedded: &Value, out: &mut Vec<String>) {
    match (real, embedded) {
        (Value::Object(left), Value::Object(right)) => {
            for (name, value) in left {
                match right.get(name) {
                    Some(other) => diff(&format!("{path}.{name}"), value, other, out),
                    None => out.push(format!("{path}.{name}: {value} and here nothing")),
                }
            }
            for (name, value) in right {
                if !left.contains_key(name) {
                    out.push(format!("{path}.{name}: nothing and here {value}"));
                }
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (place, (value, other)) in left.iter().zip(right).enumerate() {
                diff(&format!("{path}[{place}]"), value, other, out);
            }
        }
        (left, right) if left != right => out.push(format!("{path}: {left} and here {right}")),
        _ => {}
    }
}
