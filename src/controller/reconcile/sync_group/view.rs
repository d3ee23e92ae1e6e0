//! Builds the planner's views of the selected clusters.

use std::collections::BTreeMap;

use kube::ResourceExt;
use starling_api::{ADMITTED_AT, Cluster, RELEASE, RETRIED_FOR, SyncEntry, SyncResource, SyncStatus};
use starling_core::expand::{self, ParameterError};
use starling_core::ids::{ClusterId, ClusterName, EntryName, TargetDigest};
use starling_core::plan::{ClusterView, EntryView, ObservedSync, Progress, UnresolvedTarget};
use starling_core::progress::{Admitted, progress};
use starling_core::rollout::{ReleaseSnapshot, Rolling};
use starling_core::{slot_return, target};

use super::super::cluster::{jitter_id, reach};
use super::digest;
use super::observe::Group;
use super::sync::{name_of, template_for};
use crate::controller::caches::plan_memo::{Covered, Expanded, ObjectState, PlanMemo, Wanted};

/// Returns the views of all clusters, and computes those of changed clusters.
pub(super) fn clusters(
    group: &Group,
    rolling: &Rolling,
    known: &mut PlanMemo,
) -> BTreeMap<ClusterName, ClusterView> {
    let of = (
        ObjectState::spec(&*group.object),
        rolling.snapshot.digest.clone(),
        rolling
            .known_good
            .as_ref()
            .map(|good| good.digest.clone())
            .unwrap_or_default(),
    );
    let entries = &rolling.snapshot.entries;
    let any_depends = entries.iter().any(|entry| !entry.template.depends_on.is_empty());
    let changed = known.views.renew(of, &group.clusters, &group.syncs);
    if changed.all {
        known.begin();
        known.overlaps.clear();
        known.covered.clear();
    }
    for name in changed.gone {
        known.overlaps.remove(&name);
        known.covered.remove(&name);
    }
    for (name, cluster) in changed.clusters {
        let view = cluster_view(group, rolling, known, &name, &cluster);
        // The name of a Sync that does not exist yet depends on the names of other Syncs.
        // So does whether a Sync is readable.
        let lasting = (!any_depends && group.unreadable_syncs.is_empty())
            || view.entries.values().all(|entry| entry.observed.is_some());
        known.views.set(name, view, lasting);
    }
    known.views.lend()
}

fn cluster_view(
    group: &Group,
    rolling: &Rolling,
    known: &mut PlanMemo,
    name: &ClusterName,
    cluster: &Cluster,
) -> ClusterView {
    let place = group.strategy.place(cluster.labels());
    if place.also.is_empty() {
        known.overlaps.remove(name);
    } else {
        known.overlaps.insert(name.clone(), place.clone());
    }
    let id = ClusterId::of(cluster);
    let mut covered = BTreeMap::new();
    let entries: BTreeMap<EntryName, EntryView> = rolling
        .snapshot
        .entries
        .iter()
        .map(|entry| {
            let sync = group.syncs.get(name, &entry.name);
            let observed = sync.map(|sync| {
                let compute = || target::of_spec(&sync.spec);
                let admitted = known
                    .admitted
                    .get(name, &entry.name, ObjectState::spec(&**sync), compute);
                observed(sync, admitted, &id)
            });
            let known_good = rolling.known_good.as_ref().and_then(|good| {
                let entry = good.entry(&entry.name)?;
                let good = wanted(group, good, &mut known.good, entry, name, cluster);
                good.map(|expanded| expanded.target).ok()
            });
            let wanted = wanted(group, &rolling.snapshot, &mut known.wanted, entry, name, cluster);
            let view = EntryView {
                wanted: match wanted {
                    // An unreadable Sync looks like a cluster that has not started.
                    _ if is_unreadable(group, name, &entry.name) => Err(UnresolvedTarget::UnreadableSync {
                        sync: name_of(group, name, &entry.name).into(),
                    }),
                    Ok(expanded) => {
                        covered.insert(entry.name.clone(), expanded.covered);
                        Ok(expanded.target)
                    }
                    Err(error) => Err(error.into()),
                },
                known_good,
                observed,
            };
            (EntryName::from(&entry.name), view)
        })
        .collect();
    if digest::is_needed(group) {
        known.covered.insert(name.clone(), covered);
    }
    ClusterView {
        stage: place.stage,
        windows: place.windows,
        id: jitter_id(cluster),
        reach: reach(cluster),
        entries,
    }
}

/// Whether the Sync of an entry on a cluster exists and cannot be decoded, since another version has written it.
fn is_unreadable(group: &Group, cluster: &ClusterName, entry: &str) -> bool {
    !group.unreadable_syncs.is_empty()
        && group.syncs.get(cluster, entry).is_none()
        && group
            .unreadable_syncs
            .contains(name_of(group, cluster, entry).as_str())
}

/// Returns the target of an entry of a release on one cluster.
///
/// # Errors
/// [`ParameterError`] if this cluster lacks a parameter.
fn wanted(
    group: &Group,
    snapshot: &ReleaseSnapshot,
    known: &mut Wanted,
    entry: &SyncEntry,
    name: &ClusterName,
    cluster: &Cluster,
) -> Result<Expanded, ParameterError> {
    let revision = snapshot.revision(&entry.name);
    let compute = || {
        template_for(group, entry, name, cluster).map(|template| Expanded {
            target: target::of_sync(revision, &template),
            covered: Covered {
                values: expand::cluster_values(&entry.template, &template),
                directory: (template.path, template.target_namespace),
            },
        })
    };
    // The names of dependencies are those of Syncs, which may change.
    if !entry.template.depends_on.is_empty() {
        return compute();
    }
    let of = (
        ObjectState::whole(cluster),
        ObjectState::spec(&*group.object),
        snapshot.digest.clone(),
    );
    known.get(name, &entry.name, of, compute)
}

fn observed(sync: &SyncResource, target: Option<TargetDigest>, cluster_id: &ClusterId) -> ObservedSync {
    let none = SyncStatus::default();
    let status = sync.status.as_ref().unwrap_or(&none);
    let annotation = |key: &str| sync.annotations().get(key);
    let progress = match &target {
        Some(target) => progress(status, &Admitted::of(sync, target, cluster_id)),
        None => Progress::Working,
    };
    // Nothing was written for the admission, and the Sync begins nothing before the next one.
    let target = target.filter(|_| !slot_return::has_returned(sync, status));
    ObservedSync {
        stored_admitted_at: None,
        retried_for: annotation(RETRIED_FOR).and_then(|text| text.parse().ok()),
        target,
        release: annotation(RELEASE).cloned().unwrap_or_default().into(),
        // The annotation may have been removed; the creation time of the Sync is then the best estimate.
        admitted_at: annotation(ADMITTED_AT)
            .and_then(|text| text.parse().ok())
            .or_else(|| sync.creation_timestamp().map(|time| time.0)),
        progress,
        suspended: sync.spec.template.suspend || sync.metadata.deletion_timestamp.is_some(),
    }
}
