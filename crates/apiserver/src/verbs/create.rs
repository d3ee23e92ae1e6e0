//! The verb `create`.

use serde_json::Value;

use super::admission;
use super::decode::decode;
use super::escalation;
use super::outcome::{Outcome, with_warnings};
use crate::crd::Verdict;
use crate::journal::Verb;
use crate::kinds;
use crate::managed::{Live, ManagedFields, UpdateRequest};
use crate::object::{head, metadata, times};
use crate::rbac::Attributes;
use crate::state::State;
use crate::status::{Cause, Status};
use crate::target::Target;
use crate::write::Write;

/// How many names the server generates from `generateName` before it reports a conflict, as in Kubernetes.
const GENERATED_NAMES: usize = 8;

/// Creates an object.
///
/// # Errors
/// The `Status` that the API server returns.
pub fn create(
    state: &mut State,
    target: &Target,
    object: Value,
    duplicates: &[String],
    write: &Write<'_>,
) -> Result<Outcome, Status> {
    let decoded = decode(target, object, duplicates, write.validation).map_err(|why| why.of_body(target))?;
    let (object, warnings) = (decoded.object, decoded.warnings);
    with_warnings(create_decoded(state, target, object, write), warnings)
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
    let (object, managed) = update_managed_fields(target, None, object, write)?;
    finish(state, target, object, &managed, write, Verb::Create)
}

/// Updates `managedFields` for a decoded object; returns the object without the entries, and the entries.
pub(crate) fn update_managed_fields(
    target: &Target,
    live: Option<Live<'_>>,
    object: Value,
    write: &Write<'_>,
) -> Result<(Value, ManagedFields), Status> {
    let request = UpdateRequest {
        manager: write.manager,
        now: write.now,
    };
    // A custom resource may not match its schema; the validation that follows reports how.
    let updated = target.fields().update_or_forget(live, object, &request);
    Ok((updated.object, updated.managed))
}

/// Checks the namespace and the name of the object against those of the request, and sets the namespace.
pub(crate) fn check_names(target: &Target, object: &mut Value) -> Result<(), Status> {
    let given = metadata::text(object, "namespace").to_owned();
    if target.resource.namespaced {
        if !given.is_empty() && given != target.namespace {
            return Err(Status::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        metadata::set(object, "namespace", Some(target.namespace.clone().into()));
    } else {
        metadata::set(object, "namespace", None);
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

/// Stores a decoded object as a new one: admission, defaults, validation, commit. `object` has no `managedFields`.
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
    admission::check_namespace_exists(state, target)?;
    let given_name = metadata::text(&object, "name").to_owned();
    name(state, target, &mut object);
    admission::create(state, target, &object)?;
    escalation::check(state, target, None, &object, &given_name, write)?;
    admission::priority(state, target, &mut object)?;
    prepare(state, target, &mut object, write);
    kinds::prepare::prepare_create(resource, &target.version, &mut state.addresses, &mut object);
    kinds::prepare::set_requester(resource, &mut object, write);
    let Verdict { causes, warnings } = check(target, &object);
    let name = metadata::text(&object, "name").to_owned();
    if !causes.is_empty() {
        return Err(target.invalid(&name, causes));
    }
    authorize_creation(state, target, write)?;
    let mut warnings = warnings;
    warnings.extend(admission::policies_of_new(
        state, target, &object, managed, write,
    )?);
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

/// Rejects a request that would create the object of its path, by a user who may only update or patch it.
fn authorize_creation(state: &State, target: &Target, write: &Write<'_>) -> Result<(), Status> {
    if target.name.is_empty() || state.policy().is_none() {
        return Ok(());
    }
    let Target {
        resource,
        namespace,
        name,
        subresource,
        ..
    } = target;
    let create =
        Attributes::resource("create", &resource.group, &resource.plural, namespace, name).of(subresource);
    let decision = state.authorize(write.who(), &create);
    if decision.allowed {
        return Ok(());
    }
    Err(create.forbidden(write.user, &decision.reason))
}

/// Generates a name from `generateName`.
fn name(state: &mut State, target: &Target, object: &mut Value) {
    let prefix = metadata::text(object, "generateName");
    if prefix.is_empty() || !metadata::text(object, "name").is_empty() {
        return;
    }
    // A DNS label has at most 63 characters, five of which are generated.
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

/// Sets the metadata fields that the server owns.
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
