//! The HTTP clients of one member, and what they may connect to.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::ConfigExt as _;
use kube::config::AuthInfo;
use starling_core::address::is_nobodys;
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt as _};

use super::error::BoxError;
use super::kubeconfig::{Identity, MemberConfig};
use super::limits::MemberLimits;
use super::network::Network;

/// Bytes of the head of an answer, and of what is read of a body at once. API servers send less than one kilobyte.
const HEAD_BYTES: usize = 64 * 1024;
/// Fields of the head of an answer.
const HEAD_FIELDS: usize = 100;
/// How long a connection waits for the next request before it is closed: over the pauses of an attempt and the first looks at
/// health after it. Each takes 30 KiB here and as much there, and the next look for drift is minutes away. For a probe's,
/// which only its second request uses again, it is shorter than the time to the next probe in any case: that one shall connect
/// anew, and so find out whether that is possible.
const IDLE: Duration = Duration::from_secs(5);
/// Connections of a member that wait at the same time. A burst opens more, and each that ends while another request waits
/// for one is handed on; what is left over is closed.
const IDLE_AT_ONCE: usize = 2;

/// What is sent.
pub(super) type Body = kube::client::Body;

/// Sends requests over connections of its own; each takes one request at a time, since they speak HTTP/1.1.
pub(super) type Http = BoxCloneSyncService<Request<Body>, Response<Incoming>, Error>;

/// The two clients of a member.
pub(super) struct Clients {
    /// For work.
    pub(super) work: Http,
    /// For probes: a lane that is full does not delay them.
    pub(super) probes: Http,
}

impl Clients {
    /// Makes the clients. kube brings TLS; everything else is set here, so nothing is inferred: no proxy, no
    /// environment, no files, no redirects, no compression, no retries. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// If TLS cannot be set up with these certificates, or the address is nobody's.
    pub(super) fn new(
        config: &MemberConfig,
        limits: &MemberLimits,
        network: &Network,
    ) -> Result<Self, BoxError> {
        // A connector does not ask its resolver about a literal address.
        if let Some(address) = literal(&config.server)
            && is_nobodys(address)
        {
            return Err(Nobodys(address).into());
        }
        if let Some(connector) = network.connector() {
            return Ok(Self::over(connector, limits.connect));
        }
        let mut tcp = HttpConnector::new_with_resolver(Resolver(GaiResolver::new()));
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(limits.connect));
        tcp.set_nodelay(true);
        let tls = tls(config).rustls_https_connector_with_connector(tcp)?;
        Ok(Self::over(tls, limits.connect))
    }

    fn over<C>(inner: C, limit: Duration) -> Self
    where
        C: Service<Uri, Error: Into<BoxError>, Future: Send> + Clone + Send + Sync + 'static,
        C::Response: Read + Write + Connection + Unpin + Send + 'static,
    {
        let connector = Within { inner, limit };
        let client = || {
            let client: Client<_, Body> = Client::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .pool_idle_timeout(IDLE)
                .pool_max_idle_per_host(IDLE_AT_ONCE)
                .http1_max_buf_size(HEAD_BYTES)
                .http1_max_headers(HEAD_FIELDS)
                .build(connector.clone());
            Http::new(client)
        };
        Self {
            work: client(),
            probes: client(),
        }
    }
}

/// What kube needs to know for TLS.
fn tls(config: &MemberConfig) -> kube::Config {
    let mut tls = kube::Config::new(config.server.clone());
    tls.root_cert.clone_from(&config.certificate_authority);
    tls.tls_server_name.clone_from(&config.tls_server_name);
    if let Some(Identity { certificate, key }) = &config.identity {
        tls.auth_info = AuthInfo {
            client_certificate_data: Some(certificate.clone()),
            client_key_data: Some(key.0.clone().into()),
            ..AuthInfo::default()
        };
    }
    tls
}

fn literal(server: &Uri) -> Option<IpAddr> {
    let host = server.host()?;
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// An address at which no API server can be: link-local, a cloud's metadata server, or no host's at all.
#[derive(Debug)]
struct Nobodys(IpAddr);

impl fmt::Display for Nobodys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the server leads to {}, which is link-local, a metadata server or no host's address",
            self.0
        )
    }
}

impl std::error::Error for Nobodys {}

/// Resolves names, and keeps what is nobody's address to itself. It is asked each time a connection is made, so a name
/// that changes its answer gains nothing.
#[derive(Clone)]
struct Resolver(GaiResolver);

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let resolving = self.0.call(name);
        async move {
            let (refused, found): (Vec<SocketAddr>, Vec<SocketAddr>) =
                resolving.await?.partition(|address| is_nobodys(address.ip()));
            match refused.first() {
                Some(address) if found.is_empty() => Err(io::Error::other(Nobodys(address.ip()))),
                _ => Ok(found.into_iter()),
            }
        }
        .boxed()
    }
}

/// A connector with a limit for everything that it takes to connect: the name, TCP and TLS.
#[derive(Clone)]
struct Within<C> {
    inner: C,
    limit: Duration,
}

impl<C> Service<Uri> for Within<C>
where
    C: Service<Uri>,
    C::Error: Into<BoxError>,
    C::Future: Send + 'static,
    C::Response: 'static,
{
    type Response = C::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<C::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (connecting, limit) = (self.inner.call(uri), self.limit);
        async move {
            match tokio::time::timeout(limit, connecting).await {
                Ok(connected) => connected.map_err(Into::into),
                Err(_) => Err(format!("no connection within {limit:?}").into()),
            }
        }
        .boxed()
    }
}

/// Sends one request and returns the head of the answer.
pub(super) async fn send(http: &Http, request: Request<Body>) -> Result<Response<Incoming>, Error> {
    http.clone().oneshot(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_addresses_are_seen_in_every_form_that_a_url_has() {
        for (server, address) in [
            ("https://169.254.169.254:6443", Some("169.254.169.254")),
            ("https://[fe80::1]:6443/path", Some("fe80::1")),
            ("https://[::ffff:169.254.1.1]", Some("::ffff:169.254.1.1")),
            ("https://169.254.169.254.example.com", None),
        ] {
            let expected = address.map(|text| text.parse().unwrap());
            assert_eq!(literal(&server.parse().unwrap()), expected, "{server}");
        }
    }

    /// The system's resolver takes such names for the address that they spell.
    #[tokio::test]
    async fn a_name_that_leads_to_nobodys_address_is_refused() {
        let mut resolver = Resolver(GaiResolver::new());
        let mut resolve = async |name: &str| resolver.call(name.parse().unwrap()).await;
        let error = resolve("169.254.169.254").await.unwrap_err();
        assert!(error.to_string().contains("169.254.169.254"), "{error}");
        assert!(resolve("0.0.0.0").await.is_err());
        let found: Vec<_> = resolve("localhost").await.unwrap().collect();
        assert!(found.iter().all(|address| address.ip().is_loopback()) && !found.is_empty());
    }
}
