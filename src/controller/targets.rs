//! The targets of a group's clusters, kept from one look at it to the next.
//!
//! A target is a digest of a whole template. A look needs two for each cluster and entry, and during a rollout looks follow
//! each other, while hardly any of the specs behind them changes. What is kept says of which state it is, so it is as good as
//! what is computed; what a look at all clusters has not used is not kept any longer.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use kube::ResourceExt;
use starling_core::plan::{ClusterView, Place};

use super::cache::ObjectKey;
use super::views::Views;

/// The state of an object that something was computed from: a UID, and a generation or resource version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Of(String, String);

impl Of {
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
    /// Begins a look at all clusters.
    fn begin(&mut self) {
        self.before.extend(std::mem::take(&mut self.now));
    }

    /// What was computed of the same state, or what is computed now.
    pub fn get(&mut self, cluster: &str, entry: &str, of: O, compute: impl FnOnce() -> T) -> T {
        let slot = (cluster.to_owned(), entry.to_owned());
        let known = self.now.remove(&slot).or_else(|| self.before.remove(&slot));
        let kept = known
            .filter(|(known, _)| *known == of)
            .unwrap_or_else(|| (of, compute()));
        let value = kept.1.clone();
        self.now.insert(slot, kept);
        value
    }

    /// Ends a look. What a look at all clusters did not use is let go; others leave nothing unused.
    fn end(&mut self) {
        self.before = HashMap::new();
    }
}

/// Targets of the Cluster, the group and the digest of the release: the digest covers the templates, but a release that was not
/// kept is read with the group's templates of today.
pub type Wanted = Memo<(Of, Of, String), Result<Expanded, String>>;

/// An entry on one cluster.
#[derive(Clone, Debug)]
pub struct Expanded {
    /// Its target.
    pub target: String,
    /// What it is built from and for.
    pub folder: Folder,
}

/// What the looks at one group keep.
#[derive(Debug, Default)]
pub struct Known {
    /// What each entry of the release that rolls wants on each cluster.
    pub wanted: Wanted,
    /// The same of the release that succeeded last.
    pub good: Wanted,
    /// What each Sync says: of its spec.
    pub said: Memo<Of, Option<String>>,
    /// What the planner is told of each cluster: of the group, the release that rolls, and the one that was good.
    pub views: Views<(Of, String, String), ClusterView>,
    /// Where those clusters belong that several stages select: as the views are, of the clusters that there are.
    pub overlaps: BTreeMap<String, Place>,
    /// The folders of each entry on each cluster that lacks no parameter, where somebody is to approve them: as the views are, of the
    /// clusters that there are.
    pub folders: BTreeMap<String, BTreeMap<String, Folder>>,
    /// What the digest of a rollout was worked out over: its number, and the folders of each entry.
    pub digested: Option<(i64, Vec<Folders>)>,
}

/// The folder and namespace that an entry is built from and for.
pub type Folder = (String, String);

/// Those of an entry on all clusters.
pub type Folders = BTreeSet<Folder>;

impl Known {
    /// Begins a look at all clusters.
    pub fn begin(&mut self) {
        self.wanted.begin();
        self.good.begin();
        self.said.begin();
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
pub struct Targets(Mutex<HashMap<ObjectKey, Known>>);

impl Targets {
    /// Takes what is kept for a group.
    #[must_use]
    pub fn take(&self, group: &ObjectKey) -> Known {
        self.lock().remove(group).unwrap_or_default()
    }

    /// Keeps it for the next look.
    pub fn put(&self, group: &ObjectKey, mut known: Known) {
        known.wanted.end();
        known.good.end();
        known.said.end();
        self.lock().insert(group.clone(), known);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ObjectKey, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_computed_once_for_a_state_and_let_go_when_it_is_not_used() {
        let (targets, group) = (Targets::default(), ObjectKey::new("ns", "g"));
        let mut computed = Vec::new();
        // Clusters and their generations, look by look.
        for look in [
            vec![("a", 1), ("b", 1)],
            vec![("a", 1), ("b", 2)],
            vec![("b", 2)],
            vec![("a", 1), ("b", 2)],
        ] {
            let mut known = targets.take(&group);
            known.begin();
            for (cluster, generation) in look {
                let of = Of("uid".into(), generation.to_string());
                let value = Some(format!("{cluster}{generation}"));
                let got = known.said.get(cluster, "app", of, || {
                    computed.push(value.clone().unwrap());
                    value.clone()
                });
                assert_eq!(got, value);
            }
            targets.put(&group, known);
        }
        assert_eq!(computed, ["a1", "b1", "b2", "a1"]);
    }
}
