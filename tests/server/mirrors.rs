//! Credentials that change, and a disk that is lost: which commits stay available, and who may read them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use starling_testkit::{GitRepo, program, wait};
use tokio::process::Command;

use crate::git_server::GitServer;
use crate::world::{TIMEOUT, World};

/// The cluster of the group, and one of another tenant.
const MEMBER: &str = "eu-1";
const OTHER_MEMBER: &str = "us-1";

fn settings(color: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings, namespace: default}}\ndata: {{color: {color}}}\n"
    )
}

/// Commits a color to `main`.
fn commit(repo: &GitRepo, color: &str) -> Result<String> {
    Ok(repo.commit(&[("deploy/settings.yaml", &settings(color))], color)?)
}

fn revision(commit: &str) -> String {
    format!("main@sha1:{commit}")
}

async fn apply(world: &World, object: Value) -> Result<()> {
    world.kubectl(&["apply", "-f", "-"], &object.to_string()).await?;
    Ok(())
}

/// Applies the token of a repository.
async fn apply_token(world: &World, namespace: &str, name: &str, token: &str) -> Result<()> {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace},
        "stringData": {"bearerToken": token}});
    apply(world, secret).await
}

/// Applies a Source that is polled each second.
async fn apply_source(
    world: &World,
    (namespace, name): (&str, &str),
    url: &str,
    reference: Value,
    secret: Option<&str>,
) -> Result<()> {
    let mut spec = json!({"url": url, "ref": reference, "interval": "1s"});
    if let Some(secret) = secret {
        spec["secretRef"] = json!({"name": secret});
    }
    let source = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "Source",
        "metadata": {"name": name, "namespace": namespace}, "spec": spec});
    apply(world, source).await
}

/// Applies a cluster of a namespace.
async fn apply_cluster(world: &World, namespace: &str, name: &str) -> Result<()> {
    let view = [
        "config",
        "view",
        "--raw",
        "--minify",
        "--flatten",
        "--context",
        name,
    ];
    let kubeconfig = world.kubectl(&view, "").await?;
    let metadata = json!({"name": name, "namespace": namespace});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata,
        "stringData": {"value": kubeconfig}});
    let cluster = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "Cluster", "metadata": metadata,
        "spec": {"kubeConfig": {"secretRef": {"name": name}}}});
    apply(world, secret).await?;
    apply(world, cluster).await
}

/// Starts a world in which the group `shop` rolls out a branch of a repository to one cluster.
async fn start(url: &str, secret: Option<(&str, &str)>) -> Result<World> {
    let mut world = World::new()?;
    world
        .start(&["--cluster", MEMBER, "--cluster", OTHER_MEMBER])
        .await?;
    world.kubectl(&["create", "namespace", "fleet"], "").await?;
    apply_cluster(&world, "fleet", MEMBER).await?;
    if let Some((name, token)) = secret {
        apply_token(&world, "fleet", name, token).await?;
    }
    let branch = json!({"branch": "main"});
    apply_source(
        &world,
        ("fleet", "shop"),
        url,
        branch,
        secret.map(|(name, _)| name),
    )
    .await?;
    let group = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup",
    "metadata": {"name": "shop", "namespace": "fleet"}, "spec": {
        "clusterSelector": {},
        "syncs": [{"name": "app", "sourceRef": {"name": "shop"}, "path": "./deploy"}],
    }});
    apply(&world, group).await?;
    Ok(world)
}

async fn get(world: &World, namespace: &str, object: &str) -> Result<Value> {
    let text = world
        .kubectl(&["-n", namespace, "get", object, "-o", "json"], "")
        .await?;
    Ok(serde_json::from_str(&text)?)
}

/// Waits until an object satisfies a predicate, and returns it.
async fn until(
    world: &World,
    namespace: &str,
    object: &str,
    what: &str,
    is_so: impl Fn(&Value) -> bool,
) -> Result<Value> {
    let check = async || {
        let found = get(world, namespace, object)
            .await
            .map_err(|error| format!("{error:#}"))?;
        if is_so(&found) {
            Ok(found)
        } else {
            Err(found["status"].to_string())
        }
    };
    Ok(wait::until(TIMEOUT, format!("{object}: {what}"), check).await?)
}

fn ready(object: &Value) -> Option<&Value> {
    let conditions = object["status"]["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == "Ready")
}

/// Waits until a Source or Sync is ready, or not ready, for a reason, and returns it.
async fn until_reason(world: &World, namespace: &str, object: &str, reason: &str) -> Result<Value> {
    let has_reason = |found: &Value| ready(found).is_some_and(|ready| ready["reason"] == reason);
    until(world, namespace, object, reason, has_reason).await
}

/// Waits until a color is rolled out to the whole group.
async fn rolled_out(world: &World, commit: &str, color: &str) -> Result<()> {
    let expected = revision(commit);
    let succeeded = |group: &Value| {
        let rollout = &group["status"]["rollout"];
        rollout["phase"] == "Succeeded" && rollout["revisions"][0]["revision"] == expected.as_str()
    };
    until(world, "fleet", "syncgroup/shop", &expected, succeeded).await?;
    let path = "/api/v1/namespaces/default/configmaps/settings";
    let found: Value = serde_json::from_str(&world.raw(MEMBER, path).await?)?;
    ensure!(found["data"]["color"] == color, "{found}");
    Ok(())
}

/// Returns the output of a successful command of a user.
async fn starling(world: &World, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program())
        .args(arguments)
        .args(["-n", "fleet"])
        .env("KUBECONFIG", world.kubeconfig())
        .env("HOME", world.path())
        .output()
        .await?;
    let text = String::from_utf8([output.stdout, output.stderr].concat())?;
    ensure!(output.status.success(), "starling {arguments:?}: {text}");
    Ok(text)
}

/// Runs `git` in a repository.
fn git(repository: &Path, arguments: &[&str]) -> Result<()> {
    let git = std::process::Command::new("git")
        .arg("-C")
        .arg(repository)
        .args(arguments)
        .output()?;
    ensure!(
        git.status.success(),
        "git {arguments:?}: {}",
        String::from_utf8_lossy(&git.stderr)
    );
    Ok(())
}

/// Rolls out grey and then blue, whose history does not contain grey; grey is gone upstream, and in a copy of the
/// repository. Returns both commits.
async fn grey_is_rewritten(
    world: &World,
    repo: &GitRepo,
    base: &str,
    copy: &Path,
) -> Result<(String, String)> {
    let grey = commit(repo, "grey")?;
    rolled_out(world, &grey, "grey").await?;
    let copy = copy.to_str().context("a path")?;
    git(repo.path(), &["clone", "--quiet", "--mirror", ".", copy])?;
    repo.force_reset("main", base)?;
    let blue = commit(repo, "blue")?;
    rolled_out(world, &blue, "blue").await?;
    git(repo.path(), &["gc", "--prune=now", "--quiet"])?;
    ensure!(
        git(repo.path(), &["cat-file", "-e", &grey]).is_err(),
        "grey is gone upstream"
    );
    Ok((grey, blue))
}

/// A wrong token deleted the mirror with its pinned commits, and every new token started with a clone.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_token_keeps_the_pinned_commits_without_a_clone() -> Result<()> {
    let repo = GitRepo::init()?;
    let base = commit(&repo, "white")?;
    let server = GitServer::start(repo.path(), "first").await?;
    let mut world = start(server.url(), Some(("git", "first"))).await?;
    let copy = world.path().join("copy.git");
    let (grey, blue) = grey_is_rewritten(&world, &repo, &base, &copy).await?;

    server.set_token("second");
    let refused = until_reason(&world, "fleet", "source/shop", "AuthenticationFailed").await?;
    assert_eq!(refused["status"]["revision"], revision(&blue));
    world.kill()?;
    world.start(&[]).await?;
    server.take_requests();
    apply_token(&world, "fleet", "git", "second").await?;
    until_reason(&world, "fleet", "source/shop", "Succeeded").await?;
    let rollback = [
        "rollback",
        "shop",
        "--revision",
        &grey,
        "--reason",
        "blue is broken",
    ];
    starling(&world, &rollback).await?;
    rolled_out(&world, &grey, "grey").await?;
    let fetches: Vec<String> = server.take_requests();
    assert!(
        fetches.iter().all(|request| !request.starts_with("POST")),
        "a fetch: {fetches:?}"
    );
    world.stop().await
}

/// A mirror is filled with one credential. No Source reads it that could not fetch it by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_source_is_not_served_what_only_others_could_fetch() -> Result<()> {
    let repo = GitRepo::init()?;
    let blue = commit(&repo, "blue")?;
    let server = GitServer::start(repo.path(), "first").await?;
    let mut world = start(server.url(), Some(("git", "first"))).await?;
    rolled_out(&world, &blue, "blue").await?;
    world.kubectl(&["create", "namespace", "spies"], "").await?;
    apply_cluster(&world, "spies", OTHER_MEMBER).await?;
    apply_token(&world, "spies", "git", "guessed").await?;
    apply_token(&world, "fleet", "guessed", "guessed").await?;
    // A Source of a known commit needs no list of refs.
    let known = || json!({"commit": blue});
    let spies = [
        ("spies", "same-name", Some("git")),
        ("spies", "no-secret", None),
        ("fleet", "other-name", Some("guessed")),
        ("fleet", "no-secret", None),
        ("fleet", "too-late", Some("git")),
    ];
    for (namespace, name, secret) in spies {
        if name == "too-late" {
            // The Secret is that of the Source that has fetched the mirror, and has become wrong since.
            server.set_token("second");
            until_reason(&world, "fleet", "source/shop", "AuthenticationFailed").await?;
        }
        apply_source(&world, (namespace, name), server.url(), known(), secret).await?;
        let source = format!("source/{name}");
        let refused = until_reason(&world, namespace, &source, "AuthenticationFailed").await?;
        assert!(refused["status"]["revision"].is_null(), "{refused:#}");
        // The controller has built this path of this commit for the group.
        let member = if namespace == "spies" {
            OTHER_MEMBER
        } else {
            MEMBER
        };
        let sync = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "Sync",
            "metadata": {"name": name, "namespace": namespace}, "spec": {
                "clusterRef": {"name": member}, "sourceRef": {"name": name}, "path": "./deploy",
                "revision": revision(&blue)}});
        apply(&world, sync).await?;
        until_reason(
            &world,
            namespace,
            &format!("syncs.starling.dev/{name}"),
            "SourceNotReady",
        )
        .await?;
    }
    let maps = world
        .raw(OTHER_MEMBER, "/api/v1/namespaces/default/configmaps")
        .await?;
    assert!(!maps.contains("blue"), "{maps}");
    world.stop().await
}

/// Returns the directory of the mirrors.
fn mirrors(world: &World) -> PathBuf {
    world.data().join("controller/git")
}

/// Returns the directory of the pins of the only mirror.
fn pins(world: &World) -> Result<PathBuf> {
    for mirror in std::fs::read_dir(mirrors(world))? {
        let pins = mirror?.path().join("refs/starling/pins");
        if pins.is_dir() {
            return Ok(pins);
        }
    }
    anyhow::bail!("no mirror has pins")
}

/// Returns the lines of the history of the group below the row of a rollout.
async fn remarks(world: &World, rollout: i64) -> Result<Vec<String>> {
    let history = starling(world, &["history", "shop"]).await?;
    let mut lines = history
        .lines()
        .skip_while(|line| !line.starts_with(&format!("{rollout} ")));
    lines.next().with_context(|| history.clone())?;
    let below = lines.take_while(|line| line.starts_with(' '));
    Ok(below.map(|line| line.trim().to_owned()).collect())
}

/// The disk of the controller is lost, and one of the releases was rewritten upstream.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_whose_commit_is_lost_is_named_and_the_others_are_pinned_again() -> Result<()> {
    let repo = GitRepo::init()?;
    let white = commit(&repo, "white")?;
    let mut world = start(&repo.url(), None).await?;
    rolled_out(&world, &white, "white").await?;
    let copy = world.path().join("copy.git");
    let (grey, blue) = grey_is_rewritten(&world, &repo, &white, &copy).await?;
    world.kill()?;
    std::fs::remove_dir_all(mirrors(&world))?;
    world.start(&[]).await?;

    let lost = json!([revision(&grey)]);
    until(&world, "fleet", "source/shop", "grey is lost", |source| {
        source["status"]["lostRevisions"] == lost
    })
    .await?;
    let pins = pins(&world)?;
    for kept in [&white, &blue] {
        ensure!(pins.join(kept).is_file(), "{kept} is not pinned");
    }
    let remark = format!(
        "no rollback possible: {} of entry app is neither in the repository nor in the mirror",
        revision(&grey)
    );
    assert_eq!(remarks(&world, 1).await?, Vec::<String>::new());
    assert_eq!(remarks(&world, 2).await?, [remark]);
    assert_eq!(remarks(&world, 3).await?, Vec::<String>::new());
    let why = starling(&world, &["why", "shop"]).await?;
    let line = format!(
        "No rollback to rollout 2: {} of entry app is neither in the repository nor in the mirror",
        revision(&grey)
    );
    assert!(why.contains(&line), "{why}");
    let rollback = ["rollback", "shop", "--revision", &grey, "--reason", "it is back"];
    let refused = starling(&world, &rollback).await.unwrap_err().to_string();
    assert!(
        refused.contains("no rollback to this release is possible"),
        "{refused}"
    );

    // The commit is pushed again. It is fetched with the next revision.
    let copy = copy.to_str().context("a path")?;
    let rescue = format!("{grey}:refs/heads/rescue");
    git(repo.path(), &["fetch", "--quiet", copy, &rescue])?;
    let green = commit(&repo, "green")?;
    rolled_out(&world, &green, "green").await?;
    until(&world, "fleet", "source/shop", "nothing is lost", |source| {
        source["status"]["lostRevisions"].is_null()
    })
    .await?;
    assert_eq!(remarks(&world, 2).await?, Vec::<String>::new());
    starling(&world, &rollback).await?;
    rolled_out(&world, &grey, "grey").await?;
    world.stop().await
}
