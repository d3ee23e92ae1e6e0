//! Which release rolls: the one in status, or a new one, which is put there before anything of it is admitted.

use jiff::Timestamp;
use starling_api::conditions::{self, ConditionStatus};
use starling_api::{
    ClusterCounts, EntryRevision, RolloutPhase, RolloutStatus, SourceStatus, SyncEntry, SyncGroupStatus,
};
use starling_core::release::{EntryWanted, Release, ReleaseStep, next_release, rolled_revision};

use super::super::{ReconcileError, ready};
use super::observe::Group;
use crate::controller::context::Context;
use crate::controller::wake::By;
use crate::ledger::{Rollout, RolloutOutcome};

/// The rollout that the plan is for.
pub(super) struct Rolling {
    /// As in status.
    pub(super) rollout: RolloutStatus,
    /// The whole status that it was read from or written to.
    pub(super) status: SyncGroupStatus,
    /// When a new release will be formed from what has moved already.
    pub(super) settles_at: Option<Timestamp>,
}

impl Rolling {
    /// The revision that an entry rolls.
    pub(super) fn revision(&self, entry: &str) -> &str {
        rolled_revision(&self.rollout, entry).unwrap_or_default()
    }

    /// When it started. Status that lost it counts from the beginning: no jitter is waited for twice.
    pub(super) fn started_at(&self) -> Timestamp {
        self.rollout.start_time.parse().unwrap_or(Timestamp::UNIX_EPOCH)
    }
}

/// The rollout under way; a new one is started if the entries form a new release. `None`: a newer status of the
/// group is known already, and its activation is on the way.
pub(super) async fn ensure(context: &Context, group: &Group) -> Result<Option<Rolling>, ReconcileError> {
    let status = group.object.status.clone().unwrap_or_default();
    let current = status.rollout.clone();
    let wanted = wanted(group);
    match (next_release(current.as_ref(), &wanted, context.now()), current) {
        (ReleaseStep::Keep, Some(rollout)) => Ok(Some(Rolling {
            rollout,
            status,
            settles_at: None,
        })),
        (ReleaseStep::Settle { until }, Some(rollout)) => Ok(Some(Rolling {
            rollout,
            status,
            settles_at: Some(until),
        })),
        (ReleaseStep::Start(release), current) => start(context, group, status, current, release).await,
        // Without a rollout in status core always starts one.
        (ReleaseStep::Keep | ReleaseStep::Settle { .. }, None) => Ok(None),
    }
}

fn wanted(group: &Group) -> Vec<EntryWanted<'_>> {
    group
        .object
        .spec
        .syncs
        .iter()
        .map(|sync| EntryWanted {
            name: &sync.name,
            revision: source_status(group, sync).map_or("", |status| status.revision.as_str()),
            revision_time: source_status(group, sync).and_then(|status| status.revision_time.parse().ok()),
            template: &sync.template,
        })
        .collect()
}

fn source_status<'g>(group: &'g Group, entry: &SyncEntry) -> Option<&'g SourceStatus> {
    group
        .sources
        .get(&entry.template.source_ref.name)?
        .status
        .as_ref()
}

async fn start(
    context: &Context,
    group: &Group,
    mut status: SyncGroupStatus,
    before: Option<RolloutStatus>,
    release: Release,
) -> Result<Option<Rolling>, ReconcileError> {
    let now = context.now();
    let uid = group.object.metadata.uid.clone().unwrap_or_default();
    let Release { digest, revisions } = release;
    let rollout = RolloutStatus {
        id: before.as_ref().map_or(0, |before| before.id) + 1,
        release: digest,
        revisions,
        phase: RolloutPhase::Pending,
        start_time: now.to_string(),
        ..RolloutStatus::default()
    };
    context
        .ledger
        .begin_rollout(&intent(group, &uid, &rollout, now))
        .await?;
    tracing::info!(group = %group.key, rollout = rollout.id, release = %rollout.release, revisions = %list(&rollout.revisions), "rollout started");
    status.rollout = Some(rollout.clone());
    // Whoever waits for Ready must not see the last release's while this one rolls.
    let message = format!("rollout {} starts", rollout.id);
    let updates = vec![ready(ConditionStatus::False, "Progressing", message)];
    status.conditions = conditions::merge(&status.conditions, updates, group.object.metadata.generation, now);
    status.clusters = ClusterCounts {
        total: status.clusters.total,
        pending: status.clusters.total,
        ..ClusterCounts::default()
    };
    let written = context.hub.write_status(&*group.object, &status).await?;
    if let Some(before) = before.filter(|before| before.phase != RolloutPhase::Succeeded) {
        context
            .ledger
            .end_rollout(&uid, &before.id.to_string(), RolloutOutcome::Superseded, now)
            .await?;
    }
    if let Some(change) = context.groups.observe_write(written) {
        context.wake_for_group(&change, By::Us);
    }
    Ok(Some(Rolling {
        rollout,
        status,
        settles_at: None,
    }))
}

fn intent(group: &Group, uid: &str, rollout: &RolloutStatus, started_at: Timestamp) -> Rollout {
    Rollout {
        group_uid: uid.to_owned(),
        id: rollout.id.to_string(),
        namespace: group.key.namespace.clone(),
        name: group.key.name.clone(),
        release: rollout.release.clone(),
        revisions: rollout
            .revisions
            .iter()
            .map(|r| (r.sync.clone(), r.revision.clone()))
            .collect(),
        started_at,
    }
}

fn list(revisions: &[EntryRevision]) -> String {
    let texts: Vec<String> = revisions
        .iter()
        .map(|r| format!("{}={}", r.sync, r.revision))
        .collect();
    texts.join(" ")
}
