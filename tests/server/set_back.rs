//! A management cluster that is restored from a backup while the controller runs.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use starling_controlplane::{Launch, Process};
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

/// Starts a controller that lives longer than the server.
fn controller(world: &World, kubeconfig: &Path) -> Result<Process> {
    let launch = Launch::new("controller", program(), world.path().join("controller-log"))
        .args([
            "controller",
            "--allow-insecure-sources",
            "--listen",
            "127.0.0.1:0",
            "--kubeconfig",
        ])
        .arg(kubeconfig)
        .arg("--data-dir")
        .arg(world.path().join("controller"));
    Ok(Process::start(&launch)?)
}

/// Sets the server back to a copy of its data.
async fn restore(world: &mut World, backup: &Path) -> Result<()> {
    world.kill()?;
    std::fs::remove_dir_all(world.data())?;
    copy(backup, &world.data()).await?;
    world.start(&["--no-controller"]).await
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
    let controller = controller(&world, &kubeconfig)?;
    counts(&world, 1)
        .await
        .with_context(|| controller.log_tail(30).unwrap_or_default())?;
    select(&world, "b").await?;
    counts(&world, 3).await?;

    restore(&mut world, &backup).await?;
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

const SYNCS: &str = "/apis/starling.dev/v1alpha1/namespaces/fleet/syncs";

fn settings(value: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings, namespace: default}}\ndata: {{v: {value}}}\n"
    )
}

/// Waits until the group of the management cluster is as `is_so` says, and returns it.
async fn group_is(world: &World, what: &str, is_so: impl Fn(&Value) -> bool) -> Result<Value> {
    let check = async || {
        let group = world.raw("management", GROUP).await;
        let group = group.map_err(|error| format!("{error:#}"))?;
        let group: Value = serde_json::from_str(&group).map_err(|error| error.to_string())?;
        if is_so(&group) {
            Ok(group)
        } else {
            Err(group["status"].to_string())
        }
    };
    Ok(wait::until(TIMEOUT, what, check).await?)
}

/// Returns what the group has admitted, by Sync.
async fn admitted(world: &World) -> Result<Vec<(Value, Value)>> {
    let syncs: Value = serde_json::from_str(&world.raw("management", SYNCS).await?)?;
    let syncs = syncs["items"].as_array().context("items")?.iter();
    Ok(syncs
        .map(|sync| (sync["spec"].clone(), sync["metadata"]["annotations"].clone()))
        .collect())
}

/// Guards against a rollout of a mixture of both pasts: the lists of a restored management cluster come one after the
/// other, and the count of its writes was read only with the next write to a member.
#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_lives_through_a_restore_decides_nothing() -> Result<()> {
    let repo = GitRepo::init()?;
    repo.commit(&[("deploy/settings.yaml", &settings("one"))], "one")?;
    let mut member = World::new()?;
    member.start(&["--no-controller"]).await?;
    let arguments = [
        "config",
        "view",
        "--raw",
        "--minify",
        "--flatten",
        "--context",
        "management",
    ];
    let access = member.kubectl(&arguments, "").await?;
    let mut world = World::new()?;
    world.start(&["--no-controller"]).await?;
    let kubeconfig = world.path().join("copied");
    std::fs::copy(world.kubeconfig(), &kubeconfig)?;
    world.kubectl(&["create", "namespace", "fleet"], "").await?;
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "m1", "namespace": "fleet"},
            "stringData": {"value": access}},
        {"apiVersion": "starling.dev/v1alpha1", "kind": "Cluster", "metadata": {"name": "m1", "namespace": "fleet"},
            "spec": {"kubeConfig": {"secretRef": {"name": "m1"}}}},
        {"apiVersion": "starling.dev/v1alpha1", "kind": "Source", "metadata": {"name": "shop", "namespace": "fleet"},
            "spec": {"url": repo.url(), "ref": {"branch": "main"}, "interval": "1s"}},
        {"apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup", "metadata": {"name": "shop", "namespace": "fleet"},
            "spec": {"clusterSelector": {},
                "syncs": [{"name": "app", "sourceRef": {"name": "shop"}, "path": "./deploy", "interval": "1h"}]}},
    ]});
    world.kubectl(&["apply", "-f", "-"], &objects.to_string()).await?;
    let controller = controller(&world, &kubeconfig)?;
    let succeeded = |number: u64| {
        move |group: &Value| {
            let rollout = &group["status"]["rollout"];
            rollout["id"] == number && rollout["phase"] == "Succeeded"
        }
    };
    let backed_up = group_is(&world, "the first release is everywhere", succeeded(1))
        .await
        .with_context(|| controller.log_tail(30).unwrap_or_default())?;
    let admitted_then = admitted(&world).await?;
    world.stop().await?;
    let backup = world.path().join("backup");
    copy(&world.data(), &backup).await?;
    world.start(&["--no-controller"]).await?;
    repo.commit(&[("deploy/settings.yaml", &settings("two"))], "two")?;
    group_is(&world, "the second release is everywhere", succeeded(2)).await?;

    restore(&mut world, &backup).await?;
    let is_detected = |group: &Value| {
        let conditions = group["status"]["conditions"].as_array();
        conditions.is_some_and(|conditions| {
            conditions
                .iter()
                .any(|found| found["type"] == "RestoreDetected" && found["status"] == "True")
        })
    };
    let group = group_is(&world, "the restore is detected", is_detected)
        .await
        .with_context(|| controller.log_tail(60).unwrap_or_default())?;
    let log = || controller.log_tail(60).unwrap_or_default();
    for field in ["id", "phase", "release", "startTime"] {
        let of = |group: &Value| group["status"]["rollout"][field].clone();
        assert_eq!(of(&group), of(&backed_up), "{field}: {}", log());
    }
    assert_eq!(admitted(&world).await?, admitted_then, "{}", log());
    let path = "/api/v1/namespaces/default/configmaps/settings";
    let map: Value = serde_json::from_str(&member.raw("management", path).await?)?;
    assert_eq!(map["data"]["v"], "two");
    Ok(())
}
