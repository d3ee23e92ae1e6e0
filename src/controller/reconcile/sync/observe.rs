//! The observations of one pass over a Sync, from the caches alone. Nothing is validated.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt as _;
use starling_api::{Cluster, GroupRef, Source, SyncGroup, SyncResource, SyncSpec, SyncStatus};
use starling_core::deletion_approval::Approvals;
use starling_core::depend::Dependencies;
use starling_core::plan::Reach;
use starling_core::release::rolled_revision;
use starling_core::request::Requests;
use starling_core::step::SyncCluster;
use starling_core::target::{self, Owner};
use tokio::time::Instant;

use super::super::cluster::reach;
use super::super::group_state::{Stop, prune_stop};
use super::{approvals, dependencies};
use crate::controller::caches::connections::Connection;
use crate::controller::caches::prune_requests;
use crate::controller::caches::waiting_syncs::Awaited;
use crate::controller::context::SyncContext;
use crate::controller::event_handlers::entries;
use crate::controller::object_key::ObjectKey;
use crate::controller::waits;
use starling_core::ids::{ClusterId, OwnerLabel, TargetDigest, Uid};

/// A Sync and the objects that it depends on.
#[derive(Clone)]
pub(super) struct SyncSnapshot {
    pub(super) key: ObjectKey,
    /// The Sync as stored: parameters are not resolved, and fields may be invalid.
    pub(super) object: Arc<SyncResource>,
    /// The last written status; the default if none was written.
    pub(super) status: SyncStatus,
    pub(super) source: Option<Arc<Source>>,
    pub(super) cluster: Option<Arc<Cluster>>,
    pub(super) group: Option<Arc<SyncGroup>>,
    pub(super) cluster_id: ClusterId,
    pub(super) connection: Option<Arc<Connection>>,
    /// Whether the cluster was left as ready, by an earlier process or over an earlier connection, and was not probed
    /// since. Both status and members stay as they are until then: the probe follows within seconds, and enqueues the
    /// Sync.
    pub(super) awaits_first_probe: bool,
    pub(super) dependencies: Dependencies,
    pub(super) owner: OwnerLabel,
    /// The approvals of deletions that apply to the Sync.
    pub(super) approvals: Approvals,
    /// Why deletions that are pending or held wait for the group; `None` also if there are none.
    pub(super) stop: Option<Stop>,
}

pub(super) fn observe(context: SyncContext<'_>, key: &ObjectKey) -> Option<SyncSnapshot> {
    let object = context.objects.syncs.get(key)?;
    let cluster_key = ObjectKey::new(&key.namespace, &object.spec.cluster_ref.name);
    let source_key = ObjectKey::new(&key.namespace, &object.spec.template.source_ref.name);
    let cluster = context.objects.clusters.get(&cluster_key);
    let group = object.spec.group_ref.as_ref();
    let group = group.map(|group| ObjectKey::new(&key.namespace, &group.name));
    let owner = match &object.spec.group_ref {
        Some(GroupRef { name, entry }) => Owner::Entry { group: name, entry },
        None => Owner::Alone { sync: &key.name },
    };
    let group = group.and_then(|group| context.objects.groups.get(&group));
    let has_deletions = object
        .status
        .as_ref()
        .is_some_and(|status| status.pending_deletions.is_some() || status.held_deletions.is_some());
    let stop = has_deletions.then(|| {
        let now = context.clock.now();
        let of_group = |group| prune_stop(context.objects, group, cluster.as_deref(), now);
        group.as_deref().and_then(of_group).or_else(|| {
            let hold = || prune_hold(context, group.as_deref()?, &object);
            let why = dependencies::dependents_left(context, key, &object).or_else(hold)?;
            Some(Stop { why, until: None })
        })
    });
    let stop = stop.flatten();
    // Nothing is written to a member before it was checked, and its identity is known.
    let is_checked = context.number_checks.is_tried(&cluster_key);
    let connection = context.connections.get(&cluster_key).filter(|_| is_checked);
    // The Cluster was read before the connection, which may lead to another member by now.
    let cluster_id = cluster.as_deref().map(ClusterId::of).unwrap_or_default();
    let awaits_probe = connection
        .as_ref()
        .map_or(!is_checked, |found| !found.leads_to(&cluster_id));
    Some(SyncSnapshot {
        stop,
        approvals: approvals::observe(context, key, &object, group.as_deref()),
        owner: target::owner(context.installation, &key.namespace, owner),
        status: object.status.clone().unwrap_or_default(),
        dependencies: dependencies::observe(context, key, &object),
        source: context.objects.sources.get(&source_key),
        connection: connection.filter(|found| found.leads_to(&cluster_id)),
        awaits_first_probe: awaits_probe
            && cluster
                .as_ref()
                .is_some_and(|cluster| reach(cluster) == Reach::Ready),
        cluster_id,
        key: key.clone(),
        cluster,
        group,
        object,
    })
}

/// Returns why the last plan of the group held a prune of the Sync. The group enqueues the Sync once one allows it.
fn prune_hold(context: SyncContext<'_>, group: &SyncGroup, sync: &SyncResource) -> Option<String> {
    let hold = context.prune_requests.hold(&ObjectKey::of(group), sync)?;
    Some(prune_requests::why(&group.name_any(), Some(hold)))
}

impl SyncSnapshot {
    /// Returns the observation with the Sync as the management cluster has it now.
    pub(super) fn with_object(mut self, object: SyncResource) -> Self {
        self.status = object.status.clone().unwrap_or_default();
        self.object = Arc::new(object);
        self
    }

    pub(super) fn generation(&self) -> i64 {
        self.object.metadata.generation.unwrap_or(0)
    }

    pub(super) fn uid(&self) -> Uid {
        Uid::of(&*self.object)
    }

    /// Returns the time of the last attempt by status; `None` if there was none.
    pub(super) fn last_attempt(&self) -> Option<Timestamp> {
        self.status.last_attempt_time.parse().ok()
    }

    /// Returns the requests of a reconcile by annotation.
    pub(super) fn requests(&self) -> Requests<'_> {
        Requests::of(&self.object, self.cluster.as_deref(), self.group.as_deref())
    }

    /// Returns whether a reconcile was requested by annotation and not handled yet.
    pub(super) fn requested(&self) -> bool {
        self.requests().are_open(&self.status)
    }

    pub(super) fn source_revision(&self) -> Option<&str> {
        let status = self.source.as_ref()?.status.as_ref()?;
        Some(status.revision.as_str()).filter(|revision| !revision.is_empty())
    }

    /// Returns the digest of the target for a spec of this Sync; `None` while there is no revision.
    pub(super) fn target_of(&self, spec: &SyncSpec) -> Option<TargetDigest> {
        let revision = match (&spec.group_ref, spec.revision.as_str()) {
            (None, "") => self.source_revision()?,
            (Some(_), "") => return None,
            (_, revision) => revision,
        };
        Some(target::of_sync(revision, &spec.template))
    }

    /// Returns reachability and identity of the cluster. Without a connection of this process the cluster counts as not
    /// probed, whatever an earlier process wrote to status: the Cluster loop creates a connection and enqueues this
    /// Sync.
    pub(super) fn cluster_state(&self) -> Option<SyncCluster<'_>> {
        let reach = match reach(self.cluster.as_ref()?) {
            Reach::Ready if self.connection.is_none() => Reach::Unprobed,
            reach => reach,
        };
        Some(SyncCluster {
            reach,
            id: &self.cluster_id,
        })
    }

    /// Returns the name of the Cluster.
    pub(super) fn cluster_name(&self) -> &str {
        &self.object.spec.cluster_ref.name
    }

    pub(super) fn cluster_key(&self) -> ObjectKey {
        ObjectKey::new(&self.key.namespace, self.cluster_name())
    }

    /// Returns the key of the SyncGroup; `None` without a group.
    pub(super) fn group_key(&self) -> Option<ObjectKey> {
        let group = self.object.spec.group_ref.as_ref()?;
        Some(ObjectKey::new(&self.key.namespace, &group.name))
    }

    /// Returns `retryInterval`.
    pub(super) fn retry_interval(&self) -> Duration {
        self.object.spec.template.retry_interval.as_std()
    }

    /// Returns the deadline of an attempt that begins now.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.object.spec.template.timeout.as_std().max(waits::SYNC_MIN)
    }

    /// Returns whether the Sync's entry was removed from its group. Such a Sync is not reconciled until the group
    /// deletes it, or has the entry again.
    ///
    /// A release that has the entry may still roll out, with `onNewRevision: Finish` or in a rollback. Its clusters are
    /// done only once the Sync is.
    pub(super) fn is_retired(&self) -> bool {
        let (Some(of), Some(group)) = (&self.object.spec.group_ref, &self.group) else {
            return false;
        };
        !entries(group).any(|entry| entry == of.entry)
    }

    /// Returns whether the release that rolls out lacks the entry of the Sync: after a rollback, until the Sync is
    /// removed, for which an automatic rollback needs a person.
    fn is_left_behind(&self) -> bool {
        let (Some(of), Some(group)) = (&self.object.spec.group_ref, &self.group) else {
            return false;
        };
        let rollout = group.status.as_ref().and_then(|status| status.rollout.as_ref());
        rollout.is_some_and(|rollout| {
            !rollout.revisions.is_empty() && rolled_revision(rollout, &of.entry).is_none()
        })
    }

    /// Returns the entry of the Sync; `None` without a group.
    pub(super) fn awaited_entry(&self) -> Option<Awaited> {
        let of = self.object.spec.group_ref.as_ref()?;
        Some(Awaited::entry(&self.group_key()?, &of.entry))
    }

    /// Returns whether the group will delete the Sync: its entry was removed, the release lacks it, or its cluster left
    /// the selection. Its objects belong to the Sync that renders them.
    pub(super) fn leaves(&self) -> bool {
        let group = self.group.as_ref();
        self.is_retired()
            || self.is_left_behind()
            || group.is_some_and(|group| is_unselected(group, self.cluster_name()))
    }
}

/// Reports whether a cluster with Syncs of a group is not selected, as the group has recorded it.
pub(super) fn is_unselected(group: &SyncGroup, cluster: &str) -> bool {
    let status = group.status.as_ref();
    let recorded = status.map_or(&[][..], |status| &status.unselected);
    recorded
        .iter()
        .any(|left| left.clusters.iter().any(|name| name == cluster))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_entry_exists_as_long_as_its_release_rolls_out() {
        let entry = json!({"name": "app", "sourceRef": {"name": "shop"}});
        let mut group = SyncGroup::new(
            "shop",
            serde_json::from_value(json!({"clusterSelector": {}, "syncs": [entry]})).unwrap(),
        );
        let has = |group: &SyncGroup, name: &str| entries(group).any(|entry| entry == name);
        assert!(has(&group, "app") && !has(&group, "extra"));
        let mut rollout = json!({"id": 1, "revisions": [{"sync": "extra", "revision": "main@sha1:a"}]});
        group.status = serde_json::from_value(json!({"rollout": rollout})).unwrap();
        assert!(has(&group, "app") && has(&group, "extra"));
        rollout["revisions"] = json!([{"sync": "app", "revision": "main@sha1:b"}]);
        group.status = serde_json::from_value(json!({"rollout": rollout})).unwrap();
        assert!(has(&group, "app") && !has(&group, "extra"));
    }
}
