//! The requests that a proxy has received.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::{HeaderMap, Method};
use jiff::Timestamp;

/// One request and its result.
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
    /// Whether the request was forwarded to the server.
    pub forwarded: bool,
    /// The status of the response of the server or of a fault. Empty while there is no response.
    pub status: Option<u16>,
}

impl RequestInfo {
    /// Whether the request is an apply or another patch that is stored: a dry run changes nothing.
    pub fn is_patch(&self) -> bool {
        self.method == Method::PATCH && !self.query.contains("dryRun=All")
    }

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

    /// Whether the request has this bearer token.
    pub fn has_token(&self, token: &str) -> bool {
        let value = self.headers.get(http::header::AUTHORIZATION);
        value.is_some_and(|value| value.as_bytes() == format!("Bearer {token}").as_bytes())
    }

    /// Whether the request is a watch.
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
    /// Adds a request and returns its index.
    pub(super) fn add(&self, request: RequestInfo) -> usize {
        let mut requests = self.lock();
        requests.push(request);
        requests.len() - 1
    }

    /// Updates the request at an index that [`Self::add`] returned.
    pub(super) fn update(&self, index: usize, change: impl FnOnce(&mut RequestInfo)) {
        if let Some(request) = self.lock().get_mut(index) {
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
