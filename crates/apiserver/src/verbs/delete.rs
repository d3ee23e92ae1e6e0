//! The verb `delete`.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::admission;
use super::outcome::Outcome;
use super::policies;
use super::update::Existing;
use crate::journal::Verb;
use crate::kinds::tables::{DEFINITIONS, NAMESPACES};
use crate::object::finalizers::{CLEANUP, FOREGROUND, ORPHAN};
use crate::object::{metadata, times};
use crate::state::State;
use crate::status::{self, Cause, Status};
use crate::store::Stored;
use crate::target::Target;
use crate::write::Write;

/// How a deletion treats the dependents of the object (`propagationPolicy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    /// The dependents stay.
    Orphan,
    /// The garbage collector deletes the dependents after the object.
    Background,
    /// The garbage collector deletes the dependents before the object.
    Foreground,
}

/// The conditions that the object must meet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Preconditions {
    /// The UID that the object must have.
    pub uid: Option<String>,
    /// The resource version that the object must have.
    pub resource_version: Option<String>,
}

/// The options of a deletion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// How the deletion treats dependents; `None` for the default of the kind.
    pub propagation: Option<Propagation>,
    /// The conditions that the object must meet.
    pub preconditions: Preconditions,
    /// The grace period in seconds; `None` for that of the object.
    pub grace_seconds: Option<i64>,
    /// Whether the deletion is a dry run.
    pub dry_run: bool,
}

impl DeleteOptions {
    /// Reads `DeleteOptions` from a body, or their equivalent from a query.
    ///
    /// # Errors
    /// The `Status` that the API server returns.
    pub fn read(value: &Value) -> Result<Self, Status> {
        let mut causes = Vec::new();
        let propagation = match value["propagationPolicy"].as_str() {
            None => None,
            Some("Orphan") => Some(Propagation::Orphan),
            Some("Background") => Some(Propagation::Background),
            Some("Foreground") => Some(Propagation::Foreground),
            Some(other) => {
                causes.push(Cause::not_supported_text(
                    "propagationPolicy",
                    other,
                    &["Foreground", "Background", "Orphan", "nil"],
                ));
                None
            }
        };
        let orphan = value["orphanDependents"].as_bool();
        if orphan.is_some() && propagation.is_some() {
            causes.push(Cause::invalid(
                "propagationPolicy",
                &value["propagationPolicy"],
                "orphanDependents and deletionPropagation cannot be both set",
            ));
        }
        let stages = value["dryRun"].as_array().map(Vec::as_slice).unwrap_or_default();
        let dry_run = !stages.is_empty();
        if stages.iter().any(|stage| stage != "All") {
            causes.push(Cause {
                reason: "FieldValueNotSupported",
                field: "dryRun".to_owned(),
                message: format!(
                    "Unsupported value: {}: supported values: \"All\"",
                    value["dryRun"]
                ),
            });
        }
        if !causes.is_empty() {
            return Err(Status::invalid("meta.k8s.io", "DeleteOptions", "", causes));
        }
        let text = |name: &str| value["preconditions"][name].as_str().map(str::to_owned);
        Ok(Self {
            propagation: match orphan {
                Some(true) => Some(Propagation::Orphan),
                Some(false) => Some(Propagation::Background),
                None => propagation,
            },
            preconditions: Preconditions {
                uid: text("uid"),
                resource_version: text("resourceVersion"),
            },
            grace_seconds: value["gracePeriodSeconds"]
                .as_i64()
                .map(|seconds| if seconds < 0 { 1 } else { seconds }),
            dry_run,
        })
    }

    /// Returns the options as admission policies see them.
    fn to_value(&self) -> Value {
        let propagation = self.propagation.map(|propagation| match propagation {
            Propagation::Orphan => "Orphan",
            Propagation::Background => "Background",
            Propagation::Foreground => "Foreground",
        });
        let Preconditions {
            uid,
            resource_version,
        } = &self.preconditions;
        let preconditions = policies::options([
            ("uid", uid.clone().map(Value::from)),
            ("resourceVersion", resource_version.clone().map(Value::from)),
        ]);
        let has_conditions = uid.is_some() || resource_version.is_some();
        policies::options([
            ("propagationPolicy", propagation.map(Value::from)),
            ("gracePeriodSeconds", self.grace_seconds.map(Value::from)),
            ("preconditions", has_conditions.then_some(preconditions)),
        ])
    }
}

/// Deletes an object, or starts its deletion if it has to wait.
///
/// # Errors
/// The `Status` that the API server returns.
pub fn delete(
    state: &mut State,
    target: &Target,
    options: &DeleteOptions,
    write: &Write<'_>,
) -> Result<Outcome, Status> {
    delete_as(state, target, options, write, &target.name)
}

/// Deletes an object of a collection: as in Kubernetes, admission policies do not learn its name.
pub(super) fn delete_one_of_many(
    state: &mut State,
    target: &Target,
    options: &DeleteOptions,
    write: &Write<'_>,
) -> Result<Outcome, Status> {
    delete_as(state, target, options, write, "")
}

fn delete_as(
    state: &mut State,
    target: &Target,
    options: &DeleteOptions,
    write: &Write<'_>,
    name: &str,
) -> Result<Outcome, Status> {
    let old = find(state, target, options)?;
    let warnings = if state.admission().is_empty() {
        Vec::new()
    } else {
        let old = target.read(&old);
        admission::policies_of_deletion(state, target, name, &old, &options.to_value(), write)?
    };
    Ok(remove(state, target, options, write, old).warning(warnings))
}

/// Deletes a Pod that is evicted. Admission policies have decided about the eviction.
pub(crate) fn delete_evicted(
    state: &mut State,
    target: &Target,
    options: &DeleteOptions,
    write: &Write<'_>,
) -> Result<Outcome, Status> {
    let stored = find(state, target, options)?;
    Ok(remove(state, target, options, write, stored))
}

/// Returns the object, if it may be deleted and meets the preconditions.
fn find(state: &State, target: &Target, options: &DeleteOptions) -> Result<Arc<Stored>, Status> {
    admission::delete(target)?;
    let stored = state
        .store
        .get(&target.resource.table, &target.key())
        .cloned()
        .ok_or_else(|| target.not_found())?;
    check_preconditions(target, &stored, &options.preconditions)?;
    Ok(stored)
}

fn remove(
    state: &mut State,
    target: &Target,
    options: &DeleteOptions,
    write: &Write<'_>,
    stored: Arc<Stored>,
) -> Outcome {
    let existing = Existing::of(target, &stored);
    let mut object = existing.with_managed_fields();
    let waits = mark_deleted(target, &stored, &mut object, options, write.now);
    if waits {
        begin_deletion(state, target, &stored, object, write)
    } else if write.dry_run {
        deletion_answer(target, &stored)
    } else {
        // The response for a Pod has a deletion timestamp even if the grace period is zero.
        let marked = is_graceful(target).then_some(&mut object);
        let last = state
            .remove(&target.resource, &target.version, &target.key(), marked, write)
            .unwrap_or(stored);
        deletion_answer(target, &last)
    }
}

/// Returns the warnings of a deletion, which do not depend on its result.
pub fn delete_warnings(target: &Target, options: &DeleteOptions) -> Vec<String> {
    let warns =
        target.resource.strategy.orphans && *target.resource.kind == *"Job" && options.propagation.is_none();
    let text = "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning";
    warns.then(|| text.to_owned()).into_iter().collect()
}

fn check_preconditions(
    target: &Target,
    stored: &Stored,
    preconditions: &Preconditions,
) -> Result<(), Status> {
    let conflict =
        |why: String| Status::conflict(&target.resource.group, &target.resource.kind, &target.name, why);
    if let Some(uid) = &preconditions.uid
        && **uid != *stored.head.uid
    {
        return Err(conflict(format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been deleted and then recreated",
            stored.head.uid
        )));
    }
    if let Some(revision) = &preconditions.resource_version
        && *revision != stored.revision.to_string()
    {
        return Err(conflict(format!(
            "the ResourceVersion in the precondition ({revision}) does not match the ResourceVersion in record ({}). The object might have been modified",
            stored.revision
        )));
    }
    Ok(())
}

/// Sets the deletion timestamp and the finalizers; returns whether the object has to wait for any of them.
fn mark_deleted(
    target: &Target,
    stored: &Stored,
    object: &mut Value,
    options: &DeleteOptions,
    now: Timestamp,
) -> bool {
    let begun = stored.head.deleting.is_some();
    let finalizers = finalizers(target, object, options);
    let held_by_namespace = *target.resource.table == *NAMESPACES
        && object["spec"]["finalizers"]
            .as_array()
            .is_some_and(|list| !list.is_empty());
    let grace = grace(target, object, options);
    let mut waits = !finalizers.is_empty() || held_by_namespace;
    let list = (!finalizers.is_empty()).then(|| json!(finalizers));
    metadata::set(object, "finalizers", list);
    if begun {
        let before = object["metadata"]["deletionGracePeriodSeconds"]
            .as_i64()
            .unwrap_or_default();
        if before > 0 && grace < before {
            if let Some(at) = stored.head.deleting {
                let at = at - SignedDuration::from_secs(before) + SignedDuration::from_secs(grace);
                set_deadline(object, at.max(now), grace);
            }
            waits |= grace > 0;
        } else {
            waits |= before > 0;
        }
        return waits;
    }
    waits |= grace > 0;
    if !waits && !is_graceful(target) {
        return false;
    }
    set_deadline(object, now + SignedDuration::from_secs(grace), grace);
    if held_by_namespace {
        // As in Kubernetes, a namespace has no grace period.
        metadata::set(object, "deletionGracePeriodSeconds", None);
        object["status"]["phase"] = json!("Terminating");
    }
    if finalizers.iter().any(|one| one == CLEANUP) {
        metadata::set(object, "deletionGracePeriodSeconds", None);
        set_terminating(object, now);
    } else if let Some(generation) = object["metadata"]["generation"].as_i64() {
        metadata::set(object, "generation", Some(json!(generation + 1)));
    }
    waits
}

/// Returns whether the kind has grace periods: only Pods do.
fn is_graceful(target: &Target) -> bool {
    *target.resource.table == *"pods"
}

fn set_deadline(object: &mut Value, at: Timestamp, grace: i64) {
    metadata::set(object, "deletionTimestamp", Some(times::seconds(at).into()));
    metadata::set(object, "deletionGracePeriodSeconds", Some(json!(grace)));
}

/// Sets the condition `Terminating` of a CustomResourceDefinition whose custom resources are deleted first.
fn set_terminating(object: &mut Value, now: Timestamp) {
    let condition = json!({
        "type": "Terminating",
        "status": "True",
        "lastTransitionTime": times::seconds(now),
        "reason": "InstanceDeletionPending",
        "message": "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
    });
    let conditions = &mut object["status"]["conditions"];
    match conditions.as_array_mut() {
        Some(list) => {
            list.retain(|one| one["type"] != "Terminating");
            list.push(condition);
        }
        None => *conditions = json!([condition]),
    }
}

/// Returns the grace period in seconds; zero unless the object is a Pod that is assigned to a node.
fn grace(target: &Target, object: &Value, options: &DeleteOptions) -> i64 {
    if !is_graceful(target) {
        return 0;
    }
    let running = !matches!(object["status"]["phase"].as_str(), Some("Failed" | "Succeeded"));
    let has_node = object["spec"]["nodeName"]
        .as_str()
        .is_some_and(|node| !node.is_empty());
    if !running || !has_node {
        return 0;
    }
    options
        .grace_seconds
        .or_else(|| object["spec"]["terminationGracePeriodSeconds"].as_i64())
        .unwrap_or(30)
}

/// Returns the finalizers of the object after its deletion has started.
fn finalizers(target: &Target, object: &Value, options: &DeleteOptions) -> Vec<String> {
    let before: Vec<String> = object["metadata"]["finalizers"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|one| Some(one.as_str()?.to_owned()))
        .collect();
    let has = |name: &str| before.iter().any(|one| one == name);
    let propagation = match options.propagation {
        Some(propagation) => propagation,
        None if has(ORPHAN) => Propagation::Orphan,
        None if has(FOREGROUND) => Propagation::Foreground,
        None if target.resource.strategy.orphans => Propagation::Orphan,
        None => Propagation::Background,
    };
    let mut after: Vec<String> = before
        .into_iter()
        .filter(|one| one != ORPHAN && one != FOREGROUND)
        .collect();
    match propagation {
        Propagation::Orphan => after.push(ORPHAN.to_owned()),
        Propagation::Foreground => after.push(FOREGROUND.to_owned()),
        Propagation::Background => {}
    }
    let is_definition = *target.resource.table == *DEFINITIONS;
    if is_definition
        && object["metadata"]["deletionTimestamp"].is_null()
        && !after.iter().any(|one| one == CLEANUP)
    {
        after.push(CLEANUP.to_owned());
    }
    after
}

/// Stores an object whose deletion waits; stores nothing if the object is unchanged.
fn begin_deletion(
    state: &mut State,
    target: &Target,
    stored: &Arc<Stored>,
    mut object: Value,
    write: &Write<'_>,
) -> Outcome {
    if object == target.read(stored) {
        return Outcome::stored(200, Arc::clone(stored));
    }
    if write.dry_run {
        return Outcome::value(200, object);
    }
    let stored = state.commit(
        &target.resource,
        &target.version,
        &mut object,
        write,
        Verb::DeleteBegins,
    );
    Outcome::stored(200, stored)
}

fn deletion_answer(target: &Target, last: &Arc<Stored>) -> Outcome {
    let resource = &target.resource;
    if resource.strategy.returns_deleted {
        return Outcome::stored(200, Arc::clone(last));
    }
    Outcome::value(
        200,
        status::deleted(&resource.group, &resource.plural, &last.head.name, &last.head.uid),
    )
}
