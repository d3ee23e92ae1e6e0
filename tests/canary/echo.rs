//! A server that rejects every request and repeats its credentials.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use anyhow::Result;
use axum::Router;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;

type Received = Arc<Mutex<BTreeSet<String>>>;

pub(crate) struct Echo {
    address: std::net::SocketAddr,
    received: Received,
    task: tokio::task::JoinHandle<()>,
}

impl Echo {
    pub(crate) async fn start() -> Result<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let received = Received::default();
        let record = received.clone();
        let app = Router::new().fallback(move |uri: Uri, headers: HeaderMap| respond(record, uri, headers));
        let task = tokio::spawn(async move {
            // The server ends with the test.
            let _ = axum::serve(listener, app).await;
        });
        Ok(Self {
            address,
            received,
            task,
        })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/repo.git", self.address)
    }

    /// Returns the received `Authorization` headers.
    pub(crate) fn authorizations(&self) -> BTreeSet<String> {
        self.received.lock().unwrap().clone()
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn respond(received: Received, uri: Uri, headers: HeaderMap) -> Response {
    let Some(credential) = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
    else {
        let challenge = [(header::WWW_AUTHENTICATE, "Basic realm=\"git\"")];
        return (StatusCode::UNAUTHORIZED, challenge, "who are you?").into_response();
    };
    received.lock().unwrap().insert(credential.to_owned());
    let encoded = credential.rsplit(' ').next().unwrap_or_default();
    let decoded = base64::engine::general_purpose::STANDARD
        .decode(encoded)
        .unwrap_or_default();
    let decoded = String::from_utf8_lossy(&decoded).into_owned();
    let body = format!("{uri}: access denied for {credential} ({decoded})");
    let mut respond = (StatusCode::FORBIDDEN, body).into_response();
    if let Ok(value) = HeaderValue::from_str(&format!("Basic realm=\"{decoded}{encoded}\"")) {
        respond.headers_mut().insert(header::WWW_AUTHENTICATE, value);
    }
    respond
}
