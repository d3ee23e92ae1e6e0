//! `wait`: a rollout stays at a cluster until what it applied is healthy there. Nothing runs workloads on these members, so
//! the tests write the statuses that controllers would.

use anyhow::{Context, Result, ensure};
use http::Method;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use serde_json::{Value, json};
use starling_api::conditions::{HEALTHY, READY, find};
use starling_api::{REQUESTED_AT, RolloutPhase, SyncGroup, SyncResource, SyncStatus};

use crate::world::{Scene, along, blocked_by, problems, ready, sync_ready};

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

/// What the Deployment controller writes: so many of the one replica are there, as of this generation.
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

/// Status and reason of Healthy.
fn healthy(sync: &SyncResource) -> (String, String) {
    let conditions = sync.status.as_ref().map(|status| status.conditions.as_slice());
    find(conditions.unwrap_or_default(), HEALTHY)
        .map(|condition| (condition.status.clone(), condition.reason.clone()))
        .unwrap_or_default()
}

/// Reason and object of each problem.
fn troubles(sync: &SyncResource) -> Vec<(String, String)> {
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

/// Ready and healthy, with the target that it holds.
fn is_well(sync: &SyncResource) -> bool {
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

    /// Plays the Deployment controller of a member.
    async fn web_is(&self, member: &str, status: Value) -> Result<()> {
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
        let first: SyncResource = self
            .fleet()
            .get(&self.sync_name("m1"))
            .await
            .or_else(|_| blank())?;
        let (first, second) = if at(&first) { ("m1", "m2") } else { ("m2", "m1") };
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

    /// Requests that read this scene's Deployment as a whole.
    fn readings_of_web(&self, member: &str) -> Result<usize> {
        let path_end = format!("/deployments/{}", self.own("web"));
        Ok(self.proxy(member)?.count(&Method::GET, &path_end))
    }
}

/// A Sync that was not admitted to anything.
fn blank() -> Result<SyncResource> {
    Ok(serde_json::from_value(json!({
        "apiVersion": "starling.dev/v1alpha1", "kind": "Sync", "metadata": {"name": "none"},
        "spec": {"clusterRef": {"name": ""}, "sourceRef": {"name": ""}},
    }))?)
}

#[test]
fn a_slot_ends_when_the_deployment_is_available_with_this_very_revision() -> Result<()> {
    along("awaits", async |scene| {
        let first = scene.commit_web("one")?;
        scene.follow_main().await?;
        scene.select(&["m1", "m2"]).await?;
        scene.group(json!({"maxConcurrency": 1}), json!({})).await?;

        let (leader, follower) = scene.one_waits(&first).await?;
        let waiting: SyncResource = scene.fleet().get(&scene.sync_name(leader)).await?;
        let web = format!("Deployment default/{}", scene.own("web"));
        assert_eq!(troubles(&waiting), [("InProgress".to_owned(), web.clone())]);
        assert!(waiting.status.unwrap_or_default().healthy_since.is_empty());
        let group: SyncGroup = scene.fleet().get(scene.name).await?;
        let status = group.status.context("a status")?;
        assert!(blocked_by(&status).contains("NoSlot"), "{status:?}");
        assert!(
            scene.web(follower).await?.is_none(),
            "{follower} has it before its turn"
        );

        scene.web_is(leader, available(1, 1)).await?;
        scene.sync(leader, "healthy", is_well).await?;
        scene.sync(follower, "its turn", is_waiting).await?;
        scene.web_is(follower, available(1, 1)).await?;
        let status = scene.succeeded(&first).await?;
        assert_eq!(status.clusters.updated, 2);

        // The statuses still say available, but of the generation before: that is no health of this revision.
        let second = scene.commit_web("two")?;
        let (leader, follower) = scene.one_waits(&second).await?;
        let behind: SyncResource = scene.fleet().get(&scene.sync_name(follower)).await?;
        assert!(behind.spec.revision.ends_with(&first), "{:?}", behind.spec);
        for member in [leader, follower] {
            scene.sync(member, "waiting", is_waiting).await?;
            let generation = scene.generation(member).await?;
            ensure!(generation > 1, "{member} has no new generation");
            scene.web_is(member, available(1, generation)).await?;
        }
        scene.succeeded(&second).await?;

        // A commit that does not touch it asks again, and needs nobody.
        let third = scene.commit(&[("settings", "v")])?;
        scene.succeeded(&third).await?;
        for member in ["m1", "m2"] {
            let sync: SyncResource = scene.fleet().get(&scene.sync_name(member)).await?;
            assert!(is_well(&sync), "{sync:?}");
        }
        Ok(())
    })
}

#[test]
fn what_is_not_healthy_in_time_fails_and_recovers_without_being_applied_again() -> Result<()> {
    along("tardy", async |scene| {
        let commit = scene.commit_web("one")?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        let fields = json!({"timeout": "8s", "retryInterval": "1s"});
        scene.group(json!({}), fields).await?;
        let failed = scene.sync("m1", "HealthCheckFailed", has_failed).await?;
        let status = failed.status.clone().unwrap_or_default();
        assert_eq!((status.attempts, troubles(&failed).len()), (0, 1));
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

        scene.web_is("m1", available(1, 1)).await?;
        scene.sync("m1", "recovered", is_well).await?;
        scene.succeeded(&commit).await?;
        let path_end = format!("/deployments/{}", scene.own("web"));
        assert_eq!(scene.proxy("m1")?.count(&Method::PATCH, &path_end), 1);
        Ok(())
    })
}

#[test]
fn a_job_that_failed_is_not_waited_for() -> Result<()> {
    along("jobless", async |scene| {
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
        // Far longer than this test is patient.
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
        assert_eq!(troubles(&failed), [expected]);
        Ok(())
    })
}

#[test]
fn what_breaks_at_rest_is_told_and_the_rollout_stays_done() -> Result<()> {
    along("breaks", async |scene| {
        let commit = scene.commit_web("one")?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        let fields = json!({"interval": "2s", "retryInterval": "1s"});
        scene.group(json!({"maxFailures": 0}), fields).await?;
        scene.sync("m1", "waiting", is_waiting).await?;
        scene.web_is("m1", available(1, 1)).await?;
        let before = scene.succeeded(&commit).await?;
        let rollout = before.rollout.context("a rollout")?;

        // On its way: the Sync says so, and has its timeout to get better.
        scene.web_is("m1", available(0, 1)).await?;
        let broken = scene.sync("m1", "not healthy any more", is_waiting).await?;
        assert!(broken.status.unwrap_or_default().healthy_since.is_empty());
        assert_eq!(
            broken.spec.revision.split(':').next_back(),
            Some(commit.as_str()),
            "still the same"
        );
        // Given up: the group is not Ready, and its rollout is still over.
        scene.web_is("m1", gave_up(1)).await?;
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

        scene.web_is("m1", available(1, 1)).await?;
        scene.sync("m1", "well again", is_well).await?;
        let well = |group: &SyncGroup| is(&group_ready(group), "True", "Succeeded");
        let group: SyncGroup = scene.fleet().until(scene.name, "Ready again", well).await?;
        assert_eq!(
            group.status.and_then(|s| s.rollout).map(|r| r.id),
            Some(rollout.id)
        );
        let path_end = format!("/deployments/{}", scene.own("web"));
        assert_eq!(
            scene.proxy("m1")?.count(&Method::PATCH, &path_end),
            1,
            "nothing was applied again"
        );
        Ok(())
    })
}

#[test]
fn without_wait_nothing_is_read_and_applied_is_ready() -> Result<()> {
    along("hasty", async |scene| {
        let commit = scene.commit_web("one")?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        scene.group(json!({}), json!({"wait": false})).await?;
        scene.succeeded(&commit).await?;
        let asked = json!({"metadata": {"annotations": {REQUESTED_AT: "2026-01-01T00:00:00Z"}}});
        let name = scene.sync_name("m1");
        scene.fleet().patch::<SyncResource>(&name, asked).await?;
        let answered = |sync: &SyncResource| {
            sync.status
                .as_ref()
                .is_some_and(|s| s.last_handled_reconcile_at == "2026-01-01T00:00:00Z")
        };
        let sync = scene.sync("m1", "looked at", answered).await?;
        assert!(is(&sync_ready(&sync), "True", "Succeeded"), "{sync:?}");
        let SyncStatus {
            healthy_since,
            last_healthy_target,
            conditions,
            ..
        } = sync.status.unwrap_or_default();
        assert!(find(&conditions, HEALTHY).is_none() && find(&conditions, READY).is_some());
        assert_eq!((healthy_since.as_str(), last_healthy_target.as_str()), ("", ""));
        assert_eq!(scene.readings_of_web("m1")?, 0);

        // The same with wait, as a control: the counter counts.
        scene.group(json!({}), json!({"wait": true})).await?;
        scene.sync("m1", "waiting", is_waiting).await?;
        assert!(scene.readings_of_web("m1")? > 0);
        Ok(())
    })
}

/// A kind that nobody knows, by the conditions that kstatus looks for.
#[test]
fn a_custom_resource_is_as_healthy_as_its_conditions_say() -> Result<()> {
    along("custom", async |scene| {
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
        // Without conditions it is as its spec says; the definition was waited for.
        scene.sync("m1", "applied and healthy", is_well).await?;
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
        scene.sync("m1", "well again", is_well).await?;
        Ok(())
    })
}
