//! Deletion budgets: how much may be deleted within a window, and what has been counted.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::duration::{YEAR, between};
use crate::{Duration, IntOrPercent};

/// Limit of the deletions within a sliding window of time, whatever causes them: a prune, a deleted Sync or
/// SyncGroup, a cluster that left the selection, or a removed entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeletionBudget {
    /// Maximum number of objects that are deleted within the window, as a number or as a percentage of the
    /// most objects within the window, rounded down. Defaults to 50% for a SyncGroup, but at least 100, and to no
    /// limit for a Sync.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objects: Option<IntOrPercent>,
    /// Maximum number of clusters on which objects are deleted within the window, as a number or as a
    /// percentage of the clusters of the group, rounded down. Not allowed for a Sync. Defaults to no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clusters: Option<IntOrPercent>,
    /// Length of the window, at least 1s. Deletions count for this time. Defaults to 1h.
    #[serde(default = "an_hour")]
    #[schemars(extend("x-kubernetes-validations" = between("1s", YEAR)))]
    pub window: Duration,
}

impl Default for DeletionBudget {
    fn default() -> Self {
        Self {
            objects: None,
            clusters: None,
            window: an_hour(),
        }
    }
}

const fn an_hour() -> Duration {
    Duration::from_secs(3600)
}

/// Deletions that count against a deletion budget. They are counted before they are sent to a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Deletions {
    /// Deletions by time, oldest first. Deletions that no longer count are absent.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub counts: Vec<DeletionCount>,
    /// Deletions that were counted last and may still be in progress. Set on Syncs only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<DeletionGrant>,
    /// Clusters that are leaving the selection, and whose deletions were counted or approved: at most 200 kB of names.
    /// Set on SyncGroups only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub leaving: Vec<String>,
    /// Approvals that are used up. Those that no longer exist are absent. Of the DeletionApprovals, the newest 100 are
    /// recorded; the record with the name `*` is of all that are older.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub used: Vec<UsedApproval>,
}

impl Deletions {
    /// Returns the number of objects that count.
    #[must_use]
    pub fn objects(&self) -> u32 {
        self.counts
            .iter()
            .fold(0, |sum, count| sum.saturating_add(count.objects))
    }
}

/// Number of deletions at about the same time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeletionCount {
    /// Time of the first of the deletions, in RFC 3339 format.
    pub time: String,
    /// Number of objects.
    #[serde(default)]
    pub objects: u32,
    /// Number of clusters that had lost no objects within the window before.
    #[serde(default)]
    pub clusters: u32,
    /// Names of these clusters, so that each counts once. Set if the budget limits clusters. At most 1000 are recorded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub cluster_names: Vec<String>,
    /// Number of clusters that left the selection of the group, and whose objects are deleted.
    #[serde(default)]
    pub left: u32,
    /// Number of objects before the first of the deletions.
    #[serde(default)]
    pub of_objects: u32,
    /// Number of clusters before the first of the deletions.
    #[serde(default)]
    pub of_clusters: u32,
}

/// Deletions that were counted and may be sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeletionGrant {
    /// Target whose objects replace the deleted ones; `deletion` if the Sync is being deleted.
    pub target: String,
    /// Number of objects.
    #[serde(default)]
    pub objects: u32,
    /// Number of objects that the Sync has afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining: Option<u32>,
    /// Hashes of the objects, eight hexadecimal digits each. Empty if there are more than 10000.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub list: String,
    /// Hashes of those of the objects whose deletion a person approved.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub approved: String,
    /// Digest of the list that a person approved. Empty if none was approved.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub digest: String,
}

/// Approval of deletions that was carried out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsedApproval {
    /// Name of the DeletionApproval, or of the annotation; `*` for all DeletionApprovals that were first created until
    /// `created`.
    pub name: String,
    /// `DeletionApproval`, or the kind of the annotated object. Empty in records of earlier versions.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// UID of the DeletionApproval, or of the annotated object. A restore to another API server changes it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Time at which the DeletionApproval was first created, in RFC 3339 format. A restore does not change it. Empty
    /// for an annotation.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub created: String,
    /// Digest of the list.
    pub digest: String,
    /// Time at which the deletions began, in RFC 3339 format.
    pub time: String,
}
