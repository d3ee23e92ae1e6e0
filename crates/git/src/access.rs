//! The URL of a repository and the credential for it.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use http::HeaderValue;
use sha2::{Digest as _, Sha256};
use url::{Host, Url};

/// Why a repository URL is refused. No variant quotes the input, which may contain a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// `ssh://` and `git@host:path` are part of the contract, but there is no transport for them yet.
    #[error("ssh repositories are not implemented yet; use an https URL")]
    NotImplemented,
    /// A scheme that is never accepted, or an invalid URL.
    #[error("not an accepted repository URL; accepted is https://host/path")]
    Unsupported,
    /// `http://` or `file://` without the operator's permission.
    #[error("{scheme}:// is accepted only where the operator allows insecure sources; use an https URL")]
    Insecure {
        /// `http` or `file`.
        scheme: &'static str,
    },
    /// A user name or password inside the URL, where logs and status would show it.
    #[error("credentials do not belong into the URL; put them into the referenced Secret")]
    Credentials,
    /// A query or a fragment: git uses neither, and both have been used for tokens.
    #[error("a repository URL has no query and no fragment")]
    QueryOrFragment,
    /// The URL has a host but no path, or a path but no host.
    #[error("the URL does not name a host and a path")]
    Incomplete,
}

/// A checked repository URL, free of credentials and therefore safe to print.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RepoUrl {
    /// Shared: every error carries a copy.
    url: Arc<Url>,
    insecure_allowed: bool,
}

impl RepoUrl {
    /// Checks a URL: `https` always, `http` and `file` only with `allow_insecure`.
    ///
    /// `allow_insecure` also permits servers on loopback and link-local addresses, which are otherwise
    /// refused when they are dialled.
    ///
    /// # Errors
    /// [`UrlError`] names the broken rule without quoting the text.
    pub fn parse(text: &str, allow_insecure: bool) -> Result<Self, UrlError> {
        if text
            .chars()
            .any(|c| c.is_control() || c.is_whitespace() || c == '\\')
            || text.starts_with('-')
        {
            return Err(UrlError::Unsupported);
        }
        if !text.contains("://") {
            return Err(if is_scp_like(text) {
                UrlError::NotImplemented
            } else {
                UrlError::Unsupported
            });
        }
        let mut url = Url::parse(text).map_err(|_| UrlError::Unsupported)?;
        match url.scheme() {
            "https" => {}
            "http" if allow_insecure => {}
            "file" if allow_insecure => {}
            "http" => return Err(UrlError::Insecure { scheme: "http" }),
            "file" => return Err(UrlError::Insecure { scheme: "file" }),
            "ssh" | "git+ssh" | "ssh+git" => return Err(UrlError::NotImplemented),
            _ => return Err(UrlError::Unsupported),
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(UrlError::Credentials);
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(UrlError::QueryOrFragment);
        }
        let path = url.path().trim_end_matches('/').to_owned();
        if path.is_empty() || url.has_host() == (url.scheme() == "file") {
            return Err(UrlError::Incomplete);
        }
        url.set_path(&path);
        Ok(Self {
            url: Arc::new(url),
            insecure_allowed: allow_insecure,
        })
    }

    /// Returns the URL as text.
    pub fn as_str(&self) -> &str {
        self.url.as_str()
    }

    /// Returns the host in lower case, which is the key of rate limits; `None` for `file`.
    pub fn host(&self) -> Option<&str> {
        self.url.host_str()
    }

    /// The parsed URL.
    pub(super) fn as_url(&self) -> &Url {
        &self.url
    }

    /// Host and port to dial; `None` for `file`.
    pub(super) fn endpoint(&self) -> Option<(Host<String>, u16)> {
        Some((self.url.host()?.to_owned(), self.url.port_or_known_default()?))
    }

    /// Whether the connection is to be encrypted.
    pub(super) fn is_https(&self) -> bool {
        self.url.scheme() == "https"
    }

    /// Whether the operator allows insecure sources.
    pub(super) fn insecure_allowed(&self) -> bool {
        self.insecure_allowed
    }

    /// Returns the name of the mirror directory of this repository, for the Secret with this name: 32 hex digits.
    ///
    /// The content of the Secret is not included, so that the mirror and its pins outlive a token.
    pub fn mirror_key(&self, secret: Option<&str>) -> String {
        let mut hash = Sha256::new();
        for part in [self.as_str(), secret.unwrap_or_default()] {
            // The length precedes each part, so that different parts never have the same concatenation.
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hex::encode(&hash.finalize()[..16])
    }
}

impl fmt::Display for RepoUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.url.as_str())
    }
}

impl fmt::Debug for RepoUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RepoUrl({})", self.url)
    }
}

/// `git@host:path`: no scheme, an `@` before the first colon, and something after it. `ext::` has no `@`
/// before its colon.
fn is_scp_like(text: &str) -> bool {
    text.split_once(':')
        .is_some_and(|(left, right)| left.contains('@') && !left.contains('/') && !right.is_empty())
}

/// The credential for the server. `Debug` shows the kind only.
#[derive(Clone, PartialEq, Eq)]
pub enum Credential {
    /// Nothing; the repository is public.
    None,
    /// User name and password, or user name and token.
    Basic {
        /// Must not contain a colon (RFC 7617).
        username: String,
        /// The password or token.
        password: String,
    },
    /// A bearer token.
    Bearer(String),
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Basic { .. } => "Basic(redacted)",
            Self::Bearer(_) => "Bearer(redacted)",
        })
    }
}

impl Credential {
    /// Returns the `Authorization` header. It is sent with the first request, so that a poll is one request without a
    /// 401 before it.
    ///
    /// `None` if the text is not valid in a header, usually because of a line break at the end of a value of a Secret.
    pub(super) fn header(&self) -> Option<Option<HeaderValue>> {
        let text = match self {
            Self::None => return Some(None),
            Self::Basic { username, password } => {
                let clean = |text: &str| !text.chars().any(char::is_control);
                let usable = clean(username) && clean(password) && !username.contains(':');
                usable.then(|| format!("Basic {}", basic_value(username, password)))
            }
            Self::Bearer(token) => {
                let usable = !token.is_empty() && token.chars().all(|c| c.is_ascii_graphic());
                usable.then(|| format!("Bearer {token}"))
            }
        };
        let mut value = HeaderValue::from_str(&text?).ok()?;
        value.set_sensitive(true);
        Some(Some(value))
    }

    /// Returns every text that must not appear in a message, without empty ones, which would match everywhere.
    pub(super) fn secrets(&self) -> Vec<String> {
        let all = match self {
            Self::None => Vec::new(),
            Self::Basic { username, password } => vec![basic_value(username, password), password.clone()],
            Self::Bearer(token) => vec![token.clone()],
        };
        all.into_iter().filter(|secret| !secret.is_empty()).collect()
    }
}

fn basic_value(username: &str, password: &str) -> String {
    base64::engine::general_purpose::STANDARD.encode(format!("{username}:{password}"))
}

/// A repository with its credential and certificate authorities, and the reader on whose behalf it is accessed.
#[derive(Clone, PartialEq, Eq)]
pub struct RepoAccess {
    url: RepoUrl,
    credential: Credential,
    ca_pem: Option<Vec<u8>>,
    /// Namespace and name of the Secret with the credential; `None`: no Secret.
    secret: Option<String>,
    /// Namespace and name of the reader; empty: the only one.
    reader: String,
}

impl RepoAccess {
    /// Creates the access with `credential`. The server's certificate must be trusted by the system.
    pub fn new(url: RepoUrl, credential: Credential) -> Self {
        Self {
            url,
            credential,
            ca_pem: None,
            secret: None,
            reader: String::new(),
        }
    }

    /// Sets the name of the Secret that the credential comes from, such as `namespace/name`.
    #[must_use]
    pub fn with_secret(mut self, secret: impl Into<String>) -> Self {
        self.secret = Some(secret.into());
        self
    }

    /// Sets the reader, such as `namespace/name` of a Source. A reader reads from a mirror only after the server has
    /// sent the reader something, whoever else has filled the mirror.
    #[must_use]
    pub fn with_reader(mut self, reader: impl Into<String>) -> Self {
        self.reader = reader.into();
        self
    }

    /// Trusts the certificate authorities in `pem` for this repository, in addition to the system's.
    #[must_use]
    pub fn with_ca_pem(mut self, pem: Vec<u8>) -> Self {
        self.ca_pem = Some(pem);
        self
    }

    /// The repository's URL.
    pub fn url(&self) -> &RepoUrl {
        &self.url
    }

    /// The credential presented to the server.
    pub(super) fn credential(&self) -> &Credential {
        &self.credential
    }

    /// The name of the Secret.
    pub(super) fn secret(&self) -> Option<&str> {
        self.secret.as_deref()
    }

    /// The reader.
    pub fn reader(&self) -> &str {
        &self.reader
    }

    /// The additional certificate authorities, PEM.
    pub(super) fn ca_pem(&self) -> Option<&[u8]> {
        self.ca_pem.as_deref()
    }

    /// Returns the name of the mirror directory.
    pub fn mirror_key(&self) -> String {
        self.url.mirror_key(self.secret())
    }
}

impl fmt::Debug for RepoAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RepoAccess")
            .field("url", &self.url)
            .field("credential", &self.credential)
            .field("ca_pem", &self.ca_pem.as_ref().map(Vec::len))
            .field("secret", &self.secret)
            .field("reader", &self.reader)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another name is another mirror: after an upgrade every repository would be cloned again, and the pins of commits
    /// that were rewritten upstream would be lost.
    #[test]
    fn the_names_of_mirrors_do_not_move() {
        let url = RepoUrl::parse("https://git.example.com/shop.git", false).unwrap();
        let found = [url.mirror_key(None), url.mirror_key(Some("fleet/token"))];
        let expected = [
            "cdee9285e63705bffa94fecf0ab46df2",
            "6a2feae9e8b8ae79ee0779165d081cf0",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn urls_are_checked_against_the_grammar() {
        let refused = [
            ("ssh://git@example.org/a", UrlError::NotImplemented),
            ("git@example.org:a/b.git", UrlError::NotImplemented),
            ("git://example.org/a", UrlError::Unsupported),
            ("ext::sh -c id", UrlError::Unsupported),
            ("ext::id", UrlError::Unsupported),
            ("-oProxyCommand=id", UrlError::Unsupported),
            ("ftp://example.org/a", UrlError::Unsupported),
            ("/etc/passwd", UrlError::Unsupported),
            ("https:\\\\example.org\\a", UrlError::Unsupported),
            ("https://example.org/a\nb", UrlError::Unsupported),
            ("http://example.org/a", UrlError::Insecure { scheme: "http" }),
            ("file:///srv/a", UrlError::Insecure { scheme: "file" }),
            ("https://example.org/a?token=x", UrlError::QueryOrFragment),
            ("https://example.org/a#x", UrlError::QueryOrFragment),
            ("https://example.org", UrlError::Incomplete),
            ("https://example.org/", UrlError::Incomplete),
        ];
        for (text, expected) in refused {
            assert_eq!(RepoUrl::parse(text, false), Err(expected), "{text}");
        }
        assert_eq!(
            RepoUrl::parse("file://other.example/a", true),
            Err(UrlError::Incomplete)
        );
        for text in ["https://Example.org/a/", "https://example.org:443/a"] {
            assert_eq!(
                RepoUrl::parse(text, false).unwrap().as_str(),
                "https://example.org/a"
            );
        }
        for text in ["http://example.org/a", "file:///srv/a"] {
            assert_eq!(RepoUrl::parse(text, true).unwrap().as_str(), text);
        }
        assert_eq!(
            RepoUrl::parse("https://example.org:8443/a", false)
                .unwrap()
                .host(),
            Some("example.org")
        );
    }

    #[test]
    fn a_credential_in_a_url_is_refused_and_not_echoed() {
        for text in [
            "https://bob:hunter2@example.org/a",
            "https://hunter2@example.org/a",
            "hunter2:x@example.org/a",
        ] {
            let error = RepoUrl::parse(text, true).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
    }

    #[test]
    fn debug_shows_no_secret() {
        let url = RepoUrl::parse("https://example.org/a", false).unwrap();
        let basic = Credential::Basic {
            username: "bob".into(),
            password: "hunter2".into(),
        };
        for credential in [basic, Credential::Bearer("hunter2".into())] {
            let printable = format!("{:?}", RepoAccess::new(url.clone(), credential));
            assert!(
                !printable.contains("hunter2") && printable.contains("example.org"),
                "{printable}"
            );
        }
    }

    #[test]
    fn a_mirror_belongs_to_a_url_and_the_name_of_a_secret() {
        let access = |url: &str| RepoAccess::new(RepoUrl::parse(url, false).unwrap(), Credential::None);
        let all = [
            access("https://example.org/a"),
            access("https://example.org/b"),
            access("https://example.org/a").with_secret("shop/git"),
            access("https://example.org/a").with_secret("fleet/git"),
            access("https://example.org/a").with_secret("shop/github"),
        ];
        let distinct: std::collections::BTreeSet<_> = all.iter().map(RepoAccess::mirror_key).collect();
        assert_eq!(distinct.len(), all.len());

        let first = all[2].mirror_key();
        let token = |token: &str| {
            let url = RepoUrl::parse("https://example.org/a/", false).unwrap();
            RepoAccess::new(url, Credential::Bearer(token.into())).with_secret("shop/git")
        };
        for same in [
            token("first"),
            token("second"),
            token("second").with_ca_pem(b"x".to_vec()),
            token("second").with_reader("shop/other"),
        ] {
            assert_eq!(same.mirror_key(), first, "{same:?}");
        }
    }

    #[test]
    fn a_credential_that_would_break_the_header_gives_none() {
        let basic = |u: &str, p: &str| Credential::Basic {
            username: u.into(),
            password: p.into(),
        };
        assert_eq!(Credential::Bearer("a\r\nX: y".into()).header(), None);
        assert_eq!(basic("bob", "pw\n").header(), None);
        assert_eq!(basic("b:ob", "pw").header(), None);
        assert_eq!(Credential::None.header(), Some(None));
        assert_eq!(
            basic("bob", "pw").header(),
            Some(Some(HeaderValue::from_static("Basic Ym9iOnB3")))
        );
    }
}
