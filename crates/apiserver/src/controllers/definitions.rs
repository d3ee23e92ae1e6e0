//! The controller of CustomResourceDefinitions: sets their conditions and deletes their custom resources when they
//! are deleted.

use jiff::Timestamp;

use super::garbage::remove_finalizer;
use super::objects::{find, replace, target, write_by};
use crate::kinds::custom::established;
use crate::kinds::tables::DEFINITIONS;
use crate::object::finalizers::CLEANUP;
use crate::object::times;
use crate::state::State;
use crate::status::Status;
use crate::store::Range;
use crate::verbs::{self, DeleteOptions, Propagation};

const MANAGER: &str = "kube-apiserver";

/// Reconciles one CustomResourceDefinition.
pub(super) fn reconcile(state: &mut State, name: &str, now: Timestamp) -> Result<(), Status> {
    let Some((target_of_definition, stored, mut object)) = find(state, DEFINITIONS, name, "status") else {
        return Ok(());
    };
    if stored.head.deleting.is_none() {
        let status = established(&object, &times::seconds(now));
        let same = ["acceptedNames", "storedVersions"]
            .iter()
            .all(|field| object["status"][*field] == status[*field])
            && object["status"]["conditions"].as_array().is_some_and(|list| {
                list.iter()
                    .any(|one| one["type"] == "Established" && one["status"] == "True")
            });
        if same {
            return Ok(());
        }
        object["status"] = status;
        return replace(state, &target_of_definition, object, MANAGER, now);
    }
    if !stored.head.has_finalizer(CLEANUP) {
        return Ok(());
    }
    let table = format!(
        "{}.{}",
        object["spec"]["names"]["plural"].as_str().unwrap_or_default(),
        object["spec"]["group"].as_str().unwrap_or_default()
    );
    let objects: Vec<_> = state.store.list(&table, Range::default()).cloned().collect();
    if let Some(resource) = state.registry.of_table(&table) {
        for stored in objects.iter().filter(|stored| stored.head.deleting.is_none()) {
            let Some(target) = target(&resource, stored, "") else {
                continue;
            };
            let options = DeleteOptions {
                propagation: Some(Propagation::Background),
                ..DeleteOptions::default()
            };
            verbs::delete(state, &target, &options, &write_by(MANAGER, "", now))?;
        }
    }
    if state.store.count(&table) > 0 {
        return Ok(());
    }
    let main = verbs::Target {
        subresource: String::new(),
        ..target_of_definition
    };
    remove_finalizer(state, &main, object, CLEANUP, now)
}
