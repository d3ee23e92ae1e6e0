//! git's smart protocol over http and https.
//!
//! libgit2's own http client is not used. In 1.9.7 a redirect without a query ends the process (a null
//! pointer in `remove_service_suffix`), a refused certificate behind a proxy writes to freed memory, and a
//! silent server holds a thread for ever. This one is async: dropping the future closes the connection.

use std::error::Error as StdError;
use std::fmt::Write as _;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{self, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::RootCertStore;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use url::{Host, Url};

use super::access::RepoAccess;
use super::dial::{DialError, dial};
use super::error::{Cause, GitError, Refusal};
use super::limits::GitLimits;
use super::smart::{Advertisement, AdvertisementReader, AnswerReader, Packets, ProtocolError};
use super::tls;

/// Redirects followed for one list of refs, all on the same server. One is usual: a renamed repository, a
/// missing ".git".
const MAX_REDIRECTS: usize = 3;

/// Some servers look for "git/" before they take a request for git's.
const USER_AGENT: &str = concat!("git/starling-", env!("CARGO_PKG_VERSION"));

const SERVICE: &str = "/info/refs";
const SERVICE_QUERY: &str = "service=git-upload-pack";
const LIST_TYPE: &str = "application/x-git-upload-pack-advertisement";
const REQUEST_TYPE: &str = "application/x-git-upload-pack-request";
const RESULT_TYPE: &str = "application/x-git-upload-pack-result";

/// A piece of a pack on its way to the mirror.
#[derive(Debug)]
pub(super) enum Piece {
    Data(Bytes),
    /// The pack is complete. Without this, a connection that broke off would look like a pack's end.
    End,
}

/// One repository on one server.
pub(super) struct Remote<'a> {
    access: &'a RepoAccess,
    limits: &'a GitLimits,
    authorization: Option<HeaderValue>,
    tls: Option<TlsConnector>,
}

/// A list of refs and where it finally came from.
pub(super) struct Listing {
    pub(super) refs: Advertisement,
    base: Url,
}

impl<'a> Remote<'a> {
    /// Checks what can be checked before anything is sent.
    pub(super) fn new(
        access: &'a RepoAccess,
        limits: &'a GitLimits,
        system: &RootCertStore,
    ) -> Result<Self, GitError> {
        let authorization = access.credential().header();
        let authorization =
            authorization.ok_or_else(|| GitError::refused(access, Refusal::CredentialText))?;
        let tls = if access.url().is_https() {
            let config = tls::client(system, access.ca_pem());
            Some(TlsConnector::from(
                config.ok_or_else(|| GitError::refused(access, Refusal::CaBundle))?,
            ))
        } else {
            None
        };
        Ok(Self {
            access,
            limits,
            authorization,
            tls,
        })
    }

    /// Asks for the heads and tags.
    pub(super) async fn list(&self) -> Result<Listing, GitError> {
        let mut base = self.access.url().as_url().clone();
        for _ in 0..=MAX_REDIRECTS {
            let target = format!("{}{SERVICE}?{SERVICE_QUERY}", base.path());
            let mut answer = self.send(Method::GET, &target, Bytes::new()).await?;
            if !answer.response.status().is_redirection() {
                self.check(&answer.response, LIST_TYPE)?;
                let refs = self.read_list(&mut answer).await?;
                return Ok(Listing { refs, base });
            }
            let location = answer
                .response
                .headers()
                .get(header::LOCATION)
                .and_then(|to| to.to_str().ok());
            let next = location.and_then(|to| redirected(&base, &target, to));
            base = next.ok_or_else(|| GitError::refused(self.access, Refusal::Redirect))?;
        }
        Err(GitError::refused(self.access, Refusal::Redirect))
    }

    /// Sends a request made by [`Advertisement::request`] and hands the pack on, piece by piece.
    ///
    /// Ends without an error if the receiver went away: why is the receiver's to say.
    pub(super) async fn fetch(
        &self,
        listing: &Listing,
        body: Vec<u8>,
        pack: mpsc::Sender<Piece>,
    ) -> Result<(), GitError> {
        let target = format!("{}/git-upload-pack", listing.base.path());
        let mut answer = self.send(Method::POST, &target, body.into()).await?;
        if answer.response.status().is_redirection() {
            return Err(GitError::refused(self.access, Refusal::Redirect));
        }
        self.check(&answer.response, RESULT_TYPE)?;
        let (mut packets, mut reader, mut received) = (Packets::default(), AnswerReader::default(), 0);
        while let Some(bytes) = self
            .next(&mut answer, &mut received, self.limits.max_transfer_bytes)
            .await?
        {
            packets.push(&bytes);
            while let Some(packet) = packets.next().map_err(|error| self.protocol(error))? {
                let piece = reader.take(packet).map_err(|error| self.protocol(error))?;
                if let Some(piece) = piece
                    && pack.send(Piece::Data(piece)).await.is_err()
                {
                    return Ok(());
                }
            }
        }
        if !reader.is_done() {
            return Err(self.protocol(ProtocolError::Early));
        }
        let _ = pack.send(Piece::End).await;
        Ok(())
    }

    async fn read_list(&self, answer: &mut Answer) -> Result<Advertisement, GitError> {
        let mut packets = Packets::default();
        let mut reader = AdvertisementReader::new(self.limits.max_refs);
        let mut received = 0;
        while let Some(bytes) = self
            .next(answer, &mut received, self.limits.max_listing_bytes)
            .await?
        {
            packets.push(&bytes);
            while let Some(packet) = packets.next().map_err(|error| self.protocol(error))? {
                if reader.take(&packet).map_err(|error| self.protocol(error))? {
                    return reader.finish().map_err(|error| self.protocol(error));
                }
            }
        }
        reader.finish().map_err(|error| self.protocol(error))
    }

    /// The next bytes of an answer, counted.
    async fn next(
        &self,
        answer: &mut Answer,
        received: &mut u64,
        limit: u64,
    ) -> Result<Option<Bytes>, GitError> {
        while let Some(frame) = answer.response.body_mut().frame().await {
            let frame = frame.map_err(|error| self.unreachable(&error))?;
            if let Ok(bytes) = frame.into_data() {
                *received += bytes.len() as u64;
                if *received > limit {
                    return Err(GitError::refused(self.access, Refusal::TransferBytes { limit }));
                }
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }

    /// One request on a connection of its own. A poll needs no more than one, and a fetch is rare.
    async fn send(&self, method: Method, target: &str, body: Bytes) -> Result<Answer, GitError> {
        let Some((host, port)) = self.access.url().endpoint() else {
            return Err(GitError::other(self.access, "the URL names no server"));
        };
        let request = self.request(method, target, body, &host, port);
        let request = request.map_err(|error| GitError::other(self.access, &error.to_string()))?;
        let local_allowed = self.access.url().insecure_allowed();
        let stream = dial(&host, port, local_allowed, self.limits.connect_timeout).await;
        let stream = stream.map_err(|error| match error {
            DialError::Io(error) => self.unreachable(&error),
            DialError::Local(address) => GitError::refused(self.access, Refusal::Address { address }),
        })?;
        match &self.tls {
            None => self.exchange(stream, request).await,
            Some(tls) => {
                let name = match &host {
                    Host::Domain(name) => {
                        ServerName::try_from(name.clone()).map_err(|e| self.unreachable(&e))?
                    }
                    Host::Ipv4(address) => ServerName::from(std::net::IpAddr::from(*address)),
                    Host::Ipv6(address) => ServerName::from(std::net::IpAddr::from(*address)),
                };
                let stream = tls
                    .connect(name, stream)
                    .await
                    .map_err(|error| self.handshake(&error))?;
                self.exchange(stream, request).await
            }
        }
    }

    fn request(
        &self,
        method: Method,
        target: &str,
        body: Bytes,
        host: &Host<String>,
        port: u16,
    ) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
        let default = if self.access.url().is_https() { 443 } else { 80 };
        let host = if port == default {
            host.to_string()
        } else {
            format!("{host}:{port}")
        };
        let mut request = Request::builder()
            .uri(target)
            .header(header::HOST, host)
            .header(header::USER_AGENT, USER_AGENT)
            // Compressed bytes would have to be counted twice; packs are compressed anyway.
            .header(header::ACCEPT_ENCODING, "identity");
        request = match method {
            Method::POST => request
                .header(header::CONTENT_TYPE, REQUEST_TYPE)
                .header(header::ACCEPT, RESULT_TYPE),
            _ => request.header(header::ACCEPT, "*/*"),
        };
        if let Some(value) = &self.authorization {
            request = request.header(header::AUTHORIZATION, value.clone());
        }
        request.method(method).body(Full::new(body))
    }

    async fn exchange(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        request: Request<Full<Bytes>>,
    ) -> Result<Answer, GitError> {
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| self.unreachable(&error))?;
        let connection = Connection(tokio::spawn(async move {
            // Its error also ends the request or its body, and is told there.
            let _ = connection.await;
        }));
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| self.unreachable(&error))?;
        Ok(Answer {
            response,
            _connection: connection,
        })
    }

    /// Reads the status; what is left has the content that was asked for.
    fn check(&self, response: &Response<Incoming>, content_type: &str) -> Result<(), GitError> {
        let repo = || self.access.url().clone();
        let status = response.status();
        let told = || Cause::new(&format!("the server answers {status}"), self.access);
        match status {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                return Err(GitError::Auth {
                    repo: repo(),
                    source: told(),
                });
            }
            StatusCode::NOT_FOUND | StatusCode::GONE => {
                return Err(GitError::not_found(self.access, "the repository"));
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => {
                return Err(GitError::Unreachable {
                    repo: repo(),
                    source: told(),
                });
            }
            status if status.is_server_error() => {
                return Err(GitError::Unreachable {
                    repo: repo(),
                    source: told(),
                });
            }
            _ => {
                return Err(GitError::Other {
                    repo: repo(),
                    source: told(),
                });
            }
        }
        let sent = response
            .headers()
            .get(header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok());
        if sent != Some(content_type) {
            return Err(GitError::other(
                self.access,
                "the server does not speak git's smart protocol there",
            ));
        }
        Ok(())
    }

    fn handshake(&self, error: &std::io::Error) -> GitError {
        let cause = error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match cause {
            Some(cause @ rustls::Error::InvalidCertificate(_)) => GitError::Untrusted {
                repo: self.access.url().clone(),
                source: Cause::new(&cause.to_string(), self.access),
            },
            _ => self.unreachable(error),
        }
    }

    fn unreachable(&self, error: &dyn StdError) -> GitError {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let _ = write!(text, ": {cause}");
            source = cause.source();
        }
        GitError::unreachable(self.access, &text)
    }

    pub(super) fn protocol(&self, error: ProtocolError) -> GitError {
        match error {
            ProtocolError::TooManyRefs(limit) => GitError::refused(self.access, Refusal::Refs { limit }),
            ProtocolError::Early => GitError::unreachable(self.access, &error.to_string()),
            error => GitError::other(self.access, &error.to_string()),
        }
    }
}

/// A response whose body is still coming, and the connection it comes by.
struct Answer {
    response: Response<Incoming>,
    _connection: Connection,
}

/// The task that moves a connection's bytes; ends with whoever waits for them.
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Where a redirect of `target` leads, if that is the same server: scheme, host and port. The credential was
/// given for it.
fn redirected(base: &Url, target: &str, location: &str) -> Option<Url> {
    let mut next = base.join(target).ok()?.join(location).ok()?;
    if next.origin() != base.origin() || !next.username().is_empty() || next.password().is_some() {
        return None;
    }
    let path = next
        .path()
        .strip_suffix(SERVICE)
        .filter(|path| !path.is_empty())?
        .to_owned();
    next.set_path(&path);
    next.set_query(None);
    next.set_fragment(None);
    Some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_stay_on_the_server() {
        let base = Url::parse("https://example.org/a").unwrap();
        let target = "/a/info/refs?service=git-upload-pack";
        let to = |location| redirected(&base, target, location).map(|url| url.to_string());
        let followed = "https://example.org/b.git".to_owned();
        for location in [
            "https://example.org/b.git/info/refs?service=git-upload-pack",
            "https://example.org:443/b.git/info/refs",
            "/b.git/info/refs?x=y",
            "../../b.git/info/refs",
            "//example.org/b.git/info/refs",
        ] {
            assert_eq!(to(location), Some(followed.clone()), "{location}");
        }
        for location in [
            "http://example.org/b.git/info/refs",
            "https://example.org:8443/b.git/info/refs",
            "https://example.com/b.git/info/refs",
            "https://user@example.org/b.git/info/refs",
            "//example.com/b.git/info/refs",
            "/login",
            "/info/refs",
            "file:///etc/passwd",
        ] {
            assert_eq!(to(location), None, "{location}");
        }
    }
}
