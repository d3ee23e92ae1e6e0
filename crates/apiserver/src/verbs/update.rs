//! The verb `update`, and what all writes to an existing object share.

use std::sync::Arc;

use serde_json::Value;

use super::admission;
use super::create::{self, check_names};
use super::decode::{Decoded, decode};
use super::escalation;
use super::outcome::{Outcome, with_warnings};
use crate::journal::Verb;
use crate::kinds::{self, Form};
use crate::managed::{Live, ManagedFields, settle_times};
use crate::object::{Head, metadata};
use crate::state::State;
use crate::status::{Cause, Status};
use crate::store::Stored;
use crate::target::Target;
use crate::write::Write;

/// A stored object, split into its JSON and its `managedFields`.
pub(super) struct Existing {
    pub(super) stored: Arc<Stored>,
    /// The object without `managedFields`.
    pub(super) object: Value,
    pub(super) managed: ManagedFields,
}

impl Existing {
    pub(super) fn of(target: &Target, stored: &Arc<Stored>) -> Self {
        let mut object = target.read(stored);
        let managed = take_managed(&mut object);
        Self {
            stored: Arc::clone(stored),
            object,
            managed,
        }
    }

    pub(super) fn live(&self) -> Live<'_> {
        Live {
            object: &self.object,
            managed: &self.managed,
        }
    }

    /// Returns the object with `managedFields`.
    pub(super) fn with_managed_fields(&self) -> Value {
        let mut object = self.object.clone();
        metadata::set_managed(&mut object, &self.managed);
        object
    }
}

fn take_managed(object: &mut Value) -> ManagedFields {
    let given = object
        .get_mut("metadata")
        .and_then(Value::as_object_mut)
        .and_then(|metadata| metadata.remove("managedFields"));
    // This server wrote the entries, so they can be read.
    given
        .and_then(|given| ManagedFields::from_value(&given).ok())
        .unwrap_or_default()
}

/// Replaces an object, or creates it if its kind allows that.
pub(super) fn update(
    state: &mut State,
    target: &Target,
    object: Value,
    duplicates: &[String],
    write: &Write<'_>,
) -> Result<Outcome, Status> {
    let Decoded { object, warnings } =
        decode(target, object, duplicates, write.validation).map_err(|why| why.of_body(target))?;
    with_warnings(update_decoded(state, target, object, write), warnings)
}

fn update_decoded(
    state: &mut State,
    target: &Target,
    mut object: Value,
    write: &Write<'_>,
) -> Result<Outcome, Status> {
    check_named(target, &object)?;
    check_names(target, &mut object)?;
    let Some(stored) = state.store.get(&target.resource.table, &target.key()) else {
        let creates = target.subresource.is_empty() || target.subresource == "status";
        if target.resource.strategy.create_on_update && creates {
            return create_instead(state, target, object, write);
        }
        return Err(target.not_found());
    };
    let existing = Existing::of(target, stored);
    check_uid(target, &object, &existing)?;
    check_current(state, target, &object, &existing, write)?;
    replace(state, target, &existing, object, write, Verb::Update)
}

/// Rejects an object without a name.
pub(super) fn check_named(target: &Target, object: &Value) -> Result<(), Status> {
    if metadata::text(object, "name").is_empty() {
        return Err(Status::bad_request(format!(
            "the name of the object ({} based on URL) was undeterminable: name must be provided",
            target.name
        )));
    }
    Ok(())
}

fn create_instead(
    state: &mut State,
    target: &Target,
    object: Value,
    write: &Write<'_>,
) -> Result<Outcome, Status> {
    let uid = metadata::text(&object, "uid").to_owned();
    if !uid.is_empty() {
        return Err(uid_conflict(target, &uid, ""));
    }
    let (mut object, managed) = create::update_managed_fields(target, None, object, write)?;
    check_revision_syntax(&object)?;
    if !write.dry_run {
        // There is no existing object whose resource version could be compared.
        metadata::set(&mut object, "resourceVersion", None);
    }
    create::finish(state, target, object, &managed, write, Verb::Create)
}

/// Rejects a resource version that is not a number.
pub(super) fn check_revision_syntax(object: &Value) -> Result<(), Status> {
    let revision = metadata::text(object, "resourceVersion");
    if revision.is_empty() || revision.parse::<u64>().is_ok() {
        return Ok(());
    }
    Err(Status::internal_plain(format!(
        "strconv.ParseUint: parsing {revision:?}: invalid syntax"
    )))
}

/// Rejects an object whose UID differs from the stored one.
fn check_uid(target: &Target, object: &Value, existing: &Existing) -> Result<(), Status> {
    let uid = metadata::text(object, "uid");
    if !uid.is_empty() && *uid != *existing.stored.head.uid {
        return Err(uid_conflict(target, uid, &existing.stored.head.uid));
    }
    Ok(())
}

/// Rejects a role or binding that grants more than its writer has, and then an object whose resource version is not the
/// stored one.
pub(super) fn check_current(
    state: &State,
    target: &Target,
    object: &Value,
    existing: &Existing,
    write: &Write<'_>,
) -> Result<(), Status> {
    check_escalation(state, target, object, existing, write)?;
    check_revision(target, object, existing)
}

/// Rejects a role or binding that grants more than its writer has.
pub(super) fn check_escalation(
    state: &State,
    target: &Target,
    object: &Value,
    existing: &Existing,
    write: &Write<'_>,
) -> Result<(), Status> {
    let name = metadata::text(object, "name");
    escalation::check(state, target, Some(&existing.object), object, name, write)
}

/// Returns the response to an update whose UID does not match; `stored` is empty if there is no such object.
pub(super) fn uid_conflict(target: &Target, given: &str, stored: &str) -> Status {
    // The key under which the API server stores a Service in etcd.
    let directory = match &*target.resource.table {
        "services" => "services/specs",
        _ => &target.resource.plural,
    };
    Status::conflict(
        &target.resource.group,
        &target.resource.plural,
        &target.name,
        format!(
            "StorageError: invalid object, Code: 4, Key: /registry/{directory}/{}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {given}, UID in object meta: {stored}",
            target.key(),
        ),
    )
}

/// Rejects an object whose resource version is not the stored one.
pub(super) fn check_revision(target: &Target, object: &Value, existing: &Existing) -> Result<(), Status> {
    let revision = metadata::text(object, "resourceVersion");
    if revision.is_empty() || revision == "0" {
        if target.resource.strategy.unconditional_update {
            return Ok(());
        }
        // As in Kubernetes, the message names the resource here and the kind elsewhere.
        return Err(Status::invalid(
            &target.resource.group,
            &target.resource.plural,
            &target.name,
            vec![Cause::invalid(
                "metadata.resourceVersion",
                &Value::from(0),
                "must be specified for an update",
            )],
        ));
    }
    check_revision_syntax(object)?;
    if revision.parse() == Ok(existing.stored.revision) {
        Ok(())
    } else {
        Err(target.modified())
    }
}

/// Replaces an existing object with a decoded one, and updates `managedFields`.
pub(super) fn replace(
    state: &mut State,
    target: &Target,
    existing: &Existing,
    object: Value,
    write: &Write<'_>,
    verb: Verb,
) -> Result<Outcome, Status> {
    let (object, managed) = create::update_managed_fields(target, Some(existing.live()), object, write)?;
    finish(state, target, existing, object, managed, write, verb)
}

/// Prepares, validates and commits an object that replaces an existing one.
pub(super) fn finish(
    state: &mut State,
    target: &Target,
    existing: &Existing,
    object: Value,
    managed: ManagedFields,
    write: &Write<'_>,
    verb: Verb,
) -> Result<Outcome, Status> {
    let replacement = Replacement { object, managed };
    finish_as(
        state,
        target,
        existing,
        replacement,
        write,
        verb,
        |state, new, managed| {
            if state.admission().is_empty() {
                return Ok(Vec::new());
            }
            let mut new = new.clone();
            metadata::set_managed(&mut new, managed);
            admission::policies_of_change(state, target, &new, &existing.with_managed_fields(), write)
        },
    )
}

/// An object that replaces another one.
pub(super) struct Replacement {
    /// The object without `managedFields`.
    pub(super) object: Value,
    pub(super) managed: ManagedFields,
}

/// Does the same, with admission policies that see the change in another form: `admit` gets the object as it would be
/// stored, and returns their warnings.
pub(super) fn finish_as(
    state: &mut State,
    target: &Target,
    existing: &Existing,
    replacement: Replacement,
    write: &Write<'_>,
    verb: Verb,
    admit: impl FnOnce(&State, &Value, &ManagedFields) -> Result<Vec<String>, Status>,
) -> Result<Outcome, Status> {
    let Replacement {
        mut object,
        mut managed,
    } = replacement;
    let resource = &target.resource;
    prepare(target, existing, &mut object);
    if !write.dry_run {
        metadata::set(&mut object, "selfLink", None);
    }
    kinds::prepare::prepare_update(
        resource,
        &target.version,
        &target.subresource,
        &mut state.addresses,
        &mut object,
        &existing.object,
        write.now,
    );
    // As in Kubernetes, a cause appears once for the generic checks, once for those of the kind, and once more for
    // kinds that validate an update as a creation.
    let mut causes = metadata::check(&object, "metadata");
    let again = causes.clone();
    let changed = metadata::check_update(&object, &existing.object, "metadata");
    causes.extend(changed.clone());
    causes.extend(changed);
    let as_new = matches!(
        &*resource.kind,
        "Job"
            | "ConfigMap"
            | "Secret"
            | "ServiceAccount"
            | "Role"
            | "ClusterRole"
            | "RoleBinding"
            | "ClusterRoleBinding"
    );
    if as_new && target.subresource.is_empty() {
        causes.extend(again);
    }
    let verdict = kinds::check_update(
        resource,
        &target.version,
        &target.subresource,
        &object,
        &existing.object,
    );
    causes.extend(verdict.causes);
    let mut warnings = verdict.warnings;
    if !causes.is_empty() {
        return Err(target.invalid(&target.name, causes));
    }
    kinds::custom::check_definition(resource, &object, Some(&existing.object))?;
    warnings.extend(admit(state, &object, &managed)?);
    let changed = object != existing.object;
    if !settle_times(&existing.managed, &mut managed, changed) {
        return Ok(Outcome::stored(200, Arc::clone(&existing.stored)).warning(warnings));
    }
    metadata::set_managed(&mut object, &managed);
    let head = Head::of(&object);
    if write.dry_run {
        return Ok(Outcome::value(200, object).warning(warnings));
    }
    if can_be_removed(state, target, &head, &object) {
        // As in Kubernetes, the response is the object of the request with its resource version.
        let answer = object.clone();
        state.remove(resource, &target.version, &head.key(), Some(&mut object), write);
        return Ok(Outcome::value(200, answer));
    }
    let stored = state.commit(resource, &target.version, &mut object, write, verb);
    Ok(Outcome::stored(200, stored).warning(warnings))
}

/// Returns whether nothing keeps an object that is being deleted any longer.
fn can_be_removed(_state: &State, target: &Target, head: &Head, object: &Value) -> bool {
    let grace = object["metadata"]["deletionGracePeriodSeconds"]
        .as_i64()
        .unwrap_or_default();
    let held_by_namespace = *target.resource.kind == *"Namespace"
        && target.resource.group.is_empty()
        && object["spec"]["finalizers"]
            .as_array()
            .is_some_and(|list| !list.is_empty());
    head.deleting.is_some() && head.finalizers.is_empty() && grace == 0 && !held_by_namespace
}

/// Sets the metadata that an update cannot change.
fn prepare(target: &Target, existing: &Existing, object: &mut Value) {
    let old = &existing.object["metadata"];
    if !old["creationTimestamp"].is_null() {
        metadata::set(
            object,
            "creationTimestamp",
            Some(old["creationTimestamp"].clone()),
        );
    }
    for field in ["uid", "deletionGracePeriodSeconds"] {
        if object["metadata"][field].is_null() && !old[field].is_null() {
            metadata::set(object, field, Some(old[field].clone()));
        }
    }
    // Only a deletion sets the deletion timestamp.
    if !old["deletionTimestamp"].is_null() {
        metadata::set(
            object,
            "deletionTimestamp",
            Some(old["deletionTimestamp"].clone()),
        );
    }
    for field in ["generation", "resourceVersion"] {
        metadata::set(object, field, old.get(field).cloned());
    }
    if let Form::Custom(_) = &target.version.form
        && target.subresource == "status"
    {
        let status = object.get("status").cloned();
        object.clone_from(&existing.object);
        if let Some(map) = object.as_object_mut() {
            match status {
                Some(status) => map.insert("status".to_owned(), status),
                None => map.remove("status"),
            };
        }
    }
}
