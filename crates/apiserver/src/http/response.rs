//! The building blocks of responses.

use hyper::Response;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WARNING};

use super::body::Body;
use crate::status::Status;

/// Returns a 429 response with `Retry-After`.
pub(super) fn too_many(seconds: u32) -> Response<Body> {
    let mut status = Status::new(
        429,
        "TooManyRequests",
        "too many requests, please try again later",
    );
    status.details.retry_after = seconds;
    let mut response = status_response(&status);
    response
        .headers_mut()
        .insert(RETRY_AFTER, HeaderValue::from(seconds));
    response
}

/// Returns a `Status` as a response.
pub(super) fn status_response(status: &Status) -> Response<Body> {
    if status.plain {
        let mut response = text(status.code, &status.message);
        if status.message.is_empty() {
            response.headers_mut().remove(CONTENT_TYPE);
        }
        return response;
    }
    let mut response = json(status.code, status.to_value().to_string().into_bytes());
    add_warnings(&mut response, &status.warnings);
    if status.details.retry_after > 0 {
        response
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from(status.details.retry_after));
    }
    response
}

pub(super) fn json(code: u16, body: Vec<u8>) -> Response<Body> {
    with_type(code, "application/json", Body::full(body))
}

pub(super) fn text(code: u16, body: &str) -> Response<Body> {
    with_type(
        code,
        "text/plain; charset=utf-8",
        Body::full(body.as_bytes().to_vec()),
    )
}

pub(super) fn with_type(code: u16, content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() =
        hyper::StatusCode::from_u16(code).unwrap_or(hyper::StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(
        hyper::header::CACHE_CONTROL,
        HeaderValue::from_static("no-cache, private"),
    );
    response
}

/// Adds warnings as `Warning` headers.
pub(super) fn add_warnings(response: &mut Response<Body>, warnings: &[String]) {
    for warning in warnings {
        let text: String = warning
            .chars()
            .flat_map(|char| match char {
                '"' | '\\' => vec!['\\', char],
                char if char.is_control() => vec![' '],
                char => vec![char],
            })
            .collect();
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{text}\"")) {
            response.headers_mut().append(WARNING, value);
        }
    }
}

impl Status {
    /// Returns the error that a fault asks for.
    pub(super) fn of_fault(code: u16) -> Self {
        let reason = match code {
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "NotFound",
            409 => "Conflict",
            500 => "InternalError",
            503 => "ServiceUnavailable",
            504 => "Timeout",
            _ => "",
        };
        Self::new(code, reason, "injected fault")
    }
}
