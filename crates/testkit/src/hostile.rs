//! A server that speaks TLS and, beyond that, does whatever a test wants: lies, stalls, floods, talks garbage.
//!
//! A script decides for each request. What it does not decide is answered as a small honest API server would: enough
//! to be taken for a cluster, so that the tricks meet a client that has begun to work.

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
/// Bytes of a head or a body that are read of a client.
const REQUEST_LIMIT: usize = 8 << 20;

/// A request as the script sees it.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The method.
    pub method: String,
    /// The path without query.
    pub path: String,
    /// The query without question mark.
    pub query: String,
    /// The head as it came.
    pub head: String,
    /// The body.
    pub body: Bytes,
}

impl Asked {
    /// Whether this asks who the cluster is.
    #[must_use]
    pub fn is_probe(&self) -> bool {
        self.path == "/version" || self.path == "/api/v1/namespaces/kube-system"
    }

    /// Whether this is about Starling's own inventory.
    #[must_use]
    pub fn is_inventory(&self) -> bool {
        self.path.contains("/namespaces/starling-system")
    }

    /// The last part of the path.
    #[must_use]
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    fn namespace(&self) -> Option<&str> {
        let (_, rest) = self.path.split_once("/namespaces/")?;
        rest.split_once('/').map(|(namespace, _)| namespace)
    }
}

/// What the server does with a request.
#[derive(Clone, Debug)]
pub enum Trick {
    /// Answers in the form of HTTP: a status, fields more (each with its line end), and a body.
    Answer(u16, String, Bytes),
    /// Writes these bytes and closes.
    Raw(Bytes),
    /// Writes the first bytes, and then the second ones for ever, with a pause after each.
    Forever(Bytes, Bytes, Duration),
    /// Writes these bytes and nothing more, and keeps the connection.
    Stall(Bytes),
}

impl Trick {
    /// A JSON answer.
    #[must_use]
    pub fn json(code: u16, body: &Value) -> Self {
        Self::text(code, body.to_string())
    }

    /// An answer that says of itself to be JSON.
    pub fn text(code: u16, body: impl Into<Bytes>) -> Self {
        Self::Answer(code, "Content-Type: application/json\r\n".into(), body.into())
    }

    /// The `Status` of an API server that has no such object.
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
    /// The connection is taken and nothing is said.
    Silence,
    /// These bytes, again and again, in place of TLS.
    Bytes(Bytes),
}

type Script = dyn Fn(&Asked) -> Option<Trick> + Send + Sync;

/// The server; it ends on drop, and its connections with it.
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
    asked: Mutex<Vec<Asked>>,
    connections: AtomicUsize,
    /// The inventories that it was given, by name: without one, nothing is ever pruned.
    inventories: Mutex<BTreeMap<String, Value>>,
    /// UID of the cluster's `kube-system`, so that two servers are two clusters.
    uid: String,
}

impl HostileServer {
    /// Starts a server with a certificate of its own authority.
    ///
    /// # Errors
    /// If keys cannot be made or no port is free.
    pub async fn start(
        script: impl Fn(&Asked) -> Option<Trick> + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        Self::greeting(Greeting::Tls, script).await
    }

    /// As [`Self::start`], with another greeting.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn greeting(
        greeting: Greeting,
        script: impl Fn(&Asked) -> Option<Trick> + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        let authority = Authority::new("hostile")?;
        let identity = authority.issue("hostile", &[])?;
        Self::with_identity(greeting, &identity, authority.ca_pem(), script).await
    }

    /// A server with any certificate; its kubeconfig trusts `ca_pem`.
    ///
    /// # Errors
    /// If TLS does not take the certificate or no port is free.
    pub async fn with_identity(
        greeting: Greeting,
        identity: &Identity,
        ca_pem: String,
        script: impl Fn(&Asked) -> Option<Trick> + Send + Sync + 'static,
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
            asked: Mutex::default(),
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

    /// A kubeconfig that leads here.
    #[must_use]
    pub fn kubeconfig_yaml(&self) -> String {
        let url = format!("https://127.0.0.1:{}", self.port);
        kubeconfig_yaml("hostile", &url, &self.ca_pem, &Token::new(HOSTILE_TOKEN))
    }

    /// All requests so far.
    #[must_use]
    pub fn asked(&self) -> Vec<Asked> {
        self.shared.lock().clone()
    }

    /// How many connections were made so far.
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
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Asked>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn trick(&self, asked: Asked) -> Trick {
        let trick = (self.script)(&asked).unwrap_or_else(|| self.honest(&asked));
        self.lock().push(asked);
        trick
    }

    /// Who the cluster is; nothing is there but inventories, and whatever is written is taken.
    fn honest(&self, asked: &Asked) -> Trick {
        let metadata = |name: &str| {
            json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {
                "name": name, "namespace": asked.namespace().unwrap_or_default(), "uid": self.uid, "resourceVersion": "1"}})
        };
        if asked.is_inventory() {
            let mut inventories = self.inventories.lock().unwrap_or_else(PoisonError::into_inner);
            match asked.method.as_str() {
                "GET" => {
                    return match inventories.get(asked.name()) {
                        Some(stored) => Trick::json(200, stored),
                        None => Trick::not_found(),
                    };
                }
                "PATCH" => {
                    let mut stored: Value = serde_json::from_slice(&asked.body).unwrap_or_default();
                    stored["metadata"] = metadata(asked.name())["metadata"].clone();
                    inventories.insert(asked.name().to_owned(), stored);
                }
                _ => drop(inventories.remove(asked.name())),
            }
        }
        match (asked.method.as_str(), asked.path.as_str()) {
            ("GET", "/version") => Trick::json(200, &json!({"gitVersion": "v1.35.0"})),
            ("GET", "/api/v1/namespaces/kube-system") => Trick::json(200, &metadata("kube-system")),
            ("PATCH", _) => Trick::json(201, &metadata(asked.name())),
            ("DELETE", _) => Trick::json(200, &json!({"kind": "Status", "status": "Success"})),
            _ => Trick::not_found(),
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
                    connections.spawn(greet(stream, Arc::clone(&shared)));
                }
                Err(error) => tracing::warn!(%error, "connection not accepted"),
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn greet(mut stream: TcpStream, shared: Arc<Shared>) {
    let ended = match &shared.greeting {
        Greeting::Silence => return std::future::pending().await,
        Greeting::Bytes(bytes) => forever(&mut stream, bytes, Duration::ZERO).await,
        Greeting::Tls => match shared.acceptor.accept(stream).await {
            Ok(stream) => serve(stream, &shared).await,
            Err(error) => Err(error),
        },
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "client has gone");
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, shared: &Shared) -> io::Result<()> {
    while let Some(asked) = read_request(&mut stream).await? {
        match shared.trick(asked) {
            Trick::Answer(code, fields, body) => {
                let head = format!(
                    "HTTP/1.1 {code} Whatever\r\nContent-Length: {}\r\n{fields}\r\n",
                    body.len()
                );
                stream.write_all(head.as_bytes()).await?;
                stream.write_all(&body).await?;
                stream.flush().await?;
            }
            Trick::Raw(bytes) => {
                stream.write_all(&bytes).await?;
                return stream.shutdown().await;
            }
            Trick::Forever(first, then, pause) => {
                stream.write_all(&first).await?;
                return forever(&mut stream, &then, pause).await;
            }
            Trick::Stall(bytes) => {
                stream.write_all(&bytes).await?;
                stream.flush().await?;
                // Until the client goes away.
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
async fn read_request<S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<Option<Asked>> {
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
    let mut words = head.split(' ');
    let method = words.next().unwrap_or_default().to_owned();
    let target = words.next().unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    Ok(Some(Asked {
        method,
        path: path.to_owned(),
        query: query.to_owned(),
        body: body.into(),
        head,
    }))
}
