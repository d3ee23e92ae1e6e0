//! `starling demo` for a new user: without other programs, and with `kubectl`.

use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use starling_controlplane::{Assets, Launch, Process};
use starling_testkit::{program, wait};
use tokio::process::Command;

/// Limit of each wait.
const TIMEOUT: Duration = Duration::from_secs(90);

fn text(output: &Output) -> String {
    let both = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    both.concat()
}

/// Without kustomize, kubectl, git and a home folder.
#[tokio::test]
async fn two_commits_roll_out_with_nothing_but_the_program() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let output = Command::new(program())
        .args(["demo", "--once"])
        .env_clear()
        .env("TMPDIR", folder.path())
        .stdin(Stdio::null())
        .output()
        .await?;
    let printed = text(&output);
    ensure!(output.status.success(), "{printed}");
    assert_eq!(
        printed.matches("is on every cluster after").count(),
        2,
        "{printed}"
    );
    assert!(
        printed.contains("a management cluster and 8 members"),
        "{printed}"
    );
    let remaining: Vec<_> = std::fs::read_dir(folder.path())?.collect();
    assert!(remaining.is_empty(), "nothing is left behind: {remaining:?}");
    Ok(())
}

struct Demo {
    process: Process,
    folder: tempfile::TempDir,
    kubectl: std::path::PathBuf,
}

impl Demo {
    /// Starts a demo of two members that keeps running, and waits until both commits are rolled out.
    async fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let launch = Launch::new("demo", program(), folder.path().join("output"))
            .args(["demo", "--clusters", "2", "--data-dir"])
            .arg(folder.path().join("demo"));
        let demo = Self {
            process: Process::start(&launch)?,
            kubectl: Assets::find()?.kubectl().to_owned(),
            folder,
        };
        let ready = wait::until(TIMEOUT, "the demo tells how to look around", async || {
            let printed = demo.process.log_tail(40).unwrap_or_default();
            if printed.contains("Look around") {
                Ok(())
            } else {
                Err(printed)
            }
        });
        ready.await?;
        Ok(demo)
    }

    async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new(&self.kubectl)
            .arg("--kubeconfig")
            .arg(self.folder.path().join("demo/kubeconfig"))
            .args(arguments)
            .env("HOME", self.folder.path())
            .output()
            .await?;
        ensure!(
            output.status.success(),
            "kubectl {arguments:?}: {}",
            text(&output)
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    async fn git(&self, clone: &Path, arguments: &[&str]) -> Result<()> {
        let output = Command::new("git")
            .args(["-c", "user.name=test", "-c", "user.email=test@example.com"])
            .args(arguments)
            .current_dir(clone)
            .output()
            .await?;
        ensure!(output.status.success(), "git {arguments:?}: {}", text(&output));
        Ok(())
    }
}

#[tokio::test]
async fn kubectl_looks_around_and_a_push_rolls_out() -> Result<()> {
    let demo = Demo::start().await?;

    let all = demo.kubectl(&["get", "starling", "-A"]).await?;
    for name in [
        "member-0",
        "member-1",
        "shop-app-member-0",
        "syncgroup.starling.dev/shop",
    ] {
        assert!(all.contains(name), "{name}: {all}");
    }
    let contexts = demo.kubectl(&["config", "get-contexts", "-o", "name"]).await?;
    assert_eq!(
        contexts.lines().collect::<Vec<_>>(),
        ["management", "member-0", "member-1"]
    );
    demo.kubectl(&[
        "--context",
        "member-1",
        "-n",
        "shop",
        "rollout",
        "status",
        "deployment/web",
    ])
    .await?;

    let clone = demo.folder.path().join("clone");
    let repository = demo.folder.path().join("demo/shop.git");
    demo.git(
        demo.folder.path(),
        &["clone", "--quiet", &repository.to_string_lossy(), "clone"],
    )
    .await?;
    let web = clone.join("deploy/web.yaml");
    let changed = std::fs::read_to_string(&web)?.replace("nginx:1.28", "nginx:mine");
    std::fs::write(&web, changed)?;
    demo.git(&clone, &["commit", "--quiet", "--all", "--message", "mine"])
        .await?;
    demo.git(&clone, &["push", "--quiet"]).await?;
    let image = "-o=jsonpath={.spec.template.spec.containers[0].image}";
    for member in ["member-0", "member-1"] {
        wait::until(TIMEOUT, format!("the push is on {member}"), async || {
            let shown = demo
                .kubectl(&[
                    "--context",
                    member,
                    "-n",
                    "shop",
                    "get",
                    "deployment",
                    "web",
                    image,
                ])
                .await;
            match shown {
                Ok(image) if image == "nginx:mine" => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await?;
    }

    let status = demo.process.stop(TIMEOUT).await?;
    assert!(status.success(), "{status}: {}", demo.process.log_tail(20)?);
    Ok(())
}

/// What was made stays, and the next demo goes on with the repository.
#[tokio::test]
async fn a_folder_that_is_kept_is_used_again() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for _ in 0..2 {
        let output = Command::new(program())
            .args(["demo", "--once", "--clusters", "1", "--data-dir"])
            .arg(folder.path())
            .output()
            .await?;
        ensure!(output.status.success(), "{}", text(&output));
    }
    let repository = git2::Repository::open_bare(folder.path().join("shop.git"))?;
    let mut commits = repository.revwalk()?;
    commits.push_head()?;
    assert_eq!(commits.count(), 3);
    let kubeconfig = folder.path().join("kubeconfig");
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(&kubeconfig)
            .context("kubeconfig")?
            .permissions(),
    );
    assert_eq!(mode & 0o777, 0o600, "it holds tokens");
    Ok(())
}
