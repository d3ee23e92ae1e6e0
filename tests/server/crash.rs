//! `kill -9` at random moments while many write: every answered write is there afterwards.

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
/// The longest time that writers have before the kill.
const LONGEST: u64 = 400;
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

/// The object of a writer, as far as the writer knows it.
#[derive(Debug, Clone, PartialEq)]
enum Known {
    Absent,
    /// What the server answered.
    Present(Value),
}

/// Writes one object again and again, and remembers what it was told.
#[derive(Debug)]
struct Writer {
    cluster: usize,
    name: String,
    /// The last answer.
    known: Known,
    /// What was asked for and not answered: the count in the object, or its deletion.
    asked: Option<Option<u64>>,
    count: u64,
}

impl Writer {
    fn path(&self) -> String {
        format!("/api/v1/namespaces/default/configmaps/{}", self.name)
    }

    /// Writes until the server is gone.
    async fn run(mut self, client: Client, answered: Arc<AtomicU64>) -> Self {
        loop {
            self.count += 1;
            let count = self.count;
            let body = json!({"metadata": {"name": self.name}, "data": {"count": count.to_string()}});
            let (method, path, body) = match (&self.known, count % 5) {
                (Known::Absent, _) => ("POST", "/api/v1/namespaces/default/configmaps".to_owned(), body),
                (_, 0) => ("DELETE", self.path(), Value::Null),
                _ => ("PUT", self.path(), body),
            };
            self.asked = Some((method != "DELETE").then_some(count));
            let Ok((code, object)) = send(&client, method, &path, &body).await else {
                return self;
            };
            assert!(code < 300, "{method} {path}: {object}");
            self.known = match method {
                "DELETE" => Known::Absent,
                _ => Known::Present(object),
            };
            self.asked = None;
            answered.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Compares what is there with what was answered.
    async fn check(&mut self, client: &Client) -> Result<()> {
        let (code, object) = send(client, "GET", &self.path(), &Value::Null).await?;
        let found = match code {
            200 => Known::Present(object),
            404 => Known::Absent,
            _ => anyhow::bail!("{code} {object}"),
        };
        let as_answered = found == self.known;
        let as_asked = match (&found, &self.asked) {
            (Known::Absent, Some(None)) => true,
            (Known::Present(object), Some(Some(count))) => {
                object["data"]["count"] == json!(count.to_string())
            }
            _ => false,
        };
        ensure!(as_answered || as_asked, "{self:?}: found {found:?}");
        (self.known, self.asked) = (found, None);
        Ok(())
    }

    fn revision(&self) -> u64 {
        let Known::Present(object) = &self.known else {
            return 0;
        };
        let revision = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        revision.parse().unwrap_or_default()
    }
}

/// Sends a request. The error is that of a server that is gone.
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
async fn killed_at_random_moments_every_answered_write_is_there() -> Result<()> {
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
            known: Known::Absent,
            asked: None,
            count: 0,
        })
        .collect();
    let answered = Arc::new(AtomicU64::new(0));
    let mut revisions = [0; CLUSTERS.len()];
    for round in 1..=rounds {
        let what = format!("round {round}, seed {seed}");
        let arguments = ["--no-controller", "--cluster", "c1", "--cluster", "c2"];
        if round > 1 && random.below(4) == 0 {
            // Also while it comes back. The moment is the point: nothing is waited for here.
            world.launch(&arguments)?;
            tokio::time::sleep(Duration::from_millis(random.below(LONGEST))).await;
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
                tokio::spawn(writer.run(client, Arc::clone(&answered)))
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(random.below(LONGEST))).await;
        world.kill()?;
        for task in tasks {
            let writer = task.await?;
            let last = &mut revisions[writer.cluster];
            *last = writer.revision().max(*last);
            writers.push(writer);
        }
    }
    let answered = answered.load(Ordering::Relaxed);
    ensure!(
        answered > u64::from(rounds),
        "{answered} writes were answered: nothing was tried"
    );
    eprintln!("{rounds} kills, {answered} writes were answered");
    Ok(())
}
