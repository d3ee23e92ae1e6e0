//! Determines whether an object that Starling owns, but has no record of, is in step. Sends no write.

use serde_json::Value;
use starling_core::apply::Record;
use starling_core::object::RenderedObject;

use super::attempt::Attempt;
use super::call::{Call, JSON, Operation};
use super::error::MemberError;
use super::metadata::Partial;
use super::paths;
use super::transport::{ApiResponse, Member};

/// The state of a live object, compared with the render.
pub(super) enum Adoption {
    /// An apply would not change the object. The record is the one that such an apply would return.
    InStep(Record),
    /// An apply would change the object, which is at this `resourceVersion`.
    Differs(String),
    /// The object does not exist.
    Absent,
}

impl Member {
    /// Compares the live object with the result of a forced apply. The member computes that result in a dry run,
    /// because only the member knows its defaults and its admission.
    pub(super) async fn adopt(
        &self,
        owner: &str,
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
            return Ok(Adoption::InStep(metadata.record("")));
        }
        if let Some(other) = metadata.live().owner.filter(|label| *label != owner) {
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
            Ok(Adoption::InStep(now.metadata.record(&object.digest)))
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
