//! The Cluster loop: whether a cluster can be reached, and which one it is.
//!
//! validate → observe (Secret, connection, probe) → renew (the token, where that is due) → report. The connection that a probe succeeded on is the one that
//! the cluster's Syncs use. An unreachable cluster is neither green nor failed: its Ready is `Unknown` (I5).

mod observe;
mod reach;
mod renew;
mod report;

use std::time::Duration;

use starling_core::digest::{hash64, spread};

pub use reach::reach;

use super::ReconcileError;
use crate::controller::cache::ObjectKey;
use crate::controller::context::{Context, Next};

/// How often a cluster is probed while nothing else is asked of it.
const PROBE_INTERVAL: Duration = Duration::from_secs(60);
/// Wait after a first failed probe; doubles up to [`PROBE_INTERVAL`].
const RETRY: Duration = Duration::from_secs(2);

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
    /// It does not answer.
    Unreachable { message: String },
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
        return Ok(Next::OnEvent);
    };
    let finding = observe::look(context, &cluster).await;
    let next = match &finding {
        Finding::Suspended => Next::OnEvent,
        Finding::Ready { .. } | Finding::IdentityConflict { .. } => {
            let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
            Next::After(PROBE_INTERVAL + spread(PROBE_INTERVAL / 10, hash64(&[uid])))
        }
        Finding::Unreachable { .. } | Finding::Unusable { .. } => Next::Retry(RETRY),
    };
    let expiring = renew::renew(context, &cluster, &finding).await;
    report::report(context, &cluster, finding, expiring).await?;
    Ok(next)
}
