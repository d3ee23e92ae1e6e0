//! The namespace controller: creates the objects that every namespace has, and empties namespaces that are deleted.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::enabled::Controller;
use super::objects::{find, replace, target, write_by};
use super::settings::Settings;
use crate::kinds::Resource;
use crate::kinds::tables::NAMESPACES;
use crate::object::times;
use crate::state::State;
use crate::status::Status;
use crate::store::Range;
use crate::verbs::{self, DeleteOptions, Propagation, Target};

const MANAGER: &str = "kube-controller-manager";

/// Reconciles one namespace.
pub(super) fn reconcile(
    state: &mut State,
    settings: &Settings,
    name: &str,
    now: Timestamp,
) -> Result<(), Status> {
    let Some((target, stored, object)) = find(state, NAMESPACES, name, "status") else {
        return Ok(());
    };
    if stored.head.deleting.is_some() {
        return if settings.controllers.runs(Controller::Namespace) {
            terminate(state, &target, object, now)
        } else {
            Ok(())
        };
    }
    if !settings.controllers.runs(Controller::ServiceAccount) {
        return Ok(());
    }
    ensure_object(state, name, "serviceaccounts", "default", json!({}), now)?;
    let published = json!({
        "metadata": {"annotations": {
            "kubernetes.io/description": "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters."}},
        "data": {"ca.crt": &*settings.ca},
    });
    ensure_object(state, name, "configmaps", "kube-root-ca.crt", published, now)
}

/// Creates an object that every namespace has, if it is missing.
fn ensure_object(
    state: &mut State,
    namespace: &str,
    table: &str,
    name: &str,
    mut object: Value,
    now: Timestamp,
) -> Result<(), Status> {
    let key = crate::object::head::key(namespace, name);
    if state.store.get(table, &key).is_some() {
        return Ok(());
    }
    let Some(resource) = state.registry.get("", table) else {
        return Ok(());
    };
    let Some(version) = resource.versions.first().cloned() else {
        return Ok(());
    };
    crate::object::metadata::set(&mut object, "name", Some(name.into()));
    let target = Target {
        resource,
        version,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        subresource: String::new(),
    };
    verbs::create(state, &target, object, &[], &write_by(MANAGER, "", now)).map(|_| ())
}

/// Deletes the content of a namespace, and removes the namespace's finalizer when no content is left.
fn terminate(
    state: &mut State,
    target_of_namespace: &Target,
    mut object: Value,
    now: Timestamp,
) -> Result<(), Status> {
    let name = target_of_namespace.name.clone();
    let resources: Vec<Arc<Resource>> = state
        .registry
        .all()
        .filter(|resource| resource.namespaced && state.store.count(&resource.table) > 0)
        .cloned()
        .collect();
    let mut left: BTreeMap<String, usize> = BTreeMap::new();
    let mut held: BTreeMap<String, usize> = BTreeMap::new();
    for resource in resources {
        // The events of `events.k8s.io` are those of the core group.
        if resource.table.starts_with("events") && !resource.group.is_empty() {
            continue;
        }
        empty(state, &resource, &name, now)?;
        let range = Range {
            namespace: Some(&name),
            start: "",
        };
        for stored in state.store.list(&resource.table, range) {
            *left.entry(resource.qualified_with_dot()).or_default() += 1;
            for finalizer in &stored.head.finalizers {
                *held.entry(finalizer.to_string()).or_default() += 1;
            }
        }
    }
    if left.is_empty() {
        object["spec"]["finalizers"] = json!([]);
        let target = Target {
            subresource: "finalize".to_owned(),
            ..target_of_namespace.clone()
        };
        return replace(state, &target, object, MANAGER, now);
    }
    let conditions = conditions(&object["status"]["conditions"], &left, &held, now);
    object["status"]["conditions"] = conditions;
    replace(state, target_of_namespace, object, MANAGER, now)
}

fn empty(state: &mut State, resource: &Arc<Resource>, namespace: &str, now: Timestamp) -> Result<(), Status> {
    let range = Range {
        namespace: Some(namespace),
        start: "",
    };
    let objects: Vec<_> = state
        .store
        .list(&resource.table, range)
        .filter(|stored| stored.head.deleting.is_none())
        .cloned()
        .collect();
    for stored in objects {
        let Some(target) = target(resource, &stored, "") else {
            continue;
        };
        let options = DeleteOptions {
            propagation: Some(Propagation::Background),
            ..DeleteOptions::default()
        };
        match verbs::delete(state, &target, &options, &write_by(MANAGER, "", now)) {
            Err(status) if status.code == 404 => {}
            outcome => {
                outcome?;
            }
        }
    }
    Ok(())
}

/// The conditions that explain why a namespace still exists.
fn conditions(
    before: &Value,
    left: &BTreeMap<String, usize>,
    held: &BTreeMap<String, usize>,
    now: Timestamp,
) -> Value {
    let list = |counts: &BTreeMap<String, usize>, what: &str| {
        counts
            .iter()
            .map(|(name, count)| format!("{name} {what} {count} resource instances"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let mut conditions = vec![
        (
            "NamespaceDeletionDiscoveryFailure",
            false,
            "ResourcesDiscovered",
            "All resources successfully discovered".to_owned(),
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            false,
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed".to_owned(),
        ),
        (
            "NamespaceDeletionContentFailure",
            false,
            "ContentDeleted",
            "All content successfully deleted, may be waiting on finalization".to_owned(),
        ),
        (
            "NamespaceContentRemaining",
            true,
            "SomeResourcesRemain",
            format!("Some resources are remaining: {}", list(left, "has")),
        ),
    ];
    conditions.push(if held.is_empty() {
        (
            "NamespaceFinalizersRemaining",
            false,
            "ContentHasNoFinalizers",
            "All content-preserving finalizers finished".to_owned(),
        )
    } else {
        (
            "NamespaceFinalizersRemaining",
            true,
            "SomeFinalizersRemain",
            format!(
                "Some content in the namespace has finalizers remaining: {}",
                list(held, "in")
            ),
        )
    });
    let since = |ty: &str, status: &str| {
        before
            .as_array()?
            .iter()
            .find(|one| one["type"] == ty && one["status"] == status)
            .map(|one| one["lastTransitionTime"].clone())
    };
    conditions
        .into_iter()
        .map(|(ty, yes, reason, message)| {
            let status = if yes { "True" } else { "False" };
            let since = since(ty, status).unwrap_or_else(|| times::seconds(now).into());
            json!({"type": ty, "status": status, "lastTransitionTime": since, "reason": reason, "message": message})
        })
        .collect()
}

impl Resource {
    /// Returns names such as `pods.` and `deployments.apps`, as the namespace controller writes them.
    fn qualified_with_dot(&self) -> String {
        format!("{}.{}", self.plural, self.group)
    }
}
