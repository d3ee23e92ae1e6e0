//! Many clusters in one process.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};
use starling_apiserver::server::{ClusterHandle, Options, Server};
use starling_apiserver::verbs::{self, PatchBody, Target, Validation, Write};

use crate::world::until;

/// Returns the resident memory of this process in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Set in a process that runs only one test.
const RUN_ALONE: &str = "STARLING_TEST_ALONE";

/// Returns whether this process runs only this test. Otherwise it runs such a process, which must succeed: memory
/// that other tests allocate would distort the measurement.
fn is_alone(test: &str) -> bool {
    if std::env::var_os(RUN_ALONE).is_some() {
        return true;
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(RUN_ALONE, "1")
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success(), "{text}");
    // A filter that matches no test would succeed too.
    assert!(text.contains("1 passed"), "{text}");
    false
}

/// The promise of the project: an idle empty cluster costs at most 64 KiB.
#[tokio::test]
async fn an_empty_cluster_uses_little_memory() {
    if !is_alone("many::an_empty_cluster_uses_little_memory") {
        return;
    }
    let server = Server::start(Options::default()).unwrap();
    // The first cluster allocates what all clusters share.
    server.create_cluster("first").unwrap();
    let before = resident();
    for number in 0..500 {
        server.create_cluster(&format!("c{number}")).unwrap();
    }
    let each = (resident() - before) / 500;
    println!("{each} KiB for each empty cluster");
    assert!(each <= 64, "{each} KiB for each cluster");
}

/// Applies an object as a controller does.
fn apply(cluster: &ClusterHandle, group: &str, plural: &str, name: &str, config: Value) {
    let mut state = cluster.cluster().state();
    let resource = state.registry.get(group, plural).unwrap();
    let target = Target {
        version: Arc::clone(&resource.versions[0]),
        resource,
        namespace: "default".to_owned(),
        name: name.to_owned(),
        subresource: String::new(),
    };
    let write = Write {
        manager: "starling",
        user: "test",
        uid: "",
        groups: &[],
        extra: &starling_apiserver::write::NO_EXTRA,
        dry_run: false,
        validation: Validation::Strict,
        force: true,
        now: Timestamp::UNIX_EPOCH,
        subresource: "",
    };
    verbs::patch(&mut state, &target, PatchBody::Apply(config), &[], &write).unwrap();
}

/// Applies twenty objects of typical size.
fn fill(cluster: &ClusterHandle, revision: usize) {
    for number in 0..10 {
        let name = format!("web-{number}");
        let labels = json!({"app": name, "starling.dev/sync": "shop"});
        apply(
            cluster,
            "apps",
            "deployments",
            &name,
            json!({
                "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": labels},
                "spec": {"replicas": 2, "selector": {"matchLabels": {"app": name}}, "template": {"metadata": {"labels": labels},
                    "spec": {"containers": [{"name": "web", "image": format!("nginx:{revision}"), "ports": [{"containerPort": 80}],
                        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}, "env": [{"name": "A", "value": "b"}]}]}}},
            }),
        );
        apply(
            cluster,
            "",
            "configmaps",
            &name,
            json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels},
                "data": {"settings": format!("colour: {revision}\n").repeat(40)},
            }),
        );
    }
}

/// 5,000 clusters with 20 objects each fit in 2 GiB, after a first apply and a change of all objects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_with_twenty_objects_fits_in_400_kib() {
    if !is_alone("many::a_cluster_with_twenty_objects_fits_in_400_kib") {
        return;
    }
    let server = Server::start(Options::default()).unwrap();
    let clusters: Vec<_> = (0..100)
        .map(|number| server.create_cluster(&format!("c{number}")).unwrap())
        .collect();
    fill(&clusters[0], 1);
    let before = resident();
    for revision in 1..=2 {
        for cluster in &clusters[1..] {
            fill(cluster, revision);
            cluster.cluster().schedule();
        }
        for cluster in &clusters[1..] {
            until("all healthy", || async {
                let stored = cluster.stored("deployments.apps", "default/web-9")?.read();
                (stored["status"]["availableReplicas"] == 2).then_some(())
            })
            .await;
        }
    }
    let each = (resident() - before) / 99;
    println!("{each} KiB for each cluster of twenty objects");
    assert!(each <= 400, "{each} KiB for each cluster");
}
