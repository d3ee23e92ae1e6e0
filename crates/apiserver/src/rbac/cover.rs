//! Whether some rules grant at least what others do: the check against granting more than one has.
//!
//! From `component-helpers/auth/rbac/validation` and `pkg/registry/rbac/validation` of Kubernetes.

use std::collections::BTreeSet;

use super::rule::{Rule, has, url_covers};
use crate::value::quoted;

/// Returns the parts of the wanted rules that no single rule of an owner covers; empty if the owner has all of them.
pub fn uncovered(owned: &[&Rule], wanted: &[Rule]) -> Vec<Rule> {
    wanted
        .iter()
        .flat_map(parts)
        .filter(|part| !owned.iter().any(|rule| covers(rule, part)))
        .collect()
}

/// Splits a rule into parts with one verb on one resource or path. Each is covered by one rule or by none.
fn parts(rule: &Rule) -> Vec<Rule> {
    let mut parts = Vec::new();
    let names: Vec<Vec<String>> = match rule.names.as_slice() {
        [] => vec![Vec::new()],
        names => names.iter().map(|name| vec![name.clone()]).collect(),
    };
    for group in &rule.groups {
        for resource in &rule.resources {
            for verb in &rule.verbs {
                parts.extend(names.iter().map(|names| Rule {
                    verbs: vec![verb.clone()],
                    groups: vec![group.clone()],
                    resources: vec![resource.clone()],
                    names: names.clone(),
                    urls: Vec::new(),
                }));
            }
        }
    }
    for url in &rule.urls {
        parts.extend(rule.verbs.iter().map(|verb| Rule {
            verbs: vec![verb.clone()],
            urls: vec![url.clone()],
            ..Rule::default()
        }));
    }
    parts
}

fn covers(owner: &Rule, part: &Rule) -> bool {
    let all =
        |owned: &[String], wanted: &[String]| has(owned, "*") || wanted.iter().all(|one| has(owned, one));
    all(&owner.verbs, &part.verbs)
        && all(&owner.groups, &part.groups)
        && part
            .resources
            .iter()
            .all(|one| resource_covered(&owner.resources, one))
        && (owner.names.is_empty()
            || !part.names.is_empty() && part.names.iter().all(|name| has(&owner.names, name)))
        && part
            .urls
            .iter()
            .all(|url| owner.urls.iter().any(|owned| url_covers(owned, url)))
}

fn resource_covered(owned: &[String], wanted: &str) -> bool {
    if has(owned, "*") || has(owned, wanted) {
        return true;
    }
    wanted
        .split_once('/')
        .is_some_and(|(_, subresource)| has(owned, &format!("*/{subresource}")))
}

/// Joins parts that differ only in their verb.
pub fn compact(parts: Vec<Rule>) -> Vec<Rule> {
    let mut joined: Vec<Rule> = Vec::new();
    for part in parts {
        let same = |rule: &&mut Rule| {
            part.urls.is_empty()
                && (&rule.groups, &rule.resources, &rule.names, &rule.urls)
                    == (&part.groups, &part.resources, &part.names, &part.urls)
        };
        match joined.iter_mut().find(same) {
            Some(rule) => rule.verbs.extend(part.verbs),
            None => joined.push(part),
        }
    }
    joined
}

/// Describes rules in the words of Kubernetes, one a line.
pub fn describe(rules: &[Rule]) -> String {
    let lines: BTreeSet<String> = rules.iter().map(line).collect();
    lines.into_iter().collect::<Vec<_>>().join("\n")
}

fn line(rule: &Rule) -> String {
    let fields: Vec<String> = [
        ("APIGroups", &rule.groups),
        ("Resources", &rule.resources),
        ("NonResourceURLs", &rule.urls),
        ("ResourceNames", &rule.names),
        ("Verbs", &rule.verbs),
    ]
    .into_iter()
    .filter(|(_, list)| !list.is_empty())
    .map(|(name, list)| format!("{name}:{}", quoted_list(list)))
    .collect();
    format!("{{{}}}", fields.join(", "))
}

/// Returns a list as Go's `%q` writes it.
pub(crate) fn quoted_list(list: &[String]) -> String {
    let items: Vec<String> = list.iter().map(|one| quoted(one)).collect();
    format!("[{}]", items.join(" "))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn missing(owned: &[Value], wanted: &[Value]) -> String {
        let owned: Vec<Rule> = owned.iter().map(Rule::read).collect();
        let wanted: Vec<Rule> = wanted.iter().map(Rule::read).collect();
        describe(&compact(uncovered(&owned.iter().collect::<Vec<_>>(), &wanted)))
    }

    #[test]
    fn what_an_owner_lacks_is_described_with_its_verbs_together() {
        let owned = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]});
        let wanted =
            json!({"verbs": ["get", "list", "watch"], "apiGroups": [""], "resources": ["pods", "secrets"]});
        assert_eq!(
            missing(&[owned], &[wanted]),
            "{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"list\" \"watch\"]}\n\
             {APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"list\" \"watch\"]}"
        );
    }

    #[test]
    fn tenant_rules_with_names_do_not_cover_those_without() {
        let named = json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "resourceNames": ["a"]});
        let any = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]});
        assert_ne!(
            missing(std::slice::from_ref(&named), std::slice::from_ref(&any)),
            ""
        );
        assert_eq!(
            missing(
                &[any],
                &[
                    json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["a", "b"]})
                ]
            ),
            ""
        );
        let paths = json!({"verbs": ["get"], "nonResourceURLs": ["/a/*"]});
        assert_eq!(
            missing(
                std::slice::from_ref(&paths),
                &[json!({"verbs": ["get"], "nonResourceURLs": ["/a/b"]})]
            ),
            ""
        );
        assert_eq!(
            missing(
                &[paths, named],
                &[json!({"verbs": ["get"], "nonResourceURLs": ["/*"]})]
            ),
            "{NonResourceURLs:[\"/*\"], Verbs:[\"get\"]}"
        );
    }

    #[test]
    fn a_subresource_of_all_resources_covers_that_of_one() {
        let scale = json!({"verbs": ["get"], "apiGroups": ["apps"], "resources": ["*/scale"]});
        let part = |resource: &str| json!({"verbs": ["get"], "apiGroups": ["apps"], "resources": [resource]});
        assert_eq!(
            missing(std::slice::from_ref(&scale), &[part("deployments/scale")]),
            ""
        );
        assert_ne!(missing(std::slice::from_ref(&scale), &[part("deployments")]), "");
        assert_ne!(missing(&[scale], &[part("deployments/status")]), "");
    }
}
