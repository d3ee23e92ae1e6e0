//! Gives up an object without deleting it: a person keeps it, or it was there before Starling.
//!
//! A field that only Starling applied would be removed with the entry of Starling in `managedFields`. So the entry is
//! renamed first: the values stay, under a manager that nobody applies with.

use bytes::Bytes;
use serde_json::{Map, Value, json};
use starling_api::{FIELD_MANAGER, OWNER_LABEL};
use starling_core::object::ObjectId;

use super::attempt::Attempt;
use super::call::{Call, METADATA, Operation};
use super::error::MemberError;
use super::paths;
use super::prune::{DeletionTarget, Pruned};
use super::transport::Member;

/// The manager of the fields of objects that Starling gave up.
const RELEASED_MANAGER: &str = "starling-released";

/// How often an object is read and written again because another manager wrote it in between. The next attempt tries
/// again; controllers that write several times within milliseconds are rare.
const TRIES: usize = 3;

/// The treatment of the fields that only Starling applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fields {
    /// All of them stay, except the owner label.
    Keep,
    /// Those in `metadata` (labels, annotations) are removed. The content stays: whether it overwrote values that were
    /// there before is unknown.
    KeepContent,
}

impl Member {
    /// Gives up an object that a person keeps. Only the owner label goes.
    pub(super) async fn release(
        &self,
        key: &ObjectId,
        target: &DeletionTarget,
        attempt: &Attempt,
    ) -> Result<Pruned, MemberError> {
        let operation = Operation::object("release", key);
        let given_up = self.rename_entry(operation, target, Fields::Keep, attempt).await;
        as_pruned(given_up)
    }

    /// Gives up the owner label, and the labels and annotations that Starling applied. What another manager applied as
    /// well stays as it is, and so does everything outside of the metadata.
    pub(super) async fn relinquish(
        &self,
        key: &ObjectId,
        target: &DeletionTarget,
        attempt: &Attempt,
    ) -> Result<Pruned, MemberError> {
        let operation = Operation::object("relinquish", key);
        let content = self.rename_entry(operation, target, Fields::KeepContent, attempt);
        if let Err(error) = content.await {
            return as_pruned(Err(error));
        }
        let path = target.path.clone() + &paths::apply_query(true, false);
        let nothing = without_fields(key, target);
        let given_up = self
            .send(Call::apply(operation, path, METADATA, nothing), attempt)
            .await
            .map(drop);
        as_pruned(match given_up {
            // Without them the object would be invalid: the fields stay, and the label goes.
            Err(MemberError::Invalid { .. } | MemberError::Immutable { .. }) => {
                let path = target.path.clone() + &paths::apply_query(false, false);
                self.send(Call::merge(operation, path, without_label(target)), attempt)
                    .await
                    .map(drop)
            }
            other => other,
        })
    }

    /// Moves fields of the entry of Starling to another manager, and removes the owner label with the last of them.
    /// The write names the version that was read, because it replaces the entries of all managers.
    async fn rename_entry(
        &self,
        operation: Operation<'_>,
        target: &DeletionTarget,
        fields: Fields,
        attempt: &Attempt,
    ) -> Result<(), MemberError> {
        let mut left = TRIES;
        loop {
            let call = Call::get(operation, target.path.clone(), METADATA);
            let live: Value = self.send(call, attempt).await?.parse(operation)?;
            let Some(patch) = renamed(&live, target, fields) else {
                return Ok(());
            };
            let path = target.path.clone() + &paths::apply_query(false, false);
            let call = Call::merge(operation, path, patch.to_string().into());
            match self.send(call, attempt).await {
                Err(MemberError::Conflict { .. }) if left > 1 => left -= 1,
                other => return other.map(drop),
            }
        }
    }
}

fn as_pruned(given_up: Result<(), MemberError>) -> Result<Pruned, MemberError> {
    match given_up {
        Ok(()) | Err(MemberError::NotFound { .. }) => Ok(Pruned::Relinquished),
        Err(error) => Err(error),
    }
}

/// Returns the merge patch that moves the fields; `None`: there is nothing to move, or the object is another one.
fn renamed(live: &Value, target: &DeletionTarget, fields: Fields) -> Option<Value> {
    let metadata = live.get("metadata")?;
    if metadata.get("uid")? != target.uid.as_str() {
        return None;
    }
    let empty = Vec::new();
    let entries = metadata.get("managedFields").and_then(Value::as_array);
    let (ours, mut entries): (Vec<Value>, Vec<Value>) =
        entries.unwrap_or(&empty).iter().cloned().partition(is_ours);
    let mut moved = false;
    for mut entry in ours {
        let own = entry.get_mut("fieldsV1").map(Value::take);
        let Some(Value::Object(mut own)) = own else {
            continue;
        };
        let kept = match fields {
            Fields::Keep => Map::new(),
            Fields::KeepContent => own.remove("f:metadata").map_or_else(Map::new, |metadata| {
                Map::from_iter([("f:metadata".to_owned(), metadata)])
            }),
        };
        without_owner(&mut own);
        if fields == Fields::KeepContent && !kept.is_empty() {
            let mut rest = entry.clone();
            rest["fieldsV1"] = kept.into();
            entries.push(rest);
        }
        moved |= !own.is_empty();
        if !own.is_empty() {
            add(&mut entries, entry, own);
        }
    }
    let mut patch = json!({"uid": target.uid, "resourceVersion": metadata.get("resourceVersion")?});
    if fields == Fields::Keep {
        patch["labels"] = json!({OWNER_LABEL: Value::Null});
    } else if !moved {
        return None;
    }
    // An empty list means that the entries stay; one empty entry removes them.
    patch["managedFields"] = if entries.is_empty() {
        json!([{}])
    } else {
        entries.into()
    };
    Some(json!({"metadata": patch}))
}

fn is_ours(entry: &Value) -> bool {
    let is = |field: &str, value: &str| entry.get(field).and_then(Value::as_str).unwrap_or_default() == value;
    is("manager", FIELD_MANAGER) && is("operation", "Apply") && is("subresource", "")
}

/// Adds fields to the entry of the other manager for the same version, or makes one of the entry of Starling.
fn add(entries: &mut Vec<Value>, mut entry: Value, fields: Map<String, Value>) {
    entry["manager"] = RELEASED_MANAGER.into();
    entry["operation"] = "Update".into();
    let same = |other: &&mut Value| {
        ["manager", "operation", "apiVersion", "subresource"]
            .iter()
            .all(|field| other.get(field) == entry.get(field))
    };
    match entries.iter_mut().find(same) {
        Some(earlier) => union(&mut earlier["fieldsV1"], Value::Object(fields)),
        None => {
            entry["fieldsV1"] = fields.into();
            entries.push(entry);
        }
    }
}

fn union(into: &mut Value, fields: Value) {
    match (into, fields) {
        (Value::Object(into), Value::Object(fields)) => {
            for (key, fields) in fields {
                union(into.entry(key).or_insert(Value::Null), fields);
            }
        }
        (into, fields) if into.is_null() => *into = fields,
        _ => {}
    }
}

/// Removes the owner label from a set of fields.
fn without_owner(fields: &mut Map<String, Value>) {
    let labels = fields
        .get_mut("f:metadata")
        .and_then(|metadata| metadata.get_mut("f:labels"))
        .and_then(Value::as_object_mut);
    if let Some(labels) = labels {
        labels.remove(&format!("f:{OWNER_LABEL}"));
    }
}

/// The body of an apply without fields. With the UID, an object that is gone is not created.
fn without_fields(key: &ObjectId, target: &DeletionTarget) -> Bytes {
    let mut metadata = json!({"name": key.name, "uid": target.uid});
    if !key.namespace.is_empty() {
        metadata["namespace"] = key.namespace.as_str().into();
    }
    let body = json!({"apiVersion": target.api_version, "kind": key.kind, "metadata": metadata});
    body.to_string().into()
}

fn without_label(target: &DeletionTarget) -> Bytes {
    let labels = json!({OWNER_LABEL: Value::Null});
    let body = json!({"metadata": {"uid": target.uid, "labels": labels}});
    body.to_string().into()
}
