//! Servers that send false, slow, oversized or malformed responses: an error in time and of limited size, and no
//! deletion.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use serde_json::{Value, json};
use starling_api::OWNER_LABEL;
use starling_controlplane::{Authority, Identity};
use starling_member::{ApplyOutcome, Member, MemberConfig, MemberError, MemberLimits, Network};
use starling_net::rules::{AddressLists, Purpose};
use starling_testkit::{Greeting, HostileServer, ReceivedRequest, Reply};
use tokio::time::Instant;

use crate::view::View;
use crate::world::soon;

/// Part of every hostile response; no error text may contain it.
const CANARY: &str = "CANARY-of-the-answer";

/// Short timeouts, so that the tests are fast.
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

fn error_text(error: &MemberError) -> String {
    let text = format!("{error} {error:?}");
    assert!(!text.contains(CANARY), "a response is quoted: {text}");
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

/// Nested so deep that a recursive parser overflows its stack.
fn deep(open: &str, close: &str) -> String {
    open.repeat(100_000) + "1" + &close.repeat(100_000)
}

/// Responses that are invalid for every request.
fn garbage() -> Vec<(&'static str, Reply)> {
    let noise: Vec<u8> = (0..4096_u32)
        .map(|n| u8::try_from(n.wrapping_mul(2_654_435_761) >> 24).unwrap())
        .collect();
    let html = Reply::Answer(
        200,
        "Content-Type: text/html\r\n".into(),
        format!("<html>{CANARY}").into(),
    );
    let failure =
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": CANARY, "code": 500});
    vec![
        ("random bytes", Reply::Raw(noise.clone().into())),
        ("random bytes as JSON", Reply::text(200, noise)),
        ("another content type", html),
        (
            "truncated JSON",
            Reply::text(200, format!("{{\"metadata\":{{\"name\":\"{CANARY}")),
        ),
        (
            "another kind",
            Reply::json(
                200,
                &json!({"kind": "Pod", "metadata": {"name": CANARY, "uid": "u", "resourceVersion": "1"}}),
            ),
        ),
        ("a failure with 200", Reply::json(200, &failure)),
        ("nothing", Reply::text(200, "")),
        ("null", Reply::text(200, "null")),
        ("deep lists", Reply::text(200, deep("[", "]"))),
        ("deep objects", Reply::text(200, deep("{\"metadata\":", "}"))),
        (
            "deep items",
            Reply::text(200, format!("{{\"items\":{}}}", deep("[", "]"))),
        ),
        (
            "a body that is cut",
            Reply::Raw(format!("HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n{{\"{CANARY}").into()),
        ),
        (
            "a body that stops",
            Reply::Stall(format!("HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n{{\"{CANARY}").into()),
        ),
        ("silence", Reply::Stall(Bytes::new())),
        ("the end", Reply::Raw(Bytes::new())),
    ]
}

/// Starts a server that sends one reply to the chosen requests.
async fn server_replying(reply: Reply, chosen: fn(&ReceivedRequest) -> bool) -> HostileServer {
    HostileServer::start(move |request| chosen(request).then(|| reply.clone()))
        .await
        .unwrap()
}

/// Returns the error of an apply, which must have failed.
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
    for (name, reply) in garbage() {
        let server = server_replying(reply.clone(), ReceivedRequest::is_probe).await;
        let error = connect(&server).probe(soon()).await.expect_err(name);
        error_text(&error);

        let server = server_replying(reply.clone(), |request| request.name() == "web").await;
        let mut view = View::new(connect(&server));
        let outcome = view.apply(&["web"]).await;
        let text = error_text(failed(&outcome));
        assert!(text.contains("shop/web"), "{name}: {text}");

        let server = server_replying(reply.clone(), |request| request.query.contains("labelSelector")).await;
        let mut view = View::new(connect(&server));
        view.apply(&["web"]).await;
        let report = view.find_drift().await;
        let error = report
            .interrupted
            .as_ref()
            .or(report.failures.first().map(|(_, error)| error));
        error_text(error.expect(name));
        assert!(report.drifted.is_empty(), "{name}");

        let server =
            server_replying(reply, |request| request.is_inventory() && request.method == "GET").await;
        let outcome = View::new(connect(&server)).apply(&["web"]).await;
        error_text(failed(&outcome));
        let written = server.requests().iter().any(|request| request.method != "GET");
        assert!(
            !written,
            "{name}: the owned objects are not known, so nothing is written"
        );
    }
}

#[tokio::test]
async fn t66_a_response_about_no_object_or_another_one_leaves_no_record() {
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
        let server = server_replying(Reply::json(200, &answer), |request| request.name() == "web").await;
        let mut view = View::new(connect(&server));
        let outcome = view.apply(&["web"]).await;
        assert!(
            matches!(failed(&outcome), MemberError::Garbage { .. }),
            "{name}: {outcome:?}"
        );
        assert!(view.records.is_empty(), "{name}");
    }
}

/// Skipped and raw values may be nested to any depth: they are parsed without recursion.
#[tokio::test]
async fn t66_deep_json_in_a_skipped_field_is_accepted() {
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
        let server = server_replying(Reply::text(200, body), |request| request.name() == "web").await;
        let mut view = View::new(connect(&server));
        let outcome = view.apply(&["web"]).await;
        assert_eq!(view.records.len(), 1, "{outcome:?}");
        // Read before a deletion: the fields of Starling are parsed to find the label among them.
        let outcome = view.apply(&["other"]).await;
        assert!(outcome.failures.is_empty(), "{outcome:?}");
    }
}

fn endless() -> Vec<(&'static str, Reply)> {
    let megabyte: Bytes = vec![b' '; 1 << 20].into();
    let head = |fields: &str| Bytes::from(format!("HTTP/1.1 200 OK\r\n{fields}\r\n"));
    let at_once = Duration::ZERO;
    vec![
        ("a body", Reply::Forever(head(""), megabyte.clone(), at_once)),
        (
            "a long text",
            Reply::Forever(
                [head(""), "{\"a\":\"".into()].concat().into(),
                megabyte.clone(),
                at_once,
            ),
        ),
        (
            "chunks",
            Reply::Forever(
                head("Transfer-Encoding: chunked\r\n"),
                "5\r\n     \r\n".into(),
                at_once,
            ),
        ),
        (
            "a chunk extension",
            Reply::Forever(
                [head("Transfer-Encoding: chunked\r\n"), "5;".into()]
                    .concat()
                    .into(),
                vec![b'x'; 4096].into(),
                at_once,
            ),
        ),
        (
            "trailers",
            Reply::Forever(
                [head("Transfer-Encoding: chunked\r\n"), "0\r\n".into()]
                    .concat()
                    .into(),
                format!("X: {CANARY}\r\n").into(),
                at_once,
            ),
        ),
        (
            "fields of the head",
            Reply::Forever(
                "HTTP/1.1 200 OK\r\n".into(),
                format!("X-A: {CANARY}\r\n").into(),
                at_once,
            ),
        ),
        (
            "one field of the head",
            Reply::Forever(
                "HTTP/1.1 200 OK\r\nX-A: ".into(),
                vec![b'x'; 4096].into(),
                at_once,
            ),
        ),
        (
            "heads before the head",
            Reply::Forever(
                Bytes::new(),
                "HTTP/1.1 100 Continue\r\n\r\n".into(),
                Duration::from_millis(1),
            ),
        ),
        (
            "drops",
            Reply::Forever(
                head("Content-Length: 99999\r\n"),
                " ".into(),
                Duration::from_millis(50),
            ),
        ),
        (
            "a failure that never ends",
            Reply::Forever("HTTP/1.1 500 Oops\r\n\r\n".into(), megabyte, at_once),
        ),
    ]
}

#[tokio::test]
async fn t67_endless_responses_are_cut_off() {
    for (name, reply) in endless() {
        let server = server_replying(reply, |request| request.name() == "web").await;
        let begun = Instant::now();
        let outcome = View::new(connect(&server)).apply(&["web"]).await;
        error_text(failed(&outcome));
        // Far beyond the limit of one request, so that a busy machine causes no failure; without a limit, the request
        // would never end.
        assert!(begun.elapsed() < Duration::from_secs(50), "{name}");
        assert_eq!(
            server
                .requests()
                .iter()
                .filter(|request| request.name() == "web")
                .count(),
            1,
            "{name}"
        );
    }
}

#[tokio::test]
async fn t67_an_endless_list_ends() {
    let pages = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&pages);
    let server = HostileServer::start(move |request| {
        request.query.contains("labelSelector").then(|| {
            let page = count.fetch_add(1, Ordering::SeqCst);
            let item = metadata("web", &json!({"uid": "another", "resourceVersion": "8"}));
            Reply::json(
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

/// Few bytes that would be parsed into many values.
#[tokio::test]
async fn t67_too_many_small_values_are_refused_before_parsing() {
    let many_values = format!("{{\"metadata\":{{}},\"items\":[{}0]}}", "0,".repeat(1 << 20));
    let server = server_replying(Reply::text(200, many_values), |request| request.name() == "web").await;
    let outcome = View::new(connect(&server)).apply(&["web"]).await;
    let text = error_text(failed(&outcome));
    assert!(text.contains("values"), "{text}");
}

/// Starling neither requests nor decompresses compressed responses: a compressed body is invalid JSON of its compressed
/// size.
#[tokio::test]
async fn t67_a_compressed_bomb_is_not_unpacked() {
    // A stored block of deflate in gzip: valid, and decompresses to JSON.
    let json = metadata("web", &json!({})).to_string();
    let length = u16::try_from(json.len()).unwrap();
    let mut packed = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 1];
    packed.extend(length.to_le_bytes());
    packed.extend((!length).to_le_bytes());
    packed.extend(json.as_bytes());
    let reply = Reply::Answer(200, "Content-Encoding: gzip\r\n".into(), packed.into());
    let server = server_replying(reply, |request| request.name() == "web").await;
    let outcome = View::new(connect(&server)).apply(&["web"]).await;
    assert!(
        matches!(failed(&outcome), MemberError::Garbage { .. }),
        "{outcome:?}"
    );
    let asks = |request: &ReceivedRequest| request.head.to_ascii_lowercase().contains("accept-encoding");
    assert!(!server.requests().iter().any(asks));
}

#[tokio::test]
async fn t68_a_server_that_stores_nothing_is_noticed_and_nothing_is_deleted() {
    let empty = json!({"metadata": {}, "items": []});
    let server = server_replying(Reply::json(200, &empty), |request| {
        request.query.contains("labelSelector")
    })
    .await;
    let mut view = View::new(connect(&server));
    for _ in 0..3 {
        let outcome = view.apply(&["api", "web"]).await;
        assert!(outcome.is_complete(), "{outcome:?}");
        // Found neither in the list nor by itself: drift, never a reason to prune.
        let report = view.find_drift().await;
        assert_eq!(report.drifted.len(), 2, "{report:?}");
        view.drifted = report.drifted;
    }
    let request = server.requests();
    assert!(request.iter().all(|request| request.method != "DELETE"));
    let writes = request
        .iter()
        .filter(|request| request.method == "PATCH" && request.name() == "web")
        .count();
    assert_eq!(writes, 3, "one for each time that it was found missing");
}

/// The server returns another UID with each response, so no object is ever the applied one.
#[tokio::test]
async fn t68_objects_with_changing_uids_are_not_deleted() {
    let count = AtomicUsize::new(0);
    let server = HostileServer::start(move |request| {
        let changing = ["web", "api"].contains(&request.name());
        (changing && request.method != "DELETE").then(|| {
            let uid = format!("u-{}", count.fetch_add(1, Ordering::SeqCst));
            let labels = json!({"uid": uid, "labels": {OWNER_LABEL: "0f"}});
            Reply::json(200, &metadata(request.name(), &labels))
        })
    })
    .await
    .unwrap();
    let mut view = View::new(connect(&server));
    assert!(view.apply(&["api", "web"]).await.is_complete());
    // `web` leaves the render: its entry is dropped, and the object of that name is not deleted.
    let outcome = view.apply(&["api"]).await;
    assert!(outcome.deleted.is_empty(), "{outcome:?}");
    assert!(server.requests().iter().all(|request| request.method != "DELETE"));
}

/// Exhausted request limits must not make a cluster appear unreachable.
#[tokio::test]
async fn a_probe_does_not_wait_for_a_full_lane() {
    let server = server_replying(Reply::Stall(Bytes::new()), |request| request.name() == "web").await;
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
        starling_testkit::wait::until(
            Duration::from_secs(30),
            "the request limits are exhausted",
            async || server.requests().iter().any(|request| request.name() == "web"),
        )
        .await
        .unwrap();
        member.probe(soon()).await.unwrap()
    };
    tokio::select! {
        outcome = &mut work => panic!("the work has ended: {outcome:?}"),
        probe = probed => assert_eq!(probe.version, "v1.35.0"),
    }
}

async fn assert_refused_before_any_request(server: &HostileServer, expected: &str) {
    // Only the connect timeout may end the request, however slow the machine is.
    let limits = MemberLimits {
        head: Duration::from_secs(60),
        request: Duration::from_secs(60),
        ..limits()
    };
    let config = MemberConfig::from_kubeconfig(&server.kubeconfig_yaml()).unwrap();
    let member = Member::connect(config, limits).unwrap();
    let error = member.probe(soon()).await.unwrap_err();
    assert!(error.is_connectivity(), "{error:?}");
    let text = error_text(&error);
    assert!(text.contains(expected), "{expected}: {text}");
    assert!(server.requests().is_empty(), "no request, and no token, was sent");
}

#[tokio::test]
async fn a_server_that_takes_the_connection_and_does_not_speak_tls_is_unreachable_in_time() {
    for (greeting, expected) in [
        (Greeting::Silence, "no connection within"),
        (Greeting::Bytes("SSH-2.0-OpenSSH\r\n".into()), ""),
        // A TLS record with an alert (fatal, handshake failure), repeated.
        (Greeting::Bytes(vec![21, 3, 3, 0, 2, 2, 40].into()), ""),
        // A warning (user cancelled), repeated.
        (Greeting::Bytes(vec![21, 3, 3, 0, 2, 1, 90].into()), ""),
    ] {
        let server = HostileServer::greeting(greeting, |_| None).await.unwrap();
        assert_refused_before_any_request(&server, expected).await;
    }
}

/// Issues a certificate of its own authority for these names, valid until this year.
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
async fn an_invalid_certificate_gets_no_request() {
    let (valid, ca) = identity(&["127.0.0.1"], 2200);
    let good_server = HostileServer::with_identity(Greeting::Tls, &valid, ca, |_| None)
        .await
        .unwrap();
    connect(&good_server)
        .probe(soon())
        .await
        .expect("the server of this test is honest");
    let other = Authority::new("another").unwrap().ca_pem();
    let (expired, expired_ca) = identity(&["127.0.0.1"], 2020);
    let (renamed, renamed_ca) = identity(&["cluster.example.com"], 2200);
    for (identity, ca, expected) in [
        (&expired, expired_ca, "xpired"),
        (&renamed, renamed_ca, "NotValidForName"),
        (&valid, other, "UnknownIssuer"),
    ] {
        let server = HostileServer::with_identity(Greeting::Tls, identity, ca, |_| None)
            .await
            .unwrap();
        assert_refused_before_any_request(&server, expected).await;
    }
}

#[tokio::test]
async fn a_forbidden_address_is_refused_before_any_request() {
    for server in [
        "https://169.254.169.254",
        "https://[fe80::1]:6443",
        "https://0.0.0.0:6443",
        "https://0xA9FEA9FE/",
        "https://[::ffff:169.254.169.254]:443",
        "https://224.0.0.1",
        "https://[fd00:ec2::23]",
        "https://[64:ff9b::169.254.169.254]",
    ] {
        let error = Member::connect(config_of(server), limits()).unwrap_err();
        assert!(matches!(error, MemberError::Client { .. }), "{server}: {error:?}");
        assert!(
            format!("{error:?}").contains("ForbiddenAddress"),
            "{server}: {error:?}"
        );
    }
}

fn config_of(server: &str) -> MemberConfig {
    let kubeconfig = json!({
        "contexts": [{"name": "m", "context": {"cluster": "m", "user": "m"}}],
        "clusters": [{"name": "m", "cluster": {"server": server}}],
        "users": [{"name": "m", "user": {"token": "t"}}],
    });
    MemberConfig::from_kubeconfig(&kubeconfig.to_string()).unwrap()
}

#[tokio::test]
async fn tenant_addresses_that_the_operator_denies_are_not_connected_to() {
    let lists = AddressLists {
        allowed: Vec::new(),
        denied: vec!["members=10.0.0.0/8".parse().unwrap()],
    };
    let network = Network::system().with_addresses(lists.rules(Purpose::Members));
    let error = Member::connect_over(config_of("https://10.1.2.3:6443"), limits(), &network).unwrap_err();
    assert!(format!("{error:?}").contains("DeniedAddress"), "{error:?}");
    assert!(Member::connect_over(config_of("https://11.1.2.3:6443"), limits(), &network).is_ok());
}
