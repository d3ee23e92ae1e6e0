//! The subresource `eviction` of Pods.

use serde_json::{Value, json};

use super::Facts;
use crate::admission::Operation;
use crate::kinds::codec;
use crate::object::{head, metadata};
use crate::status::Status;
use crate::verbs::{DeleteOptions, Outcome, Request, Target, Write, admit, delete_evicted};

/// Reads an `Eviction`. A body that is none must not delete a Pod.
fn eviction(target: &Target, object: &Value) -> Result<Value, Status> {
    let mut eviction = object.clone();
    let Some(map) = eviction.as_object_mut() else {
        return Err(Status::bad_request(
            "the object provided is unrecognized (must be of type Eviction): couldn't get version/kind; json parse error: the body is not an object",
        ));
    };
    for (field, value) in [("apiVersion", "policy/v1"), ("kind", "Eviction")] {
        if map.get(field).is_none_or(|found| found.is_null() || found == "") {
            map.insert(field.to_owned(), json!(value));
        }
    }
    let text = |field: &str| eviction[field].as_str().unwrap_or_default().to_owned();
    let (version, kind) = (text("apiVersion"), text("kind"));
    let cannot = |why: &dyn std::fmt::Display| {
        Status::bad_request(format!(
            "{kind} in version {:?} cannot be handled as a Eviction: {why}",
            version.rsplit('/').next().unwrap_or_default(),
        ))
    };
    let is_eviction = kind == "Eviction" && matches!(&*version, "policy/v1" | "policy/v1beta1");
    let Some(ty) = codec::go_type("policy/v1", "Eviction").filter(|_| is_eviction) else {
        let is_known = kind != "Eviction" && codec::go_type(&version, &kind).is_some();
        return Err(cannot(&if is_known {
            format!("converting (v1.{kind}) to (policy.Eviction): unknown conversion")
        } else {
            format!(
                "no kind {kind:?} is registered for version {version:?} in scheme \"pkg/runtime/scheme.go:111\""
            )
        }));
    };
    ty.normalize(&mut eviction).map_err(|why| cannot(&why))?;
    let namespace = metadata::text(&eviction, "namespace");
    if !namespace.is_empty() && namespace != target.namespace {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    if metadata::text(&eviction, "name") != target.name {
        return Err(Status::bad_request(
            "name in URL does not match name in Eviction object",
        ));
    }
    Ok(eviction)
}

/// Handles a `Eviction` by deleting the Pod; there are no disruption budgets to check, since workloads create no
/// Pods.
pub(super) fn evict(
    facts: Facts<'_>,
    target: &mut Target,
    object: &Value,
    write: &Write<'_>,
) -> Result<Outcome, Status> {
    let eviction = eviction(target, object)?;
    let mut options = DeleteOptions::read(&eviction["deleteOptions"])?;
    options.dry_run |= write.dry_run;
    let mut state = facts.cluster.state();
    let key = head::key(&target.namespace, &target.name);
    if state.store.get(&target.resource.table, &key).is_none() {
        return Err(target.not_found());
    }
    let write = Write {
        dry_run: options.dry_run,
        ..*write
    };
    let request = Request {
        target,
        name: &target.name,
        operation: Operation::Create,
        object: Some(&eviction),
        old: None,
        options: &Value::Null,
        write: &write,
    };
    let warnings = admit(&state, &request)?;
    target.subresource = String::new();
    delete_evicted(&mut state, target, &options, &write)?;
    let mut outcome = Outcome::value(
        201,
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
    );
    outcome.warnings = warnings;
    Ok(outcome)
}
