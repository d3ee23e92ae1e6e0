//! The objects of the demo: a Cluster for each member, one Source, one SyncGroup.

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::json;
use starling_api::{Cluster, Source, SyncGroup};

use super::clusters::{DemoCluster, DemoClusters};
use crate::cli::hub::put;

pub(super) const NAMESPACE: &str = "fleet";
pub(super) const GROUP: &str = "shop";

/// Clusters that are added at the same time.
const ADDED_AT_ONCE: usize = 32;

/// Applies the objects of the getting-started guide.
pub(super) async fn apply(hub: &Client, clusters: &DemoClusters, url: &str) -> anyhow::Result<()> {
    let namespace: Namespace =
        object(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}))?;
    put(&Api::all(hub.clone()), &namespace).await?;
    futures::stream::iter(clusters.members.iter().enumerate())
        .map(|(index, plane)| {
            let region = if index % 2 == 0 { "eu" } else { "us" };
            add_cluster(hub, plane, region)
        })
        .buffer_unordered(ADDED_AT_ONCE)
        .try_collect::<()>()
        .await?;
    let source: Source = object(json!({
        "apiVersion": "starling.dev/v1alpha1", "kind": "Source",
        "metadata": {"name": "shop"},
        "spec": {"url": url, "ref": {"branch": "main"}, "interval": "1s"},
    }))?;
    put(&Api::namespaced(hub.clone(), NAMESPACE), &source).await?;
    let group: SyncGroup = object(json!({
        "apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup",
        "metadata": {"name": GROUP},
        "spec": {
            "clusterSelector": {"matchLabels": {}},
            "syncs": [{
                "name": "app", "sourceRef": {"name": "shop"}, "path": "./deploy",
                "substitute": {"CLUSTER": "$(cluster.name)", "REGION": "$(cluster.labels.region)"},
                "wait": clusters.heals,
            }],
            "rolloutStrategy": {"maxConcurrency": "25%"},
        },
    }))?;
    put(&Api::namespaced(hub.clone(), NAMESPACE), &group).await
}

async fn add_cluster(hub: &Client, plane: &DemoCluster, region: &str) -> anyhow::Result<()> {
    let secret: Secret = object(json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": format!("{}-kubeconfig", plane.name)},
        "stringData": {"value": plane.kubeconfig()},
    }))?;
    put(&Api::namespaced(hub.clone(), NAMESPACE), &secret).await?;
    let cluster: Cluster = object(json!({
        "apiVersion": "starling.dev/v1alpha1", "kind": "Cluster",
        "metadata": {"name": plane.name, "labels": {"region": region}},
        "spec": {"kubeConfig": {"secretRef": {"name": format!("{}-kubeconfig", plane.name)}}},
    }))?;
    put(&Api::namespaced(hub.clone(), NAMESPACE), &cluster).await
}

fn object<K: DeserializeOwned>(value: serde_json::Value) -> anyhow::Result<K> {
    Ok(serde_json::from_value(value)?)
}
