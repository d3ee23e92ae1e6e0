//! What the planner is told, from what was observed.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::ResourceExt;
use starling_api::{
    ADMITTED_AT, Cluster, RELEASE, RolloutDirection, SyncEntry, SyncResource, SyncStatus, SyncTemplate,
};
use starling_core::expand::ClusterFacts;
use starling_core::plan::{
    ClusterView, Direction, EntryView, ObservedSync, Place, PlanInput, Progress, RolloutView, StageRecord,
    record,
};
use starling_core::steering::Asked;
use starling_core::{expand, progress, target};

use super::super::cluster::reach;
use super::observe::Group;
use super::release::Rolling;
use super::rendered;
use super::steer::without_retried;
use crate::controller::gates::Gates;
use crate::controller::releases::Vector;
use crate::controller::targets::{Expanded, Known, Of, Wanted};

pub(super) fn plan_input(
    gates: &Gates,
    group: &Group,
    rolling: &Rolling,
    asked: &Asked,
    membership_held: bool,
    known: &mut Known,
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
            stages: stages(gates, group, rolling, asked, now),
            approvals: asked.approvals.clone(),
        },
        steering: asked.steering.clone(),
        suspended: group.object.spec.suspend,
        membership_held,
        clusters: views(group, rolling, known),
    }
}

/// What is remembered of the stages: what status says, with what was found since, without what is to be tried again.
fn stages(
    gates: &Gates,
    group: &Group,
    rolling: &Rolling,
    asked: &Asked,
    now: Timestamp,
) -> BTreeMap<String, StageRecord> {
    let mut stages = record::recorded(&rolling.rollout);
    let uid = group.object.uid().unwrap_or_default();
    gates.lay_over(&group.key, &uid, rolling.rollout.id, &mut stages);
    without_retried(stages, &asked.retries, now)
}

/// Views of all clusters: of those that changed, new ones.
fn views(group: &Group, rolling: &Rolling, known: &mut Known) -> BTreeMap<String, ClusterView> {
    let of = (
        Of::spec(&*group.object),
        rolling.vector.digest.clone(),
        rolling
            .known_good
            .as_ref()
            .map(|good| good.digest.clone())
            .unwrap_or_default(),
    );
    let entries = &rolling.vector.entries;
    let any_depends = entries.iter().any(|entry| !entry.template.depends_on.is_empty());
    let changed = known.views.renew(of, &group.clusters, &group.syncs);
    if changed.all {
        known.begin();
        known.overlaps.clear();
        known.folders.clear();
    }
    for name in changed.gone {
        known.overlaps.remove(&name);
        known.folders.remove(&name);
    }
    for (name, cluster) in changed.clusters {
        let place = group.strategy.place(cluster.labels());
        if place.also.is_empty() {
            known.overlaps.remove(&name);
        } else {
            known.overlaps.insert(name.clone(), place.clone());
        }
        let view = cluster_view(group, rolling, known, &name, (&cluster, place));
        // The name of a Sync that is not there yet depends on those of others.
        let lasting = !any_depends || view.entries.values().all(|entry| entry.observed.is_some());
        known.views.set(name, view, lasting);
    }
    known.views.lend()
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
        expand::resolve(&entry.template, &ClusterFacts::of(cluster)).map_err(|error| error.to_string())?;
    for dependency in &mut template.depends_on {
        dependency.name = name_of(group, name, &dependency.name);
    }
    Ok(template)
}

/// The name of the Sync of an entry on a cluster: the one it has, or the one it will get.
pub(super) fn name_of(group: &Group, cluster: &str, entry: &str) -> String {
    match group.syncs.get(cluster, entry) {
        Some(known) => known.name_any(),
        None => expand::sync_name(&group.key.name, entry, cluster, |name| group.taken.contains(name)),
    }
}

fn cluster_view(
    group: &Group,
    rolling: &Rolling,
    known: &mut Known,
    name: &str,
    (cluster, place): (&Cluster, Place),
) -> ClusterView {
    let id = cluster
        .status
        .as_ref()
        .map_or("", |status| status.cluster_id.as_str());
    let mut folders = BTreeMap::new();
    let entries: BTreeMap<String, EntryView> = rolling
        .vector
        .entries
        .iter()
        .map(|entry| {
            let sync = group.syncs.get(name, &entry.name);
            let observed = sync.map(|sync| {
                let said = || target::of_spec(&sync.spec);
                let said = known.said.get(name, &entry.name, Of::spec(&**sync), said);
                observed(sync, said, id)
            });
            let known_good = rolling.known_good.as_ref().and_then(|good| {
                let entry = good.entry(&entry.name)?;
                let good = wanted(group, good, &mut known.good, entry, name, cluster);
                good.map(|expanded| expanded.target).ok()
            });
            let wanted = wanted(group, &rolling.vector, &mut known.wanted, entry, name, cluster);
            let view = EntryView {
                wanted: wanted.map(|expanded| {
                    folders.insert(entry.name.clone(), expanded.folder);
                    expanded.target
                }),
                known_good,
                observed,
            };
            (entry.name.clone(), view)
        })
        .collect();
    if rendered::is_needed(group) {
        known.folders.insert(name.to_owned(), folders);
    }
    ClusterView {
        stage: place.stage,
        windows: place.windows,
        uid: cluster.uid().unwrap_or_else(|| name.to_owned()),
        reach: reach(cluster),
        entries,
    }
}

/// An entry of a release on one cluster; the error is the text of what this cluster lacks.
fn wanted(
    group: &Group,
    vector: &Vector,
    known: &mut Wanted,
    entry: &SyncEntry,
    name: &str,
    cluster: &Cluster,
) -> Result<Expanded, String> {
    let revision = vector.revision(&entry.name);
    let compute = || {
        template_for(group, entry, name, cluster).map(|template| Expanded {
            target: target::of_sync(revision, &template),
            folder: (template.path, template.target_namespace),
        })
    };
    // The names of what it depends on are those of Syncs, which come and go.
    if !entry.template.depends_on.is_empty() {
        return compute();
    }
    let of = (
        Of::whole(cluster),
        Of::spec(&*group.object),
        vector.digest.clone(),
    );
    known.get(name, &entry.name, of, compute)
}

fn observed(sync: &SyncResource, target: Option<String>, cluster_id: &str) -> ObservedSync {
    let none = SyncStatus::default();
    let status = sync.status.as_ref().unwrap_or(&none);
    let progress = match &target {
        Some(target) => progress::progress(
            status,
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
