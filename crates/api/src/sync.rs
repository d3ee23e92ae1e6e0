//! Sync: the manifests of one Source, applied to one Cluster.

use std::collections::BTreeMap;

use kube_derive::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::Condition;
use crate::duration::{HOUR, YEAR, at_most};
use crate::{DeletionBudget, Deletions, Duration, LocalRef, ObjectSelector, schema};

/// Desired state of a Sync.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "starling.dev",
    version = "v1alpha1",
    kind = "Sync",
    // The name `Sync` would hide the marker trait wherever this type is imported.
    root = "SyncResource",
    plural = "syncs",
    namespaced,
    status = "SyncStatus",
    shortname = "sy",
    category = "starling",
    derive = "PartialEq",
    printcolumn(name = "CLUSTER", type_ = "string", json_path = ".spec.clusterRef.name"),
    printcolumn(name = "READY", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "REVISION", type_ = "string", json_path = ".status.lastAppliedRevision"),
    printcolumn(name = "STATUS", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "WANTED", type_ = "string", json_path = ".spec.revision", priority = 1),
    doc = "Sync applies the manifests of one Source to one Cluster. It follows its Source, or belongs to a SyncGroup that decides when the Sync applies which revision."
)]
#[x_kube(validation = Rule::new("has(self.groupRef) == has(oldSelf.groupRef) && (!has(self.groupRef) || self.groupRef == oldSelf.groupRef)").message("groupRef is immutable"))]
#[x_kube(validation = Rule::new("self.clusterRef == oldSelf.clusterRef").message("clusterRef is immutable: create another Sync, and delete this one with the deletionPolicy that its objects need"))]
#[x_kube(validation = Rule::new("!has(self.deletionBudget) || !has(self.deletionBudget.clusters)").message("deletionBudget.clusters is allowed for a SyncGroup only"))]
#[serde(rename_all = "camelCase")]
pub struct SyncSpec {
    /// SyncGroup and entry that the Sync belongs to. Set by the SyncGroup controller only, and immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_ref: Option<GroupRef>,
    /// Cluster to apply to. Immutable: the inventory of the Sync is on the cluster.
    pub cluster_ref: LocalRef,
    /// Revision to apply. Without `groupRef`, an empty revision is the latest revision of the Source. With
    /// `groupRef`, an empty revision means that the Sync is not admitted and applies nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub revision: String,
    /// Limit of the deletions of this Sync within a window of time. A prune also requires an approval if it
    /// deletes more than half of the objects, at least ten, within the window. Defaults to no further limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_budget: Option<DeletionBudget>,
    /// What to apply, and how.
    #[serde(flatten)]
    pub template: SyncTemplate,
}

/// Reference from a Sync to its SyncGroup.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct GroupRef {
    /// Name of the SyncGroup.
    #[serde(default)]
    pub name: String,
    /// Name of the entry in `spec.syncs` of the SyncGroup.
    #[serde(default)]
    pub entry: String,
}

/// What to apply to a cluster, and how. Shared by a Sync and the entries of a SyncGroup.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct SyncTemplate {
    /// Source of the manifests.
    pub source_ref: LocalRef,
    /// Directory in the repository, with a kustomization or with plain YAML files. May contain
    /// `$(cluster.name)`, `$(cluster.labels.KEY)` and `$(cluster.annotations.KEY)`. Defaults to ./.
    #[serde(default = "default_path")]
    #[schemars(length(max = 1024))]
    pub path: String,
    /// Namespace that is set on every namespaced object. May contain the same variables as `path`. Defaults
    /// to the namespaces in the manifests.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63))]
    pub target_namespace: String,
    /// Variables to substitute in the manifests, by name: `${NAME}` is replaced by the value. Values may
    /// contain `$(cluster.name)`, `$(cluster.labels.KEY)` and `$(cluster.annotations.KEY)`. Variables that
    /// are not listed stay as they are.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub substitute: BTreeMap<String, String>,
    /// Whether to delete objects from the cluster that are no longer in the repository. Defaults to true.
    #[serde(default = "yes")]
    pub prune: bool,
    /// Time for which objects that are no longer in the repository are kept before they are pruned. Until then,
    /// `status.pendingDeletions` names them. Defaults to 0s.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(extend("x-kubernetes-validations" = at_most(YEAR)))]
    pub prune_grace: Duration,
    /// Whether to prune all objects when the build yields none. Defaults to false, which reports an error
    /// instead.
    #[serde(default)]
    pub allow_empty: bool,
    /// Whether the Sync becomes Ready only once all applied objects are healthy. Defaults to true.
    #[serde(default = "yes")]
    pub wait: bool,
    /// Timeout of one attempt. With `wait`, also the time that the objects have to become healthy. Defaults
    /// to 5m.
    #[serde(default = "default_timeout")]
    #[schemars(extend("x-kubernetes-validations" = at_most(HOUR)))]
    pub timeout: Duration,
    /// Maximum time between two checks for drift. Defaults to 10m.
    #[serde(default = "default_interval")]
    #[schemars(extend("x-kubernetes-validations" = at_most(YEAR)))]
    pub interval: Duration,
    /// Initial delay before a failed attempt is retried. The delay doubles with every failure up to 10m, with
    /// jitter. Defaults to 30s.
    #[serde(default = "default_retry_interval")]
    #[schemars(extend("x-kubernetes-validations" = at_most(YEAR)))]
    pub retry_interval: Duration,
    /// Whether to delete and recreate an object when an immutable field changes. Defaults to false. The
    /// annotation `starling.dev/force: enabled` does the same for one object.
    #[serde(default)]
    pub force: bool,
    /// What to do when an existing object outside the inventory has fields that other managers own. Report
    /// fails with the object, fields and managers; Override takes ownership of the fields. Defaults to
    /// Report.
    #[serde(default)]
    pub conflicts: ConflictPolicy,
    /// Rules for fields that other writers own. An ignored field is set when its object is created, and
    /// neither changed nor checked for drift after that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignore: Vec<IgnoreRule>,
    /// Entries or Syncs that must be Ready before this one is applied: entries of the same SyncGroup, or, for
    /// a Sync without a group, Syncs in the same namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<LocalRef>,
    /// ServiceAccount on the member to impersonate in all requests, in the namespace of the Sync. Defaults to
    /// no impersonation.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub service_account_name: String,
    /// Decryption of encrypted manifests. If not set, encrypted manifests are an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decryption: Option<Decryption>,
    /// What to do with the objects on the cluster when the Sync is deleted. Orphan leaves them; Delete
    /// deletes them. Defaults to Orphan.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
    /// Whether to stop reconciling. While true, nothing is applied to, repaired on or deleted from the
    /// cluster. Defaults to false.
    #[serde(default)]
    pub suspend: bool,
}

/// Settings for encrypted manifests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Decryption {
    /// Tool that the manifests are encrypted with. Only sops is supported. Defaults to sops.
    #[serde(default)]
    pub provider: DecryptionProvider,
    /// Secret in the same namespace of the management cluster with the keys. Every key of its data whose name
    /// ends in `.agekey` holds age identities.
    #[serde(default)]
    pub secret_ref: LocalRef,
}

/// Tool that manifests are encrypted with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DecryptionProvider {
    /// SOPS, with age keys.
    #[default]
    #[serde(rename = "sops")]
    Sops,
}

/// Reaction to fields of an existing object that other managers own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConflictPolicy {
    /// Fail, and name the object, fields and managers.
    #[default]
    Report,
    /// Take ownership of the fields.
    Override,
}

/// What to do with objects on a cluster when their owner goes away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum DeletionPolicy {
    /// Leave the objects on the cluster.
    #[default]
    Orphan,
    /// Delete the objects.
    Delete,
}

/// Rule that leaves fields to other writers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct IgnoreRule {
    /// Fields, as JSON pointers such as /spec/replicas.
    #[serde(default)]
    pub paths: Vec<String>,
    /// Objects that the rule applies to. Defaults to all objects of the Sync.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<ObjectSelector>,
}

/// Observed state of a Sync.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SyncStatus {
    /// Generation of the spec that the controller observed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Value of the annotation `starling.dev/requested-at` that the controller handled last.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_handled_reconcile_at: String,
    /// Value of the annotation `starling.dev/requested-at` of the Cluster that the controller handled last for this
    /// Sync.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_handled_cluster_reconcile_at: String,
    /// Value of the annotation `starling.dev/requested-at` of the SyncGroup that the controller handled last for this
    /// Sync.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_handled_group_reconcile_at: String,
    /// Revision of the last attempt.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_attempted_revision: String,
    /// Target of the last attempt, the one that `attempts` refers to.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_attempted_target: String,
    /// Time at which the last attempt that reached the cluster began, in RFC 3339 format. Records of the controller
    /// about the objects on the cluster count only if they belong to this attempt.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_attempt_time: String,
    /// Admission whose slot the Sync gave back, because its cluster became unreachable before anything was written to
    /// it: the value of the annotation `starling.dev/admitted-at`. The Sync applies nothing until its SyncGroup admits
    /// it again.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub returned_admission: String,
    /// Last revision that was applied successfully.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_applied_revision: String,
    /// Last target that was applied successfully: a digest of the revision, the resolved template and the
    /// resolved parameters.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_applied_target: String,
    /// Identity of the member that the last target was applied to: the UID of its `kube-system` namespace. A
    /// member with another identity has none of the objects.
    #[serde(
        default,
        rename = "lastAppliedClusterID",
        skip_serializing_if = "String::is_empty"
    )]
    pub last_applied_cluster_id: String,
    /// Identity of the member that the last attempt wrote to, whether it succeeded or not. What a Sync deletes at its
    /// end, it deletes on this member only.
    #[serde(
        default,
        rename = "lastAttemptedClusterID",
        skip_serializing_if = "String::is_empty"
    )]
    pub last_attempted_cluster_id: String,
    /// Time at which the last target was applied, in RFC 3339 format.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_applied_time: String,
    /// Last target with which all objects were healthy. It is not cleared when an object becomes unhealthy.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_healthy_target: String,
    /// Time since which all objects are healthy, in RFC 3339 format. Empty if an object is not healthy.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub healthy_since: String,
    /// Longest completed period during which all objects were healthy with `lastHealthyTarget`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longest_healthy: Option<Duration>,
    /// Number of consecutive failed attempts at `lastAttemptedTarget`.
    #[serde(default)]
    pub attempts: u32,
    /// Time of the next attempt after a failure, in RFC 3339 format. Empty if none is scheduled.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub next_attempt_time: String,
    /// Summary of the inventory on the member.
    #[serde(default)]
    pub inventory: InventorySummary,
    /// Number of objects by the result of the last attempt that wrote to the cluster.
    #[serde(default)]
    pub changes: Changes,
    /// Deletions that wait for an approval or for a deletion budget. Absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_deletions: Option<DeletionHold>,
    /// Deletions that count against the deletion budget. Absent if there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletions: Option<Deletions>,
    /// Objects that are no longer in the repository and are deleted after `pruneGrace`. Absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_deletions: Option<PendingDeletions>,
    /// Names of the Syncs that this one depended on when it last had nothing left to delete. They delete nothing that
    /// its remaining objects may need.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub last_depends_on: Vec<String>,
    /// Objects that the annotation `starling.dev/reconcile: disabled` excludes from the apply. Absent if there are
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_alone: Option<LeftAlone>,
    /// Objects that failed or are not healthy, at most ten.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub problems: Vec<ObjectProblem>,
    /// Conditions of the Sync. Known types are Ready, Reconciling, Stalled, Healthy, DeletionHeld, Contested
    /// and RestoreDetected (the management cluster was restored, and nothing is written to any cluster until the
    /// restore is released).
    #[serde(default)]
    #[schemars(with = "Vec<schema::Condition>", extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Deletions that wait for an approval or for a deletion budget.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeletionHold {
    /// Digest of the list of deletions and of the target that replaces the objects. To approve them, create a
    /// DeletionApproval with this digest for the Sync or its SyncGroup, or set the annotation
    /// `starling.dev/approve-deletions` of either to this value.
    pub digest: String,
    /// Number of objects to be deleted.
    #[serde(default)]
    pub deletions: u32,
    /// Number of objects in the inventory.
    #[serde(default)]
    pub of: u32,
    /// Deletion budget that the deletions exceed. Empty if they require an approval for another reason.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub budget: String,
    /// Time at which the deletion budget allows the deletions, in RFC 3339 format. Empty if only an approval does.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub until: String,
    /// Objects to be deleted, at most ten. Objects whose deletion deletes others come first.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub objects: Vec<String>,
}

/// Objects that are no longer in the repository and are not deleted yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PendingDeletions {
    /// Number of objects, without those that are being deleted already.
    #[serde(default)]
    pub count: u32,
    /// Time of the first attempt that no longer rendered the first of the objects, in RFC 3339 format. The object is
    /// deleted `pruneGrace` later.
    #[serde(default)]
    pub first_time: String,
    /// Time of the first attempt that no longer rendered the last of the objects, in RFC 3339 format. To keep all
    /// objects, set the annotation `starling.dev/undelete` of the Sync to this value.
    #[serde(default)]
    pub last_time: String,
    /// Names of objects, at most ten. Those that are deleted first come first.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub objects: Vec<String>,
    /// What objects whose grace is over wait for: finalizers, a slot, or the group. Empty if nothing is known to hold
    /// them.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub waiting_for: String,
}

/// Objects that `starling.dev/reconcile: disabled` excludes from the apply, as the last check found them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeftAlone {
    /// Number of objects.
    #[serde(default)]
    pub count: u32,
    /// Names of objects, at most three.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub objects: Vec<String>,
}

/// Summary of the inventory of a Sync.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InventorySummary {
    /// Number of objects in the inventory.
    #[serde(default)]
    pub objects: u32,
    /// Digest of the keys of the objects.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub digest: String,
}

/// Number of objects by the result of an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Changes {
    /// Number of objects created.
    #[serde(default)]
    pub created: u32,
    /// Number of objects changed.
    #[serde(default)]
    pub configured: u32,
    /// Number of objects that needed no change.
    #[serde(default)]
    pub unchanged: u32,
    /// Number of objects pruned.
    #[serde(default)]
    pub deleted: u32,
}

/// Problem with one object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ObjectProblem {
    /// Kind, namespace and name of the object, such as `Deployment shop/web`.
    pub object: String,
    /// Reason in CamelCase.
    #[serde(default)]
    pub reason: String,
    /// Human-readable message, at most 512 bytes.
    #[serde(default)]
    pub message: String,
}

const fn is_zero(duration: &Duration) -> bool {
    duration.is_zero()
}

fn default_path() -> String {
    "./".into()
}

fn yes() -> bool {
    true
}

fn default_timeout() -> Duration {
    Duration::from_secs(300)
}

fn default_interval() -> Duration {
    Duration::from_secs(600)
}

fn default_retry_interval() -> Duration {
    Duration::from_secs(30)
}
