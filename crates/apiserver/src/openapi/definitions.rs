//! OpenAPI definitions of built-in kinds.
//!
//! `definitions.json` holds the definitions of Kubernetes 1.35 without their descriptions.
//! `tests/oracle/apply/codec/definitions.py` generates it; do not edit it. The definitions stay text, which the
//! documents copy.

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::value::RawValue;

/// The content of `definitions.json`.
pub(super) const SOURCE: &str = include_str!("definitions.json");

/// The prefix of references between definitions.
const REFERENCE: &str = "\"#/components/schemas/";

static DEFINITIONS: LazyLock<BTreeMap<&'static str, &'static RawValue>> =
    // The file is part of the program and a test reads it; a table that cannot be read defines nothing.
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

/// Returns the name of a kind's definition.
pub(super) fn of_kind(group: &str, version: &str, kind: &str) -> Option<&'static str> {
    KINDS
        .get(&(group.to_owned(), version.to_owned(), kind.to_owned()))
        .copied()
}

/// The definitions that a document needs: those that it refers to, and those that these refer to.
pub(super) struct Needed<'a> {
    custom: &'a BTreeMap<String, String>,
    found: BTreeMap<&'a str, &'a str>,
}

impl<'a> Needed<'a> {
    /// Starts with the definitions of custom kinds, which a document may need too.
    pub(super) fn new(custom: &'a BTreeMap<String, String>) -> Self {
        Self {
            custom,
            found: BTreeMap::new(),
        }
    }

    /// Adds the definitions that a text refers to.
    pub(super) fn add_references(&mut self, text: &str) {
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

    /// Returns the definitions by name.
    pub(super) fn into_all(self) -> BTreeMap<&'a str, &'a str> {
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_table_can_be_read() {
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
    fn definitions_have_no_descriptions() {
        for text in DEFINITIONS.values() {
            assert!(!text.get().contains("\"description\":\""), "{text}");
        }
    }
}
