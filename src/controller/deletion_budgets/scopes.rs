//! What deletions of one Sync are within each budget: that of the Sync, of its group and of the installation.

use std::sync::Arc;

use starling_api::{DeletionCount, Deletions, SyncGroup, SyncResource, UsedApproval};
use starling_core::deletion_budget::{
    BudgetClock, BudgetLimits, BudgetScope, BudgetVerdict, DeletionRequest, Excess, decide, has_deleted,
    is_later, repaired,
};
use starling_core::deletion_grant::objects_after;

use super::unfinished::Unfinished;
use crate::controller::caches::ObjectCaches;
use crate::controller::object_key::ObjectKey;

/// Deletions of one Sync that were not allowed before.
#[derive(Clone, Copy)]
pub(super) struct NewDeletions {
    pub(super) objects: usize,
    pub(super) remaining: usize,
}

/// The counts that a scope would store.
pub(super) enum Counted {
    Granted(Vec<DeletionCount>),
    /// The counts are to be stored if a time of them was wrong.
    Held(Excess, Option<Vec<DeletionCount>>),
    /// The counts were stored by a request that failed afterwards.
    Before,
}

pub(super) fn count(
    limits: &BudgetLimits,
    counted: &[DeletionCount],
    request: DeletionRequest<'_>,
    clock: BudgetClock<'_>,
) -> Counted {
    match decide(limits, counted, request, clock) {
        BudgetVerdict::Granted(counts) => Counted::Granted(counts),
        BudgetVerdict::Held(excess) => Counted::Held(excess, repaired(limits.window, counted, clock)),
    }
}

/// Returns the counts to store, if any, and keeps the excess that lasts longest.
pub(super) fn to_store(
    counted: Counted,
    held: bool,
    worst: &mut Option<Excess>,
) -> Option<Vec<DeletionCount>> {
    match counted {
        Counted::Before => None,
        Counted::Granted(counts) => (!held).then_some(counts),
        Counted::Held(excess, repaired) => {
            let known = worst.take().filter(|known| is_later(known.until, excess.until));
            *worst = Some(known.unwrap_or(excess));
            repaired
        }
    }
}

pub(super) fn of_sync(sync: &SyncResource, new: NewDeletions, clock: BudgetClock<'_>) -> Counted {
    let limits = BudgetLimits::of_sync(sync.spec.deletion_budget);
    let request = DeletionRequest {
        objects: new.objects,
        cluster: "",
        is_new_cluster: false,
        of_objects: objects_of(sync).max(new.objects),
        remaining: Some(new.remaining),
        of_clusters: 1,
    };
    count(&limits, counts(recorded(sync)), request, clock)
}

pub(super) fn group_of(objects: &ObjectCaches, sync: &SyncResource) -> Option<Arc<SyncGroup>> {
    let group = sync.spec.group_ref.as_ref()?;
    let namespace = sync.metadata.namespace.clone().unwrap_or_default();
    objects.groups.get(&ObjectKey::new(&namespace, &group.name))
}

pub(super) fn of_group(
    objects: &ObjectCaches,
    group: &SyncGroup,
    (sync, new): (&SyncResource, NewDeletions),
    unfinished: &Unfinished,
    clock: BudgetClock<'_>,
) -> Counted {
    let limits = BudgetLimits::of_group(group.spec.deletion_budget);
    let syncs = objects.syncs.of_group(&ObjectKey::of(group));
    let cluster = &sync.spec.cluster_ref.name;
    let of_objects: usize = syncs.with_copies().map(|sync| objects_of(sync)).sum();
    // Deletions of other Syncs that are in progress, or will be without another decision, are losses too, before their
    // inventories show them.
    let after = |other: &SyncResource| {
        let after = objects_after(objects_of(other), recorded(other));
        let counted = unfinished.remaining(&ObjectKey::of(other), BudgetScope::SyncGroup, clock.now);
        counted.map_or(after, |remaining| remaining.min(after))
    };
    let others = syncs.with_copies().filter(|other| !is_same(other, sync));
    let others: usize = others.map(|other| after(other)).sum();
    let request = DeletionRequest {
        remaining: Some(others + new.remaining),
        objects: new.objects,
        cluster,
        is_new_cluster: !syncs.on(cluster).any(|sync| deleted_in(sync, &limits, clock)),
        of_objects: of_objects.max(new.objects),
        of_clusters: syncs.clusters().count(),
    };
    count(
        &limits,
        counts(group.status.as_ref().and_then(|status| status.deletions.as_ref())),
        request,
        clock,
    )
}

pub(super) fn of_installation(
    objects: &ObjectCaches,
    limits: &BudgetLimits,
    sync: &SyncResource,
    new: NewDeletions,
    clock: BudgetClock<'_>,
) -> DeletionRequest<'static> {
    let namespace = sync.metadata.namespace.as_deref().unwrap_or_default();
    let cluster = ObjectKey::new(namespace, &sync.spec.cluster_ref.name);
    let on_cluster = objects.syncs.indexed(&cluster);
    // A replaced object is no loss. At the end of a Sync nothing remains, whatever its status says.
    let lost = match new.remaining {
        0 => new.objects,
        remaining => new.objects.min(objects_of(sync).saturating_sub(remaining)),
    };
    DeletionRequest {
        objects: lost,
        cluster: "",
        is_new_cluster: !on_cluster.iter().any(|other| deleted_in(other, limits, clock)),
        of_objects: new.objects,
        remaining: None,
        of_clusters: 1,
    }
}

pub(super) fn is_same(one: &SyncResource, other: &SyncResource) -> bool {
    one.metadata.name == other.metadata.name
}

pub(super) fn recorded(sync: &SyncResource) -> Option<&Deletions> {
    sync.status.as_ref()?.deletions.as_ref()
}

/// Returns the name of a cluster among those of the installation.
pub(super) fn installation_cluster(sync: &SyncResource) -> String {
    let namespace = sync.metadata.namespace.as_deref().unwrap_or_default();
    format!("{namespace}/{}", sync.spec.cluster_ref.name)
}

pub(super) fn deleted_in(sync: &SyncResource, limits: &BudgetLimits, clock: BudgetClock<'_>) -> bool {
    has_deleted(recorded(sync), limits.window, clock)
}

pub(super) fn objects_of(sync: &SyncResource) -> usize {
    sync.status
        .as_ref()
        .map_or(0, |status| status.inventory.objects as usize)
}

pub(super) fn used(sync: &SyncResource) -> Vec<UsedApproval> {
    recorded(sync).map_or_else(Vec::new, |deletions| deletions.used.clone())
}

pub(super) fn counts(deletions: Option<&Deletions>) -> &[DeletionCount] {
    deletions.map_or(&[], |deletions| &deletions.counts)
}
