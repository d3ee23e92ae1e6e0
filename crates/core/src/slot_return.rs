//! Whether a Sync gives the slot of its admission back, because its cluster was lost before anything was written.
//!
//! Two loops are involved. The Sync loop, which alone writes to the member, names the admission in
//! `status.returnedAdmission` and begins no attempt for it from then on. The group loop then counts the entry as not
//! admitted: the slot is free, and the cluster waits for one like the others when it is back. In this order, no write
//! is sent for an admission whose slot is free.
//!
//! An admission is named by its time: the next one has another time, also of the same target.

use starling_api::{ADMITTED_AT, SyncResource, SyncStatus};

use crate::plan::Reach;

/// Returns the admission of a Sync, as `status.returnedAdmission` names it; `None`: the Sync is of no group, was never
/// admitted, or lost the annotation.
#[must_use]
pub fn admission(sync: &SyncResource) -> Option<&str> {
    let of_group = sync.spec.group_ref.is_some() && !sync.spec.revision.is_empty();
    let annotations = sync.metadata.annotations.as_ref()?;
    annotations
        .get(ADMITTED_AT)
        .filter(|_| of_group)
        .map(String::as_str)
}

/// Reports whether the status of a Sync gives the slot of its current admission back.
#[must_use]
pub fn has_returned(sync: &SyncResource, status: &SyncStatus) -> bool {
    let returned = status.returned_admission.as_str();
    !returned.is_empty() && admission(sync) == Some(returned)
}

/// Reports whether a Sync may give its slot back if nothing was written for its admission: its cluster is unreachable.
/// A failed attempt keeps counting as a failure.
#[must_use]
pub fn may_return(status: &SyncStatus, target: &str, reach: &Reach) -> bool {
    let has_failed = status.last_attempted_target == target && status.attempts > 0;
    matches!(reach, Reach::Unreachable { .. }) && !has_failed && status.last_applied_target != target
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;

    fn sync(group: Option<&str>, annotations: &Value, returned: &str) -> (SyncResource, SyncStatus) {
        let group = group.map(|name| json!({"name": name, "entry": "app"}));
        let sync = serde_json::from_value(json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "Sync",
            "metadata": {"name": "s", "annotations": annotations},
            "spec": {"groupRef": group, "clusterRef": {"name": "c"}, "sourceRef": {"name": "s"},
                "revision": "main@sha1:a"},
        }));
        let status = SyncStatus {
            returned_admission: returned.into(),
            ..SyncStatus::default()
        };
        (sync.unwrap(), status)
    }

    #[test]
    fn only_the_current_admission_of_a_group_is_returned() {
        let at = json!({"starling.dev/admitted-at": "2026-01-01T00:00:01Z"});
        for (group, annotations, returned, expected) in [
            (Some("g"), &at, "2026-01-01T00:00:01Z", true),
            // It was admitted again.
            (Some("g"), &at, "2026-01-01T00:00:00Z", false),
            (Some("g"), &at, "", false),
            (Some("g"), &json!({}), "", false),
            (None, &at, "2026-01-01T00:00:01Z", false),
        ] {
            let (sync, status) = sync(group, annotations, returned);
            assert_eq!(has_returned(&sync, &status), expected, "{sync:?} {returned}");
        }
    }

    #[test]
    fn a_slot_is_returned_by_unreachable_clusters_without_a_failure() {
        let unreachable = Reach::Unreachable {
            reason: "Unreachable".into(),
            message: String::new(),
            since: Timestamp::UNIX_EPOCH,
        };
        let status = |attempted: &str, attempts, applied: &str| SyncStatus {
            last_attempted_target: attempted.into(),
            attempts,
            last_applied_target: applied.into(),
            ..SyncStatus::default()
        };
        for (status, reach, expected) in [
            (status("", 0, ""), &unreachable, true),
            (status("older", 3, "older"), &unreachable, true),
            // An attempt that ended without a response is no failure.
            (status("t", 0, ""), &unreachable, true),
            // A failed build. It must not vanish from the failures because the cluster is lost.
            (status("t", 1, ""), &unreachable, false),
            (status("t", 0, "t"), &unreachable, false),
            (status("", 0, ""), &Reach::Ready, false),
            // A process that has just started.
            (status("", 0, ""), &Reach::Unprobed, false),
            (status("", 0, ""), &Reach::Suspended, false),
        ] {
            assert_eq!(may_return(&status, "t", reach), expected, "{status:?} {reach:?}");
        }
    }
}
