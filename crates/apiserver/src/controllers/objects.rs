//! Access of the controllers to the objects of the cluster.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use crate::kinds::Resource;
use crate::rbac::own_groups;
use crate::state::State;
use crate::status::Status;
use crate::store::Stored;
use crate::target::Target;
use crate::verbs;
use crate::write::{NO_EXTRA, Validation, Write};

/// Returns the options of a controller's write.
pub(super) fn write_by(manager: &'static str, subresource: &'static str, now: Timestamp) -> Write<'static> {
    Write {
        manager,
        user: "system:kube-controller-manager",
        uid: "",
        groups: own_groups(),
        extra: &NO_EXTRA,
        dry_run: false,
        validation: Validation::Ignore,
        force: false,
        now,
        subresource,
    }
}

/// Returns the endpoint of an object in the preferred version of its resource.
pub(super) fn target(resource: &Arc<Resource>, stored: &Stored, subresource: &str) -> Option<Target> {
    Some(Target {
        version: Arc::clone(resource.versions.first()?),
        resource: Arc::clone(resource),
        namespace: stored.head.namespace.to_string(),
        name: stored.head.name.to_string(),
        subresource: subresource.to_owned(),
    })
}

/// Returns the endpoint of an object, the stored object and its JSON.
pub(super) fn find(
    state: &State,
    table: &str,
    key: &str,
    subresource: &str,
) -> Option<(Target, Arc<Stored>, Value)> {
    let stored = Arc::clone(state.store.get(table, key)?);
    let resource = state.registry.of_table(table)?;
    let target = target(&resource, &stored, subresource)?;
    let object = target.read(&stored);
    Some((target, stored, object))
}

/// Replaces an object; writes nothing if the object is unchanged.
pub(super) fn replace(
    state: &mut State,
    target: &Target,
    object: Value,
    manager: &'static str,
    now: Timestamp,
) -> Result<(), Status> {
    let subresource = if target.subresource == "status" {
        "status"
    } else {
        ""
    };
    verbs::update(state, target, object, &[], &write_by(manager, subresource, now)).map(|_| ())
}
