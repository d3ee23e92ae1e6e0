//! The release digest: what an approval names.
//!
//! The digest covers what is built (before values of clusters are substituted) and the templates that define these
//! values. It is the same for any number of clusters, and changes with any base in the repository. Decrypted values are
//! never digested, since a short password could be guessed from the digest; the commit takes their place.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;
use starling_api::SyncTemplate;

use crate::digest;

/// One entry of a release with its builds.
#[derive(Clone, Debug, Serialize)]
pub struct EntryBuild<'a> {
    /// The name of the entry.
    pub name: &'a str,
    /// The template of the entry, before parameters are resolved.
    pub template: SyncTemplate,
    /// The commit, if the entry has encrypted objects.
    pub commit: Option<String>,
    /// The [`of_manifests`] of each build. There are several if the path or the namespace has parameters.
    pub builds: BTreeSet<String>,
}

/// Returns the digest of a release. The order of the entries does not matter.
#[must_use]
pub fn of_release(entries: &[EntryBuild<'_>]) -> String {
    let mut ordered: Vec<&EntryBuild<'_>> = entries.iter().collect();
    ordered.sort_by_key(|entry| entry.name);
    digest::of(&("rendered", ordered))
}

/// Returns the digest of the objects of a build. `decrypted`: the values of Secrets are left out.
#[must_use]
pub fn of_manifests(objects: &[Value], decrypted: bool) -> String {
    let canonical: Vec<Canonical<'_>> = objects
        .iter()
        .map(|object| canonical(object, decrypted && object["kind"] == "Secret"))
        .collect();
    digest::of(&("manifests", canonical))
}

/// A value with its fields in order, whatever the order of the original map.
#[derive(Serialize)]
#[serde(untagged)]
enum Canonical<'v> {
    Object(BTreeMap<&'v str, Canonical<'v>>),
    Array(Vec<Canonical<'v>>),
    Other(&'v Value),
}

/// The fields of a Secret with its values.
const VALUES: [&str; 2] = ["data", "stringData"];

fn canonical(value: &Value, is_secret: bool) -> Canonical<'_> {
    match value {
        Value::Object(fields) => Canonical::Object(
            fields
                .iter()
                .filter(|(key, _)| !(is_secret && VALUES.contains(&key.as_str())))
                .map(|(key, value)| (key.as_str(), canonical(value, false)))
                .collect(),
        ),
        Value::Array(items) => Canonical::Array(items.iter().map(|item| canonical(item, false)).collect()),
        other => Canonical::Other(other),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template(path: &str) -> SyncTemplate {
        serde_json::from_value(json!({"sourceRef": {"name": "s"}, "path": path})).unwrap()
    }

    fn entry<'a>(name: &'a str, path: &str, builds: &[&str]) -> EntryBuild<'a> {
        EntryBuild {
            name,
            template: template(path),
            commit: None,
            builds: builds.iter().map(|&build| build.to_owned()).collect(),
        }
    }

    #[test]
    fn any_other_render_has_another_digest() {
        let base = of_release(&[entry("a", "./a", &["1"]), entry("b", "./b", &["2"])]);
        assert_eq!(
            base,
            of_release(&[entry("b", "./b", &["2"]), entry("a", "./a", &["1"])])
        );
        for other in [
            vec![entry("a", "./a", &["1"])],
            vec![entry("a", "./a", &["1"]), entry("b", "./b", &["3"])],
            vec![entry("a", "./a", &["1"]), entry("b", "./c", &["2"])],
            vec![entry("a", "./a", &["1"]), entry("c", "./b", &["2"])],
            vec![entry("a", "./a", &["1", "2"]), entry("b", "./b", &["2"])],
        ] {
            assert_ne!(base, of_release(&other), "{other:?}");
        }
    }

    #[test]
    fn the_order_of_objects_matters_and_that_of_fields_does_not() {
        let (a, b) = (
            json!({"kind": "A", "x": {"p": 1, "q": [1, 2]}}),
            json!({"kind": "B"}),
        );
        let same: Value = serde_json::from_str(r#"{"x": {"q": [1, 2], "p": 1}, "kind": "A"}"#).unwrap();
        assert_eq!(
            of_manifests(std::slice::from_ref(&a), false),
            of_manifests(&[same], false)
        );
        assert_ne!(
            of_manifests(&[a.clone(), b.clone()], false),
            of_manifests(&[b, a], false)
        );
    }

    #[test]
    fn decrypted_values_are_not_in_the_digest() {
        let secret =
            |value: &str| json!({"kind": "Secret", "metadata": {"name": "s"}, "data": {"key": value}});
        assert_eq!(
            of_manifests(&[secret("aGk=")], true),
            of_manifests(&[secret("aG8=")], true)
        );
        assert_ne!(
            of_manifests(&[secret("aGk=")], false),
            of_manifests(&[secret("aG8=")], false)
        );
        let map = |value: &str| json!({"kind": "ConfigMap", "data": {"key": value}});
        assert_ne!(of_manifests(&[map("1")], true), of_manifests(&[map("2")], true));
    }
}
