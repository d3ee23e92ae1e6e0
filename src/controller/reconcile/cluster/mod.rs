//! The Cluster loop: whether a cluster can be reached, and which one it is.
//!
//! validate → observe (Secret, connection, probe) → renew (the token, where that is due) → report. While the cluster's
//! circuit breaker is open its probes are the only thing that is sent there, at most one in [`PROBE_PERIOD`]; credentials
//! that it has refused are not sent again at all, and only the Secret is looked at. The connection that a probe succeeded on is the one that
//! the cluster's Syncs use. An unreachable cluster is neither green nor failed: its Ready is `Unknown` (I5).

mod observe;
mod reach;
mod renew;
mod report;

use std::time::Duration;

use starling_core::breaker::PROBE_PERIOD;
use starling_core::digest::{hash64, spread};

pub use reach::reach;

use starling_api::Cluster;

use super::ReconcileError;
use crate::controller::cache::ObjectKey;
use crate::controller::context::{Context, Next};

/// How often a cluster is probed while nothing else is asked of it.
const PROBE_INTERVAL: Duration = Duration::from_secs(60);
/// Wait after a first failed probe; doubles up to [`PROBE_INTERVAL`].
const RETRY: Duration = Duration::from_secs(2);
/// What is added to a wait for an open circuit breaker, so that it is over when it is looked at.
const MARGIN: Duration = Duration::from_millis(10);

/// What a look at the cluster came to.
#[derive(Debug)]
enum Finding {
    /// Its Cluster is suspended; the connection is closed.
    Suspended,
    /// It answers, and this is what it is.
    Ready { cluster_id: String, version: String },
    /// Another Cluster, which was there first, leads to the same cluster.
    IdentityConflict {
        cluster_id: String,
        version: String,
        other: String,
    },
    /// It does not answer. With an open circuit breaker it is probed again after this time.
    Unreachable {
        message: String,
        probe_after: Option<Duration>,
    },
    /// It was not asked: its circuit breaker is open, and it is not yet time for the next probe.
    Waiting { probe_after: Duration },
    /// It asks for a pause. It is there, and what was known of it stays so.
    Busy { pause: Duration },
    /// It does not accept the credentials. They are not tried again; the Secret is looked at now and then.
    Refused,
    /// It cannot be talked to, and that is not for want of an answer.
    Unusable { reason: &'static str, message: String },
}

/// Looks at one Cluster.
///
/// # Errors
/// [`ReconcileError`] where its status could not be written.
pub async fn reconcile(context: &Context, key: &ObjectKey) -> Result<Next, ReconcileError> {
    let Some(cluster) = context.clusters.get(key) else {
        context.members.remove(key);
        context.lanes.forget(key);
        return Ok(Next::OnEvent);
    };
    let finding = observe::look(context, &cluster).await;
    let next = next(&cluster, &finding);
    let expiring = renew::renew(context, &cluster, &finding).await;
    // Nothing was learned, so there is nothing to say.
    if !matches!(finding, Finding::Waiting { .. }) {
        report::report(context, &cluster, finding, expiring).await?;
    }
    Ok(next)
}

fn next(cluster: &Cluster, finding: &Finding) -> Next {
    let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
    let jittered = |wait: Duration| Next::After(wait + spread(wait / 10, hash64(&[uid])));
    match finding {
        Finding::Suspended => Next::OnEvent,
        Finding::Ready { .. } | Finding::IdentityConflict { .. } => jittered(PROBE_INTERVAL),
        Finding::Refused => jittered(PROBE_PERIOD),
        Finding::Busy { pause } => Next::After(*pause),
        Finding::Waiting { probe_after }
        | Finding::Unreachable {
            probe_after: Some(probe_after),
            ..
        } => Next::After(*probe_after + MARGIN),
        Finding::Unreachable {
            probe_after: None, ..
        }
        | Finding::Unusable { .. } => Next::Retry(RETRY),
    }
}
