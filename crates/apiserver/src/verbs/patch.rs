//! The verb `patch`: server-side apply and the three patch types.

use std::sync::Arc;

use serde_json::Value;

use super::create::{self, check_names};
use super::decode::{check_kind, decode};
use super::outcome::{Outcome, with_warnings};
use super::update::{
    self, Existing, check_current, check_escalation, check_named, check_revision, check_revision_syntax,
};
use crate::journal::Verb;
use crate::managed::{ApplyError, ApplyRequest, settle_times};
use crate::object::metadata;
use crate::patch::{PatchError, StrategicType, json_patch, merge_patch, strategic_merge};
use crate::state::State;
use crate::status::{Cause, Status};
use crate::target::Target;
use crate::write::Write;

/// The body of a patch request.
#[derive(Debug, Clone)]
pub enum PatchBody {
    /// Server-side apply.
    Apply(Value),
    /// JSON merge patch (RFC 7386).
    Merge(Value),
    /// JSON patch (RFC 6902).
    Json(Value),
    /// Strategic merge patch.
    Strategic(Value),
}

/// Patches an object.
pub(super) fn patch(
    state: &mut State,
    target: &Target,
    body: PatchBody,
    duplicates: &[String],
    write: &Write<'_>,
) -> Result<Outcome, Status> {
    match body {
        PatchBody::Apply(config) => apply(state, target, config, duplicates, write),
        other => {
            let stored = state
                .store
                .get(&target.resource.table, &target.key())
                .ok_or_else(|| target.not_found())?;
            let existing = Existing::of(target, stored);
            let patched = patched(target, existing.with_managed_fields(), &other)?;
            let shown = patched.clone();
            let mut decoded = decode(target, patched, duplicates, write.validation)
                .map_err(|why| why.of_patched(&shown))?;
            let outcome = check_named(target, &decoded.object)
                .and_then(|()| check_names(target, &mut decoded.object))
                .and_then(|()| check_current(state, target, &decoded.object, &existing, write))
                .and_then(|()| update::replace(state, target, &existing, decoded.object, write, Verb::Patch));
            with_warnings(outcome, decoded.warnings)
        }
    }
}

/// Returns the object after a patch.
pub(super) fn patched(target: &Target, object: Value, body: &PatchBody) -> Result<Value, Status> {
    let (api_version, kind) = match &*target.subresource {
        "scale" => ("autoscaling/v1", "Scale"),
        _ => (&*target.version.api_version, &*target.resource.kind),
    };
    let outcome = match body {
        PatchBody::Merge(patch) => merge_patch(object, patch.clone()),
        PatchBody::Json(patch) => json_patch(object, patch),
        PatchBody::Strategic(patch) => match StrategicType::of(api_version, kind) {
            Some(ty) => strategic_merge(ty, object, patch.clone()),
            None => return Err(Status::unsupported_patch()),
        },
        PatchBody::Apply(_) => return Err(Status::internal("an apply is no patch")),
    };
    outcome.map_err(|error| {
        let mut status = Status::new(error.code(), error.reason(), error.to_string());
        if let PatchError::NotApplicable(_) = error {
            status.details.empty = true;
        }
        status
    })
}

/// Applies a configuration (server-side apply).
fn apply(
    state: &mut State,
    target: &Target,
    mut config: Value,
    duplicates: &[String],
    write: &Write<'_>,
) -> Result<Outcome, Status> {
    if let Some(duplicate) = duplicates.first() {
        return Err(Status::bad_request(format!(
            "error decoding YAML: key {duplicate:?} already set in map"
        )));
    }
    check_kind_of_config(target, &mut config)?;
    // The field manager gets the configuration unchanged; the copy is only checked.
    check_names(target, &mut config.clone())?;
    let request = ApplyRequest {
        manager: write.manager,
        force: write.force,
        now: write.now,
    };
    let existing = state
        .store
        .get(&target.resource.table, &target.key())
        .map(|stored| Existing::of(target, stored));
    let Some(existing) = existing else {
        return apply_new(state, target, &config, &request, write);
    };
    let revision = metadata::text(&config, "resourceVersion");
    if !revision.is_empty() {
        check_revision(target, &config, &existing)?;
    }
    let applied = target
        .fields()
        .apply(Some(existing.live()), &config, &request)
        .map_err(apply_error_status)?;
    let mut managed = applied.managed;
    let Some(object) = applied.object else {
        // The object is unchanged, but the applier may now own fields of it. Policies decide about both.
        if !settle_times(&existing.managed, &mut managed, false) && state.admission().is_empty() {
            return Ok(Outcome::stored(200, Arc::clone(&existing.stored)));
        }
        let object = existing.object.clone();
        check_escalation(state, target, &object, &existing, write)?;
        return update::finish(state, target, &existing, object, managed, write, Verb::Apply);
    };
    let mut decoded =
        decode(target, object, &[], write.validation).map_err(|why| why.of_applied(target, &config))?;
    if !target.resource.namespaced {
        metadata::set(&mut decoded.object, "namespace", None);
    }
    check_escalation(state, target, &decoded.object, &existing, write)?;
    let outcome = update::finish(
        state,
        target,
        &existing,
        decoded.object,
        managed,
        write,
        Verb::Apply,
    );
    with_warnings(outcome, decoded.warnings)
}

fn check_kind_of_config(target: &Target, config: &mut Value) -> Result<(), Status> {
    let empty = |field: &str| config[field].as_str().unwrap_or_default().is_empty();
    if !config.is_object() {
        return check_kind(target, config);
    }
    if empty("kind") || empty("apiVersion") {
        // The field manager reports this as an invalid type.
        return Err(Status::bad_request(format!(
            "invalid object type: {}",
            crate::managed::version_and_kind(config)
        )));
    }
    Ok(())
}

fn apply_new(
    state: &mut State,
    target: &Target,
    config: &Value,
    request: &ApplyRequest<'_>,
    write: &Write<'_>,
) -> Result<Outcome, Status> {
    let uid = metadata::text(config, "uid");
    if !uid.is_empty() {
        return Err(Status::conflict(
            &target.resource.group,
            &target.resource.plural,
            &target.name,
            format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            ),
        ));
    }
    if target.subresource == "status" && !target.resource.strategy.create_on_update {
        return Err(target.not_found());
    }
    let applied = target
        .fields()
        .apply(None, config, request)
        .map_err(apply_error_status)?;
    let mut object = applied.object.unwrap_or_else(|| config.clone());
    check_named(target, &object)?;
    check_names(target, &mut object)?;
    check_revision_syntax(&object)?;
    let decoded =
        decode(target, object, &[], write.validation).map_err(|why| why.of_applied(target, config))?;
    let outcome = create::finish(
        state,
        target,
        decoded.object,
        &applied.managed,
        write,
        Verb::Create,
    );
    with_warnings(outcome, decoded.warnings)
}

/// Returns the response to a server-side apply that failed.
pub(super) fn apply_error_status(error: ApplyError) -> Status {
    match error {
        ApplyError::Conflict(conflicts) => {
            let mut status = Status::new(409, "Conflict", conflicts.to_string());
            status.details.causes = conflicts
                .0
                .iter()
                .map(|conflict| Cause {
                    reason: "FieldManagerConflict",
                    field: conflict.path.to_string(),
                    message: conflict.cause(),
                })
                .collect();
            status
        }
        error if error.code() == 400 => Status::bad_request(error.to_string()),
        error => Status::internal_plain(error.to_string()),
    }
}
