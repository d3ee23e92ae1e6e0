//! The event for approvals of deletions that are not held.

use kube::{Resource, ResourceExt};

use super::events::Events;
use super::keyed::Keyed;
use super::object_key::ObjectKey;

/// Records an event for approvals of a Sync or a group that approve nothing, once for each text. `reported`: the texts
/// of earlier events.
pub(super) async fn report<K>(events: &Events, of: &K, reported: &Keyed<String>, unmatched: String)
where
    K: Resource<DynamicType = ()> + ResourceExt,
{
    let key = ObjectKey::of(of);
    if reported.get(&key).unwrap_or_default() == unmatched {
        return;
    }
    reported.set(&key, unmatched.clone());
    if !unmatched.is_empty() {
        let note = format!("{unmatched}, and no deletions with this digest are held");
        events.normal(of, "NothingToApprove", note).await;
    }
}
