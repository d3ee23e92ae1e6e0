//! A cluster that is set back to a backup.

use std::time::Duration;

use futures::TryStreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt as _;
use kube::api::{Api, Patch, PatchParams, PostParams, WatchParams};
use serde_json::json;
use starling_apiserver::journal::Verb;
use starling_apiserver::state::RESTORED_BY;

use crate::world::World;

fn config_map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"value": value}})).unwrap()
}

fn definition() -> CustomResourceDefinition {
    serde_json::from_value(
        json!({"metadata": {"name": "lamps.example.com"}, "spec": {"group": "example.com",
        "names": {"plural": "lamps", "kind": "Lamp"}, "scope": "Namespaced", "versions": [{"name": "v1",
            "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}}),
    )
    .unwrap()
}

/// Sets a cluster back after an edit and two creations. Returns by how much its revision changed.
async fn set_back(bump: bool) -> i64 {
    let world = World::new().await;
    let (cluster, client) = world.cluster("member").await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let params = PostParams::default();
    let first = maps.create(&params, &config_map("a", "1")).await.unwrap();
    let backup = cluster.backup();

    let edit = json!({"data": {"value": "2"}});
    maps.patch("a", &PatchParams::default(), &Patch::Merge(&edit))
        .await
        .unwrap();
    let lost = maps.create(&params, &config_map("b", "1")).await.unwrap();
    let definitions: Api<CustomResourceDefinition> = Api::all(client);
    definitions.create(&params, &definition()).await.unwrap();
    let (params_of_watch, version) = (WatchParams::default(), lost.resource_version().unwrap());
    let watch = maps.watch(&params_of_watch, &version).await.unwrap();
    let (revision, written) = (cluster.revision(), cluster.journal().len());

    cluster.set_back(&backup, bump, Timestamp::now());
    let changed = cluster.revision().cast_signed() - revision.cast_signed();
    let rest = tokio::time::timeout(Duration::from_secs(10), watch.try_collect::<Vec<_>>()).await;
    assert!(rest.unwrap().unwrap().is_empty());
    assert_eq!(maps.get("a").await.unwrap(), first);
    assert!(maps.get_opt("b").await.unwrap().is_none());
    assert!(
        cluster
            .stored(
                "customresourcedefinitions.apiextensions.k8s.io",
                "lamps.example.com"
            )
            .is_none()
    );

    let journal = cluster.journal();
    let restored: Vec<_> = { journal[written..].iter() }
        .filter(|entry| &*entry.manager == RESTORED_BY)
        .map(|entry| (entry.verb, entry.key().to_string()))
        .collect();
    assert!(
        restored.contains(&(Verb::Apply, "default/a".to_owned())),
        "{restored:?}"
    );
    assert!(
        restored.contains(&(Verb::Delete, "default/b".to_owned())),
        "{restored:?}"
    );
    assert!(
        restored.contains(&(Verb::Delete, "lamps.example.com".to_owned())),
        "{restored:?}"
    );
    assert!(restored.len() == 3, "{restored:?}");

    let again = maps.create(&params, &config_map("b", "1")).await.unwrap();
    assert_ne!(again.uid(), lost.uid());
    changed
}

#[tokio::test]
async fn a_restored_cluster_has_the_objects_and_the_revision_of_the_backup() {
    assert!(set_back(false).await < 0);
}

#[tokio::test]
async fn a_restored_cluster_continues_with_a_revision_that_was_bumped() {
    assert!(set_back(true).await >= 1000);
}
