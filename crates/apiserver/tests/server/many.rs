//! Many clusters in one process.

use serde_json::json;
use starling_apiserver::server::{Options, Server};

/// Memory of this process in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// What the project promises: an idle empty cluster costs at most 64 KiB.
#[tokio::test]
async fn an_empty_cluster_is_small() {
    let server = Server::start(Options::default()).unwrap();
    // What all clusters share is there after the first.
    server.create_cluster("first").unwrap();
    let before = resident();
    for number in 0..500 {
        server.create_cluster(&format!("c{number}")).unwrap();
    }
    let each = (resident() - before) / 500;
    assert!(each <= 64, "{each} KiB for each cluster");
    let _ = json!({});
}
