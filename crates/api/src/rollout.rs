//! RolloutApproval and RolloutAction: approvals and operator actions. Both are immutable, so that each records who
//! asked for what, and why.

use kube_derive::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Approval of one release to pass one stage of one rollout. A newer release requires a new approval. The
/// spec is immutable.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "starling.dev",
    version = "v1alpha1",
    kind = "RolloutApproval",
    namespaced,
    category = "starling",
    derive = "PartialEq",
    printcolumn(name = "GROUP", type_ = "string", json_path = ".spec.group"),
    printcolumn(name = "ROLLOUT", type_ = "integer", json_path = ".spec.rollout"),
    printcolumn(name = "STAGE", type_ = "string", json_path = ".spec.stage"),
    printcolumn(name = "BY", type_ = "string", json_path = ".spec.by"),
    printcolumn(name = "REASON", type_ = "string", json_path = ".spec.reason"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    doc = "RolloutApproval approves one release to pass one stage of a rollout that has an Approval task."
)]
#[x_kube(validation = Rule::new("self == oldSelf").message("RolloutApproval is immutable; delete it and create another one"))]
#[serde(rename_all = "camelCase")]
pub struct RolloutApprovalSpec {
    /// Name of the SyncGroup in the same namespace.
    #[schemars(length(min = 1, max = 253))]
    pub group: String,
    /// Number of the rollout, as in `status.rollout.id` of the SyncGroup.
    #[schemars(range(min = 1))]
    pub rollout: i64,
    /// Name of the stage whose Approval task is approved.
    #[schemars(length(min = 1, max = 63))]
    pub stage: String,
    /// Digest of all objects that the approved release renders to, as in `status.rollout.releaseDigest` of
    /// the SyncGroup and in the output of `starling plan`.
    #[schemars(length(min = 1, max = 80))]
    pub release_digest: String,
    /// User who approves. An admission policy in `deploy/` requires the name of the user who creates the
    /// object.
    #[schemars(length(min = 1, max = 253))]
    pub by: String,
    /// Human-readable reason. Defaults to none.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub reason: String,
}

/// Action of an operator on one rollout. It is in effect until the object is deleted. The spec is immutable.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "starling.dev",
    version = "v1alpha1",
    kind = "RolloutAction",
    namespaced,
    category = "starling",
    derive = "PartialEq",
    printcolumn(name = "GROUP", type_ = "string", json_path = ".spec.group"),
    printcolumn(name = "ROLLOUT", type_ = "integer", json_path = ".spec.rollout"),
    printcolumn(name = "ACTION", type_ = "string", json_path = ".spec.action"),
    printcolumn(name = "BY", type_ = "string", json_path = ".spec.by"),
    printcolumn(name = "REASON", type_ = "string", json_path = ".spec.reason"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    doc = "RolloutAction is an action of an operator on a rollout, such as a pause or a rollback."
)]
#[x_kube(validation = Rule::new("self == oldSelf").message("RolloutAction is immutable; create another one"))]
#[x_kube(validation = Rule::new("self.action == 'Promote' ? has(self.stage) && !has(self.cluster) : true").message("stage is required and cluster is not allowed for Promote"))]
#[x_kube(validation = Rule::new("self.action == 'Skip' ? has(self.stage) != has(self.cluster) : true").message("exactly one of cluster and stage is required for Skip"))]
#[x_kube(validation = Rule::new("self.action in ['Promote', 'Skip', 'Retry'] || (!has(self.stage) && !has(self.cluster))").message("cluster and stage are allowed for Promote, Skip and Retry only"))]
#[x_kube(validation = Rule::new("!has(self.revision) || self.action == 'Rollback'").message("revision is allowed for Rollback only"))]
#[serde(rename_all = "camelCase")]
pub struct RolloutActionSpec {
    /// Name of the SyncGroup in the same namespace.
    #[schemars(length(min = 1, max = 253))]
    pub group: String,
    /// Number of the rollout, as in `status.rollout.id` of the SyncGroup. The action has no effect on other
    /// rollouts.
    #[schemars(range(min = 1))]
    pub rollout: i64,
    /// Type of the action. Pause stops starting clusters until a Resume; Resume ends earlier pauses; Abort
    /// stops starting clusters of this rollout permanently; Retry retries failed clusters and gates; Skip skips
    /// a cluster or a stage; Promote starts the next stage; Rollback rolls back to an earlier release; Release
    /// allows the held release to roll out again.
    pub action: ActionType,
    /// Name of the Cluster to skip or to retry. Allowed for Skip and Retry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub cluster: Option<String>,
    /// Name of the stage to skip, to promote or to retry. Required for Promote, allowed for Skip and Retry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub stage: Option<String>,
    /// Revision to roll back to. Allowed for Rollback. Defaults to the last known good release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub revision: Option<String>,
    /// User who acts. An admission policy in `deploy/` requires the name of the user who creates the object.
    #[schemars(length(min = 1, max = 253))]
    pub by: String,
    /// Human-readable reason.
    #[schemars(length(min = 1, max = 1024))]
    pub reason: String,
}

/// Type of an operator action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ActionType {
    /// Stop starting clusters until a Resume. Clusters that have started finish.
    Pause,
    /// End earlier pauses.
    Resume,
    /// Stop starting clusters of this rollout permanently.
    Abort,
    /// Retry failed clusters at once, and failed gates from the beginning.
    Retry,
    /// Skip a cluster or a stage.
    Skip,
    /// Start the next stage before this one has passed.
    Promote,
    /// Roll back to an earlier release.
    Rollback,
    /// Allow the held release to roll out again.
    Release,
}
