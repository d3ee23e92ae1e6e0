//! The requests that a proxy has seen.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::{HeaderMap, Method};
use jiff::Timestamp;

/// One request and what became of it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RequestInfo {
    /// The method.
    pub method: Method,
    /// The path without query.
    pub path: String,
    /// The query without question mark, empty if there is none.
    pub query: String,
    /// The header fields, credentials included.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
    /// When the request had arrived completely.
    pub when: Timestamp,
    /// Whether it was handed to the server.
    pub forwarded: bool,
    /// The status that the server, or a fault in its place, answered. Empty while there is no answer.
    pub status: Option<u16>,
}

impl RequestInfo {
    pub(super) fn new(method: Method, path: &str, query: &str, body: Bytes) -> Self {
        Self {
            method,
            path: path.to_owned(),
            query: query.to_owned(),
            headers: HeaderMap::new(),
            body,
            when: Timestamp::now(),
            forwarded: false,
            status: None,
        }
    }

    /// Tells whether the request carries this bearer token.
    pub fn has_token(&self, token: &str) -> bool {
        let value = self.headers.get(http::header::AUTHORIZATION);
        value.is_some_and(|value| value.as_bytes() == format!("Bearer {token}").as_bytes())
    }

    /// Tells whether the request is a watch.
    pub fn is_watch(&self) -> bool {
        self.query
            .split('&')
            .any(|pair| matches!(pair, "watch=true" | "watch=1"))
    }
}

/// All requests in the order of their arrival.
#[derive(Debug, Default)]
pub(super) struct Record {
    requests: Mutex<Vec<RequestInfo>>,
}

impl Record {
    /// Adds a request and returns its place.
    pub(super) fn add(&self, request: RequestInfo) -> usize {
        let mut requests = self.lock();
        requests.push(request);
        requests.len() - 1
    }

    /// Notes what became of the request at a place that [`Self::add`] returned.
    pub(super) fn update(&self, place: usize, change: impl FnOnce(&mut RequestInfo)) {
        if let Some(request) = self.lock().get_mut(place) {
            change(request);
        }
    }

    pub(super) fn all(&self) -> Vec<RequestInfo> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<RequestInfo>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
