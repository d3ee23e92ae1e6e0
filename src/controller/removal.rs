//! The mark of a removal that the plan of a group decided.
//!
//! A Sync of a group may be deleted by its group, by a person, or by the garbage collector (`kubectl delete syncgroup
//! --cascade=foreground`). Only the first follows the stages, windows, budgets, graces and approvals of the group. So
//! the group marks each removal that its plan decided, and a Sync that is being deleted without the mark leaves its
//! objects as they are until the plan decides.

use jiff::Timestamp;
use kube::ResourceExt as _;
use starling_api::{REMOVAL, SyncResource};

/// Returns when a Sync of a group was deleted, if the plan of the group decided its removal.
///
/// The mark has the time of the deletion. One that was left behind by a removal that did not happen, or was copied from
/// another Sync, says nothing.
#[must_use]
pub fn removed_at(sync: &SyncResource) -> Option<Timestamp> {
    let at = deleted_at(sync)?;
    let mark = sync.annotations().get(REMOVAL)?;
    (*mark == at.to_string()).then_some(at)
}

/// Reports whether the plan of a group decided the removal of a Sync.
#[must_use]
pub fn is_decided(sync: &SyncResource) -> bool {
    removed_at(sync).is_some()
}

/// Returns the mark for a Sync that is being deleted; `None`: it is not, or has it.
#[must_use]
pub fn mark(sync: &SyncResource) -> Option<String> {
    let at = deleted_at(sync)?;
    (!is_decided(sync)).then(|| at.to_string())
}

fn deleted_at(sync: &SyncResource) -> Option<Timestamp> {
    sync.metadata.deletion_timestamp.as_ref().map(|time| time.0)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn sync(deleted_at: Option<&str>, mark: Option<&str>) -> SyncResource {
        let annotations: Value = mark.map_or(json!({}), |mark| json!({REMOVAL: mark}));
        let metadata = json!({"name": "a", "namespace": "fleet", "uid": "u", "deletionTimestamp": deleted_at,
            "annotations": annotations});
        let spec = json!({"clusterRef": {"name": "edge"}, "sourceRef": {"name": "web"}});
        let object = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "Sync", "metadata": metadata, "spec": spec});
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_mark_counts_for_the_deletion_that_it_names() {
        let (at, other) = ("2026-11-02T00:00:00Z", "2026-11-02T00:00:01Z");
        for (deleted_at, of, decided, next) in [
            (None, None, false, None),
            (None, Some(at), false, None),
            (Some(at), None, false, Some(at)),
            (Some(at), Some(at), true, None),
            (Some(at), Some(other), false, Some(at)),
            (Some(at), Some("true"), false, Some(at)),
        ] {
            let sync = sync(deleted_at, of);
            assert_eq!(is_decided(&sync), decided, "{deleted_at:?} {of:?}");
            assert_eq!(mark(&sync).as_deref(), next, "{deleted_at:?} {of:?}");
        }
    }
}
