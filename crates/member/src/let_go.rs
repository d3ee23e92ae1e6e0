//! Gives up an object without deleting it: it was there before Starling, and its deletion would delete others.

use bytes::Bytes;
use serde_json::{Value, json};
use starling_api::OWNER_LABEL;
use starling_core::object::ObjectId;

use super::attempt::Attempt;
use super::call::{Call, METADATA, Operation};
use super::error::MemberError;
use super::paths;
use super::prune::{DeletionTarget, Pruned};
use super::transport::Member;

impl Member {
    /// Gives up the owner label and the fields that Starling applied. What another manager applied as well stays as it
    /// is; a field that only Starling applied is removed, unless the object would then be invalid.
    pub(super) async fn let_go(
        &self,
        key: &ObjectId,
        target: &DeletionTarget,
        attempt: &Attempt,
    ) -> Result<Pruned, MemberError> {
        let operation = Operation::object("let go of", key);
        let path = target.path.clone() + &paths::apply_query(true, false);
        let nothing = without_fields(key, target);
        let given_up = self
            .send(Call::apply(operation, path, METADATA, nothing), attempt)
            .await;
        let given_up = match given_up {
            // Without them the object would be invalid: the fields stay, and the label goes.
            Err(MemberError::Invalid { .. } | MemberError::Immutable { .. }) => {
                let path = target.path.clone() + &paths::apply_query(false, false);
                self.send(Call::merge(operation, path, without_label(target)), attempt)
                    .await
            }
            other => other,
        };
        match given_up {
            Ok(_) | Err(MemberError::NotFound { .. }) => Ok(Pruned::LetGo),
            Err(error) => Err(error),
        }
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
