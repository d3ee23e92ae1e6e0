//! The admission of writes by the namespace lifecycle: requests in namespaces that do not exist or are being deleted,
//! and deletions of protected namespaces.

use serde_json::Value;

use crate::kinds::tables::NAMESPACES;
use crate::state::State;
use crate::status::{Cause, Status};
use crate::target::Target;

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
