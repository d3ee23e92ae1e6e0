//! The garbage collector: deletes the dependents of deleted owners, and Pods whose grace period is over.

use jiff::Timestamp;
use serde_json::Value;

use super::objects::{find, replace, target, write_by};
use crate::object::finalizers::{FOREGROUND, ORPHAN};
use crate::object::{Owner, metadata};
use crate::state::State;
use crate::status::Status;
use crate::target::Target;
use crate::verbs::{self, DeleteOptions, Preconditions, Propagation};

const MANAGER: &str = "kube-controller-manager";

/// The state of an owner that a dependent names.
#[derive(PartialEq, Eq)]
enum OwnerState {
    /// The owner exists.
    Present,
    /// The owner waits for its dependents to be deleted (foreground deletion).
    WaitsForDependents,
    /// The owner does not exist.
    Absent,
}

fn owner_state(state: &State, namespace: &str, owner: &Owner) -> OwnerState {
    let (group, _) = owner
        .api_version
        .rsplit_once('/')
        .unwrap_or(("", &owner.api_version));
    let Some(resource) = state.registry.of_kind(group, &owner.kind) else {
        // An owner of a resource that is not served cannot be looked up, so it counts as present.
        return OwnerState::Present;
    };
    let namespace = if resource.namespaced { namespace } else { "" };
    let key = crate::object::head::key(namespace, &owner.name);
    match state.store.get(&resource.table, &key) {
        Some(stored) if *stored.head.uid == *owner.uid => {
            if stored.head.deleting.is_some() && stored.head.has_finalizer(FOREGROUND) {
                OwnerState::WaitsForDependents
            } else {
                OwnerState::Present
            }
        }
        _ => OwnerState::Absent,
    }
}

/// Deletes a dependent when its last owner is deleted, and removes the references to deleted owners before that.
pub(super) fn reconcile_dependent(
    state: &mut State,
    table: &str,
    key: &str,
    now: Timestamp,
) -> Result<(), Status> {
    let Some((target, stored, mut object)) = find(state, table, key, "") else {
        return Ok(());
    };
    if stored.head.owners.is_empty() || stored.head.deleting.is_some() {
        return Ok(());
    }
    let owner_states: Vec<(Owner, OwnerState)> = stored
        .head
        .owners
        .iter()
        .map(|owner| (owner.clone(), owner_state(state, &stored.head.namespace, owner)))
        .collect();
    let has = |wanted: OwnerState| owner_states.iter().any(|(_, owner_state)| *owner_state == wanted);
    if has(OwnerState::Present) {
        let lost: Vec<&str> = owner_states
            .iter()
            .filter(|(_, owner_state)| *owner_state != OwnerState::Present)
            .map(|(owner, _)| &*owner.uid)
            .collect();
        if lost.is_empty() {
            return Ok(());
        }
        remove_owners(&mut object, |uid| lost.contains(&uid));
        return replace(state, &target, object, MANAGER, now);
    }
    let propagation = if stored.head.has_finalizer(ORPHAN) {
        Propagation::Orphan
    } else if has(OwnerState::WaitsForDependents) && !state.store.dependents(&stored.head.uid).is_empty()
        || stored.head.has_finalizer(FOREGROUND)
    {
        Propagation::Foreground
    } else {
        Propagation::Background
    };
    let options = DeleteOptions {
        propagation: Some(propagation),
        preconditions: Preconditions {
            uid: Some(stored.head.uid.to_string()),
            resource_version: None,
        },
        ..DeleteOptions::default()
    };
    verbs::delete(state, &target, &options, &write_by(MANAGER, "", now)).map(|_| ())
}

/// Removes owner references from an object.
fn remove_owners(object: &mut Value, lost: impl Fn(&str) -> bool) {
    let left: Vec<Value> = object["metadata"]["ownerReferences"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|owner| !lost(owner["uid"].as_str().unwrap_or_default()))
        .cloned()
        .collect();
    let left = (!left.is_empty()).then_some(Value::Array(left));
    metadata::set(object, "ownerReferences", left);
}

/// Deletes or orphans the dependents of an owner that is being deleted, then removes the owner's finalizer.
pub(super) fn reconcile_owner(
    state: &mut State,
    table: &str,
    key: &str,
    now: Timestamp,
) -> Result<(), Status> {
    let Some((target, stored, object)) = find(state, table, key, "") else {
        return Ok(());
    };
    if stored.head.deleting.is_none() {
        return Ok(());
    }
    let dependents = state.store.dependents(&stored.head.uid);
    if stored.head.has_finalizer(ORPHAN) {
        for (table, key) in &dependents {
            orphan(state, table, key, &stored.head.uid, now)?;
        }
        return remove_finalizer(state, &target, object, ORPHAN, now);
    }
    if !stored.head.has_finalizer(FOREGROUND) {
        return Ok(());
    }
    let mut waits = false;
    for (table, key) in &dependents {
        reconcile_dependent(state, table, key, now)?;
        waits |= state.store.get(table, key).is_some_and(|left| {
            left.head
                .owners
                .iter()
                .any(|owner| owner.blocks && *owner.uid == *stored.head.uid)
        });
    }
    if waits {
        return Ok(());
    }
    remove_finalizer(state, &target, object, FOREGROUND, now)
}

fn orphan(state: &mut State, table: &str, key: &str, uid: &str, now: Timestamp) -> Result<(), Status> {
    let Some((target, _, mut object)) = find(state, table, key, "") else {
        return Ok(());
    };
    remove_owners(&mut object, |owner| owner == uid);
    replace(state, &target, object, MANAGER, now)
}

/// Removes a finalizer from an object.
pub(super) fn remove_finalizer(
    state: &mut State,
    target: &Target,
    mut object: Value,
    finalizer: &str,
    now: Timestamp,
) -> Result<(), Status> {
    let left: Vec<Value> = object["metadata"]["finalizers"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|one| *one != finalizer)
        .cloned()
        .collect();
    let left = (!left.is_empty()).then_some(Value::Array(left));
    metadata::set(&mut object, "finalizers", left);
    replace(state, target, object, MANAGER, now)
}

/// Deletes a Pod whose grace period is over, as its kubelet would.
pub(super) fn delete_expired(
    state: &mut State,
    table: &str,
    key: &str,
    now: Timestamp,
) -> Result<(), Status> {
    let Some(stored) = state.store.get(table, key).cloned() else {
        return Ok(());
    };
    if stored.head.deleting.is_none_or(|at| at > now) || !stored.head.finalizers.is_empty() {
        return Ok(());
    }
    let Some(resource) = state.registry.of_table(table) else {
        return Ok(());
    };
    let Some(target) = target(&resource, &stored, "") else {
        return Ok(());
    };
    let options = DeleteOptions {
        grace_seconds: Some(0),
        ..DeleteOptions::default()
    };
    verbs::delete(state, &target, &options, &write_by(MANAGER, "", now)).map(|_| ())
}

/// Removes the protection finalizer from a claim or volume that is being deleted: Pods never run, so none uses it.
pub(super) fn remove_protection(
    state: &mut State,
    table: &str,
    key: &str,
    now: Timestamp,
) -> Result<(), Status> {
    let Some((target, stored, object)) = find(state, table, key, "") else {
        return Ok(());
    };
    let finalizer = match table {
        "persistentvolumes" => "kubernetes.io/pv-protection",
        "persistentvolumeclaims" => "kubernetes.io/pvc-protection",
        _ => "kubernetes.io/vac-protection",
    };
    if stored.head.deleting.is_none() || !stored.head.has_finalizer(finalizer) {
        return Ok(());
    }
    remove_finalizer(state, &target, object, finalizer, now)
}
