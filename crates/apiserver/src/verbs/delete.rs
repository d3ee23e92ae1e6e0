//! Delete.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::update::Existing;
use super::{Outcome, Target, Write, admission};
use crate::journal::Verb;
use crate::object::{metadata, times};
use crate::state::State;
use crate::status::{self, Cause, Status};
use crate::store::Stored;

/// The finalizer that waits for dependents to be deleted.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer that waits for dependents to forget their owner.
pub(crate) const ORPHAN: &str = "orphan";
/// The finalizer that waits for the objects of a definition.
pub(crate) const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

/// What happens to dependents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    /// They stay.
    Orphan,
    /// They are deleted afterwards.
    Background,
    /// They are deleted before.
    Foreground,
}

/// What has to be true of the object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Preconditions {
    /// Its UID.
    pub uid: Option<String>,
    /// Its resource version.
    pub resource_version: Option<String>,
}

/// What a client says about a deletion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// What happens to dependents; none for what is usual for the kind.
    pub propagation: Option<Propagation>,
    /// What has to be true of the object.
    pub preconditions: Preconditions,
    /// How long the object may take.
    pub grace_seconds: Option<i64>,
    /// Whether nothing is to be deleted.
    pub dry_run: bool,
}

impl DeleteOptions {
    /// Reads `DeleteOptions`, or what stands for them in a query.
    ///
    /// # Errors
    /// The answer of the API server.
    pub fn read(value: &Value) -> Result<Self, Status> {
        let mut causes = Vec::new();
        let propagation = match value["propagationPolicy"].as_str() {
            None | Some("") => None,
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
        let dry_run = value["dryRun"].as_array().is_some_and(|list| !list.is_empty());
        if dry_run && value["dryRun"] != json!(["All"]) {
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
}

/// Deletes an object, or lets its deletion begin.
///
/// # Errors
/// The answer of the API server.
pub fn delete(
    state: &mut State,
    target: &Target,
    options: &DeleteOptions,
    write: &Write<'_>,
) -> Result<Outcome, Status> {
    admission::delete(target)?;
    let stored = state
        .store
        .get(&target.resource.table, &target.key())
        .cloned()
        .ok_or_else(|| target.not_found())?;
    check_preconditions(target, &stored, &options.preconditions)?;
    let existing = Existing::of(target, &stored);
    let mut object = existing.whole();
    let waits = mark(target, &stored, &mut object, options, write.now);
    let outcome = if waits {
        begin(state, target, &stored, object, write)
    } else if write.dry_run {
        gone(target, &stored)
    } else {
        // What can take its time shows that it took none.
        let marked = is_graceful(target).then_some(&mut object);
        let last = state
            .remove(&target.resource, &target.version, &target.key(), marked, write)
            .unwrap_or(stored);
        gone(target, &last)
    };
    Ok(outcome)
}

/// What a client is warned of, whatever becomes of the deletion.
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

/// Marks an object as one that is being deleted; says whether it has to wait for anything.
fn mark(
    target: &Target,
    stored: &Stored,
    object: &mut Value,
    options: &DeleteOptions,
    now: Timestamp,
) -> bool {
    let begun = stored.head.deleting.is_some();
    let finalizers = finalizers(target, object, options);
    let held_by_namespace = *target.resource.table == *admission::NAMESPACES
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
        // As in the API server, a namespace has no period.
        metadata::set(object, "deletionGracePeriodSeconds", None);
        object["status"]["phase"] = json!("Terminating");
    }
    if finalizers.iter().any(|one| one == CLEANUP) {
        metadata::set(object, "deletionGracePeriodSeconds", None);
        terminating(object, now);
    } else if let Some(generation) = object["metadata"]["generation"].as_i64() {
        metadata::set(object, "generation", Some(json!(generation + 1)));
    }
    waits
}

/// Whether objects may take time to end: only Pods do.
fn is_graceful(target: &Target) -> bool {
    *target.resource.table == *"pods"
}

fn set_deadline(object: &mut Value, at: Timestamp, grace: i64) {
    metadata::set(object, "deletionTimestamp", Some(times::seconds(at).into()));
    metadata::set(object, "deletionGracePeriodSeconds", Some(json!(grace)));
}

/// The condition of a definition whose objects go first.
fn terminating(object: &mut Value, now: Timestamp) {
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

/// How many seconds the object may take. Only Pods that have been given a node take any.
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

/// The finalizers of the object once its deletion has begun.
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
    let is_definition = *target.resource.table == *"customresourcedefinitions.apiextensions.k8s.io";
    if is_definition
        && object["metadata"]["deletionTimestamp"].is_null()
        && !after.iter().any(|one| one == CLEANUP)
    {
        after.push(CLEANUP.to_owned());
    }
    after
}

/// Stores an object that waits for something; nothing if it has waited for it before.
fn begin(
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

fn gone(target: &Target, last: &Arc<Stored>) -> Outcome {
    let resource = &target.resource;
    if resource.strategy.returns_deleted {
        return Outcome::stored(200, Arc::clone(last));
    }
    Outcome::value(
        200,
        status::deleted(&resource.group, &resource.plural, &last.head.name, &last.head.uid),
    )
}
