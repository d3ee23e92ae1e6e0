//! RolloutApproval and RolloutAction: what people say to a rollout. Both are immutable, so that each says for ever who
//! asked for what, and why.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The answer to an Approval task: this release may go on behind this stage. Anything newer needs another one.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
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
    doc = "The answer to an Approval task of a rollout"
)]
#[x_kube(validation = Rule::new("self == oldSelf").message("an approval cannot be changed; delete it and make another one"))]
#[serde(rename_all = "camelCase")]
pub struct RolloutApprovalSpec {
    /// The SyncGroup, of this namespace.
    #[schemars(length(min = 1, max = 253))]
    pub group: String,
    /// The rollout, as in the group's `status.rollout.id`.
    #[schemars(range(min = 1))]
    pub rollout: i64,
    /// The stage whose Approval task is answered.
    #[schemars(length(min = 1, max = 63))]
    pub stage: String,
    /// What is approved: the digest of the objects that the release renders to, as `starling plan` prints it.
    #[schemars(length(min = 1, max = 80))]
    pub release_digest: String,
    /// Who approves. An admission policy in `deploy/` requires it to be the one who creates this.
    #[schemars(length(min = 1, max = 253))]
    pub by: String,
    /// Why.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub reason: String,
}

/// Something that a person asks of a rollout. It counts as long as it is there.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
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
    doc = "Something that a person asks of a rollout"
)]
#[x_kube(validation = Rule::new("self == oldSelf").message("an action cannot be changed; make another one"))]
#[x_kube(validation = Rule::new("self.action == 'Promote' ? has(self.stage) && !has(self.cluster) : true").message("Promote needs a stage, and no cluster"))]
#[x_kube(validation = Rule::new("self.action == 'Skip' ? has(self.stage) != has(self.cluster) : true").message("Skip needs a cluster or a stage"))]
#[x_kube(validation = Rule::new("self.action in ['Promote', 'Skip', 'Retry'] || (!has(self.stage) && !has(self.cluster))").message("this action is about the whole rollout: it takes neither stage nor cluster"))]
#[x_kube(validation = Rule::new("!has(self.revision) || self.action == 'Rollback'").message("only Rollback takes a revision"))]
#[serde(rename_all = "camelCase")]
pub struct RolloutActionSpec {
    /// The SyncGroup, of this namespace.
    #[schemars(length(min = 1, max = 253))]
    pub group: String,
    /// The rollout, as in the group's `status.rollout.id`. It is not asked of another one.
    #[schemars(range(min = 1))]
    pub rollout: i64,
    /// What is asked.
    pub action: ActionType,
    /// Skip and Retry: the one cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub cluster: Option<String>,
    /// Skip, Promote and Retry: the stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub stage: Option<String>,
    /// Rollback: the release that rolled with this revision; none: the last known good one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub revision: Option<String>,
    /// Who asks. An admission policy in `deploy/` requires it to be the one who creates this.
    #[schemars(length(min = 1, max = 253))]
    pub by: String,
    /// Why.
    #[schemars(length(min = 1, max = 1024))]
    pub reason: String,
}

/// What may be asked of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ActionType {
    /// Start nothing more; what has started finishes.
    Pause,
    /// Go on. Takes back the pauses before it.
    Resume,
    /// Start nothing of this release any more.
    Abort,
    /// Try again what failed: clusters at once, tasks of stages anew.
    Retry,
    /// Pass over a cluster or a stage.
    Skip,
    /// Let the next stage go without this one being through.
    Promote,
    /// Go back.
    Rollback,
    /// Let what was held after a rollback start again.
    Release,
}
