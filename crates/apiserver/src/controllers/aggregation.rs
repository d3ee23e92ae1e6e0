//! The controller of aggregated ClusterRoles: fills their rules with those of the roles that they select.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::objects::{find, write_by};
use crate::object::selector::selects;
use crate::rbac::{CLUSTER_ROLES, Rule};
use crate::state::State;
use crate::status::Status;
use crate::store::Range;
use crate::verbs::{self, PatchBody};
use crate::write::Write;

const MANAGER: &str = "clusterrole-aggregation-controller";

/// Reconciles all aggregated ClusterRoles. As in Kubernetes, every change of a ClusterRole is a reason, since any may
/// select it.
pub(super) fn reconcile(state: &mut State, now: Timestamp) -> Result<(), Status> {
    let names: Vec<Box<str>> = { state.store.list(CLUSTER_ROLES, Range::default()) }
        .filter(|stored| stored.read()["aggregationRule"].is_object())
        .map(|stored| stored.head.key())
        .collect();
    // One role that cannot be written does not keep the others from being filled.
    let mut outcome = Ok(());
    for name in names {
        outcome = outcome.and(fill(state, &name, now));
    }
    outcome
}

fn fill(state: &mut State, name: &str, now: Timestamp) -> Result<(), Status> {
    let Some((target, _, role)) = find(state, CLUSTER_ROLES, name, "") else {
        return Ok(());
    };
    // A selector that means nothing leaves the role as it is.
    let Some(rules) = selected_rules(state, name, &role["aggregationRule"]) else {
        return Ok(());
    };
    let read: Vec<Rule> = rules.iter().map(Rule::read).collect();
    if read == Rule::read_all(&role) {
        return Ok(());
    }
    let mut config = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
    });
    if !rules.is_empty() {
        config["rules"] = rules.into();
    }
    let write = Write {
        force: true,
        ..write_by(MANAGER, "", now)
    };
    verbs::patch(state, &target, PatchBody::Apply(config), &[], &write).map(|_| ())
}

/// Returns the rules of all other roles that an aggregation rule selects, each once; `None` if a selector cannot be
/// read.
fn selected_rules(state: &State, name: &str, aggregation: &Value) -> Option<Vec<Value>> {
    let (mut rules, mut read): (Vec<Value>, Vec<Rule>) = (Vec::new(), Vec::new());
    for selector in aggregation["clusterRoleSelectors"]
        .as_array()
        .into_iter()
        .flatten()
    {
        for stored in state.store.list(CLUSTER_ROLES, Range::default()) {
            let selects = selects(selector, |name| stored.head.label(name)).ok()?;
            if !selects || *stored.head.name == *name {
                continue;
            }
            for rule in stored.read()["rules"].as_array().into_iter().flatten() {
                let form = Rule::read(rule);
                if !read.contains(&form) {
                    rules.push(rule.clone());
                    read.push(form);
                }
            }
        }
    }
    Some(rules)
}
