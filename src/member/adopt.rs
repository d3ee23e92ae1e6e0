//! Finds out whether an object of ours, of which no record is left, is in step. Nothing is written.

use serde_json::Value;
use starling_core::apply::Record;
use starling_core::object::RenderedObject;

use super::attempt::Attempt;
use super::call::{Call, JSON, What};
use super::error::MemberError;
use super::metadata::Partial;
use super::paths;
use super::transport::{Answer, Member};

/// What the member holds of an object.
pub(super) enum Adoption {
    /// What an apply would make of it. The record is that of such an apply.
    InStep(Record),
    /// Something else, at this `resourceVersion`.
    Differs(String),
    /// Nothing.
    Absent,
}

impl Member {
    /// Compares the live object with what an apply by force would leave, as the member itself works it out in a dry run:
    /// only that knows its defaults and its admission.
    pub(super) async fn adopt(
        &self,
        owner: &str,
        object: &RenderedObject,
        path: &str,
        attempt: &Attempt,
    ) -> Result<Adoption, MemberError> {
        let get = What::object("get", &object.key);
        let live = match self.send(Call::get(get, path.to_owned(), JSON), attempt).await {
            Ok(answer) => answer,
            Err(MemberError::NotFound { .. }) => return Ok(Adoption::Absent),
            Err(error) => return Err(error),
        };
        let metadata = live.parse::<Partial<'_>>(get)?.metadata;
        if metadata.is_left_alone() {
            // What was sent last is not known: once the annotation is gone, it is sent again.
            return Ok(Adoption::InStep(metadata.record("")));
        }
        if let Some(other) = metadata.live().owner.filter(|label| *label != owner) {
            return Err(MemberError::OwnedByOther {
                object: object.key.clone(),
                by: format!("the owner {other}"),
            });
        }
        let try_apply = What::object("try", &object.key);
        let trial_path = path.to_owned() + &paths::apply_query(true, true);
        let trial = Call::apply(try_apply, trial_path, JSON, object.body.clone());
        let trial = self.send(trial, attempt).await?;
        let now: Partial<'_> = live.parse(get)?;
        let then: Partial<'_> = trial.parse(try_apply)?;
        let same_fields = now.metadata.fields_digest() == then.metadata.fields_digest();
        if same_fields && content(&live, get)? == content(&trial, try_apply)? {
            Ok(Adoption::InStep(now.metadata.record(&object.digest)))
        } else {
            Ok(Adoption::Differs(now.metadata.resource_version))
        }
    }
}

/// The object without what changes with every write: `managedFields` has timestamps and is compared by its digest.
fn content(answer: &Answer, what: What<'_>) -> Result<Value, MemberError> {
    let mut object: Value = answer.parse(what)?;
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
        metadata.remove("resourceVersion");
    }
    Ok(object)
}
