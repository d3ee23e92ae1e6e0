//! The forecast of a rollout: the planner runs in simulated time, with the durations that the Syncs of a group record.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::core::{Selector, SelectorExt as _};
use serde::Serialize;
use starling_api::{ADMITTED_AT, Cluster, SyncGroup, SyncResource, SyncStatus};
use starling_core::digest::hash64;
use starling_core::ids::ClusterId;
use starling_core::plan::{Reach, ReadStrategy, StrategyError};
use starling_core::progress::{Admitted, progress};
use starling_core::simulate::{Assumptions, Fate, RolloutForecast, SimulatedMember, World};
use starling_core::{explain, target};

use super::group::{GroupObjects, Syncs};
use super::removals::PlannedRemoval;
use crate::controller::reconcile::cluster::{jitter_id, reach};

/// The duration from admission to healthy, where none is recorded and none is given.
const ASSUMED: Duration = Duration::from_secs(60);
/// Name of the simulated release.
const RELEASE: &str = "the next release";

/// Assumptions of a forecast.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Start time of the rollout.
    pub start: Timestamp,
    /// The share of the clusters on which the release fails, from 0 to 1.
    pub fail: f64,
    /// Selects the failing clusters. The same seed selects the same clusters of any fleet.
    pub seed: u64,
    /// Clusters that are unreachable.
    pub down: Vec<Selector>,
    /// The duration of the update of each cluster; `None`: the recorded one.
    pub takes: Option<Duration>,
    /// Durations of approvals and gates, and the limit of the simulation.
    pub assumptions: Assumptions,
}

/// The forecast of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupForecast {
    /// Name of the group.
    pub group: String,
    /// Clusters with a recorded duration.
    pub recorded: usize,
    /// The removals of the group: Syncs that it no longer wants.
    pub removals: Vec<PlannedRemoval>,
    /// The forecast.
    #[serde(flatten)]
    pub forecast: RolloutForecast,
}

/// Reason why there is no forecast.
#[derive(Debug, thiserror::Error)]
pub enum ForecastError {
    /// The strategy of the group is invalid.
    #[error("spec.{0}")]
    Strategy(#[from] StrategyError),
    /// The group selects no cluster.
    #[error("SyncGroup {group} selects no cluster")]
    NoClusters {
        /// The group.
        group: String,
    },
}

/// Forecasts the next rollout of a group.
///
/// # Errors
/// [`ForecastError`].
pub fn of_group(objects: &GroupObjects, scenario: &Scenario) -> Result<GroupForecast, ForecastError> {
    let GroupObjects {
        group,
        clusters,
        syncs,
    } = objects;
    let spec = &group.spec.rollout_strategy;
    let strategy = ReadStrategy::new(spec)?;
    if clusters.is_empty() {
        return Err(ForecastError::NoClusters {
            group: group.name_any(),
        });
    }
    let recorded = recorded_durations(objects);
    let median = median(recorded.values().copied().collect());
    let good = group
        .status
        .as_ref()
        .and_then(|status| status.last_known_good.as_ref())
        .map(|good| good.release.clone());
    let mut members = BTreeMap::new();
    for (name, cluster) in clusters {
        let known = recorded.get(name).copied().or(median);
        let takes = scenario.takes.or(known).unwrap_or(ASSUMED);
        let mut member = member(cluster, takes, scenario);
        // A cluster that has Syncs is updated; a new one first gets the last known good release, if its stage waits.
        if let Some(good) = good.as_ref().filter(|_| has_syncs(group, name, syncs)) {
            member = member.holding(good, scenario.start);
        }
        members.insert(name.clone(), member);
    }
    let mut world = World::new(scenario.start, strategy, members, RELEASE);
    world.on_new_revision = spec.on_new_revision;
    world.rollback = spec.rollback.type_;
    world.set_known_good(good.as_deref());
    Ok(GroupForecast {
        group: group.name_any(),
        recorded: match scenario.takes {
            Some(_) => 0,
            None => recorded.len(),
        },
        removals: objects.removals(),
        forecast: world.forecast(scenario.assumptions),
    })
}

fn member(cluster: &Cluster, takes: Duration, scenario: &Scenario) -> SimulatedMember {
    let uid = jitter_id(cluster);
    let mut member = SimulatedMember::new(&uid, cluster.labels().clone(), takes);
    if fails(&uid, scenario.seed, scenario.fail) {
        member.fates.insert(RELEASE.to_owned(), Fate::Fails);
    }
    let is_down = |selector: &Selector| selector.matches(cluster.labels());
    member.reach = if scenario.down.iter().any(is_down) {
        Reach::Unreachable {
            reason: "Unreachable".to_owned(),
            message: "assumed".to_owned(),
            since: scenario.start,
        }
    } else {
        lasting_reach(cluster)
    };
    member
}

fn has_syncs(group: &SyncGroup, cluster: &str, syncs: &Syncs) -> bool {
    let mut entries = group.spec.syncs.iter();
    entries.any(|entry| syncs.contains_key(&(cluster.to_owned(), entry.name.clone())))
}

/// The reachability of a cluster for the whole simulation. A cluster that was not probed yet is about to be, so it
/// counts as ready.
fn lasting_reach(cluster: &Cluster) -> Reach {
    match reach(cluster) {
        Reach::Unprobed => Reach::Ready,
        known => known,
    }
}

fn recorded_durations(objects: &GroupObjects) -> BTreeMap<String, Duration> {
    let clusters = objects.clusters.values();
    clusters
        .filter_map(|cluster| Some((cluster.name_any(), recorded_duration(objects, cluster)?)))
        .collect()
}

/// The last duration from admission to healthy of the slowest entry of a cluster, for entries that have not failed
/// since.
fn recorded_duration(objects: &GroupObjects, cluster: &Cluster) -> Option<Duration> {
    let id = ClusterId::of(cluster);
    let entries = objects.group.spec.syncs.iter();
    let durations = entries.filter_map(|entry| {
        let sync = objects.syncs.get(&(cluster.name_any(), entry.name.clone()))?;
        sync_duration(sync, &id)
    });
    durations.max()
}

fn sync_duration(sync: &SyncResource, cluster_id: &ClusterId) -> Option<Duration> {
    let admitted = sync.annotations().get(ADMITTED_AT)?.parse().ok();
    let none = SyncStatus::default();
    let status = sync.status.as_ref().unwrap_or(&none);
    let target = target::of_spec(&sync.spec)?;
    let progress = progress(status, &Admitted::of(sync, &target, cluster_id));
    explain::took(admitted, &progress)
}

fn median(mut times: Vec<Duration>) -> Option<Duration> {
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

/// Whether the release fails on a cluster: the hash of its UID and the seed is below the share.
fn fails(uid: &str, seed: u64, share: f64) -> bool {
    let hash = hash64(&["fails", &seed.to_string(), uid]);
    #[expect(clippy::cast_precision_loss, reason = "a share needs no more digits")]
    let place = hash as f64 / u64::MAX as f64;
    place < share
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn group() -> SyncGroup {
        serde_json::from_value(json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup", "metadata": {"name": "shop"},
            "spec": {"clusterSelector": {}, "syncs": [{"name": "app", "sourceRef": {"name": "shop"}, "path": "app"}]},
        }))
        .unwrap()
    }

    fn cluster(suspend: bool, ready: Option<&str>) -> Cluster {
        let ready = ready.into_iter().map(|status| {
            json!({"type": "Ready", "status": status, "reason": "R", "message": "m", "observedGeneration": 1,
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        });
        serde_json::from_value(json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "Cluster", "metadata": {"name": "eu", "generation": 1},
            "spec": {"kubeConfig": {"secretRef": {"name": "s"}}, "suspend": suspend},
            "status": {"conditions": ready.collect::<Vec<_>>(), "clusterID": "id"},
        }))
        .unwrap()
    }

    #[test]
    fn clusters_keep_their_reachability() {
        assert_eq!(lasting_reach(&cluster(true, Some("True"))), Reach::Suspended);
        assert_eq!(lasting_reach(&cluster(false, Some("True"))), Reach::Ready);
        assert_eq!(lasting_reach(&cluster(false, None)), Reach::Ready);
        let lost = lasting_reach(&cluster(false, Some("False")));
        assert!(matches!(lost, Reach::Unreachable { .. }), "{lost:?}");
    }

    /// The update took half a minute a month ago; a recovery yesterday says nothing about the duration of an update.
    #[test]
    fn a_recovery_gives_no_duration() {
        let of = |more: serde_json::Value| {
            let mut sync: SyncResource = serde_json::from_value(json!({
                "apiVersion": "starling.dev/v1alpha1", "kind": "Sync",
                "metadata": {"name": "shop-app-eu", "annotations": {ADMITTED_AT: "2026-10-01T00:00:00Z"}},
                "spec": {"clusterRef": {"name": "eu"}, "revision": "main@sha1:0", "sourceRef": {"name": "shop"}, "path": "app",
                    "wait": true},
            }))
            .unwrap();
            let target = target::of_spec(&sync.spec).unwrap();
            let mut status = json!({"lastAppliedTarget": target, "lastAttemptedTarget": target, "lastHealthyTarget": target,
                "lastAppliedClusterID": "id"});
            for (field, value) in more.as_object().unwrap() {
                status[field] = value.clone();
            }
            sync.status = Some(serde_json::from_value(status).unwrap());
            let objects = GroupObjects {
                group: group(),
                clusters: BTreeMap::new(),
                syncs: [(("eu".to_owned(), "app".to_owned()), sync)].into(),
            };
            recorded_duration(&objects, &cluster(false, Some("True")))
        };
        let first = of(json!({"healthySince": "2026-10-01T00:00:30Z"}));
        assert_eq!(first, Some(Duration::from_secs(30)));
        let mended = of(json!({"healthySince": "2026-10-30T00:00:00Z", "longestHealthy": "700h"}));
        assert_eq!(mended, None);
    }

    #[test]
    fn a_larger_share_of_failures_has_the_clusters_of_a_smaller_one() {
        let drawn =
            |share| -> Vec<u32> { (0..2_000).filter(|n| fails(&format!("u{n}"), 7, share)).collect() };
        let (few, many) = (drawn(0.05), drawn(0.2));
        assert!(
            (60..140).contains(&few.len()) && (320..480).contains(&many.len()),
            "{} {}",
            few.len(),
            many.len()
        );
        assert!(few.iter().all(|n| many.contains(n)));
        assert!(drawn(0.0).is_empty());
        assert_eq!(drawn(1.0).len(), 2_000);
    }
}
