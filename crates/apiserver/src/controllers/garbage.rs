//! Dependents of owners that go, and objects whose period of grace is over.

use jiff::Timestamp;
use serde_json::Value;

use super::{find, replace, target, write_by};
use crate::object::{Owner, metadata};
use crate::state::State;
use crate::status::Status;
use crate::verbs::{self, DeleteOptions, FOREGROUND, ORPHAN, Preconditions, Propagation};

const MANAGER: &str = "kube-controller-manager";

/// What has become of an owner.
#[derive(PartialEq, Eq)]
enum Fate {
    /// It is there.
    Alive,
    /// It waits for its dependents to be deleted.
    WaitsForUs,
    /// There is no such object.
    Gone,
}

fn fate(state: &State, namespace: &str, owner: &Owner) -> Fate {
    let (group, _) = owner
        .api_version
        .rsplit_once('/')
        .unwrap_or(("", &owner.api_version));
    let Some(resource) = state.registry.of_kind(group, &owner.kind) else {
        // What is not served is not known to be gone.
        return Fate::Alive;
    };
    let namespace = if resource.namespaced { namespace } else { "" };
    let key = crate::object::head::key(namespace, &owner.name);
    match state.store.get(&resource.table, &key) {
        Some(stored) if *stored.head.uid == *owner.uid => {
            if stored.head.deleting.is_some() && stored.head.has_finalizer(FOREGROUND) {
                Fate::WaitsForUs
            } else {
                Fate::Alive
            }
        }
        _ => Fate::Gone,
    }
}

/// An object whose owners may be gone: with the last of them it goes too.
pub(super) fn dependent(state: &mut State, table: &str, key: &str, now: Timestamp) -> Result<(), Status> {
    let Some((target, stored, mut object)) = find(state, table, key, "") else {
        return Ok(());
    };
    if stored.head.owners.is_empty() || stored.head.deleting.is_some() {
        return Ok(());
    }
    let fates: Vec<(Owner, Fate)> = stored
        .head
        .owners
        .iter()
        .map(|owner| (owner.clone(), fate(state, &stored.head.namespace, owner)))
        .collect();
    let has = |wanted: Fate| fates.iter().any(|(_, fate)| *fate == wanted);
    if has(Fate::Alive) {
        let lost: Vec<&str> = fates
            .iter()
            .filter(|(_, fate)| *fate != Fate::Alive)
            .map(|(owner, _)| &*owner.uid)
            .collect();
        if lost.is_empty() {
            return Ok(());
        }
        forget(&mut object, |uid| lost.contains(&uid));
        return replace(state, &target, object, MANAGER, now);
    }
    let propagation = if stored.head.has_finalizer(ORPHAN) {
        Propagation::Orphan
    } else if has(Fate::WaitsForUs) && !state.store.dependents(&stored.head.uid).is_empty()
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

/// Takes owners out of an object.
fn forget(object: &mut Value, lost: impl Fn(&str) -> bool) {
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

/// An object whose deletion waits for its dependents: they are deleted, or let go.
pub(super) fn owner(state: &mut State, table: &str, key: &str, now: Timestamp) -> Result<(), Status> {
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
        return without_finalizer(state, &target, object, ORPHAN, now);
    }
    if !stored.head.has_finalizer(FOREGROUND) {
        return Ok(());
    }
    let mut waits = false;
    for (table, key) in &dependents {
        dependent(state, table, key, now)?;
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
    without_finalizer(state, &target, object, FOREGROUND, now)
}

fn orphan(state: &mut State, table: &str, key: &str, uid: &str, now: Timestamp) -> Result<(), Status> {
    let Some((target, _, mut object)) = find(state, table, key, "") else {
        return Ok(());
    };
    forget(&mut object, |owner| owner == uid);
    replace(state, &target, object, MANAGER, now)
}

/// Takes a finalizer from an object.
pub(super) fn without_finalizer(
    state: &mut State,
    target: &crate::verbs::Target,
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

/// A Pod whose period of grace is over: what the node would say.
pub(super) fn expired(state: &mut State, table: &str, key: &str, now: Timestamp) -> Result<(), Status> {
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

/// A claim or a volume that is being deleted: nothing uses it, as Pods have no nodes.
pub(super) fn unused(state: &mut State, table: &str, key: &str, now: Timestamp) -> Result<(), Status> {
    let Some((target, stored, object)) = find(state, table, key, "") else {
        return Ok(());
    };
    let finalizer = if table == "persistentvolumes" {
        "kubernetes.io/pv-protection"
    } else {
        "kubernetes.io/pvc-protection"
    };
    if stored.head.deleting.is_none() || !stored.head.has_finalizer(finalizer) {
        return Ok(());
    }
    without_finalizer(state, &target, object, finalizer, now)
}
