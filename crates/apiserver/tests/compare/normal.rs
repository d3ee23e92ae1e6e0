//! What servers make themselves has no meaning; it is given names by the order in which it is met.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// The values met so far, on either side.
#[derive(Default)]
pub(crate) struct Pair {
    real: Names,
    ours: Names,
}

#[derive(Default)]
struct Names {
    uids: HashMap<String, usize>,
    revisions: Vec<String>,
}

impl Pair {
    /// Gives both answers with names in place of values.
    pub(crate) fn both(&mut self, real: &Value, ours: &Value) -> (Value, Value) {
        (self.real.value("", real), self.ours.value("", ours))
    }
}

/// Fields that hold a time.
const TIMES: [&str; 13] = [
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
                let mut out: Map<String, Value> = map
                    .iter()
                    .map(|(name, value)| (self.text(name), self.value(name, value)))
                    .collect();
                // Both servers give a namespace the same objects, but at their own time.
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

    fn string(&mut self, name: &str, text: &str) -> String {
        match name {
            "uid" | "controller-uid" | "batch.kubernetes.io/controller-uid" => self.uid(text),
            "resourceVersion" if !text.is_empty() && text != "0" => "<revision>".to_owned(),
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

    /// UIDs and revisions within a text.
    fn text(&mut self, text: &str) -> String {
        let mut out = text.to_owned();
        let known: Vec<(String, usize)> = self
            .uids
            .iter()
            .filter(|(uid, _)| uid.len() == 36)
            .map(|(uid, number)| (uid.clone(), *number))
            .collect();
        for (uid, number) in known {
            out = out.replace(&uid, &format!("<uid {number}>"));
        }
        for word in ["ResourceVersion in record (", "current: ", "resource version: "] {
            if let Some(at) = out.find(word) {
                let from = at + word.len();
                let to = out[from..]
                    .find(|char: char| !char.is_ascii_digit())
                    .map_or(out.len(), |length| from + length);
                out.replace_range(from..to, "N");
            }
        }
        self.revisions.clear();
        // Where the real server keeps things.
        out.replace("/real/", "/registry/")
    }
}

/// Writes down where two values differ.
pub(crate) fn diff(path: &str, real: &Value, ours: &Value, out: &mut Vec<String>) {
    match (real, ours) {
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
