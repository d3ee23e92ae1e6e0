//! The approvals of deletions that apply to one Sync.

use kube::ResourceExt;
use starling_api::{SyncGroup, SyncResource};
use starling_core::deletion_approval::{Approval, Approvals};

use crate::controller::caches::{group_to_delete_from, sync_to_delete_from};
use crate::controller::context::SyncContext;
use crate::controller::object_key::ObjectKey;

/// Returns the approvals of a Sync: its own, and those of its group, which apply to all Syncs of the group.
pub(super) fn observe(
    context: SyncContext<'_>,
    key: &ObjectKey,
    sync: &SyncResource,
    group: Option<&SyncGroup>,
) -> Approvals {
    let objects = &context.objects.deletion_approvals;
    let mut known = objects.indexed(&sync_to_delete_from(&key.namespace, &key.name));
    if let Some(of) = &sync.spec.group_ref {
        known.extend(objects.indexed(&group_to_delete_from(&key.namespace, &of.name)));
    }
    let known = known.iter().map(|approval| Approval::of_object(approval));
    let own = Approval::annotated(sync, false);
    let shared = group
        .map(|group| Approval::annotated(group, true))
        .unwrap_or_default();
    let status = sync.status.as_ref();
    let deletions = status.and_then(|status| status.deletions.as_ref());
    Approvals::new(
        known.chain(own).chain(shared),
        deletions.map(|deletions| &*deletions.used),
        sync.creation_timestamp().map(|time| time.0),
    )
}
