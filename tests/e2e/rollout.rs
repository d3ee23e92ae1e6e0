//! A commit rolls through a group.

use anyhow::Result;
use serde_json::json;
use starling_api::{RolloutPhase, SyncResource};
use starling_testkit::{Fleet, FleetOptions, GitRepo};

use crate::PROGRAM;

/// A ConfigMap with one value, in namespace `default`.
pub(crate) fn config_map(name: &str, value: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: default}}\ndata: {{value: \"{value}\"}}\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_rolls_through_the_group_and_the_next_one_follows() -> Result<()> {
    let fleet = Fleet::start(FleetOptions {
        members: 2,
        ..FleetOptions::default()
    })
    .await?;
    let repo = GitRepo::init()?;
    let first = repo.commit(&[("app/settings.yaml", &config_map("settings", "one"))], "one")?;
    for name in ["m1", "m2"] {
        fleet.add_cluster(name, &[]).await?;
    }
    fleet
        .put_source("shop", &repo.url(), json!({"branch": "main"}))
        .await?;
    let entry = json!({"name": "app", "sourceRef": {"name": "shop"}, "path": "./app"});
    fleet
        .put_group("shop", json!({"clusterSelector": {}, "syncs": [entry]}))
        .await?;
    let _controller = fleet.controller(PROGRAM, &[])?;

    let status = fleet.rollout("shop", &first, RolloutPhase::Succeeded).await?;
    assert_eq!((status.clusters.total, status.clusters.updated), (2, 2));
    let second = repo.commit(&[("app/settings.yaml", &config_map("settings", "two"))], "two")?;
    let status = fleet.rollout("shop", &second, RolloutPhase::Succeeded).await?;
    assert_eq!(status.clusters.updated, 2);
    for name in ["m1", "m2"] {
        let data = fleet
            .config_map(name, "default", "settings")
            .await?
            .unwrap_or_default();
        assert_eq!(data.get("value").map(String::as_str), Some("two"), "{name}");
        let sync: SyncResource = fleet.get(&format!("shop-app-{name}")).await?;
        assert!(
            sync.status
                .unwrap_or_default()
                .last_applied_revision
                .ends_with(&second)
        );
    }
    Ok(())
}
