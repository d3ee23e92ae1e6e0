//! Executes the plan: writes the Syncs that may start.

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};
use starling_api::{
    ADMITTED_AT, CLUSTER_LABEL, GROUP_LABEL, GroupRef, LocalRef, RELEASE, ROLLOUT, SyncGroup, SyncResource,
    SyncSpec,
};
use starling_core::plan::{Decision, FailureReason, Plan};
use starling_core::target;

use super::super::ReconcileError;
use super::observe::Group;
use super::release::Rolling;
use super::view::{name_of, template_for};
use crate::controller::cache::ObjectKey;
use crate::controller::context::Context;
use crate::controller::releases::Vector;
use crate::controller::wake::By;
use crate::ledger::{Admission, AdmissionKey, AdmissionOutcome};

/// Admissions that are written at the same time. The management API server is asked for little else.
const WIDTH: usize = 16;

/// Admits what the plan starts: intents first, in one commit, then the Syncs. Returns whether all were written.
pub(super) async fn admit(
    context: &Context,
    group: &Group,
    rolling: &Rolling,
    plan: &Plan,
) -> Result<bool, ReconcileError> {
    let now = context.now();
    let syncs: Vec<SyncResource> = plan
        .decisions
        .iter()
        .filter_map(|(cluster, decision)| match decision {
            Decision::Start { entries, to } => Some((cluster, entries, rolling.vector_to(*to)?)),
            Decision::Done
            | Decision::InFlight { .. }
            | Decision::Soaking { .. }
            | Decision::Failed { .. }
            | Decision::Hold { .. } => None,
        })
        .flat_map(|(cluster, entries, vector)| {
            entries
                .iter()
                .filter_map(move |entry| mk_sync(group, rolling, vector, (cluster, entry), now))
        })
        .collect();
    settle_failed(context, group, rolling, plan).await?;
    if syncs.is_empty() {
        return Ok(true);
    }
    let intents: Vec<Admission> = syncs
        .iter()
        .map(|sync| intent(group, rolling, sync, now))
        .collect();
    context.ledger.record_admissions(&intents).await?;
    let written = futures::stream::iter(syncs.into_iter().map(|sync| write(context, &group.key, sync)))
        .buffer_unordered(WIDTH)
        .collect::<Vec<bool>>()
        .await;
    Ok(written.into_iter().all(|written| written))
}

/// Writes a Sync of a group. Returns whether it is known to be written.
pub(super) async fn write(context: &Context, group: &ObjectKey, sync: SyncResource) -> bool {
    match context.hub.apply_sync(&sync).await {
        Ok(written) => {
            tracing::info!(sync = %sync.name_any(), cluster = %sync.spec.cluster_ref.name, revision = %sync.spec.revision, "admitted");
            if let Some(change) = context.syncs.observe_write(written) {
                // From the Sync's point of view its group is somebody else.
                context.wake_for_sync(&change, By::Others);
            }
            true
        }
        Err(error) => {
            tracing::warn!(sync = %sync.name_any(), error = %crate::chain(&error), "not admitted");
            context.unsure.add_sync(group, ObjectKey::of(&sync));
            false
        }
    }
}

/// The whole Sync as it is admitted; `None` for a cluster or entry that is not there, which the planner excludes.
pub(super) fn mk_sync(
    group: &Group,
    rolling: &Rolling,
    vector: &Vector,
    (cluster, entry_name): (&str, &str),
    now: Timestamp,
) -> Option<SyncResource> {
    let entry = vector.entry(entry_name)?;
    let target_cluster = group.clusters.get(cluster)?;
    let template = template_for(group, entry, cluster, target_cluster).ok()?;
    let mut sync = SyncResource::new(
        &name_of(group, cluster, entry_name),
        SyncSpec {
            group_ref: Some(GroupRef {
                name: group.key.name.clone(),
                entry: entry_name.to_owned(),
            }),
            cluster_ref: LocalRef::new(cluster),
            revision: vector.revision(entry_name).to_owned(),
            template,
        },
    );
    sync.metadata.namespace = Some(group.key.namespace.clone());
    sync.metadata.owner_references = owner_reference(&group.object).map(|owner| vec![owner]);
    sync.metadata.labels = Some(
        [(GROUP_LABEL, group.key.name.as_str()), (CLUSTER_LABEL, cluster)]
            .into_iter()
            // A label holds 63 characters; longer names are found by spec.
            .filter(|(_, value)| value.len() <= 63)
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect(),
    );
    sync.metadata.annotations = Some(
        [
            (ROLLOUT.to_owned(), rolling.rollout.id.to_string()),
            (RELEASE.to_owned(), vector.digest.clone()),
            (ADMITTED_AT.to_owned(), now.to_string()),
        ]
        .into(),
    );
    Some(sync)
}

fn owner_reference(group: &SyncGroup) -> Option<OwnerReference> {
    group.controller_owner_ref(&())
}

pub(super) fn admission_key(group: &SyncGroup, rollout: &str, sync: &SyncResource) -> AdmissionKey {
    AdmissionKey {
        group_uid: group.uid().unwrap_or_default(),
        rollout: rollout.to_owned(),
        entry: sync
            .spec
            .group_ref
            .as_ref()
            .map(|of| of.entry.clone())
            .unwrap_or_default(),
        cluster: sync.spec.cluster_ref.name.clone(),
        target: target::of_spec(&sync.spec).unwrap_or_default(),
    }
}

fn intent(group: &Group, rolling: &Rolling, sync: &SyncResource, now: Timestamp) -> Admission {
    Admission {
        key: admission_key(&group.object, &rolling.rollout.id.to_string(), sync),
        sync_namespace: group.key.namespace.clone(),
        sync_name: sync.name_any(),
        revision: sync.spec.revision.clone(),
        admitted_at: now,
    }
}

/// Ends in the ledger what counts as failed by time: nobody else notices that.
async fn settle_failed(
    context: &Context,
    group: &Group,
    rolling: &Rolling,
    plan: &Plan,
) -> Result<(), ReconcileError> {
    for (cluster, decision) in &plan.decisions {
        let Decision::Failed {
            reason: reason @ (FailureReason::ProgressDeadlineExceeded | FailureReason::LostAfterAdmission),
            ..
        } = decision
        else {
            continue;
        };
        let known = rolling
            .status
            .problems
            .iter()
            .any(|p| p.cluster == *cluster && p.reason == reason.as_str());
        if known {
            continue;
        }
        for entry in &rolling.vector.entries {
            let Some(sync) = group.syncs.get(cluster, &entry.name) else {
                continue;
            };
            let rollout = sync.annotations().get(ROLLOUT).cloned().unwrap_or_default();
            let key = admission_key(&group.object, &rollout, sync);
            context
                .ledger
                .settle_admission(&key, AdmissionOutcome::Failed, reason.as_str(), context.now())
                .await?;
        }
    }
    Ok(())
}
