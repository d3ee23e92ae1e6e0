//! A git server for one token at a time: `git http-backend` behind a small handler that records the requests.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::process::Command;

/// A running server.
pub(crate) struct GitServer {
    url: String,
    shared: Arc<Shared>,
    task: tokio::task::JoinHandle<()>,
}

struct Shared {
    repository: PathBuf,
    state: Mutex<ServerState>,
}

#[derive(Default)]
struct ServerState {
    token: String,
    /// Requests that the token allowed, as `METHOD path`.
    requests: Vec<String>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, ServerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GitServer {
    /// Serves a bare repository to clients with this bearer token.
    pub(crate) async fn start(repository: &Path, token: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/repo.git", listener.local_addr()?);
        let shared = Arc::new(Shared {
            repository: repository.to_owned(),
            state: Mutex::default(),
        });
        let app = Router::new().fallback(handle).with_state(shared.clone());
        let task = tokio::spawn(async move {
            // The server ends with the test.
            let _ = axum::serve(listener, app).await;
        });
        let server = Self { url, shared, task };
        server.set_token(token);
        Ok(server)
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Replaces the token, as a server does that issues tokens for an hour.
    pub(crate) fn set_token(&self, token: &str) {
        token.clone_into(&mut self.shared.state().token);
    }

    /// Returns the requests since the last call that the token allowed.
    pub(crate) fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.state().requests)
    }
}

impl Drop for GitServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn handle(
    State(shared): State<Arc<Shared>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    {
        let mut state = shared.state();
        let expected = format!("Bearer {}", state.token);
        if text(header::AUTHORIZATION) != Some(expected.as_str()) {
            return StatusCode::UNAUTHORIZED.into_response();
        }
        state.requests.push(format!("{method} {}", uri.path()));
    }
    let content_type = text(header::CONTENT_TYPE).unwrap_or_default();
    match backend(&shared.repository, &method, &uri, content_type, body).await {
        Ok(response) => response,
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}")).into_response(),
    }
}

async fn backend(
    repository: &Path,
    method: &Method,
    uri: &Uri,
    content_type: &str,
    body: Bytes,
) -> Result<Response> {
    let path = uri
        .path()
        .strip_prefix("/repo.git")
        .context("another repository")?;
    let root = repository.parent().context("a root")?;
    let name = repository.file_name().context("a name")?.to_string_lossy();
    let mut child = Command::new("git")
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("REQUEST_METHOD", method.as_str())
        .env("PATH_INFO", format!("/{name}{path}"))
        .env("QUERY_STRING", uri.query().unwrap_or_default())
        .env("CONTENT_TYPE", content_type)
        .env("CONTENT_LENGTH", body.len().to_string())
        .env("REMOTE_ADDR", "127.0.0.1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let mut input = child.stdin.take().context("stdin")?;
    // The backend may respond and exit without reading the whole input.
    let (_, output) = tokio::join!(
        async move {
            let _ = input.write_all(&body).await;
        },
        child.wait_with_output()
    );
    let output = output?.stdout;
    let end = output
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .context("headers")?;
    let mut response = Response::builder();
    for line in std::str::from_utf8(&output[..end])?.lines() {
        let (name, value) = line.split_once(": ").context("a header")?;
        response = match name {
            "Status" => response.status(value.get(..3).context("a status")?),
            _ => response.header(name, value),
        };
    }
    Ok(response.body(output[end + 4..].to_vec().into())?)
}
