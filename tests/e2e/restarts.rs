//! What a controller that starts again has to know from the management cluster.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::Method;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use starling_api::{Cluster, RolloutPhase, SyncGroupStatus};
use starling_testkit::fleet::TIMEOUT;
use starling_testkit::{Fleet, FleetOptions, GitRepo, program, wait};

use crate::hub_restore::delete_ledger;
use crate::world::{config_map, is_ready};

/// Waits until this many seconds have passed since a time.
async fn until_after(since: Timestamp, seconds: i64) -> Result<()> {
    let then = since.checked_add(SignedDuration::from_secs(seconds))?;
    let what = format!("{seconds}s after {since}");
    wait::until(Duration::from_secs(120), what, async || Timestamp::now() >= then).await?;
    Ok(())
}

/// Guards against a grace that ends with the process, and against one that begins anew with each of them.
#[tokio::test(flavor = "multi_thread")]
async fn the_grace_of_a_cluster_that_left_survives_a_restart() -> Result<()> {
    const GRACE: i64 = 40;
    let fleet = Fleet::start(FleetOptions {
        members: 1,
        proxied: true,
        ..FleetOptions::default()
    })
    .await?;
    let repo = GitRepo::init()?;
    let commit = repo.commit(&[("app/a.yaml", &config_map("a", "one"))], "one")?;
    fleet.add_cluster("m1", &[("shop", "yes")]).await?;
    let branch = json!({"branch": "main"});
    fleet.put_source("shop", &repo.url(), branch).await?;
    let controller = fleet.controller(program(), &[])?;
    fleet.until("m1", "Ready", is_ready).await?;
    let entry = json!({"name": "app", "sourceRef": {"name": "shop"}, "path": "./app"});
    let spec = json!({"clusterSelector": {"matchLabels": {"shop": "yes"}}, "syncs": [entry],
        "whenUnselected": "Delete", "unselectedGrace": format!("{GRACE}s"), "maxUnselected": "100%"});
    fleet.put_group("shop", spec).await?;
    fleet.rollout("shop", &commit, RolloutPhase::Succeeded).await?;

    let patch = json!({"metadata": {"labels": {"shop": null}}});
    fleet.patch::<Cluster>("m1", patch).await?;
    let has_left = |status: &SyncGroupStatus| !status.unselected.is_empty();
    let left = fleet.group_status("shop", "m1 left", has_left).await?.unselected;
    let since: Timestamp = left[0].since.parse()?;
    ensure!(controller.stop(TIMEOUT).await?.success(), "a clean stop");
    delete_ledger(&fleet)?;
    until_after(since, GRACE / 2).await?;
    let restarted = Timestamp::now();
    let controller = fleet.controller(program(), &[])?;
    wait::until(TIMEOUT, "the object is deleted", async || {
        let found = fleet.config_map("m1", "default", "a").await;
        let found = found.map_err(|error| format!("{error:#}"))?;
        found.map_or(Ok(()), |_| Err("there".to_owned()))
    })
    .await
    .with_context(|| controller.log_tail(40).unwrap_or_default())?;
    let requests = fleet.proxy("m1")?.requests();
    let deletion = requests
        .iter()
        .find(|request| request.method == Method::DELETE && request.path.ends_with("/configmaps/a"));
    let at = deletion.context("a DELETE")?.when;
    let (of_grace, of_restart) = (at.duration_since(since), at.duration_since(restarted));
    let grace = SignedDuration::from_secs(GRACE);
    assert!(
        of_grace >= grace,
        "deleted {of_grace:?} after the cluster had left"
    );
    assert!(of_restart < grace, "deleted {of_restart:?} after the restart");
    Ok(())
}
