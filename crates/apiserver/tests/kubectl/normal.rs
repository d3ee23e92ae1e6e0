//! What servers make themselves has no meaning: it is replaced in what commands print.

use regex::Regex;

/// How the outputs of one cluster are normalised.
pub(crate) struct Normal {
    url: String,
    rules: Vec<(Regex, &'static str)>,
}

/// Patterns and what stands for them, in this order.
const RULES: [(&str, &str); 16] = [
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
    (r#"(resourceVersion"?: ")\d+""#, "$1<revision>\""),
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
    // How wide a column is depends on what stands in it.
    (r" {2,}", "  "),
    (r"\t+", "\t"),
    (r"(?m)(^|[ \t(])(\d+(d|h|m|s))+( ago)?($|[ \t)])", "$1<age>$5"),
    (r"\b(3[0-2]\d{3})/(TCP|UDP)", "<node port>/$2"),
    (r"nodePort: 3\d{4}", "nodePort: <node port>"),
    (r"Deployment/[a-z]+-[0-9a-f]{8,10}\b", "Deployment/<hash>"),
    (r"(?m) +$", ""),
];

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
        let mut text = text.replace(&self.url, "<server>");
        for (pattern, with) in &self.rules {
            text = pattern.replace_all(&text, *with).into_owned();
        }
        text
    }
}
