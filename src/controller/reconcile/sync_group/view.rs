//! What the planner is told: pure, from what was observed.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::ResourceExt;
use starling_api::{ADMITTED_AT, Cluster, RELEASE, RolloutDirection, SyncEntry, SyncResource, SyncTemplate};
use starling_core::plan::{
    ClusterView, Direction, EntryView, ObservedSync, PlanInput, Progress, RolloutView, Steering, record,
};
use starling_core::{expand, step, target};

use super::super::cluster::reach;
use super::super::sync::facts;
use super::observe::Group;
use super::release::Rolling;
use crate::controller::releases::Vector;

pub(super) fn plan_input(
    group: &Group,
    rolling: &Rolling,
    membership_held: bool,
    now: Timestamp,
) -> PlanInput {
    PlanInput {
        now,
        strategy: group.strategy.strategy.clone(),
        rollout: RolloutView {
            release: rolling.rollout.release.clone(),
            direction: match rolling.rollout.direction {
                RolloutDirection::Forward => Direction::Forward,
                RolloutDirection::Back => Direction::Back,
                RolloutDirection::BackAtOnce => Direction::BackAtOnce,
            },
            started_at: rolling.started_at(),
            stages: record::recorded(&rolling.rollout),
            approvals: BTreeMap::new(),
        },
        steering: Steering::default(),
        suspended: group.object.spec.suspend,
        membership_held,
        clusters: group
            .clusters
            .iter()
            .map(|(name, cluster)| (name.clone(), cluster_view(group, rolling, name, cluster)))
            .collect(),
    }
}

/// An entry's template on one cluster: parameters resolved, and the entries that it depends on named as the Syncs that
/// they are on this cluster.
///
/// # Errors
/// The text of what this cluster lacks.
pub(super) fn template_for(
    group: &Group,
    entry: &SyncEntry,
    name: &str,
    cluster: &Cluster,
) -> Result<SyncTemplate, String> {
    let mut template =
        expand::resolve(&entry.template, &facts(cluster)).map_err(|error| error.to_string())?;
    for dependency in &mut template.depends_on {
        dependency.name = name_of(group, name, &dependency.name);
    }
    Ok(template)
}

/// The name of the Sync of an entry on a cluster: the one it has, or the one it will get.
pub(super) fn name_of(group: &Group, cluster: &str, entry: &str) -> String {
    match group.syncs.get(&(cluster.to_owned(), entry.to_owned())) {
        Some(known) => known.name_any(),
        None => expand::sync_name(&group.key.name, entry, cluster, |name| group.taken.contains(name)),
    }
}

fn cluster_view(group: &Group, rolling: &Rolling, name: &str, cluster: &Cluster) -> ClusterView {
    let id = cluster
        .status
        .as_ref()
        .map_or("", |status| status.cluster_id.as_str());
    let target_by = |vector: &Vector, entry: &SyncEntry| {
        template_for(group, entry, name, cluster)
            .map(|template| target::of_sync(vector.revision(&entry.name), &template))
    };
    let entries: BTreeMap<String, EntryView> = rolling
        .vector
        .entries
        .iter()
        .map(|entry| {
            let sync = group.syncs.get(&(name.to_owned(), entry.name.clone()));
            let known_good = rolling
                .known_good
                .as_ref()
                .and_then(|good| target_by(good, good.entry(&entry.name)?).ok());
            (
                entry.name.clone(),
                EntryView {
                    wanted: target_by(&rolling.vector, entry),
                    known_good,
                    observed: sync.map(|sync| observed(sync, id)),
                },
            )
        })
        .collect();
    let place = group.strategy.place(cluster.labels());
    ClusterView {
        stage: place.stage,
        windows: place.windows,
        uid: cluster.uid().unwrap_or_else(|| name.to_owned()),
        reach: reach(cluster),
        entries,
    }
}

fn observed(sync: &SyncResource, cluster_id: &str) -> ObservedSync {
    let target = target::of_spec(&sync.spec);
    let status = sync.status.clone().unwrap_or_default();
    let progress = match &target {
        Some(target) => step::progress(
            &status,
            sync.spec.template.wait,
            target,
            cluster_id,
            sync.metadata.generation.unwrap_or(0),
        ),
        None => Progress::Working,
    };
    let annotation = |key: &str| sync.annotations().get(key);
    ObservedSync {
        target,
        release: annotation(RELEASE).cloned().unwrap_or_default(),
        // Somebody may have taken the annotation away; the Sync's own age is then the best that is known.
        admitted_at: annotation(ADMITTED_AT)
            .and_then(|text| text.parse().ok())
            .or_else(|| sync.creation_timestamp().map(|time| time.0)),
        progress,
        suspended: sync.spec.template.suspend || sync.metadata.deletion_timestamp.is_some(),
    }
}
