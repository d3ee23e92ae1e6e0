//! The operations of the interpreter on the management cluster in one pass over one group.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use kube::ResourceExt;
use starling_api::{Cluster, DeletionPolicy, SyncGroup, SyncGroupStatus, SyncResource};
use starling_core::ids::{ReleaseDigest, RolloutNumber, SyncName};
use starling_core::plan::LeavingCause;
use starling_core::rollout::{
    Admission, AdmissionRef, Decided, OpenGate, ReleaseSnapshot, Removal, StatusWrite, removal_digest,
};

use super::super::group_state;
use super::observe::Group;
use super::{digest, garbage, gates, held, leave, marks, remove, sync};
use crate::controller::context::GroupContext;
use crate::controller::event_handlers::ChangedBy;
use crate::controller::hub::HubError;
use crate::controller::interpreter::GroupApi;
use crate::controller::live_approvals;
use crate::controller::object_key::ObjectKey;
use crate::controller::waits;

/// Maximum number of concurrent admissions. The management cluster has few other requests.
const WIDTH: usize = 16;

/// The management cluster in one pass over a group.
pub(super) struct HubOf<'a> {
    pub(super) context: GroupContext<'a>,
    pub(super) group: &'a Group,
    /// The plan of the pass.
    pub(super) decided: Option<&'a Decided>,
    /// The time of the pass.
    pub(super) now: Timestamp,
}

impl HubOf<'_> {
    /// Reports whether what an automatic rollback removes is still approved. Its approvals are read from the management
    /// cluster: a person may have taken them back.
    async fn confirm_approval(&self) -> Result<bool, HubError> {
        let rollout = self.decided.map(|decided| &decided.rolling.rollout);
        let Some(rollout) = rollout.filter(|rollout| rollout.automatic) else {
            return Ok(true);
        };
        let digest = removal_digest(&self.group.id, rollout);
        let mut approvals = self.group.deletion_approvals().used_after(&digest, self.now);
        approvals.retain(|approval| approval.digest == digest);
        let of = live_approvals::Subject {
            group: Some(self.group.key.clone()),
            sync: None,
        };
        Ok(
            !approvals.is_empty()
                && live_approvals::are_there(self.context.hub, &of, &[], &approvals).await?,
        )
    }
}

impl GroupApi for HubOf<'_> {
    type Error = HubError;

    fn may_continue(&self) -> Result<(), HubError> {
        if self.context.permit.is_valid() {
            return Ok(());
        }
        Err(HubError::SetBackMeanwhile {
            group: self.group.key.to_string(),
        })
    }

    fn sync_name(&self, cluster: &str, entry: &str) -> String {
        sync::name_of(self.group, cluster, entry)
    }

    async fn store_release(
        &mut self,
        rollout: RolloutNumber,
        snapshot: &Arc<ReleaseSnapshot>,
    ) -> Result<(), HubError> {
        let snapshots = &self.context.caches.release_snapshots;
        snapshots
            .keep(self.context.hub, self.group.stored(), rollout, snapshot)
            .await
    }

    async fn write_status(&mut self, write: &StatusWrite) -> Result<(), HubError> {
        let (context, group) = (self.context, self.group);
        let written = context.hub.write_status(&*group.object, &write.status).await?;
        context.caches.status_times.set(&group.key, context.clock.now());
        context.caches.journal_heads.wrote(&group.key, &written);
        if let Some(change) = context.objects.groups.observe_write(written) {
            context.handlers.on_group(&change, ChangedBy::Reconciler);
        }
        self.log_phase(&write.status);
        let before = group.object.status.clone().unwrap_or_default();
        held::report(context, group, &before, &write.status).await;
        Ok(())
    }

    fn settled(&mut self, admission: &AdmissionRef) {
        let settled = &self.context.caches.settled_admissions;
        settled.add(&self.group.key, &self.group.id, admission);
    }

    fn reopened(&mut self, admissions: &[Admission]) {
        let settled = &self.context.caches.settled_admissions;
        settled.reopen(&self.group.key, admissions);
    }

    fn evaluate_gates(&mut self, open: Vec<OpenGate>) {
        match self.decided {
            Some(decided) => gates::run(self.context, self.group, &decided.rolling, open),
            None => self.context.caches.gate_tasks.forget(&self.group.key),
        }
    }

    async fn admit(&mut self, admissions: &[Admission]) -> Result<bool, HubError> {
        let (context, group) = (self.context, &self.group.key);
        let rolling = self.decided.map(|decided| &decided.rolling);
        let (syncs, not_built) = sync::mk_syncs(self.group, rolling, admissions);
        for (admission, error) in &not_built {
            tracing::warn!(%group, cluster = %admission.cluster, entry = %admission.entry, error = %crate::chain(error), "admission without a Sync");
        }
        let permit = context.permit;
        let write = async |sync| permit.is_valid() && write(context, group, sync).await;
        let written = futures::stream::iter(syncs.into_iter().map(write))
            .buffer_unordered(WIDTH)
            .collect::<Vec<bool>>()
            .await;
        Ok(not_built.is_empty() && written.into_iter().all(|written| written))
    }

    /// Returns whether the removal is confirmed by what the management cluster has now. The caches may be incomplete,
    /// or old because a watch delivers nothing.
    async fn confirm_removal(&mut self, removal: &Removal) -> Result<bool, HubError> {
        let hub = self.context.hub;
        let known = &self.group.object;
        let Some(group) = hub.find::<SyncGroup>(&self.group.key).await? else {
            return Ok(false);
        };
        let is_current = group.uid() == known.uid()
            && group.metadata.generation == known.metadata.generation
            && group.metadata.deletion_timestamp.is_none();
        // A change of the group is another generation, and an operator action is not.
        if !is_current || group_state::stopped_now(hub, &group).await?.is_some() {
            return Ok(false);
        }
        if removal.cause == LeavingCause::EntryRemoved {
            return self.confirm_approval().await;
        }
        let key = ObjectKey::new(&self.group.key.namespace, &removal.cluster);
        let Some(cluster) = hub.find::<Cluster>(&key).await? else {
            return Ok(true);
        };
        Ok(group_state::selects(&group, &cluster).is_ok_and(|selects| !selects))
    }

    async fn count_removals(&mut self, removals: &[Removal]) -> Result<(), HubError> {
        self.may_continue()?;
        leave::count(self.context, self.group, removals, self.now).await
    }

    async fn remove_sync(&mut self, removal: &Removal) -> Result<(), HubError> {
        self.may_continue()?;
        let mut syncs = self.group.syncs.on(&removal.cluster);
        let Some(sync) = syncs.find(|sync| sync.name_any() == removal.sync).cloned() else {
            return Ok(());
        };
        remove::remove(self.context, &sync, removal.policy).await?;
        if removal.policy == DeletionPolicy::Orphan {
            remove::report_orphans(self.context, self.group, removal).await;
        }
        Ok(())
    }

    fn removal_failed(&mut self, removal: &Removal, error: HubError) {
        tracing::warn!(group = %self.group.key, sync = %removal.sync, cluster = %removal.cluster, error = %crate::chain(&error), "Sync not removed");
    }

    fn removals_not_counted(&mut self, removals: &[Removal], error: HubError) {
        tracing::warn!(group = %self.group.key, removals = removals.len(), error = %crate::chain(&error), "removals not counted");
    }

    async fn allow_prunes(&mut self, syncs: &[SyncName]) {
        allow_prunes(self.context, &self.group.key, syncs, self.now);
    }

    async fn collect_garbage(&mut self, rollout: RolloutNumber, named: &BTreeSet<ReleaseDigest>) {
        garbage::collect(self.context, self.group, rollout, named).await;
    }

    async fn digest_release(&mut self) -> Option<Duration> {
        digest::ensure(self.context, self.group, &self.decided?.rolling).await
    }

    async fn write_marks(&mut self) -> Option<Duration> {
        let all = marks::write(self.context, self.group, self.now).await;
        (!all).then_some(waits::MARK_RETRY)
    }
}

/// Allows deletions that Syncs requested, and enqueues the Syncs.
pub(super) fn allow_prunes(context: GroupContext<'_>, group: &ObjectKey, syncs: &[SyncName], now: Timestamp) {
    context.caches.prune_requests.allow(group, syncs, now);
    for sync in syncs {
        let key = ObjectKey::new(&group.namespace, sync.as_str());
        context.handlers.queues.syncs.add(key);
    }
}

impl HubOf<'_> {
    fn log_phase(&self, after: &SyncGroupStatus) {
        let of =
            |status: &SyncGroupStatus| status.rollout.as_ref().map(|rollout| (rollout.id, rollout.phase));
        let before = self.group.object.status.as_ref().and_then(of);
        if let Some((rollout, phase)) = of(after).filter(|after| before != Some(*after)) {
            let counts = &after.clusters;
            tracing::info!(group = %self.group.key, rollout, ?phase, updated = counts.updated, total = counts.total, failed = counts.failed, "rollout changed phase");
        }
    }
}

/// Writes a Sync of a group. Returns whether the write is confirmed.
async fn write(context: GroupContext<'_>, group: &ObjectKey, sync: SyncResource) -> bool {
    match context.hub.apply_sync(&sync).await {
        Ok(written) => {
            tracing::info!(sync = %sync.name_any(), cluster = %sync.spec.cluster_ref.name, revision = %sync.spec.revision, "Sync admitted");
            if let Some(change) = context.objects.syncs.observe_write(written) {
                // For the Sync its group is another writer.
                context.handlers.on_sync(&change, ChangedBy::Others);
            }
            true
        }
        Err(error) => {
            tracing::warn!(sync = %sync.name_any(), error = %crate::chain(&error), "Sync not admitted");
            let unconfirmed = &context.caches.unconfirmed_writes;
            unconfirmed.add_sync(group, ObjectKey::of(&sync));
            false
        }
    }
}
