//! The server under a simulated network and clock: the same seed gives the same history, byte for byte.

#![expect(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its own functions too"
)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use serde_json::{Value, json};
use starling_apiserver::controllers::Health;
use starling_apiserver::faults::{Effect, Fault};
use starling_apiserver::journal::Keep;
use starling_apiserver::server::{Options, Server, TokioClock};
use turmoil::net::{TcpListener, TcpStream};

const SECRET: [u8; 32] = [7; 32];

fn start() -> Server {
    let options = Options {
        seed: 42,
        secret: Some(SECRET),
        clock: Arc::new(TokioClock::starting(
            Timestamp::from_second(1_800_000_000).unwrap(),
        )),
        journal: Keep::Everything,
        health: Health::After(jiff::SignedDuration::from_secs(30)),
        url: Some("http://server:80".to_owned()),
        ..Options::default()
    };
    Server::start(options).unwrap()
}

/// Sends a request over its own connection; `None` if the connection ends without a response.
async fn send(method: &str, path: &str, token: &str, body: Value) -> Option<(u16, Value)> {
    let stream = TcpStream::connect(("server", 80)).await.ok()?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .ok()?;
    tokio::spawn(connection);
    let request = http::Request::builder()
        .method(method)
        .uri(format!("/clusters/member{path}"))
        .header("host", "server")
        .header(
            "content-type",
            if method == "PATCH" {
                "application/apply-patch+yaml"
            } else {
                "application/json"
            },
        )
        .header("authorization", format!("Bearer {token}"))
        .body(Full::new(Bytes::from(body.to_string())))
        .unwrap();
    let answer = sender.send_request(request).await.ok()?;
    let code = answer.status().as_u16();
    let bytes = answer.into_body().collect().await.ok()?.to_bytes();
    Some((code, serde_json::from_slice(&bytes).unwrap_or_default()))
}

fn deployment(image: usize) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": 2,
        "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": format!("nginx:{image}")}]}}}})
}

/// Runs three revisions over a network that loses responses, each until it is healthy.
fn run(seed: u64) -> (Vec<String>, Duration) {
    let mut simulation = turmoil::Builder::new()
        .rng_seed(seed)
        .simulation_duration(Duration::from_secs(600))
        .tick_duration(Duration::from_millis(20))
        .build();
    let servers: Arc<Mutex<Option<Server>>> = Arc::default();
    let journal = Arc::clone(&servers);
    simulation.host("server", move || {
        let servers = Arc::clone(&servers);
        async move {
            let server = start();
            let cluster = server.create_cluster("member")?;
            cluster
                .faults()
                .add(Fault::always(Effect::LoseResponse).on(&["patch"]).one_in(3));
            cluster.faults().add(
                Fault::always(Effect::Latency(Duration::from_millis(700)))
                    .on(&["get"])
                    .one_in(4),
            );
            *servers.lock().unwrap() = Some(server.clone());
            let listener = TcpListener::bind(("0.0.0.0", 80)).await?;
            loop {
                let (stream, _) = listener.accept().await?;
                let server = server.clone();
                tokio::spawn(async move { server.serve(stream).await });
            }
        }
    });
    simulation.client("client", async move {
        let token = token();
        let path = "/apis/apps/v1/namespaces/default/deployments/web";
        for revision in 1..=3 {
            while send(
                "PATCH",
                &format!("{path}?fieldManager=test&force=true"),
                &token,
                deployment(revision),
            )
            .await
            .is_none_or(|(code, _)| code >= 300)
            {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            loop {
                let answer = send("GET", path, &token, Value::Null).await;
                let healthy = answer.is_some_and(|(_, object)| {
                    object["status"]["observedGeneration"] == object["metadata"]["generation"]
                        && object["status"]["availableReplicas"] == 2
                });
                if healthy {
                    break;
                }
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
        }
        Ok(())
    });
    simulation.run().unwrap();
    let elapsed = simulation.elapsed();
    let server = journal.lock().unwrap().take().unwrap();
    let cluster = server.cluster("member").unwrap();
    let history = cluster
        .journal()
        .iter()
        .map(|entry| {
            let object = entry.object.read();
            format!(
                "{} {} {:?} {} {object}",
                entry.number,
                entry.time,
                entry.verb,
                entry.key()
            )
        })
        .filter(|line| !line.contains("BEGIN CERTIFICATE"))
        .collect();
    (history, elapsed)
}

/// Returns the token that a server with this secret accepts.
fn token() -> String {
    start()
        .create_cluster("member")
        .map(|cluster| cluster.token())
        .unwrap()
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let (first, elapsed) = run(1);
    let images: Vec<_> = first.iter().filter(|line| line.contains("default/web")).collect();
    assert!(
        images.len() >= 9,
        "three revisions, each seen and healthy: {images:#?}"
    );
    assert!(
        elapsed >= Duration::from_secs(90),
        "health takes its time, in simulated time: {elapsed:?}"
    );
    let (again, _) = run(1);
    assert_eq!(first, again);
}
