//! How one member is dialled, and what may be connected to.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use kube::client::ConfigExt as _;
use kube::config::AuthInfo;
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use starling_core::address::is_nobodys;
use tokio_rustls::TlsConnector;
use tower::{Service, ServiceExt as _};

use super::connections::{Connections, Dial};
use super::error::BoxError;
use super::kubeconfig::{Identity, MemberConfig};
use super::limits::MemberLimits;
use super::network::{Network, Stream};

/// What is sent.
pub(super) type Body = kube::client::Body;

/// TLS sessions that may be resumed. A member is one server, of which rustls keeps eight tickets with any number up to this; its
/// default is room for 32 servers, 17 KiB for each member.
const SESSIONS: usize = 8;

/// The connections of a member.
pub(super) struct Clients {
    /// For work.
    pub(super) work: Connections,
    /// For probes: a lane that is full does not delay them.
    pub(super) probes: Connections,
}

impl Clients {
    /// Prepares the connections. kube reads the certificates; everything else is set here, so nothing is inferred: no proxy, no
    /// environment, no files, no redirects, no compression. Must be called inside a tokio runtime.
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
        let dial = match network.dial() {
            Some(dial) => dial,
            None => over_tls(config, limits)?,
        };
        Ok(Self {
            work: Connections::new(dial.clone(), limits.connect),
            probes: Connections::new(dial, limits.connect),
        })
    }
}

/// Dials over the system's network with TLS.
fn over_tls(config: &MemberConfig, limits: &MemberLimits) -> Result<Dial, BoxError> {
    let mut tcp = HttpConnector::new_with_resolver(Resolver(GaiResolver::new()));
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(limits.connect));
    tcp.set_nodelay(true);
    let tls = TlsConnector::from(Arc::new(tls(config)?));
    let name = server_name(config)?;
    Ok(Arc::new(move |uri| {
        let (tcp, tls, name) = (tcp.clone(), tls.clone(), name.clone());
        async move {
            let stream = tcp.oneshot(uri).await?.into_inner();
            Ok(Stream::new(tls.connect(name, stream).await?))
        }
        .boxed()
    }))
}

fn tls(config: &MemberConfig) -> Result<ClientConfig, BoxError> {
    let mut kube = kube::Config::new(config.server.clone());
    kube.root_cert.clone_from(&config.certificate_authority);
    if let Some(Identity { certificate, key }) = &config.identity {
        kube.auth_info = AuthInfo {
            client_certificate_data: Some(certificate.clone()),
            client_key_data: Some(key.0.clone().into()),
            ..AuthInfo::default()
        };
    }
    let mut tls = kube.rustls_client_config()?;
    tls.resumption = Resumption::in_memory_sessions(SESSIONS);
    Ok(tls)
}

/// Whom the certificate of the server has to be about.
fn server_name(config: &MemberConfig) -> Result<ServerName<'static>, BoxError> {
    let host = config.server.host().unwrap_or_default();
    let name = config.tls_server_name.as_deref().unwrap_or(host);
    let name = name.trim_start_matches('[').trim_end_matches(']');
    Ok(ServerName::try_from(name.to_owned())?)
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
