//! Cluster: a target, with labels and credentials.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::Condition;
use crate::{SecretKeyRef, schema};

/// A cluster that Starling keeps in step: how to reach it, and by its labels what it is.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
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
    doc = "A cluster that is kept in step: how to reach it, and by its labels what it is"
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterSpec {
    /// Where its credentials are.
    pub kube_config: KubeConfigRef,
    /// Leave it alone: its connection is closed, nothing is deleted.
    #[serde(default)]
    pub suspend: bool,
}

/// Where the kubeconfig of a cluster is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeConfigRef {
    /// A Secret with a self-contained kubeconfig: no exec, no paths.
    pub secret_ref: SecretKeyRef,
}

/// What the last probe found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// Generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// UID of its `kube-system` namespace.
    #[serde(default, rename = "clusterID", skip_serializing_if = "String::is_empty")]
    pub cluster_id: String,
    /// Version of its API server.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// When its state was last written after a probe, RFC 3339. Not moved by probes that find nothing new.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_probe_time: String,
    /// The last value of `starling.dev/requested-at` that was acted upon.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_handled_reconcile_at: String,
    /// Ready (Unknown when unreachable), IdentityConflict, CredentialsExpiring, Stalled.
    #[serde(default)]
    #[schemars(with = "Vec<schema::Condition>", extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
