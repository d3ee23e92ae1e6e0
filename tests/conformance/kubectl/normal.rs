//! Replaces values that servers generate in the output of commands.

use regex::Regex;
use serde_json::Value;

/// How the outputs of one cluster are normalised.
pub(crate) struct Normal {
    url: String,
    rules: Vec<(Regex, &'static str)>,
}

/// Patterns and their replacements, in this order.
const RULES: [(&str, &str); 21] = [
    (
        r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
        "<uid>",
    ),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "<time>"),
    (
        r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d \+0000",
        "<time>",
    ),
    (r"[EWI]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ ", "<log> "),
    (
        r#"(resourceVersion\\*"?: ?\\*"|Resource Version: +)\d+"#,
        "$1<revision>",
    ),
    (r"/(LIVE|MERGED)-\d+/", "/$1/"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)? \+0000( UTC)?", "<time>"),
    (
        r"(the object has been modified.*|ResourceVersion: )\d+",
        "$1<revision>",
    ),
    (r"\b\d{1,3}(\.\d{1,3}){3}(:\d+)?\b", "<address>"),
    (
        r"\beyJ[A-Za-z0-9_=-]+\.[A-Za-z0-9_=-]+\.[A-Za-z0-9_-]+",
        "<token>",
    ),
    (
        r"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----",
        "<certificate>",
    ),
    // The width of a column depends on its content.
    (r"(\S) {2,}", "$1  "),
    (r"\t+", "\t"),
    (r"(?m)(^|[ \t(])(\d+(d|h|m|s))+( ago)?($|[ \t)])", "$1<age>$5"),
    (r"\b(3[0-2]\d{3})/(TCP|UDP)", "<node port>/$2"),
    (r"nodePort: 3\d{4}", "nodePort: <node port>"),
    (r"Deployment/[a-z]+-[0-9a-f]{8,10}\b", "Deployment/<hash>"),
    (r#"(ReplicaSet "[a-z]+-)[0-9a-f]{6,10}""#, "$1<hash>\""),
    // A loop of the real server repairs addresses that it has just allocated, if it is slow.
    (r"(?m)^ +\S+ +ClusterIPNotAllocated .*\n", ""),
    (
        r"Events:\n +Type .*\n +---- .*\n(\z|\S|\n)",
        "Events:  <none>\n$1",
    ),
    (r"(?m) +$", ""),
];

/// Sorts the fields of JSON by name, in the whole text or in single lines.
fn sorted(text: &str) -> String {
    if let Ok(value @ (Value::Object(_) | Value::Array(_))) = serde_json::from_str(text) {
        return format!("{value:#}\n");
    }
    let line = |line: &str| match serde_json::from_str(line) {
        Ok(value @ Value::Object(_)) => value.to_string(),
        _ => line.to_owned(),
    };
    let mut lines: Vec<String> = text.lines().map(line).collect();
    if text.ends_with('\n') {
        lines.push(String::new());
    }
    lines.join("\n")
}

impl Normal {
    pub(crate) fn new(url: &str) -> Self {
        Self {
            url: url.trim_end_matches('/').to_owned(),
            rules: RULES
                .iter()
                .map(|(pattern, with)| (Regex::new(pattern).unwrap(), *with))
                .collect(),
        }
    }

    pub(crate) fn text(&self, text: &str) -> String {
        let mut text = sorted(text).replace(&self.url, "<server>");
        for (pattern, with) in &self.rules {
            text = pattern.replace_all(&text, *with).into_owned();
        }
        text
    }
}
