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
        also_claimed_by: None,
    };
    let (identity, mut updates) = match result {
        ProbeResult::Ready(identity) => {
            let message = format!("reachable, Kubernetes {}", identity.version);
            let mut updates = vec![ready(ConditionStatus::True, "Succeeded", message)];
            let namespace = cluster.namespace().unwrap_or_default();
            let other = identity.also_claimed_by.as_ref();
            updates.extend(other.map(|other| also_claimed(other, &namespace)));
            (identity, updates)
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
        // Its identity is not recorded: it belongs to the other one.
        ProbeResult::IdentityConflict { other, is_proven } => (
            known(),
            identity_conflict(
                &other,
                is_proven,
                cluster.namespace().unwrap_or_default().as_str(),
            ),
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

/// The reason of Ready of a Cluster that is not used because of an older one.
pub(super) const IDENTITY_CONFLICT_REASON: &str = "IdentityConflict";

/// Returns the conditions of a Cluster in `namespace` that is not used because of an older one.
fn identity_conflict(other: &ObjectKey, is_proven: bool, namespace: &str) -> Vec<ConditionUpdate> {
    let other = other.shown_to(namespace, "Cluster");
    let (reason, message) = if is_proven {
        let message = format!("{other} is older and connects to the same member; this Cluster is not used");
        ("SameCluster", message)
    } else {
        let message = format!(
            "{other} reports the same identity, and does not respond, so that it cannot be checked whether it is the same \
             member; this Cluster is not used until then"
        );
        ("NotChecked", message)
    };
    let conflict = ConditionUpdate {
        type_: IDENTITY_CONFLICT,
        status: ConditionStatus::True,
        reason: reason.into(),
        message: message.clone(),
    };
    vec![
        ready(ConditionStatus::False, IDENTITY_CONFLICT_REASON, message),
        conflict,
    ]
}

/// Returns the condition of a Cluster in `namespace` with an identity of its own.
fn also_claimed(other: &ObjectKey, namespace: &str) -> ConditionUpdate {
    let other = other.shown_to(namespace, "Cluster");
    ConditionUpdate {
        type_: IDENTITY_CONFLICT,
        status: ConditionStatus::True,
        reason: "OtherCluster".into(),
        message: format!(
            "{other} reports the same identity and is another member, or does not respond: one of them is a copy, or \
             claims what it is not; both are used"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_a_conflict_names_no_cluster_of_another_namespace() {
        let message = |namespace: &str| {
            let vault = ObjectKey::new("bank", "vault");
            let mut conditions = identity_conflict(&vault, true, namespace);
            conditions.extend(identity_conflict(&vault, false, namespace));
            conditions.push(also_claimed(&vault, namespace));
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
