//! A management cluster that is restored from a backup while the controller runs.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use starling_controlplane::Launch;
use starling_testkit::{GitRepo, program, wait};
use tokio::process::Command;

use crate::world::{TIMEOUT, World};

const GROUP: &str = "/apis/starling.dev/v1alpha1/namespaces/fleet/syncgroups/shop";

/// Applies Clusters that nothing listens behind, a Source and a group of the clusters of tier `a`.
async fn apply_fleet(world: &World, url: &str) -> Result<()> {
    world.kubectl(&["create", "namespace", "fleet"], "").await?;
    let mut objects = Vec::new();
    for (name, tier) in [
        ("a1", "a"),
        ("b1", "b"),
        ("b2", "b"),
        ("b3", "b"),
        ("later", "none"),
    ] {
        objects.push(json!({"apiVersion": "starling.dev/v1alpha1", "kind": "Cluster",
            "metadata": {"name": name, "namespace": "fleet", "labels": {"tier": tier}},
            "spec": {"kubeConfig": {"secretRef": {"name": "missing"}}}}));
    }
    objects.push(json!({"apiVersion": "starling.dev/v1alpha1", "kind": "Source",
        "metadata": {"name": "shop", "namespace": "fleet"},
        "spec": {"url": url, "ref": {"branch": "main"}, "interval": "1s"}}));
    objects.push(json!({"apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup",
        "metadata": {"name": "shop", "namespace": "fleet"},
        "spec": {"clusterSelector": {"matchLabels": {"tier": "a"}}, "unselectedGrace": "0s",
            "syncs": [{"name": "app", "sourceRef": {"name": "shop"}, "path": "./deploy"}]}}));
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    world.kubectl(&["apply", "-f", "-"], &list.to_string()).await?;
    Ok(())
}

/// Waits until the status of the group counts this many clusters.
async fn counts(world: &World, clusters: u64) -> Result<()> {
    let check = async || {
        let group = world
            .raw("management", GROUP)
            .await
            .map_err(|error| format!("{error:#}"))?;
        let group: Value = serde_json::from_str(&group).map_err(|error| error.to_string())?;
        if group["status"]["clusters"]["total"] == clusters {
            Ok(())
        } else {
            Err(group["status"].to_string())
        }
    };
    wait::until(TIMEOUT, format!("the group counts {clusters} clusters"), check).await?;
    Ok(())
}

async fn select(world: &World, tier: &str) -> Result<()> {
    let patch = json!({"spec": {"clusterSelector": {"matchLabels": {"tier": tier}}}});
    let patch = [
        "-n",
        "fleet",
        "patch",
        "syncgroup",
        "shop",
        "--type=merge",
        "-p",
        &patch.to_string(),
    ];
    world.kubectl(&patch, "").await?;
    Ok(())
}

async fn copy(from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("cp").arg("-a").args([from, to]).status().await?;
    ensure!(status.success(), "cp: {status}");
    Ok(())
}

/// Guards against a restored object that counts only after a restart of the controller: its version is smaller than the
/// known one, and the watch continues from a version that the server has not reached.
#[tokio::test(flavor = "multi_thread")]
async fn a_restored_selector_counts_without_a_restart() -> Result<()> {
    let repo = GitRepo::init()?;
    let settings = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, namespace: default}\n";
    repo.commit(&[("deploy/settings.yaml", settings)], "first")?;
    let mut world = World::new()?;
    world.start(&["--no-controller"]).await?;
    apply_fleet(&world, &repo.url()).await?;
    let kubeconfig = world.path().join("copied");
    std::fs::copy(world.kubeconfig(), &kubeconfig)?;
    world.stop().await?;
    let backup = world.path().join("backup");
    copy(&world.data(), &backup).await?;

    world.start(&["--no-controller"]).await?;
    let launch = Launch::new("controller", program(), world.path().join("controller-log"))
        .args([
            "controller",
            "--allow-insecure-sources",
            "--listen",
            "127.0.0.1:0",
            "--kubeconfig",
        ])
        .arg(&kubeconfig)
        .arg("--data-dir")
        .arg(world.path().join("controller"));
    let controller = starling_controlplane::Process::start(&launch)?;
    counts(&world, 1)
        .await
        .with_context(|| controller.log_tail(30).unwrap_or_default())?;
    select(&world, "b").await?;
    counts(&world, 3).await?;

    world.kill()?;
    std::fs::remove_dir_all(world.data())?;
    copy(&backup, &world.data()).await?;
    world.start(&["--no-controller"]).await?;
    world
        .kubectl(
            &[
                "-n",
                "fleet",
                "label",
                "--overwrite",
                "cluster.starling.dev",
                "later",
                "tier=a",
            ],
            "",
        )
        .await?;
    counts(&world, 2)
        .await
        .with_context(|| controller.log_tail(60).unwrap_or_default())?;
    ensure!(
        controller.exit_status()?.is_none(),
        "the controller was not restarted"
    );
    Ok(())
}
