//! `wait`: a cluster is in flight until the applied objects are healthy there. These members run no workloads, so the
//! tests write the statuses of the controllers.

use anyhow::{Context, Result, ensure};
use http::Method;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use serde_json::{Value, json};
use starling_api::conditions::{HEALTHY, READY, find};
use starling_api::{REQUESTED_AT, RolloutPhase, SyncGroup, SyncResource, SyncStatus};
use starling_testkit::fleet::TIMEOUT;
use starling_testkit::wait;

use crate::world::{Scene, blocked_by, problems, ready, shared_scene, sync_ready};

const DEPLOYMENT: &str = "apps/v1 Deployment";

fn deployment(name: &str, image: &str) -> String {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "main", "image": image}]},
            },
        },
    })
    .to_string()
}

/// The status that the Deployment controller writes: the number of available replicas (of one), at this generation.
fn available(count: u32, generation: i64) -> Value {
    let (status, reason) = if count > 0 {
        ("True", "NewReplicaSetAvailable")
    } else {
        ("False", "ReplicaSetUpdated")
    };
    json!({
        "observedGeneration": generation,
        "replicas": 1, "updatedReplicas": 1, "readyReplicas": count, "availableReplicas": count,
        "conditions": [
            {"type": "Available", "status": status, "reason": "MinimumReplicas", "message": ""},
            {"type": "Progressing", "status": "True", "reason": reason, "message": ""},
        ],
    })
}

fn gave_up(generation: i64) -> Value {
    let mut status = available(0, generation);
    status["conditions"][1] = json!({
        "type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "",
    });
    status
}

/// Returns status and reason of Healthy.
fn healthy(sync: &SyncResource) -> (String, String) {
    let conditions = sync.status.as_ref().map(|status| status.conditions.as_slice());
    find(conditions.unwrap_or_default(), HEALTHY)
        .map(|condition| (condition.status.clone(), condition.reason.clone()))
        .unwrap_or_default()
}

/// Returns reason and object of each problem.
fn problems_of_sync(sync: &SyncResource) -> Vec<(String, String)> {
    let problems = sync.status.iter().flat_map(|status| &status.problems);
    problems
        .map(|problem| (problem.reason.clone(), problem.object.clone()))
        .collect()
}

fn is(pair: &(String, String), status: &str, reason: &str) -> bool {
    pair.0 == status && pair.1 == reason
}

fn is_waiting(sync: &SyncResource) -> bool {
    is(&sync_ready(sync), "False", "Progressing") && is(&healthy(sync), "False", "Progressing")
}

fn has_failed(sync: &SyncResource) -> bool {
    is(&sync_ready(sync), "False", "HealthCheckFailed") && is(&healthy(sync), "False", "HealthCheckFailed")
}

/// Whether a Sync is ready and healthy with its applied target.
fn is_healthy(sync: &SyncResource) -> bool {
    let status = sync.status.clone().unwrap_or_default();
    is(&sync_ready(sync), "True", "Succeeded")
        && is(&healthy(sync), "True", "Succeeded")
        && !status.healthy_since.is_empty()
        && status.last_healthy_target == status.last_applied_target
        && status.problems.is_empty()
}

fn group_ready(group: &SyncGroup) -> (String, String) {
    let conditions = group.status.as_ref().map(|status| status.conditions.as_slice());
    ready(conditions.unwrap_or_default())
}

impl Scene {
    /// Commits a Deployment of this scene to the folder `app`.
    fn commit_web(&self, image: &str) -> Result<String> {
        let web = deployment(&self.own("web"), image);
        Ok(self.repo.commit(&[("app/web.yaml", &web)], image)?)
    }

    async fn web(&self, member: &str) -> Result<Option<Deployment>> {
        let api: Api<Deployment> = Api::namespaced(self.fleet().member(member).await?, "default");
        Ok(api.get_opt(&self.own("web")).await?)
    }

    async fn generation(&self, member: &str) -> Result<i64> {
        let web = self.web(member).await?.context("the Deployment")?;
        web.metadata.generation.context("its generation")
    }

    /// Acts as the Deployment controller of a member.
    async fn set_web_status(&self, member: &str, status: Value) -> Result<()> {
        let name = self.own("web");
        self.fleet()
            .patch_status(member, DEPLOYMENT, ("default", &name), status)
            .await
    }

    /// Waits until the Sync of one of two clusters waits for health, and returns that cluster and the other.
    async fn one_waits(&self, commit: &str) -> Result<(&'static str, &'static str)> {
        let at = |sync: &SyncResource| sync.spec.revision.ends_with(commit);
        self.status("one cluster under way, one waiting for its slot", |status| {
            (status.clusters.progressing, status.clusters.pending) == (1, 1)
        })
        .await?;
        // The status comes before the admission that it counts.
        let admitted = wait::until(TIMEOUT, "one cluster is admitted", async || {
            for pair in [("m1", "m2"), ("m2", "m1")] {
                let sync = self.fleet().get::<SyncResource>(&self.sync_name(pair.0)).await;
                if sync.is_ok_and(|sync| at(&sync)) {
                    return Some(pair);
                }
            }
            None
        });
        let (first, second) = admitted.await?;
        self.sync(first, "applied, and waiting for health", |sync| {
            at(sync)
                && is_waiting(sync)
                && sync
                    .status
                    .as_ref()
                    .is_some_and(|s| s.last_applied_revision.ends_with(commit))
        })
        .await?;
        Ok((first, second))
    }

    /// Counts the requests that read the complete Deployment of this scene.
    fn reads_of_web(&self, member: &str) -> Result<usize> {
        let path_end = format!("/deployments/{}", self.own("web"));
        Ok(self.proxy(member)?.count(&Method::GET, &path_end))
    }
}

#[test]
fn a_slot_is_freed_when_the_deployment_is_available_at_this_revision() -> Result<()> {
    shared_scene("awaits", async |scene| {
        let first = scene.commit_web("one")?;
        scene.follow_main().await?;
        scene.select(&["m1", "m2"]).await?;
        scene.group(json!({"maxConcurrency": 1}), json!({})).await?;

        let (first_member, waiting_member) = scene.one_waits(&first).await?;
        let waiting: SyncResource = scene.fleet().get(&scene.sync_name(first_member)).await?;
        let web = format!("Deployment default/{}", scene.own("web"));
        assert_eq!(
            problems_of_sync(&waiting),
            [("InProgress".to_owned(), web.clone())]
        );
        assert!(waiting.status.unwrap_or_default().healthy_since.is_empty());
        let group: SyncGroup = scene.fleet().get(scene.name).await?;
        let status = group.status.context("a status")?;
        assert!(blocked_by(&status).contains("NoSlot"), "{status:?}");
        assert!(
            scene.web(waiting_member).await?.is_none(),
            "{waiting_member} has it before its turn"
        );

        scene.set_web_status(first_member, available(1, 1)).await?;
        scene.sync(first_member, "healthy", is_healthy).await?;
        scene.sync(waiting_member, "its turn", is_waiting).await?;
        scene.set_web_status(waiting_member, available(1, 1)).await?;
        let status = scene.succeeded(&first).await?;
        assert_eq!(status.clusters.updated, 2);

        // The statuses are still available, but for the previous generation, which does not count for this revision.
        let second = scene.commit_web("two")?;
        let (first_member, waiting_member) = scene.one_waits(&second).await?;
        let behind: SyncResource = scene.fleet().get(&scene.sync_name(waiting_member)).await?;
        assert!(behind.spec.revision.ends_with(&first), "{:?}", behind.spec);
        for member in [first_member, waiting_member] {
            scene.sync(member, "waiting", is_waiting).await?;
            let generation = scene.generation(member).await?;
            ensure!(generation > 1, "{member} has no new generation");
            scene.set_web_status(member, available(1, generation)).await?;
        }
        scene.succeeded(&second).await?;

        // A commit that does not change the Deployment reads its health again, and needs no new status.
        let third = scene.commit(&[("settings", "v")])?;
        scene.succeeded(&third).await?;
        for member in ["m1", "m2"] {
            let sync: SyncResource = scene.fleet().get(&scene.sync_name(member)).await?;
            assert!(is_healthy(&sync), "{sync:?}");
        }
        Ok(())
    })
}

#[test]
fn a_sync_that_is_not_healthy_in_time_fails_and_recovers_without_another_apply() -> Result<()> {
    shared_scene("tardy", async |scene| {
        let commit = scene.commit_web("one")?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        let fields = json!({"timeout": "8s", "retryInterval": "1s"});
        scene.group(json!({}), fields).await?;
        let failed = scene.sync("m1", "HealthCheckFailed", has_failed).await?;
        let status = failed.status.clone().unwrap_or_default();
        assert_eq!((status.attempts, problems_of_sync(&failed).len()), (0, 1));
        assert!(
            !status.next_attempt_time.is_empty(),
            "when it is looked at again: {status:?}"
        );
        let group = scene
            .status("the cluster failed", |status| status.clusters.failed == 1)
            .await?;
        assert_eq!(
            problems(&group).get("m1").map(String::as_str),
            Some("HealthCheckFailed")
        );
        assert_eq!(group.rollout.context("a rollout")?.phase, RolloutPhase::Failed);

        scene.set_web_status("m1", available(1, 1)).await?;
        scene.sync("m1", "recovered", is_healthy).await?;
        scene.succeeded(&commit).await?;
        let path_end = format!("/deployments/{}", scene.own("web"));
        assert_eq!(scene.proxy("m1")?.patches(&path_end), 1);
        Ok(())
    })
}

#[test]
fn a_failed_job_is_not_awaited() -> Result<()> {
    shared_scene("jobless", async |scene| {
        let name = scene.own("once");
        let job = json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": "default"},
            "spec": {"template": {"spec": {
                "restartPolicy": "Never", "containers": [{"name": "main", "image": "x"}],
            }}},
        })
        .to_string();
        scene.repo.commit(&[("app/job.yaml", &job)], "job")?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        // Far longer than the timeout of this test.
        scene.group(json!({}), json!({"timeout": "1h"})).await?;
        scene.sync("m1", "waiting for the Job", is_waiting).await?;
        let time = "2026-01-01T00:00:00Z";
        let condition = |kind: &str| {
            json!({
                "type": kind, "status": "True", "reason": "BackoffLimitExceeded", "message": "",
                "lastProbeTime": time, "lastTransitionTime": time,
            })
        };
        let status = json!({
            "startTime": time, "failed": 7, "conditions": [condition("FailureTarget"), condition("Failed")],
        });
        scene
            .fleet()
            .patch_status("m1", "batch/v1 Job", ("default", &name), status)
            .await?;
        let failed = scene.sync("m1", "failed at once", has_failed).await?;
        let expected = ("Failed".to_owned(), format!("Job default/{name}"));
        assert_eq!(problems_of_sync(&failed), [expected]);
        Ok(())
    })
}

#[test]
fn a_later_health_problem_is_reported_and_the_rollout_stays_done() -> Result<()> {
    shared_scene("breaks", async |scene| {
        let commit = scene.commit_web("one")?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        let fields = json!({"interval": "2s", "retryInterval": "1s"});
        scene.group(json!({"maxFailures": 0}), fields).await?;
        scene.sync("m1", "waiting", is_waiting).await?;
        scene.set_web_status("m1", available(1, 1)).await?;
        let before = scene.succeeded(&commit).await?;
        let rollout = before.rollout.context("a rollout")?;

        // In progress: the Sync reports it, and may recover within its timeout.
        scene.set_web_status("m1", available(0, 1)).await?;
        let broken = scene.sync("m1", "not healthy any more", is_waiting).await?;
        assert!(broken.status.unwrap_or_default().healthy_since.is_empty());
        assert_eq!(
            broken.spec.revision.split(':').next_back(),
            Some(commit.as_str()),
            "still the same"
        );
        // Failed: the group is not Ready, and its rollout is still done.
        scene.set_web_status("m1", gave_up(1)).await?;
        scene.sync("m1", "failed", has_failed).await?;
        let degraded = |group: &SyncGroup| is(&group_ready(group), "False", "Degraded");
        let group = scene.fleet().until(scene.name, "Degraded", degraded).await?;
        let status = group.status.context("a status")?;
        assert_eq!(
            problems(&status).get("m1").map(String::as_str),
            Some("HealthCheckFailed")
        );
        assert_eq!((status.clusters.updated, status.clusters.failed), (1, 0));
        let after = status.rollout.context("a rollout")?;
        assert_eq!((after.id, after.phase), (rollout.id, RolloutPhase::Succeeded));

        scene.set_web_status("m1", available(1, 1)).await?;
        scene.sync("m1", "well again", is_healthy).await?;
        let healthy_again = |group: &SyncGroup| is(&group_ready(group), "True", "Succeeded");
        let group: SyncGroup = scene
            .fleet()
            .until(scene.name, "Ready again", healthy_again)
            .await?;
        assert_eq!(
            group.status.and_then(|s| s.rollout).map(|r| r.id),
            Some(rollout.id)
        );
        let path_end = format!("/deployments/{}", scene.own("web"));
        assert_eq!(
            scene.proxy("m1")?.patches(&path_end),
            1,
            "nothing was applied again"
        );
        Ok(())
    })
}

#[test]
fn without_wait_nothing_is_read_and_applied_is_ready() -> Result<()> {
    shared_scene("hasty", async |scene| {
        let commit = scene.commit_web("one")?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        scene.group(json!({}), json!({"wait": false})).await?;
        scene.succeeded(&commit).await?;
        assert_eq!(scene.reads_of_web("m1")?, 0);
        let asked = json!({"metadata": {"annotations": {REQUESTED_AT: "2026-01-01T00:00:00Z"}}});
        let name = scene.sync_name("m1");
        scene.fleet().patch::<SyncResource>(&name, asked).await?;
        let reconciled = |sync: &SyncResource| {
            sync.status
                .as_ref()
                .is_some_and(|s| s.last_handled_reconcile_at == "2026-01-01T00:00:00Z")
        };
        let sync = scene.sync("m1", "looked at", reconciled).await?;
        assert!(is(&sync_ready(&sync), "True", "Succeeded"), "{sync:?}");
        let SyncStatus {
            healthy_since,
            last_healthy_target,
            conditions,
            ..
        } = sync.status.unwrap_or_default();
        assert!(find(&conditions, HEALTHY).is_none() && find(&conditions, READY).is_some());
        assert_eq!((healthy_since.as_str(), last_healthy_target.as_str()), ("", ""));
        assert_eq!(
            scene.reads_of_web("m1")?,
            1,
            "the comparison on request, and nothing for its health"
        );

        // The same with `wait`, to test the counter.
        scene.group(json!({}), json!({"wait": true})).await?;
        scene.sync("m1", "waiting", is_waiting).await?;
        assert!(scene.reads_of_web("m1")? > 1);
        Ok(())
    })
}

/// An unknown kind, by the conditions that kstatus evaluates.
#[test]
fn the_health_of_a_custom_resource_follows_its_conditions() -> Result<()> {
    shared_scene("custom", async |scene| {
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "gadgets.health.example.com"},
            "spec": {
                "group": "health.example.com", "scope": "Namespaced",
                "names": {"plural": "gadgets", "singular": "gadget", "kind": "Gadget", "listKind": "GadgetList"},
                "versions": [{
                    "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": {
                        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                    }},
                }],
            },
        })
        .to_string();
        let name = scene.own("gadget");
        let gadget = json!({
            "apiVersion": "health.example.com/v1", "kind": "Gadget",
            "metadata": {"name": name, "namespace": "default"}, "spec": {"size": 1},
        })
        .to_string();
        let files = [
            ("app/definition.yaml", definition.as_str()),
            ("app/gadget.yaml", &gadget),
        ];
        scene.repo.commit(&files, "gadget")?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        let fields = json!({"interval": "2s", "retryInterval": "1s"});
        scene.group(json!({}), fields).await?;
        // Without conditions, the object is healthy; the definition was awaited.
        scene.sync("m1", "applied and healthy", is_healthy).await?;
        let gadget_is = async |conditions: Value| {
            let place = ("default", name.as_str());
            let status = json!({"conditions": conditions});
            scene
                .fleet()
                .patch_status("m1", "health.example.com/v1 Gadget", place, status)
                .await
        };
        gadget_is(json!([{"type": "Ready", "status": "False", "message": "warming up"}])).await?;
        let waiting = scene.sync("m1", "not Ready", is_waiting).await?;
        let problem = waiting.status.unwrap_or_default().problems.swap_remove(0);
        assert_eq!(problem.object, format!("Gadget default/{name}"));
        assert_eq!(
            (problem.reason.as_str(), problem.message.as_str()),
            ("InProgress", "warming up")
        );
        gadget_is(json!([{"type": "Stalled", "status": "True", "message": "no power"}])).await?;
        let failed = scene.sync("m1", "stalled", has_failed).await?;
        assert_eq!(failed.status.unwrap_or_default().problems[0].message, "no power");
        gadget_is(json!([{"type": "Ready", "status": "True"}])).await?;
        scene.sync("m1", "well again", is_healthy).await?;
        Ok(())
    })
}
