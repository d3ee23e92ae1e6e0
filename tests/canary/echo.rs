//! A server that refuses everybody and repeats what it was told.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use anyhow::Result;
use axum::Router;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;

type Seen = Arc<Mutex<BTreeSet<String>>>;

pub(crate) struct Echo {
    address: std::net::SocketAddr,
    seen: Seen,
    task: tokio::task::JoinHandle<()>,
}

impl Echo {
    pub(crate) async fn start() -> Result<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let seen = Seen::default();
        let record = seen.clone();
        let app = Router::new().fallback(move |uri: Uri, headers: HeaderMap| answer(record, uri, headers));
        let task = tokio::spawn(async move {
            // It ends with the test.
            let _ = axum::serve(listener, app).await;
        });
        Ok(Self { address, seen, task })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/repo.git", self.address)
    }

    /// What it was told.
    pub(crate) fn authorizations(&self) -> BTreeSet<String> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(seen: Seen, uri: Uri, headers: HeaderMap) -> Response {
    let Some(told) = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
    else {
        let challenge = [(header::WWW_AUTHENTICATE, "Basic realm=\"git\"")];
        return (StatusCode::UNAUTHORIZED, challenge, "who are you?").into_response();
    };
    seen.lock().unwrap().insert(told.to_owned());
    let words = told.rsplit(' ').next().unwrap_or_default();
    let decoded = base64::engine::general_purpose::STANDARD
        .decode(words)
        .unwrap_or_default();
    let decoded = String::from_utf8_lossy(&decoded).into_owned();
    let body = format!("{uri}: access denied for {told} ({decoded})");
    let mut answer = (StatusCode::FORBIDDEN, body).into_response();
    if let Ok(value) = HeaderValue::from_str(&format!("Basic realm=\"{decoded}{words}\"")) {
        answer.headers_mut().insert(header::WWW_AUTHENTICATE, value);
    }
    answer
}
