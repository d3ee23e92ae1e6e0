//! Ignored fields (`ignore`), which are left out of what is applied.
//!
//! An object is created with all of its fields; after that, the ignored ones are not applied (ADR 12). So a rendered
//! object has two bodies: the whole one for its creation, and the one without ignored fields for later applies. Both
//! are computed once per rendered set and shared by the clusters.

use std::collections::BTreeMap;

use bytes::Bytes;
use kube_core::{Selector, SelectorExt};
use serde_json::Value;
use starling_api::{IgnoreRule, OWNER_LABEL, ObjectSelector};
use thiserror::Error;

use crate::digest;
use crate::expand::{self, SelectorError};
use crate::fields::{self, Pointer, PointerError};
use crate::object::{Ignored, RenderedObject, RenderedSet, set_digest};

/// Fields that cannot be ignored: they are the identity and the owner of an object.
const ESSENTIAL: [&[&str]; 5] = [
    &["apiVersion"],
    &["kind"],
    &["metadata", "name"],
    &["metadata", "namespace"],
    &["metadata", "labels", OWNER_LABEL],
];

/// The validated `ignore` of a Sync.
#[derive(Clone, Debug, Default)]
pub struct IgnoreRules {
    rules: Vec<Rule>,
    digest: String,
}

#[derive(Clone, Debug)]
struct Rule {
    pointers: Vec<Pointer>,
    target: ObjectSelector,
    labels: Option<Selector>,
}

/// An error in an `ignore`; the text begins with the field.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum IgnoreError {
    /// A path is not a pointer to a field.
    #[error("ignore[{rule}].paths[{path}]: {text:?} {source}")]
    Path {
        /// The index of the rule.
        rule: usize,
        /// The index of the path.
        path: usize,
        /// The path as written.
        text: String,
        /// The error in the path.
        source: PointerError,
    },
    /// A path names a field that Starling has to own.
    #[error(
        "ignore[{rule}].paths[{path}]: {text:?} cannot be ignored: name, namespace, kind and the owner label identify an object"
    )]
    Essential {
        /// The index of the rule.
        rule: usize,
        /// The index of the path.
        path: usize,
        /// The path as written.
        text: String,
    },
    /// The label selector is invalid.
    #[error("ignore[{rule}].target.labelSelector: {source}")]
    Selector {
        /// The index of the rule.
        rule: usize,
        /// The error in the selector.
        #[source]
        source: SelectorError,
    },
}

impl IgnoreRules {
    /// Validates the rules.
    ///
    /// # Errors
    /// [`IgnoreError`], which names the field.
    pub fn new(rules: &[IgnoreRule]) -> Result<Self, IgnoreError> {
        let checked = rules
            .iter()
            .enumerate()
            .map(|(n, rule)| checked(n, rule))
            .collect::<Result<Vec<_>, _>>()?;
        let digest = if rules.is_empty() {
            String::new()
        } else {
            digest::of(&rules)
        };
        Ok(Self {
            rules: checked,
            digest,
        })
    }

    /// Reports whether nothing is ignored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.iter().all(|rule| rule.pointers.is_empty())
    }

    /// Returns the digest of the rules; empty without rules.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Returns the set without the ignored fields in the bodies of its objects.
    #[must_use]
    pub fn apply_to(&self, set: RenderedSet) -> RenderedSet {
        if self.is_empty() {
            return set;
        }
        let objects: Vec<_> = set
            .objects
            .into_iter()
            .map(|object| self.without_ignored(object))
            .collect();
        RenderedSet {
            digest: set_digest(&objects),
            objects,
            secrets: set.secrets,
        }
    }

    fn without_ignored(&self, object: RenderedObject) -> RenderedObject {
        let candidates: Vec<&Rule> = self.rules.iter().filter(|rule| rule.matches(&object)).collect();
        if candidates.is_empty() {
            return object;
        }
        // A rendered body is JSON; if it were not, it would be applied as a whole.
        let Ok(mut body) = serde_json::from_slice::<Value>(&object.body) else {
            return object;
        };
        let labels = labels(&body);
        let pointers = candidates
            .into_iter()
            .filter(|rule| rule.labels.as_ref().is_none_or(|wanted| wanted.matches(&labels)))
            .flat_map(|rule| &rule.pointers);
        let pointers: Vec<Pointer> = fields::remove(&mut body, pointers).into_iter().cloned().collect();
        if pointers.is_empty() {
            return object;
        }
        let reduced = Bytes::from(body.to_string());
        let paths: Vec<String> = pointers.iter().map(ToString::to_string).collect();
        let mut directives = object.directives;
        directives.ignored = Some(Ignored {
            digest: digest::of(&paths),
            pointers,
            whole: object.body,
        });
        RenderedObject {
            digest: digest::of_bytes(&reduced),
            body: reduced,
            directives,
            ..object
        }
    }
}

impl Rule {
    /// Reports whether the rule matches the object, except for its labels.
    fn matches(&self, object: &RenderedObject) -> bool {
        let version = object
            .api_version
            .rsplit_once('/')
            .map_or(object.api_version.as_str(), |(_, version)| version);
        let ObjectSelector {
            group,
            version: wanted_version,
            kind,
            namespace,
            name,
            label_selector: _,
        } = &self.target;
        [
            (group, object.key.group.as_str()),
            (wanted_version, version),
            (kind, object.key.kind.as_str()),
            (namespace, object.key.namespace.as_str()),
            (name, object.key.name.as_str()),
        ]
        .into_iter()
        .all(|(wanted, found)| wanted.is_empty() || wanted == found)
    }
}

fn labels(body: &Value) -> BTreeMap<String, String> {
    let labels = body["metadata"]["labels"].as_object().into_iter().flatten();
    labels
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

fn checked(number: usize, rule: &IgnoreRule) -> Result<Rule, IgnoreError> {
    let pointers = rule
        .paths
        .iter()
        .enumerate()
        .map(|(path, text)| checked_path(number, path, text))
        .collect::<Result<Vec<_>, _>>()?;
    let target = rule.target.clone().unwrap_or_default();
    let labels = target
        .label_selector
        .as_ref()
        .map(expand::selector)
        .transpose()
        .map_err(|source| IgnoreError::Selector { rule: number, source })?;
    Ok(Rule {
        pointers,
        target,
        labels,
    })
}

fn checked_path(rule: usize, path: usize, text: &str) -> Result<Pointer, IgnoreError> {
    let pointer: Pointer = text.parse().map_err(|source| IgnoreError::Path {
        rule,
        path,
        text: text.to_owned(),
        source,
    })?;
    if ESSENTIAL.iter().any(|tokens| pointer.covers(tokens)) {
        return Err(IgnoreError::Essential {
            rule,
            path,
            text: text.to_owned(),
        });
    }
    Ok(pointer)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::object::ObjectId;

    fn rules(json: &Value) -> Result<IgnoreRules, IgnoreError> {
        let rules: Vec<IgnoreRule> = serde_json::from_value(json.clone()).unwrap();
        IgnoreRules::new(&rules)
    }

    fn object(kind: &str, name: &str) -> RenderedObject {
        let body = json!({"apiVersion": "apps/v1", "kind": kind,
            "metadata": {"name": name, "namespace": "shop", "labels": {"app": name}},
            "spec": {"replicas": 3, "paused": false}});
        let body = Bytes::from(body.to_string());
        RenderedObject {
            key: ObjectId {
                group: "apps".into(),
                kind: kind.into(),
                namespace: "shop".into(),
                name: name.into(),
            },
            api_version: "apps/v1".into(),
            digest: digest::of_bytes(&body),
            body,
            directives: crate::object::Directives::default(),
        }
    }

    /// Returns the ignored fields of `Deployment shop/web`.
    fn ignored(rule: &Value) -> Vec<String> {
        let set = RenderedSet {
            digest: String::new(),
            objects: vec![object("Deployment", "web")],
            secrets: Default::default(),
        };
        let set = rules(&json!([rule])).unwrap().apply_to(set);
        let ignored = set.objects[0].directives.ignored.as_ref();
        ignored.map_or(Vec::new(), |ignored| {
            ignored.pointers.iter().map(ToString::to_string).collect()
        })
    }

    #[test]
    fn the_target_selects_the_objects() {
        let paths = json!(["/spec/replicas", "/spec/none"]);
        for (target, applies) in [
            (json!(null), true),
            (json!({}), true),
            (json!({"kind": "Deployment"}), true),
            (json!({"kind": "StatefulSet"}), false),
            (
                json!({"group": "apps", "version": "v1", "namespace": "shop", "name": "web"}),
                true,
            ),
            (json!({"group": "batch"}), false),
            (json!({"version": "v1beta1"}), false),
            (json!({"namespace": "other"}), false),
            (json!({"name": "we"}), false),
            (json!({"labelSelector": {"matchLabels": {"app": "web"}}}), true),
            (json!({"labelSelector": {"matchLabels": {"app": "api"}}}), false),
        ] {
            let found = ignored(&json!({"paths": paths, "target": target}));
            let expected: &[&str] = if applies { &["/spec/replicas"] } else { &[] };
            assert_eq!(found, expected, "{target}");
        }
    }

    #[test]
    fn an_object_has_both_bodies_and_other_objects_are_unchanged() {
        let (web, job) = (object("Deployment", "web"), object("CronJob", "job"));
        let set = RenderedSet {
            digest: set_digest(&[web.clone(), job.clone()]),
            objects: vec![web.clone(), job.clone()],
            secrets: Default::default(),
        };
        let before = set.digest.clone();
        let rules = rules(&json!([{"paths": ["/spec/replicas"], "target": {"kind": "Deployment"}}])).unwrap();
        let after = rules.apply_to(set);
        let reduced = &after.objects[0];
        let ignored = reduced.directives.ignored.as_ref().unwrap();
        assert_eq!(ignored.whole, web.body);
        let body: Value = serde_json::from_slice(&reduced.body).unwrap();
        assert_eq!(body["spec"], json!({"paused": false}));
        assert_eq!(reduced.digest, digest::of_bytes(&reduced.body));
        assert_eq!(
            (&after.objects[1].body, &after.objects[1].digest),
            (&job.body, &job.digest)
        );
        assert_ne!(after.digest, before);
    }

    /// Otherwise every commit that only changes an ignored field would write to every cluster.
    #[test]
    fn a_change_of_an_ignored_field_changes_no_digest() {
        let rules = rules(&json!([{"paths": ["/spec/replicas"]}])).unwrap();
        let with = |replicas: u32| {
            let mut object = object("Deployment", "web");
            object.body = String::from_utf8(object.body.to_vec())
                .unwrap()
                .replace("\"replicas\":3", &format!("\"replicas\":{replicas}"))
                .into();
            object.digest = digest::of_bytes(&object.body);
            rules.without_ignored(object)
        };
        assert_eq!(with(3).digest, with(5).digest);
        assert_ne!(with(3).directives, with(5).directives, "the whole body differs");
    }

    #[test]
    fn without_rules_nothing_changes() {
        let none = IgnoreRules::new(&[]).unwrap();
        assert!(none.is_empty() && none.digest().is_empty());
        let one = rules(&json!([{"paths": ["/a"]}])).unwrap();
        let other = rules(&json!([{"paths": ["/b"]}])).unwrap();
        assert!(!one.is_empty() && one.digest() != other.digest());
    }

    #[test]
    fn an_error_names_its_field() {
        for (rule, words) in [
            (
                json!({"paths": ["/ok", "spec.replicas"]}),
                "ignore[0].paths[1]: \"spec.replicas\" is not a JSON pointer: it must begin with /",
            ),
            (
                json!({"paths": ["/a~b"]}),
                "ignore[0].paths[0]: \"/a~b\" is not a JSON pointer: ~ must",
            ),
            (json!({"paths": [""]}), "ignore[0].paths[0]: \"\" names no field"),
            (
                json!({"paths": ["/metadata"]}),
                "ignore[0].paths[0]: \"/metadata\" cannot be ignored",
            ),
            (
                json!({"paths": ["/metadata/labels"]}),
                "ignore[0].paths[0]: \"/metadata/labels\" cannot be ignored",
            ),
            (
                json!({"paths": ["/kind"]}),
                "ignore[0].paths[0]: \"/kind\" cannot be ignored",
            ),
            (
                json!({"paths": ["/a"], "target": {"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}}),
                "ignore[0].target.labelSelector: matchExpressions: a has the operator \"Is\"",
            ),
        ] {
            let error = rules(&json!([rule])).unwrap_err().to_string();
            assert!(error.starts_with(words), "{error}");
        }
        assert!(rules(&json!([{"paths": ["/metadata/labels/app", "/metadata/annotations"]}])).is_ok());
    }
}
