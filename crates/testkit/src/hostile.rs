//! A TLS server that replies as a test script says: with false, slow, oversized or malformed responses.
//!
//! The script is called for each request. If it returns nothing, the server replies as a small valid API server, so
//! that a client accepts the cluster and sends further requests.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use starling_controlplane::{Authority, Identity, Token, kubeconfig_yaml};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

/// The token in the kubeconfig of every hostile server.
pub const HOSTILE_TOKEN: &str = "t0ken-for-a-hostile-server";
/// Maximum bytes of a head or a body of a request.
const REQUEST_LIMIT: usize = 8 << 20;

/// A received request.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    /// The method.
    pub method: String,
    /// The path without query.
    pub path: String,
    /// The query without question mark.
    pub query: String,
    /// The unparsed head.
    pub head: String,
    /// The body.
    pub body: Bytes,
}

impl ReceivedRequest {
    /// Whether this is a request of a probe.
    #[must_use]
    pub fn is_probe(&self) -> bool {
        self.path == "/version" || self.path == "/api/v1/namespaces/kube-system"
    }

    /// Whether this is a request for an inventory of Starling.
    #[must_use]
    pub fn is_inventory(&self) -> bool {
        self.path.contains("/namespaces/starling-system")
    }

    /// The last segment of the path.
    #[must_use]
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    fn namespace(&self) -> Option<&str> {
        let (_, rest) = self.path.split_once("/namespaces/")?;
        rest.split_once('/').map(|(namespace, _)| namespace)
    }
}

/// How the server replies to a request.
#[derive(Clone, Debug)]
pub enum Reply {
    /// An HTTP response: a status, further header fields (each with its line end), and a body.
    Answer(u16, String, Bytes),
    /// Writes these bytes and closes the connection.
    Raw(Bytes),
    /// Writes the first bytes, and then repeats the second ones forever, with a pause after each.
    Forever(Bytes, Bytes, Duration),
    /// Writes these bytes and keeps the connection open.
    Stall(Bytes),
}

impl Reply {
    /// A JSON response.
    #[must_use]
    pub fn json(code: u16, body: &Value) -> Self {
        Self::text(code, body.to_string())
    }

    /// A response with the content type of JSON.
    pub fn text(code: u16, body: impl Into<Bytes>) -> Self {
        Self::Answer(code, "Content-Type: application/json\r\n".into(), body.into())
    }

    /// The `Status` of an API server for a missing object.
    #[must_use]
    pub fn not_found() -> Self {
        Self::json(
            404,
            &json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "message": "not found", "code": 404}),
        )
    }
}

/// What happens to a connection before the first request.
#[derive(Clone, Debug, Default)]
pub enum Greeting {
    /// TLS.
    #[default]
    Tls,
    /// The connection is accepted and nothing is sent.
    Silence,
    /// These bytes, repeated, instead of TLS.
    Bytes(Bytes),
}

type Script = dyn Fn(&ReceivedRequest) -> Option<Reply> + Send + Sync;

/// The server. Dropping it stops the server and its connections.
pub struct HostileServer {
    port: u16,
    ca_pem: String,
    shared: Arc<Shared>,
    listening: JoinHandle<()>,
}

struct Shared {
    acceptor: TlsAcceptor,
    greeting: Greeting,
    script: Box<Script>,
    requests: Mutex<Vec<ReceivedRequest>>,
    connections: AtomicUsize,
    /// The inventories that were written, by name: without an inventory, nothing is pruned.
    inventories: Mutex<BTreeMap<String, Value>>,
    /// UID of the cluster's `kube-system`, so that two servers are two clusters.
    uid: String,
}

impl HostileServer {
    /// Starts a server with a certificate of its own authority.
    ///
    /// # Errors
    /// If keys cannot be generated or no port is free.
    pub async fn start(
        script: impl Fn(&ReceivedRequest) -> Option<Reply> + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        Self::greeting(Greeting::Tls, script).await
    }

    /// As [`Self::start`], with another greeting.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn greeting(
        greeting: Greeting,
        script: impl Fn(&ReceivedRequest) -> Option<Reply> + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        let authority = Authority::new("hostile")?;
        let identity = authority.issue("hostile", &[])?;
        Self::with_identity(greeting, &identity, authority.ca_pem(), script).await
    }

    /// Starts a server with a given certificate; its kubeconfig trusts `ca_pem`.
    ///
    /// # Errors
    /// If TLS rejects the certificate or no port is free.
    pub async fn with_identity(
        greeting: Greeting,
        identity: &Identity,
        ca_pem: String,
        script: impl Fn(&ReceivedRequest) -> Option<Reply> + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        let certificate = CertificateDer::from_pem_slice(identity.certificate_pem.as_bytes())?;
        let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes())?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            acceptor: TlsAcceptor::from(Arc::new(tls)),
            greeting,
            script: Box::new(script),
            requests: Mutex::default(),
            connections: AtomicUsize::new(0),
            inventories: Mutex::default(),
            uid: format!("00000000-0000-4000-8000-{port:012}"),
        });
        let listening = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self {
            port,
            ca_pem,
            shared,
            listening,
        })
    }

    /// Returns a kubeconfig for this server.
    #[must_use]
    pub fn kubeconfig_yaml(&self) -> String {
        let url = format!("https://127.0.0.1:{}", self.port);
        kubeconfig_yaml("hostile", &url, &self.ca_pem, &Token::new(HOSTILE_TOKEN))
    }

    /// All requests so far.
    #[must_use]
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.shared.lock().clone()
    }

    /// The number of connections so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

impl Drop for HostileServer {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<ReceivedRequest>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reply_to(&self, request: ReceivedRequest) -> Reply {
        let reply = (self.script)(&request).unwrap_or_else(|| self.default_reply(&request));
        self.lock().push(request);
        reply
    }

    /// Replies as a valid API server with an identity and inventories, but without other objects. Accepts every write.
    fn default_reply(&self, request: &ReceivedRequest) -> Reply {
        let metadata = |name: &str| {
            json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {
                "name": name, "namespace": request.namespace().unwrap_or_default(), "uid": self.uid, "resourceVersion": "1"}})
        };
        if request.is_inventory() {
            let mut inventories = self.inventories.lock().unwrap_or_else(PoisonError::into_inner);
            match request.method.as_str() {
                "GET" => {
                    return match inventories.get(request.name()) {
                        Some(stored) => Reply::json(200, stored),
                        None => Reply::not_found(),
                    };
                }
                "PATCH" => {
                    let mut stored: Value = serde_json::from_slice(&request.body).unwrap_or_default();
                    stored["metadata"] = metadata(request.name())["metadata"].clone();
                    inventories.insert(request.name().to_owned(), stored);
                }
                _ => drop(inventories.remove(request.name())),
            }
        }
        match (request.method.as_str(), request.path.as_str()) {
            ("GET", "/version") => Reply::json(200, &json!({"gitVersion": "v1.35.0"})),
            ("GET", "/api/v1/namespaces/kube-system") => Reply::json(200, &metadata("kube-system")),
            ("PATCH", _) => Reply::json(201, &metadata(request.name())),
            ("DELETE", _) => Reply::json(200, &json!({"kind": "Status", "status": "Success"})),
            _ => Reply::not_found(),
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    shared.connections.fetch_add(1, Ordering::SeqCst);
                    connections.spawn(handle_connection(stream, Arc::clone(&shared)));
                }
                Err(error) => tracing::warn!(%error, "connection not accepted"),
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn handle_connection(mut stream: TcpStream, shared: Arc<Shared>) {
    let ended = match &shared.greeting {
        Greeting::Silence => return std::future::pending().await,
        Greeting::Bytes(bytes) => forever(&mut stream, bytes, Duration::ZERO).await,
        Greeting::Tls => match shared.acceptor.accept(stream).await {
            Ok(stream) => serve(stream, &shared).await,
            Err(error) => Err(error),
        },
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "client disconnected");
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, shared: &Shared) -> io::Result<()> {
    while let Some(request) = read_request(&mut stream).await? {
        match shared.reply_to(request) {
            Reply::Answer(code, fields, body) => {
                let head = format!(
                    "HTTP/1.1 {code} Whatever\r\nContent-Length: {}\r\n{fields}\r\n",
                    body.len()
                );
                stream.write_all(head.as_bytes()).await?;
                stream.write_all(&body).await?;
                stream.flush().await?;
            }
            Reply::Raw(bytes) => {
                stream.write_all(&bytes).await?;
                return stream.shutdown().await;
            }
            Reply::Forever(first, then, pause) => {
                stream.write_all(&first).await?;
                return forever(&mut stream, &then, pause).await;
            }
            Reply::Stall(bytes) => {
                stream.write_all(&bytes).await?;
                stream.flush().await?;
                // Until the client disconnects.
                stream.read_u8().await?;
                return Ok(());
            }
        }
    }
    Ok(())
}

async fn forever<S: AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8], pause: Duration) -> io::Result<()> {
    loop {
        stream.write_all(bytes).await?;
        stream.flush().await?;
        tokio::time::sleep(pause).await;
    }
}

/// Reads one request; `None` at the end of the connection.
async fn read_request<S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<Option<ReceivedRequest>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() > REQUEST_LIMIT {
            return Err(io::ErrorKind::InvalidData.into());
        }
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && head.is_empty() => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let length = head
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse().ok())
        .unwrap_or(0_usize);
    let mut body = vec![0; length.min(REQUEST_LIMIT)];
    stream.read_exact(&mut body).await?;
    let mut parts = head.split(' ');
    let method = parts.next().unwrap_or_default().to_owned();
    let target = parts.next().unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    Ok(Some(ReceivedRequest {
        method,
        path: path.to_owned(),
        query: query.to_owned(),
        body: body.into(),
        head,
    }))
}
