//! The Cluster loop: whether a cluster can be reached, and which one it is.
//!
//! observe (Secret, connection, probe) → renew (the token, where that is due) → report. While the cluster's circuit
//! breaker is open, probes are the only requests to it, at most one in [`PROBE_PERIOD`]; credentials that it has
//! refused are not sent again at all, and only the Secret is read. The connection that a probe succeeded on is the one
//! that the cluster's Syncs use. An unreachable cluster is neither healthy nor failed: its Ready is `Unknown` (I5).

mod observe;
mod reach;
mod renew;
mod report;

use std::time::Duration;

use starling_core::breaker::PROBE_PERIOD;

pub use reach::reach;

use starling_api::Cluster;

use super::ReconcileError;
use super::names::{ClusterId, Uid};
use crate::controller::cache::ObjectKey;
use crate::controller::context::{ClusterContext, Next};
use crate::controller::waits;

/// What a cluster says it is.
#[derive(Debug)]
struct Identity {
    cluster_id: ClusterId,
    /// Version of its API server.
    version: String,
}

/// What a probe of the cluster came to.
#[derive(Debug)]
enum ProbeResult {
    /// Its Cluster is suspended; the connection is closed.
    Suspended,
    /// It answers, and this is what it is.
    Ready(Identity),
    /// An older Cluster connects to the same member.
    IdentityConflict { identity: Identity, other: ObjectKey },
    /// It does not answer. With an open circuit breaker it is probed again after this time.
    Unreachable {
        message: String,
        probe_after: Option<Duration>,
    },
    /// It was not asked: its circuit breaker is open, and it is not yet time for the next probe.
    Waiting { probe_after: Duration },
    /// It throttles requests. It is reachable, and its last status stands.
    Busy { pause: Duration },
    /// It does not accept the credentials. They are not sent again; the Secret is read now and then.
    Refused,
    /// It answers, and cannot be worked on.
    Unusable { reason: &'static str, message: String },
}

/// Reconciles one Cluster.
///
/// # Errors
/// [`ReconcileError`] where its status could not be written.
pub async fn reconcile(context: ClusterContext<'_>, key: &ObjectKey) -> Result<Next, ReconcileError> {
    let Some(cluster) = context.clusters.get(key) else {
        return Ok(Next::OnEvent);
    };
    let result = observe::observe(context, &cluster).await;
    let next = next(&cluster, &result);
    let expiring = renew::renew(context, &cluster, &result).await;
    // Nothing was learned, so there is nothing to report.
    if !matches!(result, ProbeResult::Waiting { .. }) {
        report::report(context, &cluster, result, expiring).await?;
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
