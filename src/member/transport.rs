//! The client of one member, and how every request goes out and comes back.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use jiff::Timestamp;
use serde::Deserialize;
use starling_core::pause;
use tokio::time::{Instant, timeout_at};

use super::attempt::Attempt;
use super::call::{Call, What};
use super::dial::{Body, Clients};
use super::error::{BoxError, MemberError};
use super::exchange::{Bounds, Exchanged, exchange};
use super::impersonate::Impersonated;
use super::json;
use super::kinds::Kinds;
use super::kubeconfig::{Hidden, MemberConfig};
use super::limits::{Gate, MemberLimits};
use super::network::Network;
use super::status::{Redactor, refusal};
use crate::clock::Clock;

/// Bytes of an answer that is about one object, or is no list of objects: etcd holds 1.5 MiB of one.
const OBJECT_BYTES: usize = 4 * 1024 * 1024;
/// Values in a page of a list: 500 objects of some hundred values each.
const LIST_VALUES: usize = 400_000;
/// Values in any other answer: thrice what the largest definitions have.
const OBJECT_VALUES: usize = 150_000;
/// Bytes of an answer that is no success. A conflict over a whole object is the longest; of a longer one only the
/// code counts.
const REFUSAL_BYTES: usize = 256 * 1024;

/// One member cluster. Cheap to clone: clones share connections, limits and caches.
#[derive(Clone)]
pub struct Member {
    shared: Arc<Shared>,
    /// As whom the member is asked; `None`: as the user of the kubeconfig.
    as_account: Option<Arc<Impersonated>>,
}

struct Shared {
    clients: Clients,
    clock: Clock,
    /// Without a slash at its end.
    server: String,
    authorization: Option<HeaderValue>,
    token: Option<Hidden>,
    limits: MemberLimits,
    gate: Gate,
    kinds: Kinds,
    requests: AtomicU64,
    /// The member has answered 401. Nothing is sent with these credentials any more.
    refused: AtomicBool,
}

/// Through which connection a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Through the lane of the member, at its pace.
    Lane,
    /// Past it, for a question that must not wait for work.
    Apart,
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
    /// Refuses what would be parsed into more than a member may cost.
    fn bounded(self, what: What<'_>, values: usize) -> Result<Self, MemberError> {
        if json::values(&self.body) <= values {
            return Ok(self);
        }
        Err(MemberError::Garbage {
            request: what.to_string(),
            problem: format!("more than {values} values"),
        })
    }

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
    /// [`MemberError::Client`] if TLS cannot be set up with the certificates of the kubeconfig, or its address is one
    /// at which no API server can be.
    pub fn connect(config: MemberConfig, limits: MemberLimits) -> Result<Self, MemberError> {
        Self::connect_over(config, limits, &Network::system())
    }

    /// As [`Self::connect`], over this network.
    ///
    /// # Errors
    /// As for [`Self::connect`].
    pub fn connect_over(
        config: MemberConfig,
        limits: MemberLimits,
        network: &Network,
    ) -> Result<Self, MemberError> {
        let server = config.server();
        let refused = |source| MemberError::Client {
            server: server.clone(),
            source,
        };
        let clients = Clients::new(&config, &limits, network).map_err(refused)?;
        let token = config.token;
        let authorization = token.as_ref().map(bearer).transpose().map_err(refused)?;
        let shared = Shared {
            clients,
            clock: network.clock().clone(),
            server: server.trim_end_matches('/').to_owned(),
            authorization,
            token,
            gate: Gate::new(&limits),
            limits,
            kinds: Kinds::default(),
            requests: AtomicU64::new(0),
            refused: AtomicBool::new(false),
        };
        Ok(Self {
            shared: Arc::new(shared),
            as_account: None,
        })
    }

    /// This member, asked as a ServiceAccount of it: every request carries its name, but those about Starling's own
    /// inventory (ADR 17).
    ///
    /// # Errors
    /// [`MemberError::Account`] if these cannot be the names of a namespace and a ServiceAccount.
    pub fn impersonating(&self, namespace: &str, name: &str) -> Result<Self, MemberError> {
        Ok(Self {
            shared: Arc::clone(&self.shared),
            as_account: Some(Arc::new(Impersonated::new(namespace, name)?)),
        })
    }

    /// This member, asked as the user of the kubeconfig.
    pub(super) fn as_itself(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            as_account: None,
        }
    }

    /// How many requests were sent to this member since [`Member::connect`].
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// Whether the member has refused the credentials. From then on nothing is sent: only others can help.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.shared.refused.load(Ordering::SeqCst)
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
        self.send_on(Line::Lane, call, attempt).await
    }

    /// As [`Self::send`], without waiting for a place in the lane where the line is apart.
    pub(super) async fn send_on(
        &self,
        line: Line,
        call: Call<'_>,
        attempt: &Attempt,
    ) -> Result<Answer, MemberError> {
        let what = call.what;
        let sent = Instant::now();
        if sent >= attempt.deadline {
            return Err(MemberError::Deadline {
                request: what.to_string(),
            });
        }
        // Looked at here and not before the wait for a place: those who waited shall not send either.
        if self.is_refused() {
            return Err(MemberError::Unauthorized {
                request: what.to_string(),
            });
        }
        let limit = (sent + self.shared.limits.request).min(attempt.deadline);
        match timeout_at(limit, self.exchange(line, call)).await {
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

    async fn exchange(&self, line: Line, call: Call<'_>) -> Result<Answer, MemberError> {
        let what = call.what;
        let limits = &self.shared.limits;
        let (limit, values) = if what.is_list() {
            (limits.answer_bytes, LIST_VALUES)
        } else {
            (limits.answer_bytes.min(OBJECT_BYTES), OBJECT_VALUES)
        };
        let request = self.request(call)?;
        self.shared.requests.fetch_add(1, Ordering::Relaxed);
        let connections = match line {
            Line::Lane => &self.shared.clients.work,
            Line::Apart => &self.shared.clients.probes,
        };
        let bounds = Bounds {
            head: limits.head,
            idle: limits.idle,
            success_bytes: limit,
            refusal_bytes: REFUSAL_BYTES,
        };
        let Exchanged { head, body } =
            exchange(connections, request, bounds)
                .await
                .map_err(|source| MemberError::Unreachable {
                    request: what.to_string(),
                    source,
                })?;
        if head.status == StatusCode::UNAUTHORIZED {
            self.shared.refused.store(true, Ordering::SeqCst);
        }
        let whole = body.ok_or_else(|| MemberError::TooLarge {
            request: what.to_string(),
            limit,
        });
        if head.status.is_success() {
            return Answer {
                status: head.status,
                body: whole?,
            }
            .bounded(what, values);
        }
        let pause = retry_after(&head.headers, self.shared.clock.now());
        Err(refusal(
            what,
            head.status,
            pause,
            &whole.unwrap_or_default(),
            &self.redactor(),
        ))
    }

    fn request(&self, call: Call<'_>) -> Result<Request<Body>, MemberError> {
        let Call {
            what,
            method,
            path,
            accept,
            content_type,
            body,
        } = call;
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.shared.server))
            .header(ACCEPT, accept)
            .header(USER_AGENT, AGENT);
        if let Some(authorization) = &self.shared.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        if let Some(account) = &self.as_account {
            request = account.mark(request);
        }
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
}

/// How Starling names itself to members.
const AGENT: HeaderValue = HeaderValue::from_static(concat!("starling/", env!("CARGO_PKG_VERSION")));

fn bearer(token: &Hidden) -> Result<HeaderValue, BoxError> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", token.0))?;
    value.set_sensitive(true);
    Ok(value)
}

/// The pause that the answer asks for in its head.
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?;
    pause::requested(text, now)
}
