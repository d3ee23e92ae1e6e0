//! Which requests a policy or a binding is for.
//!
//! The rules are those of Kubernetes: `admission/plugin/policy/matching`, with the predicates of webhooks for rules,
//! namespaces and objects. Absent selectors match everything: the API server sets them so before it stores a policy.

use serde::Deserialize;
use serde_json::Value;

use super::facts::{Facts, Operation, Resource};
use crate::object::selector::{UnknownOperator, is_empty_selector, selects};

/// Which requests a policy or a binding is for.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct MatchResources {
    pub(super) namespace_selector: Value,
    pub(super) object_selector: Value,
    pub(super) resource_rules: Vec<Rule>,
    pub(super) exclude_resource_rules: Vec<Rule>,
    pub(super) match_policy: MatchPolicy,
}

/// Whether requests for another version of a resource match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub(super) enum MatchPolicy {
    /// Only the versions that the rules name match.
    Exact,
    /// A request for another version of the same resource matches.
    #[default]
    #[serde(other)]
    Equivalent,
}

/// Operations on resources.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Rule {
    api_groups: Vec<String>,
    api_versions: Vec<String>,
    operations: Vec<String>,
    /// Plural names, with a subresource after a slash.
    resources: Vec<String>,
    /// `*`, `Namespaced` or `Cluster`; empty for `*`.
    scope: String,
    /// Names of objects; empty for all.
    resource_names: Vec<String>,
}

impl Rule {
    fn matches(&self, request: &Facts<'_>, resource: &Resource<'_>) -> bool {
        let has = |list: &[String], wanted: &str| list.iter().any(|one| one == "*" || one == wanted);
        let names = &self.resource_names;
        self.is_in_scope(request)
            && has(&self.operations, request.operation.name())
            && has(&self.api_groups, resource.group)
            && has(&self.api_versions, resource.version)
            && self.resources.iter().any(|one| {
                let (plural, subresource) = one.split_once('/').unwrap_or((one, ""));
                (plural == "*" || plural == resource.plural)
                    && (subresource == "*" || subresource == request.subresource)
            })
            && (names.is_empty() || names.iter().any(|name| name == request.name))
    }

    fn is_in_scope(&self, request: &Facts<'_>) -> bool {
        // A namespace is in itself, and cluster-scoped all the same.
        let is_namespaced = !request.is_namespace && !request.namespace.is_empty();
        match &*self.scope {
            "Namespaced" => is_namespaced,
            "Cluster" => !is_namespaced,
            _ => true,
        }
    }
}

impl MatchResources {
    /// Returns the form of the request that matches: the resource in the version in which it does. `None`: the
    /// request does not match. `namespace` reads the stored namespace.
    pub(crate) fn matching<'a>(
        &self,
        request: &Facts<'a>,
        namespace: impl Fn() -> Option<Value>,
    ) -> Result<Option<&'a Resource<'a>>, UnknownOperator> {
        // What does not match for another reason has no errors.
        let in_namespace = self.matches_namespace(request, namespace);
        let has_labels = self.matches_labels(request);
        if in_namespace == Ok(false) || has_labels == Ok(false) {
            return Ok(None);
        }
        if self.find(&self.exclude_resource_rules, request).is_some() {
            return Ok(None);
        }
        let found = if self.resource_rules.is_empty() {
            Some(request.resource)
        } else {
            self.find(&self.resource_rules, request)
        };
        if found.is_some() {
            in_namespace?;
            has_labels?;
        }
        Ok(found)
    }

    fn find<'a>(&self, rules: &[Rule], request: &Facts<'a>) -> Option<&'a Resource<'a>> {
        let own = request.resource;
        if rules.iter().any(|rule| rule.matches(request, own)) {
            return Some(own);
        }
        if self.match_policy == MatchPolicy::Exact {
            return None;
        }
        rules.iter().find_map(|rule| {
            { request.equivalents.iter() }.find(|other| *other != own && rule.matches(request, other))
        })
    }

    fn matches_namespace(
        &self,
        request: &Facts<'_>,
        namespace: impl Fn() -> Option<Value>,
    ) -> Result<bool, UnknownOperator> {
        if request.namespace.is_empty() || is_empty_selector(&self.namespace_selector) {
            return Ok(true);
        }
        let is_own = request.is_namespace && request.subresource.is_empty();
        if is_own && request.operation != Operation::Delete {
            return has_labels(&self.namespace_selector, request.object);
        }
        has_labels(&self.namespace_selector, namespace().as_ref())
    }

    fn matches_labels(&self, request: &Facts<'_>) -> Result<bool, UnknownOperator> {
        if is_empty_selector(&self.object_selector) {
            return Ok(true);
        }
        for object in [request.object, request.old].into_iter().flatten() {
            if has_labels(&self.object_selector, Some(object))? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Returns whether a selector selects an object; `None` is an object without labels.
fn has_labels(selector: &Value, object: Option<&Value>) -> Result<bool, UnknownOperator> {
    selects(selector, |name| {
        object?.get("metadata")?.get("labels")?.get(name)?.as_str()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn resource<'a>(group: &'a str, version: &'a str, plural: &'a str) -> Resource<'a> {
        Resource {
            group,
            version,
            plural,
            kind: (group, version, ""),
        }
    }

    /// Returns the version in which a request for `two` matches: `group/version/plural[/subresource]`.
    fn found(constraints: &Value, operation: Operation, path: &str, object: &Value) -> Option<String> {
        let [group, version, plural, subresource @ ..] = &*path.split('/').collect::<Vec<_>>() else {
            panic!("{path}")
        };
        let is_namespace = *plural == "namespaces";
        let facts = Facts {
            operation,
            resource: &resource(group, version, plural),
            equivalents: &["v1", "v2"].map(|version| resource(group, version, plural)),
            subresource: subresource.first().unwrap_or(&""),
            name: "two",
            namespace: if is_namespace { "two" } else { "a" },
            is_namespace,
            object: (operation != Operation::Delete).then_some(object),
            old: (operation != Operation::Create).then_some(object),
        };
        let constraints = MatchResources::deserialize(constraints).unwrap();
        let namespace = || Some(json!({"metadata": {"labels": {"tier": "prod"}}}));
        let found = constraints.matching(&facts, namespace).unwrap();
        found.map(|found| found.version.to_owned())
    }

    fn rules(rule: &Value) -> Value {
        let mut all =
            json!({"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]});
        for (field, value) in rule.as_object().unwrap() {
            all[field] = value.clone();
        }
        json!({"resourceRules": [all]})
    }

    #[test]
    fn rules_match_operations_resources_subresources_scopes_and_names() {
        let pods = "/v1/pods";
        for (rule, operation, path, matches) in [
            (json!({}), Operation::Create, pods, true),
            (json!({}), Operation::Update, "/v1/pods/status", false),
            (
                json!({"resources": ["*/*"]}),
                Operation::Update,
                "/v1/pods/status",
                true,
            ),
            (json!({"resources": ["*/*"]}), Operation::Update, pods, true),
            (json!({"resources": ["pods/*"]}), Operation::Update, pods, true),
            (
                json!({"resources": ["pods/status"]}),
                Operation::Update,
                pods,
                false,
            ),
            (
                json!({"resources": ["*/scale"]}),
                Operation::Update,
                "apps/v1/deployments/scale",
                true,
            ),
            (
                json!({"operations": ["CREATE", "DELETE"]}),
                Operation::Delete,
                pods,
                true,
            ),
            (
                json!({"operations": ["CREATE", "DELETE"]}),
                Operation::Update,
                pods,
                false,
            ),
            (json!({"apiGroups": ["apps"]}), Operation::Create, pods, false),
            (json!({"apiVersions": ["v3"]}), Operation::Create, pods, false),
            (
                json!({"resourceNames": ["one", "two"]}),
                Operation::Create,
                pods,
                true,
            ),
            (json!({"resourceNames": ["one"]}), Operation::Create, pods, false),
            (json!({"scope": "Namespaced"}), Operation::Create, pods, true),
            (json!({"scope": "Cluster"}), Operation::Create, pods, false),
            (
                json!({"scope": "Cluster"}),
                Operation::Create,
                "/v1/namespaces",
                true,
            ),
            (
                json!({"scope": "Namespaced"}),
                Operation::Create,
                "/v1/namespaces",
                false,
            ),
        ] {
            let found = found(&rules(&rule), operation, path, &json!({}));
            assert_eq!(found.is_some(), matches, "{rule} {operation:?} {path}");
            let mut excluded = rules(&json!({"resources": ["*/*"]}));
            excluded["excludeResourceRules"] = rules(&rule)["resourceRules"].clone();
            let left = self::found(&excluded, operation, path, &json!({}));
            assert_eq!(left.is_none(), matches, "without {rule} {operation:?} {path}");
        }
    }

    #[test]
    fn another_version_matches_unless_the_policy_is_exact() {
        let path = "autoscaling/v2/horizontalpodautoscalers";
        let mut constraints = rules(&json!({"apiVersions": ["v1"]}));
        let found = |constraints: &Value| self::found(constraints, Operation::Create, path, &json!({}));
        assert_eq!(found(&constraints).as_deref(), Some("v1"));
        constraints["matchPolicy"] = json!("Exact");
        assert_eq!(found(&constraints), None);
        assert_eq!(found(&rules(&json!({}))).as_deref(), Some("v2"));
    }

    #[test]
    fn selectors_look_at_the_namespace_and_at_both_objects() {
        let labelled = json!({"metadata": {"labels": {"app": "x"}}});
        let with = |selector: &str, value: Value| {
            let mut constraints = rules(&json!({}));
            constraints[selector] = value;
            constraints
        };
        let term = |operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": "tier", "operator": operator, "values": values}]});
        for (selector, matches) in [
            (json!({"matchLabels": {"tier": "prod"}}), true),
            (json!({"matchLabels": {"tier": "test"}}), false),
            (term("In", &["test", "prod"]), true),
            (term("NotIn", &["prod"]), false),
            (term("Exists", &[]), true),
            (term("DoesNotExist", &[]), false),
        ] {
            let constraints = with("namespaceSelector", selector.clone());
            let found = found(&constraints, Operation::Create, "/v1/pods", &labelled);
            assert_eq!(found.is_some(), matches, "{selector}");
        }
        let constraints = with("objectSelector", json!({"matchLabels": {"app": "x"}}));
        for operation in [Operation::Create, Operation::Update, Operation::Delete] {
            assert!(found(&constraints, operation, "/v1/pods", &labelled).is_some());
            assert!(found(&constraints, operation, "/v1/pods", &json!({})).is_none());
        }
        let error = has_labels(&term("Near", &[]), None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "\"Near\" is not a valid label selector operator"
        );
    }
}
