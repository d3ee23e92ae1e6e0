//! The client of one member, and how every request goes out and comes back.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use kube::client::Body;
use kube::config::AuthInfo;
use serde::Deserialize;
use tokio::time::{Instant, timeout_at};

use super::attempt::Attempt;
use super::call::{Call, What};
use super::error::{BoxError, MemberError};
use super::kinds::Kinds;
use super::kubeconfig::{Hidden, Identity, MemberConfig};
use super::limits::{Gate, MemberLimits};
use super::status::{Redactor, refusal};

/// One member cluster. Cheap to clone: clones share connections, limits and caches.
#[derive(Clone)]
pub struct Member {
    shared: Arc<Shared>,
}

struct Shared {
    client: kube::Client,
    server: String,
    token: Option<Hidden>,
    limits: MemberLimits,
    gate: Gate,
    kinds: Kinds,
    requests: AtomicU64,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("server", &self.shared.server)
            .finish_non_exhaustive()
    }
}

/// A successful answer.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
}

impl Answer {
    /// Reads the body as JSON of a known form.
    pub(super) fn parse<'a, T: Deserialize<'a>>(&'a self, what: What<'_>) -> Result<T, MemberError> {
        serde_json::from_slice(&self.body).map_err(|error| MemberError::Garbage {
            request: what.to_string(),
            // The parser's own words quote the text.
            problem: format!(
                "JSON of another form (line {}, column {})",
                error.line(),
                error.column()
            ),
        })
    }
}

impl Member {
    /// Makes the client of a member. Nothing is sent yet. Must be called inside a tokio runtime.
    ///
    /// Of the process, only the trust store of the system is used, and only if the kubeconfig brings no CA: no proxy, no
    /// environment, no files.
    ///
    /// # Errors
    /// [`MemberError::Client`] if TLS cannot be set up with the certificates of the kubeconfig.
    pub fn connect(config: MemberConfig, limits: MemberLimits) -> Result<Self, MemberError> {
        let server = config.server();
        let token = config.token.clone();
        let client =
            kube::Client::try_from(client_config(config, &limits)).map_err(|source| MemberError::Client {
                server: server.clone(),
                source: source.into(),
            })?;
        let shared = Shared {
            client,
            server,
            token,
            gate: Gate::new(&limits),
            limits,
            kinds: Kinds::default(),
            requests: AtomicU64::new(0),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// How many requests were sent to this member since [`Member::connect`].
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// The bounds this member was connected with.
    #[must_use]
    pub fn limits(&self) -> &MemberLimits {
        &self.shared.limits
    }

    pub(super) fn kinds(&self) -> &Kinds {
        &self.shared.kinds
    }

    /// For words of this member that are repeated to people.
    pub(super) fn redactor(&self) -> Redactor<'_> {
        Redactor {
            token: self.shared.token.as_ref().map(|token| token.0.as_str()),
        }
    }

    /// Sends a request and takes a 2xx answer; anything else is an error.
    pub(super) async fn send(&self, call: Call<'_>, attempt: &Attempt) -> Result<Answer, MemberError> {
        let what = call.what;
        let Ok(Some(_place)) = timeout_at(attempt.deadline, self.shared.gate.pass()).await else {
            return Err(MemberError::Deadline {
                request: what.to_string(),
            });
        };
        let sent = Instant::now();
        if sent >= attempt.deadline {
            return Err(MemberError::Deadline {
                request: what.to_string(),
            });
        }
        let limit = (sent + self.shared.limits.request).min(attempt.deadline);
        match timeout_at(limit, self.exchange(call)).await {
            Ok(answer) => answer,
            // A request that was sent just before the deadline says nothing about the cluster.
            Err(_) if sent.elapsed() < self.shared.limits.connect.min(self.shared.limits.request) => {
                Err(MemberError::Deadline {
                    request: what.to_string(),
                })
            }
            Err(elapsed) => Err(MemberError::Unreachable {
                request: what.to_string(),
                source: elapsed.into(),
            }),
        }
    }

    async fn exchange(&self, call: Call<'_>) -> Result<Answer, MemberError> {
        let what = call.what;
        let request = request(call)?;
        self.shared.requests.fetch_add(1, Ordering::Relaxed);
        let unreachable = |source: BoxError| MemberError::Unreachable {
            request: what.to_string(),
            source,
        };
        let response = self
            .shared
            .client
            .send(request)
            .await
            .map_err(|error| unreachable(error.into()))?;
        let (head, body) = response.into_parts();
        let limit = self.shared.limits.answer_bytes;
        let body = match Limited::new(body, limit).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => {
                return Err(MemberError::TooLarge {
                    request: what.to_string(),
                    limit,
                });
            }
            Err(error) => return Err(unreachable(error)),
        };
        if head.status.is_success() {
            return Ok(Answer {
                status: head.status,
                body,
            });
        }
        Err(refusal(
            what,
            head.status,
            retry_after(&head.headers),
            &body,
            &self.redactor(),
        ))
    }
}

/// The client's settings, field by field: nothing is inferred. kube follows no redirects.
fn client_config(config: MemberConfig, limits: &MemberLimits) -> kube::Config {
    let MemberConfig {
        server,
        certificate_authority,
        tls_server_name,
        token,
        identity,
    } = config;
    let mut client = kube::Config::new(server);
    client.root_cert = certificate_authority;
    client.tls_server_name = tls_server_name;
    client.connect_timeout = Some(limits.connect);
    client.write_timeout = Some(limits.request);
    // Retries belong to the scheduler; kube's would wait for minutes, unseen.
    client.default_retry = false;
    client.headers.push((
        USER_AGENT,
        HeaderValue::from_static(concat!("starling/", env!("CARGO_PKG_VERSION"))),
    ));
    let (certificate, key) = identity
        .map(|Identity { certificate, key }| (certificate, key))
        .unzip();
    let auth = AuthInfo {
        token: token.map(|token| token.0.into()),
        client_certificate_data: certificate,
        client_key_data: key.map(|key| key.0.into()),
        ..AuthInfo::default()
    };
    client.auth_info = auth;
    client
}

fn request(call: Call<'_>) -> Result<Request<Body>, MemberError> {
    let Call {
        what,
        method,
        path,
        accept,
        content_type,
        body,
    } = call;
    let mut request = Request::builder().method(method).uri(path).header(ACCEPT, accept);
    if !body.is_empty() {
        request = request.header(CONTENT_TYPE, content_type);
    }
    // Every part of a path is escaped, so only its length can be wrong.
    request
        .body(Body::from(body))
        .map_err(|error| MemberError::Invalid {
            request: what.to_string(),
            code: StatusCode::URI_TOO_LONG.as_u16(),
            message: error.to_string(),
        })
}

fn retry_after(headers: &HeaderMap) -> Option<&str> {
    headers.get(RETRY_AFTER)?.to_str().ok()
}
