//! What a plan of a group needs, kept from one reconcile to the next: above all the targets of its clusters.
//!
//! A target is a digest of a whole template. A plan needs two for each cluster and entry, and during a rollout plans
//! follow each other, while hardly any of the specs behind them changes. What is kept names the state that it is of, so
//! it is as good as what is computed; what a plan of all clusters has not used is not kept any longer.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kube::ResourceExt;
use starling_api::SyncGroup;
use starling_core::expand::ParameterError;
use starling_core::plan::{ClusterView, Place};

use super::cache::ObjectKey;
use super::views::ViewCache;
use crate::controller::keyed::{Keyed, per_object};

/// The state of an object that something was computed from: a UID, and a generation or resource version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectState(String, String);

impl ObjectState {
    /// The spec of an object, whatever its status is.
    pub fn spec<K: ResourceExt>(object: &K) -> Self {
        let generation = object.meta().generation.unwrap_or_default();
        Self(object.uid().unwrap_or_default(), generation.to_string())
    }

    /// The whole object.
    pub fn whole<K: ResourceExt>(object: &K) -> Self {
        Self(
            object.uid().unwrap_or_default(),
            object.resource_version().unwrap_or_default(),
        )
    }
}

/// What was computed for each cluster and entry, and of what.
#[derive(Debug)]
pub struct Memo<O, T> {
    before: HashMap<(String, String), (O, T)>,
    now: HashMap<(String, String), (O, T)>,
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

    /// What was computed of the same state, or what is computed now.
    pub fn get(&mut self, cluster: &str, entry: &str, of: O, compute: impl FnOnce() -> T) -> T {
        let key = (cluster.to_owned(), entry.to_owned());
        let known = self.now.remove(&key).or_else(|| self.before.remove(&key));
        let kept = known
            .filter(|(known, _)| *known == of)
            .unwrap_or_else(|| (of, compute()));
        let value = kept.1.clone();
        self.now.insert(key, kept);
        value
    }

    /// Ends a plan. What a plan of all clusters did not use is dropped; others leave nothing unused.
    fn end(&mut self) {
        self.before = HashMap::new();
    }
}

/// Targets of the Cluster, the group and the digest of the release: the digest covers the templates, but a release that
/// was not kept is read with the group's templates of today.
pub type Wanted = Memo<(ObjectState, ObjectState, String), Result<Expanded, ParameterError>>;

/// An entry on one cluster.
#[derive(Clone, Debug)]
pub struct Expanded {
    /// Its target.
    pub target: String,
    /// What it is built from and for.
    pub folder: Folder,
}

/// What is kept for the plans of one group.
#[derive(Debug, Default)]
pub struct PlanMemo {
    /// What each entry of the release that rolls wants on each cluster.
    pub wanted: Wanted,
    /// The same of the release that succeeded last.
    pub good: Wanted,
    /// The target that the spec of each Sync names.
    pub admitted: Memo<ObjectState, Option<String>>,
    /// The view of each cluster that the planner gets: of the group, the release that rolls, and the one that was good.
    pub views: ViewCache<(ObjectState, String, String), ClusterView>,
    /// Where those clusters belong that several stages select: as the views are, of the clusters that there are.
    pub overlaps: BTreeMap<String, Place>,
    /// The folders of each entry on each cluster that lacks no parameter, where they need an approval: as the views
    /// are, of the clusters that there are.
    pub folders: BTreeMap<String, BTreeMap<String, Folder>>,
    /// What the rollout renders to, where an approval needs it.
    pub digested: Option<Digested>,
}

/// What a rollout renders to.
#[derive(Clone, Debug)]
pub struct Digested {
    /// UID of the group: another one of its name has other rollouts of the same numbers.
    pub group_uid: String,
    /// The digest of the release.
    pub release: String,
    /// The number of the rollout.
    pub rollout: i64,
    /// The folders of each entry that it was computed over. Clusters bring folders with them, and take them away.
    pub over: Vec<Folders>,
    /// The digest.
    pub digest: String,
}

impl Digested {
    /// Whether it is about this rollout of this group.
    #[must_use]
    pub fn is_of(&self, group: &SyncGroup, rollout: i64, release: &str) -> bool {
        group.uid().is_some_and(|uid| uid == self.group_uid)
            && self.rollout == rollout
            && self.release == release
    }
}

/// The folder and namespace that an entry is built from and for.
pub type Folder = (String, String);

/// Those of an entry on all clusters.
pub type Folders = BTreeSet<Folder>;

impl PlanMemo {
    /// Begins a plan of all clusters.
    pub fn begin(&mut self) {
        self.wanted.begin();
        self.good.begin();
        self.admitted.begin();
    }

    /// The folders of an entry on all clusters. A cluster that lacks a parameter gets nothing.
    #[must_use]
    pub fn folders_of(&self, entry: &str) -> Folders {
        let folders: BTreeSet<&Folder> = self.folders.values().filter_map(|of| of.get(entry)).collect();
        folders.into_iter().cloned().collect()
    }
}

/// What is kept for all groups. A group is worked on by one worker at a time, so each has one user.
#[derive(Debug, Default)]
pub struct PlanMemos(Keyed<PlanMemo>);

per_object!(PlanMemos, 0);

impl PlanMemos {
    /// Takes what is kept for a group.
    #[must_use]
    pub fn take(&self, group: &ObjectKey) -> PlanMemo {
        self.0.take(group).unwrap_or_default()
    }

    /// Keeps it for the next reconcile.
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
                let value = Some(format!("{cluster}{generation}"));
                let got = known.admitted.get(cluster, "app", of, || {
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
