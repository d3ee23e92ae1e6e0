//! Writes of roles and bindings: nobody grants more than they have.
//!
//! As in Kubernetes (`pkg/registry/rbac/*/policybased`): who writes a role needs all its permissions, or the verb
//! `escalate` on it; who writes a binding needs all permissions of its role, or the verb `bind` on that.

use serde_json::Value;

use crate::object::metadata;
use crate::rbac::{self, Attributes, Policy, Problem, Rule};
use crate::state::State;
use crate::status::Status;
use crate::target::Target;
use crate::write::Write;

/// Rejects a role or binding that grants more than its writer has. `live` is the object that it replaces, and `name`
/// the one that the client gave.
pub(super) fn check(
    state: &State,
    target: &Target,
    live: Option<&Value>,
    object: &Value,
    name: &str,
    write: &Write<'_>,
) -> Result<(), Status> {
    let Some(policy) = state.policy() else {
        return Ok(());
    };
    let resource = &target.resource;
    if *resource.group != *rbac::GROUP || write.who().is_privileged() {
        return Ok(());
    }
    if live.is_some_and(|live| same_but_for_garbage_collection(live, object)) {
        return Ok(());
    }
    let check = Check {
        policy,
        target,
        name,
        write,
    };
    match &*resource.plural {
        "roles" | "clusterroles" => check.role(live, object),
        "rolebindings" | "clusterrolebindings" => check.binding(&object["roleRef"]),
        _ => Ok(()),
    }
}

struct Check<'a> {
    policy: &'a Policy,
    target: &'a Target,
    name: &'a str,
    write: &'a Write<'a>,
}

impl Check<'_> {
    fn role(&self, live: Option<&Value>, object: &Value) -> Result<(), Status> {
        let Target { resource, .. } = self.target;
        // A request that creates an object has no name in its path, and so no name here.
        if self.may("escalate", &resource.plural, &self.target.name) {
            return Ok(());
        }
        self.covers(&Rule::read_all(object))
            .map_err(|why| self.forbidden(&why))?;
        let aggregates = |role: &Value| {
            role["aggregationRule"]["clusterRoleSelectors"]
                .as_array()
                .is_some_and(|list| !list.is_empty())
        };
        if aggregates(object) || live.is_some_and(aggregates) {
            // Selectors can gather the rules of any role.
            let everything = [
                Rule {
                    verbs: vec!["*".to_owned()],
                    groups: vec!["*".to_owned()],
                    resources: vec!["*".to_owned()],
                    ..Rule::default()
                },
                Rule {
                    verbs: vec!["*".to_owned()],
                    urls: vec!["*".to_owned()],
                    ..Rule::default()
                },
            ];
            let why = "must have cluster-admin privileges to use the aggregationRule";
            self.covers(&everything).map_err(|_| self.forbidden(why))?;
        }
        Ok(())
    }

    fn binding(&self, role: &Value) -> Result<(), Status> {
        let text = |field: &str| role[field].as_str().unwrap_or_default();
        let (kind, name) = (text("kind"), text("name"));
        let plural = match kind {
            "ClusterRole" => "clusterroles",
            "Role" => "roles",
            _ => "",
        };
        if !plural.is_empty() && self.may("bind", plural, name) {
            return Ok(());
        }
        match self.policy.role(kind, name, &self.target.namespace) {
            Ok(rules) => self.covers(rules).map_err(|why| self.forbidden(&why)),
            // As in Kubernetes, which names the resource of the request instead of that of the role.
            Err(Problem::Missing { name, .. }) => {
                let plural = &self.target.resource.plural;
                Err(Status::not_found(rbac::GROUP, plural, &name))
            }
            Err(problem) => Err(Status::internal_plain(problem.of_authorizer())),
        }
    }

    fn may(&self, verb: &str, plural: &str, name: &str) -> bool {
        let attributes = Attributes::resource(verb, rbac::GROUP, plural, &self.target.namespace, name);
        self.policy.authorize(self.write.who(), &attributes).allowed
    }

    /// Checks that the writer has all permissions that some rules grant; the error says which are missing.
    fn covers(&self, rules: &[Rule]) -> Result<(), String> {
        let (owned, problems) = self.policy.rules_for(self.write.who(), &self.target.namespace);
        let missing = rbac::uncovered(&owned, rules);
        if missing.is_empty() {
            return Ok(());
        }
        let mut why = format!(
            "user {} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
            crate::value::quoted(self.write.user),
            rbac::quoted_list(self.write.groups),
            rbac::describe(&rbac::compact(missing))
        );
        if !problems.is_empty() {
            let plural = &self.target.resource.plural;
            let texts = problems
                .iter()
                .map(|problem| problem.of_storage(plural))
                .collect();
            why.push_str(&format!("; resolution errors: [{}]", rbac::aggregate(texts)));
        }
        Err(why)
    }

    fn forbidden(&self, why: &str) -> Status {
        rbac::forbidden(rbac::GROUP, &self.target.resource.plural, self.name, why)
    }
}

/// Returns whether two versions of an object differ only in what a garbage collector changes to end a deletion.
fn same_but_for_garbage_collection(live: &Value, object: &Value) -> bool {
    bare(live) == bare(object)
}

fn bare(object: &Value) -> Value {
    let mut object = object.clone();
    for field in ["ownerReferences", "finalizers", "selfLink", "managedFields"] {
        metadata::set(&mut object, field, None);
    }
    without_empty(&object).unwrap_or_default()
}

/// Returns a value without empty lists and maps, which Kubernetes compares as absent ones.
fn without_empty(value: &Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::Array(items) if items.is_empty() => None,
        Value::Array(items) => Some(items.iter().filter_map(without_empty).collect()),
        Value::Object(map) => {
            let map: serde_json::Map<_, _> = map
                .iter()
                .filter_map(|(name, value)| Some((name.clone(), without_empty(value)?)))
                .collect();
            (!map.is_empty()).then_some(Value::Object(map))
        }
        other => Some(other.clone()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_finalizers_and_owners_may_differ() {
        let live =
            json!({"metadata": {"name": "a", "finalizers": ["x"], "resourceVersion": "1"}, "rules": null});
        let same =
            json!({"metadata": {"name": "a", "resourceVersion": "1", "ownerReferences": []}, "rules": []});
        assert!(same_but_for_garbage_collection(&live, &same));
        let other = json!({"metadata": {"name": "a", "resourceVersion": "1"}, "rules": [{"verbs": ["get"]}]});
        assert!(!same_but_for_garbage_collection(&live, &other));
    }
}
