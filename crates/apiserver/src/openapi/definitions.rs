//! Definitions of built-in kinds.
//!
//! `definitions.json` holds the definitions of Kubernetes 1.35 without their descriptions.
//! `tests/oracle/apply/codec/definitions.py` makes it; it is not written by hand. They are kept as text, which is what
//! documents are made of.

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::value::RawValue;

/// The file.
pub(super) const SOURCE: &str = include_str!("definitions.json");

/// How definitions refer to each other.
const REFERENCE: &str = "\"#/components/schemas/";

static DEFINITIONS: LazyLock<BTreeMap<&'static str, &'static RawValue>> =
    // Part of the program, and read by a test; a table that cannot be read defines nothing.
    LazyLock::new(|| serde_json::from_str(SOURCE).unwrap_or_default());

#[derive(Deserialize)]
struct Kind {
    group: String,
    version: String,
    kind: String,
}

static KINDS: LazyLock<HashMap<(String, String, String), &'static str>> = LazyLock::new(|| {
    #[derive(Deserialize)]
    struct Entry {
        #[serde(rename = "x-kubernetes-group-version-kind", default)]
        kinds: Vec<Kind>,
    }
    let mut names = HashMap::new();
    for (name, text) in DEFINITIONS.iter() {
        let entry: Option<Entry> = serde_json::from_str(text.get()).ok();
        for kind in entry.into_iter().flat_map(|entry| entry.kinds) {
            names.insert((kind.group, kind.version, kind.kind), *name);
        }
    }
    names
});

/// What a kind is called among the definitions.
pub(super) fn of_kind(group: &str, version: &str, kind: &str) -> Option<&'static str> {
    KINDS
        .get(&(group.to_owned(), version.to_owned(), kind.to_owned()))
        .copied()
}

/// The definitions that a document needs: those that it refers to, and those that they refer to.
pub(super) struct Needed<'a> {
    custom: &'a BTreeMap<String, String>,
    found: BTreeMap<&'a str, &'a str>,
}

impl<'a> Needed<'a> {
    /// Begins with the definitions of custom kinds, which may be needed too.
    pub(super) fn new(custom: &'a BTreeMap<String, String>) -> Self {
        Self {
            custom,
            found: BTreeMap::new(),
        }
    }

    /// Adds what a text refers to.
    pub(super) fn refer(&mut self, text: &str) {
        let mut waiting: Vec<(&'a str, &'a str)> = self.direct(text);
        while let Some((name, text)) = waiting.pop() {
            if self.found.insert(name, text).is_none() {
                waiting.extend(self.direct(text));
            }
        }
    }

    fn direct(&self, text: &str) -> Vec<(&'a str, &'a str)> {
        let names = text
            .split(REFERENCE)
            .skip(1)
            .filter_map(|rest| rest.split('"').next());
        names.filter_map(|name| self.get(name)).collect()
    }

    fn get(&self, name: &str) -> Option<(&'a str, &'a str)> {
        if let Some((name, text)) = self.custom.get_key_value(name) {
            return Some((name, text));
        }
        let (name, text) = DEFINITIONS.get_key_value(name)?;
        Some((name, text.get()))
    }

    /// All of them by name.
    pub(super) fn into_all(self) -> BTreeMap<&'a str, &'a str> {
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_whole() {
        assert!(DEFINITIONS.len() > 500, "{}", DEFINITIONS.len());
        assert_eq!(
            of_kind("apps", "v1", "Deployment"),
            Some("io.k8s.api.apps.v1.Deployment")
        );
        assert!(
            DEFINITIONS
                .get("io.k8s.api.core.v1.PodSpec")
                .map(|text| text.get())
                .is_some_and(|text| text.contains("\"x-kubernetes-patch-merge-key\":\"name\""))
        );
    }

    #[test]
    fn nothing_in_it_is_prose() {
        for text in DEFINITIONS.values() {
            assert!(!text.get().contains("\"description\":\""), "{text}");
        }
    }
}
