//! The ledger of the data directory is put back to an earlier state, as by the snapshot of a volume.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use starling_testkit::{GitRepo, program};

use crate::restart::{CLUSTERS, apply_fleet, revisions, rolled_out, settings};
use crate::world::World;

/// Copies the files of the ledger. The program must not run.
fn copy_ledger(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    let is_ledger = |path: &PathBuf| {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        name.starts_with("ledger.db")
    };
    for entry in std::fs::read_dir(to)? {
        let path = entry?.path();
        if is_ledger(&path) {
            std::fs::remove_file(path)?;
        }
    }
    let mut copied = 0;
    for entry in std::fs::read_dir(from)? {
        let path = entry?.path();
        if is_ledger(&path) {
            std::fs::copy(&path, to.join(path.file_name().unwrap_or_default()))?;
            copied += 1;
        }
    }
    ensure!(copied > 0, "no ledger in {}", from.display());
    Ok(())
}

async fn roll_back_to(world: &World, revision: &str) -> Result<()> {
    let rollback = tokio::process::Command::new(program())
        .args(["rollback", "shop", "-n", "fleet", "--reason", "it was better"])
        .args(["--revision", revision])
        .env("KUBECONFIG", world.kubeconfig())
        .output()
        .await?;
    ensure!(
        rollback.status.success(),
        "{}",
        String::from_utf8_lossy(&rollback.stderr)
    );
    Ok(())
}

/// Guards against a record of the first release that makes a rollback to it "applied" without a request.
#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_is_applied_although_the_ledger_is_older_than_the_release_before_it() -> Result<()> {
    let repo = GitRepo::init()?;
    let blue = repo.commit(&[("deploy/settings.yaml", &settings("blue"))], "blue")?;
    let mut world = World::new()?;
    world.start(&CLUSTERS[..4]).await?;
    apply_fleet(&world, &repo.url()).await?;
    rolled_out(&world, "blue").await?;
    world.stop().await?;
    let (ledger, snapshot) = (world.data().join("controller"), world.path().join("snapshot"));
    copy_ledger(&ledger, &snapshot)?;

    world.start(&[]).await?;
    repo.commit(&[("deploy/settings.yaml", &settings("green"))], "green")?;
    rolled_out(&world, "green").await?;
    let members = revisions(&world).await?;
    world.stop().await?;

    copy_ledger(&snapshot, &ledger)?;
    world.start(&[]).await?;
    assert_eq!(revisions(&world).await?, members, "an old ledger causes no write");
    roll_back_to(&world, &blue).await?;
    rolled_out(&world, "blue").await?;
    world.stop().await
}
