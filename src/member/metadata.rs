//! Reads the metadata of answers: only what is used, and `fieldsV1` without parsing it.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use starling_api::{DISABLED, FIELD_MANAGER, OWNER_LABEL, PRUNE, RECONCILE};
use starling_core::apply::{Live, Record, Terms};
use starling_core::fields::FieldSet;

use super::drift::Manager;

/// One object as `PartialObjectMetadata`; whatever else an answer holds is skipped.
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
    /// `null` where an API server has nothing to list.
    #[serde(borrow)]
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
    /// Where the next page begins; empty on the last.
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
    pub(super) uid: String,
    pub(super) resource_version: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) deletion_timestamp: Option<String>,
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
    /// The fields that Starling applied, as the API server wrote them; `None` without an entry of ours. Of the
    /// entries of one manager only one is of server-side apply, whatever version it was applied in.
    fn applied_fields(&self) -> Option<&RawValue> {
        self.managed_fields
            .iter()
            .find(|entry| entry.is_ours())
            .and_then(|entry| entry.fields_v1)
    }

    /// `sha256:` and 64 hex digits over our fields; empty without an entry of ours.
    ///
    /// Whoever changes or removes a value that we applied takes it out of our entry, so the digest tells drift.
    /// The timestamp of the entry is not part of it.
    pub(super) fn fields_digest(&self) -> String {
        self.applied_fields()
            .map(|fields| format!("sha256:{}", hex::encode(Sha256::digest(fields.get().as_bytes()))))
            .unwrap_or_default()
    }

    /// What to remember after the object with this digest was applied.
    pub(super) fn record(&self, digest: &str) -> Record {
        Record {
            digest: digest.to_owned(),
            resource_version: self.resource_version.clone(),
            fields_digest: self.fields_digest(),
            uid: self.uid.clone(),
            terms: Terms {
                left_alone: self.is_left_alone(),
                ..Terms::default()
            },
        }
    }

    /// Whether somebody asks to leave the object as it is.
    pub(super) fn is_left_alone(&self) -> bool {
        self.is_disabled(RECONCILE)
    }

    /// Whether somebody asks to keep the object from being deleted.
    pub(super) fn is_kept_from_deletion(&self) -> bool {
        self.is_disabled(PRUNE)
    }

    fn is_disabled(&self, annotation: &str) -> bool {
        self.annotations
            .get(annotation)
            .is_some_and(|value| value == DISABLED)
    }

    /// The fields that we applied; empty without an entry of ours.
    pub(super) fn our_fields(&self) -> FieldSet {
        self.applied_fields().map(fields_of).unwrap_or_default()
    }

    /// Who holds which fields, our own entry apart.
    pub(super) fn managers(&self) -> Vec<Manager> {
        let others = self.managed_fields.iter().filter(|entry| !entry.is_ours());
        others
            .map(|entry| Manager {
                name: entry.manager.clone(),
                fields: entry.fields_v1.map(fields_of).unwrap_or_default(),
            })
            .collect()
    }

    /// What decides whether the object may be pruned.
    pub(super) fn live(&self) -> Live<'_> {
        let owner = self.labels.get(OWNER_LABEL).map(String::as_str);
        Live {
            uid: &self.uid,
            owner,
            owner_is_applied: owner.is_some() && self.applied_the_owner(),
        }
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn object(managed_fields: &Value) -> String {
        json!({"metadata": {"name": "a", "uid": "u", "resourceVersion": "5", "labels": {OWNER_LABEL: "me"},
            "managedFields": managed_fields}})
        .to_string()
    }

    fn ours(fields: &Value) -> Value {
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
        let one = digest(&object(&ours(&json!({"f:data": {"f:a": {}}}))));
        let two = digest(&object(&ours(&json!({"f:data": {}}))));
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
    fn an_owner_counts_as_applied_only_in_our_entry() {
        let live = |text: &str| {
            let partial: Partial<'_> = serde_json::from_str(text).unwrap();
            (
                partial.metadata.live().owner == Some("me"),
                partial.metadata.live().owner_is_applied,
            )
        };
        let label = json!({"f:metadata": {"f:labels": {".": {}, "f:starling.dev/owner": {}}}});
        assert_eq!(live(&object(&ours(&label))), (true, true));
        assert_eq!(live(&object(&ours(&json!({"f:data": {}})))), (true, false));
        let copied = json!([{"manager": "other", "operation": "Apply", "fieldsV1": label}]);
        assert_eq!(live(&object(&copied)), (true, false));
    }
}
