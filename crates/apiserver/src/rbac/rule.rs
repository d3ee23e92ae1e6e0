//! One rule of a role.

use serde_json::Value;

use super::attributes::{Attributes, Requested};

/// One rule of a role: verbs on resources or on paths. Empty lists of names mean every name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    /// The verbs; `*` for all.
    pub verbs: Vec<String>,
    /// The API groups; `*` for all.
    pub groups: Vec<String>,
    /// The resources, such as `pods`, `pods/log` or `*/scale`; `*` for all.
    pub resources: Vec<String>,
    /// The names of objects.
    pub names: Vec<String>,
    /// The paths that are no resources; one may end with `*`.
    pub urls: Vec<String>,
}

/// What matches everything, wherever it stands.
const ALL: &str = "*";

impl Rule {
    /// Reads a rule from JSON.
    pub fn read(rule: &Value) -> Self {
        let list = |field: &str| {
            rule[field]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|one| one.as_str().map(str::to_owned))
                .collect()
        };
        Self {
            verbs: list("verbs"),
            groups: list("apiGroups"),
            resources: list("resources"),
            names: list("resourceNames"),
            urls: list("nonResourceURLs"),
        }
    }

    /// Reads the rules of a role.
    pub fn read_all(role: &Value) -> Vec<Self> {
        role["rules"]
            .as_array()
            .into_iter()
            .flatten()
            .map(Self::read)
            .collect()
    }

    /// Returns the rule as JSON, without the lists that are empty.
    pub fn to_value(&self) -> Value {
        let fields = [
            ("verbs", &self.verbs),
            ("apiGroups", &self.groups),
            ("resources", &self.resources),
            ("resourceNames", &self.names),
            ("nonResourceURLs", &self.urls),
        ];
        let present = fields.into_iter().filter(|(_, list)| !list.is_empty());
        present
            .map(|(name, list)| (name.to_owned(), Value::from(list.clone())))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }

    /// Returns whether the rule allows a request.
    pub fn allows(&self, attributes: &Attributes) -> bool {
        if !has(&self.verbs, ALL) && !has(&self.verbs, &attributes.verb) {
            return false;
        }
        match &attributes.requested {
            Requested::Path(path) => self.urls.iter().any(|url| url_covers(url, path)),
            Requested::Resource {
                group,
                resource,
                subresource,
                name,
                ..
            } => {
                (has(&self.groups, ALL) || has(&self.groups, group))
                    && self
                        .resources
                        .iter()
                        .any(|pattern| resource_matches(pattern, resource, subresource))
                    && (self.names.is_empty() || has(&self.names, name))
            }
        }
    }
}

pub(super) fn has(list: &[String], text: &str) -> bool {
    list.iter().any(|one| one == text)
}

/// Returns whether a path of a rule, which may end with `*`, covers a path.
///
/// As in Kubernetes, every `*` at the end is a part of the pattern.
pub(super) fn url_covers(pattern: &str, path: &str) -> bool {
    pattern == path || pattern.ends_with('*') && path.starts_with(pattern.trim_end_matches('*'))
}

fn resource_matches(pattern: &str, resource: &str, subresource: &str) -> bool {
    if pattern == ALL {
        return true;
    }
    if subresource.is_empty() {
        return pattern == resource;
    }
    let of_resource = |parent: &str| {
        { pattern.strip_prefix(parent) }
            .and_then(|rest| rest.strip_prefix('/'))
            .is_some_and(|rest| rest == subresource)
    };
    // `*/scale` is that subresource of every resource.
    of_resource(ALL) || of_resource(resource)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn allows(rule: &Value, attributes: &Attributes) -> bool {
        Rule::read(rule).allows(attributes)
    }

    #[test]
    fn resources_and_subresources_are_different() {
        let pods = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]});
        let get = Attributes::resource("get", "", "pods", "a", "b");
        assert!(allows(&pods, &get));
        assert!(!allows(&pods, &get.clone().of("log")));
        assert!(!allows(&pods, &Attributes::resource("list", "", "pods", "a", "")));
        assert!(!allows(
            &pods,
            &Attributes::resource("get", "x", "pods", "a", "b")
        ));
        let logs = json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*/log"]});
        assert!(!allows(&logs, &get));
        assert!(allows(&logs, &get.clone().of("log")));
        let all = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["*"]});
        assert!(allows(&all, &get) && allows(&all, &get.of("log")));
    }

    #[test]
    fn names_limit_and_an_unnamed_request_has_none() {
        let named = json!({"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["b"]});
        assert!(allows(&named, &Attributes::resource("get", "", "pods", "a", "b")));
        assert!(!allows(
            &named,
            &Attributes::resource("get", "", "pods", "a", "c")
        ));
        assert!(!allows(
            &named,
            &Attributes::resource("list", "", "pods", "a", "")
        ));
    }

    #[test]
    fn only_a_star_at_the_end_of_a_path_is_a_pattern() {
        for (pattern, path, covers) in [
            ("*", "/x", true),
            ("/a", "/a", true),
            ("/a", "/a/", false),
            ("/a/*", "/a/b/c", true),
            ("/a/*", "/a", false),
            ("/*/b", "/a/b", false),
            ("/a**", "/ab", true),
        ] {
            assert_eq!(url_covers(pattern, path), covers, "{pattern} {path}");
        }
        let path = Attributes {
            verb: "get".to_owned(),
            requested: Requested::Path("/healthz".to_owned()),
        };
        let everything = json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]});
        assert!(!allows(&everything, &path));
    }
}
