//! Which objects are reconciled when another one changed.

use kube::ResourceExt;
use starling_api::{
    Cluster, DeletionPolicy, FINALIZER, RolloutAction, RolloutApproval, Source, SyncGroup, SyncResource,
};
use starling_core::backoff::replan_delay;

use super::cache::{Change, ObjectKey};
use super::caches::ObjectCaches;
use super::caches::waiting_syncs::WaitingSyncs;
use super::queues::Queues;

/// Who changed an object: an event of the watch may be a user's edit, an answer to our own write is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangedBy {
    /// Another writer, as far as is known.
    Others,
    /// The reconciler of the object itself. What others changed before it, and its answer holds, is theirs all the
    /// same.
    Reconciler,
}

impl ChangedBy {
    /// Whether an object has to be reconciled because of its own change.
    fn requires_reconcile<K>(self, change: &Change<K>) -> bool {
        self == Self::Others || change.is_edit()
    }
}

/// The queues, and the objects that lead from one key to another.
#[derive(Clone, Copy)]
pub struct EventHandlers<'a> {
    /// The objects.
    pub objects: &'a ObjectCaches,
    /// The queues.
    pub queues: &'a Queues,
    /// The Syncs that wait for others.
    pub waiting: &'a WaitingSyncs,
}

impl EventHandlers<'_> {
    /// Wakes a Cluster.
    pub fn enqueue_cluster(&self, cluster: ObjectKey) {
        self.queues.clusters.add(cluster);
    }

    /// Wakes a Source (unless it wrote itself), the groups that roll it, and the Syncs that follow it.
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

    /// Wakes a Cluster (unless it wrote itself), its Syncs, and the groups of its namespace: any of them may select
    /// it now, or no longer.
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

    /// Wakes the Syncs on a Cluster.
    pub fn enqueue_syncs_of(&self, cluster: &ObjectKey) {
        for sync in self.objects.syncs.indexed(cluster) {
            self.queues.syncs.add(ObjectKey::of(&*sync));
        }
    }

    /// Wakes a Sync (unless it wrote itself), its group, and the Syncs that wait for it.
    pub fn on_sync(&self, change: &Change<SyncResource>, by: ChangedBy) {
        let sync = change.object();
        let key = ObjectKey::of(&**sync);
        for waiting in self.waiting.take(&key) {
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

    /// Wakes a group because of one of its Syncs, together with what changes in the next moment.
    fn enqueue_group_soon(&self, group: ObjectKey) {
        let in_flight = self
            .objects
            .groups
            .get(&group)
            .and_then(|group| Some(group.status.as_ref()?.clusters.progressing));
        let delay = replan_delay(self.objects.clusters.len(), in_flight.unwrap_or_default());
        self.queues.groups.add_after(group, delay);
    }

    /// Wakes the Syncs that wait for this one to be gone.
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

    /// Wakes the group of an approval.
    pub fn on_approval(&self, change: &Change<RolloutApproval>, _by: ChangedBy) {
        let approval = change.object();
        self.enqueue_group_of(&**approval, &approval.spec.group);
    }

    /// Wakes the group of an operator action.
    pub fn on_action(&self, change: &Change<RolloutAction>, _by: ChangedBy) {
        let action = change.object();
        self.enqueue_group_of(&**action, &action.spec.group);
    }

    fn enqueue_group_of<K: ResourceExt>(&self, about: &K, group: &str) {
        let namespace = about.namespace().unwrap_or_default();
        self.queues.groups.add(ObjectKey::new(namespace, group));
    }

    /// Wakes a SyncGroup, unless it wrote itself; and those of its Syncs that an edit of it concerns: their deletions
    /// wait for an approval, which may stand on the group now, or their finalizer is no longer as its policy wants it.
    pub fn on_group(&self, change: &Change<SyncGroup>, by: ChangedBy) {
        if !by.requires_reconcile(change) {
            return;
        }
        let key = ObjectKey::of(&**change.object());
        let deletes = change.object().spec.deletion_policy == DeletionPolicy::Delete;
        for sync in self.objects.syncs.of_group(&key).with_copies() {
            let waits = sync
                .status
                .as_ref()
                .is_some_and(|status| status.held_deletions.is_some());
            let has_finalizer = sync.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
            let wants_finalizer = deletes || sync.spec.template.deletion_policy == DeletionPolicy::Delete;
            if waits || has_finalizer != wants_finalizer {
                self.queues.syncs.add(ObjectKey::of(&**sync));
            }
        }
        self.queues.groups.add(key);
    }
}
