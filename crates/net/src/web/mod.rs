//! One request to a server that a user names: a webhook, a Prometheus.
//!
//! No connection is kept between two requests, which are minutes apart. Requests use the trust store of the system, but
//! no proxy, no environment and no redirects. Link-local and metadata addresses are refused, whatever name resolves to
//! them. Loopback and private networks are allowed, because a Prometheus usually has such an address.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, RETRY_AFTER, USER_AGENT};
use http::{HeaderName, HeaderValue, Method, Request};
use http_body_util::Full;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OnceCell;
use url::Url;

use crate::dial::{ConnectTimeout, DialError, Dialler, Egress, Reach};
use crate::exchange::{self, BodyError};
use crate::rules::AddressRules;
use crate::tls::{self, TlsError, Trust};

/// From name resolution to the last byte of the response.
const DEADLINE: Duration = Duration::from_secs(10);
/// Maximum bytes of a response.
const RESPONSE_BYTES: u64 = 1024 * 1024;
/// The user agent.
const AGENT: HeaderValue = HeaderValue::from_static(concat!("starling/", env!("CARGO_PKG_VERSION")));

/// A request. Has no `Debug`: its headers may contain credentials.
pub struct Post {
    /// The target, `http://` or `https://`.
    pub url: String,
    /// The content type of the body.
    pub content_type: &'static str,
    /// Additional headers; names in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// PEM certificates that are trusted besides those of the system.
    pub ca: Option<Vec<u8>>,
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Its status.
    pub status: u16,
    /// The value of `Retry-After`.
    pub retry_after: Option<String>,
    /// Its body.
    pub body: Bytes,
}

/// Why there is no response. No error contains the query of the URL or a header.
#[derive(Debug, thiserror::Error)]
pub enum WebError {
    /// The URL is not valid for a request.
    #[error("invalid url: {0}")]
    Url(&'static str),
    /// A header cannot be sent.
    #[error("the header {0} has characters that a header cannot have")]
    Header(&'static str),
    /// The name resolves to an address that is never connected to.
    #[error("the url resolves to {0}, which is link-local, a metadata server or not a host address")]
    ForbiddenAddress(IpAddr),
    /// The name resolves to an address that the lists of the operator exclude.
    #[error("the url resolves to {0}, which the operator of Starling does not allow")]
    DeniedAddress(IpAddr),
    /// No server accepted the connection.
    #[error("no connection to {host}")]
    Connect {
        /// Host and port.
        host: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The certificates to trust cannot be read.
    #[error("ca.crt has no certificate that can be read")]
    Authorities,
    /// The server does not speak HTTP, or closed the connection.
    #[error("no response from {host}")]
    Exchange {
        /// Host and port.
        host: String,
        /// The cause.
        #[source]
        source: hyper::Error,
    },
    /// The deadline passed.
    #[error("no response from {0} within {DEADLINE:?}")]
    Deadline(String),
    /// The response is too long.
    #[error("the response is longer than {RESPONSE_BYTES} bytes")]
    TooLong,
}

impl WebError {
    /// Whether the same request fails again without a change by a user.
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self {
            Self::Url(_)
            | Self::Header(_)
            | Self::ForbiddenAddress(_)
            | Self::DeniedAddress(_)
            | Self::TooLong => true,
            Self::Connect { .. } | Self::Authorities | Self::Exchange { .. } | Self::Deadline(_) => false,
        }
    }
}

/// The client.
#[derive(Debug, Default)]
pub struct Web {
    rules: AddressRules,
    roots: OnceCell<rustls::RootCertStore>,
}

impl Web {
    /// A client that connects to these addresses only.
    #[must_use]
    pub fn with_rules(rules: AddressRules) -> Self {
        Self {
            rules,
            ..Self::default()
        }
    }

    /// Sends a request and reads its response, whatever its status.
    ///
    /// # Errors
    /// [`WebError`].
    pub async fn post(&self, post: &Post) -> Result<Reply, WebError> {
        let server = Server::of(&post.url)?;
        let request = request(post, &server)?;
        match tokio::time::timeout(DEADLINE, self.exchange(post, &server, request)).await {
            Ok(response) => response,
            Err(_) => Err(WebError::Deadline(server.authority)),
        }
    }

    async fn exchange(
        &self,
        post: &Post,
        server: &Server,
        request: Request<Full<Bytes>>,
    ) -> Result<Reply, WebError> {
        // The deadline of the whole request also covers connecting.
        let dialler = Dialler::new(
            Egress::Direct,
            Reach::Servers,
            self.rules.clone(),
            ConnectTimeout::Each(DEADLINE),
        );
        let stream = dialler.dial(&server.host, server.port).await;
        let stream = stream.map_err(|error| match error {
            DialError::Resolve(source) | DialError::Connect(source) => server.failed(source),
            DialError::ForbiddenAddress(address) => WebError::ForbiddenAddress(address),
            DialError::DeniedAddress(address) => WebError::DeniedAddress(address),
        })?;
        if !server.encrypted {
            return send_over(stream, server, request).await;
        }
        let roots = self.roots.get_or_init(system_roots).await;
        let name = tls::server_name(&server.host.to_string())
            .map_err(|_| WebError::Url("its host is no name that a certificate can have"))?;
        let config = Trust::with_bundle(roots, post.ca.as_deref()).and_then(|trust| tls::client(trust, None));
        let config = config.map_err(|error| match error {
            TlsError::Bundle => WebError::Authorities,
            error => server.failed(std::io::Error::other(error)),
        })?;
        let stream = tls::encrypt(stream, name, Arc::new(config)).await;
        send_over(stream.map_err(|source| server.failed(source))?, server, request).await
    }
}

/// Loads the certificate authorities of the system.
async fn system_roots() -> rustls::RootCertStore {
    // If the task panics, only the authorities that a Secret names are trusted.
    tokio::task::spawn_blocking(tls::system_roots)
        .await
        .unwrap_or_else(|_| rustls::RootCertStore::empty())
}

/// The server of a request.
struct Server {
    host: url::Host<String>,
    port: u16,
    /// Host and port, as the URL has them.
    authority: String,
    encrypted: bool,
    path_and_query: String,
}

impl Server {
    fn failed(&self, source: std::io::Error) -> WebError {
        WebError::Connect {
            host: self.authority.clone(),
            source,
        }
    }

    fn of(url: &str) -> Result<Self, WebError> {
        let url = Url::parse(url).map_err(|_| WebError::Url("it is no URL"))?;
        let encrypted = match url.scheme() {
            "https" => true,
            "http" => false,
            _ => return Err(WebError::Url("it is neither http:// nor https://")),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(WebError::Url(
                "it has credentials in it, which belong into the Secret",
            ));
        }
        let host = url.host().ok_or(WebError::Url("it has no host"))?.to_owned();
        let port = url
            .port_or_known_default()
            .ok_or(WebError::Url("it has no port"))?;
        let authority = match url.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_string(),
        };
        Ok(Self {
            host,
            port,
            authority,
            encrypted,
            path_and_query: url[url::Position::BeforePath..url::Position::AfterQuery].to_owned(),
        })
    }
}

fn request(post: &Post, server: &Server) -> Result<Request<Full<Bytes>>, WebError> {
    let host =
        HeaderValue::from_str(&server.authority).map_err(|_| WebError::Url("its host is no host's name"))?;
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(&server.path_and_query)
        .header(HOST, host)
        .header(USER_AGENT, AGENT)
        .header(CONTENT_TYPE, post.content_type);
    for (name, value) in &post.headers {
        let mut value = HeaderValue::from_str(value).map_err(|_| WebError::Header(name))?;
        value.set_sensitive(true);
        request = request.header(HeaderName::from_static(name), value);
    }
    let body = Full::new(Bytes::copy_from_slice(&post.body));
    request.body(body).map_err(|_| WebError::Url("it is no URL"))
}

async fn send_over(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    server: &Server,
    request: Request<Full<Bytes>>,
) -> Result<Reply, WebError> {
    let broken = |source| WebError::Exchange {
        host: server.authority.clone(),
        source,
    };
    let response = exchange::send(stream, request).await.map_err(broken)?;
    let status = response.head.status.as_u16();
    let retry_after = response
        .head
        .headers
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned);
    let body = response
        .body(RESPONSE_BYTES)
        .whole()
        .await
        .map_err(|error| match error {
            BodyError::TooLong(_) => WebError::TooLong,
            BodyError::Broken(source) => broken(source),
            BodyError::Stopped(_) => WebError::Deadline(server.authority.clone()),
        })?;
    Ok(Reply {
        status,
        retry_after,
        body,
    })
}

#[cfg(test)]
mod tests;
