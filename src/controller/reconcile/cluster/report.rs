//! Writes the result to the status of the Cluster, if status changes.

use jiff::Timestamp;
use kube::ResourceExt;
use starling_api::conditions::{self, ConditionStatus, ConditionUpdate, IDENTITY_CONFLICT};
use starling_api::{Cluster, ClusterStatus};

use super::super::{ReconcileError, ready};
use super::{Identity, ProbeResult};
use crate::controller::context::ClusterContext;
use crate::controller::event_handlers::ChangedBy;
use crate::controller::object_key::ObjectKey;
use crate::controller::waits;
use starling_core::ids::ClusterId;

pub(super) async fn report(
    context: ClusterContext<'_>,
    cluster: &Cluster,
    result: ProbeResult,
    expiring: Option<ConditionUpdate>,
) -> Result<(), ReconcileError> {
    let before = cluster.status.clone().unwrap_or_default();
    let now = context.clock.now();
    let mut after = status(cluster, &before, result, expiring, now);
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
        Some(change) if moved || change.is_edit() => {
            context.handlers.on_cluster(&change, ChangedBy::Reconciler);
        }
        Some(_) | None => {}
    }
    Ok(())
}

/// Returns whether the reported time of the last probe is to be written again. A time that lies ahead was written by a
/// clock that was wrong.
fn is_old(time: &str, now: Timestamp) -> bool {
    time.parse::<Timestamp>()
        .is_ok_and(|time| now.duration_since(time) > waits::PROBE_TIME_AGE || time > now)
}

fn status(
    cluster: &Cluster,
    before: &ClusterStatus,
    result: ProbeResult,
    expiring: Option<ConditionUpdate>,
    now: Timestamp,
) -> ClusterStatus {
    let known = || Identity {
        cluster_id: ClusterId::new(before.cluster_id.clone()),
        version: before.version.clone(),
    };
    let (identity, mut updates) = match result {
        ProbeResult::Ready(identity) => {
            let message = format!("reachable, Kubernetes {}", identity.version);
            (identity, vec![ready(ConditionStatus::True, "Succeeded", message)])
        }
        ProbeResult::Suspended => (
            known(),
            vec![ready(
                ConditionStatus::Unknown,
                "Suspended",
                "suspended: the connection is closed",
            )],
        ),
        ProbeResult::Unreachable { message, .. } => (
            known(),
            vec![ready(ConditionStatus::Unknown, "Unreachable", message)],
        ),
        ProbeResult::Unusable { reason, message } => {
            (known(), vec![ready(ConditionStatus::False, reason, message)])
        }
        ProbeResult::Refused => {
            let message = "credentials refused; retried when the Secret changes or a reconcile is requested";
            (
                known(),
                vec![ready(ConditionStatus::False, "AuthFailed", message)],
            )
        }
        ProbeResult::Waiting { .. } | ProbeResult::Busy { .. } => return before.clone(),
        ProbeResult::IdentityConflict { identity, other } => (
            identity,
            identity_conflict(&other, cluster.namespace().unwrap_or_default().as_str()),
        ),
    };
    updates.extend(expiring);
    ClusterStatus {
        observed_generation: cluster.metadata.generation,
        cluster_id: identity.cluster_id.to_string(),
        version: identity.version,
        last_probe_time: before.last_probe_time.clone(),
        last_handled_reconcile_at: cluster
            .annotations()
            .get(starling_api::REQUESTED_AT)
            .cloned()
            .unwrap_or_else(|| before.last_handled_reconcile_at.clone()),
        conditions: conditions::merge(&before.conditions, updates, cluster.metadata.generation, now),
    }
}

/// Returns the conditions of a Cluster in `namespace` whose member is that of another one. A member can claim any
/// identity, so the name of a Cluster in another namespace is not told.
fn identity_conflict(other: &ObjectKey, namespace: &str) -> Vec<ConditionUpdate> {
    let other = if other.namespace == namespace {
        format!("Cluster {other}")
    } else {
        "a Cluster of another namespace".to_owned()
    };
    let message = format!("{other} is older and connects to the same member; this Cluster is not used");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_a_conflict_names_no_cluster_of_another_namespace() {
        let message = |namespace: &str| {
            let conditions = identity_conflict(&ObjectKey::new("bank", "vault"), namespace);
            let messages = conditions.iter().map(|condition| condition.message.clone());
            messages.collect::<Vec<_>>().join("; ")
        };
        assert!(message("bank").contains("Cluster bank/vault is older"));
        let other = message("shop");
        assert!(!other.contains("vault") && !other.contains("bank"), "{other}");
    }

    #[test]
    fn the_time_of_a_probe_is_written_again_once_it_is_old_or_lies_ahead() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        for (seconds, expected) in [(0, false), (-300, false), (-301, true), (1, true)] {
            let time = now + jiff::SignedDuration::from_secs(seconds);
            assert_eq!(is_old(&time.to_string(), now), expected, "{seconds}");
        }
    }
}
