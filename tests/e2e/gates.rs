//! Gates that somebody else decides: webhooks, queries of a Prometheus, Jobs.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use starling_api::{GATE, RolloutPhase, SyncGroup, SyncGroupStatus, TaskStatus};
use starling_testkit::fleet::{NAMESPACE, PATIENCE};
use starling_testkit::{Fleet, FleetOptions, GitRepo, wait};
use tokio::net::TcpListener;

use crate::PROGRAM;
use crate::stages::{is_in, stage_status};
use crate::steering::{canary, say};
use crate::world::{MEMBERS, Scene, all, along, blocked_by, config_map, is_ready};

/// A request that was asked.
#[derive(Clone, Debug)]
struct Asked {
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
}

impl Asked {
    fn header(&self, name: &str) -> Result<&str> {
        let value = self.headers.get(name).with_context(|| format!("no {name}"))?;
        Ok(value.to_str()?)
    }
}

/// A server that answers what it is told to, and remembers what it was asked.
#[derive(Clone, Default)]
struct Oracle(Arc<Mutex<Told>>);

#[derive(Default)]
struct Told {
    answer: (u16, Value),
    asked: Vec<Asked>,
}

impl Oracle {
    /// Starts with an answer; also returns its address.
    async fn start(status: u16, answer: Value) -> Result<(Self, String)> {
        let oracle = Self::default();
        oracle.answers(status, answer);
        let app = Router::new().fallback(Self::take).with_state(oracle.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        tokio::spawn(async move { axum::serve(listener, app).await });
        Ok((oracle, url))
    }

    async fn take(
        State(oracle): State<Self>,
        uri: Uri,
        headers: HeaderMap,
        body: Bytes,
    ) -> (StatusCode, String) {
        let mut told = oracle.told();
        told.asked.push(Asked { uri, headers, body });
        let (status, body) = told.answer.clone();
        (StatusCode::from_u16(status).unwrap_or_default(), body.to_string())
    }

    fn answers(&self, status: u16, answer: Value) {
        self.told().answer = (status, answer);
    }

    fn asked(&self) -> Vec<Asked> {
        self.told().asked.clone()
    }

    /// The keys of all requests.
    fn keys(&self) -> Result<BTreeSet<String>> {
        let asked = self.asked();
        let keys = asked
            .iter()
            .map(|asked| asked.header("idempotency-key").map(str::to_owned));
        keys.collect()
    }

    /// Waits until it was asked more often than this.
    async fn asked_more_than(&self, times: usize) -> Result<()> {
        wait::until(PATIENCE, format!("more than {times} requests"), async || {
            let asked = self.asked().len();
            (asked > times).then_some(()).ok_or(format!("{asked}"))
        })
        .await?;
        Ok(())
    }

    fn told(&self) -> std::sync::MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// HMAC-SHA256 as RFC 2104 has it, apart from what the program uses.
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

async fn put_secret(fleet: &Fleet, name: &str, values: Value) -> Result<()> {
    let secret = json!({"metadata": {"name": name}, "stringData": values});
    fleet.put::<Secret>(secret).await
}

fn webhook(url: &str, secret: &str) -> Value {
    json!({"type": "Webhook", "interval": "1s", "webhook": {"url": format!("{url}/gate"), "secretRef": {"name": secret}}})
}

/// The task after the canary that began last.
fn last_task(status: &SyncGroupStatus) -> Option<&TaskStatus> {
    stage_status(status, "canary")?.after_stage_tasks.last()
}

fn is_stopped_by(status: &SyncGroupStatus, words: &str) -> bool {
    let paused = status
        .rollout
        .as_ref()
        .is_some_and(|rollout| rollout.phase == RolloutPhase::Paused);
    let said = last_task(status).is_some_and(|task| task.result.is_some() && task.message.contains(words));
    paused && said && blocked_by(status).contains("GateFailed")
}

#[test]
fn a_webhook_holds_a_stage_until_its_answer_is_passed() -> Result<()> {
    along("asked", async |scene| {
        let (oracle, url) = Oracle::start(503, json!({"message": "restarting"})).await?;
        let first = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        let secret = scene.own("gates");
        let task = json!({"afterStageTasks": [webhook(&url, &secret)]});
        canary(scene, json!({}), task).await?;
        // Nothing is asked before there is something to sign with, and status says so.
        scene
            .status("the Secret is missing", |status| {
                last_task(status).is_some_and(|task| task.message.contains("there is no Secret"))
            })
            .await?;
        assert!(oracle.asked().is_empty());
        put_secret(scene.fleet(), &secret, json!({"token": format!("{TOKEN}\n")})).await?;
        scene
            .status("it is in trouble", |status| {
                last_task(status).is_some_and(|task| task.message.contains("503: restarting"))
            })
            .await?;
        oracle.answers(200, json!({"result": "Pending", "message": "smoke tests run"}));
        let status = scene
            .status("it is pending", |status| {
                last_task(status).is_some_and(|task| task.message == "smoke tests run")
                    && is_in(status, &first, "canary", "AwaitingWebhook")
            })
            .await?;
        oracle.asked_more_than(oracle.asked().len() + 1).await?;
        assert_eq!(scene.values(&MEMBERS[1..], "settings").await?, vec![None; 4]);
        for asked in oracle.asked() {
            let signed = [asked.header("starling-timestamp")?.as_bytes(), b".", &asked.body].concat();
            assert_eq!(
                asked.header("starling-signature")?,
                format!("v1={}", hmac(TOKEN.as_bytes(), &signed))
            );
            assert_eq!(asked.uri, "/gate");
            let body: Value = serde_json::from_slice(&asked.body)?;
            let rollout = status.rollout.as_ref().context("a rollout")?;
            let told = json!({
                "namespace": NAMESPACE, "group": scene.name, "rollout": rollout.id, "release": rollout.release,
                "revisions": rollout.revisions, "direction": "Forward", "stage": "canary",
                "list": "afterStageTasks", "task": 0,
                "startTime": last_task(&status).context("the task")?.start_time,
                "clusters": {"total": 1, "updated": 1, "failed": 0},
            });
            assert_eq!(body, told);
        }
        oracle.answers(200, json!({"result": "Passed"}));
        scene.succeeded(&first).await?;
        assert_eq!(oracle.keys()?.len(), 1, "one gate, one key");

        // The gate of another rollout is another one.
        let second = scene.commit(&[("settings", "two")])?;
        scene.succeeded(&second).await?;
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("two", 5));
        assert_eq!(oracle.keys()?.len(), 2);
        Ok(())
    })
}

#[test]
fn a_webhook_that_fails_stops_the_rollout_until_it_is_tried_again() -> Result<()> {
    along("failing", async |scene| {
        let (oracle, url) =
            Oracle::start(200, json!({"result": "Failed", "message": "3 of 9 tests"})).await?;
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
            oracle.asked().len(),
            1,
            "what has failed is not asked again by itself"
        );
        assert_eq!(scene.values(&MEMBERS[1..], "settings").await?, vec![None; 4]);
        oracle.answers(204, Value::Null);
        say(
            scene,
            &["retry", scene.name, "--stage", "canary", "--reason", "flaky"],
        )
        .await?;
        scene.succeeded(&first).await?;
        assert_eq!(oracle.keys()?.len(), 2, "the gate began anew");
        Ok(())
    })
}

/// An answer as the page "HTTP API" of Prometheus' documentation shows it.
fn vector(value: &str) -> Value {
    json!({"status": "success", "data": {"resultType": "vector", "result": [
        {"metric": {"__name__": "errors", "job": "shop"}, "value": [1_435_781_451.781, value]}]}})
}

#[test]
fn a_metric_is_queried_until_its_test_is_true() -> Result<()> {
    along("measured", async |scene| {
        let (oracle, url) = Oracle::start(200, vector("0.5")).await?;
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
        for asked in oracle.asked() {
            assert_eq!(asked.uri, "/prometheus/api/v1/query");
            assert_eq!(asked.header("authorization")?, format!("Bearer {TOKEN}"));
            assert_eq!(&asked.body[..], b"query=errors%7Bjob%3D%22shop%22%7D");
        }
        // What a server repeats of what it was signed in with does not get into status.
        oracle.answers(
            503,
            json!({"status": "error", "errorType": "timeout", "error": format!("not for {TOKEN}")}),
        );
        scene
            .status("it is in trouble", |status| {
                last_task(status).is_some_and(|task| task.message.contains("not for ***"))
            })
            .await?;
        oracle.answers(200, vector("0.05"));
        scene.succeeded(&first).await?;
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("one", 5));
        Ok(())
    })
}

#[test]
fn a_test_that_makes_no_sense_is_said_before_anything_rolls() -> Result<()> {
    along("senseless", async |scene| {
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

/// The Jobs of a scene that have not ended.
async fn jobs(scene: &Scene) -> Result<Vec<Job>> {
    let jobs = scene.fleet().api::<Job>().list(&ListParams::default()).await?;
    let open = |job: &Job| {
        let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
        job.name_any().starts_with(&format!("{}-", scene.name))
            && conditions.is_none_or(|conditions| conditions.is_empty())
    };
    Ok(jobs.items.into_iter().filter(open).collect())
}

/// Waits until there is one Job that has not ended.
async fn job(scene: &Scene) -> Result<Job> {
    let found = wait::until(PATIENCE, format!("a Job of {}", scene.name), async || {
        let mut jobs = jobs(scene).await.map_err(|e| format!("{e:#}"))?;
        match jobs.len() {
            1 => jobs.pop().ok_or_else(|| "none".to_owned()),
            more => Err(format!("{more} Jobs")),
        }
    })
    .await?;
    Ok(found)
}

/// Ends a Job. There are neither nodes nor a controller of Jobs here: this is the status that the latter writes once the pods of
/// the Job have succeeded, or failed too often.
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
    along("running", async |scene| {
        let first = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        let pod = |policy: &str| json!({"spec": {policy: "Never", "containers": [{"name": "smoke", "image": "example.com/smoke:1"}]}});
        let task = |policy: &str, more: Value| {
            let mut task = json!({"type": "Job", "job": {"template": {
                "metadata": {"labels": {"team": "shop"}}, "spec": {"backoffLimit": 0, "template": pod(policy)}}}});
            if let (Some(task), Value::Object(more)) = (task.as_object_mut(), more) {
                task.extend(more);
            }
            json!({"afterStageTasks": [task]})
        };
        let retry = ["retry", scene.name, "--stage", "canary", "--reason", "mended"];

        // A field that the API server does not know is no Job.
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
        assert_ne!(passing.name_any(), failing.name_any(), "the gate began anew");
        end_job(scene, &passing, true).await?;
        scene.succeeded(&first).await?;

        // One that does not end in its time is deleted; what ended is kept.
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
        let overtaken = job(scene).await?;
        scene.commit(&[("settings", "four")])?;
        wait::until(PATIENCE, "the Job of the overtaken release is gone", async || {
            let found = scene.fleet().api::<Job>().get_opt(&overtaken.name_any()).await;
            let found = found.map_err(|e| e.to_string())?;
            found.map_or(Ok(()), |job| Err(format!("{:?}", job.status)))
        })
        .await?;
        Ok(())
    })
}

/// What a gate has begun goes on after a crash as the same gate.
#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_is_pending_is_asked_the_same_after_a_crash() -> Result<()> {
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
    let (oracle, url) = Oracle::start(200, json!({"result": "Pending"})).await?;
    let stage = json!({"name": "canary", "clusterSelector": {"matchLabels": {"stage": "canary"}},
        "afterStageTasks": [webhook(&url, "gates")]});
    let spec = json!({"clusterSelector": {}, "syncs": [{"name": "app", "sourceRef": {"name": "shop"}, "path": "./app"}],
        "rolloutStrategy": {"maxConcurrency": "100%", "stages": [stage]}});
    fleet.put_group("shop", spec).await?;
    let controller = fleet.controller(PROGRAM, &[])?;
    fleet.until("m1", "Ready", is_ready).await?;
    oracle.asked_more_than(1).await?;
    controller.kill9()?;
    let before = oracle.asked().len();
    let controller = fleet.controller(PROGRAM, &[])?;
    oracle.asked_more_than(before + 1).await?;
    assert_eq!(oracle.keys()?.len(), 1, "it is the same gate");
    oracle.answers(200, json!({"result": "Passed"}));
    fleet.rollout("shop", &commit, RolloutPhase::Succeeded).await?;
    assert_eq!(oracle.keys()?.len(), 1);
    drop(controller);
    Ok(())
}
