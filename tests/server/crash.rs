//! `kill -9` at random times during many writes: every acknowledged write exists afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

use crate::world::World;

/// Rounds unless `STARLING_CRASH_ROUNDS` says otherwise.
const ROUNDS: u32 = 20;
/// The maximum time of writers before the kill.
const MAX_DELAY: u64 = 400;
const CLUSTERS: [&str; 3] = ["management", "c1", "c2"];
const WRITERS: usize = 12;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % limit
    }
}

/// The state of a writer's object, as the writer knows it.
#[derive(Debug, Clone, PartialEq)]
enum State {
    Absent,
    /// The last response of the server.
    Present(Value),
}

/// Writes one object repeatedly, and remembers the responses.
#[derive(Debug)]
struct Writer {
    cluster: usize,
    name: String,
    /// The last response.
    state: State,
    /// The unconfirmed write: the count in the object, or its deletion.
    pending: Option<Option<u64>>,
    count: u64,
}

impl Writer {
    fn path(&self) -> String {
        format!("/api/v1/namespaces/default/configmaps/{}", self.name)
    }

    /// Writes until the server is killed.
    async fn run(mut self, client: Client, acknowledged: Arc<AtomicU64>) -> Self {
        loop {
            self.count += 1;
            let count = self.count;
            let body = json!({"metadata": {"name": self.name}, "data": {"count": count.to_string()}});
            let (method, path, body) = match (&self.state, count % 5) {
                (State::Absent, _) => ("POST", "/api/v1/namespaces/default/configmaps".to_owned(), body),
                (_, 0) => ("DELETE", self.path(), Value::Null),
                _ => ("PUT", self.path(), body),
            };
            self.pending = Some((method != "DELETE").then_some(count));
            let Ok((code, object)) = send(&client, method, &path, &body).await else {
                return self;
            };
            assert!(code < 300, "{method} {path}: {object}");
            self.state = match method {
                "DELETE" => State::Absent,
                _ => State::Present(object),
            };
            self.pending = None;
            acknowledged.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Compares the object on the server with the last response.
    async fn check(&mut self, client: &Client) -> Result<()> {
        let (code, object) = send(client, "GET", &self.path(), &Value::Null).await?;
        let found = match code {
            200 => State::Present(object),
            404 => State::Absent,
            _ => anyhow::bail!("{code} {object}"),
        };
        let is_acknowledged = found == self.state;
        let is_pending = match (&found, &self.pending) {
            (State::Absent, Some(None)) => true,
            (State::Present(object), Some(Some(count))) => {
                object["data"]["count"] == json!(count.to_string())
            }
            _ => false,
        };
        ensure!(is_acknowledged || is_pending, "{self:?}: found {found:?}");
        (self.state, self.pending) = (found, None);
        Ok(())
    }

    fn revision(&self) -> u64 {
        let State::Present(object) = &self.state else {
            return 0;
        };
        let revision = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        revision.parse().unwrap_or_default()
    }
}

/// Sends a request. Fails if the server is killed.
async fn send(client: &Client, method: &str, path: &str, body: &Value) -> Result<(u16, Value)> {
    let bytes = if body.is_null() {
        Vec::new()
    } else {
        body.to_string().into_bytes()
    };
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json")
        .body(Body::from(bytes))?;
    let response = client.send(request).await?;
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await?.to_bytes();
    Ok((code, serde_json::from_slice(&bytes)?))
}

async fn clients(world: &World) -> Result<Vec<Client>> {
    let kubeconfig = Kubeconfig::read_from(world.kubeconfig())?;
    let mut clients = Vec::new();
    for cluster in CLUSTERS {
        let options = KubeConfigOptions {
            context: Some(cluster.to_owned()),
            ..KubeConfigOptions::default()
        };
        let mut config = kube::Config::from_custom_kubeconfig(kubeconfig.clone(), &options).await?;
        config.default_retry = false;
        clients.push(Client::try_from(config)?);
    }
    Ok(clients)
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn random_kills_lose_no_acknowledged_write() -> Result<()> {
    let seed = match setting("STARLING_CRASH_SEED") {
        Some(seed) => seed,
        None => u64::try_from(jiff::Timestamp::now().as_microsecond())?,
    };
    let rounds = setting("STARLING_CRASH_ROUNDS").map_or(Ok(ROUNDS), u32::try_from)?;
    eprintln!("STARLING_CRASH_SEED={seed} STARLING_CRASH_ROUNDS={rounds}");
    let mut random = Random(seed);
    let mut world = World::new()?;
    let mut writers: Vec<Writer> = (0..WRITERS)
        .map(|index| Writer {
            cluster: index % CLUSTERS.len(),
            name: format!("w{index}"),
            state: State::Absent,
            pending: None,
            count: 0,
        })
        .collect();
    let acknowledged = Arc::new(AtomicU64::new(0));
    let mut revisions = [0; CLUSTERS.len()];
    for round in 1..=rounds {
        let what = format!("round {round}, seed {seed}");
        let arguments = ["--no-controller", "--cluster", "c1", "--cluster", "c2"];
        if round > 1 && random.below(4) == 0 {
            // Also during the restart. The time of the kill is random, so this does not wait for a condition.
            world.launch(&arguments)?;
            tokio::time::sleep(Duration::from_millis(random.below(MAX_DELAY))).await;
            world.kill()?;
        }
        world.start(&arguments).await.context(what.clone())?;
        let clients = clients(&world).await?;
        for writer in &mut writers {
            let client = clients.get(writer.cluster).context("client")?;
            writer.check(client).await.context(what.clone())?;
        }
        for (place, cluster) in CLUSTERS.iter().enumerate() {
            let revision = world.revision(cluster).await?;
            ensure!(
                revision >= revisions[place],
                "{what}: {cluster} went back to {revision}"
            );
        }
        let tasks: Vec<_> = writers
            .drain(..)
            .map(|writer| {
                let client = clients[writer.cluster].clone();
                tokio::spawn(writer.run(client, Arc::clone(&acknowledged)))
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(random.below(MAX_DELAY))).await;
        world.kill()?;
        for task in tasks {
            let writer = task.await?;
            let last = &mut revisions[writer.cluster];
            *last = writer.revision().max(*last);
            writers.push(writer);
        }
    }
    let acknowledged = acknowledged.load(Ordering::Relaxed);
    ensure!(
        acknowledged > u64::from(rounds),
        "only {acknowledged} writes were acknowledged"
    );
    eprintln!("{rounds} kills, {acknowledged} writes were acknowledged");
    Ok(())
}
