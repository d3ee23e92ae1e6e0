//! Reviews of access: what a user may do.

use serde_json::{Map, Value, json};

use super::Facts;
use crate::http::authorize::decide;
use crate::object::{FieldSelector, LabelSelector};
use crate::rbac::{Attributes, Problem, Requested, Rule, aggregate};
use crate::server::User;
use crate::status::{Cause, Status};
use crate::verbs::Target;

/// Returns what is wrong with a review, as `ValidateSubjectAccessReview` of Kubernetes does.
pub(super) fn problems(target: &Target, review: &Value) -> Vec<Cause> {
    let spec = &review["spec"];
    let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    let mut causes = Vec::new();
    // Kubernetes shows the value in its internal form, whose fields have these names.
    let shown = json!({"Path": path["path"], "Verb": path["verb"]});
    let field = "spec.nonResourceAttributes";
    if resource.is_object() && path.is_object() {
        let why = "cannot be specified in combination with resourceAttributes";
        causes.push(Cause::invalid(field, &shown, why));
    }
    if !resource.is_object() && !path.is_object() {
        causes.push(Cause::invalid(
            "spec.resourceAttributes",
            &Value::Null,
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        ));
    }
    let own = *target.resource.kind == *"SelfSubjectAccessReview";
    let no_groups = spec["groups"].as_array().is_none_or(Vec::is_empty);
    if !own && spec["user"].as_str().unwrap_or_default().is_empty() && no_groups {
        let why = "at least one of user or group must be specified";
        causes.push(Cause::invalid("spec.user", &json!(""), why));
    }
    for selector in ["fieldSelector", "labelSelector"] {
        selector_problems(&resource[selector], selector, &mut causes);
    }
    causes.extend(metadata_problem(target, &review["metadata"]));
    if *target.resource.kind == *"LocalSubjectAccessReview" {
        let namespace = resource["namespace"].as_str().unwrap_or_default();
        if resource.is_object() && namespace != target.namespace {
            let field = "spec.resourceAttributes.namespace";
            causes.push(Cause::invalid(
                field,
                &json!(namespace),
                "must match metadata.namespace",
            ));
        }
        if path.is_object() {
            causes.push(Cause::invalid(
                field,
                &shown,
                "disallowed on this kind of request",
            ));
        }
    }
    causes
}

fn selector_problems(selector: &Value, name: &str, causes: &mut Vec<Cause>) {
    if !selector.is_object() {
        return;
    }
    let path = format!("spec.resourceAttributes.{name}");
    let raw = selector["rawSelector"].as_str().unwrap_or_default();
    let has_requirements = selector["requirements"]
        .as_array()
        .is_some_and(|list| !list.is_empty());
    match (raw.is_empty(), has_requirements) {
        (false, true) => causes.push(Cause::invalid(
            format!("{path}.rawSelector"),
            &json!(raw),
            "may not specified at the same time as requirements",
        )),
        (true, false) => causes.push(Cause::required(
            format!("{path}.requirements"),
            &format!("when {path} is specified, requirements or rawSelector is required"),
        )),
        _ => {}
    }
}

/// Rejects a review of access with metadata, as Kubernetes does.
fn metadata_problem(target: &Target, metadata: &Value) -> Option<Cause> {
    let local = *target.resource.kind == *"LocalSubjectAccessReview";
    let is_empty = |name: &str, value: &Value| {
        matches!(name, "managedFields" | "creationTimestamp") && !value.is_string()
            || local && name == "namespace"
            || value.is_null()
    };
    let found: Vec<_> = metadata.as_object().into_iter().flatten().collect();
    if found.into_iter().all(|(name, value)| is_empty(name, value)) {
        return None;
    }
    let why = if local {
        "must be empty except for namespace"
    } else {
        "must be empty"
    };
    Some(Cause::invalid("metadata", metadata, why))
}

/// Answers whether the user of a review may do what it asks.
pub(super) fn status(facts: Facts<'_>, target: &Target, spec: &Value) -> Value {
    let user = match &*target.resource.kind {
        "SelfSubjectAccessReview" => facts.user.clone(),
        _ => user(spec),
    };
    let decision = decide(facts.cluster, &user, &attributes(spec));
    let mut status = Map::new();
    status.insert("allowed".to_owned(), decision.allowed.into());
    if !decision.reason.is_empty() {
        status.insert("reason".to_owned(), decision.reason.into());
    }
    let unread = unread_selectors(&spec["resourceAttributes"]);
    if !unread.is_empty() {
        status.insert("evaluationError".to_owned(), unread.join("; ").into());
    }
    status.into()
}

fn user(spec: &Value) -> User {
    let groups = spec["groups"].as_array().into_iter().flatten();
    User {
        name: spec["user"].as_str().unwrap_or_default().to_owned(),
        groups: groups.filter_map(|one| one.as_str().map(str::to_owned)).collect(),
        ..User::default()
    }
}

fn attributes(spec: &Value) -> Attributes {
    let path = &spec["nonResourceAttributes"];
    let text = |of: &Value, field: &str| of[field].as_str().unwrap_or_default().to_owned();
    if path.is_object() {
        return Attributes {
            verb: text(path, "verb"),
            requested: Requested::Path(text(path, "path")),
        };
    }
    let of = &spec["resourceAttributes"];
    Attributes {
        verb: text(of, "verb"),
        requested: Requested::Resource {
            group: text(of, "group"),
            resource: text(of, "resource"),
            subresource: text(of, "subresource"),
            namespace: text(of, "namespace"),
            name: text(of, "name"),
        },
    }
}

/// Returns what is to be said about selectors that cannot be read. RBAC does not look at selectors.
fn unread_selectors(resource: &Value) -> Vec<String> {
    let raw = |name: &str| resource[name]["rawSelector"].as_str().unwrap_or_default();
    let mut unread = Vec::new();
    if FieldSelector::parse(raw("fieldSelector")).is_err() {
        unread.push("fieldSelector");
    }
    if LabelSelector::parse(raw("labelSelector")).is_err() {
        unread.push("labelSelector");
    }
    unread
        .into_iter()
        .map(|name| format!("spec.resourceAttributes.{name} ignored due to parse error"))
        .collect()
}

/// Answers with all rules that apply to the user of the request in a namespace.
pub(super) fn rules(facts: Facts<'_>, spec: &Value) -> Result<Value, Status> {
    let namespace = spec["namespace"].as_str().unwrap_or_default();
    if namespace.is_empty() {
        return Err(Status::bad_request("no namespace on request"));
    }
    let state = facts.cluster.state();
    let Some(policy) = state.policy() else {
        return Ok(json!({
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            "incomplete": false,
        }));
    };
    let (rules, problems) = policy.rules_for(facts.user.who(), namespace);
    let shown = |of_resources: bool| -> Vec<Value> {
        { rules.iter() }
            .filter_map(|rule| part(rule, of_resources))
            .collect()
    };
    let mut status = json!({
        "resourceRules": shown(true),
        "nonResourceRules": shown(false),
        "incomplete": false,
    });
    if !problems.is_empty() {
        status["evaluationError"] = aggregate(problems.iter().map(Problem::of_authorizer).collect()).into();
    }
    Ok(status)
}

/// Returns the part of a rule that is about resources, or that about paths.
fn part(rule: &Rule, of_resources: bool) -> Option<Value> {
    let part = if of_resources && !rule.resources.is_empty() {
        Rule {
            urls: Vec::new(),
            ..rule.clone()
        }
    } else if !of_resources && !rule.urls.is_empty() {
        Rule {
            verbs: rule.verbs.clone(),
            urls: rule.urls.clone(),
            ..Rule::default()
        }
    } else {
        return None;
    };
    Some(part.to_value())
}
