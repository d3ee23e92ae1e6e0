//! Who is looked at when something changed.

use kube::ResourceExt;
use starling_api::{
    Cluster, DeletionPolicy, FINALIZER, RolloutAction, RolloutApproval, Source, SyncGroup, SyncResource,
};
use starling_core::backoff::look_pause;

use super::cache::{Change, ObjectKey};
use super::context::Context;

/// Who changed an object: an event of the watch may be a person's edit, an answer to our own write is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Somebody else, as far as is known.
    Others,
    /// The reconciler of the object itself. What others changed before it, and its answer holds, is theirs all the same.
    Us,
}

impl By {
    /// Whether the reconciler of an object has to look at it because of a change.
    fn concerns_itself<K>(self, change: &Change<K>) -> bool {
        self == Self::Others || change.is_edit()
    }
}

impl Context {
    /// Wakes a Source (unless it wrote itself), the groups that roll it, and the Syncs that follow it.
    pub fn wake_for_source(&self, change: &Change<Source>, by: By) {
        let key = ObjectKey::of(&**change.object());
        for group in self.groups.in_namespace(&key.namespace) {
            if group
                .spec
                .syncs
                .iter()
                .any(|entry| entry.template.source_ref.name == key.name)
            {
                self.queues.groups.add(ObjectKey::of(&*group));
            }
        }
        for sync in self.syncs.in_namespace(&key.namespace) {
            if sync.spec.group_ref.is_none() && sync.spec.template.source_ref.name == key.name {
                self.queues.syncs.add(ObjectKey::of(&*sync));
            }
        }
        if by.concerns_itself(change) {
            self.queues.sources.add(key);
        }
    }

    /// Wakes a Cluster (unless it wrote itself), its Syncs, and the groups of its namespace: any of them may select
    /// it now, or no longer.
    pub fn wake_for_cluster(&self, change: &Change<Cluster>, by: By) {
        let key = ObjectKey::of(&**change.object());
        self.wake_syncs_of(&key);
        for group in self.groups.in_namespace(&key.namespace) {
            self.queues.groups.add(ObjectKey::of(&*group));
        }
        if by.concerns_itself(change) {
            self.queues.clusters.add(key);
        }
    }

    /// Wakes the Syncs on a Cluster.
    pub fn wake_syncs_of(&self, cluster: &ObjectKey) {
        for sync in self.syncs.indexed(cluster) {
            self.queues.syncs.add(ObjectKey::of(&*sync));
        }
    }

    /// Wakes a Sync (unless it wrote itself), its group, and the Syncs that wait for it.
    pub fn wake_for_sync(&self, change: &Change<SyncResource>, by: By) {
        let sync = change.object();
        let key = ObjectKey::of(&**sync);
        for waiting in self.dependents.take(&key) {
            self.queues.syncs.add(waiting);
        }
        if matches!(change, Change::Deleted(_)) || sync.metadata.deletion_timestamp.is_some() {
            self.wake_what_waits_for(sync);
        }
        if let Some(group) = &sync.spec.group_ref {
            self.wake_group_soon(ObjectKey::new(&key.namespace, &group.name));
        }
        if by.concerns_itself(change) {
            self.queues.syncs.add(key);
        }
    }

    /// Wakes a group because of one of its Syncs, together with what changes in the next moment.
    fn wake_group_soon(&self, group: ObjectKey) {
        let under_way = self
            .groups
            .get(&group)
            .and_then(|group| Some(group.status.as_ref()?.clusters.progressing));
        let pause = look_pause(self.clusters.len(), under_way.unwrap_or_default());
        self.queues.groups.add_after(group, pause);
    }

    /// Wakes the Syncs that wait for this one to be gone.
    fn wake_what_waits_for(&self, gone: &SyncResource) {
        let namespace = gone.metadata.namespace.clone().unwrap_or_default();
        for on in &gone.spec.template.depends_on {
            let key = ObjectKey::new(&namespace, &on.name);
            let waits = |sync: &SyncResource| sync.metadata.deletion_timestamp.is_some();
            if self.syncs.get(&key).is_some_and(|sync| waits(&sync)) {
                self.queues.syncs.add(key);
            }
        }
    }

    /// Wakes the group that is approved.
    pub fn wake_for_approval(&self, change: &Change<RolloutApproval>, _by: By) {
        let approval = change.object();
        self.wake_group_of(&**approval, &approval.spec.group);
    }

    /// Wakes the group of which something is asked.
    pub fn wake_for_action(&self, change: &Change<RolloutAction>, _by: By) {
        let action = change.object();
        self.wake_group_of(&**action, &action.spec.group);
    }

    fn wake_group_of<K: ResourceExt>(&self, said: &K, group: &str) {
        let namespace = said.namespace().unwrap_or_default();
        self.queues.groups.add(ObjectKey::new(namespace, group));
    }

    /// Wakes a SyncGroup, unless it wrote itself; and those of its Syncs that an edit of it concerns: their deletions wait
    /// for a person, who may have approved them on the group, or their finalizer is no longer as its policy wants it.
    pub fn wake_for_group(&self, change: &Change<SyncGroup>, by: By) {
        if !by.concerns_itself(change) {
            return;
        }
        let key = ObjectKey::of(&**change.object());
        let deletes = change.object().spec.deletion_policy == DeletionPolicy::Delete;
        for sync in self.syncs.roster(&key).with_copies() {
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
