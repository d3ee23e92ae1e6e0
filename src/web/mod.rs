//! One request to a server that a user names: a webhook, a Prometheus.
//!
//! Nothing is kept between two requests, as there are minutes between them. Nothing of the process is used but the trust store of the
//! system: no proxy, no environment, no redirects. Link-local and metadata addresses are refused whatever name leads to them;
//! loopback and private networks are not, as a Prometheus lives there.

mod dial;
mod tls;

use std::net::IpAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HOST, RETRY_AFTER, USER_AGENT};
use http::{HeaderName, HeaderValue, Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OnceCell;
use url::Url;

/// From the first byte sent to find the server to the last of its answer.
const DEADLINE: Duration = Duration::from_secs(10);
/// Bytes of an answer.
const ANSWER: usize = 1024 * 1024;
/// How Starling names itself.
const AGENT: HeaderValue = HeaderValue::from_static(concat!("starling/", env!("CARGO_PKG_VERSION")));

/// A request. Has no `Debug`: its headers may sign in.
pub struct Post {
    /// Where it goes, `http://` or `https://`.
    pub url: String,
    /// What the body is.
    pub content_type: &'static str,
    /// More headers; names in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// What is sent.
    pub body: Vec<u8>,
    /// PEM certificates that are trusted besides those of the system.
    pub ca: Option<Vec<u8>>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Its status.
    pub status: u16,
    /// When to come back, as it says.
    pub retry_after: Option<String>,
    /// Its body.
    pub body: Bytes,
}

/// Why there is no answer. None of these shows the URL's query or a header.
#[derive(Debug, thiserror::Error)]
pub enum WebError {
    /// The URL is none that a request can go to.
    #[error("the url cannot be asked: {0}")]
    Url(&'static str),
    /// A header cannot be sent.
    #[error("the header {0} has characters that a header cannot have")]
    Header(&'static str),
    /// The name leads to an address that is nobody's.
    #[error("the url leads to {0}, which is link-local, a metadata server or no host's address")]
    Nobodys(IpAddr),
    /// Nobody took the connection.
    #[error("no connection to {host}")]
    Connect {
        /// Host and port.
        host: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The certificates to trust cannot be read.
    #[error("ca.crt has no certificate that can be read")]
    Authorities,
    /// What answered spoke no HTTP, or went away.
    #[error("no answer from {host}")]
    Exchange {
        /// Host and port.
        host: String,
        /// Why.
        #[source]
        source: hyper::Error,
    },
    /// It took too long.
    #[error("no answer from {0} within {DEADLINE:?}")]
    Deadline(String),
    /// The answer is too long.
    #[error("the answer is longer than {ANSWER} bytes")]
    TooLong,
}

impl WebError {
    /// Whether the same request fails again as long as nobody changes something.
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self {
            Self::Url(_) | Self::Header(_) | Self::Nobodys(_) | Self::TooLong => true,
            Self::Connect { .. } | Self::Authorities | Self::Exchange { .. } | Self::Deadline(_) => false,
        }
    }
}

/// What makes requests.
#[derive(Debug, Default)]
pub struct Web {
    roots: OnceCell<rustls::RootCertStore>,
}

impl Web {
    /// Sends a request and reads its answer, whatever its status.
    ///
    /// # Errors
    /// [`WebError`].
    pub async fn post(&self, post: &Post) -> Result<Reply, WebError> {
        let server = Server::of(&post.url)?;
        let request = request(post, &server)?;
        match tokio::time::timeout(DEADLINE, self.exchange(post, &server, request)).await {
            Ok(answer) => answer,
            Err(_) => Err(WebError::Deadline(server.authority)),
        }
    }

    async fn exchange(
        &self,
        post: &Post,
        server: &Server,
        request: Request<Full<Bytes>>,
    ) -> Result<Reply, WebError> {
        let stream = dial::dial(server).await?;
        if !server.encrypted {
            return over(stream, server, request).await;
        }
        let roots = self.roots.get_or_init(tls::system_roots).await;
        let stream = tls::encrypt(stream, server, roots, post.ca.as_deref()).await?;
        over(stream, server, request).await
    }
}

/// Whom a request goes to.
struct Server {
    host: url::Host<String>,
    port: u16,
    /// Host and port, as the URL has them.
    authority: String,
    encrypted: bool,
    path_and_query: String,
}

impl Server {
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

async fn over(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    server: &Server,
    request: Request<Full<Bytes>>,
) -> Result<Reply, WebError> {
    let broken = |source| WebError::Exchange {
        host: server.authority.clone(),
        source,
    };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let talk = async {
        let answer = sender.send_request(request).await.map_err(broken)?;
        let (head, body) = answer.into_parts();
        let body = read(body, &broken).await?;
        let retry_after = head
            .headers
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok());
        Ok(Reply {
            status: head.status.as_u16(),
            retry_after: retry_after.map(str::to_owned),
            body,
        })
    };
    // The connection does the work of both; it ends with the answer, or before it, which the answer tells better.
    tokio::pin!(talk);
    let mut connection = std::pin::pin!(connection);
    let mut open = true;
    loop {
        tokio::select! {
            biased;
            answer = &mut talk => return answer,
            _ = &mut connection, if open => open = false,
        }
    }
}

async fn read(mut body: Incoming, broken: &impl Fn(hyper::Error) -> WebError) -> Result<Bytes, WebError> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(broken)?.into_data() else {
            continue;
        };
        if bytes.len() + data.len() > ANSWER {
            return Err(WebError::TooLong);
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

#[cfg(test)]
mod tests;
