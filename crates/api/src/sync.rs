//! Sync: one Source on one Cluster.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::Condition;
use crate::{Duration, LocalRef, ObjectSelector, schema};

/// One Source kept on one Cluster: by itself, or as the part of a SyncGroup on that cluster.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
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
    doc = "One Source kept on one Cluster: by itself, or as the part of a SyncGroup on that cluster"
)]
#[x_kube(validation = Rule::new("has(self.groupRef) == has(oldSelf.groupRef) && (!has(self.groupRef) || self.groupRef == oldSelf.groupRef)").message("groupRef is immutable: a Sync belongs to its SyncGroup, or to nobody, for life"))]
#[serde(rename_all = "camelCase")]
pub struct SyncSpec {
    /// The SyncGroup and entry that this Sync is a part of; written by the group only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_ref: Option<GroupRef>,
    /// The Cluster.
    pub cluster_ref: LocalRef,
    /// What to apply. With groupRef, empty means not admitted: nothing is applied. Without groupRef, empty
    /// means the Source's revision.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub revision: String,
    /// What, and how.
    #[serde(flatten)]
    pub template: SyncTemplate,
}

/// The part of a SyncGroup that a Sync is.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct GroupRef {
    /// Name of the SyncGroup.
    #[serde(default)]
    pub name: String,
    /// Name of the entry in `syncs`.
    #[serde(default)]
    pub entry: String,
}

/// What to apply and how: common to a Sync and to an entry of a SyncGroup.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SyncTemplate {
    /// The Source.
    pub source_ref: LocalRef,
    /// Folder in the repository: a kustomization, or plain YAML.
    #[serde(default = "default_path")]
    #[schemars(length(max = 1024))]
    pub path: String,
    /// Namespace for every namespaced object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63))]
    pub target_namespace: String,
    /// Values for ${NAME} in the manifests; $(cluster.name), $(cluster.labels.x) and $(cluster.annotations.x)
    /// stand for the cluster's own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub substitute: BTreeMap<String, String>,
    /// Delete from the cluster what left the repository.
    #[serde(default = "yes")]
    pub prune: bool,
    /// May a render without objects prune everything.
    #[serde(default)]
    pub allow_empty: bool,
    /// Health of all applied objects belongs to Ready.
    #[serde(default = "yes")]
    pub wait: bool,
    /// Limit of one attempt, and with wait of the time until all objects are healthy.
    #[serde(default = "default_timeout")]
    pub timeout: Duration,
    /// How often drift is looked for, at least.
    #[serde(default = "default_interval")]
    pub interval: Duration,
    /// Start of the backoff after a failure; doubles to 10 minutes, with jitter.
    #[serde(default = "default_retry_interval")]
    pub retry_interval: Duration,
    /// Recreate objects where a field is immutable.
    #[serde(default)]
    pub force: bool,
    /// An existing object that is not ours, with fields owned by others: report it, or take it over.
    #[serde(default)]
    pub conflicts: ConflictPolicy,
    /// Fields that others own on purpose.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignore: Vec<IgnoreRule>,
    /// What must be Ready first: in a Sync, Syncs of this namespace; in a SyncGroup, entries of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<LocalRef>,
    /// ServiceAccount of the member that is impersonated for every request of this Sync.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub service_account_name: String,
    /// How encrypted manifests are read; none: they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decryption: Option<Decryption>,
    /// What becomes of the objects when the Sync is deleted.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
    /// Leave the cluster as it is.
    #[serde(default)]
    pub suspend: bool,
}

/// How encrypted manifests are read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Decryption {
    /// The tool that they were encrypted with.
    #[serde(default)]
    pub provider: DecryptionProvider,
    /// A Secret of this namespace on the management cluster; each key that ends in `.agekey` holds age identities.
    #[serde(default)]
    pub secret_ref: LocalRef,
}

/// A tool that manifests are encrypted with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DecryptionProvider {
    /// SOPS, with age keys.
    #[default]
    #[serde(rename = "sops")]
    Sops,
}

/// What to do with an existing object that is not ours where fields of it belong to others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConflictPolicy {
    /// Say which object, field and manager.
    #[default]
    Report,
    /// Take the fields over.
    Override,
}

/// What becomes of objects whose reason to be is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DeletionPolicy {
    /// They stay.
    #[default]
    Orphan,
    /// They are deleted.
    Delete,
}

/// Fields that are left to others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct IgnoreRule {
    /// JSON pointers, such as /spec/replicas.
    #[serde(default)]
    pub paths: Vec<String>,
    /// In which objects; none means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<ObjectSelector>,
}

/// How far a Sync is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SyncStatus {
    /// Generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The last value of `starling.dev/requested-at` that was acted upon.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_handled_reconcile_at: String,
    /// Revision of the last attempt.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_attempted_revision: String,
    /// Target of the last attempt: `attempts` counts failures of this one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_attempted_target: String,
    /// Revision that the cluster holds.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_applied_revision: String,
    /// What the cluster holds: digest of commit, resolved template and resolved parameters.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_applied_target: String,
    /// The cluster that holds it, by identity: a rebuilt cluster of the same name holds nothing.
    #[serde(
        default,
        rename = "lastAppliedClusterID",
        skip_serializing_if = "String::is_empty"
    )]
    pub last_applied_cluster_id: String,
    /// When it was applied, RFC 3339.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_applied_time: String,
    /// The target with which all objects were healthy last; later trouble does not take it back.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_healthy_target: String,
    /// Since when its objects are healthy, RFC 3339; empty while they are not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub healthy_since: String,
    /// The longest time for which all objects were healthy with lastHealthyTarget, of those that have ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longest_healthy: Option<Duration>,
    /// Failed attempts in a row at this target.
    #[serde(default)]
    pub attempts: u32,
    /// When it is tried again, RFC 3339; empty where nothing is waited for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub next_attempt_time: String,
    /// What the cluster holds of this Sync.
    #[serde(default)]
    pub inventory: InventorySummary,
    /// What the last attempt that wrote anything did.
    #[serde(default)]
    pub changes: Changes,
    /// Deletions that wait for a person, while there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_deletions: Option<DeletionHold>,
    /// Objects in trouble: ten at most.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub problems: Vec<ObjectProblem>,
    /// Ready, Reconciling, Stalled, Healthy, DeletionHeld, Contested.
    #[serde(default)]
    #[schemars(with = "Vec<schema::Condition>", extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Deletions that wait for a person.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeletionHold {
    /// What `starling.dev/approve-deletions` has to name, on the Sync or on its SyncGroup.
    pub digest: String,
    /// How many objects would be deleted.
    #[serde(default)]
    pub deletions: u32,
    /// Of how many.
    #[serde(default)]
    pub of: u32,
    /// Ten of them at most, those that take others along first.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub objects: Vec<String>,
}

/// The inventory on the member, in short.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InventorySummary {
    /// How many objects.
    #[serde(default)]
    pub objects: u32,
    /// Digest over their keys.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub digest: String,
}

/// How many objects an attempt did what with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Changes {
    /// Made.
    #[serde(default)]
    pub created: u32,
    /// Changed.
    #[serde(default)]
    pub configured: u32,
    /// Found as wanted.
    #[serde(default)]
    pub unchanged: u32,
    /// Pruned.
    #[serde(default)]
    pub deleted: u32,
}

/// An object in trouble.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ObjectProblem {
    /// Such as `Deployment shop/web`.
    pub object: String,
    /// One CamelCase word.
    #[serde(default)]
    pub reason: String,
    /// At most 512 bytes.
    #[serde(default)]
    pub message: String,
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
