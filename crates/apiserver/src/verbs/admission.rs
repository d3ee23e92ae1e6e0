//! The admission of writes: by the namespace lifecycle (requests in namespaces that do not exist or are being deleted,
//! deletions of protected namespaces), by the priorities of Pods, and by admission policies.

use serde_json::Value;

use super::policies::{self, Request};
use crate::admission::Operation;
use crate::kinds::tables::NAMESPACES;
use crate::managed::ManagedFields;
use crate::object::metadata;
use crate::state::State;
use crate::status::{Cause, Status};
use crate::target::Target;
use crate::write::Write;

/// Namespaces that cannot be deleted.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// Rejects new objects in a namespace that does not exist.
pub(super) fn check_namespace_exists(state: &State, target: &Target) -> Result<(), Status> {
    if !target.resource.namespaced || state.store.get(NAMESPACES, &target.namespace).is_some() {
        return Ok(());
    }
    Err(Status::not_found("", NAMESPACES, &target.namespace))
}

/// Rejects new objects in a namespace that is being deleted.
pub(super) fn create(state: &State, target: &Target, object: &Value) -> Result<(), Status> {
    if !target.resource.namespaced {
        return Ok(());
    }
    let going = state
        .store
        .get(NAMESPACES, &target.namespace)
        .is_some_and(|namespace| namespace.head.deleting.is_some());
    if !going {
        return Ok(());
    }
    let name = crate::object::metadata::text(object, "name");
    let namespace = &target.namespace;
    let mut status = Status::forbidden(
        &target.resource.group,
        &target.resource.plural,
        name,
        format!("unable to create new content in namespace {namespace} because it is being terminated"),
    );
    status.details.causes.push(Cause {
        reason: "NamespaceTerminating",
        field: "metadata.namespace".to_owned(),
        message: format!("namespace {namespace} is being terminated"),
    });
    Err(status)
}

/// Sets the priority of a new Pod from its class, and rejects another one.
pub(super) fn priority(state: &State, target: &Target, object: &mut Value) -> Result<(), Status> {
    if *target.resource.table != *"pods" {
        return Ok(());
    }
    let name = crate::object::metadata::text(object, "name").to_owned();
    let refuse = |why: String| Err(Status::forbidden("", "pods", &name, why));
    let spec = &mut object["spec"];
    let class = spec["priorityClassName"].as_str().unwrap_or_default().to_owned();
    let stored = state.store.get("priorityclasses.scheduling.k8s.io", &class);
    let (priority, policy) = match (&*class, stored) {
        ("", _) => (0, "PreemptLowerPriority".to_owned()),
        (_, Some(stored)) => {
            let stored = stored.read();
            let policy = stored["preemptionPolicy"]
                .as_str()
                .unwrap_or("PreemptLowerPriority");
            (stored["value"].as_i64().unwrap_or_default(), policy.to_owned())
        }
        ("system-cluster-critical", None) => (2_000_000_000, "PreemptLowerPriority".to_owned()),
        ("system-node-critical", None) => (2_000_001_000, "PreemptLowerPriority".to_owned()),
        (class, None) => return refuse(format!("no PriorityClass with name {class} was found")),
    };
    if let Some(given) = spec["priority"].as_i64().filter(|given| *given != priority) {
        return refuse(format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {priority} from the given PriorityClass name"
        ));
    }
    if let Some(given) = spec["preemptionPolicy"]
        .as_str()
        .filter(|given| **given != *policy)
    {
        return refuse(format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
        ));
    }
    spec["priority"] = priority.into();
    spec["preemptionPolicy"] = policy.into();
    Ok(())
}

/// Rejects the deletion of a protected namespace.
pub(super) fn delete(target: &Target) -> Result<(), Status> {
    let is_namespace = *target.resource.table == *NAMESPACES;
    if is_namespace && IMMORTAL.contains(&target.name.as_str()) {
        return Err(Status::forbidden(
            "",
            NAMESPACES,
            &target.name,
            "this namespace may not be deleted",
        ));
    }
    Ok(())
}

/// Lets the admission policies decide about a new object. Returns their warnings.
pub(super) fn policies_of_new(
    state: &State,
    target: &Target,
    object: &Value,
    managed: &ManagedFields,
    write: &Write<'_>,
) -> Result<Vec<String>, Status> {
    if state.admission().is_empty() {
        return Ok(Vec::new());
    }
    let mut object = object.clone();
    metadata::set_managed(&mut object, managed);
    let request = Request {
        target,
        name: metadata::text(&object, "name"),
        operation: Operation::Create,
        object: Some(&object),
        old: None,
        options: &Value::Null,
        write,
    };
    policies::admit(state, &request)
}

/// Lets the admission policies decide about the change of an object. Returns their warnings.
pub(super) fn policies_of_change(
    state: &State,
    target: &Target,
    object: &Value,
    old: &Value,
    write: &Write<'_>,
) -> Result<Vec<String>, Status> {
    let request = Request {
        target,
        name: &target.name,
        operation: Operation::Update,
        object: Some(object),
        old: Some(old),
        options: &Value::Null,
        write,
    };
    policies::admit(state, &request)
}

/// Lets the admission policies decide about the deletion of an object. Returns their warnings.
pub(super) fn policies_of_deletion(
    state: &State,
    target: &Target,
    name: &str,
    old: &Value,
    options: &Value,
    write: &Write<'_>,
) -> Result<Vec<String>, Status> {
    let request = Request {
        target,
        name,
        operation: Operation::Delete,
        object: None,
        old: Some(old),
        options,
        write,
    };
    policies::admit(state, &request)
}
