//! A fleet after `kill -9`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;
use starling_testkit::{GitRepo, program, wait};

use crate::world::{TIMEOUT, World};

pub(crate) const MEMBERS: [&str; 2] = ["eu-1", "us-1"];
pub(crate) const CLUSTERS: [&str; 5] = ["--cluster", "eu-1", "--cluster", "us-1", "--no-controller"];
/// Lists of all objects on the management cluster that this test uses.
const LISTS: [&str; 8] = [
    "/api/v1/namespaces",
    "/api/v1/secrets",
    "/api/v1/serviceaccounts",
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "/apis/starling.dev/v1alpha1/sources",
    "/apis/starling.dev/v1alpha1/clusters",
    "/apis/starling.dev/v1alpha1/syncgroups",
    "/apis/starling.dev/v1alpha1/syncs",
];

pub(crate) fn settings(color: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings, namespace: default}}\ndata: {{color: {color}}}\n"
    )
}

/// Applies a fleet as the guide does.
pub(crate) async fn apply_fleet(world: &World, url: &str) -> Result<()> {
    world.kubectl(&["create", "namespace", "fleet"], "").await?;
    for name in MEMBERS {
        let kubeconfig = world
            .kubectl(
                &[
                    "config",
                    "view",
                    "--raw",
                    "--minify",
                    "--flatten",
                    "--context",
                    name,
                ],
                "",
            )
            .await?;
        let secret = format!("{name}-kubeconfig");
        world
            .kubectl(
                &[
                    "-n",
                    "fleet",
                    "create",
                    "secret",
                    "generic",
                    &secret,
                    "--from-file=value=/dev/stdin",
                ],
                &kubeconfig,
            )
            .await?;
        let cluster = format!(
            "apiVersion: starling.dev/v1alpha1\nkind: Cluster\nmetadata: {{name: {name}, namespace: fleet}}\n\
             spec: {{kubeConfig: {{secretRef: {{name: {secret}}}}}}}\n"
        );
        world.kubectl(&["apply", "-f", "-"], &cluster).await?;
    }
    let group = format!(
        "apiVersion: starling.dev/v1alpha1\nkind: Source\nmetadata: {{name: shop, namespace: fleet}}\n\
         spec: {{url: \"{url}\", ref: {{branch: main}}, interval: 1s}}\n---\n\
         apiVersion: starling.dev/v1alpha1\nkind: SyncGroup\nmetadata: {{name: shop, namespace: fleet}}\n\
         spec:\n  clusterSelector: {{}}\n  syncs: [{{name: app, sourceRef: {{name: shop}}, path: ./deploy}}]\n\
         \x20 rolloutStrategy: {{maxConcurrency: 1}}\n"
    );
    world.kubectl(&["apply", "-f", "-"], &group).await?;
    Ok(())
}

pub(crate) async fn rolled_out(world: &World, color: &str) -> Result<()> {
    for member in MEMBERS {
        let check = async || {
            let path = "/api/v1/namespaces/default/configmaps/settings";
            let found = world
                .raw(member, path)
                .await
                .map_err(|error| format!("{error:#}"))?;
            let object: Value = serde_json::from_str(&found).map_err(|error| error.to_string())?;
            if object["data"]["color"] == color {
                Ok(())
            } else {
                Err(found)
            }
        };
        wait::until(TIMEOUT, format!("{color} is on {member}"), check).await?;
    }
    let ready = [
        "-n",
        "fleet",
        "wait",
        "syncgroup/shop",
        "--for=condition=Ready",
        "--timeout=60s",
    ];
    world.kubectl(&ready, "").await?;
    Ok(())
}

async fn lists(world: &World) -> Result<Vec<String>> {
    let mut lists = Vec::new();
    for path in LISTS {
        lists.push(world.raw("management", path).await.context(path)?);
    }
    Ok(lists)
}

/// Returns the names and UIDs of the items of a list.
fn uids(list: &str) -> Result<Vec<(String, String)>> {
    let list: Value = serde_json::from_str(list)?;
    let items = list["items"].as_array().context("items")?;
    Ok(items
        .iter()
        .map(|item| {
            let metadata = &item["metadata"];
            (metadata["name"].to_string(), metadata["uid"].to_string())
        })
        .collect())
}

/// Requests a reconcile of every Sync, and waits until all are done.
async fn reconcile_all(world: &World, mark: &str) -> Result<()> {
    let annotation = format!("starling.dev/requested-at={mark}");
    let all = [
        "-n",
        "fleet",
        "annotate",
        "--overwrite",
        "--all",
        "syncs.starling.dev",
        &annotation,
    ];
    world.kubectl(&all, "").await?;
    let check = async || {
        let path = "-o=jsonpath={range .items[*]}{.status.lastHandledReconcileAt} {end}";
        let handled = world
            .kubectl(&["-n", "fleet", "get", "syncs.starling.dev", path], "")
            .await;
        match handled {
            Ok(handled) if handled.split_whitespace().eq([mark; MEMBERS.len()]) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    wait::until(TIMEOUT, "the controller has reconciled every Sync", check).await?;
    Ok(())
}

pub(crate) async fn revisions(world: &World) -> Result<Vec<u64>> {
    let mut revisions = Vec::new();
    for member in MEMBERS {
        revisions.push(world.revision(member).await?);
    }
    Ok(revisions)
}

/// Returns when Ready of each Sync last changed.
async fn transitions(world: &World) -> Result<String> {
    let path = "-o=jsonpath={range .items[*]}{.metadata.name} \
                {.status.conditions[?(@.type==\"Ready\")].lastTransitionTime} {end}";
    world
        .kubectl(&["-n", "fleet", "get", "syncs.starling.dev", path], "")
        .await
}

/// Copies the kubeconfig, as for another machine.
fn copied(world: &World) -> Result<PathBuf> {
    let copy = world.path().join("copied");
    std::fs::copy(world.kubeconfig(), &copy)?;
    Ok(copy)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_continues_after_kill_9() -> Result<()> {
    let repo = GitRepo::init()?;
    repo.commit(&[("deploy/settings.yaml", &settings("blue"))], "blue")?;
    let mut world = World::new()?;
    world.start(&CLUSTERS[..4]).await?;
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(world.kubeconfig())?.permissions());
    assert_eq!(mode & 0o777, 0o600, "it contains tokens");
    let copy = copied(&world)?;
    apply_fleet(&world, &repo.url()).await?;
    rolled_out(&world, "blue").await?;
    reconcile_all(&world, "before").await?;
    let (state, members) = (lists(&world).await?, revisions(&world).await?);
    world.kill()?;

    // Only the server writes now.
    world.start(&["--no-controller"]).await?;
    let after = lists(&world).await?;
    for ((path, before), after) in LISTS.iter().zip(&state).zip(&after) {
        assert_eq!(uids(before)?, uids(after)?, "{path}");
    }
    // Objects that the controller does not write are unchanged, except for the revision of the list.
    for place in [0, 1, 2, 3] {
        let items =
            |text: &String| -> Result<Value> { Ok(serde_json::from_str::<Value>(text)?["items"].take()) };
        assert_eq!(items(&state[place])?, items(&after[place])?, "{}", LISTS[place]);
    }
    assert_eq!(revisions(&world).await?, members);
    let old = world
        .raw(
            "management",
            "/api/v1/secrets?watch=1&timeoutSeconds=5&resourceVersion=1",
        )
        .await?;
    assert!(old.contains("\"code\":410"), "{old}");
    world.kill()?;

    world.start(&["--no-controller"]).await?;
    assert_eq!(lists(&world).await?, after, "a restart writes nothing");
    let ready_since = transitions(&world).await?;
    world.kill()?;

    // With the controller: everything is in step, and nothing is written to the members.
    world.start(&[]).await?;
    reconcile_all(&world, "after").await?;
    assert_eq!(revisions(&world).await?, members);
    assert_eq!(
        transitions(&world).await?,
        ready_since,
        "each Sync was Ready all the time"
    );

    repo.commit(&[("deploy/settings.yaml", &settings("green"))], "green")?;
    rolled_out(&world, "green").await?;
    // A kubeconfig from before the restart is still valid.
    let shown = world
        .kubectl_with(
            &copy,
            &["-n", "fleet", "get", "syncgroup", "shop", "-o", "name"],
            "",
        )
        .await?;
    assert_eq!(shown.trim(), "syncgroup.starling.dev/shop");
    world.stop().await
}

/// Runs `git` in a repository; returns whether it succeeded.
fn git(repo: &GitRepo, arguments: &[&str]) -> Result<bool> {
    let git = std::process::Command::new("git")
        .arg("-C")
        .arg(repo.path())
        .args(arguments)
        .output()?;
    Ok(git.status.success())
}

/// Returns the folder of the pins in the mirror of the repository.
fn pins(folder: &Path) -> Result<PathBuf> {
    let mut below = vec![folder.to_owned()];
    while let Some(folder) = below.pop() {
        let pins = folder.join("refs/starling/pins");
        if pins.is_dir() {
            return Ok(pins);
        }
        for found in std::fs::read_dir(&folder)? {
            below.extend(Some(found?.path()).filter(|path| path.is_dir()));
        }
    }
    anyhow::bail!("there is no mirror with pins")
}

/// The last known good release, and the one before it, can be rendered again although their commits no longer exist
/// upstream, and the process was restarted.
#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_works_after_the_history_was_rewritten() -> Result<()> {
    let repo = GitRepo::init()?;
    let base = repo.commit(&[("deploy/settings.yaml", &settings("white"))], "white")?;
    let older = repo.commit(&[("deploy/settings.yaml", &settings("grey"))], "grey")?;
    let mut world = World::new()?;
    world.start(&CLUSTERS[..4]).await?;
    apply_fleet(&world, &repo.url()).await?;
    rolled_out(&world, "grey").await?;
    // The new history does not contain the good commit: only its pin keeps it.
    let follow = r#"{"spec":{"onRewrite":"Follow"}}"#;
    let patch = [
        "-n",
        "fleet",
        "patch",
        "source",
        "shop",
        "--type=merge",
        "-p",
        follow,
    ];
    world.kubectl(&patch, "").await?;
    repo.force_reset("main", &base)?;
    let good = repo.commit(&[("deploy/settings.yaml", &settings("blue"))], "blue")?;
    rolled_out(&world, "blue").await?;
    let fleet = ["-n", "fleet"];
    let canary = r#"{"spec":{"rolloutStrategy":{"stages":[{"name":"canary","clusterSelector":{"matchLabels":{"tier":"canary"}},
        "afterStageTasks":[{"type":"TimedWait","waitTime":"1h"}]}]}}}"#;
    for command in [
        &["label", "clusters.starling.dev", "eu-1", "tier=canary"][..],
        &["patch", "syncgroup", "shop", "--type=merge", "-p", canary],
    ] {
        world.kubectl(&[&fleet[..], command].concat(), "").await?;
    }
    world.kill()?;
    let pins = pins(&world.data())?;
    // This pin was never needed.
    std::fs::write(pins.join(&base), format!("{base}\n"))?;

    repo.force_reset("main", &base)?;
    let newest = repo.commit(&[("deploy/settings.yaml", &settings("green"))], "green")?;
    anyhow::ensure!(git(&repo, &["gc", "--prune=now", "--quiet"])?);
    for gone in [&older, &good] {
        anyhow::ensure!(!git(&repo, &["cat-file", "-e", gone])?, "{gone} is gone upstream");
    }

    world.start(&[]).await?;
    // The stage may also soak with the previous release.
    for until in [
        &*format!("--for=jsonpath={{.status.rollout.revisions[0].revision}}=main@sha1:{newest}"),
        "--for=jsonpath={.status.rollout.stages[0].phase}=Soaking",
    ] {
        let wait = ["wait", "syncgroup/shop", "--timeout=60s", until];
        world.kubectl(&[&fleet[..], &wait].concat(), "").await?;
    }
    let ended = async || {
        Some(())
            .filter(|()| !pins.join(&base).exists())
            .ok_or("it is still there")
    };
    wait::until(TIMEOUT, "the pin that nothing needs is ended", ended).await?;
    for kept in [&older, &good] {
        anyhow::ensure!(pins.join(kept).is_file(), "{kept} is not kept");
    }
    let color = async |member: &'static str| -> Result<Value> {
        let found = world
            .raw(member, "/api/v1/namespaces/default/configmaps/settings")
            .await?;
        Ok(serde_json::from_str::<Value>(&found)?["data"]["color"].take())
    };
    assert_eq!(
        (color("eu-1").await?, color("us-1").await?),
        ("green".into(), "blue".into())
    );
    for (more, color) in [(&[][..], "blue"), (&["--revision", &older], "grey")] {
        let back = tokio::process::Command::new(program())
            .args(["rollback", "shop", "-n", "fleet", "--reason", "it was rewritten"])
            .args(more)
            .env("KUBECONFIG", world.kubeconfig())
            .output()
            .await?;
        anyhow::ensure!(back.status.success(), "{}", String::from_utf8_lossy(&back.stderr));
        rolled_out(&world, color).await?;
    }
    world.stop().await
}
