//! The limit of clusters in flight of the installation, for one pass of a group ([`starling_core::in_flight`]).

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use starling_api::{ADMITTED_AT, SyncGroup, SyncStatus};
use starling_core::ids::ClusterId;
use starling_core::plan::{InFlightAfter, Progress};
use starling_core::progress::{Admitted, progress};
use starling_core::{slot_return, target};

use crate::controller::context::{GroupContext, Next};
use crate::controller::object_key::ObjectKey;

/// Reserves the slots that a group may take in this pass; `None`: there is no limit.
pub(super) fn begin(context: GroupContext<'_>, key: &ObjectKey, now: Timestamp) -> Option<usize> {
    let limit = context.max_clusters_in_flight?;
    let counts = &context.caches.in_flight;
    let groups = context.objects.groups.select(|_| true);
    let keys: Vec<ObjectKey> = groups.iter().map(|group| ObjectKey::of(&**group)).collect();
    for unknown in counts.unknown(keys.iter().filter(|other| *other != key)) {
        if let Some(group) = context.objects.groups.get(&unknown) {
            counts.estimate(&unknown, by_syncs(context, &group, now).len());
        }
    }
    Some(counts.begin(key, limit))
}

/// Reports the plan of a pass, and wakes the groups that may go on.
pub(super) fn planned(context: GroupContext<'_>, key: &ObjectKey, after: InFlightAfter) {
    end(context, key, after);
}

/// Reports a pass without a plan: what the Syncs are at counts, so that other groups neither wait for ever nor exceed
/// the limit. Returns when that changes by time alone.
pub(super) fn not_planned(context: GroupContext<'_>, group: &SyncGroup, now: Timestamp) -> Next {
    if context.max_clusters_in_flight.is_none() {
        return Next::OnEvent;
    }
    let deadlines = by_syncs(context, group, now);
    let after = InFlightAfter {
        begun: 0,
        in_flight: deadlines.len(),
        waiting: 0,
    };
    end(context, &ObjectKey::of(group), after);
    let first = deadlines.values().min();
    first.map_or(Next::OnEvent, |until| Next::at(*until, now))
}

/// Reports that a group is deleted.
pub(super) fn gone(context: GroupContext<'_>, key: &ObjectKey) {
    if let Some(limit) = context.max_clusters_in_flight {
        wake(context, context.caches.in_flight.remove(key, limit));
    }
}

fn end(context: GroupContext<'_>, key: &ObjectKey, after: InFlightAfter) {
    if let Some(limit) = context.max_clusters_in_flight {
        wake(context, context.caches.in_flight.end(key, after, limit));
    }
}

fn wake(context: GroupContext<'_>, groups: Vec<ObjectKey>) {
    for group in groups {
        context.queue.add(group);
    }
}

/// Returns the clusters that a group is working on, by its Syncs alone, and until when each counts as in flight. A plan
/// may count fewer: it knows which clusters it does not wait for.
fn by_syncs(context: GroupContext<'_>, group: &SyncGroup, now: Timestamp) -> BTreeMap<String, Timestamp> {
    let deadline = SignedDuration::try_from(group.spec.rollout_strategy.progress_deadline.as_std());
    let deadline = deadline.unwrap_or(SignedDuration::MAX);
    let mut clusters = BTreeMap::new();
    for sync in context
        .objects
        .syncs
        .of_group(&ObjectKey::of(group))
        .with_copies()
    {
        let none = SyncStatus::default();
        let status = sync.status.as_ref().unwrap_or(&none);
        let annotations = sync.metadata.annotations.as_ref();
        let admitted_at = annotations.and_then(|of| of.get(ADMITTED_AT)?.parse::<Timestamp>().ok());
        let (Some(admitted_at), Some(target)) = (admitted_at, target::of_spec(&sync.spec)) else {
            continue;
        };
        let until = context
            .clock
            .believed(admitted_at)
            .checked_add(deadline)
            .unwrap_or(Timestamp::MAX);
        let name = &sync.spec.cluster_ref.name;
        let cluster = ObjectKey::new(ObjectKey::of(&**sync).namespace, name);
        let cluster = context.objects.clusters.get(&cluster);
        let id = cluster.as_deref().map(ClusterId::of).unwrap_or_default();
        let works = progress(status, &Admitted::of(sync, &target, &id)) == Progress::Working;
        if works && until > now && !slot_return::has_returned(sync, status) {
            let known = clusters.entry(name.clone()).or_insert(until);
            *known = until.max(*known);
        }
    }
    clusters
}
