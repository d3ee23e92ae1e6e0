//! Management clusters with responses that a test defines.

#![cfg(test)]

use http::request::Parts;
use kube::client::Body;
use serde_json::{Value, json};

use super::Hub;

/// Returns a management cluster that responds to each request with a code and an object.
pub fn responding(answer: impl Fn(&Parts, &[u8]) -> (u16, Value) + Clone + Send + 'static) -> Hub {
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let answer = answer.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap_or_default();
            let (code, object) = answer(&parts, &body);
            let response = http::Response::builder().status(code);
            let response = response.body(Body::from(object.to_string().into_bytes()));
            response.map_err(|error| Box::new(error) as Box<dyn std::error::Error + Send + Sync>)
        }
    });
    Hub::new(kube::Client::new(service, "default"))
}

/// Returns a management cluster without objects.
pub fn empty() -> Hub {
    responding(|parts, _| failure(parts, 404, "NotFound"))
}

/// Returns the response to a request that fails.
pub fn failure(parts: &Parts, code: u16, reason: &str) -> (u16, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "reason": reason, "message": reason, "details": {"name": name(parts)}});
    (code, status)
}

/// Returns the name in the path of a request.
pub fn name(parts: &Parts) -> &str {
    parts.uri.path().rsplit('/').next().unwrap_or_default()
}
