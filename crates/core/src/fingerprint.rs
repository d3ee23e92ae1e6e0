//! The release digest: what an approval names.
//!
//! The digest covers what is built (before values of clusters are substituted), the templates that define these values,
//! and the values from labels and annotations of clusters. Without such values it is the same for any number of
//! clusters. It changes with any base in the repository. Decrypted values are
//! never digested, since a short password could be guessed from the digest; the commit takes their place.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;
use starling_api::SyncTemplate;

use crate::digest;
use crate::secret_values::SecretValues;

/// One entry of a release with its builds.
#[derive(Clone, Debug, Serialize)]
pub struct EntryBuild<'a> {
    /// The name of the entry.
    pub name: &'a str,
    /// The template of the entry, before parameters are resolved.
    pub template: SyncTemplate,
    /// The commit, if the entry has encrypted objects.
    pub commit: Option<String>,
    /// The values that clusters give to the parameters of the template ([`crate::expand::cluster_values`]), by cluster.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, BTreeMap<String, String>>,
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

/// Returns the digest of the objects of a build. `decrypted`: the values of Secrets are left out. Texts of any object
/// that contain one of the `opened` values are left out too.
#[must_use]
pub fn of_manifests(objects: &[Value], decrypted: bool, opened: &SecretValues) -> String {
    let canonical: Vec<Canonical<'_>> = objects
        .iter()
        .map(|object| canonical(object, decrypted && object["kind"] == "Secret", opened))
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

fn canonical<'v>(value: &'v Value, is_secret: bool, opened: &SecretValues) -> Canonical<'v> {
    match value {
        Value::Object(fields) => Canonical::Object(
            fields
                .iter()
                .filter(|(key, _)| !(is_secret && VALUES.contains(&key.as_str())))
                .map(|(key, value)| (key.as_str(), canonical(value, false, opened)))
                .collect(),
        ),
        Value::Array(items) => {
            Canonical::Array(items.iter().map(|item| canonical(item, false, opened)).collect())
        }
        Value::String(text) if opened.are_in(text) => Canonical::Other(&Value::Null),
        Value::Number(number) if !opened.is_empty() && opened.are_in(&number.to_string()) => {
            Canonical::Other(&Value::Null)
        }
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
            values: BTreeMap::new(),
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

    /// Guards against a label that is changed after an approval, and rolls out under it.
    #[test]
    fn tenant_values_of_clusters_are_in_the_digest() {
        let with = |values: &[(&str, &str)]| {
            let mut entry = entry("a", "./a", &["1"]);
            entry.values = values
                .iter()
                .map(|(cluster, account)| {
                    let of_cluster =
                        BTreeMap::from([("serviceAccountName".to_owned(), (*account).to_owned())]);
                    ((*cluster).to_owned(), of_cluster)
                })
                .collect();
            of_release(&[entry])
        };
        let base = with(&[("eu", "deployer"), ("us", "admin")]);
        assert_ne!(base, with(&[("eu", "admin"), ("us", "admin")]));
        assert_ne!(
            base,
            with(&[("eu", "admin"), ("us", "deployer")]),
            "another cluster"
        );
        assert_eq!(with(&[]), of_release(&[entry("a", "./a", &["1"])]));
    }

    #[test]
    fn the_order_of_objects_matters_and_that_of_fields_does_not() {
        let (a, b) = (
            json!({"kind": "A", "x": {"p": 1, "q": [1, 2]}}),
            json!({"kind": "B"}),
        );
        let same: Value = serde_json::from_str(r#"{"x": {"q": [1, 2], "p": 1}, "kind": "A"}"#).unwrap();
        assert_eq!(
            of_manifests(std::slice::from_ref(&a), false, &SecretValues::default()),
            of_manifests(&[same], false, &SecretValues::default())
        );
        assert_ne!(
            of_manifests(&[a.clone(), b.clone()], false, &SecretValues::default()),
            of_manifests(&[b, a], false, &SecretValues::default())
        );
    }

    #[test]
    fn decrypted_values_are_not_in_the_digest() {
        let secret =
            |value: &str| json!({"kind": "Secret", "metadata": {"name": "s"}, "data": {"key": value}});
        assert_eq!(
            of_manifests(&[secret("aGk=")], true, &SecretValues::default()),
            of_manifests(&[secret("aG8=")], true, &SecretValues::default())
        );
        assert_ne!(
            of_manifests(&[secret("aGk=")], false, &SecretValues::default()),
            of_manifests(&[secret("aG8=")], false, &SecretValues::default())
        );
        let map = |value: &str| json!({"kind": "ConfigMap", "data": {"key": value}});
        let opened = SecretValues::new(["hunter2".into(), "hunter3".into(), "1234567".into()]);
        let of = |objects: &[Value]| of_manifests(objects, true, &opened);
        // Whatever the kind, and also in another object that kustomize copied the value to.
        assert_eq!(of(&[map("a hunter2 b")]), of(&[map("hunter3")]));
        assert_ne!(of(&[map("hunter2")]), of(&[map("other")]));
        let number = |value: i64| json!({"kind": "Widget", "spec": {"pin": value}});
        assert_eq!(
            of(&[number(1_234_567)]),
            of(&[json!({"kind": "Widget", "spec": {"pin": "hunter2"}})])
        );
        assert_ne!(
            of_manifests(&[map("1")], true, &SecretValues::default()),
            of_manifests(&[map("2")], true, &SecretValues::default())
        );
    }
}
