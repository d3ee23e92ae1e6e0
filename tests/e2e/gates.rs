//! Gates that other systems decide: webhooks, queries of a Prometheus, Jobs.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use starling_api::conditions;
use starling_api::{GATE, RolloutPhase, SYSTEM_NAMESPACE, SyncGroup, SyncGroupStatus, TaskStatus};
use starling_testkit::fleet::{NAMESPACE, TIMEOUT};
use starling_testkit::{Fleet, FleetOptions, GitRepo, program, wait};
use tokio::net::TcpListener;

use crate::operator_actions::{canary, say};
use crate::stages::{is_in, stage_status};
use crate::world::{MEMBERS, Scene, all, blocked_by, config_map, is_ready, shared_scene};

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
}

impl ReceivedRequest {
    fn header(&self, name: &str) -> Result<&str> {
        let value = self.headers.get(name).with_context(|| format!("no {name}"))?;
        Ok(value.to_str()?)
    }
}

/// A server with a configurable response that records its requests.
#[derive(Clone, Default)]
pub(crate) struct GateServer(Arc<Mutex<ServerState>>);

#[derive(Default)]
struct ServerState {
    response: (u16, Value),
    requests: Vec<ReceivedRequest>,
}

impl GateServer {
    /// Starts the server with a response; also returns its address.
    pub(crate) async fn start(status: u16, response: Value) -> Result<(Self, String)> {
        let server = Self::default();
        server.respond_with(status, response);
        let app = Router::new().fallback(Self::take).with_state(server.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        tokio::spawn(async move { axum::serve(listener, app).await });
        Ok((server, url))
    }

    async fn take(
        State(server): State<Self>,
        uri: Uri,
        headers: HeaderMap,
        body: Bytes,
    ) -> (StatusCode, String) {
        let mut state = server.state();
        state.requests.push(ReceivedRequest { uri, headers, body });
        let (status, body) = state.response.clone();
        (StatusCode::from_u16(status).unwrap_or_default(), body.to_string())
    }

    pub(crate) fn respond_with(&self, status: u16, response: Value) {
        self.state().response = (status, response);
    }

    pub(crate) fn requests(&self) -> Vec<ReceivedRequest> {
        self.state().requests.clone()
    }

    /// The keys of all requests.
    pub(crate) fn keys(&self) -> Result<BTreeSet<String>> {
        let requests = self.requests();
        let keys = requests
            .iter()
            .map(|requests| requests.header("idempotency-key").map(str::to_owned));
        keys.collect()
    }

    /// Waits until the server has received more than this number of requests.
    pub(crate) async fn until_requests_exceed(&self, times: usize) -> Result<()> {
        wait::until(TIMEOUT, format!("more than {times} requests"), async || {
            let requests = self.requests().len();
            (requests > times).then_some(()).ok_or(format!("{requests}"))
        })
        .await?;
        Ok(())
    }

    fn state(&self) -> std::sync::MutexGuard<'_, ServerState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// HMAC-SHA256 by RFC 2104, independent of the program's implementation.
fn hmac(key: &[u8], message: &[u8]) -> String {
    let mut block = [0u8; 64];
    block[..key.len()].copy_from_slice(key);
    let pad = |byte: u8| block.map(|b| b ^ byte);
    let inner = Sha256::new()
        .chain_update(pad(0x36))
        .chain_update(message)
        .finalize();
    let outer = Sha256::new()
        .chain_update(pad(0x5c))
        .chain_update(inner)
        .finalize();
    hex::encode(outer)
}

const TOKEN: &str = "hunter2-hunter2";

pub(crate) async fn put_secret(fleet: &Fleet, name: &str, values: Value) -> Result<()> {
    let secret = json!({"metadata": {"name": name}, "stringData": values});
    fleet.put::<Secret>(secret).await
}

pub(crate) fn webhook(url: &str, secret: &str) -> Value {
    json!({"type": "Webhook", "interval": "1s", "webhook": {"url": format!("{url}/gate"), "secretRef": {"name": secret}}})
}

/// Returns the last started task after the canary.
fn last_task(status: &SyncGroupStatus) -> Option<&TaskStatus> {
    stage_status(status, "canary")?.after_stage_tasks.last()
}

fn is_stopped_by(status: &SyncGroupStatus, expected: &str) -> bool {
    let paused = status
        .rollout
        .as_ref()
        .is_some_and(|rollout| rollout.phase == RolloutPhase::Paused);
    let said = last_task(status).is_some_and(|task| task.result.is_some() && task.message.contains(expected));
    paused && said && blocked_by(status).contains("GateFailed")
}

#[test]
fn a_webhook_blocks_a_stage_until_its_response_is_passed() -> Result<()> {
    shared_scene("gate-asked", async |scene| {
        let (server, url) = GateServer::start(503, json!({"message": "restarting"})).await?;
        let first = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        let secret = scene.own("gates");
        let task = json!({"afterStageTasks": [webhook(&url, &secret)]});
        canary(scene, json!({}), task).await?;
        // Nothing is sent before the signing key exists, and the status reports it.
        scene
            .status("the Secret is missing", |status| {
                last_task(status).is_some_and(|task| task.message.contains("not found"))
            })
            .await?;
        assert!(server.requests().is_empty());
        put_secret(scene.fleet(), &secret, json!({"token": format!("{TOKEN}\n")})).await?;
        scene
            .status("it is in trouble", |status| {
                last_task(status).is_some_and(|task| task.message.contains("503: restarting"))
            })
            .await?;
        server.respond_with(200, json!({"result": "Pending", "message": "smoke tests run"}));
        let status = scene
            .status("it is pending", |status| {
                last_task(status).is_some_and(|task| task.message == "smoke tests run")
                    && is_in(status, &first, "canary", "AwaitingWebhook")
            })
            .await?;
        server.until_requests_exceed(server.requests().len() + 1).await?;
        assert_eq!(scene.values(&MEMBERS[1..], "settings").await?, vec![None; 4]);
        for requests in server.requests() {
            let signed = [
                requests.header("starling-timestamp")?.as_bytes(),
                b".",
                &requests.body,
            ]
            .concat();
            assert_eq!(
                requests.header("starling-signature")?,
                format!("v1={}", hmac(TOKEN.as_bytes(), &signed))
            );
            assert_eq!(requests.uri, "/gate");
            let body: Value = serde_json::from_slice(&requests.body)?;
            let rollout = status.rollout.as_ref().context("a rollout")?;
            let state = json!({
                "namespace": NAMESPACE, "group": scene.name, "rollout": rollout.id, "release": rollout.release,
                "revisions": rollout.revisions, "direction": "Forward", "stage": "canary",
                "list": "afterStageTasks", "task": 0,
                "startTime": last_task(&status).context("the task")?.start_time,
                "clusters": {"total": 1, "updated": 1, "failed": 0},
            });
            assert_eq!(body, state);
        }
        server.respond_with(200, json!({"result": "Passed"}));
        scene.succeeded(&first).await?;
        assert_eq!(server.keys()?.len(), 1, "one gate, one key");

        // Another rollout has another gate.
        let second = scene.commit(&[("settings", "two")])?;
        scene.succeeded(&second).await?;
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("two", 5));
        assert_eq!(server.keys()?.len(), 2);
        Ok(())
    })
}

#[test]
fn a_failed_webhook_stops_the_rollout_until_a_retry() -> Result<()> {
    shared_scene("failing", async |scene| {
        let (server, url) =
            GateServer::start(200, json!({"result": "Failed", "message": "3 of 9 tests"})).await?;
        let first = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        let secret = scene.own("gates");
        put_secret(scene.fleet(), &secret, json!({"token": TOKEN})).await?;
        let task = json!({"afterStageTasks": [webhook(&url, &secret)]});
        canary(scene, json!({}), task).await?;
        scene
            .status("stopped", |status| is_stopped_by(status, "3 of 9 tests"))
            .await?;
        assert_eq!(
            server.requests().len(),
            1,
            "a failed gate is not called again automatically"
        );
        assert_eq!(scene.values(&MEMBERS[1..], "settings").await?, vec![None; 4]);
        server.respond_with(204, Value::Null);
        say(
            scene,
            &["retry", scene.name, "--stage", "canary", "--reason", "flaky"],
        )
        .await?;
        scene.succeeded(&first).await?;
        assert_eq!(server.keys()?.len(), 2, "the gate was started again");
        Ok(())
    })
}

/// A response as in the page "HTTP API" of the documentation of Prometheus.
fn vector(value: &str) -> Value {
    json!({"status": "success", "data": {"resultType": "vector", "result": [
        {"metric": {"__name__": "errors", "job": "shop"}, "value": [1_435_781_451.781, value]}]}})
}

#[test]
fn a_metric_is_queried_until_its_test_is_true() -> Result<()> {
    shared_scene("measured", async |scene| {
        let (server, url) = GateServer::start(200, vector("0.5")).await?;
        let first = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        let secret = scene.own("prometheus");
        put_secret(scene.fleet(), &secret, json!({"bearerToken": TOKEN})).await?;
        let metric = json!({"url": format!("{url}/prometheus"), "query": "errors{job=\"shop\"}", "test": "value < 0.1",
            "secretRef": {"name": secret}});
        let task = json!({"type": "Metric", "interval": "1s", "metric": metric});
        canary(scene, json!({}), json!({"afterStageTasks": [task]})).await?;
        scene
            .status("it waits", |status| {
                last_task(status).is_some_and(|task| task.message.starts_with("value is 0.5"))
                    && is_in(status, &first, "canary", "AwaitingMetric")
            })
            .await?;
        assert_eq!(scene.values(&MEMBERS[1..], "settings").await?, vec![None; 4]);
        for requests in server.requests() {
            assert_eq!(requests.uri, "/prometheus/api/v1/query");
            assert_eq!(requests.header("authorization")?, format!("Bearer {TOKEN}"));
            assert_eq!(&requests.body[..], b"query=errors%7Bjob%3D%22shop%22%7D");
        }
        // Credentials that a server repeats are not in the status.
        server.respond_with(
            503,
            json!({"status": "error", "errorType": "timeout", "error": format!("not for {TOKEN}")}),
        );
        scene
            .status("it is in trouble", |status| {
                last_task(status).is_some_and(|task| task.message.contains("not for ***"))
            })
            .await?;
        server.respond_with(200, vector("0.05"));
        scene.succeeded(&first).await?;
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("one", 5));
        Ok(())
    })
}

#[test]
fn an_invalid_test_is_reported_before_any_rollout() -> Result<()> {
    shared_scene("senseless", async |scene| {
        scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        let metric = json!({"url": "http://prometheus:9090", "query": "up", "test": "valu < 1.0"});
        let task = json!({"type": "Metric", "metric": metric});
        canary(scene, json!({}), json!({"afterStageTasks": [task]})).await?;
        let status = scene
            .status("stalled", |status| {
                status.conditions.iter().any(|condition| {
                    condition.type_ == "Stalled"
                        && condition.reason == "InvalidSpec"
                        && condition
                            .message
                            .contains("stages[canary].afterStageTasks[0]: metric.test:")
                })
            })
            .await?;
        assert!(status.rollout.is_none(), "{status:#?}");
        Ok(())
    })
}

/// Returns the running Jobs of a scene.
async fn jobs(scene: &Scene) -> Result<Vec<Job>> {
    let jobs = scene.fleet().api::<Job>().list(&ListParams::default()).await?;
    let open = |job: &Job| {
        let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
        job.name_any().starts_with(&format!("{}-", scene.name))
            && conditions.is_none_or(|conditions| conditions.is_empty())
    };
    Ok(jobs.items.into_iter().filter(open).collect())
}

/// Waits until there is one running Job.
async fn job(scene: &Scene) -> Result<Job> {
    let found = wait::until(TIMEOUT, format!("a Job of {}", scene.name), async || {
        let mut jobs = jobs(scene).await.map_err(|e| format!("{e:#}"))?;
        match jobs.len() {
            1 => jobs.pop().ok_or_else(|| "none".to_owned()),
            more => Err(format!("{more} Jobs")),
        }
    })
    .await?;
    Ok(found)
}

/// Ends a Job. There are no nodes and no Job controller here: this writes the status that the controller would write
/// after the pods have succeeded, or failed too often.
async fn end_job(scene: &Scene, job: &Job, succeeds: bool) -> Result<()> {
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let condition = |type_: &str, reason: &str| {
        json!({"type": type_, "status": "True", "reason": reason, "message": "as a test says",
            "lastProbeTime": now, "lastTransitionTime": now})
    };
    let status = if succeeds {
        let reached = "CompletionsReached";
        json!({"startTime": now, "completionTime": now, "succeeded": 1, "ready": 0,
            "conditions": [condition("SuccessCriteriaMet", reached), condition("Complete", reached)]})
    } else {
        let exceeded = "BackoffLimitExceeded";
        json!({"startTime": now, "failed": 1, "ready": 0,
            "conditions": [condition("FailureTarget", exceeded), condition("Failed", exceeded)]})
    };
    let ended = scene
        .fleet()
        .api::<Job>()
        .patch_status(
            &job.name_any(),
            &PatchParams::default(),
            &Patch::Merge(json!({"status": status})),
        )
        .await?;
    let conditions = ended
        .status
        .and_then(|status| status.conditions)
        .unwrap_or_default();
    ensure!(conditions.len() == 2, "{conditions:?}");
    Ok(())
}

#[test]
fn a_job_has_to_succeed_before_the_next_stage() -> Result<()> {
    shared_scene("running", async |scene| {
        let first = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        let pod = |policy: &str| json!({"spec": {policy: "Never", "serviceAccountName": "smoke", "containers": [{"name": "smoke", "image": "example.com/smoke:1"}]}});
        let task = |policy: &str, more: Value| {
            let mut task = json!({"type": "Job", "job": {"template": {
                "metadata": {"labels": {"team": "shop"}}, "spec": {"backoffLimit": 0, "template": pod(policy)}}}});
            if let (Some(task), Value::Object(more)) = (task.as_object_mut(), more) {
                task.extend(more);
            }
            json!({"afterStageTasks": [task]})
        };
        let retry = ["retry", scene.name, "--stage", "canary", "--reason", "mended"];

        // A template with an unknown field is invalid.
        canary(scene, json!({}), task("restartPolcy", json!({}))).await?;
        scene
            .status("the template is wrong", |status| {
                is_stopped_by(status, "restartPolcy")
            })
            .await?;
        assert!(jobs(scene).await?.is_empty());

        canary(scene, json!({}), task("restartPolicy", json!({}))).await?;
        say(scene, &retry).await?;
        let failing = job(scene).await?;
        let group: SyncGroup = scene.fleet().get(scene.name).await?;
        let owner = &failing.owner_references()[0];
        assert_eq!(
            (&owner.name, Some(&owner.uid)),
            (&group.name_any(), group.uid().as_ref())
        );
        assert_eq!(failing.labels().get("team").map(String::as_str), Some("shop"));
        assert!(failing.annotations().contains_key(GATE));
        scene
            .status("it waits", |status| {
                is_in(status, &first, "canary", "AwaitingJob")
            })
            .await?;
        end_job(scene, &failing, false).await?;
        scene
            .status("the Job failed", |status| {
                is_stopped_by(status, "BackoffLimitExceeded")
            })
            .await?;
        assert_eq!(scene.values(&MEMBERS[1..], "settings").await?, vec![None; 4]);

        say(scene, &retry).await?;
        let passing = job(scene).await?;
        assert_ne!(
            passing.name_any(),
            failing.name_any(),
            "the gate was started again"
        );
        end_job(scene, &passing, true).await?;
        scene.succeeded(&first).await?;

        // A Job that exceeds its timeout is deleted; finished Jobs are kept.
        canary(scene, json!({}), task("restartPolicy", json!({"timeout": "3s"}))).await?;
        scene.commit(&[("settings", "two")])?;
        let slow = job(scene).await?;
        scene
            .status("its time is over", |status| {
                is_stopped_by(status, "not within 3s")
            })
            .await?;
        ensure!(
            scene
                .fleet()
                .api::<Job>()
                .get_opt(&slow.name_any())
                .await?
                .is_none()
        );
        ensure!(
            scene
                .fleet()
                .api::<Job>()
                .get_opt(&passing.name_any())
                .await?
                .is_some()
        );

        // A newer release waits for other gates.
        canary(scene, json!({}), task("restartPolicy", json!({}))).await?;
        scene.commit(&[("settings", "three")])?;
        let superseded = job(scene).await?;
        scene.commit(&[("settings", "four")])?;
        wait::until(TIMEOUT, "the Job of the overtaken release is gone", async || {
            let found = scene.fleet().api::<Job>().get_opt(&superseded.name_any()).await;
            let found = found.map_err(|e| e.to_string())?;
            found.map_or(Ok(()), |job| Err(format!("{:?}", job.status)))
        })
        .await?;
        Ok(())
    })
}

/// A running gate continues after a crash as the same gate.
#[tokio::test(flavor = "multi_thread")]
async fn a_pending_webhook_is_called_with_the_same_key_after_a_crash() -> Result<()> {
    let fleet = Fleet::start(FleetOptions {
        members: 2,
        ..FleetOptions::default()
    })
    .await?;
    fleet.add_cluster("m1", &[("stage", "canary")]).await?;
    fleet.add_cluster("m2", &[("stage", "rest")]).await?;
    let repo = GitRepo::init()?;
    let commit = repo.commit(&[("app/settings.yaml", &config_map("settings", "one"))], "one")?;
    fleet
        .put_source("shop", &repo.url(), json!({"branch": "main"}))
        .await?;
    put_secret(&fleet, "gates", json!({"token": TOKEN})).await?;
    let (server, url) = GateServer::start(200, json!({"result": "Pending"})).await?;
    let stage = json!({"name": "canary", "clusterSelector": {"matchLabels": {"stage": "canary"}},
        "afterStageTasks": [webhook(&url, "gates")]});
    let spec = json!({"clusterSelector": {}, "syncs": [{"name": "app", "sourceRef": {"name": "shop"}, "path": "./app"}],
        "rolloutStrategy": {"maxConcurrency": "100%", "stages": [stage]}});
    fleet.put_group("shop", spec).await?;
    let controller = fleet.controller(program(), &[])?;
    fleet.until("m1", "Ready", is_ready).await?;
    server.until_requests_exceed(1).await?;
    controller.kill9()?;
    let before = server.requests().len();
    let controller = fleet.controller(program(), &[])?;
    server.until_requests_exceed(before + 1).await?;
    assert_eq!(server.keys()?.len(), 1, "it is the same gate");
    server.respond_with(200, json!({"result": "Passed"}));
    fleet.rollout("shop", &commit, RolloutPhase::Succeeded).await?;
    assert_eq!(server.keys()?.len(), 1);
    drop(controller);
    Ok(())
}

/// A member remembers more writes than the management cluster: what it is about to be asked is about a past rollout.
#[tokio::test(flavor = "multi_thread")]
async fn a_restore_ends_the_gates_of_a_running_controller() -> Result<()> {
    let fleet = Fleet::start(FleetOptions {
        members: 2,
        ..FleetOptions::default()
    })
    .await?;
    fleet.add_cluster("m1", &[("stage", "canary")]).await?;
    fleet.add_cluster("m2", &[("stage", "rest")]).await?;
    let repo = GitRepo::init()?;
    repo.commit(&[("app/settings.yaml", &config_map("settings", "one"))], "one")?;
    fleet
        .put_source("shop", &repo.url(), json!({"branch": "main"}))
        .await?;
    put_secret(&fleet, "gates", json!({"token": TOKEN})).await?;
    let (server, url) = GateServer::start(200, json!({"result": "Pending"})).await?;
    let stage = json!({"name": "canary", "clusterSelector": {"matchLabels": {"stage": "canary"}},
        "afterStageTasks": [webhook(&url, "gates")]});
    let entry = json!({"name": "app", "sourceRef": {"name": "shop"}, "path": "./app", "interval": "2s"});
    let spec = json!({"clusterSelector": {}, "syncs": [entry],
        "rolloutStrategy": {"maxConcurrency": "100%", "stages": [stage]}});
    fleet.put_group("shop", spec).await?;
    let _controller = fleet.controller(program(), &[])?;
    server.until_requests_exceed(1).await?;

    remember_more(&fleet, "m1").await?;
    let maps: Api<ConfigMap> = Api::namespaced(fleet.member("m1").await?, "default");
    maps.delete("settings", &DeleteParams::default()).await?;
    let is_detected = |status: &SyncGroupStatus| {
        conditions::find(&status.conditions, "RestoreDetected").is_some_and(|found| found.status == "True")
    };
    fleet
        .group_status("shop", "a restore is detected", is_detected)
        .await?;
    let before = server.requests().len();
    // Five times the interval of the gate.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let after = server.requests().len();
    assert!(
        after <= before + 1,
        "one may have been under way: {before}, {after}"
    );
    Ok(())
}

/// The inventory of the group on a member names a later write of the management cluster.
async fn remember_more(fleet: &Fleet, member: &str) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(fleet.member(member).await?, SYSTEM_NAMESPACE);
    let found = maps.list(&ListParams::default()).await?;
    let is_inventory = |map: &ConfigMap| {
        map.data
            .as_ref()
            .is_some_and(|data| data.contains_key("inventory"))
    };
    let mut map = found
        .items
        .into_iter()
        .find(is_inventory)
        .context("an inventory")?;
    let text = map.data.as_mut().and_then(|data| data.get_mut("inventory"));
    let text = text.context("its text")?;
    let number = { text.split_whitespace() }
        .find_map(|part| part.strip_prefix("hub="))
        .context("a number")?
        .to_owned();
    *text = text.replacen(&format!("hub={number}"), &format!("hub={number}000000"), 1);
    let name = map.name_any();
    maps.replace(&name, &PostParams::default(), &map).await?;
    Ok(())
}

#[test]
fn tenant_a_job_runs_as_an_allowed_account_and_gets_no_secret() -> Result<()> {
    shared_scene("job-greedy", async |scene| {
        scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        let task = |pod: Value| {
            let template = json!({"spec": {"template": {"spec": pod}}});
            json!({"beforeStageTasks": [{"type": "Job", "job": {"template": template}}]})
        };
        let containers = json!([{"name": "smoke", "image": "example.com/smoke:1"}]);
        let secret = json!([{"name": "k", "secret": {"secretName": "m1-kubeconfig"}}]);
        for (pod, expected) in [
            (
                json!({"restartPolicy": "Never", "containers": containers}),
                "serviceAccountName is \"\"; allowed by --job-gate-service-account: smoke",
            ),
            (
                json!({"restartPolicy": "Never", "containers": containers, "serviceAccountName": "smoke", "volumes": secret}),
                "volumes.0.secret: the pod of a task may not name Secrets",
            ),
        ] {
            canary(scene, json!({}), task(pod)).await?;
            scene
                .status("the group is stalled", |status| {
                    let conditions = status.conditions.iter();
                    conditions
                        .filter(|condition| condition.type_ == "Stalled" && condition.reason == "InvalidSpec")
                        .any(|condition| condition.message.contains(expected))
                })
                .await?;
            assert!(jobs(scene).await?.is_empty());
        }
        Ok(())
    })
}
