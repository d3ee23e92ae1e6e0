//! The program is killed while a Sync waits for health: the next process continues to wait, and applies nothing again.

use anyhow::{Context, Result, ensure};
use http::Method;
use serde_json::{Value, json};
use starling_api::conditions::{HEALTHY, find};
use starling_api::{RolloutPhase, SyncResource};
use starling_testkit::{Fleet, FleetOptions, GitRepo};

use crate::ONE_AT_A_TIME;
use crate::supervisor::Supervisor;

const GROUP: &str = "shop";
const SYNC: &str = "shop-app-m1";
const WEB: &str = "/deployments/web";

fn web(image: &str) -> String {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "main", "image": image}]},
            },
        },
    })
    .to_string()
}

fn available() -> Value {
    json!({
        "observedGeneration": 1,
        "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1,
        "conditions": [
            {"type": "Available", "status": "True"},
            {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"},
        ],
    })
}

/// Status of Healthy, and since when.
fn healthy(sync: &SyncResource) -> (String, String) {
    let status = sync.status.clone().unwrap_or_default();
    let condition = find(&status.conditions, HEALTHY).map(|c| c.status.clone());
    (condition.unwrap_or_default(), status.healthy_since)
}

/// Counts the requests of the program to the member with a path that ends with `path_end`.
fn count(fleet: &Fleet, method: &Method, path_end: &str) -> Result<usize> {
    Ok(fleet.proxy("m1")?.count(method, path_end))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_health_continues_after_a_kill_and_a_healthy_sync_is_not_read() -> Result<()> {
    let _guard = ONE_AT_A_TIME.lock().await;
    let fleet = Fleet::start(FleetOptions {
        members: 1,
        audit: false,
        proxied: true,
        ..FleetOptions::default()
    })
    .await?;
    let repo = GitRepo::init()?;
    let commit = repo.commit(&[("app/web.yaml", &web("one"))], "one")?;
    fleet.add_cluster("m1", &[]).await?;
    fleet
        .put_source(GROUP, &repo.url(), json!({"branch": "main"}))
        .await?;
    let entry = json!({"name": "app", "sourceRef": {"name": GROUP}, "path": "./app"});
    fleet
        .put_group(GROUP, json!({"clusterSelector": {}, "syncs": [entry]}))
        .await?;
    let program = Supervisor::default();
    program.start(&fleet)?;
    let waits = |sync: &SyncResource| healthy(sync).0 == "False";
    let waiting: SyncResource = fleet.until(SYNC, "waiting for health", waits).await?;
    program.kill()?;

    // The next process detects changes that happened while the program was down.
    let applied = waiting.status.context("a status")?.last_applied_time;
    fleet
        .patch_status("m1", "apps/v1 Deployment", ("default", "web"), available())
        .await?;
    program.start(&fleet)?;
    let status = fleet.rollout(GROUP, &commit, RolloutPhase::Succeeded).await?;
    ensure!(status.clusters.updated == 1, "{status:#?}");
    let healthy_sync: SyncResource = fleet.get(SYNC).await?;
    let (is_healthy, since) = healthy(&healthy_sync);
    ensure!(is_healthy == "True" && !since.is_empty(), "{healthy_sync:#?}");
    let reapplied = healthy_sync.status.context("a status")?.last_applied_time;
    ensure!(
        reapplied == applied,
        "applied at {applied}, and again at {reapplied}"
    );
    ensure!(count(&fleet, &Method::PATCH, WEB)? == 1, "applied again");

    // After a restart, a healthy Sync is not read, and stays healthy since the same time. A push triggers the next
    // reconcile.
    program.kill()?;
    let read_before = count(&fleet, &Method::GET, WEB)?;
    program.start(&fleet)?;
    repo.commit(&[("app/web.yaml", &web("two"))], "two")?;
    let moved = |sync: &SyncResource| {
        let status = sync.status.clone().unwrap_or_default();
        sync.spec.revision == status.last_applied_revision && !sync.spec.revision.ends_with(&commit)
    };
    let second: SyncResource = fleet.until(SYNC, "the second commit", moved).await?;
    ensure!(
        healthy(&second) == ("False".into(), String::new()),
        "health of the first commit counts for the second: {second:#?}"
    );
    let patches = fleet.proxy("m1")?.requests();
    let first_patch_after = patches
        .iter()
        .filter(|request| request.path.ends_with(WEB))
        .skip(read_before + 1)
        .map(|request| request.method.clone())
        .next();
    ensure!(
        first_patch_after == Some(Method::PATCH),
        "read before anything changed: {first_patch_after:?}"
    );
    Ok(())
}
