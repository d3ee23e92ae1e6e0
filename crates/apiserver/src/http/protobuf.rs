//! Responses in protobuf: those of built-in kinds, lists and errors, for clients that prefer it.

use bytes::Bytes;
use hyper::Response;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde_json::Value;

use super::body::Body;
use super::negotiate::Fallback;
use super::response::status_response;
use crate::kinds::protobuf::{write, write_event};
use crate::status::Status;

const OBJECT: &str = "application/vnd.kubernetes.protobuf";
const EVENTS: &str = "application/vnd.kubernetes.protobuf;stream=watch";

/// Returns a response in JSON in the form that the client prefers. What has no form in protobuf stays, unless the
/// client takes nothing else.
pub(super) fn preferred(response: Response<Body>, fallback: Fallback, builtin: bool) -> Response<Body> {
    let is_json = response
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|ty| ty == "application/json");
    if !is_json {
        return response;
    }
    if !builtin && response.status().is_success() {
        return match fallback {
            Fallback::Json => response,
            Fallback::Nothing => status_response(&Status::not_acceptable()),
        };
    }
    let Some(bytes) = response.body().bytes() else {
        let mut response = response.map(|body| body.mapped(events));
        set_type(&mut response, EVENTS);
        return response;
    };
    let object = serde_json::from_slice::<Value>(bytes).ok();
    let Some(bytes) = object.and_then(|object| write(&object)) else {
        return match fallback {
            Fallback::Nothing if response.status().is_success() => status_response(&Status::not_acceptable()),
            _ => response,
        };
    };
    let mut response = response.map(|_| Body::full(bytes));
    set_type(&mut response, OBJECT);
    response
}

fn set_type(response: &mut Response<Body>, content_type: &'static str) {
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
}

/// Encodes the events of a chunk, one on each line.
fn events(chunk: &Bytes) -> Bytes {
    let events = serde_json::Deserializer::from_slice(chunk).into_iter::<Value>();
    let encoded: Vec<u8> = events
        .filter_map(Result::ok)
        .filter_map(|event| write_event(&event))
        .flatten()
        .collect();
    encoded.into()
}
