//! Create.

use serde_json::Value;

use super::decode::decode;
use super::{Outcome, Target, Write, admission, warned};
use crate::crd::Verdict;
use crate::journal::Verb;
use crate::kinds::{self, Form};
use crate::managed::{Live, ManagedFields, UpdateRequest};
use crate::object::{head, metadata, times};
use crate::state::State;
use crate::status::{Cause, Status};

/// How often a generated name that is taken is made anew, as in the API server.
const GENERATED_NAMES: usize = 8;

/// Creates an object.
///
/// # Errors
/// The answer of the API server.
pub fn create(
    state: &mut State,
    target: &Target,
    object: Value,
    duplicates: &[String],
    write: &Write<'_>,
) -> Result<Outcome, Status> {
    let decoded = decode(target, object, duplicates, write.validation).map_err(|why| why.of_body(target))?;
    let (object, warnings) = (decoded.object, decoded.warnings);
    warned(create_decoded(state, target, object, write), warnings)
}

fn create_decoded(
    state: &mut State,
    target: &Target,
    mut object: Value,
    write: &Write<'_>,
) -> Result<Outcome, Status> {
    check_names(target, &mut object)?;
    for field in [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "selfLink",
    ] {
        metadata::set(&mut object, field, None);
    }
    let (object, managed) = track(target, None, object, write)?;
    finish(state, target, object, &managed, write, Verb::Create)
}

/// Records who manages the fields of an object that has been read, which comes back without entries.
pub(super) fn track(
    target: &Target,
    live: Option<Live<'_>>,
    object: Value,
    write: &Write<'_>,
) -> Result<(Value, ManagedFields), Status> {
    let request = UpdateRequest {
        manager: write.manager,
        now: write.now,
    };
    // A custom resource may not fit its type; what is wrong with it is said by the validation that follows.
    let spare = matches!(target.version.form, Form::Custom(_)).then(|| object.clone());
    match (target.fields().update(live, object, &request), spare) {
        (Ok(updated), _) => Ok((updated.object, updated.managed)),
        (Err(_), Some(mut object)) => {
            metadata::set(&mut object, "managedFields", None);
            Ok((object, ManagedFields::new()))
        }
        (Err(why), None) => Err(Status::internal(why)),
    }
}

/// Brings namespace and name of the object in line with those of the request.
pub(super) fn check_names(target: &Target, object: &mut Value) -> Result<(), Status> {
    let given = metadata::text(object, "namespace").to_owned();
    if target.resource.namespaced {
        if !given.is_empty() && given != target.namespace {
            return Err(Status::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        metadata::set(object, "namespace", Some(target.namespace.clone().into()));
    } else if !given.is_empty() {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    let name = metadata::text(object, "name");
    if !target.name.is_empty() && !name.is_empty() && name != target.name {
        return Err(Status::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            target.name
        )));
    }
    Ok(())
}

/// Makes a new object of what has been read: from admission to the commit. `object` has no entries of field managers.
pub(super) fn finish(
    state: &mut State,
    target: &Target,
    mut object: Value,
    managed: &ManagedFields,
    write: &Write<'_>,
    verb: Verb,
) -> Result<Outcome, Status> {
    let resource = &target.resource;
    let revision = metadata::text(&object, "resourceVersion").parse::<u64>();
    let given = object["metadata"].get("resourceVersion").cloned();
    if !write.dry_run && revision.is_ok_and(|revision| revision != 0) {
        return Err(Status::internal_plain(
            "resourceVersion should not be set on objects to be created",
        ));
    }
    admission::namespace_takes(state, target)?;
    name(state, target, &mut object);
    admission::create(state, target, &object)?;
    prepare(state, target, &mut object, write);
    kinds::strategy::prepare_create(resource, &target.version, state, &mut object, write.now);
    let Verdict { causes, warnings } = check(target, &object);
    let name = metadata::text(&object, "name").to_owned();
    if !causes.is_empty() {
        return Err(target.invalid(&name, causes));
    }
    let key = head::key(metadata::text(&object, "namespace"), &name);
    if let Some(there) = state.store.get(&resource.table, &key) {
        let mut status = Status::already_exists(&resource.group, &resource.plural, &name);
        if there.head.deleting.is_some() {
            status.message = format!("object is being deleted: {}", status.message);
        }
        return Err(status);
    }
    kinds::custom::check_definition(resource, &object, None)?;
    metadata::set_managed(&mut object, managed);
    if write.dry_run {
        if let Some(given) = given {
            metadata::set(&mut object, "resourceVersion", Some(given));
        }
        return Ok(Outcome::value(201, object).warning(warnings));
    }
    let stored = state.commit(resource, &target.version, &mut object, write, verb);
    Ok(Outcome::stored(201, stored).warning(warnings))
}

/// Makes a name of `generateName`.
fn name(state: &mut State, target: &Target, object: &mut Value) {
    let prefix = metadata::text(object, "generateName");
    if prefix.is_empty() || !metadata::text(object, "name").is_empty() {
        return;
    }
    // A name of DNS has at most 63 bytes, five of which are the generated ones.
    let mut prefix = prefix.to_owned();
    while prefix.len() > 58 {
        prefix.pop();
    }
    for _ in 0..GENERATED_NAMES {
        let name = format!("{prefix}{}", state.random.suffix());
        let taken = state
            .store
            .get(
                &target.resource.table,
                &head::key(metadata::text(object, "namespace"), &name),
            )
            .is_some();
        metadata::set(object, "name", Some(name.into()));
        if !taken {
            return;
        }
    }
}

/// Sets what is the server's in the metadata.
fn prepare(state: &mut State, target: &Target, object: &mut Value, write: &Write<'_>) {
    for field in ["resourceVersion", "selfLink", "managedFields"] {
        metadata::set(object, field, None);
    }
    metadata::set(object, "uid", Some(state.random.uuid().into()));
    metadata::set(
        object,
        "creationTimestamp",
        Some(times::seconds(write.now).into()),
    );
    if target.resource.strategy.generation {
        metadata::set(object, "generation", Some(1.into()));
    }
}

fn check(target: &Target, object: &Value) -> Verdict {
    let name = metadata::text(object, "name");
    let mut causes = Vec::new();
    if name.is_empty() {
        causes.push(Cause::required(
            "metadata.name",
            "name or generateName is required",
        ));
    } else {
        causes.extend(
            target
                .resource
                .strategy
                .names
                .check(name, false)
                .into_iter()
                .map(|why| Cause::invalid("metadata.name", &object["metadata"]["name"], why)),
        );
    }
    causes.extend(metadata::check(object, "metadata"));
    let verdict = kinds::check_create(&target.resource, &target.version, object);
    causes.extend(verdict.causes);
    Verdict { causes, ..verdict }
}
