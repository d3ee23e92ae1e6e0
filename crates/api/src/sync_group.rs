//! SyncGroup: one Sync for each entry and selected Cluster, rolled out by a strategy.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube_derive::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::Condition;
use crate::duration::{YEAR, at_most};
use crate::{
    DeletionBudget, DeletionPolicy, Deletions, Duration, IntOrPercent, RolloutStrategy, StageTaskType,
    SyncTemplate, schema,
};

/// Desired state of a SyncGroup.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "starling.dev",
    version = "v1alpha1",
    kind = "SyncGroup",
    namespaced,
    status = "SyncGroupStatus",
    shortname = "sg",
    category = "starling",
    derive = "PartialEq",
    printcolumn(
        name = "READY",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(
        name = "REVISION",
        type_ = "string",
        json_path = ".status.rollout.revisions[0].revision"
    ),
    printcolumn(name = "CLUSTERS", type_ = "integer", json_path = ".status.clusters.total"),
    printcolumn(name = "UPDATED", type_ = "integer", json_path = ".status.clusters.updated"),
    printcolumn(
        name = "PROGRESSING",
        type_ = "integer",
        json_path = ".status.clusters.progressing"
    ),
    printcolumn(name = "FAILED", type_ = "integer", json_path = ".status.clusters.failed"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "PENDING",
        type_ = "integer",
        json_path = ".status.clusters.pending",
        priority = 1
    ),
    printcolumn(
        name = "UNREACHABLE",
        type_ = "integer",
        json_path = ".status.clusters.unreachable",
        priority = 1
    ),
    printcolumn(
        name = "HELD",
        type_ = "integer",
        json_path = ".status.clusters.held",
        priority = 1
    ),
    printcolumn(
        name = "STATUS",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    ),
    doc = "SyncGroup rolls out the manifests of one or more Sources to every Cluster that a label selector matches. It creates one Sync for each entry and cluster."
)]
#[serde(rename_all = "camelCase")]
pub struct SyncGroupSpec {
    /// Label selector of the Clusters in the same namespace that the group rolls out to. An empty selector
    /// selects all of them.
    #[schemars(with = "schema::LabelSelector")]
    pub cluster_selector: LabelSelector,
    /// Entries of the group, at least one. The controller creates one Sync for each entry and selected cluster.
    #[serde(default)]
    #[schemars(!default, length(min = 1, max = 50), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub syncs: Vec<SyncEntry>,
    /// What to do with the objects on a cluster that is no longer selected. Orphan leaves them; Delete
    /// deletes them. Defaults to Orphan.
    #[serde(default)]
    pub when_unselected: DeletionPolicy,
    /// Maximum number of clusters that may leave the selection at once without an approval, as a number or as a
    /// percentage of the clusters of the group. A percentage rounds down. A single cluster never requires an
    /// approval. Above the limit, no cluster leaves until the change is approved (condition MembershipHeld).
    /// Defaults to 20%.
    #[serde(default = "a_fifth")]
    pub max_unselected: IntOrPercent,
    /// Time for which a cluster stays in the group after it left the selection. A cluster that returns within this
    /// time keeps its objects, regardless of `whenUnselected`. Use 0s for no delay. Defaults to 5m.
    #[serde(default = "five_minutes")]
    #[schemars(extend("x-kubernetes-validations" = at_most(YEAR)))]
    pub unselected_grace: Duration,
    /// What to do with the objects on all clusters when the group is deleted. Orphan leaves them; Delete
    /// deletes them. Defaults to Orphan.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
    /// Limit of the deletions of all Syncs of the group within a window of time. Deletions above the limit wait
    /// until the budget allows them, or until they are approved (condition DeletionHeld).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_budget: Option<DeletionBudget>,
    /// Rollout strategy.
    #[serde(default)]
    pub rollout_strategy: RolloutStrategy,
    /// Whether to stop starting clusters. Clusters that have started finish. Defaults to false.
    #[serde(default)]
    pub suspend: bool,
}

fn five_minutes() -> Duration {
    Duration::from_secs(300)
}

fn a_fifth() -> IntOrPercent {
    IntOrPercent::Percent(20)
}

/// Entry of a SyncGroup: a source of manifests that is applied to every selected cluster.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct SyncEntry {
    /// Name of the entry, unique within the group.
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')").message("name must be a DNS label: lower-case letters, digits and dashes, at most 20"))]
    #[schemars(length(min = 1, max = 20))]
    pub name: String,
    /// What to apply, and how.
    #[serde(flatten)]
    pub template: SyncTemplate,
}

/// Observed state of a SyncGroup.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SyncGroupStatus {
    /// Generation of the spec that the controller observed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Value of the annotation `starling.dev/requested-at` that the controller handled last.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_handled_reconcile_at: String,
    /// Identity of the group, which a restore of the group to another API server keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<GroupIdentity>,
    /// Number of selected clusters by state. Each cluster counts once.
    #[serde(default)]
    pub clusters: ClusterCounts,
    /// Current rollout, or the last one if none is in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutStatus>,
    /// Last release that succeeded on the whole group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_known_good: Option<ReleaseStatus>,
    /// Release that a rollback left behind. It does not start again until a newer release is available or an
    /// operator releases it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_release: Option<HeldRelease>,
    /// Releases that wait for the current rollout to complete, oldest first. Used with `onNewRevision:
    /// Queue`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub queue: Vec<ReleaseStatus>,
    /// Clusters that left the selection and still have Syncs, grouped by the time at which they left, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub unselected: Vec<UnselectedClusters>,
    /// Entries whose `deletionPolicy` was set to `Orphan`, and that have Syncs which no release with that change has
    /// reached. If such an entry is removed, its objects stay.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub kept_entries: Vec<String>,
    /// Deletions that count against the deletion budget. Absent if there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletions: Option<Deletions>,
    /// Deletions of the group as a whole that wait for an approval. The deletions that a Sync holds are in the status
    /// of the Sync.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub held_deletions: Vec<GroupDeletionHold>,
    /// Clusters with problems, the ten most severe.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub problems: Vec<ClusterProblem>,
    /// Conditions of the SyncGroup. Known types are Ready (every reachable cluster is done with the current
    /// release), Progressing, Stalled, MembershipHeld, DeletionHeld, StagesOverlap (several stages select the
    /// same cluster), ImplicitStage (no stage selects some clusters) and RestoreDetected (the management cluster was
    /// restored, and nothing is written to any cluster until the restore is released).
    #[serde(default)]
    #[schemars(with = "Vec<schema::Condition>", extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Identity of a SyncGroup. A restore to another API server creates the object with a new UID and a new creation time;
/// the identity in its status stays. A group that is deleted and created again has another identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupIdentity {
    /// Hash of the installation ID, the namespace, the name and `uid`. Gates, kept releases, the journal and the ledger
    /// refer to the group by it.
    #[serde(default)]
    pub id: String,
    /// UID of the object that first had this identity.
    #[serde(default)]
    pub uid: String,
    /// Creation time of the object that first had this identity, in RFC 3339 format.
    #[serde(default)]
    pub creation_time: String,
}

/// Clusters that left the selection of a group at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnselectedClusters {
    /// Time at which the controller observed that they left, in RFC 3339 format.
    pub since: String,
    /// Names of the clusters.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub clusters: Vec<String>,
}

/// Deletions of a group that wait for an approval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupDeletionHold {
    /// Cause of the deletions: Deselection or Rollback.
    pub cause: GroupDeletionCause,
    /// Digest of the list. An approval names this digest.
    pub digest: String,
}

/// Cause of deletions of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum GroupDeletionCause {
    /// Clusters left the selection of the group.
    Deselection,
    /// The release of an automatic rollback lacks entries.
    Rollback,
}

/// Number of selected clusters by state. The counts other than `total` add up to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterCounts {
    /// Number of selected clusters.
    #[serde(default)]
    pub total: u32,
    /// Number of clusters that are done with the current release.
    #[serde(default)]
    pub updated: u32,
    /// Number of clusters that have started and are not done.
    #[serde(default)]
    pub progressing: u32,
    /// Number of clusters that have not started yet.
    #[serde(default)]
    pub pending: u32,
    /// Number of clusters that have started and failed, including those in backoff.
    #[serde(default)]
    pub failed: u32,
    /// Number of clusters that are unreachable. They catch up once they are reachable again.
    #[serde(default)]
    pub unreachable: u32,
    /// Number of clusters that are on hold for a reason of their own: skipped, suspended, or without a value
    /// for a parameter.
    #[serde(default)]
    pub held: u32,
}

/// State of one rollout of a group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStatus {
    /// Number of the rollout, increasing with each rollout of the group.
    pub id: i64,
    /// Digest of the revisions and templates of all entries.
    #[serde(default)]
    pub release: String,
    /// Revision of each entry.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub revisions: Vec<EntryRevision>,
    /// Digest of all objects that the release renders to, on all clusters. An approval names this digest.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub release_digest: String,
    /// Direction of the rollout: Forward, Back for a staged rollback, BackAtOnce for an immediate rollback.
    /// Defaults to Forward.
    #[serde(default, skip_serializing_if = "RolloutDirection::is_forward")]
    pub direction: RolloutDirection,
    /// Whether the rollout is a rollback that began because the rollout before it failed, and not on request. The
    /// removal of an entry that its release lacks then requires an approval. Defaults to false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub automatic: bool,
    /// Phase of the rollout: Pending, Progressing, Paused, RollingBack, Succeeded, Failed or Superseded.
    #[serde(default)]
    pub phase: RolloutPhase,
    /// Time at which the rollout started, in RFC 3339 format.
    #[serde(default)]
    pub start_time: String,
    /// Name of the current stage.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stage: String,
    /// State of each stage, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub stages: Vec<StageStatus>,
    /// Reasons why no more clusters start. Empty if nothing blocks the rollout.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub blocked_by: Vec<Blocker>,
}

/// Direction of a rollout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RolloutDirection {
    /// To the latest revisions of the Sources.
    #[default]
    Forward,
    /// To an earlier release, by the same stages.
    Back,
    /// To an earlier release, at once.
    BackAtOnce,
}

impl RolloutDirection {
    /// Returns whether the rollout goes forward.
    #[must_use]
    pub fn is_forward(&self) -> bool {
        *self == Self::Forward
    }
}

/// Release that a rollback left behind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HeldRelease {
    /// Digest of the release.
    #[serde(default)]
    pub release: String,
    /// Revision of each entry.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub revisions: Vec<EntryRevision>,
    /// Reason of the rollback.
    #[serde(default)]
    pub reason: String,
    /// Time since which the release is held, in RFC 3339 format.
    #[serde(default)]
    pub since: String,
}

/// Release of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReleaseStatus {
    /// Digest of the release.
    #[serde(default)]
    pub release: String,
    /// Revision of each entry.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub revisions: Vec<EntryRevision>,
}

/// Revision of one entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EntryRevision {
    /// Name of the entry.
    pub sync: String,
    /// Revision of the entry.
    pub revision: String,
}

/// Phase of a rollout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RolloutPhase {
    /// No cluster has started.
    #[default]
    Pending,
    /// The rollout is in progress.
    Progressing,
    /// An operator, a failure limit or a cluster on hold blocks the rollout.
    Paused,
    /// A rollback is in progress.
    RollingBack,
    /// Every reachable cluster is done.
    Succeeded,
    /// The rollout was aborted.
    Failed,
    /// A newer release replaced the rollout before it completed.
    Superseded,
}

/// State of one stage of a rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StageStatus {
    /// Name of the stage. The name `*` is that of the implicit last stage.
    pub name: String,
    /// Number of clusters in the stage.
    #[serde(default)]
    pub total: u32,
    /// Number of clusters in the stage that are done.
    #[serde(default)]
    pub updated: u32,
    /// Number of clusters in the stage that have failed.
    #[serde(default)]
    pub failed: u32,
    /// Phase of the stage: Pending, Progressing, Soaking, Succeeded, Skipped, or what the stage waits for,
    /// such as AwaitingApproval.
    #[serde(default)]
    pub phase: String,
    /// Time at which the soak time or the wait of the stage ends, in RFC 3339 format. Empty if the phase does
    /// not end at a known time.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub until: String,
    /// Time since which clusters of the stage may start, in RFC 3339 format.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub start_time: String,
    /// Time at which the clusters of the stage were done, in RFC 3339 format.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub completion_time: String,
    /// Time at which the stage passed and the next stage could start, in RFC 3339 format.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pass_time: String,
    /// Gates before the stage that have started, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub before_stage_tasks: Vec<TaskStatus>,
    /// Gates after the stage that have started, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub after_stage_tasks: Vec<TaskStatus>,
}

/// State of a gate that has started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskStatus {
    /// Type of the gate: TimedWait, Approval, Webhook, Metric or Job.
    #[serde(rename = "type")]
    pub type_: StageTaskType,
    /// Time to wait, for a TimedWait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_time: Option<Duration>,
    /// Time at which the gate started, in RFC 3339 format.
    pub start_time: String,
    /// Result of a Webhook, a Metric or a Job: Passed or Failed. Absent until there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<TaskResult>,
    /// Human-readable message about the result or the last attempt.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Result of a Webhook, a Metric or a Job: Passed or Failed. Absent until there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TaskResult {
    /// The gate passed.
    Passed,
    /// The gate failed.
    Failed,
}

/// Reason why no more clusters of a rollout start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Blocker {
    /// Reason in CamelCase.
    pub reason: String,
    /// Human-readable message.
    #[serde(default)]
    pub message: String,
    /// Time since which the reason applies, in RFC 3339 format.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub since: String,
    /// Time of the next check, in RFC 3339 format. Empty if the rollout waits for an event.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub recheck_at: String,
}

/// Problem with one cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterProblem {
    /// Name of the Cluster.
    pub cluster: String,
    /// Reason in CamelCase.
    pub reason: String,
    /// Human-readable message.
    #[serde(default)]
    pub message: String,
    /// Time since which the problem exists, in RFC 3339 format.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub since: String,
}
