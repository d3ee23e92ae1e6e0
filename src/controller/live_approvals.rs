//! Whether approvals are still there when they are used up: a person may have taken one back, and the watch may deliver
//! nothing.

use kube::ResourceExt;
use starling_api::{DeletionApproval, SyncGroup, SyncResource, UsedApproval};
use starling_core::deletion_approval::Approval;

use super::hub::{Hub, HubError};
use super::object_key::ObjectKey;

/// What approvals are for.
pub(super) struct Subject {
    /// The group.
    pub(super) group: Option<ObjectKey>,
    /// The Sync; `None` for what is the business of the group.
    pub(super) sync: Option<ObjectKey>,
}

/// Reports whether one of the approvals is there that `after` records as used and `before` does not. Without such a
/// one, an earlier pass recorded it and goes on.
///
/// # Errors
/// [`HubError`]: nothing is known, so nothing may be deleted.
pub(super) async fn are_there(
    hub: &Hub,
    of: &Subject,
    before: &[UsedApproval],
    after: &[UsedApproval],
) -> Result<bool, HubError> {
    let is_known = |used: &UsedApproval| {
        before
            .iter()
            .any(|known| (&known.name, &known.uid, &known.digest) == (&used.name, &used.uid, &used.digest))
    };
    let mut is_none_new = true;
    for approval in after.iter().filter(|used| !is_known(used)) {
        is_none_new = false;
        if is_there(hub, of, approval).await? {
            return Ok(true);
        }
    }
    Ok(is_none_new)
}

async fn is_there(hub: &Hub, of: &Subject, approval: &UsedApproval) -> Result<bool, HubError> {
    let subject = of.sync.as_ref().or(of.group.as_ref());
    match (approval.kind.as_str(), &of.group, &of.sync) {
        ("SyncGroup", Some(group), _) => {
            let group = hub.find::<SyncGroup>(group).await?;
            Ok(group.is_some_and(|group| annotates(&group, approval, true)))
        }
        ("Sync", _, Some(sync)) => {
            let sync = hub.find::<SyncResource>(sync).await?;
            Ok(sync.is_some_and(|sync| annotates(&sync, approval, false)))
        }
        _ => {
            let Some(subject) = subject else { return Ok(false) };
            let key = ObjectKey::new(&subject.namespace, &approval.name);
            let found = hub.find::<DeletionApproval>(&key).await?;
            let found = found.filter(|found| found.metadata.deletion_timestamp.is_none());
            Ok(found.is_some_and(|found| Approval::of_object(&found).is(approval)))
        }
    }
}

/// Reports whether an annotation of an object is the approval.
fn annotates<K: ResourceExt>(object: &K, approval: &UsedApproval, is_shared: bool) -> bool {
    let name = &approval.name;
    let value = object.annotations().get(name).map_or("", String::as_str);
    let uid = object.uid().unwrap_or_default();
    let mut found = Approval::of_annotation(name, value, &uid, is_shared).into_iter();
    found.any(|found| found.is(approval))
}
