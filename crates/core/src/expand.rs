//! Expansion: one Sync per entry of a SyncGroup and selected Cluster, `$(cluster.*)` resolved.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube_core::{Selector, SelectorExt as _};
use starling_api::{Cluster, SyncTemplate};

use crate::digest::hash64;

/// The facts about a Cluster that expansion uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterFacts {
    /// The name.
    pub name: String,
    /// The labels: for selectors, and for `$(cluster.labels.x)`.
    pub labels: BTreeMap<String, String>,
    /// The annotations, for `$(cluster.annotations.x)`.
    pub annotations: BTreeMap<String, String>,
}

impl ClusterFacts {
    /// Returns the facts about a Cluster.
    #[must_use]
    pub fn of(cluster: &Cluster) -> Self {
        Self {
            name: cluster.metadata.name.clone().unwrap_or_default(),
            labels: cluster.metadata.labels.clone().unwrap_or_default(),
            annotations: cluster.metadata.annotations.clone().unwrap_or_default(),
        }
    }
}

/// A parameter that cannot be resolved for one cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParameterError {
    /// The cluster lacks the label or annotation.
    #[error(
        "{field}: cluster {cluster} has no {kind} {key:?}; add it to the Cluster, or remove $(cluster.{kind}s.{key})"
    )]
    Missing {
        /// The field of the entry.
        field: String,
        /// The cluster.
        cluster: String,
        /// `label` or `annotation`.
        kind: &'static str,
        /// The key of the label or annotation.
        key: String,
    },
    /// `$(cluster.` followed by something unknown.
    #[error(
        "{field}: $({expression}) is unknown; write $(cluster.name), $(cluster.labels.KEY) or $(cluster.annotations.KEY)"
    )]
    Unknown {
        /// The field of the entry.
        field: String,
        /// The text between the parentheses.
        expression: String,
    },
    /// `$(cluster.` without an end.
    #[error("{field}: \"$(cluster.\" without a closing parenthesis")]
    Unclosed {
        /// The field of the entry.
        field: String,
    },
    /// The account to impersonate is not the name of a ServiceAccount.
    #[error(
        "{field}: {value:?} is not the name of a ServiceAccount: at most 253 lower-case letters, digits, `-` and `.`, a letter or digit at both ends"
    )]
    InvalidAccount {
        /// The field of the entry.
        field: String,
        /// The value, shortened.
        value: String,
    },
}

/// Returns a template with every `$(cluster.*)` replaced by the value of this cluster, in path, targetNamespace,
/// serviceAccountName and the values of substitute. `$$(` is a literal `$(`.
///
/// # Errors
/// [`ParameterError`] for the first field that cannot be resolved.
pub fn resolve(template: &SyncTemplate, cluster: &ClusterFacts) -> Result<SyncTemplate, ParameterError> {
    let mut resolved = template.clone();
    resolved.path = resolve_text("path", &template.path, cluster)?;
    resolved.target_namespace = resolve_text("targetNamespace", &template.target_namespace, cluster)?;
    resolved.service_account_name =
        resolve_text("serviceAccountName", &template.service_account_name, cluster)?;
    check_account("serviceAccountName", &resolved.service_account_name)?;
    for (name, value) in &mut resolved.substitute {
        *value = resolve_text(&format!("substitute.{name}"), value, cluster)?;
    }
    Ok(resolved)
}

/// Returns the resolved fields of a template whose values come from labels and annotations of a cluster: who may write
/// the Cluster chooses them, and an approval covers them. A build of a path and a namespace says nothing about the
/// cluster that gets it: two clusters that swap their labels swap what they get.
#[must_use]
pub fn cluster_values(template: &SyncTemplate, resolved: &SyncTemplate) -> BTreeMap<String, String> {
    let chosen = |text: &str| {
        ["$(cluster.labels", "$(cluster.annotations"]
            .iter()
            .any(|of| text.contains(of))
    };
    let mut values = BTreeMap::new();
    let fields = [
        ("path", &template.path, &resolved.path),
        (
            "targetNamespace",
            &template.target_namespace,
            &resolved.target_namespace,
        ),
        (
            "serviceAccountName",
            &template.service_account_name,
            &resolved.service_account_name,
        ),
    ];
    for (field, _, value) in fields.into_iter().filter(|(_, text, _)| chosen(text)) {
        values.insert(field.to_owned(), value.clone());
    }
    for (name, _) in template.substitute.iter().filter(|(_, text)| chosen(text)) {
        let value = resolved.substitute.get(name).cloned().unwrap_or_default();
        values.insert(format!("substitute.{name}"), value);
    }
    values
}

/// Reports whether a text can be the name of a ServiceAccount: a DNS subdomain (RFC 1123). Anything else could name
/// another user in the impersonation header.
#[must_use]
pub fn is_account_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= 253
        && name.split('.').all(|label| {
            let bytes = label.as_bytes();
            bytes.first().copied().is_some_and(plain)
                && bytes.last().copied().is_some_and(plain)
                && bytes.iter().all(|byte| plain(*byte) || *byte == b'-')
        })
}

/// Rejects an invalid account. With an empty account, nothing is impersonated.
fn check_account(field: &str, name: &str) -> Result<(), ParameterError> {
    if name.is_empty() || is_account_name(name) {
        return Ok(());
    }
    Err(ParameterError::InvalidAccount {
        field: field.into(),
        value: name.chars().take(63).collect(),
    })
}

fn resolve_text(field: &str, text: &str, cluster: &ClusterFacts) -> Result<String, ParameterError> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("$(") {
        let (before, tail) = rest.split_at(at);
        if let Some(head) = before.strip_suffix('$') {
            out.push_str(head);
            out.push_str("$(");
            rest = &tail[2..];
        } else if tail.starts_with("$(cluster.") {
            let end = tail
                .find(')')
                .ok_or_else(|| ParameterError::Unclosed { field: field.into() })?;
            out.push_str(before);
            out.push_str(lookup(field, &tail[2..end], cluster)?);
            rest = &tail[end + 1..];
        } else {
            // `$(POD_NAME)` and the like are expanded by Kubernetes.
            out.push_str(before);
            out.push_str("$(");
            rest = &tail[2..];
        }
    }
    out.push_str(rest);
    Ok(out)
}

fn lookup<'c>(field: &str, expression: &str, cluster: &'c ClusterFacts) -> Result<&'c str, ParameterError> {
    let path = expression.strip_prefix("cluster.").unwrap_or_default();
    let (map, kind, key) = if path == "name" {
        return Ok(&cluster.name);
    } else if let Some(key) = path.strip_prefix("labels.") {
        (&cluster.labels, "label", key)
    } else if let Some(key) = path.strip_prefix("annotations.") {
        (&cluster.annotations, "annotation", key)
    } else {
        return Err(ParameterError::Unknown {
            field: field.into(),
            expression: expression.into(),
        });
    };
    map.get(key)
        .map(String::as_str)
        .ok_or_else(|| ParameterError::Missing {
            field: field.into(),
            cluster: cluster.name.clone(),
            kind,
            key: key.into(),
        })
}

/// An error in a selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// An operator that needs values has none.
    #[error("matchExpressions: {key} {operator} needs values")]
    MissingValues {
        /// The key of the requirement.
        key: String,
        /// The operator of the requirement.
        operator: String,
    },
    /// An operator that takes no values has some.
    #[error("matchExpressions: {key} {operator} takes no values")]
    UnexpectedValues {
        /// The key of the requirement.
        key: String,
        /// The operator of the requirement.
        operator: String,
    },
    /// An unknown operator.
    #[error(
        "matchExpressions: {key} has the operator {operator:?}; it must be In, NotIn, Exists or DoesNotExist"
    )]
    UnknownOperator {
        /// The key of the requirement.
        key: String,
        /// The operator of the requirement.
        operator: String,
    },
    /// The client library rejects the selector.
    #[error("{problem}")]
    Rejected {
        /// The message of the library: its error cannot be compared.
        problem: String,
    },
}

/// Returns the selector of a group.
///
/// # Errors
/// [`SelectorError`], so that a typing error selects no cluster and is reported. Empty `values` are rejected here
/// because kube reads `NotIn []` as "all", while Kubernetes rejects it.
pub fn selector(selector: &LabelSelector) -> Result<Selector, SelectorError> {
    for requirement in selector.match_expressions.iter().flatten() {
        check(requirement)?;
    }
    Selector::try_from(selector.clone()).map_err(|error| SelectorError::Rejected {
        problem: error.to_string(),
    })
}

fn check(requirement: &LabelSelectorRequirement) -> Result<(), SelectorError> {
    let LabelSelectorRequirement {
        key,
        operator,
        values,
    } = requirement;
    let has_values = values.as_ref().is_some_and(|values| !values.is_empty());
    let (key, operator) = (key.clone(), operator.clone());
    match operator.as_str() {
        "In" | "NotIn" if has_values => Ok(()),
        "Exists" | "DoesNotExist" if !has_values => Ok(()),
        "In" | "NotIn" => Err(SelectorError::MissingValues { key, operator }),
        "Exists" | "DoesNotExist" => Err(SelectorError::UnexpectedValues { key, operator }),
        _ => Err(SelectorError::UnknownOperator { key, operator }),
    }
}

/// Reports whether a selector selects these labels. All its requirements have to apply, so one that is valid and does
/// not apply decides, whatever the invalid ones mean.
///
/// # Errors
/// [`SelectorError`]: it is not known, because only what is invalid could exclude the labels.
pub fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> Result<bool, SelectorError> {
    let error = match self::selector(selector) {
        Ok(selector) => return Ok(selector.matches(labels)),
        Err(error) => error,
    };
    let mut valid = selector.clone();
    if let Some(requirements) = &mut valid.match_expressions {
        requirements.retain(|requirement| check(requirement).is_ok());
    }
    match Selector::try_from(valid) {
        Ok(valid) if !valid.matches(labels) => Ok(false),
        _ => Err(error),
    }
}

/// The longest name of a Kubernetes object (RFC 1123 subdomain).
const NAME_LIMIT: usize = 253;

/// Returns the name of a Sync of a group: `<group>-<entry>-<cluster>`, with a hash if the name is too long or `taken`
/// by another identity.
#[must_use]
pub fn sync_name(group: &str, entry: &str, cluster: &str, taken: impl Fn(&str) -> bool) -> String {
    let plain = format!("{group}-{entry}-{cluster}");
    if plain.len() <= NAME_LIMIT && !taken(&plain) {
        return plain;
    }
    // Eight hex digits; the parts are hashed separately, so that a-b + c and a + b-c differ.
    let hash = format!("{:08x}", hash64(&[group, entry, cluster]) >> 32);
    let head = plain.get(..NAME_LIMIT - hash.len() - 1).unwrap_or(&plain);
    format!("{}-{hash}", head.trim_end_matches(['-', '.']))
}

#[cfg(test)]
mod tests {

    use super::*;

    fn cluster() -> ClusterFacts {
        ClusterFacts {
            name: "eu-1".into(),
            labels: [("region".into(), "eu".into()), ("a.b/c".into(), "x".into())].into(),
            annotations: [("note".into(), "n".into())].into(),
        }
    }

    #[test]
    fn cluster_values_are_resolved_and_others_are_kept() {
        for (text, expected) in [
            ("./clusters/$(cluster.name)", "./clusters/eu-1"),
            ("$(cluster.labels.region)-$(cluster.labels.a.b/c)", "eu-x"),
            ("$(cluster.annotations.note)", "n"),
            ("$(POD_NAME) $x ${Y}", "$(POD_NAME) $x ${Y}"),
            ("$$(cluster.name)", "$(cluster.name)"),
            ("", ""),
            ("$(", "$("),
        ] {
            assert_eq!(
                resolve_text("path", text, &cluster()).as_deref(),
                Ok(expected),
                "{text}"
            );
        }
    }

    /// Who swaps the labels of two clusters swaps what they get, although the same set of directories is built.
    #[test]
    fn tenant_every_field_that_a_label_chooses_is_a_value_of_its_cluster() {
        let template: SyncTemplate = serde_json::from_value(serde_json::json!({
            "sourceRef": {"name": "s"}, "path": "./$(cluster.labels.region)",
            "targetNamespace": "$(cluster.annotations.note)", "serviceAccountName": "$(cluster.name)",
            "substitute": {"A": "$(cluster.labels.region)", "B": "fixed"},
        }))
        .unwrap();
        let values = |cluster: &ClusterFacts| {
            let resolved = resolve(&template, cluster).unwrap();
            cluster_values(&template, &resolved)
        };
        let (eu, mut us) = (cluster(), cluster());
        us.labels.insert("region".into(), "us".into());
        let expected = [("path", "./eu"), ("targetNamespace", "n"), ("substitute.A", "eu")];
        let expected: BTreeMap<String, String> = { expected.iter() }
            .map(|(field, value)| ((*field).to_owned(), (*value).to_owned()))
            .collect();
        assert_eq!(values(&eu), expected);
        assert_eq!(values(&us)["path"], "./us");
    }

    #[test]
    fn an_account_is_resolved_and_must_be_a_name() {
        let template = |account: &str| -> SyncTemplate {
            serde_json::from_value(
                serde_json::json!({"sourceRef": {"name": "s"}, "serviceAccountName": account}),
            )
            .unwrap()
        };
        let account =
            |text: &str| resolve(&template(text), &cluster()).map(|resolved| resolved.service_account_name);
        for (text, expected) in [
            ("", ""),
            ("deployer", "deployer"),
            ("deploy-$(cluster.name)", "deploy-eu-1"),
            ("a.b-c.1", "a.b-c.1"),
        ] {
            assert_eq!(account(text).as_deref(), Ok(expected));
        }
        let long = "a".repeat(254);
        for text in [
            "Deployer",
            "a b",
            "a:b",
            "-a",
            "a-",
            "a..b",
            ".a",
            "a/b",
            "ä",
            "a\r\nX: y",
            "system:masters",
            &long,
        ] {
            let error = account(text).unwrap_err();
            assert!(
                matches!(error, ParameterError::InvalidAccount { .. }),
                "{text:?}: {error}"
            );
            assert!(error.to_string().starts_with("serviceAccountName: "), "{error}");
        }
    }

    #[test]
    fn an_error_names_field_cluster_and_key() {
        let error = resolve_text("substitute.R", "$(cluster.labels.zone)", &cluster()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "substitute.R: cluster eu-1 has no label \"zone\"; add it to the Cluster, or remove $(cluster.labels.zone)"
        );
        assert!(matches!(
            resolve_text("path", "$(cluster.nam)", &cluster()),
            Err(ParameterError::Unknown { .. })
        ));
        assert!(matches!(
            resolve_text("path", "$(cluster.name", &cluster()),
            Err(ParameterError::Unclosed { .. })
        ));
    }

    #[test]
    fn a_selector_has_the_meaning_of_kubernetes() {
        let parse = |json: &serde_json::Value| selector(&serde_json::from_value(json.clone()).unwrap());
        let labels = cluster().labels;
        let expression = |key: &str, operator: &str, values: &[&str]| serde_json::json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        for (json, expected) in [
            (serde_json::json!({}), true),
            (serde_json::json!({"matchLabels": {}}), true),
            (serde_json::json!({"matchLabels": {"region": "eu"}}), true),
            (serde_json::json!({"matchLabels": {"region": "us"}}), false),
            (expression("region", "In", &["us", "eu"]), true),
            (expression("zone", "NotIn", &["a"]), true),
            (expression("zone", "Exists", &[]), false),
            (expression("zone", "DoesNotExist", &[]), true),
        ] {
            assert_eq!(parse(&json).unwrap().matches(&labels), expected, "{json}");
        }
        for bad in [
            expression("r", "in", &["eu"]),
            expression("r", "In", &[]),
            expression("r", "NotIn", &[]),
            expression("r", "Exists", &["a"]),
        ] {
            assert!(parse(&bad).is_err(), "{bad}");
        }
    }

    /// A typing error in one group must not delete what a cluster has, nor stop what it cannot concern.
    #[test]
    fn an_invalid_selector_selects_nothing_that_its_valid_requirements_exclude() {
        let labels = cluster().labels;
        let is_selected = |region: &str, operator: &str| {
            let json = serde_json::json!({"matchLabels": {"region": region},
                "matchExpressions": [{"key": "tier", "operator": operator, "values": ["edge"]}]});
            selects(&serde_json::from_value(json).unwrap(), &labels)
        };
        assert_eq!(is_selected("eu", "NotIn"), Ok(true));
        assert_eq!(is_selected("eu", "In"), Ok(false));
        assert!(is_selected("eu", "in").is_err());
        assert_eq!(is_selected("us", "in"), Ok(false));
    }

    #[test]
    fn a_name_gets_a_hash_if_it_is_taken_or_too_long() {
        assert_eq!(sync_name("shop", "app", "eu-1", |_| false), "shop-app-eu-1");
        let hashed = sync_name("shop", "app", "eu-1", |name| name == "shop-app-eu-1");
        assert!(hashed.starts_with("shop-app-eu-1-") && hashed.len() == "shop-app-eu-1-".len() + 8);
        let long = sync_name("g", "e", &"c".repeat(253), |_| false);
        assert!(long.len() <= NAME_LIMIT);
        assert_ne!(
            sync_name("a-b", "c", "d", |_| true),
            sync_name("a", "b-c", "d", |_| true)
        );
    }
}
