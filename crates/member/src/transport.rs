//! The client of one member, which sends every request and reads every response.

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
use starling_core::secret_values::SecretValues;
use starling_net::clock::Clock;
use tokio::sync::SemaphorePermit;
use tokio::time::{Instant, timeout_at};

use super::attempt::Attempt;
use super::call::{Call, Operation};
use super::connections::Body;
use super::dial::Clients;
use super::error::{BoxError, MemberError};
use super::exchange::{Bounds, Exchanged, exchange};
use super::impersonate::Impersonated;
use super::json;
use super::kubeconfig::MemberConfig;
use super::limits::{Limiter, MemberLimits};
use super::network::Network;
use super::numbers::WriteNumbers;
use super::resource::Kinds;
use super::secret::Hidden;
use super::status::{Redactor, refusal};

/// Maximum bytes of a response that is not a list of objects: etcd stores at most 1.5 MiB of an object.
const OBJECT_BYTES: usize = 4 * 1024 * 1024;
/// Maximum values in a page of a list: 500 objects of some hundred values each.
const LIST_VALUES: usize = 400_000;
/// Maximum values in any other response: three times those of the largest definitions.
const OBJECT_VALUES: usize = 150_000;
/// Maximum bytes of an error response. The longest is a conflict over a whole object; of a longer response, only the
/// status code is used.
const REFUSAL_BYTES: usize = 256 * 1024;

/// One member cluster. Cheap to clone: clones share connections, limits and caches.
#[derive(Clone)]
pub struct Member {
    shared: Arc<Shared>,
    /// The impersonated account; `None`: the user of the kubeconfig.
    as_account: Option<Arc<Impersonated>>,
    /// The counter of the writes; `None`: there is none.
    numbers: Option<Arc<dyn WriteNumbers>>,
    /// Values that no message of the member may repeat.
    secrets: SecretValues,
}

struct Shared {
    clients: Clients,
    clock: Clock,
    /// Without a trailing slash.
    server: String,
    authorization: Option<HeaderValue>,
    token: Option<Hidden>,
    limits: MemberLimits,
    limiter: Limiter,
    kinds: Kinds,
    requests: AtomicU64,
    /// Whether the member has responded with 401. Then nothing is sent with these credentials any more.
    refused: AtomicBool,
}

/// Which limits and connections a request uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Channel {
    /// The connections of all other requests, within the request limits of the member.
    Batch,
    /// The connections of probes, which must not wait for the request limits.
    Probe,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("server", &self.shared.server)
            .finish_non_exhaustive()
    }
}

/// A successful response.
pub(super) struct ApiResponse {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
}

impl ApiResponse {
    /// Refuses a response with more than `values` values.
    fn bounded(self, operation: Operation<'_>, values: usize) -> Result<Self, MemberError> {
        if json::values(&self.body) <= values {
            return Ok(self);
        }
        Err(MemberError::Garbage {
            request: operation.to_string(),
            problem: format!("more than {values} values"),
        })
    }

    /// Reads the body as JSON of a known form.
    pub(super) fn parse<'a, T: Deserialize<'a>>(
        &'a self,
        operation: Operation<'_>,
    ) -> Result<T, MemberError> {
        serde_json::from_slice(&self.body).map_err(|error| MemberError::Garbage {
            request: operation.to_string(),
            // The message of the parser quotes the text.
            problem: format!(
                "unexpected JSON (line {}, column {})",
                error.line(),
                error.column()
            ),
        })
    }
}

impl Member {
    /// Creates the client of a member. Sends nothing yet. Must be called inside a tokio runtime.
    ///
    /// Uses no proxy, no environment and no files of the process but the trust store of the system, if the kubeconfig
    /// has no CA.
    ///
    /// # Errors
    /// [`MemberError::Client`] if TLS cannot be set up with the certificates of the kubeconfig, or its address is one
    /// that is never connected to.
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
            limiter: Limiter::new(&limits),
            limits,
            kinds: Kinds::default(),
            requests: AtomicU64::new(0),
            refused: AtomicBool::new(false),
        };
        Ok(Self {
            shared: Arc::new(shared),
            as_account: None,
            numbers: None,
            secrets: SecretValues::default(),
        })
    }

    /// Returns a client of the same member that impersonates a ServiceAccount in every request but those for the
    /// inventory (ADR 17).
    ///
    /// # Errors
    /// [`MemberError::Account`] if these cannot be the names of a namespace and a ServiceAccount.
    pub fn impersonating(&self, namespace: &str, name: &str) -> Result<Self, MemberError> {
        Ok(Self {
            shared: Arc::clone(&self.shared),
            as_account: Some(Arc::new(Impersonated::new(namespace, name)?)),
            numbers: self.numbers.clone(),
            secrets: self.secrets.clone(),
        })
    }

    /// Returns a client of the same member whose attempts take a number for their writes (ADR 40).
    #[must_use]
    pub fn numbered(self, numbers: Arc<dyn WriteNumbers>) -> Self {
        Self {
            numbers: Some(numbers),
            ..self
        }
    }

    /// Returns a client of the same member whose messages do not contain these values: the member knows them, and may
    /// repeat them in a message about any object.
    pub(super) fn keeping(&self, secrets: &SecretValues) -> Self {
        Self {
            secrets: secrets.clone(),
            ..self.clone()
        }
    }

    pub(super) fn numbers(&self) -> Option<&dyn WriteNumbers> {
        self.numbers.as_deref()
    }

    /// Returns a client of the same member without impersonation.
    pub(super) fn as_kubeconfig_user(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            as_account: None,
            numbers: self.numbers.clone(),
            secrets: self.secrets.clone(),
        }
    }

    /// How many requests were sent to this member since [`Member::connect`].
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// Whether the member has rejected the credentials. Then nothing is sent any more: only new credentials can help.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.shared.refused.load(Ordering::SeqCst)
    }

    /// The limits of this client.
    #[must_use]
    pub fn limits(&self) -> &MemberLimits {
        &self.shared.limits
    }

    pub(super) fn kinds(&self) -> &Kinds {
        &self.shared.kinds
    }

    /// Returns the redactor for messages of this member.
    pub(super) fn redactor(&self) -> Redactor<'_> {
        Redactor {
            token: self.shared.token.as_ref().map(|token| token.0.as_str()),
            secrets: &self.secrets,
        }
    }

    /// Sends a request within the request limits of the member. Any status but 2xx is an error. An attempt writes
    /// objects only with a number, which the inventory has before the first of them.
    pub(super) async fn send(&self, call: Call<'_>, attempt: &Attempt) -> Result<ApiResponse, MemberError> {
        if !call.is_write() {
            return self.send_inventory(call, attempt).await;
        }
        self.before_write(attempt).await?;
        let _permit = self.permit(&call, attempt).await?;
        // Many writes may have waited for the request limits while another one found that the management cluster was
        // set back.
        self.check_refusal(attempt).await?;
        self.send_on(Channel::Batch, call, attempt).await
    }

    /// As [`Self::send`], for reads and for writes of the inventory itself, which take their number before.
    pub(super) async fn send_inventory(
        &self,
        call: Call<'_>,
        attempt: &Attempt,
    ) -> Result<ApiResponse, MemberError> {
        let _permit = self.permit(&call, attempt).await?;
        self.send_on(Channel::Batch, call, attempt).await
    }

    /// Waits for the request limits of the member.
    async fn permit(&self, call: &Call<'_>, attempt: &Attempt) -> Result<SemaphorePermit<'_>, MemberError> {
        let permit = timeout_at(attempt.deadline, self.shared.limiter.acquire()).await;
        permit.ok().flatten().ok_or_else(|| MemberError::Deadline {
            request: call.operation.to_string(),
        })
    }

    /// Sends a request on a channel, without waiting for the request limits.
    pub(super) async fn send_on(
        &self,
        channel: Channel,
        call: Call<'_>,
        attempt: &Attempt,
    ) -> Result<ApiResponse, MemberError> {
        let operation = call.operation;
        let sent = Instant::now();
        if sent >= attempt.deadline {
            return Err(MemberError::Deadline {
                request: operation.to_string(),
            });
        }
        // Checked after the wait for the request limits, so that waiting requests are not sent either.
        if self.is_refused() {
            return Err(MemberError::Unauthorized {
                request: operation.to_string(),
            });
        }
        if call.is_write() {
            attempt.begin_write();
        }
        let limit = (sent + self.shared.limits.request).min(attempt.deadline);
        match timeout_at(limit, self.exchange(channel, call)).await {
            Ok(response) => response,
            // A timeout of a request that was sent just before the deadline says nothing about the cluster.
            Err(_) if sent.elapsed() < self.shared.limits.connect.min(self.shared.limits.request) => {
                Err(MemberError::Deadline {
                    request: operation.to_string(),
                })
            }
            Err(elapsed) => Err(MemberError::Unreachable {
                request: operation.to_string(),
                source: elapsed.into(),
            }),
        }
    }

    async fn exchange(&self, channel: Channel, call: Call<'_>) -> Result<ApiResponse, MemberError> {
        let operation = call.operation;
        let limits = &self.shared.limits;
        let (limit, values) = if operation.is_list() {
            (limits.response_bytes, LIST_VALUES)
        } else {
            (limits.response_bytes.min(OBJECT_BYTES), OBJECT_VALUES)
        };
        let request = self.request(call)?;
        self.shared.requests.fetch_add(1, Ordering::Relaxed);
        let connections = match channel {
            Channel::Batch => &self.shared.clients.work,
            Channel::Probe => &self.shared.clients.probes,
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
                    request: operation.to_string(),
                    source,
                })?;
        if head.status == StatusCode::UNAUTHORIZED {
            self.shared.refused.store(true, Ordering::SeqCst);
        }
        let whole = body.ok_or_else(|| MemberError::TooLarge {
            request: operation.to_string(),
            limit,
        });
        if head.status.is_success() {
            return ApiResponse {
                status: head.status,
                body: whole?,
            }
            .bounded(operation, values);
        }
        let pause = retry_after(&head.headers, self.shared.clock.now());
        Err(refusal(
            operation,
            head.status,
            pause,
            &whole.unwrap_or_default(),
            &self.redactor(),
        ))
    }

    fn request(&self, call: Call<'_>) -> Result<Request<Body>, MemberError> {
        let Call {
            operation,
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
            request = account.set_header(request);
        }
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, content_type);
        }
        // Every segment of a path is escaped, so only its length can be invalid.
        request
            .body(Body::from(body))
            .map_err(|error| MemberError::Invalid {
                request: operation.to_string(),
                code: StatusCode::URI_TOO_LONG.as_u16(),
                message: error.to_string(),
            })
    }
}

/// The user agent of requests to members.
const AGENT: HeaderValue = HeaderValue::from_static(concat!("starling/", env!("CARGO_PKG_VERSION")));

fn bearer(token: &Hidden) -> Result<HeaderValue, BoxError> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", token.0))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Returns the pause that the response header requests.
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?;
    pause::requested(text, now)
}
