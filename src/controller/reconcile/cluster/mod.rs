//! The Cluster loop: reachability and identity of a member.
//!
//! observe (Secret, connection, probe) → renew (the token, if due) → report. While the circuit breaker of the cluster
//! is open, probes are the only requests to the member, at most one in [`PROBE_PERIOD`]. Rejected credentials are not
//! sent again; only the Secret is read. The cluster's Syncs use the connection of the last successful probe. An
//! unreachable cluster is neither healthy nor failed: its Ready is `Unknown` (I5).

mod identity;
mod observe;
mod reach;
mod renew;
mod report;

use std::time::Duration;

use starling_core::breaker::PROBE_PERIOD;

pub use self::reach::{is_reachable, jitter_id, reach};

use starling_api::Cluster;

use super::ReconcileError;
use crate::controller::context::{ClusterContext, Next};
use crate::controller::object_key::ObjectKey;
use crate::controller::waits;
use starling_core::ids::{ClusterId, Uid};

/// The identity of a member.
#[derive(Debug)]
struct Identity {
    cluster_id: ClusterId,
    /// Version of the API server.
    version: String,
    /// Another Cluster that reports the identity and is another member. The identity is qualified then.
    also_claimed_by: Option<ObjectKey>,
}

/// The result of a probe.
#[derive(Debug)]
enum ProbeResult {
    /// The Cluster is suspended, and the connection is closed.
    Suspended,
    /// The member responded with its identity.
    Ready(Identity),
    /// An older Cluster connects to the same member, or to one of which that is not known.
    IdentityConflict { other: ObjectKey, is_proven: bool },
    /// The member did not respond. With an open circuit breaker the next probe is due after this time.
    Unreachable {
        message: String,
        probe_after: Option<Duration>,
    },
    /// No probe was sent: the circuit breaker is open, and the next probe is not due.
    Waiting { probe_after: Duration },
    /// The member throttles requests. It is reachable, and its last status stays.
    Busy { pause: Duration },
    /// The member rejected the credentials. They are not sent again; the Secret is read in intervals.
    Refused,
    /// The member responded, and cannot be used.
    Unusable { reason: &'static str, message: String },
}

/// Reconciles one Cluster.
///
/// # Errors
/// [`ReconcileError`] if status cannot be written.
pub async fn reconcile(context: ClusterContext<'_>, key: &ObjectKey) -> Result<Next, ReconcileError> {
    let Some(cluster) = context.clusters.get(key) else {
        return Ok(Next::OnEvent);
    };
    let is_first = !context.number_checks.is_tried(key);
    let result = observe::observe(context, &cluster).await;
    if is_first && !matches!(result, ProbeResult::Suspended) {
        // A member that does not respond, or cannot be used, holds no group.
        context.number_checks.tried(key, false);
        // Its Syncs did not use the connection until now.
        context.handlers.enqueue_syncs_of(key);
    }
    let next = next(&cluster, &result);
    let expiring = renew::renew(context, &cluster, &result).await;
    let identity = match &result {
        ProbeResult::Ready(identity) => Some(identity.cluster_id.clone()),
        _ => None,
    };
    // No new information, so nothing to report.
    if !matches!(result, ProbeResult::Waiting { .. }) {
        report::report(context, &cluster, result, expiring).await?;
    }
    if identity.is_some_and(|identity| context.connections.probed(key, &identity)) {
        context.handlers.enqueue_syncs_of(key);
    }
    Ok(next)
}

fn next(cluster: &Cluster, result: &ProbeResult) -> Next {
    let uid = Uid::of(cluster);
    let jittered = |wait: Duration| Next::After(waits::at_least(wait, uid.as_str()));
    match result {
        ProbeResult::Suspended => Next::OnEvent,
        ProbeResult::Ready(_) | ProbeResult::IdentityConflict { .. } => jittered(waits::PROBE_INTERVAL),
        ProbeResult::Refused => jittered(PROBE_PERIOD),
        ProbeResult::Busy { pause } => Next::After(*pause),
        ProbeResult::Waiting { probe_after }
        | ProbeResult::Unreachable {
            probe_after: Some(probe_after),
            ..
        } => Next::After(*probe_after + waits::BREAKER_MARGIN),
        ProbeResult::Unreachable {
            probe_after: None, ..
        }
        | ProbeResult::Unusable { .. } => Next::Retry(waits::PROBE_RETRY),
    }
}
