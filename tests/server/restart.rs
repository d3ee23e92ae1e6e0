//! A fleet, `kill -9`, and the same fleet.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;
use starling_testkit::{GitRepo, wait};

use crate::world::{PATIENCE, PROGRAM, World};

const MEMBERS: [&str; 2] = ["eu-1", "us-1"];
const CLUSTERS: [&str; 5] = ["--cluster", "eu-1", "--cluster", "us-1", "--no-controller"];
/// Lists of everything on the management cluster that this test has to do with.
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

fn settings(color: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings, namespace: default}}\ndata: {{color: {color}}}\n"
    )
}

/// Applies a fleet as the guide does.
async fn apply_fleet(world: &World, url: &str) -> Result<()> {
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

async fn rolled_out(world: &World, color: &str) -> Result<()> {
    for member in MEMBERS {
        let look = async || {
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
        wait::until(PATIENCE, format!("{color} is on {member}"), look).await?;
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

/// Kind-independent identity of the items of a list.
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

/// Lets the controller look at every Sync now, and waits until it has.
async fn look_at_all(world: &World, mark: &str) -> Result<()> {
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
    let look = async || {
        let path = "-o=jsonpath={range .items[*]}{.status.lastHandledReconcileAt} {end}";
        let handled = world
            .kubectl(&["-n", "fleet", "get", "syncs.starling.dev", path], "")
            .await;
        match handled {
            Ok(handled) if handled.split_whitespace().eq([mark; MEMBERS.len()]) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    wait::until(PATIENCE, "the controller has looked at every Sync", look).await?;
    Ok(())
}

async fn revisions(world: &World) -> Result<Vec<u64>> {
    let mut revisions = Vec::new();
    for member in MEMBERS {
        revisions.push(world.revision(member).await?);
    }
    Ok(revisions)
}

/// A copy of the kubeconfig, as somebody has it on another machine.
fn copied(world: &World) -> Result<PathBuf> {
    let copy = world.path().join("copied");
    std::fs::copy(world.kubeconfig(), &copy)?;
    Ok(copy)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_goes_on_after_kill_9() -> Result<()> {
    let repo = GitRepo::init()?;
    repo.commit(&[("deploy/settings.yaml", &settings("blue"))], "blue")?;
    let mut world = World::new()?;
    world.start(&CLUSTERS[..4]).await?;
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(world.kubeconfig())?.permissions());
    assert_eq!(mode & 0o777, 0o600, "it holds tokens");
    let copy = copied(&world)?;
    apply_fleet(&world, &repo.url()).await?;
    rolled_out(&world, "blue").await?;
    look_at_all(&world, "before").await?;
    let (known, members) = (lists(&world).await?, revisions(&world).await?);
    world.kill()?;

    // Nobody but the server writes now.
    world.start(&["--no-controller"]).await?;
    let after = lists(&world).await?;
    for ((path, before), after) in LISTS.iter().zip(&known).zip(&after) {
        assert_eq!(uids(before)?, uids(after)?, "{path}");
    }
    // What the controller does not write is what it was, to the byte but for the revision of the list.
    for place in [0, 1, 2, 3] {
        let items =
            |text: &String| -> Result<Value> { Ok(serde_json::from_str::<Value>(text)?["items"].take()) };
        assert_eq!(items(&known[place])?, items(&after[place])?, "{}", LISTS[place]);
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
    assert_eq!(lists(&world).await?, after, "coming back writes nothing");
    world.kill()?;

    // The controller is back: it finds everything in step, and writes nothing to the members.
    world.start(&[]).await?;
    look_at_all(&world, "after").await?;
    assert_eq!(revisions(&world).await?, members);

    repo.commit(&[("deploy/settings.yaml", &settings("green"))], "green")?;
    rolled_out(&world, "green").await?;
    // A kubeconfig of the first life is as good as ever.
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

/// `git` in a repository; whether it did well.
fn git(repo: &GitRepo, arguments: &[&str]) -> Result<bool> {
    let git = std::process::Command::new("git")
        .arg("-C")
        .arg(repo.path())
        .args(arguments)
        .output()?;
    Ok(git.status.success())
}

/// Where the mirror of the repository has its pins.
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

/// What was good, and what rolled before it, can be rendered again though their commits are nowhere upstream any more, and the process
/// that had rendered them is gone.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_good_is_gone_back_to_though_its_history_was_rewritten() -> Result<()> {
    let repo = GitRepo::init()?;
    let base = repo.commit(&[("deploy/settings.yaml", &settings("white"))], "white")?;
    let older = repo.commit(&[("deploy/settings.yaml", &settings("grey"))], "grey")?;
    let mut world = World::new()?;
    world.start(&CLUSTERS[..4]).await?;
    apply_fleet(&world, &repo.url()).await?;
    rolled_out(&world, "grey").await?;
    // What is good does not come after it: nothing but its own pin keeps it.
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
    // Nothing has ever needed this one.
    std::fs::write(pins.join(&base), format!("{base}\n"))?;

    repo.force_reset("main", &base)?;
    repo.commit(&[("deploy/settings.yaml", &settings("green"))], "green")?;
    anyhow::ensure!(git(&repo, &["gc", "--prune=now", "--quiet"])?);
    for gone in [&older, &good] {
        anyhow::ensure!(!git(&repo, &["cat-file", "-e", gone])?, "{gone} is gone upstream");
    }

    world.start(&[]).await?;
    let waits = [
        &fleet[..],
        &["wait", "syncgroup/shop", "--timeout=60s"],
        &["--for=jsonpath={.status.rollout.stages[0].phase}=Soaking"],
    ];
    world.kubectl(&waits.concat(), "").await?;
    let ended = async || {
        Some(())
            .filter(|()| !pins.join(&base).exists())
            .ok_or("it is still there")
    };
    wait::until(PATIENCE, "the pin that nothing needs is ended", ended).await?;
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
        let back = tokio::process::Command::new(PROGRAM)
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
