//! SyncGroup: one Sync per entry and selected Cluster, rolled at the pace that it declares.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::Condition;
use crate::{DeletionPolicy, Duration, IntOrPercent, RolloutStrategy, StageTaskType, SyncTemplate, schema};

/// A set of clusters by label, and what is kept on each of them.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
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
    doc = "A set of clusters by label, and what is kept on each of them"
)]
#[serde(rename_all = "camelCase")]
pub struct SyncGroupSpec {
    /// Which Clusters of the namespace; empty selects all of them.
    #[schemars(with = "schema::LabelSelector")]
    pub cluster_selector: LabelSelector,
    /// What is kept on each: one Sync per entry and cluster.
    #[serde(default)]
    #[schemars(length(max = 50), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub syncs: Vec<SyncEntry>,
    /// What becomes of the objects on a cluster that leaves the selection.
    #[serde(default)]
    pub when_unselected: DeletionPolicy,
    /// How many of its clusters may leave the selection at once: more wait for a person (`MembershipHeld`), since a label that a script took
    /// away looks the same. One may always; a percentage rounds down.
    #[serde(default = "a_fifth")]
    pub max_unselected: IntOrPercent,
    /// What becomes of the objects when the group is deleted.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
    /// At what pace.
    #[serde(default)]
    pub rollout_strategy: RolloutStrategy,
    /// Start nothing more; what has started finishes.
    #[serde(default)]
    pub suspend: bool,
}

fn a_fifth() -> IntOrPercent {
    IntOrPercent::Percent(20)
}

/// One thing that is kept on every selected cluster.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SyncEntry {
    /// Its name within the group.
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')").message("name must be a DNS label: lower-case letters, digits and dashes, at most 20"))]
    #[schemars(length(min = 1, max = 20))]
    pub name: String,
    /// What, and how.
    #[serde(flatten)]
    pub template: SyncTemplate,
}

/// How far the group is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SyncGroupStatus {
    /// Generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The last value of `starling.dev/requested-at` that was acted upon.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_handled_reconcile_at: String,
    /// Every selected cluster counts once.
    #[serde(default)]
    pub clusters: ClusterCounts,
    /// The rollout under way, or the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutStatus>,
    /// The last release that succeeded on the whole group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_known_good: Option<ReleaseStatus>,
    /// A release that was rolled back from: it does not start again until something newer is offered or a person lets it go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_release: Option<HeldRelease>,
    /// Releases that wait for their turn (`onNewRevision: Queue`), the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub queue: Vec<ReleaseStatus>,
    /// The worst ten.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub problems: Vec<ClusterProblem>,
    /// Ready (every reachable cluster is done with this release), Progressing, Stalled, MembershipHeld,
    /// DeletionHeld, StagesOverlap (a cluster belongs to the first stage that selects it, and several do), ImplicitStage (no stage selects
    /// some clusters, which come last).
    #[serde(default)]
    #[schemars(with = "Vec<schema::Condition>", extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Selected clusters by what they are doing; all but `total` add up to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterCounts {
    /// Selected.
    #[serde(default)]
    pub total: u32,
    /// Done with this release.
    #[serde(default)]
    pub updated: u32,
    /// Started, not done.
    #[serde(default)]
    pub progressing: u32,
    /// Waiting for their turn.
    #[serde(default)]
    pub pending: u32,
    /// Started, and failed or in backoff.
    #[serde(default)]
    pub failed: u32,
    /// Cannot be reached: skipped, and caught up later.
    #[serde(default)]
    pub unreachable: u32,
    /// Kept from starting by something that concerns this cluster: suspended, a parameter missing.
    #[serde(default)]
    pub held: u32,
}

/// A rollout: a release on its way through the group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStatus {
    /// Counts up with each rollout of the group.
    pub id: i64,
    /// Digest of all entries' revisions and templates.
    #[serde(default)]
    pub release: String,
    /// Revision of each entry.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub revisions: Vec<EntryRevision>,
    /// Digest of everything that it renders to, on all clusters: what an approval is for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub release_digest: String,
    /// Which way it goes.
    #[serde(default, skip_serializing_if = "RolloutDirection::is_forward")]
    pub direction: RolloutDirection,
    /// How it stands.
    #[serde(default)]
    pub phase: RolloutPhase,
    /// When it started, RFC 3339.
    #[serde(default)]
    pub start_time: String,
    /// The stage it is in.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stage: String,
    /// Its stages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub stages: Vec<StageStatus>,
    /// Why nothing more starts right now.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub blocked_by: Vec<Blocker>,
}

/// Which way a rollout goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RolloutDirection {
    /// To what the Sources offer.
    #[default]
    Forward,
    /// Back, by the same stages.
    Back,
    /// Back, at once.
    BackAtOnce,
}

impl RolloutDirection {
    /// Whether it is the usual one.
    #[must_use]
    pub fn is_forward(&self) -> bool {
        *self == Self::Forward
    }
}

/// A release that is not to start again by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HeldRelease {
    /// Its digest.
    #[serde(default)]
    pub release: String,
    /// Revision of each entry.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub revisions: Vec<EntryRevision>,
    /// Why.
    #[serde(default)]
    pub reason: String,
    /// Since when, RFC 3339.
    #[serde(default)]
    pub since: String,
}

/// A release that was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReleaseStatus {
    /// Its digest.
    #[serde(default)]
    pub release: String,
    /// Revision of each entry.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub revisions: Vec<EntryRevision>,
}

/// The revision of one entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EntryRevision {
    /// Name of the entry.
    pub sync: String,
    /// Its revision.
    pub revision: String,
}

/// How a rollout stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RolloutPhase {
    /// Nothing has started.
    #[default]
    Pending,
    /// Under way.
    Progressing,
    /// Held by people or by a failure budget.
    Paused,
    /// On the way back.
    RollingBack,
    /// Every reachable cluster is done.
    Succeeded,
    /// Given up.
    Failed,
    /// Overtaken by a newer release.
    Superseded,
}

/// How a stage stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StageStatus {
    /// Its name; `*` is the implicit last one.
    pub name: String,
    /// Clusters in it.
    #[serde(default)]
    pub total: u32,
    /// Of these, done.
    #[serde(default)]
    pub updated: u32,
    /// Of these, failed.
    #[serde(default)]
    pub failed: u32,
    /// What it is doing.
    #[serde(default)]
    pub phase: String,
    /// Until when, RFC 3339.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub until: String,
    /// Since when its clusters may start, RFC 3339.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub start_time: String,
    /// When its clusters were through, RFC 3339.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub completion_time: String,
    /// When it let the next stage go, RFC 3339.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pass_time: String,
    /// Its tasks before it, as far as they have begun.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub before_stage_tasks: Vec<TaskStatus>,
    /// Its tasks after it, as far as they have begun.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub after_stage_tasks: Vec<TaskStatus>,
}

/// A task of a stage that has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskStatus {
    /// What is waited for.
    #[serde(rename = "type")]
    pub type_: StageTaskType,
    /// TimedWait: how long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_time: Option<Duration>,
    /// When it became its turn, RFC 3339.
    pub start_time: String,
    /// What was found, by a Webhook, a Metric or a Job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<TaskResult>,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// What was found by a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TaskResult {
    /// It may go on.
    Passed,
    /// It may not.
    Failed,
}

/// Something that keeps a rollout from starting more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Blocker {
    /// One CamelCase word.
    pub reason: String,
    /// For people.
    #[serde(default)]
    pub message: String,
    /// Since when, RFC 3339.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub since: String,
    /// When it is looked at again, RFC 3339; empty where an event is waited for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub recheck_at: String,
}

/// A cluster in trouble.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterProblem {
    /// Name of the Cluster.
    pub cluster: String,
    /// One CamelCase word.
    pub reason: String,
    /// For people.
    #[serde(default)]
    pub message: String,
    /// Since when, RFC 3339.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub since: String,
}
