//! The program with clusters that send false, slow, oversized or malformed responses.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use kube::ResourceExt;
use serde_json::{Value, json};
use starling_api::{Cluster, REQUESTED_AT, SyncResource};
use starling_testkit::fleet::TIMEOUT;
use starling_testkit::{
    Fleet, FleetOptions, GitRepo, HOSTILE_TOKEN, HostileServer, Process, ReceivedRequest, Reply, program,
    wait,
};

use crate::world::{config_map, is_ready, problems, sync_ready};

/// Part of every hostile response; no status or log may contain it.
const CANARY: &str = "CANARY-of-the-answer";
/// Objects of the application: more than the concurrent requests to a member.
const OBJECTS: usize = 8;

struct Scene {
    /// The first field, so that the controller stops before its clusters.
    controller: Process,
    fleet: Fleet,
    repo: GitRepo,
    servers: BTreeMap<&'static str, HostileServer>,
}

impl Scene {
    /// Starts one real member, and a group over all clusters.
    async fn start() -> Result<Self> {
        let fleet = Fleet::start(FleetOptions {
            members: 1,
            ..FleetOptions::default()
        })
        .await?;
        fleet.add_cluster("m1", &[]).await?;
        let controller = fleet.controller(program(), &[])?;
        fleet.until::<Cluster>("m1", "Ready", is_ready).await?;
        let scene = Self {
            controller,
            fleet,
            repo: GitRepo::init()?,
            servers: BTreeMap::new(),
        };
        scene.commit("v1")?;
        scene
            .fleet
            .put_source("s", &scene.repo.url(), json!({"branch": "main"}))
            .await?;
        let entry =
            json!({"name": "app", "sourceRef": {"name": "s"}, "path": "./app", "retryInterval": "1s"});
        let strategy = json!({"maxConcurrency": "100%"});
        let spec = json!({"clusterSelector": {}, "syncs": [entry], "rolloutStrategy": strategy});
        scene.fleet.put_group("g", spec).await?;
        scene.until_real_member_has("v1").await?;
        Ok(scene)
    }

    fn commit(&self, value: &str) -> Result<()> {
        let files: Vec<(String, String)> = (0..OBJECTS)
            .map(|n| (format!("app/{n}.yaml"), config_map(&format!("object-{n}"), value)))
            .collect();
        let files: Vec<_> = files
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()))
            .collect();
        self.repo.commit(&files, "change")?;
        Ok(())
    }

    /// Waits until the real member has a value in every object.
    async fn until_real_member_has(&self, value: &str) -> Result<()> {
        wait::until(TIMEOUT, format!("m1 has {value}"), async || {
            for n in 0..OBJECTS {
                let data = self
                    .fleet
                    .config_map("m1", "default", &format!("object-{n}"))
                    .await;
                let found = data.map_err(|e| e.to_string())?;
                let found = found.and_then(|data| data.get("value").cloned());
                if found.as_deref() != Some(value) {
                    return Err(format!("object-{n}: {found:?}"));
                }
            }
            Ok(())
        })
        .await?;
        Ok(())
    }

    async fn add(
        &mut self,
        name: &'static str,
        script: impl Fn(&ReceivedRequest) -> Option<Reply> + Send + Sync + 'static,
    ) -> Result<()> {
        let server = HostileServer::start(script).await?;
        self.fleet
            .add_cluster_at(name, &server.kubeconfig_yaml(), &[])
            .await?;
        self.servers.insert(name, server);
        Ok(())
    }

    /// Waits until the Sync of a cluster reports a problem, and returns its status.
    async fn until_problem(&self, name: &str) -> Result<Value> {
        let sync = format!("g-app-{name}");
        let until_problem = |sync: &SyncResource| {
            let (status, reason) = sync_ready(sync);
            !["True", ""].contains(&status.as_str()) && reason != "AwaitingAdmission"
        };
        let what = format!("{sync}: trouble");
        let found = wait::until(TIMEOUT, what, async || {
            let found = self
                .fleet
                .get::<SyncResource>(&sync)
                .await
                .map_err(|e| e.to_string())?;
            if until_problem(&found) {
                Ok(found)
            } else {
                Err(format!("{:?}", found.status))
            }
        })
        .await?;
        Ok(serde_json::to_value(found.status)?)
    }

    /// Kilobytes of the program's memory, by the field of `/proc/PID/status`.
    fn memory(&self, field: &str) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.controller.pid()))?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
            .context("the field")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }

    /// Resets the peak of the kernel's memory counter; returns the current use.
    fn reset_peak(&self) -> Result<u64> {
        std::fs::write(format!("/proc/{}/clear_refs", self.controller.pid()), "5")?;
        self.memory("VmRSS")
    }

    /// Asserts that the program runs, and that its log contains no response.
    fn assert_nothing_leaked(&self) -> Result<()> {
        assert!(self.controller.exit_status()?.is_none(), "the program has ended");
        let log = std::fs::read_to_string(self.fleet.log())?;
        for text in [CANARY, HOSTILE_TOKEN, "panicked"] {
            assert!(!log.contains(text), "{text} in the log");
        }
        let max_line = log.lines().map(str::len).max().unwrap_or(0);
        assert!(max_line < 4_000, "a line of {max_line} bytes in the log");
        Ok(())
    }
}

fn is_object(request: &ReceivedRequest) -> bool {
    request.name().starts_with("object-")
}

fn is_list(request: &ReceivedRequest) -> bool {
    request.query.contains("labelSelector")
}

fn head(fields: &str) -> Bytes {
    format!("HTTP/1.1 200 OK\r\n{fields}\r\n").into()
}

fn megabyte() -> Bytes {
    Bytes::from(CANARY.repeat((1 << 20) / CANARY.len()))
}

#[tokio::test(flavor = "multi_thread")]
async fn t66_invalid_responses_of_one_cluster_do_not_affect_others() -> Result<()> {
    let mut scene = Scene::start().await?;
    let invalid_replies: [(&str, Reply); 8] = [
        ("noise", Reply::Raw(vec![0xd7; 4096].into())),
        (
            "html",
            Reply::Answer(
                200,
                "Content-Type: text/html\r\n".into(),
                format!("<p>{CANARY}").into(),
            ),
        ),
        (
            "truncated",
            Reply::text(200, format!("{{\"metadata\":{{\"name\":\"{CANARY}")),
        ),
        (
            "kind",
            Reply::json(
                200,
                &json!({"kind": "Pod", "metadata": {"name": CANARY, "uid": "u", "resourceVersion": "1"}}),
            ),
        ),
        (
            "failure",
            Reply::json(
                200,
                &json!({"kind": "Status", "status": "Failure", "message": CANARY}),
            ),
        ),
        ("deep", Reply::text(200, "[".repeat(100_000))),
        (
            "redirect",
            Reply::Answer(
                307,
                format!("Location: https://127.0.0.1:1/{CANARY}\r\n"),
                Bytes::new(),
            ),
        ),
        ("silent", Reply::Stall(Bytes::new())),
    ];
    for (name, reply) in invalid_replies.clone() {
        scene
            .add(name, move |request| is_object(request).then(|| reply.clone()))
            .await?;
    }
    // A server that is not an API server from the first request on.
    scene
        .add("stranger", |_| {
            Some(Reply::text(200, format!("{{\"{CANARY}\":1}}")))
        })
        .await?;
    for (name, _) in &invalid_replies {
        let status = scene.until_problem(name).await?.to_string();
        assert!(
            !status.contains(CANARY) && status.len() < 16_384,
            "{name}: {status}"
        );
    }
    scene
        .fleet
        .until("stranger", "NotAnAPIServer", |cluster: &Cluster| {
            let conditions = cluster.status.as_ref().map(|status| status.conditions.as_slice());
            crate::world::ready(conditions.unwrap_or_default()).1 == "NotAnAPIServer"
        })
        .await?;
    scene.commit("v2")?;
    scene.until_real_member_has("v2").await?;
    let status = scene
        .fleet
        .group_status("g", "the real one is done", |status| status.clusters.updated == 1)
        .await?;
    assert!(!problems(&status).contains_key("m1"), "{status:?}");
    assert!(!serde_json::to_string(&status)?.contains(CANARY));
    // Objects with invalid responses are not recorded, and nothing is deleted.
    for (name, server) in &scene.servers {
        assert!(
            server.requests().iter().all(|request| request.method != "DELETE"),
            "{name}"
        );
    }
    scene.assert_nothing_leaked()
}

/// Limits of the reliability plan.
const PER_CLUSTER_KIB: u64 = 64 << 10;
const IN_ALL_KIB: u64 = 256 << 10;

#[tokio::test(flavor = "multi_thread")]
async fn t67_floods_are_cut_off_and_use_little_memory() -> Result<()> {
    let mut scene = Scene::start().await?;
    let at_once = Duration::ZERO;
    let chunked = head("Transfer-Encoding: chunked\r\n");
    let many_values = Reply::text(200, format!("[{}0]", "{},".repeat(1_300_000)));
    let objects: [(&'static str, Reply); 6] = [
        ("bodies", Reply::Forever(head(""), megabyte(), at_once)),
        (
            "chunks",
            Reply::Forever(chunked, "5\r\n     \r\n".into(), at_once),
        ),
        (
            "heads",
            Reply::Forever(
                "HTTP/1.1 200 OK\r\n".into(),
                format!("X-A: {CANARY}\r\n").into(),
                at_once,
            ),
        ),
        (
            "drips",
            Reply::Forever(
                head("Content-Length: 9999999\r\n"),
                " ".into(),
                Duration::from_millis(50),
            ),
        ),
        (
            "refusals",
            Reply::Forever("HTTP/1.1 500 Oops\r\n\r\n".into(), megabyte(), at_once),
        ),
        ("values", many_values),
    ];
    let first = scene.reset_peak()?;
    let mut names = Vec::new();
    for (name, reply) in objects {
        let before = scene.reset_peak()?;
        scene
            .add(name, move |request| is_object(request).then(|| reply.clone()))
            .await?;
        scene.until_problem(name).await?;
        let grown = scene.memory("VmHWM")?.saturating_sub(before);
        assert!(grown <= PER_CLUSTER_KIB, "{name}: {grown} KiB");
        names.push(name);
    }
    // An inventory with endless shards, and a list with endless pages.
    let before = scene.reset_peak()?;
    let part = format!("starling-inventory/v1 {}", "x".repeat(900_000));
    scene
        .add("inventory", move |request| {
            (request.is_inventory() && request.method == "GET").then(|| {
                let metadata = json!({"name": request.name(), "uid": "u", "resourceVersion": "1"});
                Reply::json(200, &json!({"metadata": metadata, "data": {"inventory": part}}))
            })
        })
        .await?;
    scene.until_problem("inventory").await?;
    let items: Vec<Value> = (0..500)
        .map(|n| {
            json!({"metadata": {"name": format!("{CANARY}-{n}"), "namespace": "default", "uid": "u",
            "resourceVersion": "1", "labels": {"a": "x".repeat(2_000)}}})
        })
        .collect();
    let page = json!({"metadata": {"continue": "again"}, "items": items}).to_string();
    scene
        .add("pages", move |request| {
            is_list(request).then(|| Reply::text(200, page.clone()))
        })
        .await?;
    scene
        .fleet
        .until("g-app-pages", "applied", |sync: &SyncResource| {
            sync_ready(sync).0 == "True"
        })
        .await?;
    let reconcile_request = json!({"metadata": {"annotations": {REQUESTED_AT: "now"}}});
    scene
        .fleet
        .patch::<SyncResource>("g-app-pages", reconcile_request)
        .await?;
    scene.until_problem("pages").await?;
    let grown = scene.memory("VmHWM")?.saturating_sub(before);
    assert!(grown <= PER_CLUSTER_KIB, "inventory and pages: {grown} KiB");

    // All of them again, concurrently.
    scene.reset_peak()?;
    scene.commit("v2")?;
    scene.until_real_member_has("v2").await?;
    for sync in scene.fleet.syncs().await? {
        if names.iter().any(|name| sync.name_any().ends_with(name)) {
            let request = format!("{} again", sync.name_any());
            let reconcile_request = json!({"metadata": {"annotations": {REQUESTED_AT: request}}});
            scene
                .fleet
                .patch::<SyncResource>(&sync.name_any(), reconcile_request)
                .await?;
        }
    }
    let before: BTreeMap<_, _> = scene
        .servers
        .iter()
        .map(|(name, s)| (*name, s.requests().len()))
        .collect();
    wait::until(TIMEOUT, "bodies and values asked again", async || {
        ["bodies", "values", "refusals"]
            .iter()
            .all(|name| scene.servers[name].requests().len() > before[name])
    })
    .await?;
    let grown = scene.memory("VmHWM")?.saturating_sub(first);
    assert!(grown <= IN_ALL_KIB, "in all: {grown} KiB");
    scene.assert_nothing_leaked()
}

#[tokio::test(flavor = "multi_thread")]
async fn t68_nothing_is_deleted_on_a_lying_cluster_and_its_state_is_detected() -> Result<()> {
    let mut scene = Scene::start().await?;
    let empty = json!({"metadata": {}, "items": []});
    scene
        .add("liar", move |request| {
            is_list(request).then(|| Reply::json(200, &empty))
        })
        .await?;
    scene
        .fleet
        .until("g-app-liar", "applied", |sync: &SyncResource| {
            sync_ready(sync).0 == "True"
        })
        .await?;
    // The server accepted all objects and has none: a drift check finds them missing, and they are applied again.
    let patched = |scene: &Scene| {
        let request = scene.servers["liar"].requests();
        request
            .iter()
            .filter(|request| request.method == "PATCH" && is_object(request))
            .count()
    };
    assert_eq!(patched(&scene), OBJECTS);
    let reconcile_request = json!({"metadata": {"annotations": {REQUESTED_AT: "now"}}});
    scene
        .fleet
        .patch::<SyncResource>("g-app-liar", reconcile_request)
        .await?;
    wait::until(TIMEOUT, "applied again", async || patched(&scene) == 2 * OBJECTS).await?;
    assert!(
        scene.servers["liar"]
            .requests()
            .iter()
            .all(|request| request.method != "DELETE")
    );
    // Objects leave git: the lying server reports them as missing, and nothing is deleted there.
    let gone: Vec<String> = (1..OBJECTS).map(|n| format!("app/{n}.yaml")).collect();
    let gone: Vec<&str> = gone.iter().map(String::as_str).collect();
    scene.repo.remove(&gone, "fewer")?;
    wait::until(TIMEOUT, "pruned on the real member", async || {
        let remaining = scene.fleet.config_map("m1", "default", "object-1").await;
        remaining.ok().is_some_and(|remaining| remaining.is_none())
    })
    .await?;
    scene
        .fleet
        .group_status("g", "both done", |status| status.clusters.updated == 2)
        .await?;
    assert!(
        scene.servers["liar"]
            .requests()
            .iter()
            .all(|request| request.method != "DELETE")
    );
    scene.assert_nothing_leaked()
}
