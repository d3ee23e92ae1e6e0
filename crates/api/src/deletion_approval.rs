//! DeletionApproval: an approval of one list of deletions. It is immutable, so that it records who approved what, and
//! why.

use kube_derive::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

/// Approval of one list of deletions of a SyncGroup or a Sync. It is used up once it is carried out: the same list
/// requires another approval later. The spec is immutable.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "starling.dev",
    version = "v1alpha1",
    kind = "DeletionApproval",
    namespaced,
    category = "starling",
    derive = "PartialEq",
    printcolumn(name = "GROUP", type_ = "string", json_path = ".spec.group"),
    printcolumn(name = "SYNC", type_ = "string", json_path = ".spec.sync"),
    printcolumn(name = "DIGEST", type_ = "string", json_path = ".spec.digest", priority = 1),
    printcolumn(name = "BY", type_ = "string", json_path = ".spec.by"),
    printcolumn(name = "REASON", type_ = "string", json_path = ".spec.reason"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    doc = "DeletionApproval approves one list of deletions of a SyncGroup or a Sync, once."
)]
#[x_kube(validation = Rule::new("self == oldSelf").message("DeletionApproval is immutable; delete it and create another one"))]
#[x_kube(validation = Rule::new("has(self.group) != has(self.sync)").message("exactly one of group and sync is required"))]
#[serde(rename_all = "camelCase")]
pub struct DeletionApprovalSpec {
    /// Name of the SyncGroup in the same namespace. The approval applies to each of its Syncs that would delete this
    /// list, to clusters that leave its selection, and to entries that an automatic rollback removes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub group: Option<String>,
    /// Name of the Sync in the same namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub sync: Option<String>,
    /// Digest of the list, as in the conditions `DeletionHeld` and `MembershipHeld` and in the output of
    /// `starling why` and `starling plan`. It covers the target that replaces the objects.
    #[schemars(length(min = 1, max = 80))]
    pub digest: String,
    /// User who approves. An admission policy in `deploy/` requires the name of the user who creates the
    /// object.
    #[schemars(length(min = 1, max = 253))]
    pub by: String,
    /// Human-readable reason. Defaults to none.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub reason: String,
}
