//! Writes what was found into the Cluster's status, if it says something new.

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use starling_api::conditions::{self, ConditionStatus, ConditionUpdate, IDENTITY_CONFLICT};
use starling_api::{Cluster, ClusterStatus};

use super::super::{ReconcileError, ready};
use super::Finding;
use crate::controller::context::Context;
use crate::controller::wake::By;

/// How old `lastProbeTime` may get while nothing else changes: at a thousand clusters, three writes a second.
const PROBE_TIME_AGE: SignedDuration = SignedDuration::from_mins(5);

pub(super) async fn report(
    context: &Context,
    cluster: &Cluster,
    finding: Finding,
    expiring: Option<ConditionUpdate>,
) -> Result<(), ReconcileError> {
    let before = cluster.status.clone().unwrap_or_default();
    let now = context.now();
    let mut after = status(cluster, &before, finding, expiring, now);
    if after == before && !is_old(&before.last_probe_time, now) {
        return Ok(());
    }
    after.last_probe_time = now.to_string();
    let was = conditions::find(&before.conditions, conditions::READY).map(|c| c.status.clone());
    let is =
        conditions::find(&after.conditions, conditions::READY).map(|c| (c.status.clone(), c.message.clone()));
    if was != is.as_ref().map(|(status, _)| status.clone()) {
        let (status, message) = is.unwrap_or_default();
        tracing::info!(cluster = %cluster.name_any(), namespace = cluster.namespace(), ready = %status, %message, "cluster changed");
    }
    let moved = ClusterStatus {
        last_probe_time: before.last_probe_time.clone(),
        ..after.clone()
    } != before;
    let written = context.hub.write_status(cluster, &after).await?;
    match context.clusters.observe_write(written) {
        Some(change) if moved || change.is_edit() => context.wake_for_cluster(&change, By::Us),
        Some(_) | None => {}
    }
    Ok(())
}

fn is_old(time: &str, now: Timestamp) -> bool {
    time.parse::<Timestamp>()
        .is_ok_and(|time| now.duration_since(time) > PROBE_TIME_AGE)
}

fn status(
    cluster: &Cluster,
    before: &ClusterStatus,
    finding: Finding,
    expiring: Option<ConditionUpdate>,
    now: Timestamp,
) -> ClusterStatus {
    let known = || (before.cluster_id.clone(), before.version.clone());
    let ((cluster_id, version), mut updates) = match finding {
        Finding::Ready { cluster_id, version } => {
            let message = format!("answers as {version}");
            (
                (cluster_id, version),
                vec![ready(ConditionStatus::True, "Succeeded", message)],
            )
        }
        Finding::Suspended => (
            known(),
            vec![ready(
                ConditionStatus::Unknown,
                "Suspended",
                "suspended; its connection is closed",
            )],
        ),
        Finding::Unreachable { message, .. } => (
            known(),
            vec![ready(ConditionStatus::Unknown, "Unreachable", message)],
        ),
        Finding::Unusable { reason, message } => {
            (known(), vec![ready(ConditionStatus::False, reason, message)])
        }
        Finding::Refused => {
            let message = "the cluster does not accept the credentials; they are not tried again until the Secret changes, or somebody asks";
            (
                known(),
                vec![ready(ConditionStatus::False, "AuthFailed", message)],
            )
        }
        Finding::Waiting { .. } | Finding::Busy { .. } => return before.clone(),
        Finding::IdentityConflict {
            cluster_id,
            version,
            other,
        } => ((cluster_id, version), identity_conflict(&other)),
    };
    updates.extend(expiring);
    ClusterStatus {
        observed_generation: cluster.metadata.generation,
        cluster_id,
        version,
        last_probe_time: before.last_probe_time.clone(),
        last_handled_reconcile_at: cluster
            .annotations()
            .get(starling_api::REQUESTED_AT)
            .cloned()
            .unwrap_or_else(|| before.last_handled_reconcile_at.clone()),
        conditions: conditions::merge(&before.conditions, updates, cluster.metadata.generation, now),
    }
}

fn identity_conflict(other: &str) -> Vec<ConditionUpdate> {
    let message = format!(
        "Cluster {other} leads to the same cluster and was there first; nothing is done through this one"
    );
    let conflict = ConditionUpdate {
        type_: IDENTITY_CONFLICT,
        status: ConditionStatus::True,
        reason: "SameCluster".into(),
        message: message.clone(),
    };
    vec![
        ready(ConditionStatus::False, "IdentityConflict", message),
        conflict,
    ]
}
