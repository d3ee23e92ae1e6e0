//! Applies an object with ignored fields, which other managers set (ADR 12).
//!
//! The object is created with all its fields. Then Starling releases the ignored fields: it removes them from its entry
//! of `metadata.managedFields`, which leaves their values unchanged. Otherwise, the first apply without them would
//! remove fields that no other manager owns, and a Deployment whose autoscaler has not acted yet would be scaled to one
//! replica. From then on, an apply is one PATCH without these fields, as for any other object.

use serde_json::{Value, json};
use starling_api::FIELD_MANAGER;
use starling_core::apply::{ApplyReason, ApplyStep, Record};
use starling_core::fields::FieldSet;
use starling_core::object::{Ignored, RenderedObject};

use super::adopt::Adoption;
use super::apply::ApplyJob;
use super::attempt::Attempt;
use super::body::with_uid;
use super::call::{Call, Operation};
use super::error::MemberError;
use super::metadata::Partial;
use super::outcome::{Applied, InStep, applied, unchanged};
use super::transport::{ApiResponse, Member};

/// How often the release of fields is retried after a concurrent write to the object: the status of a starting workload
/// is written a few times a second.
const TRIES: usize = 5;

impl Member {
    /// Applies one object without its ignored fields.
    pub(super) async fn write_ignoring(
        &self,
        job: ApplyJob<'_>,
        step: &ApplyStep<'_>,
        ignored: &Ignored,
        record: Option<&Record>,
        path: &str,
        attempt: &Attempt,
    ) -> Result<Applied, MemberError> {
        let object = step.object;
        let released = record.filter(|record| record.management.released == ignored.digest);
        let released = released.filter(|_| !self.compares(step, record, attempt));
        if let (ApplyReason::Changed, Some(record)) = (step.reason, released) {
            let body = with_uid(&object.body, &record.uid);
            match self.patch(object, path, body, step.force, attempt).await {
                // The object is gone or was replaced. It must be created with all its fields.
                Err(MemberError::Conflict { fields, .. }) if fields.is_empty() => {}
                response => {
                    return applied_and_released(step, ignored, Some(&record.resource_version), &response?);
                }
            }
        }
        let Some(live) = self.get_metadata(object, path, attempt).await? else {
            return self.create_complete(step, ignored, path, attempt).await;
        };
        let get = Operation::object("get", &object.key);
        let metadata = live.parse::<Partial<'_>>(get)?.metadata;
        if metadata.is_left_alone() {
            return Ok(unchanged(step, InStep::read(&metadata, "")));
        }
        let live = self.release_fields(object, ignored, path, live, attempt).await?;
        let before = live.parse::<Partial<'_>>(get)?.metadata.resource_version;
        match self.compare(job, step, record, path, attempt).await? {
            Some(Adoption::InStep(mut found)) => {
                found.record.management.released.clone_from(&ignored.digest);
                return Ok(unchanged(step, found));
            }
            Some(Adoption::Absent) => return self.create_complete(step, ignored, path, attempt).await,
            Some(Adoption::Differs(_)) | None => {}
        }
        let response = self
            .patch(object, path, object.body.clone(), step.force, attempt)
            .await?;
        applied_and_released(step, ignored, Some(&before), &response)
    }

    /// Creates an object with all its fields, and releases the ignored ones.
    pub(super) async fn create_complete(
        &self,
        step: &ApplyStep<'_>,
        ignored: &Ignored,
        path: &str,
        attempt: &Attempt,
    ) -> Result<Applied, MemberError> {
        let object = step.object;
        let created = self
            .patch(object, path, ignored.whole.clone(), step.force, attempt)
            .await?;
        let Applied { change, origin, .. } = applied(step, None, &created)?;
        let response = self
            .release_fields(object, ignored, path, created, attempt)
            .await?;
        let applied = applied_and_released(step, ignored, None, &response)?;
        Ok(Applied {
            change,
            origin,
            ..applied
        })
    }

    /// Removes the ignored fields from Starling's entry of `managedFields`, if the entry has them. `live` is the last
    /// response with the object. Returns the response after the removal.
    async fn release_fields(
        &self,
        object: &RenderedObject,
        ignored: &Ignored,
        path: &str,
        live: ApiResponse,
        attempt: &Attempt,
    ) -> Result<ApiResponse, MemberError> {
        let operation = Operation::object("release fields of", &object.key);
        let query = format!("{path}?fieldManager={FIELD_MANAGER}");
        let (mut live, mut tries) = (live, 1);
        loop {
            let Some(patch) = release_patch(&live.parse::<Value>(operation)?, ignored) else {
                return Ok(live);
            };
            let call = Call::merge(operation, query.clone(), patch.to_string().into());
            match self.send(call, attempt).await {
                Err(MemberError::Conflict { .. }) if tries < TRIES => {
                    let Some(newer) = self.get_metadata(object, path, attempt).await? else {
                        // Deleted meanwhile: the next attempt creates it again.
                        return Ok(live);
                    };
                    (live, tries) = (newer, tries + 1);
                }
                response => return response,
            }
        }
    }
}

/// The merge patch that removes the ignored fields from Starling's entry; `None` if the entry has none of them. The
/// patch contains the version of the object, because it replaces the entries of all managers.
fn release_patch(live: &Value, ignored: &Ignored) -> Option<Value> {
    let whole: Value = serde_json::from_slice(&ignored.whole).ok()?;
    let mut entries = live["metadata"]["managedFields"].as_array()?.clone();
    let own_entry = entries.iter_mut().find(|entry| {
        entry["manager"] == FIELD_MANAGER && entry["operation"] == "Apply" && entry["subresource"].is_null()
    })?;
    let before = FieldSet::new(own_entry["fieldsV1"].take());
    let after = ignored
        .pointers
        .iter()
        .fold(before.clone(), |fields, pointer| fields.without(pointer, &whole));
    own_entry["fieldsV1"] = after.to_json();
    let metadata = &live["metadata"];
    let patch = json!({"metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"], "managedFields": entries}});
    (after != before).then_some(patch)
}

/// As [`applied`], and records that the ignored fields are released.
fn applied_and_released(
    step: &ApplyStep<'_>,
    ignored: &Ignored,
    before: Option<&str>,
    response: &ApiResponse,
) -> Result<Applied, MemberError> {
    let mut applied = applied(step, before, response)?;
    applied.record.management.released.clone_from(&ignored.digest);
    Ok(applied)
}

#[cfg(test)]
mod tests {
    use starling_core::fields::Pointer;

    use super::*;

    fn ignored() -> Ignored {
        Ignored {
            pointers: vec!["/spec/replicas".parse::<Pointer>().unwrap()],
            digest: "d".into(),
            whole: r#"{"spec":{"replicas":3,"paused":true}}"#.into(),
        }
    }

    fn live(fields: &Value) -> Value {
        json!({"metadata": {"uid": "u", "resourceVersion": "7", "managedFields": [
            {"manager": "kubectl", "operation": "Apply", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
            {"manager": "starling", "operation": "Update", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
            {"manager": "starling", "operation": "Apply", "fieldsV1": fields},
        ]}})
    }

    #[test]
    fn only_the_own_entry_releases_and_only_the_ignored_fields() {
        let applied = json!({"f:spec": {"f:replicas": {}, "f:paused": {}}});
        let patch = release_patch(&live(&applied), &ignored()).unwrap();
        let expected = live(&json!({"f:spec": {"f:paused": {}}}));
        assert_eq!(patch, expected);
    }

    #[test]
    fn no_patch_without_owned_fields() {
        assert_eq!(
            release_patch(&live(&json!({"f:spec": {"f:paused": {}}})), &ignored()),
            None
        );
        assert_eq!(
            release_patch(&json!({"metadata": {"uid": "u"}}), &ignored()),
            None
        );
    }
}
