//! git's smart protocol over http and https.
//!
//! The http client of libgit2 is not used. In 1.9.7, a redirect without a query crashes the process (a null pointer in
//! `remove_service_suffix`), a rejected certificate behind a proxy writes to freed memory, and a silent server blocks a
//! thread forever. This client is async: dropping the future closes the connection.

use std::error::Error as StdError;
use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Method, Request, StatusCode, response};
use http_body_util::Full;
use rustls::{ClientConfig, RootCertStore};
use starling_net::dial::{ConnectTimeout, DialError, Dialler, Egress, Reach};
use starling_net::exchange::{self, Body, BodyError, ResponseStream};
use starling_net::tls::{self, Trust};
use tokio::sync::mpsc;
use url::{Host, Url};

use super::access::RepoAccess;
use super::error::{Cause, GitError, Refusal};
use super::limits::GitLimits;
use super::smart::{Advertisement, AdvertisementReader, Packets, ProtocolError, ResponseReader};

/// Redirects followed for one list of refs, all on the same server. One is usual: a renamed repository, a
/// missing ".git".
const MAX_REDIRECTS: usize = 3;

/// Some servers expect "git/" in the user agent of git.
const USER_AGENT: &str = concat!("git/starling-", env!("CARGO_PKG_VERSION"));

const SERVICE: &str = "/info/refs";
const SERVICE_QUERY: &str = "service=git-upload-pack";
const LIST_TYPE: &str = "application/x-git-upload-pack-advertisement";
const REQUEST_TYPE: &str = "application/x-git-upload-pack-request";
const RESULT_TYPE: &str = "application/x-git-upload-pack-result";

/// A chunk of a pack that is written to the mirror.
#[derive(Debug)]
pub(super) enum PackChunk {
    Data(Bytes),
    /// The pack is complete. Without this variant, a broken connection could not be distinguished from the end of a
    /// pack.
    End,
}

/// One repository on one server.
pub(super) struct Remote<'a> {
    access: &'a RepoAccess,
    limits: &'a GitLimits,
    authorization: Option<HeaderValue>,
    tls: Option<Arc<ClientConfig>>,
}

/// A list of refs and its final URL.
pub(super) struct Listing {
    pub(super) refs: Advertisement,
    base: Url,
}

impl<'a> Remote<'a> {
    /// Checks the access before anything is sent.
    pub(super) fn new(
        access: &'a RepoAccess,
        limits: &'a GitLimits,
        system: &RootCertStore,
    ) -> Result<Self, GitError> {
        let authorization = access.credential().header();
        let authorization =
            authorization.ok_or_else(|| GitError::refused(access, Refusal::CredentialText))?;
        let tls = if access.url().is_https() {
            let trust = Trust::pinning(system, access.ca_pem());
            let config = trust.and_then(|trust| tls::client(trust, None));
            let mut config = config.map_err(|_| GitError::refused(access, Refusal::CaBundle))?;
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
            Some(Arc::new(config))
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

    /// Requests the heads and tags.
    pub(super) async fn list(&self) -> Result<Listing, GitError> {
        let mut base = self.access.url().as_url().clone();
        for _ in 0..=MAX_REDIRECTS {
            let target = format!("{}{SERVICE}?{SERVICE_QUERY}", base.path());
            let answer = self.send(Method::GET, &target, Bytes::new()).await?;
            if !answer.head.status.is_redirection() {
                self.check(&answer.head, LIST_TYPE)?;
                let refs = self.read_list(answer.body(self.limits.max_listing_bytes)).await?;
                return Ok(Listing { refs, base });
            }
            let location = answer
                .head
                .headers
                .get(header::LOCATION)
                .and_then(|to| to.to_str().ok());
            let next = location.and_then(|to| redirected(&base, &target, to));
            base = next.ok_or_else(|| GitError::refused(self.access, Refusal::Redirect))?;
        }
        Err(GitError::refused(self.access, Refusal::Redirect))
    }

    /// Sends a request from [`Advertisement::request`] and forwards the pack in chunks.
    ///
    /// Ends without an error if the receiver is dropped: the receiver reports the cause.
    pub(super) async fn fetch(
        &self,
        listing: &Listing,
        body: Vec<u8>,
        pack: mpsc::Sender<PackChunk>,
    ) -> Result<(), GitError> {
        let target = format!("{}/git-upload-pack", listing.base.path());
        let answer = self.send(Method::POST, &target, body.into()).await?;
        if answer.head.status.is_redirection() {
            return Err(GitError::refused(self.access, Refusal::Redirect));
        }
        self.check(&answer.head, RESULT_TYPE)?;
        let mut body = answer.body(self.limits.max_transfer_bytes);
        let (mut packets, mut reader) = (Packets::default(), ResponseReader::default());
        while let Some(bytes) = self.next(&mut body).await? {
            packets.push(&bytes);
            while let Some(packet) = packets.next().map_err(|error| self.protocol(error))? {
                let chunk = reader.take(packet).map_err(|error| self.protocol(error))?;
                if let Some(chunk) = chunk
                    && pack.send(PackChunk::Data(chunk)).await.is_err()
                {
                    return Ok(());
                }
            }
        }
        if !reader.is_complete() {
            return Err(self.protocol(ProtocolError::Early));
        }
        let _ = pack.send(PackChunk::End).await;
        Ok(())
    }

    async fn read_list(&self, mut body: Body) -> Result<Advertisement, GitError> {
        let mut packets = Packets::default();
        let mut reader = AdvertisementReader::new(self.limits.max_refs);
        while let Some(bytes) = self.next(&mut body).await? {
            packets.push(&bytes);
            while let Some(packet) = packets.next().map_err(|error| self.protocol(error))? {
                if reader.take(&packet).map_err(|error| self.protocol(error))? {
                    return reader.finish().map_err(|error| self.protocol(error));
                }
            }
        }
        reader.finish().map_err(|error| self.protocol(error))
    }

    /// Reads the next bytes of a response.
    async fn next(&self, body: &mut Body) -> Result<Option<Bytes>, GitError> {
        body.next().await.map_err(|error| match error {
            BodyError::TooLong(limit) => GitError::refused(self.access, Refusal::TransferBytes { limit }),
            error @ (BodyError::Stopped(_) | BodyError::Broken(_)) => self.unreachable(&error),
        })
    }

    /// Sends one request on its own connection. A poll needs only one, and a fetch is rare.
    async fn send(&self, method: Method, target: &str, body: Bytes) -> Result<ResponseStream, GitError> {
        let Some((host, port)) = self.access.url().endpoint() else {
            return Err(GitError::other(self.access, "the URL names no server"));
        };
        let request = self.request(method, target, body, &host, port);
        let request = request.map_err(|error| GitError::other(self.access, &error.to_string()))?;
        let reach = if self.access.url().insecure_allowed() {
            Reach::Servers
        } else {
            Reach::Remote
        };
        let connect_timeout = ConnectTimeout::Each(self.limits.connect_timeout);
        let rules = self.limits.addresses.clone();
        let stream = Dialler::new(Egress::Direct, reach, rules, connect_timeout)
            .dial(&host, port)
            .await;
        let stream = stream.map_err(|error| match error {
            DialError::Resolve(error) | DialError::Connect(error) => self.unreachable(&error),
            DialError::ForbiddenAddress(address) => {
                GitError::refused(self.access, Refusal::Address { address })
            }
            DialError::DeniedAddress(address) => {
                GitError::refused(self.access, Refusal::DeniedAddress { address })
            }
        })?;
        let answer = match &self.tls {
            None => exchange::send(stream, request).await,
            Some(config) => {
                let name = tls::server_name(&host.to_string()).map_err(|error| self.unreachable(&error))?;
                let stream = tls::encrypt(stream, name, Arc::clone(config)).await;
                exchange::send(stream.map_err(|error| self.handshake(&error))?, request).await
            }
        };
        answer.map_err(|error| self.unreachable(&error))
    }

    fn request(
        &self,
        method: Method,
        target: &str,
        body: Bytes,
        host: &Host<String>,
        port: u16,
    ) -> Result<Request<Full<Bytes>>, http::Error> {
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
            // Compressed bytes would have to be counted twice, and packs are already compressed.
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

    /// Checks the status and the content type.
    fn check(&self, head: &response::Parts, content_type: &str) -> Result<(), GitError> {
        let repo = || self.access.url().clone();
        let status = head.status;
        let cause = || Cause::new(&format!("the server responds with {status}"), self.access);
        match status {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                return Err(GitError::Auth {
                    repo: repo(),
                    source: cause(),
                });
            }
            StatusCode::NOT_FOUND | StatusCode::GONE => {
                return Err(GitError::not_found(self.access, "the repository"));
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => {
                return Err(GitError::Unreachable {
                    repo: repo(),
                    source: cause(),
                });
            }
            status if status.is_server_error() => {
                return Err(GitError::Unreachable {
                    repo: repo(),
                    source: cause(),
                });
            }
            _ => {
                return Err(GitError::Other {
                    repo: repo(),
                    source: cause(),
                });
            }
        }
        let sent = head
            .headers
            .get(header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok());
        if sent != Some(content_type) {
            return Err(GitError::other(
                self.access,
                "the server does not support git's smart protocol at this URL",
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

/// Returns the new URL after a redirect of `target`, if scheme, host and port are unchanged: the credential is for this
/// server only.
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
