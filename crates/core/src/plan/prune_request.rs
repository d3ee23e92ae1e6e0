//! What a Sync has to prune after the attempt that the group admitted.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::ids::ClusterName;

/// A Sync that has objects to prune after the attempt that the group admitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PruneRequest {
    /// The cluster of the Sync.
    pub cluster: ClusterName,
    /// Time at which a plan allowed the prune; `None`: none has. It is in progress from then on until its attempt has
    /// ended, which withdraws the request, and no longer than `progressDeadline`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_at: Option<Timestamp>,
}
