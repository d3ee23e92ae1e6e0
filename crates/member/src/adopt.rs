//! Determines whether an object that Starling owns is in step, before a write that may turn out to change nothing.
//! Sends no write.

use serde_json::Value;
use starling_core::apply::{ApplyReason, ApplyStep, Record};
use starling_core::object::RenderedObject;

use super::apply::ApplyJob;
use super::attempt::Attempt;
use super::call::{Call, JSON, Operation};
use super::error::MemberError;
use super::metadata::Partial;
use super::outcome::InStep;
use super::paths;
use super::transport::{ApiResponse, Member};

/// The state of a live object, compared with the render.
pub(super) enum Adoption {
    /// An apply would not change the object.
    InStep(InStep),
    /// An apply would change the object, which is at this `resourceVersion`.
    Differs(String),
    /// The object does not exist.
    Absent,
}

/// Whether a write of an object may change nothing although its reason is a difference. A drift may be that between two
/// stale reads, and an unconfirmed record is that of an attempt whose write may have succeeded.
fn may_be_in_step(step: &ApplyStep<'_>, record: Option<&Record>) -> bool {
    match step.reason {
        ApplyReason::Drifted => true,
        ApplyReason::Changed => record.is_some_and(|record| record.digest.is_empty()),
        ApplyReason::New | ApplyReason::Unknown => false,
    }
}

impl Member {
    /// Compares an object with the member before a write; `None` if the write itself is to show what it changes.
    ///
    /// The first write of an attempt takes a number and leaves it on the member, which is a change even if the write
    /// is none. Later writes cost nothing but themselves, so they are not compared unless nothing is known of what was
    /// sent. A comparison that fails must not prevent a repair: accounts without read access and webhooks that refuse
    /// dry runs exist.
    pub(super) async fn compare(
        &self,
        job: ApplyJob<'_>,
        step: &ApplyStep<'_>,
        record: Option<&Record>,
        path: &str,
        attempt: &Attempt,
    ) -> Result<Option<Adoption>, MemberError> {
        if step.reason == ApplyReason::Unknown {
            return self.adopt(job, step.object, path, attempt).await.map(Some);
        }
        if !self.compares(step, record, attempt) {
            return Ok(None);
        }
        match self.adopt(job, step.object, path, attempt).await {
            Ok(adoption) => Ok(Some(adoption)),
            Err(error) if error.ends_attempt() => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// Whether an object is compared with the member before a write.
    pub(super) fn compares(&self, step: &ApplyStep<'_>, record: Option<&Record>, attempt: &Attempt) -> bool {
        let takes_number = self.numbers().is_some() && attempt.number.get().is_none();
        step.reason == ApplyReason::Unknown || (takes_number && may_be_in_step(step, record))
    }

    /// Compares the live object with the result of a forced apply. The member computes that result in a dry run,
    /// because only the member knows its defaults and its admission.
    pub(super) async fn adopt(
        &self,
        job: ApplyJob<'_>,
        object: &RenderedObject,
        path: &str,
        attempt: &Attempt,
    ) -> Result<Adoption, MemberError> {
        let get = Operation::object("get", &object.key);
        let live = match self.send(Call::get(get, path.to_owned(), JSON), attempt).await {
            Ok(response) => response,
            Err(MemberError::NotFound { .. }) => return Ok(Adoption::Absent),
            Err(error) => return Err(error),
        };
        let metadata = live.parse::<Partial<'_>>(get)?.metadata;
        if metadata.is_left_alone() {
            // The last applied content is not known, so the record has no digest: once the annotation is removed, the
            // object is applied again.
            return Ok(Adoption::InStep(InStep::read(&metadata, "")));
        }
        if let Some(other) = metadata.live().owner.filter(|label| *label != job.owner.as_str()) {
            if job.siblings.has_given_up(other) {
                return Ok(Adoption::Differs(metadata.resource_version));
            }
            return Err(MemberError::OwnedByOther {
                object: object.key.clone(),
                by: format!("the owner {other}"),
            });
        }
        let dry_run_apply = Operation::object("dry-run", &object.key);
        let dry_run_path = path.to_owned() + &paths::apply_query(true, true);
        let dry_run = Call::apply(dry_run_apply, dry_run_path, JSON, object.body.clone());
        let dry_run = self.send(dry_run, attempt).await?;
        let now: Partial<'_> = live.parse(get)?;
        let then: Partial<'_> = dry_run.parse(dry_run_apply)?;
        now.metadata.check(&object.key, get)?;
        let same_fields = now.metadata.fields_digest() == then.metadata.fields_digest();
        if same_fields && content(&live, get)? == content(&dry_run, dry_run_apply)? {
            Ok(Adoption::InStep(InStep::read(&now.metadata, &object.digest)))
        } else {
            Ok(Adoption::Differs(now.metadata.resource_version))
        }
    }
}

/// The object without the fields that change with every write: `managedFields` has timestamps and is compared by its
/// digest.
fn content(response: &ApiResponse, operation: Operation<'_>) -> Result<Value, MemberError> {
    let mut object: Value = response.parse(operation)?;
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
        metadata.remove("resourceVersion");
    }
    Ok(object)
}
