//! The CRs at each moment.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;
use serde::de::DeserializeOwned;
use starling_api::conditions::{self, Condition, READY};
use starling_api::{
    Cluster, DeletionApproval, RolloutAction, RolloutApproval, Source, Stage, SyncGroup, SyncResource,
};

use super::history::{Verb, Write};

/// Namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Id {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Id {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }
}

/// One version of an object.
#[derive(Clone, Debug)]
pub(crate) struct Version<T> {
    pub(crate) at: Timestamp,
    /// Its index in the journal.
    pub(crate) index: usize,
    /// The field manager of the write.
    pub(crate) manager: String,
    pub(crate) verb: Verb,
    /// The written object; for a deletion the last version.
    pub(crate) object: T,
}

/// All versions under one name, in order.
#[derive(Clone, Debug)]
pub(crate) struct Track<T>(Vec<Version<T>>);

impl<T> Default for Track<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Track<T> {
    pub(crate) fn versions(&self) -> &[Version<T>] {
        &self.0
    }

    /// Returns the current version at a moment, writes of that moment included.
    pub(crate) fn at(&self, at: Timestamp) -> Option<&Version<T>> {
        let known = self.0.partition_point(|version| version.at <= at);
        self.0[..known]
            .last()
            .filter(|version| version.verb != Verb::Delete)
    }

    /// Returns the current version before a write of the journal.
    pub(crate) fn before(&self, index: usize) -> Option<&Version<T>> {
        let known = self.0.partition_point(|version| version.index < index);
        self.0[..known]
            .last()
            .filter(|version| version.verb != Verb::Delete)
    }

    /// Returns all versions that were current at some moment of a span, both ends included.
    pub(crate) fn during(&self, from: Timestamp, to: Timestamp) -> impl Iterator<Item = &Version<T>> {
        let first = self.at(from);
        let later = self
            .0
            .iter()
            .filter(move |version| version.at > from && version.at <= to && version.verb != Verb::Delete);
        first.into_iter().chain(later)
    }

    /// Returns the times of changes and deletions after the start of a span and until its end.
    pub(crate) fn changes(&self, from: Timestamp, to: Timestamp) -> impl Iterator<Item = Timestamp> {
        let times = self.0.iter().map(|version| version.at);
        times.filter(move |at| *at > from && *at <= to)
    }

    /// Whether the object existed during a whole span and always met a condition.
    pub(crate) fn always(&self, from: Timestamp, to: Timestamp, is: impl Fn(&T) -> bool) -> bool {
        let is_deleted =
            |version: &&Version<T>| version.verb == Verb::Delete && version.at > from && version.at <= to;
        self.at(from).is_some()
            && !self.0.iter().any(|version| is_deleted(&version))
            && self.during(from, to).all(|version| is(&version.object))
    }
}

/// All CRs.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    pub(crate) sources: BTreeMap<Id, Track<Source>>,
    pub(crate) clusters: BTreeMap<Id, Track<Cluster>>,
    pub(crate) syncs: BTreeMap<Id, Track<SyncResource>>,
    pub(crate) groups: BTreeMap<Id, Track<SyncGroup>>,
    pub(crate) actions: BTreeMap<Id, Track<RolloutAction>>,
    pub(crate) approvals: BTreeMap<Id, Track<RolloutApproval>>,
    pub(crate) deletion_approvals: BTreeMap<Id, Track<DeletionApproval>>,
}

impl Hub {
    /// Reads the journal. Objects that cannot be parsed as their kind are omitted: nothing can act on them.
    pub(crate) fn read(writes: &[Write]) -> Self {
        let mut hub = Self::default();
        for (index, write) in writes.iter().enumerate() {
            if write.group != starling_api::GROUP {
                continue;
            }
            match write.kind.as_str() {
                "Source" => add(&mut hub.sources, index, write),
                "Cluster" => add(&mut hub.clusters, index, write),
                "Sync" => add(&mut hub.syncs, index, write),
                "SyncGroup" => add(&mut hub.groups, index, write),
                "RolloutAction" => add(&mut hub.actions, index, write),
                "RolloutApproval" => add(&mut hub.approvals, index, write),
                "DeletionApproval" => add(&mut hub.deletion_approvals, index, write),
                _ => {}
            }
        }
        hub
    }

    /// Returns a Cluster by its name alone.
    pub(crate) fn cluster(&self, name: &str) -> Option<&Track<Cluster>> {
        let found = self.clusters.iter().find(|(id, _)| id.name == name);
        found.map(|(_, track)| track)
    }

    /// Returns the names of the clusters that a version of a group selects at a moment.
    pub(crate) fn selected(&self, namespace: &str, group: &SyncGroup, at: Timestamp) -> Vec<&str> {
        self.clusters
            .iter()
            .filter(|(id, _)| id.namespace == namespace)
            .filter(|(_, track)| {
                track
                    .at(at)
                    .is_some_and(|cluster| selects(&group.spec.cluster_selector, cluster.object.labels()))
            })
            .map(|(id, _)| id.name.as_str())
            .collect()
    }

    /// Whether a group of a namespace selected the cluster during a whole span, and the cluster always met a condition.
    pub(crate) fn always_selected(
        &self,
        group: &SyncGroup,
        cluster: &Id,
        (from, to): (Timestamp, Timestamp),
        is: impl Fn(&Cluster) -> bool,
    ) -> bool {
        let and_so =
            |cluster: &Cluster| selects(&group.spec.cluster_selector, cluster.labels()) && is(cluster);
        self.clusters
            .get(cluster)
            .is_some_and(|track| track.always(from, to, and_so))
    }
}

fn add<T: DeserializeOwned>(tracks: &mut BTreeMap<Id, Track<T>>, index: usize, write: &Write) {
    let Ok(object) = T::deserialize(&write.object) else {
        return;
    };
    let track = tracks.entry(Id::new(&write.namespace, &write.name)).or_default();
    track.0.push(Version {
        at: write.at,
        index,
        manager: write.manager.clone(),
        verb: write.verb,
        object,
    });
}

/// Returns the index of the stage that selects a cluster; clusters that no stage selects form the last one.
pub(crate) fn stage_of(stages: &[Stage], cluster: &Cluster) -> usize {
    let place = stages
        .iter()
        .position(|stage| selects(&stage.cluster_selector, cluster.labels()));
    place.unwrap_or(stages.len())
}

/// Whether a label selector matches, as Kubernetes defines it.
pub(crate) fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let pairs = selector.match_labels.iter().flatten();
    let expressions = selector.match_expressions.iter().flatten();
    pairs
        .into_iter()
        .all(|(key, value)| labels.get(key) == Some(value))
        && expressions.into_iter().all(|expression| {
            let value = labels.get(&expression.key);
            let named = value.is_some_and(|value| expression.values.iter().flatten().any(|v| v == value));
            match expression.operator.as_str() {
                "In" => named,
                "NotIn" => !named,
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        })
}

/// Returns the condition Ready.
pub(crate) fn ready(conditions: &[Condition]) -> Option<&Condition> {
    conditions::find(conditions, READY)
}

/// Whether a Cluster reports that its member is reachable.
pub(crate) fn is_reachable(cluster: &Cluster) -> bool {
    let conditions = cluster.status.as_ref().map(|status| &*status.conditions);
    !cluster.spec.suspend && ready(conditions.unwrap_or_default()).is_some_and(|c| c.status == "True")
}

/// Converts a duration of the API.
pub(crate) fn span(duration: starling_api::Duration) -> SignedDuration {
    SignedDuration::try_from(duration.as_std()).unwrap_or(SignedDuration::MAX)
}

/// Adds a span to a moment; saturates.
pub(crate) fn after(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// Subtracts a span from a moment; saturates.
pub(crate) fn earlier(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.checked_sub(by).unwrap_or(Timestamp::MIN)
}
