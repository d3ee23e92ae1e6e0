//! Reads the metadata of responses: only the used fields, and `fieldsV1` without parsing it.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use starling_api::{CONFIRM, DELETION, DISABLED, FIELD_MANAGER, OWNER_LABEL, PRUNE, RECONCILE};
use starling_core::apply::{Live, ManagementState, Record};
use starling_core::fields::FieldSet;
use starling_core::ids::Uid;
use starling_core::object::ObjectId;

use super::call::Operation;
use super::error::MemberError;

/// A field manager of an object on the member, with its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manager {
    /// Its name, such as `kubectl-edit`.
    pub name: String,
    /// Its fields.
    pub fields: FieldSet,
}

/// One object as `PartialObjectMetadata`; other fields of the response are skipped.
#[derive(Debug, Deserialize)]
pub(super) struct Partial<'a> {
    #[serde(borrow)]
    pub(super) metadata: Metadata<'a>,
}

/// A page of a `PartialObjectMetadataList`.
#[derive(Debug, Deserialize)]
pub(super) struct PartialList<'a> {
    #[serde(default)]
    pub(super) metadata: ListMetadata,
    /// `null` if an API server has nothing to list; without the field, the response is not a list.
    #[serde(borrow, deserialize_with = "Option::deserialize")]
    items: Option<Vec<Partial<'a>>>,
}

impl<'a> PartialList<'a> {
    /// The objects of the page.
    pub(super) fn items(&self) -> &[Partial<'a>] {
        self.items.as_deref().unwrap_or_default()
    }
}

/// `metadata` of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ListMetadata {
    /// The continue token of the next page; empty on the last page.
    #[serde(rename = "continue")]
    pub(super) next: String,
}

/// The parts of `metadata` that are used.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metadata<'a> {
    #[serde(default)]
    pub(super) name: String,
    #[serde(default)]
    pub(super) namespace: String,
    pub(super) uid: Uid,
    pub(super) resource_version: String,
    /// Set while the object waits for its finalizers.
    #[serde(default)]
    deletion_timestamp: Option<String>,
    #[serde(default)]
    creation_timestamp: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) finalizers: Vec<String>,
    #[serde(borrow, default)]
    managed_fields: Vec<ManagedFields<'a>>,
}

/// One manager's entry of `managedFields`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ManagedFields<'a> {
    #[serde(default)]
    manager: String,
    #[serde(default)]
    operation: String,
    #[serde(default)]
    subresource: String,
    #[serde(default)]
    time: String,
    #[serde(borrow, default)]
    fields_v1: Option<&'a RawValue>,
}

impl ManagedFields<'_> {
    fn is_ours(&self) -> bool {
        self.manager == FIELD_MANAGER && self.operation == "Apply" && self.subresource.is_empty()
    }
}

fn fields_of(fields: &RawValue) -> FieldSet {
    FieldSet::new(serde_json::from_str(fields.get()).unwrap_or_default())
}

impl Metadata<'_> {
    /// Starling's entry of server-side apply. A manager has only one, whatever version was applied.
    fn own_entry(&self) -> Option<&ManagedFields<'_>> {
        self.managed_fields.iter().find(|entry| entry.is_ours())
    }

    /// The fields that Starling applied, as the API server wrote them; `None` without an entry of Starling.
    fn applied_fields(&self) -> Option<&RawValue> {
        self.own_entry().and_then(|entry| entry.fields_v1)
    }

    /// Whether Starling has applied the object, and nobody is deleting it.
    pub(super) fn is_applied(&self) -> bool {
        self.own_entry().is_some() && self.deletion_timestamp.is_none()
    }

    /// `sha256:` and 64 hex digits over the fields that Starling applied; empty without an entry of Starling.
    ///
    /// A manager that changes or removes an applied value takes its field from the entry of Starling, so a changed
    /// digest means drift. [`Self::fields_time`] is not part of the digest.
    pub(super) fn fields_digest(&self) -> String {
        self.applied_fields()
            .map(|fields| format!("sha256:{}", hex::encode(Sha256::digest(fields.get().as_bytes()))))
            .unwrap_or_default()
    }

    /// The time of the entry of Starling; empty without one. It has seconds.
    ///
    /// The time changes with each apply under the name of Starling that changes the object, and with nothing else. So
    /// another time means that values went back although the fields are the same: the member was restored from a
    /// backup, or somebody else applies under this name.
    pub(super) fn fields_time(&self) -> &str {
        let time = self.own_entry().map_or("", |entry| entry.time.as_str());
        if is_plain(time) { time } else { "" }
    }

    /// Returns the record after the object with this digest was applied.
    pub(super) fn record(&self, digest: &str) -> Record {
        Record {
            digest: digest.to_owned(),
            resource_version: self.resource_version.clone(),
            fields_digest: self.fields_digest(),
            fields_time: self.fields_time().to_owned(),
            uid: self.uid.clone(),
            management: ManagementState {
                left_alone: self.is_left_alone(),
                ..ManagementState::default()
            },
        }
    }

    /// Whether the annotation that disables reconciliation is set.
    pub(super) fn is_left_alone(&self) -> bool {
        self.is_disabled(RECONCILE)
    }

    fn is_disabled(&self, annotation: &str) -> bool {
        self.annotations
            .get(annotation)
            .is_some_and(|value| value == DISABLED)
    }

    /// Whether the object is deleted only after an approval.
    pub(super) fn asks_to_confirm(&self) -> bool {
        let value = self.annotations.get(DELETION);
        value.is_some_and(|value| value == CONFIRM)
    }

    /// The fields that Starling applied; empty without an entry of Starling.
    pub(super) fn our_fields(&self) -> FieldSet {
        self.applied_fields().map(fields_of).unwrap_or_default()
    }

    /// The other field managers and their fields.
    pub(super) fn managers(&self) -> Vec<Manager> {
        let others = self.managed_fields.iter().filter(|entry| !entry.is_ours());
        others
            .map(|entry| Manager {
                name: entry.manager.clone(),
                fields: entry.fields_v1.map(fields_of).unwrap_or_default(),
            })
            .collect()
    }

    /// Checks that this is the metadata of the requested object and identifies it. A response about another object, or
    /// without an identity, must not become a record of this one.
    pub(super) fn check(&self, key: &ObjectId, operation: Operation<'_>) -> Result<(), MemberError> {
        let problem = if self.uid.is_empty() || self.resource_version.is_empty() {
            "an object without UID or resourceVersion"
        } else if self.name != key.name || self.namespace != key.namespace {
            "not the requested object"
        } else if !is_plain(&self.uid) || !is_plain(&self.resource_version) {
            "a UID or resourceVersion that is not plain ASCII"
        } else {
            return Ok(());
        };
        Err(MemberError::Garbage {
            request: operation.to_string(),
            problem: problem.into(),
        })
    }

    /// The state that decides whether the object may be pruned.
    pub(super) fn live(&self) -> Live<'_> {
        let owner = self.labels.get(OWNER_LABEL).map(String::as_str);
        Live {
            uid: &self.uid,
            owner,
            owner_is_applied: owner.is_some() && self.applied_the_owner(),
            prune_disabled: self.is_disabled(PRUNE) || self.is_left_alone(),
        }
    }

    /// Whether an apply of Starling created the object, as far as its managers show: the entry of Starling has the time
    /// of the creation, and no other one has.
    pub(super) fn is_created_by_us(&self) -> bool {
        let then = |entry: &&ManagedFields<'_>| {
            entry.subresource.is_empty() && (entry.time.is_empty() || entry.time == self.creation_timestamp)
        };
        let mut creators = self.managed_fields.iter().filter(then);
        let is_ours = creators
            .next()
            .is_some_and(|entry| entry.is_ours() && !entry.time.is_empty());
        is_ours && creators.next().is_none()
    }

    /// Whether the object is being deleted, and waits for its finalizers.
    pub(super) fn is_terminating(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    fn applied_the_owner(&self) -> bool {
        #[derive(Deserialize)]
        struct Fields {
            #[serde(rename = "f:metadata", default)]
            metadata: Labels,
        }
        #[derive(Default, Deserialize)]
        struct Labels {
            #[serde(rename = "f:labels", default)]
            labels: BTreeMap<String, serde::de::IgnoredAny>,
        }
        let fields = self
            .applied_fields()
            .and_then(|fields| serde_json::from_str::<Fields>(fields.get()).ok());
        fields.is_some_and(|fields| fields.metadata.labels.contains_key(&format!("f:{OWNER_LABEL}")))
    }
}

/// Whether a text is valid as an identifier, which is stored in the ledger and sent in requests.
fn is_plain(text: &str) -> bool {
    text.len() <= 128 && text.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn object(managed_fields: &Value) -> String {
        json!({"metadata": {"name": "a", "uid": "u", "resourceVersion": "5", "labels": {OWNER_LABEL: "me"},
            "managedFields": managed_fields}})
        .to_string()
    }

    fn entries_with(fields: &Value) -> Value {
        json!([
            {"manager": "kubectl", "operation": "Apply", "fieldsV1": {"f:x": {}}},
            {"manager": "starling", "operation": "Update", "fieldsV1": {"f:y": {}}},
            {"manager": "starling", "operation": "Apply", "subresource": "status", "fieldsV1": {"f:z": {}}},
            {"manager": "starling", "operation": "Apply", "time": "2026-01-01T00:00:00Z", "fieldsV1": fields},
        ])
    }

    #[test]
    fn the_digest_is_of_our_apply_entry() {
        let digest = |text: &str| {
            serde_json::from_str::<Partial<'_>>(text)
                .unwrap()
                .metadata
                .fields_digest()
        };
        let one = digest(&object(&entries_with(&json!({"f:data": {"f:a": {}}}))));
        let two = digest(&object(&entries_with(&json!({"f:data": {}}))));
        let expected = format!(
            "sha256:{}",
            hex::encode(Sha256::digest(br#"{"f:data":{"f:a":{}}}"#))
        );
        assert_eq!(one, expected);
        assert_ne!(one, two);
        assert_eq!(digest(&object(&json!([]))), "");
        assert_eq!(digest(r#"{"metadata":{"uid":"u","resourceVersion":"5"}}"#), "");
    }

    #[test]
    fn the_annotations_that_protect_an_object_are_read() {
        for (annotation, value, protects) in [
            (PRUNE, "disabled", true),
            (PRUNE, "enabled", false),
            (PRUNE, "Disabled", false),
            (RECONCILE, "disabled", true),
            (RECONCILE, "enabled", false),
        ] {
            let text = json!({"metadata": {"uid": "u", "resourceVersion": "5", "annotations": {
                annotation: value, "large": "x"}}})
            .to_string();
            let partial: Partial<'_> = serde_json::from_str(&text).unwrap();
            assert_eq!(
                partial.metadata.live().prune_disabled,
                protects,
                "{annotation}: {value}"
            );
        }
    }

    #[test]
    fn the_annotation_that_asks_for_an_approval_is_read() {
        for (value, asks) in [("Confirm", true), ("confirm", false), ("", false)] {
            let text =
                json!({"metadata": {"uid": "u", "resourceVersion": "5", "annotations": {DELETION: value}}});
            let text = text.to_string();
            let partial: Partial<'_> = serde_json::from_str(&text).unwrap();
            assert_eq!(partial.metadata.asks_to_confirm(), asks, "{value}");
        }
    }

    #[test]
    fn an_owner_counts_as_applied_only_in_our_entry() {
        let live = |text: &str| {
            let partial: Partial<'_> = serde_json::from_str(text).unwrap();
            (
                partial.metadata.live().owner == Some("me"),
                partial.metadata.live().owner_is_applied,
            )
        };
        let label = json!({"f:metadata": {"f:labels": {".": {}, "f:starling.dev/owner": {}}}});
        assert_eq!(live(&object(&entries_with(&label))), (true, true));
        assert_eq!(
            live(&object(&entries_with(&json!({"f:data": {}})))),
            (true, false)
        );
        let copied = json!([{"manager": "other", "operation": "Apply", "fieldsV1": label}]);
        assert_eq!(live(&object(&copied)), (true, false));
    }
}
