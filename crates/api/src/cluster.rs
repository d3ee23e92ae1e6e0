//! Cluster: a Kubernetes cluster to apply manifests to, with labels and credentials.

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::Condition;
use crate::{SecretKeyRef, schema};

/// Desired state of a Cluster.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "starling.dev",
    version = "v1alpha1",
    kind = "Cluster",
    namespaced,
    status = "ClusterStatus",
    shortname = "scl",
    category = "starling",
    derive = "PartialEq",
    printcolumn(
        name = "READY",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "VERSION", type_ = "string", json_path = ".status.version"),
    printcolumn(
        name = "STATUS",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message"
    ),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "ID", type_ = "string", json_path = ".status.clusterID", priority = 1),
    doc = "Cluster is a Kubernetes cluster that Starling applies manifests to. SyncGroups select it by its labels."
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterSpec {
    /// Credentials for the member.
    pub kube_config: KubeConfigRef,
    /// Whether to stop all work on this cluster. While true, the controller closes its connections to the
    /// member, and applies and deletes nothing there. Defaults to false.
    #[serde(default)]
    pub suspend: bool,
}

/// Reference to a kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeConfigRef {
    /// Secret in the same namespace that holds the kubeconfig. The kubeconfig must be self-contained: exec
    /// plugins, auth providers and file paths are rejected.
    pub secret_ref: SecretKeyRef,
}

/// Observed state of a Cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// Generation of the spec that the controller observed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Identity of the member: the UID of its `kube-system` namespace. It has a suffix, `~` and a hash, if another
    /// Cluster has this UID and is another member.
    #[serde(default, rename = "clusterID", skip_serializing_if = "String::is_empty")]
    pub cluster_id: String,
    /// Kubernetes version of the API server of the member.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Time of the last probe that was recorded, in RFC 3339 format. Probes that find no change are recorded
    /// less often.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_probe_time: String,
    /// Value of the annotation `starling.dev/requested-at` that the controller handled last.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_handled_reconcile_at: String,
    /// Conditions of the Cluster. Known types are Ready (Unknown while the member is unreachable), Stalled,
    /// IdentityConflict and CredentialsExpiring.
    #[serde(default)]
    #[schemars(with = "Vec<schema::Condition>", extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
