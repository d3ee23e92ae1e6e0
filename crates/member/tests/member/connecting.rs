//! Servers that are unreachable, reject the credentials, or are not API servers.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use starling_controlplane::Authority;
use starling_member::{Member, MemberConfig, MemberError, MemberLimits};
use tokio::time::Instant;

use crate::world::{World, soon};

/// An HTTPS server that sends one fixed response to every request.
struct FixedServer {
    url: String,
    authority: Authority,
    served: Arc<AtomicUsize>,
}

impl FixedServer {
    fn new(response: impl Into<Vec<u8>>) -> Self {
        let authority = Authority::new("answering").unwrap();
        let identity = authority.issue("answering", &[]).unwrap();
        let certificate = CertificateDer::from_pem_slice(identity.certificate_pem.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let (served, response) = (Arc::new(AtomicUsize::new(0)), Arc::new(response.into()));
        let counter = Arc::clone(&served);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (tls, response, counter) =
                    (Arc::new(tls.clone()), Arc::clone(&response), Arc::clone(&counter));
                std::thread::spawn(move || respond_once(stream.unwrap(), tls, &response, &counter));
            }
        });
        Self {
            url,
            authority,
            served,
        }
    }

    fn member(&self, limits: MemberLimits) -> Member {
        member(&self.url, &self.authority.ca_pem(), "t0ken-of-the-test", limits).unwrap()
    }

    fn served(&self) -> usize {
        self.served.load(Ordering::SeqCst)
    }
}

/// Errors of the connection are ignored, because a client may disconnect.
fn respond_once(stream: TcpStream, tls: Arc<rustls::ServerConfig>, response: &[u8], counter: &AtomicUsize) {
    let connection = rustls::ServerConnection::new(tls).unwrap();
    let mut stream = rustls::StreamOwned::new(connection, stream);
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    counter.fetch_add(1, Ordering::SeqCst);
    if stream.write_all(response).and_then(|()| stream.flush()).is_ok() {
        stream.conn.send_close_notify();
        drop(stream.flush());
    }
}

fn response(status: &str, headers: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n{headers}\r\n{body}",
        body.len()
    )
}

fn member(url: &str, ca: &str, token: &str, limits: MemberLimits) -> Result<Member, MemberError> {
    let ca = base64::engine::general_purpose::STANDARD.encode(ca);
    let kubeconfig = json!({
        "contexts": [{"name": "member", "context": {"cluster": "member", "user": "member"}}],
        "clusters": [{"name": "member", "cluster": {"server": url, "certificate-authority-data": ca}}],
        "users": [{"name": "member", "user": {"token": token}}],
    });
    Member::connect(
        MemberConfig::from_kubeconfig(&kubeconfig.to_string()).unwrap(),
        limits,
    )
}

#[tokio::test]
async fn a_probe_returns_version_and_identity() {
    let world = World::new("probe").await;
    let probe = world.member.probe(soon()).await.unwrap();
    let kube_system: k8s_openapi::api::core::v1::Namespace = kube::Api::all(world.other.clone())
        .get("kube-system")
        .await
        .unwrap();
    assert_eq!(Some(probe.cluster_id.into_string()), kube_system.metadata.uid);
    assert_eq!(
        probe.version,
        world.other.apiserver_version().await.unwrap().git_version
    );
}

#[tokio::test]
async fn a_wrong_token_is_unauthorized_and_ends_the_attempt() {
    let mut world = World::new("token").await;
    world.member = member(
        world.plane().url(),
        world.plane().ca_pem(),
        "wrong",
        MemberLimits::default(),
    )
    .unwrap();
    assert!(matches!(
        world.member.probe(soon()).await,
        Err(MemberError::Unauthorized { .. })
    ));
    let outcome = world.apply(&[world.map("a", &json!({}))]).await;
    assert!(
        matches!(outcome.interrupted, Some(MemberError::Unauthorized { .. })),
        "{outcome:?}"
    );
    assert!(outcome.failures.is_empty() && world.maps().get_opt("a").await.unwrap().is_none());
}

#[tokio::test]
async fn a_certificate_of_another_authority_is_unreachable() {
    let world = World::new("authority").await;
    let ca = Authority::new("another").unwrap().ca_pem();
    let member = member(world.plane().url(), &ca, "any", MemberLimits::default()).unwrap();
    let error = member.probe(soon()).await.unwrap_err();
    assert!(error.is_connectivity(), "{error:?}");
    assert!(format!("{error:?}").contains("UnknownIssuer"), "{error:?}");
}

#[tokio::test]
async fn a_server_that_accepts_and_never_responds_is_unreachable_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let limits = MemberLimits {
        connect: Duration::from_millis(300),
        request: Duration::from_secs(20),
        ..MemberLimits::default()
    };
    let member = member(&url, &Authority::new("silent").unwrap().ca_pem(), "any", limits).unwrap();
    let start = Instant::now();
    let error = member.probe(soon()).await.unwrap_err();
    assert!(error.is_connectivity(), "{error:?}");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

/// The API server is frozen after the connection was opened: only the timeout of the whole request ends the wait.
#[tokio::test]
async fn a_server_that_stops_responding_is_unreachable_in_time() {
    let server = FixedServer::new("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{");
    let limits = MemberLimits {
        connect: Duration::from_secs(5),
        request: Duration::from_millis(500),
        ..MemberLimits::default()
    };
    let error = server.member(limits).probe(soon()).await.unwrap_err();
    assert!(error.is_connectivity(), "{error:?}");
    assert_eq!(server.served(), 1, "nothing is retried");
}

#[tokio::test]
async fn a_closed_port_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    drop(listener);
    let member = member(
        &url,
        &Authority::new("closed").unwrap().ca_pem(),
        "any",
        MemberLimits::default(),
    )
    .unwrap();
    assert!(member.probe(soon()).await.unwrap_err().is_connectivity());
}

#[tokio::test]
async fn a_deadline_that_has_passed_sends_nothing() {
    let server = FixedServer::new(response("200 OK", "", "{}"));
    let member = server.member(MemberLimits::default());
    let error = member.probe(Instant::now()).await.unwrap_err();
    assert!(
        matches!(error, MemberError::Deadline { .. }) && !error.is_connectivity(),
        "{error:?}"
    );
    assert_eq!((server.served(), member.requests()), (0, 0));
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = FixedServer::new(response("200 OK", "", r#"{"gitVersion":"v1.0.0"}"#));
    for status in [
        "301 Moved Permanently",
        "302 Found",
        "307 Temporary Redirect",
        "308 Permanent Redirect",
    ] {
        let server = FixedServer::new(response(
            status,
            &format!("Location: {}/version\r\n", elsewhere.url),
            "",
        ));
        let error = server
            .member(MemberLimits::default())
            .probe(soon())
            .await
            .unwrap_err();
        assert!(matches!(error, MemberError::Garbage { .. }), "{error:?}");
    }
    assert_eq!(elsewhere.served(), 0);
}

#[tokio::test]
async fn responses_of_other_servers_are_distinguished() {
    let status = r#"{"kind":"Status","reason":"TooManyRequests","details":{"retryAfterSeconds":7}}"#;
    let is = |name: &'static str, test: fn(&MemberError) -> bool| (name, test);
    let cases = [
        (
            response("200 OK", "", "<html>"),
            is("garbage", |e| matches!(e, MemberError::Garbage { .. })),
        ),
        (
            response("200 OK", "", ""),
            is("garbage", |e| matches!(e, MemberError::Garbage { .. })),
        ),
        (
            response("200 OK", "", r#"{"gitVersion":7}"#),
            is("garbage", |e| matches!(e, MemberError::Garbage { .. })),
        ),
        (
            response("404 Not Found", "", "nothing here"),
            is("not served", |e| matches!(e, MemberError::NotServed { .. })),
        ),
        (
            response("503 Unavailable", "", "<html>"),
            is("unreachable", MemberError::is_connectivity),
        ),
        (
            response("500 Oops", "", "x"),
            is("server", |e| matches!(e, MemberError::Server { code: 500, .. })),
        ),
        (
            response("429 Slow", "", status),
            is(
                "throttled",
                |e| matches!(e, MemberError::Throttled { retry_after: Some(pause), .. } if pause.as_secs() == 7),
            ),
        ),
        (
            "SSH-2.0-OpenSSH\r\n".to_owned(),
            is("unreachable", MemberError::is_connectivity),
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{".to_owned(),
            is("cut", MemberError::is_connectivity),
        ),
    ];
    for (response, (name, test)) in cases {
        let error = FixedServer::new(response.clone())
            .member(MemberLimits::default())
            .probe(soon())
            .await
            .unwrap_err();
        assert!(test(&error), "{name}: {response:?} gave {error:?}");
    }
}

#[tokio::test]
async fn a_response_that_quotes_the_token_is_redacted() {
    let body = r#"{"kind":"Status","message":"no rights for Bearer t0ken-of-the-test"}"#;
    let server = FixedServer::new(response("403 Forbidden", "", body));
    let error = server
        .member(MemberLimits::default())
        .probe(soon())
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "get the version: forbidden: no rights for Bearer [token]"
    );
}

#[tokio::test]
async fn an_endless_response_is_cut_off() {
    let limits = MemberLimits {
        response_bytes: 10_000,
        ..MemberLimits::default()
    };
    let endless = format!(
        "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n\"{}",
        "x".repeat(4_000_000)
    );
    for response in [endless, response("200 OK", "", &"x".repeat(10_001))] {
        let error = FixedServer::new(response)
            .member(limits)
            .probe(soon())
            .await
            .unwrap_err();
        assert!(
            matches!(error, MemberError::TooLarge { limit: 10_000, .. }),
            "{error:?}"
        );
    }
}
