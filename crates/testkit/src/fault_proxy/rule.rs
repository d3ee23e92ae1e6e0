//! Rules: which requests get a fault, and which fault.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, StatusCode};

use super::record::RequestInfo;

type Predicate = Arc<dyn Fn(&RequestInfo) -> bool + Send + Sync>;

/// Selects requests that meet all its conditions; a new match selects all requests.
///
/// [`Self::nth`] and [`Self::times`] count the requests that meet all other conditions.
#[derive(Clone, Default)]
pub struct Match {
    predicates: Vec<Predicate>,
    skip: usize,
    times: Option<usize>,
}

impl Match {
    /// Selects every request.
    pub fn any() -> Self {
        Self::default()
    }

    /// Selects requests with this method.
    pub fn method(method: Method) -> Self {
        Self::any().and(move |request| request.method == method)
    }

    /// Selects requests that may change something: POST, PUT, PATCH, DELETE.
    pub fn writes() -> Self {
        Self::any().and(|request| !matches!(request.method, Method::GET | Method::HEAD | Method::OPTIONS))
    }

    /// Requires one of these methods.
    #[must_use]
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        let methods: Vec<Method> = methods.into_iter().collect();
        self.and(move |request| methods.contains(&request.method))
    }

    /// Requires that the path fulfils a condition.
    #[must_use]
    pub fn path(self, condition: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        self.and(move |request| condition(&request.path))
    }

    /// Requires that the path contains this text.
    #[must_use]
    pub fn path_contains(self, text: impl Into<String>) -> Self {
        let text = text.into();
        self.and(move |request| request.path.contains(&text))
    }

    /// Requires that the path ends with this text, such as `/configmaps/settings`.
    #[must_use]
    pub fn path_ends_with(self, text: impl Into<String>) -> Self {
        let text = text.into();
        self.and(move |request| request.path.ends_with(&text))
    }

    /// Requires that the query contains this text, such as `watch=true`.
    #[must_use]
    pub fn query_contains(self, text: impl Into<String>) -> Self {
        let text = text.into();
        self.and(move |request| request.query.contains(&text))
    }

    /// Requires that the body of the request contains this text.
    #[must_use]
    pub fn body_contains(self, text: impl Into<Vec<u8>>) -> Self {
        let text = text.into();
        self.and(move |request| {
            text.is_empty() || request.body.windows(text.len()).any(|window| window == text)
        })
    }

    /// Requires any other condition.
    #[must_use]
    pub fn and(mut self, condition: impl Fn(&RequestInfo) -> bool + Send + Sync + 'static) -> Self {
        self.predicates.push(Arc::new(condition));
        self
    }

    /// Selects only the first `n` such requests.
    #[must_use]
    pub fn times(mut self, n: usize) -> Self {
        self.times = Some(n);
        self
    }

    /// Selects only the `k`th such request, counted from 1; 0 chooses none.
    #[must_use]
    pub fn nth(mut self, k: usize) -> Self {
        self.skip = k.saturating_sub(1);
        self.times = Some(k.min(1));
        self
    }
}

impl fmt::Debug for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Match")
            .field("conditions", &self.predicates.len())
            .field("skip", &self.skip)
            .field("times", &self.times)
            .finish()
    }
}

/// When a hook is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The request has arrived and is not forwarded yet.
    Before,
    /// The server has responded (a write is committed) and the client has not received the response.
    After,
}

/// A callback of a test at a [`Stage`]. It runs on the task of the connection and delays the request. It may block for
/// a short time, for example to kill a process, but must not wait for a response through this proxy, nor remove rules.
pub type Hook = Arc<dyn Fn(Stage, &RequestInfo) + Send + Sync>;

/// The fault of a selected request.
#[derive(Clone)]
pub enum Fault {
    /// The request is delayed.
    Latency(Duration),
    /// This response is sent; the server does not receive the request.
    Status {
        /// The status.
        code: StatusCode,
        /// Headers of the response.
        headers: Vec<(HeaderName, HeaderValue)>,
        /// Body of the response.
        body: Bytes,
    },
    /// The connection is closed; the server does not receive the request.
    CutBefore,
    /// The server handles the request; the connection is closed instead of a response.
    CutAfter,
    /// The client never gets a response; the server does not receive the request.
    BlackHole,
    /// These bytes are written instead of a response, and the connection is closed.
    Garbage(Bytes),
    /// The hook is called before the request is forwarded and after the response.
    Hook(Hook),
}

impl Fault {
    /// Creates a response with the `Status` object of an API server for this code.
    pub fn status(code: StatusCode) -> Self {
        let body = format!(
            r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","message":"injected: {text}","reason":"{reason}","code":{number}}}"#,
            text = code.canonical_reason().unwrap_or("unknown"),
            reason = reason(code),
            number = code.as_u16(),
        );
        let json = (
            http::header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        Self::Status {
            code,
            headers: vec![json],
            body: body.into(),
        }
    }

    /// Creates a response 429 with `Retry-After`.
    pub fn too_many_requests(retry_after_seconds: u32) -> Self {
        let Self::Status {
            code,
            mut headers,
            body,
        } = Self::status(StatusCode::TOO_MANY_REQUESTS)
        else {
            return Self::CutBefore;
        };
        headers.push((http::header::RETRY_AFTER, HeaderValue::from(retry_after_seconds)));
        Self::Status { code, headers, body }
    }

    /// Calls a function at both stages.
    pub fn hook(hook: impl Fn(Stage, &RequestInfo) + Send + Sync + 'static) -> Self {
        Self::Hook(Arc::new(hook))
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Latency(delay) => f.debug_tuple("Latency").field(delay).finish(),
            Self::Status { code, .. } => f.debug_tuple("Status").field(code).finish(),
            Self::CutBefore => f.write_str("CutBefore"),
            Self::CutAfter => f.write_str("CutAfter"),
            Self::BlackHole => f.write_str("BlackHole"),
            Self::Garbage(bytes) => f.debug_tuple("Garbage").field(&bytes.len()).finish(),
            Self::Hook(_) => f.write_str("Hook"),
        }
    }
}

/// Returns the `reason` of API servers for a code.
fn reason(code: StatusCode) -> &'static str {
    match code.as_u16() {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        422 => "Invalid",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "",
    }
}

/// A match, its fault, and how often the fault was applied.
#[derive(Debug)]
pub(super) struct Rule {
    matching: Match,
    pub(super) fault: Fault,
    chosen: AtomicUsize,
    fired: AtomicUsize,
    removed: RwLock<bool>,
}

impl Rule {
    pub(super) fn new(matching: Match, fault: Fault) -> Self {
        Self {
            matching,
            fault,
            chosen: AtomicUsize::new(0),
            fired: AtomicUsize::new(0),
            removed: RwLock::new(false),
        }
    }

    /// Returns after the hooks of the rule that run now; none is called from then on. Otherwise a request in flight
    /// could start a fault again that the test has just ended.
    pub(super) fn remove(&self) {
        *self.removed.write().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Calls the hook, unless the rule was removed.
    pub(super) fn call(&self, stage: Stage, request: &RequestInfo) {
        let removed = self.removed.read().unwrap_or_else(PoisonError::into_inner);
        if let (Fault::Hook(hook), false) = (&self.fault, *removed) {
            hook(stage, request);
        }
    }

    /// Whether the fault applies to this request. Counts the request.
    pub(super) fn applies(&self, request: &RequestInfo) -> bool {
        if !self
            .matching
            .predicates
            .iter()
            .all(|condition| condition(request))
        {
            return false;
        }
        let number = self.chosen.fetch_add(1, Ordering::SeqCst);
        let Match {
            predicates: _,
            skip,
            times,
        } = &self.matching;
        let applies = number >= *skip && times.is_none_or(|times| number < skip + times);
        if applies {
            self.fired.fetch_add(1, Ordering::SeqCst);
        }
        applies
    }
}

/// Reads how often a rule was applied.
#[derive(Debug, Clone)]
pub struct RuleHandle {
    pub(super) rule: Arc<Rule>,
}

impl RuleHandle {
    /// Returns the number of requests with this fault, counted at its start and not at its end.
    pub fn fired(&self) -> usize {
        self.rule.fired.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(matching: Match, paths: &[&str]) -> Vec<bool> {
        let rule = Rule::new(matching, Fault::CutBefore);
        paths
            .iter()
            .map(|path| rule.applies(&RequestInfo::new(Method::GET, path, "", Bytes::new())))
            .collect()
    }

    #[test]
    fn counting_is_over_the_chosen_requests() {
        let matching = || Match::method(Method::GET).path_contains("a");
        let paths = ["/a", "/b", "/a", "/ba", "/b", "/a"];
        assert_eq!(
            applied(matching(), &paths),
            [true, false, true, true, false, true]
        );
        assert_eq!(
            applied(matching().times(2), &paths),
            [true, false, true, false, false, false]
        );
        assert_eq!(
            applied(matching().nth(3), &paths),
            [false, false, false, true, false, false]
        );
        assert_eq!(applied(matching().nth(0), &paths), [false; 6]);
    }

    #[test]
    fn conditions_are_joined() {
        let request = RequestInfo::new(
            Method::PATCH,
            "/api/v1/x",
            "fieldManager=me",
            Bytes::from("{\"k\":1}"),
        );
        let applies = |matching| Rule::new(matching, Fault::CutBefore).applies(&request);
        assert!(applies(
            Match::writes()
                .body_contains("\"k\"")
                .query_contains("Manager=me")
        ));
        assert!(applies(
            Match::any()
                .methods([Method::GET, Method::PATCH])
                .path_ends_with("/x")
        ));
        assert!(!applies(Match::writes().body_contains("\"l\"")));
        assert!(!applies(Match::method(Method::GET)));
        assert!(!applies(Match::any().path(|path| path.starts_with("/apis"))));
    }
}
