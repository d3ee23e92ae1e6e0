//! Writes an object of which some fields are left to others (ADR 12).
//!
//! It is made whole. Then the ignored fields are given up: taken out of our entry of `metadata.managedFields`, which leaves
//! their values as they are. Without that, the first apply without them would remove what nobody else owns, and an
//! autoscaler that has not acted yet would find its Deployment scaled to one. From then on an apply is one PATCH, without
//! them, as for any other object.

use bytes::Bytes;
use serde_json::{Value, json};
use starling_api::FIELD_MANAGER;
use starling_core::apply::{Record, Step, Why};
use starling_core::fields::FieldSet;
use starling_core::object::{Ignored, RenderedObject};

use super::adopt::Adoption;
use super::apply::Applied;
use super::attempt::Attempt;
use super::call::{Call, What};
use super::error::MemberError;
use super::metadata::Partial;
use super::transport::{Answer, Member};
use super::write::{applied, unchanged};

/// How often fields are given up anew because somebody wrote to the object in between: a workload that starts has its
/// status written a few times a second.
const TRIES: usize = 5;

impl Member {
    /// Makes the member hold one object, whatever its ignored fields say.
    pub(super) async fn write_without(
        &self,
        owner: &str,
        step: &Step<'_>,
        ignored: &Ignored,
        record: Option<&Record>,
        path: &str,
        attempt: &Attempt,
    ) -> Result<Applied, MemberError> {
        let object = step.object;
        let released = record.filter(|record| record.terms.released == ignored.digest);
        if let (Why::Changed, Some(record)) = (step.why, released) {
            let body = with_uid(&object.body, &record.uid);
            match self.patch(object, path, body, step.force, attempt).await {
                // The object is gone, or another one: it is not made without the fields that it needs to begin with.
                Err(MemberError::Conflict { fields, .. }) if fields.is_empty() => {}
                answer => return settled(step, ignored, Some(&record.resource_version), &answer?),
            }
        }
        let Some(live) = self.look(object, path, attempt).await? else {
            return self.make_whole(step, ignored, path, attempt).await;
        };
        let get = What::object("get", &object.key);
        let metadata = live.parse::<Partial<'_>>(get)?.metadata;
        if metadata.is_left_alone() {
            return Ok(unchanged(object, metadata.record("")));
        }
        let live = self.give_up(object, ignored, path, live, attempt).await?;
        let before = live.parse::<Partial<'_>>(get)?.metadata.resource_version;
        if step.why == Why::Unknown {
            match self.adopt(owner, object, path, attempt).await? {
                Adoption::InStep(mut record) => {
                    record.terms.released.clone_from(&ignored.digest);
                    return Ok(unchanged(object, record));
                }
                Adoption::Absent => return self.make_whole(step, ignored, path, attempt).await,
                Adoption::Differs(_) => {}
            }
        }
        let answer = self
            .patch(object, path, object.body.clone(), step.force, attempt)
            .await?;
        settled(step, ignored, Some(&before), &answer)
    }

    /// Makes an object with all of its fields, and gives up the ignored ones.
    pub(super) async fn make_whole(
        &self,
        step: &Step<'_>,
        ignored: &Ignored,
        path: &str,
        attempt: &Attempt,
    ) -> Result<Applied, MemberError> {
        let object = step.object;
        let made = self
            .patch(object, path, ignored.whole.clone(), step.force, attempt)
            .await?;
        let change = applied(step, None, &made)?.change;
        let answer = self.give_up(object, ignored, path, made, attempt).await?;
        let applied = settled(step, ignored, None, &answer)?;
        Ok(Applied { change, ..applied })
    }

    /// Takes the ignored fields out of our entry of `managedFields`, unless they are not in it. `live` is the object as
    /// it was answered last; returned is the one after that.
    async fn give_up(
        &self,
        object: &RenderedObject,
        ignored: &Ignored,
        path: &str,
        live: Answer,
        attempt: &Attempt,
    ) -> Result<Answer, MemberError> {
        let what = What::object("give up fields of", &object.key);
        let query = format!("{path}?fieldManager={FIELD_MANAGER}");
        let (mut live, mut tries) = (live, 1);
        loop {
            let Some(patch) = without_ignored(&live.parse::<Value>(what)?, ignored) else {
                return Ok(live);
            };
            let call = Call::merge(what, query.clone(), patch.to_string().into());
            match self.send(call, attempt).await {
                Err(MemberError::Conflict { .. }) if tries < TRIES => {
                    let Some(newer) = self.look(object, path, attempt).await? else {
                        // Deleted meanwhile: the next attempt makes it anew.
                        return Ok(live);
                    };
                    (live, tries) = (newer, tries + 1);
                }
                answer => return answer,
            }
        }
    }
}

/// The merge patch after which our entry has none of the ignored fields; `None` if it has none already. It names the
/// version that it was made from, because it replaces the entries of all managers.
fn without_ignored(live: &Value, ignored: &Ignored) -> Option<Value> {
    let whole: Value = serde_json::from_slice(&ignored.whole).ok()?;
    let mut entries = live["metadata"]["managedFields"].as_array()?.clone();
    let ours = entries.iter_mut().find(|entry| {
        entry["manager"] == FIELD_MANAGER && entry["operation"] == "Apply" && entry["subresource"].is_null()
    })?;
    let before = FieldSet::new(ours["fieldsV1"].take());
    let after = ignored
        .pointers
        .iter()
        .fold(before.clone(), |fields, pointer| fields.without(pointer, &whole));
    ours["fieldsV1"] = after.to_json();
    let metadata = &live["metadata"];
    let patch = json!({"metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"], "managedFields": entries}});
    (after != before).then_some(patch)
}

/// As [`applied`], with the note that the ignored fields are given up.
fn settled(
    step: &Step<'_>,
    ignored: &Ignored,
    before: Option<&str>,
    answer: &Answer,
) -> Result<Applied, MemberError> {
    let mut applied = applied(step, before, answer)?;
    applied.record.terms.released.clone_from(&ignored.digest);
    Ok(applied)
}

/// The body with the UID that the object is expected to have: without such an object the answer is a conflict.
pub(super) fn with_uid(body: &Bytes, uid: &str) -> Bytes {
    match serde_json::from_slice::<Value>(body) {
        Ok(mut object) if object["metadata"].is_object() => {
            object["metadata"]["uid"] = uid.into();
            object.to_string().into()
        }
        _ => body.clone(),
    }
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
    fn only_our_own_entry_gives_up_and_only_the_ignored_fields() {
        let held = json!({"f:spec": {"f:replicas": {}, "f:paused": {}}});
        let patch = without_ignored(&live(&held), &ignored()).unwrap();
        let expected = live(&json!({"f:spec": {"f:paused": {}}}));
        assert_eq!(patch, expected);
    }

    #[test]
    fn nothing_is_sent_where_nothing_is_held() {
        assert_eq!(
            without_ignored(&live(&json!({"f:spec": {"f:paused": {}}})), &ignored()),
            None
        );
        assert_eq!(
            without_ignored(&json!({"metadata": {"uid": "u"}}), &ignored()),
            None
        );
    }

    #[test]
    fn a_body_names_the_object_that_it_is_for() {
        let body = with_uid(&r#"{"metadata":{"name":"a"}}"#.into(), "u");
        assert_eq!(&body[..], br#"{"metadata":{"name":"a","uid":"u"}}"#);
    }
}
