//! Ends in the ledger what interrupted passes, and groups that were deleted, left open.

use kube::ResourceExt;
use kube::core::SelectorExt;
use starling_api::SyncGroup;
use starling_core::{expand, identity};
use starling_ledger::{Admission, LedgerError};

use super::sync::admission_of;
use crate::controller::context::GroupContext;
use crate::controller::interpreter::{self, AdmittedSync, StillOpen};
use crate::controller::object_key::ObjectKey;

/// Ends what is open of a group, by its status and its Syncs in the caches. While an admission has no Sync yet, the
/// next pass of the group does so again.
///
/// # Errors
/// [`LedgerError`] if an end cannot be read or recorded.
pub(in crate::controller) async fn of_group(
    context: GroupContext<'_>,
    group: &SyncGroup,
) -> Result<(), LedgerError> {
    let Some(status) = &group.status else {
        return Ok(());
    };
    let id = identity::id_of(context.installation, group);
    let namespace = group.namespace().unwrap_or_default();
    // With an invalid selector it is not known which clusters are wanted.
    let selector = expand::selector(&group.spec.cluster_selector).ok();
    let clusters = &context.objects.clusters;
    let is_wanted = |admission: &Admission| {
        let key = ObjectKey::new(&namespace, &admission.key.cluster);
        let cluster = clusters.get(&key);
        let is_selected = selector
            .as_ref()
            .is_none_or(|selector| cluster.is_some_and(|cluster| selector.matches(cluster.labels())));
        let mut entries = group.spec.syncs.iter();
        let has_entry = entries.any(|entry| entry.name == admission.key.entry);
        has_entry && (is_selected || clusters.is_unreadable(&key))
    };
    let admitted = |admission: &Admission| {
        let key = ObjectKey::new(&namespace, &admission.sync_name);
        match context.objects.syncs.get(&key) {
            _ if context.objects.syncs.is_unreadable(&key) => AdmittedSync::Unknown,
            Some(sync) => admission_of(&sync).map_or(AdmittedSync::Unknown, AdmittedSync::At),
            None if is_wanted(admission) => AdmittedSync::Awaited,
            None => AdmittedSync::Gone,
        }
    };
    let now = context.clock.now();
    let closed = interpreter::close_interrupted(context.ledger, &id, status, admitted, now);
    let StillOpen { awaits_sync } = closed.await?;
    let key = ObjectKey::of(group);
    context.caches.awaited_syncs.set(&key, awaits_sync);
    Ok(())
}

/// Ends what is open of groups that no longer exist. While a group cannot be read, its identity is not known, and
/// nothing is ended.
///
/// # Errors
/// [`LedgerError`] if the ends cannot be recorded.
pub(in crate::controller) async fn of_deleted_groups(context: GroupContext<'_>) -> Result<(), LedgerError> {
    let groups = &context.objects.groups;
    if !groups.is_synced() || !groups.unreadable().is_empty() {
        return Ok(());
    }
    let known = groups.select(|_| true);
    let ids = known
        .iter()
        .map(|group| identity::id_of(context.installation, group))
        .collect();
    context.ledger.abandon_others(&ids, context.clock.now()).await
}
