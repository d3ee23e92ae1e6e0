//! A management cluster that is restored from a backup while the controller runs.

use std::path::{Path, PathBuf};

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

/// Waits until the status of the group counts this many clusters.
async fn counts(world: &World, clusters: u64) -> Result<()> {
    let is_so = |group: &Value| group["status"]["clusters"]["total"] == clusters;
    group_is(world, &format!("the group counts {clusters} clusters"), is_so).await?;
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

/// Returns what the group has admitted, by Sync.
async fn admitted(world: &World) -> Result<Vec<(Value, Value)>> {
    let syncs: Value = serde_json::from_str(&world.raw("management", SYNCS).await?)?;
    let syncs = syncs["items"].as_array().context("items")?.iter();
    Ok(syncs
        .map(|sync| (sync["spec"].clone(), sync["metadata"]["annotations"].clone()))
        .collect())
}

/// A management cluster whose controller lives longer, and a member that is not restored with it.
struct Apart {
    world: World,
    member: World,
    repo: GitRepo,
    controller: Process,
}

impl Apart {
    /// The first release is everywhere.
    async fn start() -> Result<Self> {
        let repo = GitRepo::init()?;
        repo.commit(&[("deploy/settings.yaml", &settings("one"))], "one")?;
        let (mut member, mut world) = (World::new()?, World::new()?);
        member.start(&["--no-controller"]).await?;
        let view = "config view --raw --minify --flatten --context management";
        let access = member.kubectl(&view.split(' ').collect::<Vec<_>>(), "").await?;
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
        let apart = Self {
            world,
            member,
            repo,
            controller,
        };
        apart.succeeds(1).await?;
        Ok(apart)
    }

    fn log(&self) -> String {
        self.controller.log_tail(60).unwrap_or_default()
    }

    async fn succeeds(&self, rollout: u64) -> Result<Value> {
        let is_so = |group: &Value| {
            let status = &group["status"]["rollout"];
            status["id"] == rollout && status["phase"] == "Succeeded"
        };
        let what = format!("rollout {rollout} succeeds");
        group_is(&self.world, &what, is_so)
            .await
            .with_context(|| self.log())
    }

    /// Copies the data of the management cluster, which stops for that.
    async fn back_up(&mut self) -> Result<PathBuf> {
        self.world.stop().await?;
        let backup = self.world.path().join("backup");
        copy(&self.world.data(), &backup).await?;
        self.world.start(&["--no-controller"]).await?;
        Ok(backup)
    }

    async fn setting(&self) -> Result<Value> {
        let path = "/api/v1/namespaces/default/configmaps/settings";
        let map: Value = serde_json::from_str(&self.member.raw("management", path).await?)?;
        Ok(map["data"]["v"].clone())
    }
}

/// Guards against a rollout of a mixture of both pasts: the count of writes was read only with the next write to a
/// member, and status of the lost past was written into the restored group.
#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_lives_through_a_restore_decides_nothing() -> Result<()> {
    let mut apart = Apart::start().await?;
    let (backed_up, admitted_then) = (apart.succeeds(1).await?, admitted(&apart.world).await?);
    let backup = apart.back_up().await?;
    apart
        .repo
        .commit(&[("deploy/settings.yaml", &settings("two"))], "two")?;
    apart.succeeds(2).await?;

    restore(&mut apart.world, &backup).await?;
    let is_detected = |group: &Value| {
        let conditions = group["status"]["conditions"].as_array();
        let is_it = |found: &Value| found["type"] == "RestoreDetected" && found["status"] == "True";
        conditions.is_some_and(|conditions| conditions.iter().any(is_it))
    };
    let group = group_is(&apart.world, "the restore is detected", is_detected)
        .await
        .with_context(|| apart.log())?;
    for field in ["id", "phase", "release", "startTime"] {
        let of = |group: &Value| group["status"]["rollout"][field].clone();
        assert_eq!(of(&group), of(&backed_up), "{field}: {}", apart.log());
    }
    assert_eq!(admitted(&apart.world).await?, admitted_then, "{}", apart.log());
    assert_eq!(apart.setting().await?, "two");
    Ok(())
}

/// Guards against a rollout back to the revision of the backup: nothing was written to a member since, so that the
/// count of writes is equal, and the Source is listed before the group.
#[tokio::test(flavor = "multi_thread")]
async fn a_restore_that_lost_no_write_rolls_forward_only() -> Result<()> {
    let mut apart = Apart::start().await?;
    let backup = apart.back_up().await?;
    let suspend = [
        "-n",
        "fleet",
        "patch",
        "cluster.starling.dev",
        "m1",
        "--type=merge",
        "-p",
        r#"{"spec": {"suspend": true}}"#,
    ];
    apart.world.kubectl(&suspend, "").await?;
    apart
        .repo
        .commit(&[("deploy/settings.yaml", &settings("two"))], "two")?;
    let begun = |group: &Value| group["status"]["rollout"]["id"] == 2;
    group_is(&apart.world, "the second rollout waits", begun).await?;

    restore(&mut apart.world, &backup).await?;
    // The restored Cluster is not suspended. A rollout of the first revision would have taken the next number.
    apart.succeeds(2).await?;
    assert_eq!(apart.setting().await?, "two");
    Ok(())
}
