//! Maps a changed object to the keys that are reconciled.

use kube::ResourceExt;
use starling_api::{
    Cluster, DeletionApproval, DeletionPolicy, FINALIZER, RolloutAction, RolloutApproval, Source, SyncGroup,
    SyncResource, SyncStatus,
};
use starling_core::backoff::replan_delay;
use starling_core::request::Requests;

use super::cache::Change;
use super::caches::ObjectCaches;
use super::caches::waiting_syncs::{Awaited, WaitingSyncs};
use super::queues::Queues;
use crate::controller::object_key::ObjectKey;

/// The writer of a change. A change from the watch may be an edit by a user; the response to a write of a reconciler is
/// none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangedBy {
    /// Another writer, as far as is known.
    Others,
    /// The reconciler of the object itself. The response may also contain earlier changes by others, and these count as
    /// edits.
    Reconciler,
}

impl ChangedBy {
    /// Returns whether a change of an object requires a reconcile of the object.
    fn requires_reconcile<K>(self, change: &Change<K>) -> bool {
        self == Self::Others || change.is_edit()
    }
}

/// The work queues, and the caches that relate keys to each other.
#[derive(Clone, Copy)]
pub struct EventHandlers<'a> {
    /// The objects.
    pub objects: &'a ObjectCaches,
    /// The work queues.
    pub queues: &'a Queues,
    /// The Syncs that wait for other Syncs, or for their entries.
    pub waiting: &'a WaitingSyncs,
}

impl EventHandlers<'_> {
    /// Enqueues a Cluster.
    pub fn enqueue_cluster(&self, cluster: ObjectKey) {
        self.queues.clusters.add(cluster);
    }

    /// Enqueues a Sync.
    pub fn enqueue_sync(&self, sync: ObjectKey) {
        self.queues.syncs.add(sync);
    }

    /// Enqueues a Source (except after a write by its reconciler), the groups that roll it out, and the Syncs without a
    /// group that follow it.
    pub fn on_source(&self, change: &Change<Source>, by: ChangedBy) {
        let key = ObjectKey::of(&**change.object());
        for group in self.objects.groups.in_namespace(&key.namespace) {
            if group
                .spec
                .syncs
                .iter()
                .any(|entry| entry.template.source_ref.name == key.name)
            {
                self.queues.groups.add(ObjectKey::of(&*group));
            }
        }
        for sync in self.objects.syncs.in_namespace(&key.namespace) {
            if sync.spec.group_ref.is_none() && sync.spec.template.source_ref.name == key.name {
                self.queues.syncs.add(ObjectKey::of(&*sync));
            }
        }
        if by.requires_reconcile(change) {
            self.queues.sources.add(key);
        }
    }

    /// Enqueues a Cluster (except after a write by its reconciler), its Syncs, and all groups of its namespace: each of
    /// them may now select the Cluster, or no longer select it.
    pub fn on_cluster(&self, change: &Change<Cluster>, by: ChangedBy) {
        let key = ObjectKey::of(&**change.object());
        self.enqueue_syncs_of(&key);
        for group in self.objects.groups.in_namespace(&key.namespace) {
            self.queues.groups.add(ObjectKey::of(&*group));
        }
        if by.requires_reconcile(change) {
            self.queues.clusters.add(key);
        }
    }

    /// Enqueues the Syncs on a Cluster.
    pub fn enqueue_syncs_of(&self, cluster: &ObjectKey) {
        for sync in self.objects.syncs.indexed(cluster) {
            self.queues.syncs.add(ObjectKey::of(&*sync));
        }
    }

    /// Enqueues a Sync (except after a write by its reconciler), its group, and the Syncs that wait for it.
    pub fn on_sync(&self, change: &Change<SyncResource>, by: ChangedBy) {
        let sync = change.object();
        let key = ObjectKey::of(&**sync);
        for waiting in self.waiting.take(&Awaited::Sync(key.clone())) {
            self.queues.syncs.add(waiting);
        }
        if matches!(change, Change::Deleted(_)) || sync.metadata.deletion_timestamp.is_some() {
            self.enqueue_waiting_for(sync);
        }
        if let Some(group) = &sync.spec.group_ref {
            self.enqueue_group_soon(ObjectKey::new(&key.namespace, &group.name));
        }
        if by.requires_reconcile(change) {
            self.queues.syncs.add(key);
        }
    }

    /// Enqueues a group because of one of its Syncs, after a short delay, so that one reconcile covers the changes of
    /// the next moment.
    pub fn enqueue_group_soon(&self, group: ObjectKey) {
        let in_flight = self
            .objects
            .groups
            .get(&group)
            .and_then(|group| Some(group.status.as_ref()?.clusters.progressing));
        let delay = replan_delay(self.objects.clusters.len(), in_flight.unwrap_or_default());
        self.queues.groups.add_after(group, delay);
    }

    /// Enqueues the Syncs that wait until a Sync is deleted.
    fn enqueue_waiting_for(&self, gone: &SyncResource) {
        let namespace = gone.metadata.namespace.clone().unwrap_or_default();
        for on in &gone.spec.template.depends_on {
            let key = ObjectKey::new(&namespace, &on.name);
            let waits = |sync: &SyncResource| sync.metadata.deletion_timestamp.is_some();
            if self.objects.syncs.get(&key).is_some_and(|sync| waits(&sync)) {
                self.queues.syncs.add(key);
            }
        }
    }

    /// Enqueues the group of an approval.
    pub fn on_approval(&self, change: &Change<RolloutApproval>, _by: ChangedBy) {
        let approval = change.object();
        self.enqueue_group_of(&**approval, &approval.spec.group);
    }

    /// Enqueues the group of an operator action.
    pub fn on_action(&self, change: &Change<RolloutAction>, _by: ChangedBy) {
        let action = change.object();
        self.enqueue_group_of(&**action, &action.spec.group);
        // A paused rollout deletes nothing.
        let namespace = action.namespace().unwrap_or_default();
        let group = ObjectKey::new(&namespace, &action.spec.group);
        for sync in self.objects.syncs.of_group(&group).with_copies() {
            if has_deletions(sync) {
                self.queues.syncs.add(ObjectKey::of(&**sync));
            }
        }
    }

    /// Enqueues the Sync of an approval of deletions, or its group and the Syncs that the approval may be for.
    pub fn on_deletion_approval(&self, change: &Change<DeletionApproval>, _by: ChangedBy) {
        let approval = change.object();
        let namespace = approval.namespace().unwrap_or_default();
        if let Some(sync) = &approval.spec.sync {
            self.queues.syncs.add(ObjectKey::new(&namespace, sync));
        }
        if let Some(group) = &approval.spec.group {
            let group = ObjectKey::new(&namespace, group);
            for sync in self.objects.syncs.of_group(&group).with_copies() {
                if has_deletions(sync) {
                    self.queues.syncs.add(ObjectKey::of(&**sync));
                }
            }
            self.queues.groups.add(group);
        }
    }

    fn enqueue_group_of<K: ResourceExt>(&self, about: &K, group: &str) {
        let namespace = about.namespace().unwrap_or_default();
        self.queues.groups.add(ObjectKey::new(namespace, group));
    }

    /// Enqueues the Syncs that wait for an entry which the group has again, a SyncGroup (except after a write by its
    /// reconciler), and the Syncs that an edit of the group affects: those with deletions that wait for an approval,
    /// which the group may now have, or for a grace, or that used an approval up, those whose finalizer no longer
    /// matches the policy, and those with an open request of a reconcile.
    pub fn on_group(&self, change: &Change<SyncGroup>, by: ChangedBy) {
        let key = ObjectKey::of(&**change.object());
        for entry in entries(change.object()) {
            for waiting in self.waiting.take(&Awaited::entry(&key, entry)) {
                self.queues.syncs.add(waiting);
            }
        }
        if !by.requires_reconcile(change) {
            return;
        }
        let deletes = change.object().spec.deletion_policy == DeletionPolicy::Delete;
        for sync in self.objects.syncs.of_group(&key).with_copies() {
            let waits = has_deletions(sync);
            let has_finalizer = sync.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
            let wants_finalizer = deletes || sync.spec.template.deletion_policy == DeletionPolicy::Delete;
            let is_requested = Requests::of(sync, None, Some(change.object()))
                .are_open(sync.status.as_ref().unwrap_or(&SyncStatus::default()));
            if waits || has_finalizer != wants_finalizer || is_requested {
                self.queues.syncs.add(ObjectKey::of(&**sync));
            }
        }
        self.queues.groups.add(key);
    }
}

/// Returns the names of the entries of a group: of its spec, and of the release that it rolls out.
pub(in crate::controller) fn entries(group: &SyncGroup) -> impl Iterator<Item = &str> {
    let status = group.status.as_ref();
    let rollout = status.and_then(|status| status.rollout.as_ref());
    let rolls = rollout.into_iter().flat_map(|rollout| &rollout.revisions);
    let spec = group.spec.syncs.iter().map(|entry| entry.name.as_str());
    spec.chain(rolls.map(|entry| entry.sync.as_str()))
}

/// Reports whether a Sync is being deleted, has deletions that wait for an approval, a grace or its group, or used up
/// an approval, which it forgets once it is gone.
fn has_deletions(sync: &SyncResource) -> bool {
    let status = sync.status.as_ref();
    sync.metadata.deletion_timestamp.is_some()
        || status.is_some_and(|status| {
            let deletions = status.deletions.as_ref();
            status.held_deletions.is_some()
                || status.pending_deletions.is_some()
                || deletions.is_some_and(|deletions| !deletions.used.is_empty())
        })
}
