//! Git over http: the real `git http-backend`, behind a small CGI handler that counts and records requests.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;

/// A running server; requests are recorded as "METHOD path?query".
pub(crate) struct GitServer {
    pub(crate) address: SocketAddr,
    state: Arc<ServerState>,
    task: tokio::task::JoinHandle<()>,
}

struct ServerState {
    root: PathBuf,
    authorization: Mutex<Option<String>>,
    requests: Mutex<Vec<String>>,
    hosts: Mutex<Vec<String>>,
    corruption: Mutex<Option<Corruption>>,
}

/// A change of a response with a pack before it is sent.
pub(crate) type Corruption = fn(Vec<u8>) -> Vec<u8>;

impl GitServer {
    /// Serves the repositories below `root` to everybody.
    pub(crate) async fn open(root: PathBuf) -> Self {
        Self::start(root, None).await
    }

    /// Serves the repositories to one user.
    pub(crate) async fn with_password(root: PathBuf, user: &str, password: &str) -> Self {
        let value = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
        Self::start(root, Some(format!("Basic {value}"))).await
    }

    /// Serves the repositories to clients with a token.
    pub(crate) async fn with_token(root: PathBuf, token: &str) -> Self {
        Self::start(root, Some(format!("Bearer {token}"))).await
    }

    async fn start(root: PathBuf, authorization: Option<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(ServerState {
            root,
            authorization: Mutex::new(authorization),
            requests: Mutex::default(),
            hosts: Mutex::default(),
            corruption: Mutex::default(),
        });
        let app = Router::new().fallback(handle).with_state(Arc::clone(&state));
        let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { address, state, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/repo.git", self.address)
    }

    /// Serves the repositories to clients with another token.
    pub(crate) fn set_token(&self, token: &str) {
        *self.state.authorization.lock().unwrap() = Some(format!("Bearer {token}"));
    }

    /// Returns the requests since the last call.
    pub(crate) fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.requests.lock().unwrap())
    }

    /// Changes every following response with a pack.
    pub(crate) fn corruption(&self, corruption: Option<Corruption>) {
        *self.state.corruption.lock().unwrap() = corruption;
    }

    pub(crate) fn hosts(&self) -> Vec<String> {
        self.state.hosts.lock().unwrap().clone()
    }
}

impl Drop for GitServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn handle(
    State(state): State<Arc<ServerState>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    state.requests.lock().unwrap().push(format!("{method} {uri}"));
    let text = |name| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
            .to_owned()
    };
    state.hosts.lock().unwrap().push(text(header::HOST));
    if state
        .authorization
        .lock()
        .unwrap()
        .as_ref()
        .is_some_and(|expected| *expected != text(header::AUTHORIZATION))
    {
        let challenge = [(header::WWW_AUTHENTICATE, "Basic realm=\"git\"")];
        return (StatusCode::UNAUTHORIZED, challenge).into_response();
    }
    if let Some(rest) = uri.path().strip_prefix("/old") {
        let location = format!("/repo.git{rest}?{}", uri.query().unwrap_or_default());
        return (StatusCode::MOVED_PERMANENTLY, [(header::LOCATION, location)]).into_response();
    }
    let mut backend = Command::new("git");
    backend
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", &state.root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("HOME", &state.root)
        .env("REQUEST_METHOD", method.as_str())
        .env("PATH_INFO", uri.path())
        .env("QUERY_STRING", uri.query().unwrap_or_default())
        .env("CONTENT_TYPE", text(header::CONTENT_TYPE))
        .env("CONTENT_LENGTH", body.len().to_string())
        .env("REMOTE_ADDR", "127.0.0.1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let mut child = backend.spawn().expect("these tests need git");
    let mut input = child.stdin.take().unwrap();
    // The backend may respond and exit without reading the whole input.
    let (_, output) = tokio::join!(
        async move {
            let _ = input.write_all(&body).await;
        },
        child.wait_with_output()
    );
    let mut output = output.unwrap().stdout;
    let corruption = *state.corruption.lock().unwrap();
    if let Some(corruption) = corruption.filter(|_| method == Method::POST) {
        output = corruption(output);
    }
    cgi_response(&output)
}

fn cgi_response(output: &[u8]) -> Response {
    let end = output
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .expect("CGI headers");
    let mut response = Response::builder();
    for line in std::str::from_utf8(&output[..end]).unwrap().lines() {
        let (name, value) = line.split_once(": ").unwrap();
        response = match name {
            "Status" => response.status(value[..3].parse::<u16>().unwrap()),
            _ => response.header(name, value),
        };
    }
    response.body(output[end + 4..].to_vec().into()).unwrap()
}

/// Starts a server that sends the same response to every request; returns its address and the received `Authorization`
/// headers.
pub(crate) async fn constant(
    status: StatusCode,
    location: Option<String>,
) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let record = Arc::clone(&seen);
    let app = Router::new().fallback(move |headers: HeaderMap| {
        let sent = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok());
        record.lock().unwrap().push(sent.unwrap_or_default().to_owned());
        let location = location.clone();
        async move {
            match location {
                Some(location) => (status, [(header::LOCATION, location)]).into_response(),
                None => status.into_response(),
            }
        }
    });
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    (address, seen)
}

/// Starts a server that accepts connections and never sends anything.
pub(crate) async fn silent() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            kept.push(stream);
        }
    });
    address
}

/// TLS in front of a plain server. The certificate chain and key come from the caller.
pub(crate) async fn tls(
    to: SocketAddr,
    chain: Vec<rustls::pki_types::CertificateDer<'static>>,
    key: rustls::pki_types::PrivateKeyDer<'static>,
) -> SocketAddr {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut client) = acceptor.accept(stream).await else {
                    return;
                };
                let mut server = TcpStream::connect(to).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    address
}
