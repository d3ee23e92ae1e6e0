//! The program beside clusters that lie, stall, flood or talk garbage.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use kube::ResourceExt;
use serde_json::{Value, json};
use starling_api::{Cluster, REQUESTED_AT, SyncResource};
use starling_testkit::fleet::PATIENCE;
use starling_testkit::{
    Asked, Fleet, FleetOptions, GitRepo, HOSTILE_TOKEN, HostileServer, Process, Trick, wait,
};

use crate::PROGRAM;
use crate::world::{config_map, is_ready, problems, sync_ready};

/// Stands in everything that a hostile server says, and must not stand in what is said about it.
const CANARY: &str = "CANARY-of-the-answer";
/// Objects of the application: more than are sent at the same time.
const OBJECTS: usize = 8;

struct Scene {
    /// The first field, so that it ends before the clusters that it works on.
    controller: Process,
    fleet: Fleet,
    repo: GitRepo,
    servers: BTreeMap<&'static str, HostileServer>,
}

impl Scene {
    /// One real member, and a group over all clusters.
    async fn start() -> Result<Self> {
        let fleet = Fleet::start(FleetOptions {
            members: 1,
            ..FleetOptions::default()
        })
        .await?;
        fleet.add_cluster("m1", &[]).await?;
        let controller = fleet.controller(PROGRAM, &[])?;
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
        scene.real_has("v1").await?;
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
    async fn real_has(&self, value: &str) -> Result<()> {
        wait::until(PATIENCE, format!("m1 has {value}"), async || {
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
        script: impl Fn(&Asked) -> Option<Trick> + Send + Sync + 'static,
    ) -> Result<()> {
        let server = HostileServer::start(script).await?;
        self.fleet
            .add_cluster_at(name, &server.kubeconfig_yaml(), &[])
            .await?;
        self.servers.insert(name, server);
        Ok(())
    }

    /// Waits until the Sync of a cluster tells of a trouble, and returns its status.
    async fn troubled(&self, name: &str) -> Result<Value> {
        let sync = format!("g-app-{name}");
        let troubled = |sync: &SyncResource| {
            let (status, reason) = sync_ready(sync);
            !["True", ""].contains(&status.as_str()) && reason != "AwaitingAdmission"
        };
        let what = format!("{sync}: trouble");
        let found = wait::until(PATIENCE, what, async || {
            let found = self
                .fleet
                .get::<SyncResource>(&sync)
                .await
                .map_err(|e| e.to_string())?;
            if troubled(&found) {
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

    /// Lets the kernel count the peak from here on; returns what is used now.
    fn reset_peak(&self) -> Result<u64> {
        std::fs::write(format!("/proc/{}/clear_refs", self.controller.pid()), "5")?;
        self.memory("VmRSS")
    }

    /// The program lives, and has repeated nothing of what it was told.
    fn nothing_was_repeated(&self) -> Result<()> {
        assert!(self.controller.exit_status()?.is_none(), "the program has ended");
        let log = std::fs::read_to_string(self.fleet.log())?;
        for text in [CANARY, HOSTILE_TOKEN, "panicked"] {
            assert!(!log.contains(text), "{text} in the log");
        }
        let longest = log.lines().map(str::len).max().unwrap_or(0);
        assert!(longest < 4_000, "a line of {longest} bytes in the log");
        Ok(())
    }
}

fn is_object(asked: &Asked) -> bool {
    asked.name().starts_with("object-")
}

fn is_list(asked: &Asked) -> bool {
    asked.query.contains("labelSelector")
}

fn head(fields: &str) -> Bytes {
    format!("HTTP/1.1 200 OK\r\n{fields}\r\n").into()
}

fn megabyte() -> Bytes {
    Bytes::from(CANARY.repeat((1 << 20) / CANARY.len()))
}

#[tokio::test(flavor = "multi_thread")]
async fn t66_garbage_of_one_cluster_is_its_own_error_and_its_neighbours_go_on() -> Result<()> {
    let mut scene = Scene::start().await?;
    let wrong: [(&str, Trick); 8] = [
        ("noise", Trick::Raw(vec![0xd7; 4096].into())),
        (
            "html",
            Trick::Answer(
                200,
                "Content-Type: text/html\r\n".into(),
                format!("<p>{CANARY}").into(),
            ),
        ),
        (
            "truncated",
            Trick::text(200, format!("{{\"metadata\":{{\"name\":\"{CANARY}")),
        ),
        (
            "kind",
            Trick::json(
                200,
                &json!({"kind": "Pod", "metadata": {"name": CANARY, "uid": "u", "resourceVersion": "1"}}),
            ),
        ),
        (
            "failure",
            Trick::json(
                200,
                &json!({"kind": "Status", "status": "Failure", "message": CANARY}),
            ),
        ),
        ("deep", Trick::text(200, "[".repeat(100_000))),
        (
            "redirect",
            Trick::Answer(
                307,
                format!("Location: https://127.0.0.1:1/{CANARY}\r\n"),
                Bytes::new(),
            ),
        ),
        ("silent", Trick::Stall(Bytes::new())),
    ];
    for (name, trick) in wrong.clone() {
        scene
            .add(name, move |asked| is_object(asked).then(|| trick.clone()))
            .await?;
    }
    // One that is none from the first request on.
    scene
        .add("stranger", |_| {
            Some(Trick::text(200, format!("{{\"{CANARY}\":1}}")))
        })
        .await?;
    for (name, _) in &wrong {
        let status = scene.troubled(name).await?.to_string();
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
    scene.real_has("v2").await?;
    let status = scene
        .fleet
        .group_status("g", "the real one is done", |status| status.clusters.updated == 1)
        .await?;
    assert!(!problems(&status).contains_key("m1"), "{status:?}");
    assert!(!serde_json::to_string(&status)?.contains(CANARY));
    // Whoever was wrong about an object has none recorded, and none deleted.
    for (name, server) in &scene.servers {
        assert!(
            server.asked().iter().all(|asked| asked.method != "DELETE"),
            "{name}"
        );
    }
    scene.nothing_was_repeated()
}

/// Bounds of the reliability plan.
const PER_CLUSTER_KIB: u64 = 64 << 10;
const IN_ALL_KIB: u64 = 256 << 10;

#[tokio::test(flavor = "multi_thread")]
async fn t67_floods_are_cut_and_cost_little_memory() -> Result<()> {
    let mut scene = Scene::start().await?;
    let at_once = Duration::ZERO;
    let chunked = head("Transfer-Encoding: chunked\r\n");
    let swarm = Trick::text(200, format!("[{}0]", "{},".repeat(1_300_000)));
    let objects: [(&'static str, Trick); 6] = [
        ("bodies", Trick::Forever(head(""), megabyte(), at_once)),
        (
            "chunks",
            Trick::Forever(chunked, "5\r\n     \r\n".into(), at_once),
        ),
        (
            "heads",
            Trick::Forever(
                "HTTP/1.1 200 OK\r\n".into(),
                format!("X-A: {CANARY}\r\n").into(),
                at_once,
            ),
        ),
        (
            "drips",
            Trick::Forever(
                head("Content-Length: 9999999\r\n"),
                " ".into(),
                Duration::from_millis(50),
            ),
        ),
        (
            "refusals",
            Trick::Forever("HTTP/1.1 500 Oops\r\n\r\n".into(), megabyte(), at_once),
        ),
        ("values", swarm),
    ];
    let first = scene.reset_peak()?;
    let mut names = Vec::new();
    for (name, trick) in objects {
        let before = scene.reset_peak()?;
        scene
            .add(name, move |asked| is_object(asked).then(|| trick.clone()))
            .await?;
        scene.troubled(name).await?;
        let grown = scene.memory("VmHWM")?.saturating_sub(before);
        assert!(grown <= PER_CLUSTER_KIB, "{name}: {grown} KiB");
        names.push(name);
    }
    // An inventory that always has one more part, and a list that always has one more page.
    let before = scene.reset_peak()?;
    let part = format!("starling-inventory/v1 {}", "x".repeat(900_000));
    scene
        .add("inventory", move |asked| {
            (asked.is_inventory() && asked.method == "GET").then(|| {
                let metadata = json!({"name": asked.name(), "uid": "u", "resourceVersion": "1"});
                Trick::json(200, &json!({"metadata": metadata, "data": {"inventory": part}}))
            })
        })
        .await?;
    scene.troubled("inventory").await?;
    let items: Vec<Value> = (0..500)
        .map(|n| {
            json!({"metadata": {"name": format!("{CANARY}-{n}"), "namespace": "default", "uid": "u",
            "resourceVersion": "1", "labels": {"a": "x".repeat(2_000)}}})
        })
        .collect();
    let page = json!({"metadata": {"continue": "again"}, "items": items}).to_string();
    scene
        .add("pages", move |asked| {
            is_list(asked).then(|| Trick::text(200, page.clone()))
        })
        .await?;
    scene
        .fleet
        .until("g-app-pages", "applied", |sync: &SyncResource| {
            sync_ready(sync).0 == "True"
        })
        .await?;
    let look = json!({"metadata": {"annotations": {REQUESTED_AT: "look"}}});
    scene.fleet.patch::<SyncResource>("g-app-pages", look).await?;
    scene.troubled("pages").await?;
    let grown = scene.memory("VmHWM")?.saturating_sub(before);
    assert!(grown <= PER_CLUSTER_KIB, "inventory and pages: {grown} KiB");

    // All of them once more, together.
    scene.reset_peak()?;
    scene.commit("v2")?;
    scene.real_has("v2").await?;
    for sync in scene.fleet.syncs().await? {
        if names.iter().any(|name| sync.name_any().ends_with(name)) {
            let asked = format!("{} again", sync.name_any());
            let look = json!({"metadata": {"annotations": {REQUESTED_AT: asked}}});
            scene.fleet.patch::<SyncResource>(&sync.name_any(), look).await?;
        }
    }
    let before: BTreeMap<_, _> = scene
        .servers
        .iter()
        .map(|(name, s)| (*name, s.asked().len()))
        .collect();
    wait::until(PATIENCE, "bodies and values asked again", async || {
        ["bodies", "values", "refusals"]
            .iter()
            .all(|name| scene.servers[name].asked().len() > before[name])
    })
    .await?;
    let grown = scene.memory("VmHWM")?.saturating_sub(first);
    assert!(grown <= IN_ALL_KIB, "in all: {grown} KiB");
    scene.nothing_was_repeated()
}

#[tokio::test(flavor = "multi_thread")]
async fn t68_a_cluster_that_lies_has_nothing_deleted_and_is_found_out() -> Result<()> {
    let mut scene = Scene::start().await?;
    let empty = json!({"metadata": {}, "items": []});
    scene
        .add("liar", move |asked| {
            is_list(asked).then(|| Trick::json(200, &empty))
        })
        .await?;
    scene
        .fleet
        .until("g-app-liar", "applied", |sync: &SyncResource| {
            sync_ready(sync).0 == "True"
        })
        .await?;
    // It took everything and has nothing: a look finds all of it missing, and applies it again.
    let patched = |scene: &Scene| {
        let asked = scene.servers["liar"].asked();
        asked
            .iter()
            .filter(|asked| asked.method == "PATCH" && is_object(asked))
            .count()
    };
    assert_eq!(patched(&scene), OBJECTS);
    let look = json!({"metadata": {"annotations": {REQUESTED_AT: "look"}}});
    scene.fleet.patch::<SyncResource>("g-app-liar", look).await?;
    wait::until(PATIENCE, "applied again", async || patched(&scene) == 2 * OBJECTS).await?;
    assert!(
        scene.servers["liar"]
            .asked()
            .iter()
            .all(|asked| asked.method != "DELETE")
    );
    // Objects leave git: those of the liar are gone, it says, and nothing is deleted there.
    let gone: Vec<String> = (1..OBJECTS).map(|n| format!("app/{n}.yaml")).collect();
    let gone: Vec<&str> = gone.iter().map(String::as_str).collect();
    scene.repo.remove(&gone, "fewer")?;
    wait::until(PATIENCE, "pruned on the real member", async || {
        let left = scene.fleet.config_map("m1", "default", "object-1").await;
        left.ok().is_some_and(|left| left.is_none())
    })
    .await?;
    scene
        .fleet
        .group_status("g", "both done", |status| status.clusters.updated == 2)
        .await?;
    assert!(
        scene.servers["liar"]
            .asked()
            .iter()
            .all(|asked| asked.method != "DELETE")
    );
    scene.nothing_was_repeated()
}
