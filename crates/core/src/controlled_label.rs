//! Labels by which a platform grants rights: a commit may not carry them unless the operator allows it.
//!
//! Starling writes with the rights of its account, which may set labels that the author of the commit may not: a
//! Namespace gets privileged pods by one label, and the ClusterRoles `view`, `edit` and `admin` get more rules by
//! another.

use std::collections::BTreeSet;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::object::ObjectId;

/// The label of a Namespace that decides which pods it admits. `audit` and `warn` decide nothing.
const POD_SECURITY: &str = "pod-security.kubernetes.io/enforce";
/// The beginning of the labels by which a ClusterRole becomes a part of another one.
const AGGREGATION: &str = "rbac.authorization.k8s.io/aggregate-to-";

/// A label that the operator may allow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ControlledLabel(String);

/// The error of [`ControlledLabel::from_str`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no label that grants rights; give {POD_SECURITY}, or one such as {AGGREGATION}view")]
pub struct NotControlled;

impl FromStr for ControlledLabel {
    type Err = NotControlled;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let role = text.strip_prefix(AGGREGATION).unwrap_or_default();
        if text == POD_SECURITY || !role.is_empty() {
            Ok(Self(text.to_owned()))
        } else {
            Err(NotControlled)
        }
    }
}

/// Which of these labels manifests may carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelRules {
    /// What the operator allows and adds.
    Listed(LabelLists),
    /// All of them: what a preview shows if the controller published no settings.
    Any,
}

/// The lists of an operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelLists {
    /// Labels that manifests may carry although they grant rights.
    #[serde(default)]
    pub allowed: BTreeSet<ControlledLabel>,
    /// Further labels that no object may carry, with whatever value: a platform may grant rights by labels of its own,
    /// such as the project of a Namespace.
    #[serde(default)]
    pub added: BTreeSet<String>,
}

impl Default for LabelRules {
    fn default() -> Self {
        Self::Listed(LabelLists::default())
    }
}

impl LabelRules {
    /// Returns a label of an object that it may not carry.
    #[must_use]
    pub fn refused<'a>(&self, key: &ObjectId, labels: &'a Map<String, Value>) -> Option<&'a str> {
        let Self::Listed(LabelLists { allowed, added }) = self else {
            return None;
        };
        let is_refused = |label: &String, value: &Value| {
            let grants = grants(key, label, value) && !allowed.contains(&ControlledLabel(label.clone()));
            grants || added.contains(label)
        };
        let mut labels = labels.iter();
        let refused = labels.find(|(label, value)| is_refused(label, value));
        refused.map(|(label, _)| label.as_str())
    }
}

fn grants(key: &ObjectId, label: &str, value: &Value) -> bool {
    match (key.group.as_str(), key.kind.as_str()) {
        // Nothing is stricter than this value.
        ("", "Namespace") => label == POD_SECURITY && value != "restricted",
        ("rbac.authorization.k8s.io", "ClusterRole") => label.starts_with(AGGREGATION),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key(group: &str, kind: &str) -> ObjectId {
        ObjectId {
            group: group.to_owned(),
            kind: kind.to_owned(),
            namespace: String::new(),
            name: "x".to_owned(),
        }
    }

    #[test]
    fn tenant_labels_that_grant_rights_are_refused_unless_the_operator_allows_them() {
        const RBAC: &str = "rbac.authorization.k8s.io";
        let to_edit = "rbac.authorization.k8s.io/aggregate-to-edit";
        let allowed = LabelRules::Listed(LabelLists {
            allowed: [POD_SECURITY.parse().unwrap()].into(),
            ..LabelLists::default()
        });
        for (group, kind, label, value, by_default, with_one) in [
            ("", "Namespace", POD_SECURITY, "privileged", true, false),
            ("", "Namespace", POD_SECURITY, "baseline", true, false),
            ("", "Namespace", POD_SECURITY, "restricted", false, false),
            (
                "",
                "Namespace",
                "pod-security.kubernetes.io/warn",
                "privileged",
                false,
                false,
            ),
            ("", "ConfigMap", POD_SECURITY, "privileged", false, false),
            (RBAC, "ClusterRole", to_edit, "true", true, true),
            (RBAC, "Role", to_edit, "true", false, false),
            (RBAC, "ClusterRole", "app", "x", false, false),
        ] {
            let labels = Map::from_iter([("a".to_owned(), json!("b")), (label.to_owned(), json!(value))]);
            let key = key(group, kind);
            let refused = |rules: &LabelRules| rules.refused(&key, &labels).is_some();
            let found =
                [LabelRules::default(), allowed.clone(), LabelRules::Any].map(|rules| refused(&rules));
            assert_eq!(found, [by_default, with_one, false], "{kind} {label}: {value}");
        }
        for other in ["app", AGGREGATION, "pod-security.kubernetes.io/warn", ""] {
            assert_eq!(other.parse::<ControlledLabel>(), Err(NotControlled), "{other}");
        }
    }

    #[test]
    fn tenant_labels_that_the_operator_adds_are_refused_on_every_object() {
        let rules = LabelRules::Listed(LabelLists {
            added: ["platform.example.com/project".to_owned()].into(),
            ..LabelLists::default()
        });
        for (label, refused) in [
            ("platform.example.com/project", true),
            ("platform.example.com/team", false),
        ] {
            let labels = Map::from_iter([(label.to_owned(), json!("prod"))]);
            for kind in ["Namespace", "ConfigMap"] {
                let found = rules.refused(&key("", kind), &labels);
                assert_eq!(found, refused.then_some(label), "{kind}");
            }
        }
    }
}
