//! Servers that lie, stall, flood or talk garbage: an error, in time, of bounded size, and nothing deleted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use serde_json::{Value, json};
use starling::member::{ApplyOutcome, Member, MemberConfig, MemberError, MemberLimits};
use starling_api::OWNER_LABEL;
use starling_controlplane::{Authority, Identity};
use starling_testkit::{Asked, Greeting, HostileServer, Trick};
use tokio::time::Instant;

use crate::view::View;
use crate::world::soon;

/// Stands in everything that a hostile server says, and must not stand in what is said about it.
const CANARY: &str = "CANARY-of-the-answer";

/// Short, so that a test takes as long as its slowest answer.
fn limits() -> MemberLimits {
    MemberLimits {
        connect: Duration::from_secs(3),
        head: Duration::from_millis(700),
        idle: Duration::from_millis(700),
        request: Duration::from_secs(3),
        ..MemberLimits::default()
    }
}

fn connect(server: &HostileServer) -> Member {
    Member::connect(
        MemberConfig::from_kubeconfig(&server.kubeconfig_yaml()).unwrap(),
        limits(),
    )
    .unwrap()
}

fn said(error: &MemberError) -> String {
    let text = format!("{error} {error:?}");
    assert!(!text.contains(CANARY), "an answer is quoted: {text}");
    assert!(text.len() < 2_000, "{} bytes of error", text.len());
    text
}

fn metadata(name: &str, more: &Value) -> Value {
    let mut metadata = json!({"name": name, "namespace": "shop", "uid": "u-1", "resourceVersion": "7"});
    for (key, value) in more.as_object().unwrap() {
        metadata[key] = value.clone();
    }
    json!({"kind": "PartialObjectMetadata", "metadata": metadata})
}

/// Nested so deep that a parser which calls itself for each level runs out of stack.
fn deep(open: &str, close: &str) -> String {
    open.repeat(100_000) + "1" + &close.repeat(100_000)
}

/// Answers that are wrong for every request.
fn garbage() -> Vec<(&'static str, Trick)> {
    let noise: Vec<u8> = (0..4096_u32)
        .map(|n| u8::try_from(n.wrapping_mul(2_654_435_761) >> 24).unwrap())
        .collect();
    let html = Trick::Answer(
        200,
        "Content-Type: text/html\r\n".into(),
        format!("<html>{CANARY}").into(),
    );
    let failure =
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": CANARY, "code": 500});
    vec![
        ("random bytes", Trick::Raw(noise.clone().into())),
        ("random bytes as JSON", Trick::text(200, noise)),
        ("another content type", html),
        (
            "truncated JSON",
            Trick::text(200, format!("{{\"metadata\":{{\"name\":\"{CANARY}")),
        ),
        (
            "another kind",
            Trick::json(
                200,
                &json!({"kind": "Pod", "metadata": {"name": CANARY, "uid": "u", "resourceVersion": "1"}}),
            ),
        ),
        ("a failure with 200", Trick::json(200, &failure)),
        ("nothing", Trick::text(200, "")),
        ("null", Trick::text(200, "null")),
        ("deep lists", Trick::text(200, deep("[", "]"))),
        ("deep objects", Trick::text(200, deep("{\"metadata\":", "}"))),
        (
            "deep items",
            Trick::text(200, format!("{{\"items\":{}}}", deep("[", "]"))),
        ),
        (
            "a body that is cut",
            Trick::Raw(format!("HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n{{\"{CANARY}").into()),
        ),
        (
            "a body that stops",
            Trick::Stall(format!("HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n{{\"{CANARY}").into()),
        ),
        ("silence", Trick::Stall(Bytes::new())),
        ("the end", Trick::Raw(Bytes::new())),
    ]
}

/// A server that plays one trick on the requests that are chosen.
async fn tricked(trick: Trick, chosen: fn(&Asked) -> bool) -> HostileServer {
    HostileServer::start(move |asked| chosen(asked).then(|| trick.clone()))
        .await
        .unwrap()
}

/// What failed of an apply; there must be something.
fn failed(outcome: &ApplyOutcome) -> &MemberError {
    assert!(
        outcome.applied.is_empty() && outcome.deleted.is_empty(),
        "{outcome:?}"
    );
    outcome
        .interrupted
        .as_ref()
        .or(outcome.failures.first().map(|(_, error)| error))
        .expect("an error")
}

#[tokio::test]
async fn t66_garbage_is_an_error_that_quotes_nothing() {
    for (name, trick) in garbage() {
        let server = tricked(trick.clone(), Asked::is_probe).await;
        let error = connect(&server).probe(soon()).await.expect_err(name);
        said(&error);

        let server = tricked(trick.clone(), |asked| asked.name() == "web").await;
        let mut view = View::new(connect(&server));
        let outcome = view.apply(&["web"]).await;
        let text = said(failed(&outcome));
        assert!(text.contains("shop/web"), "{name}: {text}");

        let server = tricked(trick.clone(), |asked| asked.query.contains("labelSelector")).await;
        let mut view = View::new(connect(&server));
        view.apply(&["web"]).await;
        let report = view.find_drift().await;
        let error = report
            .interrupted
            .as_ref()
            .or(report.failures.first().map(|(_, error)| error));
        said(error.expect(name));
        assert!(report.drifted.is_empty(), "{name}");

        let server = tricked(trick, |asked| asked.is_inventory() && asked.method == "GET").await;
        let outcome = View::new(connect(&server)).apply(&["web"]).await;
        said(failed(&outcome));
        let written = server.asked().iter().any(|asked| asked.method != "GET");
        assert!(
            !written,
            "{name}: what is ours is not known, so nothing is written"
        );
    }
}

#[tokio::test]
async fn t66_an_answer_about_no_object_or_another_one_leaves_no_record() {
    let long = "9".repeat(10_000);
    let cases = [
        ("no UID", metadata("web", &json!({"uid": ""}))),
        ("no version", metadata("web", &json!({"resourceVersion": ""}))),
        (
            "a number for a version",
            metadata("web", &json!({"resourceVersion": 7})),
        ),
        (
            "a long version",
            metadata("web", &json!({"resourceVersion": long})),
        ),
        ("a long UID", metadata("web", &json!({"uid": long}))),
        (
            "a version of two lines",
            metadata("web", &json!({"resourceVersion": "7\n8"})),
        ),
        ("another name", metadata("other", &json!({}))),
        (
            "another namespace",
            metadata("web", &json!({"namespace": "other"})),
        ),
        ("no metadata", json!({"kind": "ConfigMap"})),
        ("metadata that is a list", json!({"metadata": []})),
    ];
    for (name, answer) in cases {
        let server = tricked(Trick::json(200, &answer), |asked| asked.name() == "web").await;
        let mut view = View::new(connect(&server));
        let outcome = view.apply(&["web"]).await;
        assert!(
            matches!(failed(&outcome), MemberError::Garbage { .. }),
            "{name}: {outcome:?}"
        );
        assert!(view.records.is_empty(), "{name}");
    }
}

/// What is skipped or kept as it is may be nested as deep as it likes: nothing calls itself for it.
#[tokio::test]
async fn t66_deep_json_in_a_field_that_is_not_looked_into_is_skipped() {
    let objects = deep("{\"f:a\":", "}");
    let lists = deep("[", "]");
    for (status, fields) in [
        (lists.as_str(), "{}"),
        ("{}", objects.as_str()),
        ("{}", lists.as_str()),
    ] {
        let body = format!(
            r#"{{"kind":"ConfigMap","status":{status},"metadata":{{"name":"web","namespace":"shop","uid":"u-1","resourceVersion":"7",
            "managedFields":[{{"manager":"starling","operation":"Apply","fieldsV1":{fields}}}]}}}}"#,
        );
        let server = tricked(Trick::text(200, body), |asked| asked.name() == "web").await;
        let mut view = View::new(connect(&server));
        let outcome = view.apply(&["web"]).await;
        assert_eq!(view.records.len(), 1, "{outcome:?}");
        // Looked at before it would be deleted: our fields are parsed to find the label among them.
        let outcome = view.apply(&["other"]).await;
        assert!(outcome.failures.is_empty(), "{outcome:?}");
    }
}

fn endless() -> Vec<(&'static str, Trick)> {
    let megabyte: Bytes = vec![b' '; 1 << 20].into();
    let head = |fields: &str| Bytes::from(format!("HTTP/1.1 200 OK\r\n{fields}\r\n"));
    let at_once = Duration::ZERO;
    vec![
        ("a body", Trick::Forever(head(""), megabyte.clone(), at_once)),
        (
            "a long text",
            Trick::Forever(
                [head(""), "{\"a\":\"".into()].concat().into(),
                megabyte.clone(),
                at_once,
            ),
        ),
        (
            "chunks",
            Trick::Forever(
                head("Transfer-Encoding: chunked\r\n"),
                "5\r\n     \r\n".into(),
                at_once,
            ),
        ),
        (
            "a chunk extension",
            Trick::Forever(
                [head("Transfer-Encoding: chunked\r\n"), "5;".into()]
                    .concat()
                    .into(),
                vec![b'x'; 4096].into(),
                at_once,
            ),
        ),
        (
            "trailers",
            Trick::Forever(
                [head("Transfer-Encoding: chunked\r\n"), "0\r\n".into()]
                    .concat()
                    .into(),
                format!("X: {CANARY}\r\n").into(),
                at_once,
            ),
        ),
        (
            "fields of the head",
            Trick::Forever(
                "HTTP/1.1 200 OK\r\n".into(),
                format!("X-A: {CANARY}\r\n").into(),
                at_once,
            ),
        ),
        (
            "one field of the head",
            Trick::Forever(
                "HTTP/1.1 200 OK\r\nX-A: ".into(),
                vec![b'x'; 4096].into(),
                at_once,
            ),
        ),
        (
            "heads before the head",
            Trick::Forever(
                Bytes::new(),
                "HTTP/1.1 100 Continue\r\n\r\n".into(),
                Duration::from_millis(1),
            ),
        ),
        (
            "drops",
            Trick::Forever(
                head("Content-Length: 99999\r\n"),
                " ".into(),
                Duration::from_millis(50),
            ),
        ),
        (
            "a failure that never ends",
            Trick::Forever("HTTP/1.1 500 Oops\r\n\r\n".into(), megabyte, at_once),
        ),
    ]
}

#[tokio::test]
async fn t67_what_never_ends_is_cut() {
    for (name, trick) in endless() {
        let server = tricked(trick, |asked| asked.name() == "web").await;
        let begun = Instant::now();
        let outcome = View::new(connect(&server)).apply(&["web"]).await;
        said(failed(&outcome));
        // Far beyond the limit of one request, so that a busy machine fails nothing: without a limit it is for ever.
        assert!(begun.elapsed() < Duration::from_secs(50), "{name}");
        assert_eq!(
            server
                .asked()
                .iter()
                .filter(|asked| asked.name() == "web")
                .count(),
            1,
            "{name}"
        );
    }
}

#[tokio::test]
async fn t67_a_list_that_always_goes_on_ends() {
    let pages = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&pages);
    let server = HostileServer::start(move |asked| {
        asked.query.contains("labelSelector").then(|| {
            let page = count.fetch_add(1, Ordering::SeqCst);
            let item = metadata("web", &json!({"uid": "another", "resourceVersion": "8"}));
            Trick::json(
                200,
                &json!({"metadata": {"continue": format!("page-{page}")}, "items": [item]}),
            )
        })
    })
    .await
    .unwrap();
    let mut view = View::new(connect(&server));
    view.apply(&["web"]).await;
    let report = view.find_drift().await;
    let (_, error) = report.failures.first().expect("an error");
    assert!(matches!(error, MemberError::Garbage { .. }), "{error:?}");
    assert_eq!(pages.load(Ordering::SeqCst), 200);
    assert!(report.drifted.is_empty());
}

/// Few bytes that would be parsed into many structures.
#[tokio::test]
async fn t67_a_swarm_of_tiny_values_is_refused_before_it_is_parsed() {
    let swarm = format!("{{\"metadata\":{{}},\"items\":[{}0]}}", "0,".repeat(1 << 20));
    let server = tricked(Trick::text(200, swarm), |asked| asked.name() == "web").await;
    let outcome = View::new(connect(&server)).apply(&["web"]).await;
    let text = said(failed(&outcome));
    assert!(text.contains("values"), "{text}");
}

/// Starling asks for no compression, and unpacks none: what is packed is garbage of the size that it has.
#[tokio::test]
async fn t67_a_compressed_bomb_is_not_unpacked() {
    // A stored block of deflate inside of gzip: valid, and it would unpack to JSON.
    let json = metadata("web", &json!({})).to_string();
    let length = u16::try_from(json.len()).unwrap();
    let mut packed = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 1];
    packed.extend(length.to_le_bytes());
    packed.extend((!length).to_le_bytes());
    packed.extend(json.as_bytes());
    let trick = Trick::Answer(200, "Content-Encoding: gzip\r\n".into(), packed.into());
    let server = tricked(trick, |asked| asked.name() == "web").await;
    let outcome = View::new(connect(&server)).apply(&["web"]).await;
    assert!(
        matches!(failed(&outcome), MemberError::Garbage { .. }),
        "{outcome:?}"
    );
    let asks = |asked: &Asked| asked.head.to_ascii_lowercase().contains("accept-encoding");
    assert!(!server.asked().iter().any(asks));
}

#[tokio::test]
async fn t68_a_server_that_stores_nothing_is_noticed_and_nothing_is_deleted() {
    let empty = json!({"metadata": {}, "items": []});
    let server = tricked(Trick::json(200, &empty), |asked| {
        asked.query.contains("labelSelector")
    })
    .await;
    let mut view = View::new(connect(&server));
    for _ in 0..3 {
        let outcome = view.apply(&["api", "web"]).await;
        assert!(outcome.is_complete(), "{outcome:?}");
        // Neither in the list nor by itself: that is drift, never a reason to prune.
        let report = view.find_drift().await;
        assert_eq!(report.drifted.len(), 2, "{report:?}");
        view.drifted = report.drifted;
    }
    let asked = server.asked();
    assert!(asked.iter().all(|asked| asked.method != "DELETE"));
    let writes = asked
        .iter()
        .filter(|asked| asked.method == "PATCH" && asked.name() == "web")
        .count();
    assert_eq!(writes, 3, "one for each time that it was found missing");
}

/// The UID that a server tells changes with each answer, so no object is ever the one that was applied.
#[tokio::test]
async fn t68_a_server_whose_uids_change_has_nothing_deleted() {
    let count = AtomicUsize::new(0);
    let server = HostileServer::start(move |asked| {
        let changing = ["web", "api"].contains(&asked.name());
        (changing && asked.method != "DELETE").then(|| {
            let uid = format!("u-{}", count.fetch_add(1, Ordering::SeqCst));
            let labels = json!({"uid": uid, "labels": {OWNER_LABEL: "0f"}});
            Trick::json(200, &metadata(asked.name(), &labels))
        })
    })
    .await
    .unwrap();
    let mut view = View::new(connect(&server));
    assert!(view.apply(&["api", "web"]).await.is_complete());
    // `web` leaves the render: its entry is dropped, and whatever has its name now is left alone.
    let outcome = view.apply(&["api"]).await;
    assert!(outcome.deleted.is_empty(), "{outcome:?}");
    assert!(server.asked().iter().all(|asked| asked.method != "DELETE"));
}

/// A lane that is full must not make a cluster look as if it were gone.
#[tokio::test]
async fn a_probe_does_not_wait_for_a_lane_that_is_full() {
    let server = tricked(Trick::Stall(Bytes::new()), |asked| asked.name() == "web").await;
    let limits = MemberLimits {
        concurrency: 1,
        head: Duration::from_secs(60),
        request: Duration::from_secs(60),
        ..limits()
    };
    let config = MemberConfig::from_kubeconfig(&server.kubeconfig_yaml()).unwrap();
    let member = Member::connect(config, limits).unwrap();
    let mut view = View::new(member.clone());
    let mut work = std::pin::pin!(view.apply(&["web"]));
    let probed = async {
        starling_testkit::wait::until(Duration::from_secs(30), "the lane is full", async || {
            server.asked().iter().any(|asked| asked.name() == "web")
        })
        .await
        .unwrap();
        member.probe(soon()).await.unwrap()
    };
    tokio::select! {
        outcome = &mut work => panic!("the work has ended: {outcome:?}"),
        probe = probed => assert_eq!(probe.version, "v1.35.0"),
    }
}

async fn refused_at_the_door(server: &HostileServer, says: &str) {
    // Only the limit of the connection may end it, however slow the machine is.
    let limits = MemberLimits {
        head: Duration::from_secs(60),
        request: Duration::from_secs(60),
        ..limits()
    };
    let config = MemberConfig::from_kubeconfig(&server.kubeconfig_yaml()).unwrap();
    let member = Member::connect(config, limits).unwrap();
    let error = member.probe(soon()).await.unwrap_err();
    assert!(error.is_connectivity(), "{error:?}");
    let text = said(&error);
    assert!(text.contains(says), "{says}: {text}");
    assert!(server.asked().is_empty(), "no request, and no token, was sent");
}

#[tokio::test]
async fn a_server_that_takes_the_connection_and_does_not_speak_tls_is_unreachable_in_time() {
    for (greeting, says) in [
        (Greeting::Silence, "no connection within"),
        (Greeting::Bytes("SSH-2.0-OpenSSH\r\n".into()), ""),
        // A TLS record with an alert (fatal, handshake failure), for ever.
        (Greeting::Bytes(vec![21, 3, 3, 0, 2, 2, 40].into()), ""),
        // A warning (user cancelled), for ever.
        (Greeting::Bytes(vec![21, 3, 3, 0, 2, 1, 90].into()), ""),
    ] {
        let server = HostileServer::greeting(greeting, |_| None).await.unwrap();
        refused_at_the_door(&server, says).await;
    }
}

/// A certificate of an authority of its own, for these names, until this year.
fn identity(names: &[&str], until: i32) -> (Identity, String) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.not_before = date_time_ymd(2000, 1, 1);
    params.not_after = date_time_ymd(until, 1, 1);
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &authority).unwrap();
    let identity = Identity {
        certificate_pem: certificate.pem(),
        key_pem: key.serialize_pem(),
    };
    (identity, authority.pem())
}

#[tokio::test]
async fn a_certificate_that_is_wrong_in_any_way_gets_no_request() {
    let (good, ca) = identity(&["127.0.0.1"], 2200);
    let honest = HostileServer::with_identity(Greeting::Tls, &good, ca, |_| None)
        .await
        .unwrap();
    connect(&honest)
        .probe(soon())
        .await
        .expect("the server of this test is honest");
    let other = Authority::new("another").unwrap().ca_pem();
    let (expired, expired_ca) = identity(&["127.0.0.1"], 2020);
    let (renamed, renamed_ca) = identity(&["cluster.example.com"], 2200);
    for (identity, ca, says) in [
        (&expired, expired_ca, "xpired"),
        (&renamed, renamed_ca, "NotValidForName"),
        (&good, other, "UnknownIssuer"),
    ] {
        let server = HostileServer::with_identity(Greeting::Tls, identity, ca, |_| None)
            .await
            .unwrap();
        refused_at_the_door(&server, says).await;
    }
}

#[tokio::test]
async fn an_address_that_is_nobodys_is_refused_before_anything_is_sent() {
    for server in [
        "https://169.254.169.254",
        "https://[fe80::1]:6443",
        "https://0.0.0.0:6443",
        "https://0xA9FEA9FE/",
        "https://[::ffff:169.254.169.254]:443",
        "https://224.0.0.1",
    ] {
        let kubeconfig = json!({
            "contexts": [{"name": "m", "context": {"cluster": "m", "user": "m"}}],
            "clusters": [{"name": "m", "cluster": {"server": server}}],
            "users": [{"name": "m", "user": {"token": "t"}}],
        });
        let config = MemberConfig::from_kubeconfig(&kubeconfig.to_string()).unwrap();
        let error = Member::connect(config, limits()).unwrap_err();
        assert!(matches!(error, MemberError::Client { .. }), "{server}: {error:?}");
        assert!(format!("{error:?}").contains("Nobodys"), "{server}: {error:?}");
    }
}
