//! A proxy in front of one API server that injects faults.
//!
//! The proxy terminates TLS with its own authority and uses HTTP/1.1 on both sides, with one connection to the server
//! for each connection of a client. Headers are forwarded, so the server receives the client's token. Responses are
//! streamed, watches included; requests are read completely first. The response to an upgrade (`exec`, `port-forward`)
//! is 501.

mod connection;
mod gate;
mod record;
mod rule;
mod upstream;

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use http::Method;
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use starling_controlplane::{
    Authority, ControlPlaneError, Identity, PkiError, client_from_kubeconfig, free_port, kubeconfig_yaml,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use gate::{Gate, Gated};
use record::Record;
use rule::Rule;
use upstream::Dialer;

pub use record::RequestInfo;
pub use rule::{Fault, Hook, Match, RuleHandle, Stage};
pub use upstream::Upstream;

/// How often another port is tried after a process has taken the chosen one.
const PORT_ATTEMPTS: usize = 5;

/// Errors of a proxy itself. Injected faults are not errors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FaultProxyError {
    /// The server's URL cannot be used.
    #[error("server URL {url:?}: {why}")]
    Url {
        /// The URL.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// Keys or certificates could not be generated.
    #[error("credentials of the proxy")]
    Credentials(#[source] PkiError),
    /// A certificate or key is not PEM.
    #[error("malformed PEM")]
    Pem(#[source] rustls::pki_types::pem::Error),
    /// TLS refused a certificate or key.
    #[error("TLS set-up of the proxy")]
    Tls(#[source] rustls::Error),
    /// The proxy could not listen.
    #[error("cannot listen on port {port}")]
    Listen {
        /// The port, 0 if none was free.
        port: u16,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A proxy with a programmable list of faults. Dropping it stops the proxy and its connections.
///
/// Rules apply in the order in which they were added. [`Fault::Latency`] and [`Fault::Hook`] accumulate; the first
/// other fault decides, and later rules neither apply to nor count the request.
#[derive(Debug)]
pub struct FaultProxy {
    upstream: Upstream,
    port: u16,
    ca_pem: String,
    acceptor: Acceptor,
    shared: Arc<Shared>,
    /// The task that accepts connections; empty while connections are refused.
    listening: tokio::sync::Mutex<Option<Listening>>,
}

/// The shared state of all connections of a proxy.
pub(crate) struct Shared {
    dialer: Arc<Dialer>,
    rules: Mutex<Vec<Arc<Rule>>>,
    record: Record,
    gate: Arc<Gate>,
    /// Changes when all connections are to be cut.
    cuts: watch::Sender<u64>,
}

/// Stops the task on drop, and with it the listener and all connections.
#[derive(Debug)]
struct Listening(JoinHandle<()>);

#[derive(Clone)]
struct Acceptor(TlsAcceptor);

impl FaultProxy {
    /// Starts a proxy in front of a server, which need not run yet.
    ///
    /// # Errors
    /// [`FaultProxyError`] if the server's URL or certificate is malformed or no port is free.
    pub async fn start(upstream: impl Into<Upstream>) -> Result<Self, FaultProxyError> {
        let upstream = upstream.into();
        let dialer = Arc::new(Dialer::new(&upstream)?);
        let authority = Authority::new("fault proxy").map_err(FaultProxyError::Credentials)?;
        let identity = authority
            .issue("fault-proxy", &[])
            .map_err(FaultProxyError::Credentials)?;
        let (listener, port) = listen_anywhere().await?;
        let shared = Arc::new(Shared {
            dialer,
            rules: Mutex::default(),
            record: Record::default(),
            gate: Arc::default(),
            cuts: watch::Sender::new(0),
        });
        let acceptor = acceptor(&identity)?;
        let listening = Listening::spawn(listener, acceptor.clone(), Arc::clone(&shared));
        Ok(Self {
            upstream,
            port,
            ca_pem: authority.ca_pem(),
            acceptor,
            shared,
            listening: tokio::sync::Mutex::new(Some(listening)),
        })
    }

    /// Returns the URL that clients use instead of the server's.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}{}", self.port, self.shared.dialer.base_path)
    }

    /// Returns the certificate of the proxy's authority, as PEM.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// Returns a kubeconfig for the proxy with the server's token, all data inline.
    pub fn kubeconfig_yaml(&self) -> String {
        kubeconfig_yaml(
            &self.upstream.name,
            &self.url(),
            &self.ca_pem,
            &self.upstream.token,
        )
    }

    /// Creates a client of the proxy that does not retry.
    ///
    /// # Errors
    /// As for [`client_from_kubeconfig`].
    pub async fn client(&self) -> Result<kube::Client, ControlPlaneError> {
        client_from_kubeconfig(&self.upstream.name, &self.kubeconfig_yaml()).await
    }

    /// Adds a rule: what happens to the requests of a match.
    pub fn on(&self, matching: Match, fault: Fault) -> RuleHandle {
        let rule = Arc::new(Rule::new(matching, fault));
        self.shared
            .rules
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Arc::clone(&rule));
        RuleHandle { rule }
    }

    /// Removes one rule. Its hook is not called any more; any other fault that has already been applied to a request
    /// continues.
    pub fn remove(&self, handle: &RuleHandle) {
        let mut rules = self.shared.rules.lock().unwrap_or_else(PoisonError::into_inner);
        rules.retain(|rule| !Arc::ptr_eq(rule, &handle.rule));
        drop(rules);
        handle.rule.remove();
    }

    /// Removes all rules, as [`Self::remove`], and ends the black hole; a refusing proxy continues to refuse.
    pub fn clear(&self) {
        let mut rules = self.shared.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let removed = std::mem::take(&mut *rules);
        drop(rules);
        removed.iter().for_each(|rule| rule.remove());
        self.black_hole(false);
    }

    /// Blocks all bytes in both directions, on existing and new connections; `false` lets them pass again, without
    /// loss. Connections are still accepted, so the client sees a silent network.
    pub fn black_hole(&self, on: bool) {
        self.shared.gate.set_shut(on);
    }

    /// Cuts all existing connections. New ones are served.
    pub fn cut_connections(&self) {
        self.shared.cuts.send_modify(|count| *count += 1);
    }

    /// Stops listening and cuts all connections, so that clients are refused; `false` listens again on the same
    /// port.
    ///
    /// # Errors
    /// [`FaultProxyError::Listen`] if another process has taken the port meanwhile.
    pub async fn refuse(&self, on: bool) -> Result<(), FaultProxyError> {
        let mut listening = self.listening.lock().await;
        match (on, listening.take()) {
            (true, Some(task)) => task.end().await,
            (false, None) => {
                let listener = listen(self.port).await?;
                *listening = Some(Listening::spawn(
                    listener,
                    self.acceptor.clone(),
                    Arc::clone(&self.shared),
                ));
            }
            (_, unchanged) => *listening = unchanged,
        }
        Ok(())
    }

    /// Returns all received requests in order, including those with a fault.
    pub fn requests(&self) -> Vec<RequestInfo> {
        self.shared.record.all()
    }

    /// Counts the received requests by method and path.
    pub fn counts(&self) -> BTreeMap<(String, String), usize> {
        let mut counts = BTreeMap::new();
        for request in self.requests() {
            *counts
                .entry((request.method.to_string(), request.path))
                .or_insert(0) += 1;
        }
        counts
    }

    /// Counts the received patches, without dry runs, with a path that ends with `path_end`.
    pub fn patches(&self, path_end: &str) -> usize {
        let chosen = |request: &&RequestInfo| request.is_patch() && request.path.ends_with(path_end);
        self.requests().iter().filter(chosen).count()
    }

    /// Counts the received requests with this method and a path that ends with `path_end`.
    pub fn count(&self, method: &Method, path_end: &str) -> usize {
        let chosen = |request: &&RequestInfo| request.method == *method && request.path.ends_with(path_end);
        self.requests().iter().filter(chosen).count()
    }
}

impl Shared {
    /// Returns the current rules: a rule that is added meanwhile applies from the next request on.
    fn rules(&self) -> Vec<Arc<Rule>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Acceptor(..)")
    }
}

impl Listening {
    fn spawn(listener: TcpListener, acceptor: Acceptor, shared: Arc<Shared>) -> Self {
        Self(tokio::spawn(accept(listener, acceptor, shared)))
    }

    /// Ends the task and returns when the listener is closed.
    async fn end(mut self) {
        self.0.abort();
        // The error only reports that the task was aborted.
        let _ = (&mut self.0).await;
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Accepts connections and owns their tasks, which end with this one.
async fn accept(listener: TcpListener, acceptor: Acceptor, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve_until_cut(stream, acceptor.clone(), Arc::clone(&shared)));
                }
                Err(error) => tracing::warn!(%error, "connection not accepted"),
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve_until_cut(stream: TcpStream, Acceptor(acceptor): Acceptor, shared: Arc<Shared>) {
    let mut cuts = shared.cuts.subscribe();
    let serve = async {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY not set");
        }
        match acceptor
            .accept(Gated::new(stream, Arc::clone(&shared.gate)))
            .await
        {
            Ok(stream) => connection::serve(stream, Arc::clone(&shared)).await,
            Err(error) => tracing::debug!(%error, "no TLS connection"),
        }
    };
    tokio::select! {
        () = serve => {}
        _ = cuts.changed() => {}
    }
}

async fn listen(port: u16) -> Result<TcpListener, FaultProxyError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
    listener.map_err(|source| FaultProxyError::Listen { port, source })
}

/// Listens on a port that the proxy can reuse after it has refused connections for a while.
async fn listen_anywhere() -> Result<(TcpListener, u16), FaultProxyError> {
    let mut attempt = 1;
    loop {
        let port = free_port().map_err(|source| FaultProxyError::Listen { port: 0, source })?;
        match listen(port).await {
            Ok(listener) => return Ok((listener, port)),
            Err(error) if attempt == PORT_ATTEMPTS => return Err(error),
            Err(_) => attempt += 1,
        }
    }
}

fn acceptor(identity: &Identity) -> Result<Acceptor, FaultProxyError> {
    let certificate =
        CertificateDer::from_pem_slice(identity.certificate_pem.as_bytes()).map_err(FaultProxyError::Pem)?;
    let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes()).map_err(FaultProxyError::Pem)?;
    let mut config = ServerConfig::builder_with_provider(crypto())
        .with_safe_default_protocol_versions()
        .map_err(FaultProxyError::Tls)?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .map_err(FaultProxyError::Tls)?;
    // Clients that prefer HTTP/2 (kubectl) fall back.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Acceptor(TlsAcceptor::from(Arc::new(config))))
}

/// The cryptography of both sides, named so that no process-wide default is needed.
fn crypto() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}
