//! Which requests a fault strikes, and what it does to them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, StatusCode};

use super::record::RequestInfo;

type Predicate = Arc<dyn Fn(&RequestInfo) -> bool + Send + Sync>;

/// Chooses requests. Everything that was asked for has to hold; a new one chooses all.
///
/// Counting with [`Self::nth`] and [`Self::times`] is over the requests that the rest of the match chooses.
#[derive(Clone, Default)]
pub struct Match {
    predicates: Vec<Predicate>,
    skip: usize,
    times: Option<usize>,
}

impl Match {
    /// Chooses every request.
    pub fn any() -> Self {
        Self::default()
    }

    /// Chooses requests with this method.
    pub fn method(method: Method) -> Self {
        Self::any().and(move |request| request.method == method)
    }

    /// Chooses requests that may change something: POST, PUT, PATCH, DELETE.
    pub fn writes() -> Self {
        Self::any().and(|request| !matches!(request.method, Method::GET | Method::HEAD | Method::OPTIONS))
    }

    /// Demands one of these methods.
    #[must_use]
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        let methods: Vec<Method> = methods.into_iter().collect();
        self.and(move |request| methods.contains(&request.method))
    }

    /// Demands that the path fulfils a condition.
    #[must_use]
    pub fn path(self, condition: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        self.and(move |request| condition(&request.path))
    }

    /// Demands that the path contains this text.
    #[must_use]
    pub fn path_contains(self, text: impl Into<String>) -> Self {
        let text = text.into();
        self.and(move |request| request.path.contains(&text))
    }

    /// Demands that the path ends with this text, such as `/configmaps/settings`.
    #[must_use]
    pub fn path_ends_with(self, text: impl Into<String>) -> Self {
        let text = text.into();
        self.and(move |request| request.path.ends_with(&text))
    }

    /// Demands that the query contains this text, such as `watch=true`.
    #[must_use]
    pub fn query_contains(self, text: impl Into<String>) -> Self {
        let text = text.into();
        self.and(move |request| request.query.contains(&text))
    }

    /// Demands that the body of the request contains this text.
    #[must_use]
    pub fn body_contains(self, text: impl Into<Vec<u8>>) -> Self {
        let text = text.into();
        self.and(move |request| {
            text.is_empty() || request.body.windows(text.len()).any(|window| window == text)
        })
    }

    /// Demands any other condition.
    #[must_use]
    pub fn and(mut self, condition: impl Fn(&RequestInfo) -> bool + Send + Sync + 'static) -> Self {
        self.predicates.push(Arc::new(condition));
        self
    }

    /// Chooses only the first `n` such requests.
    #[must_use]
    pub fn times(mut self, n: usize) -> Self {
        self.times = Some(n);
        self
    }

    /// Chooses only the `k`th such request, counted from 1; 0 chooses none.
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

/// The moment at which a hook is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The request has arrived and the server has not seen it.
    Before,
    /// The server has answered (a write is committed) and the client has not seen it.
    After,
}

/// What a test does at a [`Stage`]. It runs on the connection's task: the request waits for it, so it may
/// block for a moment, to kill a process for instance, but must not wait for something that this proxy delivers.
pub type Hook = Arc<dyn Fn(Stage, &RequestInfo) + Send + Sync>;

/// What happens to a chosen request.
#[derive(Clone)]
pub enum Fault {
    /// It waits before it goes on.
    Latency(Duration),
    /// It is answered in place of the server, which does not see it.
    Status {
        /// The status.
        code: StatusCode,
        /// Headers of the answer.
        headers: Vec<(HeaderName, HeaderValue)>,
        /// Body of the answer.
        body: Bytes,
    },
    /// The connection is closed; the server does not see the request.
    CutBefore,
    /// The server handles the request; the connection is closed in place of the answer.
    CutAfter,
    /// The client waits for an answer that does not come; the server does not see the request.
    BlackHole,
    /// These bytes are written in place of an answer and the connection is closed.
    Garbage(Bytes),
    /// The test is called before the request goes on and after it was answered.
    Hook(Hook),
}

impl Fault {
    /// Answers with the `Status` object that an API server sends with this code.
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

    /// Answers 429 and asks the client to come back after some seconds.
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

/// The `reason` that API servers give with a code.
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

/// A match, its fault, and how often it came to pass.
#[derive(Debug)]
pub(super) struct Rule {
    matching: Match,
    pub(super) fault: Fault,
    chosen: AtomicUsize,
    fired: AtomicUsize,
}

impl Rule {
    pub(super) fn new(matching: Match, fault: Fault) -> Self {
        Self {
            matching,
            fault,
            chosen: AtomicUsize::new(0),
            fired: AtomicUsize::new(0),
        }
    }

    /// Tells whether the fault strikes this request, and counts it.
    pub(super) fn strikes(&self, request: &RequestInfo) -> bool {
        if !self.matching.predicates.iter().all(|holds| holds(request)) {
            return false;
        }
        let number = self.chosen.fetch_add(1, Ordering::SeqCst);
        let Match {
            predicates: _,
            skip,
            times,
        } = &self.matching;
        let strikes = number >= *skip && times.is_none_or(|times| number < skip + times);
        if strikes {
            self.fired.fetch_add(1, Ordering::SeqCst);
        }
        strikes
    }
}

/// Tells how often a rule struck.
#[derive(Debug, Clone)]
pub struct RuleHandle {
    pub(super) rule: Arc<Rule>,
}

impl RuleHandle {
    /// Returns how many requests the fault has struck, counted when it struck and not when it was over.
    pub fn fired(&self) -> usize {
        self.rule.fired.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn struck(matching: Match, paths: &[&str]) -> Vec<bool> {
        let rule = Rule::new(matching, Fault::CutBefore);
        paths
            .iter()
            .map(|path| rule.strikes(&RequestInfo::new(Method::GET, path, "", Bytes::new())))
            .collect()
    }

    #[test]
    fn counting_is_over_the_chosen_requests() {
        let matching = || Match::method(Method::GET).path_contains("a");
        let paths = ["/a", "/b", "/a", "/ba", "/b", "/a"];
        assert_eq!(struck(matching(), &paths), [true, false, true, true, false, true]);
        assert_eq!(
            struck(matching().times(2), &paths),
            [true, false, true, false, false, false]
        );
        assert_eq!(
            struck(matching().nth(3), &paths),
            [false, false, false, true, false, false]
        );
        assert_eq!(struck(matching().nth(0), &paths), [false; 6]);
    }

    #[test]
    fn conditions_are_joined() {
        let request = RequestInfo::new(
            Method::PATCH,
            "/api/v1/x",
            "fieldManager=me",
            Bytes::from("{\"k\":1}"),
        );
        let strikes = |matching| Rule::new(matching, Fault::CutBefore).strikes(&request);
        assert!(strikes(
            Match::writes()
                .body_contains("\"k\"")
                .query_contains("Manager=me")
        ));
        assert!(strikes(
            Match::any()
                .methods([Method::GET, Method::PATCH])
                .path_ends_with("/x")
        ));
        assert!(!strikes(Match::writes().body_contains("\"l\"")));
        assert!(!strikes(Match::method(Method::GET)));
        assert!(!strikes(Match::any().path(|path| path.starts_with("/apis"))));
    }
}
