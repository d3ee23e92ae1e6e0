//! The management cluster is restored to another API server: the Job of an open gate and the jitter of a cluster are
//! those of before, although every UID is new (ADR 44).

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use starling_api::{RolloutPhase, SyncGroup, SyncGroupStatus};
use starling_testkit::fleet::TIMEOUT;
use starling_testkit::wait::until;
use starling_testkit::{Fleet, FleetOptions, GitRepo, Process, program};

use crate::hub_move::{GROUP, commit, restore};
use crate::stages::stage_status;
use crate::world::is_ready;

const FLAGS: [&str; 2] = ["--job-gate-service-account", "smoke"];

/// The canary `m1` has the first release, and the Job after its stage runs. The cluster `m2` waits for it.
async fn old_hub() -> Result<(Fleet, Process, GitRepo)> {
    let fleet = Fleet::start(FleetOptions {
        members: 2,
        ..FleetOptions::default()
    })
    .await?;
    let repo = GitRepo::init()?;
    commit(&repo, "one")?;
    let branch = json!({"branch": "main"});
    fleet.put_source(GROUP, &repo.url(), branch).await?;
    let controller = fleet.controller(program(), &FLAGS)?;
    for (member, stage) in [("m1", "canary"), ("m2", "rest")] {
        fleet.add_cluster(member, &[("stage", stage)]).await?;
        fleet.until(member, "Ready", is_ready).await?;
    }
    let pod = json!({"spec": {"restartPolicy": "Never", "serviceAccountName": "smoke",
        "containers": [{"name": "smoke", "image": "example.com/smoke:1"}]}});
    let task = json!({"type": "Job", "job": {"template": {"spec": {"backoffLimit": 0, "template": pod}}}});
    let canary = json!({"name": "canary", "afterStageTasks": [task],
        "clusterSelector": {"matchLabels": {"stage": "canary"}}});
    let entry = json!({"name": "app", "sourceRef": {"name": GROUP}, "path": "./app"});
    let spec = json!({"clusterSelector": {}, "syncs": [entry],
        "rolloutStrategy": {"maxConcurrency": "100%", "stages": [canary]}});
    fleet.put_group(GROUP, spec).await?;
    let runs = |status: &SyncGroupStatus| {
        stage_status(status, "canary").is_some_and(|stage| stage.phase == "AwaitingJob")
    };
    fleet.group_status(GROUP, "the Job runs", runs).await?;
    Ok((fleet, controller, repo))
}

/// The one Job of a management cluster. The stage waits for it before it is there.
async fn job(fleet: &Fleet) -> Result<Job> {
    until(TIMEOUT, "a Job", async || {
        let jobs = fleet.api::<Job>().list(&ListParams::default()).await;
        jobs.is_ok_and(|jobs| !jobs.items.is_empty())
    })
    .await?;
    let mut jobs = fleet.api::<Job>().list(&ListParams::default()).await?.items;
    ensure!(jobs.len() == 1, "{} Jobs: {jobs:#?}", jobs.len());
    jobs.pop().context("a Job")
}

/// Writes what the Job controller writes after the pod has succeeded; there are no nodes here.
async fn complete(fleet: &Fleet, job: &Job) -> Result<()> {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let condition = |type_: &str| {
        json!({"type": type_, "status": "True", "reason": "CompletionsReached", "message": "as a test says",
            "lastProbeTime": now, "lastTransitionTime": now})
    };
    let status = json!({"startTime": now, "completionTime": now, "succeeded": 1, "ready": 0,
        "conditions": [condition("SuccessCriteriaMet"), condition("Complete")]});
    let patch = Patch::Merge(json!({"status": status}));
    let jobs = fleet.api::<Job>();
    jobs.patch_status(&job.name_any(), &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

/// Restores a Job as Velero does: without the labels of its former UID.
async fn restore_job(job: &Job, to: &Fleet) -> Result<()> {
    let mut json = serde_json::to_value(job)?;
    let metadata = json["metadata"].as_object_mut().context("metadata")?;
    metadata.retain(|key, _| matches!(key.as_str(), "name" | "namespace" | "annotations" | "labels"));
    let is_kept = |key: &String| !key.contains("controller-uid") && !key.contains("job-name");
    if let Some(labels) = metadata.get_mut("labels").and_then(Value::as_object_mut) {
        labels.retain(|key, _| is_kept(key));
    }
    let spec = json["spec"].as_object_mut().context("spec")?;
    spec.remove("selector");
    let labels = spec
        .get_mut("template")
        .map(|template| &mut template["metadata"]["labels"]);
    if let Some(labels) = labels.and_then(Value::as_object_mut) {
        labels.retain(|key, _| is_kept(key));
    }
    json["status"].take();
    let job: Job = serde_json::from_value(json)?;
    to.api::<Job>().create(&PostParams::default(), &job).await?;
    Ok(())
}

/// Guards against a Job that runs again, because its name is made of a UID.
#[tokio::test(flavor = "multi_thread")]
async fn the_job_of_an_open_gate_is_the_same_after_a_restore() -> Result<()> {
    let (old, controller, _repo) = old_hub().await?;
    let before = job(&old).await?;
    ensure!(controller.stop(TIMEOUT).await?.success(), "a clean stop");
    let new = Fleet::start(FleetOptions::default()).await?;
    restore(&old, &new).await?;
    restore_job(&before, &new).await?;
    let controller = new.controller(program(), &FLAGS)?;
    let log = || controller.log_tail(60).unwrap_or_default();
    // The gate is evaluated by its Job. Another one would not pass.
    complete(&new, &before).await?;
    let is_done = |status: &SyncGroupStatus| {
        status.clusters.updated == 2
            && status.rollout.as_ref().map(|rollout| rollout.phase) == Some(RolloutPhase::Succeeded)
    };
    new.group_status(GROUP, "the gate has passed", is_done)
        .await
        .with_context(log)?;
    let after = job(&new).await.with_context(log)?;
    assert_eq!(after.name_any(), before.name_any());
    Ok(())
}

/// When `m2` may start by its jitter, and the generation that this was decided for.
async fn jitter(fleet: &Fleet, generation: i64) -> Result<String> {
    let blocker = |status: &SyncGroupStatus| {
        let mut blockers = status.rollout.iter().flat_map(|rollout| &rollout.blocked_by);
        blockers.find(|one| one.reason == "Jitter").cloned()
    };
    let waits = |status: &SyncGroupStatus| {
        status.observed_generation == Some(generation) && blocker(status).is_some()
    };
    let status = fleet.group_status(GROUP, "waits for its jitter", waits).await?;
    Ok(blocker(&status).context("the jitter")?.recheck_at)
}

/// Guards against a jitter of the UID of an object: after a restore, all clusters would wait anew.
#[tokio::test(flavor = "multi_thread")]
async fn the_jitter_of_a_cluster_is_the_same_after_a_restore() -> Result<()> {
    let (old, controller, _repo) = old_hub().await?;
    let patch = json!({"spec": {"rolloutStrategy": {"jitter": "24h"}}});
    let group: SyncGroup = old.patch(GROUP, patch).await?;
    let generation = group.metadata.generation.context("a generation")?;
    ensure!(generation > 1, "the restored group has the generation 1");
    complete(&old, &job(&old).await?).await?;
    let before = jitter(&old, generation).await?;
    ensure!(!before.is_empty(), "no time");
    ensure!(controller.stop(TIMEOUT).await?.success(), "a clean stop");
    let new = Fleet::start(FleetOptions::default()).await?;
    restore(&old, &new).await?;
    let controller = new.controller(program(), &FLAGS)?;
    for member in ["m1", "m2"] {
        new.until(member, "Ready", is_ready).await?;
    }
    let after = jitter(&new, 1).await;
    let after = after.with_context(|| controller.log_tail(60).unwrap_or_default())?;
    assert_eq!(after, before);
    Ok(())
}
