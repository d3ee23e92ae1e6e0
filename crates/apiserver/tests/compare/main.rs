//! The same requests to a real kube-apiserver and to the embedded one, and the answers compared.
//!
//! `cases/*.http` are files of steps, each a line: method, path, and a body in JSON. The form of the body follows from
//! the method; `PATCH-MERGE`, `PATCH-JSON`, `PATCH-STRATEGIC` and `APPLY` name it. `UNTIL` repeats a get until code and
//! a text in the answer are there, for what controllers do. A line that begins with `!` compares code and reason only:
//! after it stands why. What the servers make themselves (UIDs, revisions, times, addresses) is normalised.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, in its own functions too"
)]

mod normal;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use http::Request;
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value;
use starling_apiserver::controllers::Health;
use starling_apiserver::server::{Options, Server};
use starling_controlplane::{Assets, ControlPlanes};

/// One request.
struct Step {
    line: usize,
    method: &'static str,
    content_type: &'static str,
    path: String,
    body: String,
    /// What has to stand in the answer before it counts.
    until: Option<(u16, String)>,
    /// Whether only code and reason are compared.
    loose: bool,
}

struct Answer {
    code: u16,
    body: Value,
    warnings: Vec<String>,
}

fn read(text: &str) -> Vec<Step> {
    text.lines()
        .enumerate()
        .map(|(line, text)| (line + 1, text.trim()))
        .filter(|(_, text)| !text.is_empty() && !text.starts_with('#'))
        .map(|(line, text)| step(line, text))
        .collect()
}

fn step(line: usize, text: &str) -> Step {
    let (loose, text) = match text.strip_prefix('!') {
        Some(rest) => (
            true,
            rest.trim_start()
                .split_once("!!")
                .map_or(rest, |(step, _why)| step),
        ),
        None => (false, text),
    };
    let mut parts = text.trim().splitn(3, ' ');
    let method = parts.next().unwrap();
    let path = parts.next().unwrap_or_else(|| panic!("line {line}: no path"));
    let rest = parts.next().unwrap_or_default().trim().to_owned();
    let (method, content_type) = match method {
        "GET" | "UNTIL" => ("GET", ""),
        "DELETE" => ("DELETE", "application/json"),
        "POST" => ("POST", "application/json"),
        "PUT" => ("PUT", "application/json"),
        "APPLY" => ("PATCH", "application/apply-patch+yaml"),
        "PATCH-MERGE" => ("PATCH", "application/merge-patch+json"),
        "PATCH-JSON" => ("PATCH", "application/json-patch+json"),
        "PATCH-STRATEGIC" => ("PATCH", "application/strategic-merge-patch+json"),
        other => panic!("line {line}: what is {other}?"),
    };
    let until = text.trim().starts_with("UNTIL").then(|| {
        let (code, text) = rest.split_once(' ').unwrap_or((&rest, ""));
        (code.parse().expect("a code"), text.trim().to_owned())
    });
    Step {
        line,
        method,
        content_type,
        path: path.to_owned(),
        body: if until.is_some() { String::new() } else { rest },
        until,
        loose,
    }
}

async fn send(client: &Client, step: &Step) -> Answer {
    let mut request = Request::builder()
        .method(step.method)
        .uri(&step.path)
        .header("user-agent", "compare/1.0")
        .header("accept", "application/json");
    if !step.body.is_empty() {
        request = request.header("content-type", step.content_type);
    }
    let request = request.body(Body::from(step.body.clone().into_bytes())).unwrap();
    let response = client.send(request).await.unwrap();
    let code = response.status().as_u16();
    let warnings = response
        .headers()
        .get_all("warning")
        .iter()
        .map(|value| value.to_str().unwrap().to_owned())
        .collect();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let body = serde_json::from_slice(&bytes)
        .or_else(|_| events(&bytes))
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
    Answer { code, body, warnings }
}

/// The events of a watch, one on each line.
fn events(bytes: &[u8]) -> serde_json::Result<Value> {
    serde_json::Deserializer::from_slice(bytes)
        .into_iter::<Value>()
        .collect()
}

/// Sends a step, again and again if it waits for something.
async fn answer(client: &Client, step: &Step) -> Answer {
    let Some((code, text)) = &step.until else {
        return send(client, step).await;
    };
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        let answer = send(client, step).await;
        let there = answer.code == *code && answer.body.to_string().contains(text.as_str());
        if there || tokio::time::Instant::now() > deadline {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}

fn differences(step: &Step, real: &Answer, ours: &Answer, normal: &mut normal::Pair) -> Vec<String> {
    let mut differences = Vec::new();
    if step.until.is_some() {
        if real.code != ours.code {
            differences.push(format!("in the end code {} and here {}", real.code, ours.code));
        }
        return differences;
    }
    if real.code != ours.code {
        differences.push(format!("code {} and here {}", real.code, ours.code));
    }
    let (mut wanted, mut found) = normal.both(&real.body, &ours.body);
    if step.loose {
        wanted = wanted["reason"].clone();
        found = found["reason"].clone();
    } else if real.warnings != ours.warnings {
        differences.push(format!(
            "warnings {:?} and here {:?}",
            real.warnings, ours.warnings
        ));
    }
    normal::diff("", &wanted, &found, &mut differences);
    differences
}

async fn client(kubeconfig: &str) -> Client {
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig).unwrap();
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    config.read_timeout = Some(Duration::from_secs(70));
    Client::try_from(config).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_servers_answer_alike() {
    let options = starling_controlplane::Options {
        controller_manager_for: vec!["real".to_owned()],
        ..starling_controlplane::Options::default()
    };
    let planes = ControlPlanes::start(&Assets::find().unwrap(), &["real"], options)
        .await
        .unwrap();
    let real = client(&planes.get("real").unwrap().kubeconfig_yaml()).await;
    // The real controller manager of this test has no controllers of workloads.
    let options = Options {
        health: Health::Unattended,
        ..Options::default()
    };
    let server = Server::start(options).unwrap();
    let _listening = server.listen(([127, 0, 0, 1], 0).into()).await.unwrap();

    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compare/cases");
    let only = std::env::var("COMPARE_ONLY").unwrap_or_default();
    let mut files: BTreeMap<String, String> = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if name.contains(&only) {
            files.insert(name, std::fs::read_to_string(&path).unwrap());
        }
    }
    assert!(!files.is_empty(), "no cases");
    let (mut steps_done, mut failures) = (0, Vec::new());
    for (name, text) in &files {
        let cluster = server.create_cluster(name).unwrap();
        let ours = client(&cluster.kubeconfig()).await;
        let mut normal = normal::Pair::default();
        for step in read(text) {
            let (wanted, found) = tokio::join!(answer(&real, &step), answer(&ours, &step));
            let differences = differences(&step, &wanted, &found, &mut normal);
            steps_done += 1;
            if !differences.is_empty() {
                failures.push(format!(
                    "{name}.http:{} {} {}\n    {}",
                    step.line,
                    step.method,
                    step.path,
                    differences.join("\n    ")
                ));
            }
        }
    }
    eprintln!("{steps_done} steps in {} files compared", files.len());
    assert!(
        failures.is_empty(),
        "{} of {steps_done} steps differ (the real server's value stands first):\n{}",
        failures.len(),
        failures.join("\n")
    );
}
