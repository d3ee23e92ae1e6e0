//! The API server behind a proxy, and one connection to it.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use starling_controlplane::{ControlPlane, Token};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use super::FaultProxyError;

/// The API server behind a proxy.
#[derive(Debug, Clone)]
pub struct Upstream {
    /// Name in the kubeconfig of the proxy.
    pub name: String,
    /// URL of the server. Its path is part of every request and of the URL in the proxy's kubeconfig.
    pub url: String,
    /// Certificate of the authority of the server, as PEM.
    pub ca_pem: String,
    /// The token in the proxy's kubeconfig.
    pub token: Token,
}

impl From<&ControlPlane> for Upstream {
    fn from(plane: &ControlPlane) -> Self {
        Self {
            name: plane.name().to_owned(),
            url: plane.url().to_owned(),
            ca_pem: plane.ca_pem().to_owned(),
            token: plane.token().clone(),
        }
    }
}

/// Opens connections to one server.
pub(super) struct Dialer {
    host: String,
    port: u16,
    server_name: ServerName<'static>,
    connector: TlsConnector,
    /// The path in the server's URL, without a trailing slash.
    pub(super) base_path: String,
}

impl Dialer {
    pub(super) fn new(upstream: &Upstream) -> Result<Self, FaultProxyError> {
        let bad = |why: &str| FaultProxyError::Url {
            url: upstream.url.clone(),
            why: why.to_owned(),
        };
        let uri: Uri = upstream.url.parse().map_err(|_| bad("not a URL"))?;
        if uri.scheme_str() != Some("https") {
            return Err(bad("not https"));
        }
        let host = uri.host().ok_or_else(|| bad("no host"))?.to_owned();
        let server_name = ServerName::try_from(host.clone()).map_err(|_| bad("no server name"))?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(upstream.ca_pem.as_bytes()) {
            roots
                .add(certificate.map_err(FaultProxyError::Pem)?)
                .map_err(FaultProxyError::Tls)?;
        }
        let mut config = ClientConfig::builder_with_provider(super::crypto())
            .with_safe_default_protocol_versions()
            .map_err(FaultProxyError::Tls)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self {
            host,
            port: uri.port_u16().unwrap_or(443),
            server_name,
            connector: TlsConnector::from(Arc::new(config)),
            base_path: uri.path().trim_end_matches('/').to_owned(),
        })
    }
}

/// A connection to the server that serves one client connection and ends with it.
pub(super) struct Channel {
    dialer: Arc<Dialer>,
    sender: Option<SendRequest<Full<Bytes>>>,
    /// Drives the connection; dropped with the channel, which closes it.
    driver: JoinSet<()>,
}

/// Why a request got no response.
type Broken = Box<dyn std::error::Error + Send + Sync>;

impl Channel {
    pub(super) fn new(dialer: Arc<Dialer>) -> Self {
        Self {
            dialer,
            sender: None,
            driver: JoinSet::new(),
        }
    }

    /// Sends one request and returns the response as soon as its head has arrived.
    ///
    /// A server closes idle connections: a request that such a connection returns unsent is sent on a new one. A
    /// request that may have reached the server is never sent again.
    pub(super) async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Broken> {
        let mut unsent = request;
        if let Some(mut sender) = self.sender.take() {
            match sender.try_send_request(unsent).await {
                Ok(response) => {
                    self.sender = Some(sender);
                    return Ok(response);
                }
                Err(mut error) => match error.take_message() {
                    Some(message) => unsent = message,
                    None => return Err(error.into_error().into()),
                },
            }
        }
        let mut sender = self.dial().await?;
        let response = sender.send_request(unsent).await?;
        self.sender = Some(sender);
        Ok(response)
    }

    async fn dial(&mut self) -> Result<SendRequest<Full<Bytes>>, Broken> {
        let Dialer {
            host,
            port,
            server_name,
            connector,
            base_path: _,
        } = &*self.dialer;
        let stream = TcpStream::connect((host.as_str(), *port)).await?;
        stream.set_nodelay(true)?;
        let stream = connector.connect(server_name.clone(), stream).await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        self.driver.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to the server ended");
            }
        });
        Ok(sender)
    }
}

#[cfg(test)]
mod tests {
    use starling_controlplane::Authority;

    use super::*;

    fn dialer(url: &str, ca_pem: String) -> Result<Dialer, FaultProxyError> {
        Dialer::new(&Upstream {
            name: "a".to_owned(),
            url: url.to_owned(),
            ca_pem,
            token: Token::new("t"),
        })
    }

    #[test]
    fn url_gives_host_port_and_path() {
        let ca_pem = || Authority::new("a").unwrap().ca_pem();
        let found = dialer("https://127.0.0.1:6443/clusters/east/", ca_pem()).unwrap();
        assert_eq!((found.host.as_str(), found.port), ("127.0.0.1", 6443));
        assert_eq!(found.base_path, "/clusters/east");
        let bare = dialer("https://example.com", ca_pem()).unwrap();
        assert_eq!((bare.port, bare.base_path.as_str()), (443, ""));
        for bad in ["http://127.0.0.1:1", "nonsense", "/path"] {
            assert!(
                matches!(dialer(bad, ca_pem()), Err(FaultProxyError::Url { .. })),
                "{bad}"
            );
        }
    }
}
