use axum::Router;
use axum::body::Body;
use axum::extract::Request as ReceivedRequest;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::post;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::*;
use crate::rules::{AddressLists, Purpose};

fn to(url: &str) -> Post {
    Post {
        url: url.to_owned(),
        content_type: "application/json",
        headers: vec![("idempotency-key", "k".to_owned())],
        body: b"{}".to_vec(),
        ca: None,
    }
}

/// Responds with the received request.
async fn echo(asked: ReceivedRequest) -> Response {
    let header = |name: &str| {
        let value = asked.headers().get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    let parts = [
        asked.method().to_string(),
        asked.uri().to_string(),
        header("host"),
        header("content-type"),
        header("idempotency-key"),
    ];
    let body = parts.join(" ");
    ([("retry-after", "7")], body).into_response()
}

async fn listen(app: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address.to_string()
}

fn app() -> Router {
    Router::new()
        .route("/gate", post(echo))
        .route("/away", post(|| async { Redirect::temporary("/gate") }))
        .route(
            "/long",
            post(|| async { Body::from(vec![b'x'; usize::try_from(RESPONSE_BYTES).unwrap() + 1]) }),
        )
}

#[tokio::test]
async fn a_request_arrives_and_its_response_is_returned() {
    let address = listen(app()).await;
    let web = Web::default();
    let reply = web
        .post(&to(&format!("http://{address}/gate?a=b%20c")))
        .await
        .unwrap();
    assert_eq!((reply.status, reply.retry_after.as_deref()), (200, Some("7")));
    let parts = String::from_utf8(reply.body.to_vec()).unwrap();
    assert_eq!(parts, format!("POST /gate?a=b%20c {address} application/json k"));
    let reply = web.post(&to(&format!("http://{address}/away"))).await.unwrap();
    assert_eq!(reply.status, 307, "it is not followed");
    let error = web
        .post(&to(&format!("http://{address}/long")))
        .await
        .unwrap_err();
    assert!(matches!(error, WebError::TooLong) && error.is_final());
}

#[tokio::test]
async fn errors_do_not_contain_the_secrets_of_a_url() {
    let web = Web::default();
    for (url, expected) in [
        ("ftp://h/hunter2", "neither http:// nor https://"),
        ("https://user:hunter2@h/", "credentials"),
        ("http://169.254.169.254/latest?hunter2", "metadata server"),
        ("http://[fd00:ec2::254]/hunter2", "metadata server"),
        ("hunter2", "no URL"),
    ] {
        let error = web.post(&to(url)).await.unwrap_err();
        let text = crate::chain(&error);
        assert!(text.contains(expected) && error.is_final(), "{url}: {text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
    // No server listens there any more.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = web
        .post(&to(&format!("http://{address}/?hunter2")))
        .await
        .unwrap_err();
    assert!(matches!(error, WebError::Connect { .. }) && !error.is_final());
    assert!(!crate::chain(&error).contains("hunter2"));
}

#[tokio::test]
async fn a_server_needs_a_certificate_with_its_name_from_a_trusted_authority() {
    let certificate = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(certificate.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.cert.der().clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(stream) = acceptor.accept(stream).await else {
                continue;
            };
            let service = hyper_util::service::TowerToHyperService::new(app());
            let serving = hyper::server::conn::http1::Builder::new();
            tokio::spawn(serving.serve_connection(TokioIo::new(stream), service));
        }
    });
    let web = Web::default();
    let url = format!("https://localhost:{port}/gate");
    let untrusted = web.post(&to(&url)).await.unwrap_err();
    assert!(matches!(untrusted, WebError::Connect { .. }), "{untrusted}");
    let trusting = |pem: &[u8], url: &str| Post {
        ca: Some(pem.to_vec()),
        ..to(url)
    };
    let reply = web
        .post(&trusting(certificate.cert.pem().as_bytes(), &url))
        .await
        .unwrap();
    assert_eq!(reply.status, 200);
    let other_name = format!("https://127.0.0.1:{port}/gate");
    let error = web
        .post(&trusting(certificate.cert.pem().as_bytes(), &other_name))
        .await
        .unwrap_err();
    assert!(matches!(error, WebError::Connect { .. }), "{error}");
    let error = web.post(&trusting(b"hunter2", &url)).await.unwrap_err();
    assert!(matches!(error, WebError::Authorities));
}

#[tokio::test]
async fn tenant_addresses_that_the_operator_denies_are_not_connected_to() {
    let url = format!("http://{}/gate", listen(app()).await);
    let lists = AddressLists {
        allowed: Vec::new(),
        denied: vec!["gates=127.0.0.0/8".parse().unwrap()],
    };
    let denied = Web::with_rules(lists.rules(Purpose::Gates)).post(&to(&url)).await;
    assert!(matches!(denied, Err(WebError::DeniedAddress(_))), "{denied:?}");
    let other = Web::with_rules(lists.rules(Purpose::Git)).post(&to(&url)).await;
    assert!(other.is_ok(), "{other:?}");
}
