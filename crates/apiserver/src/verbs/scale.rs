//! The subresource `scale`.

use serde_json::{Map, Value, json};

use super::admission;
use super::create::check_names;
use super::decode::check_kind;
use super::outcome::{Outcome, with_warnings};
use super::patch::{PatchBody, apply_error_status, patched};
use super::update::{Existing, Replacement, check_named, finish_as, uid_conflict};
use crate::journal::Verb;
use crate::kinds::codec::{CodecError, go_type};
use crate::kinds::{Form, Scale, Version};
use crate::managed::{ApplyRequest, FieldManager, Live, ManagedFields, UpdateRequest};
use crate::object::metadata;
use crate::object::selector::expression_text;
use crate::state::State;
use crate::status::{Cause, Status};
use crate::target::Target;
use crate::write::{Validation, Write};

const VERSION: &str = "autoscaling/v1";

fn pointer(path: &str) -> String {
    path.trim_start_matches('.')
        .split('.')
        .fold(String::new(), |pointer, step| format!("{pointer}/{step}"))
}

fn scale_of(version: &Version) -> Result<&Scale, Status> {
    version.scale.as_ref().ok_or_else(Status::no_such_resource)
}

/// Returns a selector in the text form that `kubectl` reads.
fn selector_text(selector: &Value) -> String {
    let exact = selector["matchLabels"].as_object().or_else(|| {
        // The selector of a ReplicationController is a map of labels.
        let labels = selector.as_object()?;
        labels.values().all(Value::is_string).then_some(labels)
    });
    let mut terms: Vec<String> = exact
        .into_iter()
        .flatten()
        .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()))
        .collect();
    let expressions = selector["matchExpressions"].as_array().into_iter().flatten();
    terms.extend(expressions.map(|expression| expression_text(expression).1));
    terms.sort();
    terms.join(",")
}

/// Returns the `Scale` of an object.
///
/// # Errors
/// The version has no `scale` subresource.
fn show(version: &Version, object: &Value) -> Result<Value, Status> {
    let scale = scale_of(version)?;
    let missing = object.pointer(&pointer(&scale.spec_replicas)).is_none();
    if missing && matches!(version.form, Form::Custom(_)) {
        return Err(Status::internal(format!(
            "the spec replicas field {:?} does not exist",
            scale.spec_replicas
        )));
    }
    let at = |path: &str| {
        object
            .pointer(&pointer(path))
            .and_then(Value::as_i64)
            .unwrap_or_default()
    };
    let mut spec = Map::new();
    let wanted = at(&scale.spec_replicas);
    if wanted != 0 {
        spec.insert("replicas".to_owned(), json!(wanted));
    }
    let mut status = json!({"replicas": at(&scale.status_replicas)});
    if let Some(path) = &scale.selector {
        let text = match object.pointer(&pointer(path)) {
            Some(Value::String(text)) => text.clone(),
            Some(selector) => selector_text(selector),
            None => String::new(),
        };
        if !text.is_empty() {
            status["selector"] = json!(text);
        }
    }
    let mut shown =
        json!({"kind": "Scale", "apiVersion": VERSION, "metadata": {}, "spec": spec, "status": status});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        metadata::set(&mut shown, field, object["metadata"].get(field).cloned());
    }
    Ok(shown)
}

/// Returns the `Scale` of a stored object.
///
/// # Errors
/// The version has no `scale` subresource.
pub fn show_stored(target: &Target, stored: &std::sync::Arc<crate::store::Stored>) -> Result<Value, Status> {
    let existing = Existing::of(target, stored);
    show(&target.version, &existing.object)
}

fn existing(state: &State, target: &Target) -> Result<Existing, Status> {
    state
        .store
        .get(&target.resource.table, &target.key())
        .map(|stored| Existing::of(target, stored))
        .ok_or_else(|| target.not_found())
}

/// Replaces the scale of an object.
pub(super) fn update(
    state: &mut State,
    target: &Target,
    mut scale: Value,
    duplicates: &[String],
    write: &Write<'_>,
) -> Result<Outcome, Status> {
    if let Some(map) = scale.as_object_mut() {
        map.entry("apiVersion").or_insert_with(|| json!(VERSION));
        map.entry("kind").or_insert_with(|| json!("Scale"));
    }
    let cannot = |why: String| {
        Status::bad_request(format!(
            "Scale in version \"v1\" cannot be handled as a Scale: {why}"
        ))
    };
    let unknown = read(&mut scale).map_err(|why| cannot(why.to_string()))?;
    let warnings = complaints(duplicates, &unknown, write.validation).map_err(cannot)?;
    // Another kind is refused below.
    if scale["kind"] == "Scale" {
        check_named(target, &scale)?;
        check_names(target, &mut scale)?;
    }
    let outcome = existing(state, target)
        .and_then(|existing| write_scale(state, target, &existing, scale, None, write, Verb::Update));
    with_warnings(outcome, warnings)
}

/// Patches the scale of an object.
pub(super) fn patch(
    state: &mut State,
    target: &Target,
    body: PatchBody,
    duplicates: &[String],
    write: &Write<'_>,
) -> Result<Outcome, Status> {
    let existing = existing(state, target)?;
    // A patch may set the replicas of an object that has none yet.
    let shown = show(&target.version, &existing.object).unwrap_or_else(|_| empty_scale(&existing.object));
    if let PatchBody::Apply(config) = body {
        return apply(state, target, &existing, shown, &config, write);
    }
    let mut scale = patched(target, shown, &body)?;
    let sent = scale.clone();
    let cannot = |why: String| {
        let cause = Cause::invalid("patch", &Value::String(sent.to_string()), why);
        Status::invalid("", "", "", vec![cause])
    };
    let unknown = read(&mut scale).map_err(|why| cannot(why.to_string()))?;
    let warnings = complaints(duplicates, &unknown, write.validation).map_err(cannot)?;
    if scale["kind"] == "Scale" {
        check_names(target, &mut scale)?;
    }
    let outcome = write_scale(state, target, &existing, scale, None, write, Verb::Patch);
    with_warnings(outcome, warnings)
}

/// Normalises a `Scale`; returns the paths of unknown fields. [`check_scale`] rejects other kinds.
fn read(scale: &mut Value) -> Result<Vec<String>, CodecError> {
    match go_type(VERSION, "Scale") {
        Some(ty) if scale["kind"] == "Scale" => ty.normalize(scale),
        _ => Ok(Vec::new()),
    }
}

/// Returns the warnings about duplicate and unknown fields; strict validation rejects them.
fn complaints(
    duplicates: &[String],
    unknown: &[String],
    validation: Validation,
) -> Result<Vec<String>, String> {
    let duplicates = duplicates.iter().map(|path| format!("duplicate field {path:?}"));
    let unknown = unknown.iter().map(|path| format!("unknown field {path:?}"));
    let all: Vec<String> = duplicates.chain(unknown).collect();
    match validation {
        Validation::Strict if !all.is_empty() => Err(format!("strict decoding error: {}", all.join(", "))),
        Validation::Warn => Ok(all),
        _ => Ok(Vec::new()),
    }
}

fn apply(
    state: &mut State,
    target: &Target,
    existing: &Existing,
    shown: Value,
    config: &Value,
    write: &Write<'_>,
) -> Result<Outcome, Status> {
    let scale = scale_of(&target.version)?;
    let entries = scale.mapping.to_scale(&existing.managed);
    let fields = scale_fields()?;
    let live = Live {
        object: &shown,
        managed: &entries,
    };
    let request = ApplyRequest {
        manager: write.manager,
        force: write.force,
        now: write.now,
    };
    let applied = fields
        .apply(Some(live), config, &request)
        .map_err(apply_error_status)?;
    let new = applied.object.unwrap_or(shown);
    write_scale(
        state,
        target,
        existing,
        new,
        Some(applied.managed),
        write,
        Verb::Apply,
    )
}

fn scale_fields() -> Result<FieldManager, Status> {
    FieldManager::for_builtin(VERSION, "Scale")
        .map(|fields| fields.subresource("scale"))
        .ok_or_else(|| Status::internal("the kind Scale is missing"))
}

/// Writes the replicas of a `Scale` into its object.
fn write_scale(
    state: &mut State,
    target: &Target,
    existing: &Existing,
    mut new: Value,
    applied: Option<ManagedFields>,
    write: &Write<'_>,
    verb: Verb,
) -> Result<Outcome, Status> {
    let scale = scale_of(&target.version)?.clone();
    check_scale(target, &mut new, existing)?;
    let replicas = new["spec"]["replicas"].as_i64().unwrap_or_default();
    let shown = show(&target.version, &existing.object).unwrap_or_else(|_| empty_scale(&existing.object));
    let entries = match applied {
        Some(entries) => entries,
        None => {
            let before = scale.mapping.to_scale(&existing.managed);
            let live = shown;
            metadata::set(&mut new, "managedFields", None);
            let request = UpdateRequest {
                manager: write.manager,
                now: write.now,
            };
            let live = Live {
                object: &live,
                managed: &before,
            };
            scale_fields()?
                .update(Some(live), new, &request)
                .map_err(Status::internal)?
                .managed
        }
    };
    let mut object = existing.object.clone();
    set_at(&mut object, &scale.spec_replicas, replicas);
    let managed = scale.mapping.to_object(&existing.managed, &entries);
    let main = Target {
        subresource: String::new(),
        ..target.clone()
    };
    let replacement = Replacement { object, managed };
    let outcome = finish_as(
        state,
        &main,
        existing,
        replacement,
        write,
        verb,
        |state, new, _| {
            if state.admission().is_empty() {
                return Ok(Vec::new());
            }
            let new = show(&target.version, new)?;
            let old =
                show(&target.version, &existing.object).unwrap_or_else(|_| empty_scale(&existing.object));
            admission::policies_of_change(state, target, &new, &old, write)
        },
    )?;
    let object = outcome.object(&main);
    Ok(Outcome::value(200, show(&target.version, &object)?).warning(outcome.warnings))
}

/// Returns the `Scale` of an object that has no replicas yet.
fn empty_scale(object: &Value) -> Value {
    let mut shown = json!({"kind": "Scale", "apiVersion": VERSION, "metadata": {}, "spec": {}, "status": {"replicas": 0}});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        metadata::set(&mut shown, field, object["metadata"].get(field).cloned());
    }
    shown
}

fn set_at(object: &mut Value, path: &str, replicas: i64) {
    let mut at = object;
    for step in path.trim_start_matches('.').split('.') {
        if !at.is_object() {
            *at = json!({});
        }
        at = &mut at[step];
    }
    *at = json!(replicas);
}

fn check_scale(target: &Target, new: &mut Value, existing: &Existing) -> Result<(), Status> {
    if new["kind"] != "Scale" {
        // The message is that of any other wrong kind.
        check_kind(target, new)?;
        return Err(Status::bad_request("the object is not a Scale"));
    }
    let uid = metadata::text(new, "uid");
    if !uid.is_empty() && *uid != *existing.stored.head.uid {
        return Err(uid_conflict(target, uid, &existing.stored.head.uid));
    }
    let revision = metadata::text(new, "resourceVersion");
    if !revision.is_empty() && *revision != existing.stored.revision.to_string() {
        return Err(target.modified());
    }
    let replicas = &new["spec"]["replicas"];
    if replicas.as_i64().is_some_and(|number| number < 0) {
        let cause = Cause::invalid("spec.replicas", replicas, "must be greater than or equal to 0");
        return Err(Status::invalid("autoscaling", "Scale", &target.name, vec![cause]));
    }
    Ok(())
}
