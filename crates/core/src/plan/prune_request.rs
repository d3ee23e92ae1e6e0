//! What a Sync has to delete after what the group admitted.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::ids::ClusterName;

/// A Sync that has objects to prune after the attempt that the group admitted, or that is being removed and has to
/// delete objects after its removal gave its slot back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PruneRequest {
    /// The cluster of the Sync.
    pub cluster: ClusterName,
    /// Time at which a plan allowed the deletion; `None`: none has. It is in progress from then on until its attempt
    /// has ended, which withdraws the request, and has a slot no longer than `progressDeadline`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_at: Option<Timestamp>,
    /// Whether objects were deleted since: what has begun is completed, without a slot after `progressDeadline`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub begun: bool,
}
