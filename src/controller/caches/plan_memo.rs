//! The memo of a group's plans: values that the next plan reuses, above all the targets of the clusters.
//!
//! A target is a digest of a whole template. A plan needs two targets for each cluster and entry. During a rollout
//! plans follow each other closely, and few specs change between two plans. Each value carries the state of the objects
//! that it was computed from, so it is as good as a new computation. Values that a plan of all clusters does not use
//! are dropped.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kube::ResourceExt;
use starling_api::SyncGroup;
use starling_core::expand::ParameterError;
use starling_core::ids::{ClusterName, EntryName, ReleaseDigest, RolloutNumber, TargetDigest};
use starling_core::plan::{ClusterView, Place};
use starling_core::rollout::ReleaseSnapshot;

use super::views::ViewCache;
use crate::controller::keyed::{Keyed, per_object};
use crate::controller::object_key::ObjectKey;

/// The state of an object that a value was computed from: a UID, and a generation or a resource version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectState(String, String);

impl ObjectState {
    /// Returns the state of the spec; the status does not count.
    pub fn spec<K: ResourceExt>(object: &K) -> Self {
        let generation = object.meta().generation.unwrap_or_default();
        Self(object.uid().unwrap_or_default(), generation.to_string())
    }

    /// Returns the state of the whole object.
    pub fn whole<K: ResourceExt>(object: &K) -> Self {
        Self(
            object.uid().unwrap_or_default(),
            object.resource_version().unwrap_or_default(),
        )
    }
}

/// Computed values for each cluster and entry, with the state that each was computed from.
#[derive(Debug)]
pub struct Memo<O, T> {
    before: HashMap<(ClusterName, EntryName), (O, T)>,
    now: HashMap<(ClusterName, EntryName), (O, T)>,
}

impl<O, T> Default for Memo<O, T> {
    fn default() -> Self {
        Self {
            before: HashMap::new(),
            now: HashMap::new(),
        }
    }
}

impl<O: PartialEq, T: Clone> Memo<O, T> {
    /// Begins a plan of all clusters.
    fn begin(&mut self) {
        self.before.extend(std::mem::take(&mut self.now));
    }

    /// Returns the value for a state, and computes it if necessary.
    pub fn get(&mut self, cluster: &ClusterName, entry: &str, of: O, compute: impl FnOnce() -> T) -> T {
        let key = (cluster.clone(), entry.into());
        let known = self.now.remove(&key).or_else(|| self.before.remove(&key));
        let kept = known
            .filter(|(known, _)| *known == of)
            .unwrap_or_else(|| (of, compute()));
        let value = kept.1.clone();
        self.now.insert(key, kept);
        value
    }

    /// Ends a plan. Values that a plan of all clusters did not use are dropped; other plans leave none unused.
    fn end(&mut self) {
        self.before = HashMap::new();
    }
}

/// Targets by the state of the Cluster, the state of the group, and the digest of the release. The digest covers the
/// templates, but a release that was not stored is read with the group's current templates.
pub type Wanted = Memo<(ObjectState, ObjectState, ReleaseDigest), Result<Expanded, ParameterError>>;

/// An entry on one cluster.
#[derive(Clone, Debug)]
pub struct Expanded {
    /// The target of the entry.
    pub target: TargetDigest,
    /// What an approval covers besides the release.
    pub covered: Covered,
}

/// What an approval covers of an entry on one cluster, besides the release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Covered {
    /// The directory and namespace of the build.
    pub directory: Directory,
    /// The values from labels and annotations of the cluster.
    pub values: BTreeMap<String, String>,
}

/// What an approval covers of an entry on all clusters, besides the release.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoveredEntry {
    /// The directories.
    pub directories: Directories,
    /// The values, by cluster; without clusters that have none.
    pub values: BTreeMap<String, BTreeMap<String, String>>,
}

/// The memo for the plans of one group.
#[derive(Debug, Default)]
pub struct PlanMemo {
    /// The target of each entry of the current release on each cluster.
    pub wanted: Wanted,
    /// The target of each entry of the last known good release on each cluster.
    pub good: Wanted,
    /// The target in the spec of each Sync.
    pub admitted: Memo<ObjectState, Option<TargetDigest>>,
    /// The planner's view of each cluster, by the group, the current release and the last known good release.
    pub views: ViewCache<(ObjectState, ReleaseDigest, ReleaseDigest), ClusterView>,
    /// The places of clusters that several stages select. Valid for the same clusters as the views.
    pub overlaps: BTreeMap<ClusterName, Place>,
    /// What an approval covers of each entry on each cluster without missing parameters, if an approval needs it. Valid
    /// for the same clusters as the views.
    pub covered: BTreeMap<ClusterName, BTreeMap<String, Covered>>,
    /// The release digest of the rollout, if an approval needs it.
    pub digested: Option<Digested>,
}

/// The release digest of a rollout.
#[derive(Clone, Debug)]
pub struct Digested {
    /// UID of the group: another group with the same name has other rollouts with the same numbers.
    pub group_uid: String,
    /// The digest of the release.
    pub release: ReleaseDigest,
    /// The number of the rollout.
    pub rollout: RolloutNumber,
    /// What the digest covers of each entry. A cluster that joins, leaves or changes may change it.
    pub over: Vec<CoveredEntry>,
    /// The digest.
    pub digest: String,
}

impl Digested {
    /// Returns whether the digest is of this rollout of this group.
    #[must_use]
    pub fn is_of(&self, group: &SyncGroup, rollout: RolloutNumber, release: &str) -> bool {
        group.uid().is_some_and(|uid| uid == self.group_uid)
            && self.rollout == rollout
            && self.release == release
    }
}

/// The path and the target namespace of an entry.
pub type Directory = (String, String);

/// The directories of an entry on all clusters.
pub type Directories = BTreeSet<Directory>;

impl PlanMemo {
    /// Begins a plan of all clusters.
    pub fn begin(&mut self) {
        self.wanted.begin();
        self.good.begin();
        self.admitted.begin();
    }

    /// Returns what an approval covers of each entry of a release, in its order, by the last plan.
    #[must_use]
    pub fn covered_by(&self, release: &ReleaseSnapshot) -> Vec<CoveredEntry> {
        let entries = release.entries.iter();
        entries.map(|entry| self.covered_of(&entry.name)).collect()
    }

    /// Returns what an approval covers of an entry on all clusters. A cluster without a parameter has nothing.
    fn covered_of(&self, entry: &str) -> CoveredEntry {
        let mut all = CoveredEntry::default();
        for (cluster, of) in &self.covered {
            let Some(Covered { directory, values }) = of.get(entry) else {
                continue;
            };
            if !all.directories.contains(directory) {
                all.directories.insert(directory.clone());
            }
            if !values.is_empty() {
                all.values.insert(cluster.to_string(), values.clone());
            }
        }
        all
    }
}

/// The memos of all groups. At most one worker reconciles a group at a time, so each memo has one user.
#[derive(Debug, Default)]
pub struct PlanMemos(Keyed<PlanMemo>);

per_object!(PlanMemos, 0);

impl PlanMemos {
    /// Takes the memo of a group.
    #[must_use]
    pub fn take(&self, group: &ObjectKey) -> PlanMemo {
        self.0.take(group).unwrap_or_default()
    }

    /// Keeps the memo for the next reconcile.
    pub fn put(&self, group: &ObjectKey, mut known: PlanMemo) {
        known.wanted.end();
        known.good.end();
        known.admitted.end();
        self.0.set(group, known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_computed_once_for_a_state_and_dropped_when_it_is_not_used() {
        let (memos, group) = (PlanMemos::default(), ObjectKey::new("ns", "g"));
        let mut computed = Vec::new();
        // Clusters and their generations, plan by plan.
        for plan in [
            vec![("a", 1), ("b", 1)],
            vec![("a", 1), ("b", 2)],
            vec![("b", 2)],
            vec![("a", 1), ("b", 2)],
        ] {
            let mut known = memos.take(&group);
            known.begin();
            for (cluster, generation) in plan {
                let of = ObjectState("uid".into(), generation.to_string());
                let value = Some(TargetDigest::new(format!("{cluster}{generation}")));
                let got = known.admitted.get(&cluster.into(), "app", of, || {
                    computed.push(value.clone().unwrap());
                    value.clone()
                });
                assert_eq!(got, value);
            }
            memos.put(&group, known);
        }
        assert_eq!(computed, ["a1", "b1", "b2", "a1"]);
    }
}
