//! The cost of a write, in memory and with a data directory: `cargo bench -p starling-apiserver --bench writes`.
//!
//! Requests use HTTP over in-process streams, without TLS. Each client updates a ConfigMap of 1 KiB in a loop. The
//! data directory is created in `STARLING_BENCH_DIR`, by default in the temporary directory.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement is ended by what fails, and prints what it found"
)]

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use starling_apiserver::server::{Options, Server};

/// The duration of each case.
const CASE_DURATION: Duration = Duration::from_secs(3);
/// The number of concurrent clients, and of the clusters they share.
const CASES: [(usize, usize); 4] = [(1, 1), (8, 8), (64, 8), (64, 64)];

fn main() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let directory = std::env::var_os("STARLING_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let directory = directory.join(format!("starling-bench-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    println!("one synced append to a file: {:?}", sync_cost(&directory));
    for (clients, clusters) in CASES {
        let memory = runtime.block_on(measure(None, clients, clusters));
        let file = runtime.block_on(measure(Some(&directory), clients, clusters));
        println!("{clients} clients, {clusters} clusters: in memory {memory}; with a file {file}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

/// Returns the time of one disk sync, the lower bound of a commit.
fn sync_cost(directory: &Path) -> Duration {
    let mut file = File::create(directory.join("sync")).unwrap();
    let start = Instant::now();
    let count = 200;
    for _ in 0..count {
        file.write_all(&[0; 4096]).unwrap();
        file.sync_data().unwrap();
    }
    start.elapsed() / count
}

async fn measure(directory: Option<&Path>, clients: usize, clusters: usize) -> String {
    let server = match directory {
        Some(directory) => {
            let directory = directory.join(format!("{clients}-{clusters}"));
            Server::open(Options::default(), &directory).await.unwrap()
        }
        None => Server::start(Options::default()).unwrap(),
    };
    for cluster in 0..clusters {
        server.create_cluster(&format!("c{cluster}")).unwrap();
    }
    server.durable().await.unwrap();
    let start = Instant::now();
    let tasks: Vec<_> = (0..clients)
        .map(|client| {
            tokio::spawn(write(
                server.clone(),
                client,
                client % clusters,
                start + CASE_DURATION,
            ))
        })
        .collect();
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.unwrap());
    }
    let took = start.elapsed();
    server.close().await;
    times.sort();
    let at = |part: usize| times.get(times.len() * part / 100).copied().unwrap_or_default();
    let rate = times.len() as f64 / took.as_secs_f64();
    format!(
        "{rate:.0} writes/s, p50 {:.2} ms, p99 {:.2} ms",
        at(50).as_secs_f64() * 1e3,
        at(99).as_secs_f64() * 1e3
    )
}

/// Updates one object until the time is over; returns the latency of each write.
async fn write(server: Server, client: usize, cluster: usize, until: Instant) -> Vec<Duration> {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let handle = server.cluster(&format!("c{cluster}")).unwrap();
    let token = handle.token();
    let serving = server.clone();
    tokio::spawn(async move { serving.serve(theirs).await });
    let (mut sender, connection) = handshake(TokioIo::new(ours)).await.unwrap();
    tokio::spawn(connection);
    let maps = format!("/clusters/c{cluster}/api/v1/namespaces/default/configmaps");
    let one = format!("{maps}/w{client}");
    let mut times = Vec::new();
    let mut count = 0;
    while Instant::now() < until {
        let begun = Instant::now();
        let (method, path) = if count == 0 {
            ("POST", &maps)
        } else {
            ("PUT", &one)
        };
        send(&mut sender, method, path, &token, body(client, count)).await;
        times.push(begun.elapsed());
        count += 1;
    }
    times
}

fn body(client: usize, count: u64) -> String {
    format!(
        "{{\"metadata\":{{\"name\":\"w{client}\"}},\"data\":{{\"count\":\"{count}\",\"text\":\"{}\"}}}}",
        "x".repeat(1024)
    )
}

async fn send(sender: &mut SendRequest<Full<Bytes>>, method: &str, path: &str, token: &str, body: String) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "server")
        .header("authorization", format!("Bearer {token}"))
        .header("content-type", "application/json")
        .body(Full::from(body))
        .unwrap();
    // The connection may still be busy with the end of the last response.
    sender.ready().await.unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert!(response.status().is_success(), "{response:?}");
    response.into_body().collect().await.unwrap();
}
