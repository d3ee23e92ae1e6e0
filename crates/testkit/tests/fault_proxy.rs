//! Every fault with a real kube-apiserver, observed at the client and at the server.
//!
//! Needs the programs that `tests/controlplane/build.sh` builds, or `KUBEBUILDER_ASSETS`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "functions shared by the tests of a file are tests too"
)]

use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt;
use http::{Method, StatusCode};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use starling_controlplane::{Assets, ControlPlane, ControlPlanes, Options};
use starling_testkit::{Fault, FaultProxy, Match, Stage, wait};
use tokio::sync::Notify;

const SOON: Duration = Duration::from_secs(30);
/// Long enough for a response on this machine.
const SILENCE: Duration = Duration::from_millis(400);

/// A server, a proxy in front of it, a direct client, and a client through the proxy.
struct Fixture {
    planes: ControlPlanes,
    proxy: Arc<FaultProxy>,
    through: Api<ConfigMap>,
    direct: Api<ConfigMap>,
}

impl Fixture {
    async fn start() -> Self {
        let planes = ControlPlanes::start(&Assets::find().unwrap(), &["east"], Options::default())
            .await
            .unwrap();
        let east = planes.get("east").unwrap();
        let proxy = FaultProxy::start(&**east).await.unwrap();
        let through = Api::namespaced(proxy.client().await.unwrap(), "default");
        let direct = Api::namespaced(east.client().await.unwrap(), "default");
        Self {
            proxy: Arc::new(proxy),
            through,
            direct,
            planes,
        }
    }

    fn east(&self) -> &ControlPlane {
        self.planes.get("east").unwrap()
    }

    async fn apply(&self, name: &str, value: &str) -> kube::Result<ConfigMap> {
        let patch = Patch::Apply(config_map(name, value));
        self.through
            .patch(name, &PatchParams::apply("tester").force(), &patch)
            .await
    }

    async fn value(&self, name: &str) -> Option<String> {
        Some(self.direct.get_opt(name).await.unwrap()?.data?["key"].clone())
    }
}

fn config_map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(serde_json::json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"key": value},
    }))
    .unwrap()
}

fn code<T: std::fmt::Debug>(outcome: kube::Result<T>) -> u16 {
    match outcome.unwrap_err() {
        kube::Error::Api(status) => status.code,
        other => panic!("no response from a server: {other:?}"),
    }
}

/// Whether the client got no HTTP response at all.
fn is_broken<T>(outcome: &kube::Result<T>) -> bool {
    matches!(outcome, Err(kube::Error::HyperError(_) | kube::Error::Service(_)))
}

#[tokio::test]
async fn passes_reads_writes_errors_and_watches() {
    let f = Fixture::start().await;
    f.apply("a", "1").await.unwrap();
    assert_eq!(f.through.get("a").await.unwrap().data.unwrap()["key"], "1");
    assert_eq!(code(f.through.get("missing").await), 404);

    let version = f
        .through
        .list(&Default::default())
        .await
        .unwrap()
        .metadata
        .resource_version
        .unwrap();
    let mut events = f
        .through
        .watch(&WatchParams::default(), &version)
        .await
        .unwrap()
        .boxed();
    // Each event arrives while the watch is open: responses are not buffered.
    for step in ["2", "3"] {
        f.direct
            .patch(
                "a",
                &PatchParams::apply("other").force(),
                &Patch::Apply(config_map("a", step)),
            )
            .await
            .unwrap();
        let event = tokio::time::timeout(SOON, events.next())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        assert!(matches!(&event, WatchEvent::Modified(map) if map.data.as_ref().unwrap()["key"] == step));
    }
    f.through.delete("a", &DeleteParams::default()).await.unwrap();

    let requests = f.proxy.requests();
    let patch = requests.iter().find(|r| r.method == Method::PATCH).unwrap();
    assert_eq!(patch.path, "/api/v1/namespaces/default/configmaps/a");
    assert!(patch.query.contains("fieldManager=tester"));
    assert_eq!((patch.forwarded, patch.status), (true, Some(201)));
    assert!(requests.iter().any(|r| r.is_watch() && r.status == Some(200)));
    assert_eq!(f.proxy.count(&Method::GET, "/configmaps/missing"), 1);
    assert_eq!(f.proxy.counts()[&("DELETE".to_owned(), patch.path.clone())], 1);

    // A watch ends with its connection.
    let deleted = tokio::time::timeout(SOON, events.next())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert!(matches!(deleted, WatchEvent::Deleted(_)), "{deleted:?}");
    f.proxy.cut_connections();
    let end = tokio::time::timeout(SOON, events.next()).await.unwrap();
    assert!(!matches!(end, Some(Ok(_))), "{end:?}");
    assert_eq!(code(f.through.get("a").await), 404);
}

#[tokio::test]
async fn kubectl_works_through_the_proxy() {
    let f = Fixture::start().await;
    f.apply("a", "1").await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    std::fs::write(&kubeconfig, f.proxy.kubeconfig_yaml()).unwrap();
    let mut kubectl = Command::new(f.planes.assets().kubectl());
    kubectl.arg("--kubeconfig").arg(&kubeconfig).args([
        "get",
        "configmap",
        "a",
        "-o",
        "jsonpath={.data.key}",
    ]);
    // The proxy runs on this test's only thread: waiting for kubectl must not block it.
    let output = tokio::task::spawn_blocking(move || kubectl.output().unwrap())
        .await
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1", "{output:?}");
}

#[tokio::test]
async fn a_status_replaces_the_response_of_the_server() {
    let f = Fixture::start().await;
    let rule = f.proxy.on(Match::writes().times(2), Fault::too_many_requests(7));
    assert_eq!(code(f.apply("a", "1").await), 429);
    assert_eq!(f.value("a").await, None);
    assert_eq!(
        code(
            f.through
                .create(&PostParams::default(), &config_map("a", "1"))
                .await
        ),
        429
    );
    f.apply("a", "1").await.unwrap();
    assert_eq!(rule.fired(), 2);
    let statuses: Vec<_> = f
        .proxy
        .requests()
        .iter()
        .map(|r| (r.forwarded, r.status.unwrap()))
        .collect();
    assert_eq!(statuses, [(false, 429), (false, 429), (true, 201)]);

    let request = http::Request::get("/api/v1/namespaces")
        .body(kube::client::Body::empty())
        .unwrap();
    f.proxy.on(Match::any().nth(1), Fault::too_many_requests(7));
    let answer = f.proxy.client().await.unwrap().send(request).await.unwrap();
    assert_eq!(answer.headers()["retry-after"], "7");

    f.proxy.on(
        Match::any().body_contains("poison"),
        Fault::status(StatusCode::INTERNAL_SERVER_ERROR),
    );
    assert_eq!(code(f.apply("a", "poison").await), 500);
    f.apply("a", "harmless").await.unwrap();
}

#[tokio::test]
async fn upgrades_are_declined_and_not_forwarded() {
    let f = Fixture::start().await;
    let request = http::Request::get("/api/v1/namespaces").header("upgrade", "websocket");
    let request = request.body(kube::client::Body::empty()).unwrap();
    let answer = f.proxy.client().await.unwrap().send(request).await.unwrap();
    assert_eq!(answer.status(), StatusCode::NOT_IMPLEMENTED);
    assert!(f.proxy.requests().is_empty());
}

#[tokio::test]
async fn latency_only_delays() {
    let f = Fixture::start().await;
    let delay = Duration::from_millis(300);
    let rule = f.proxy.on(Match::method(Method::GET), Fault::Latency(delay));
    let start = Instant::now();
    assert_eq!(code(f.through.get("missing").await), 404);
    assert!(start.elapsed() >= delay);
    f.proxy.remove(&rule);
    assert_eq!(code(f.through.get("missing").await), 404);
    assert_eq!(rule.fired(), 1);
}

#[tokio::test]
async fn cuts_before_and_after_the_server_differ() {
    let f = Fixture::start().await;
    f.proxy
        .on(Match::writes().path_ends_with("/before"), Fault::CutBefore);
    f.proxy
        .on(Match::writes().path_ends_with("/after"), Fault::CutAfter);
    let before = f.apply("before", "1").await;
    assert!(is_broken(&before), "{before:?}");
    assert_eq!(f.value("before").await, None);
    let after = f.apply("after", "1").await;
    assert!(is_broken(&after), "{after:?}");
    assert_eq!(f.value("after").await.as_deref(), Some("1"));
    let seen: Vec<_> = f
        .proxy
        .requests()
        .iter()
        .map(|r| (r.forwarded, r.status))
        .collect();
    assert_eq!(seen, [(false, None), (true, Some(201))]);

    f.proxy.clear();
    f.apply("before", "1").await.unwrap();
}

#[tokio::test]
async fn black_hole_rule_affects_one_request_only() {
    let f = Fixture::start().await;
    f.proxy.on(Match::writes(), Fault::BlackHole);
    let silent = tokio::time::timeout(SILENCE, f.apply("a", "1")).await;
    assert!(silent.is_err(), "{silent:?}");
    assert_eq!(f.value("a").await, None);
    assert_eq!(code(f.through.get("a").await), 404);
}

#[tokio::test]
async fn garbage_is_not_http() {
    let f = Fixture::start().await;
    f.proxy.on(
        Match::any().times(1),
        Fault::Garbage("220 mail.example ESMTP\r\n".into()),
    );
    let garbled = f.through.get("a").await;
    assert!(is_broken(&garbled), "{garbled:?}");
    let mut text = String::new();
    let mut source: Option<&dyn std::error::Error> = garbled.as_ref().err().map(|e| e as _);
    while let Some(error) = source {
        text += &format!("{error}; ");
        source = error.source();
    }
    // The bytes have arrived: a closed connection has another error.
    assert!(text.contains("invalid HTTP"), "{text}");
    assert_eq!(code(f.through.get("a").await), 404);
}

#[tokio::test]
async fn black_hole_blocks_existing_and_new_connections() {
    let f = Fixture::start().await;
    f.apply("a", "1").await.unwrap();
    let version = f
        .through
        .list(&Default::default())
        .await
        .unwrap()
        .metadata
        .resource_version
        .unwrap();
    let mut events = f
        .through
        .watch(&WatchParams::default(), &version)
        .await
        .unwrap()
        .boxed();

    f.proxy.black_hole(true);
    let patch = Patch::Apply(config_map("a", "2"));
    f.direct
        .patch("a", &PatchParams::apply("tester").force(), &patch)
        .await
        .unwrap();
    assert!(tokio::time::timeout(SILENCE, events.next()).await.is_err());
    // An idle connection and a new one.
    assert!(tokio::time::timeout(SILENCE, f.through.get("a")).await.is_err());
    let fresh: Api<ConfigMap> = Api::namespaced(f.proxy.client().await.unwrap(), "default");
    assert!(tokio::time::timeout(SILENCE, fresh.get("a")).await.is_err());

    f.proxy.black_hole(false);
    // Nothing was lost: the event arrives late, on the same connection.
    let event = tokio::time::timeout(SOON, events.next())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert!(matches!(&event, WatchEvent::Modified(map) if map.data.as_ref().unwrap()["key"] == "2"));
    f.through.get("a").await.unwrap();
}

#[tokio::test]
async fn refused_connections_are_accepted_again() {
    let f = Fixture::start().await;
    f.apply("a", "1").await.unwrap();
    let version = f
        .through
        .list(&Default::default())
        .await
        .unwrap()
        .metadata
        .resource_version
        .unwrap();
    let mut events = f
        .through
        .watch(&WatchParams::default(), &version)
        .await
        .unwrap()
        .boxed();

    f.proxy.refuse(true).await.unwrap();
    // Refusing twice changes nothing.
    f.proxy.refuse(true).await.unwrap();
    let end = tokio::time::timeout(SOON, events.next()).await.unwrap();
    assert!(!matches!(end, Some(Ok(_))), "{end:?}");
    let address = f.proxy.url().trim_start_matches("https://").to_owned();
    let refused = tokio::net::TcpStream::connect(&address).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    assert!(is_broken(&f.through.get("a").await));

    f.proxy.refuse(false).await.unwrap();
    f.through.get("a").await.unwrap();
}

#[tokio::test]
async fn restart_of_the_server_is_visible_through_the_proxy() {
    let f = Fixture::start().await;
    f.apply("a", "1").await.unwrap();
    f.east().kill().unwrap();
    assert!(is_broken(&f.through.get("a").await));
    f.east().restart().await.unwrap();
    let back = wait::until(SOON, "the object", async || f.through.get("a").await)
        .await
        .unwrap();
    assert_eq!(back.data.unwrap()["key"], "1");
}

#[tokio::test]
async fn hooks_run_before_and_after_the_server() {
    let f = Fixture::start().await;
    let calls = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&calls);
    f.proxy.on(
        Match::method(Method::PATCH),
        Fault::hook(move |stage, request| {
            log.lock()
                .unwrap()
                .push((stage, request.forwarded, request.status));
        }),
    );
    f.apply("a", "1").await.unwrap();
    let expected = [(Stage::Before, false, None), (Stage::After, true, Some(201))];
    assert_eq!(*calls.lock().unwrap(), expected);
}

/// Guards against a black hole for good: a request in flight shut the network again after the test had opened it.
#[tokio::test]
async fn a_removed_hook_is_not_called_for_a_request_in_flight() {
    let f = Fixture::start().await;
    let (arrived, calls) = (Arc::new(Notify::new()), Arc::new(Mutex::new(Vec::new())));
    let (log, arrives) = (Arc::clone(&calls), Arc::clone(&arrived));
    f.proxy.on(
        Match::method(Method::PATCH),
        Fault::hook(move |stage, _| {
            log.lock().unwrap().push(stage);
            arrives.notify_one();
        }),
    );
    // Keeps the request in flight until the hook is removed.
    f.proxy.on(
        Match::method(Method::PATCH),
        Fault::Latency(Duration::from_secs(1)),
    );
    let (applied, ()) = tokio::join!(f.apply("a", "1"), async {
        arrived.notified().await;
        f.proxy.clear();
    });
    applied.unwrap();
    assert_eq!(*calls.lock().unwrap(), [Stage::Before]);
}

#[tokio::test]
async fn hook_can_kill_before_and_after_a_commit() {
    let f = Fixture::start().await;
    let kill_at = |wanted: Stage, name: &str| {
        let east = Arc::clone(f.planes.get("east").unwrap());
        let hook = move |stage, _: &_| {
            if stage == wanted {
                east.kill().unwrap();
            }
        };
        f.proxy.on(
            Match::writes().path_ends_with(format!("/{name}")).times(1),
            Fault::hook(hook),
        );
    };
    kill_at(Stage::Before, "before");
    let before = f.apply("before", "1").await;
    assert!(is_broken(&before), "{before:?}");
    f.east().restart().await.unwrap();
    assert_eq!(f.value("before").await, None);

    // Here, only the exit of the server is certain: the response may have arrived before the kill.
    kill_at(Stage::After, "after");
    f.proxy
        .on(Match::writes().path_ends_with("/after"), Fault::CutAfter);
    let after = f.apply("after", "1").await;
    assert!(is_broken(&after), "{after:?}");
    assert!(f.east().server().exit_status().unwrap().is_some());
    f.east().restart().await.unwrap();
    assert_eq!(f.value("after").await.as_deref(), Some("1"));
}

#[tokio::test]
async fn first_deciding_rule_wins_and_later_ones_do_not_count() {
    let f = Fixture::start().await;
    let first = f.proxy.on(
        Match::any().times(1),
        Fault::status(StatusCode::SERVICE_UNAVAILABLE),
    );
    let second = f
        .proxy
        .on(Match::any().times(1), Fault::status(StatusCode::CONFLICT));
    assert_eq!(code(f.through.get("a").await), 503);
    assert_eq!((first.fired(), second.fired()), (1, 0));
    assert_eq!(code(f.through.get("a").await), 409);
    assert_eq!(code(f.through.get("a").await), 404);
}
