//! The discovery and OpenAPI documents over HTTP.

use bytes::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, EXPIRES, HeaderValue, VARY};
use hyper::{Method, Response};
use jiff::{SignedDuration, fmt::rfc2822::DateTimePrinter};
use serde_json::Value;

use super::body::Body;
use super::request::Call;
use super::response::{json as as_json, text, with_type};
use super::route::Route;
use crate::discovery;
use crate::kinds::Registry;
use crate::openapi::{self, Document};
use crate::status::Status;

/// The content type by which clients recognise the aggregated discovery document.
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The content type of OpenAPI v2 in protobuf, without the `@` that media types do not allow.
const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// Handles a request for a document.
pub(super) fn answer(call: &Call) -> Result<Response<Body>, Status> {
    let Route::Discovery(steps) = &call.route else {
        return Err(Status::no_such_resource());
    };
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    let state = call.cluster.state();
    let registry = &state.registry;
    // As in Kubernetes: these are routes with a method. The others are handlers that look at no method.
    let is_route = match steps.as_slice() {
        ["api", ..] => true,
        ["apis", group, _] => !discovery::is_extended(registry, group),
        _ => false,
    };
    let missing = || match steps.as_slice() {
        // The groups and versions of the API server itself answer for what they do not have, in JSON.
        ["api", ..] => Status::no_such_resource(),
        ["apis", group, ..] if Registry::builtin_groups().any(|name| name == *group) => {
            Status::no_such_resource()
        }
        ["openapi", "v3", _, ..] => Status::nothing(),
        _ => Status::no_such_path(),
    };
    if is_route && call.method != Method::GET {
        let exists = match steps.as_slice() {
            ["api", version] => discovery::resources(registry, "", version).is_some(),
            ["apis", group, version] => discovery::resources(registry, group, version).is_some(),
            _ => true,
        };
        return Err(if exists {
            Status::method_not_allowed()
        } else {
            missing()
        });
    }
    let plain = |value: Value| Ok(as_json(200, value.to_string().into_bytes()));
    match steps.as_slice() {
        ["api"] if call.accept.aggregated => Ok(aggregated(call, discovery::aggregated_core())),
        ["apis"] if call.accept.aggregated => Ok(aggregated(call, discovery::aggregated(registry))),
        ["api"] => plain(discovery::core_versions()),
        ["apis"] => plain(discovery::groups(registry)),
        ["apis", name] => plain(discovery::group(registry, name).ok_or_else(missing)?),
        ["api", version] => resources(discovery::resources(registry, "", version).ok_or_else(missing)?),
        ["apis", name, version] => {
            resources(discovery::resources(registry, name, version).ok_or_else(missing)?)
        }
        ["openapi", "v2"] if call.accept.openapi_protobuf => {
            let mut response = document(call, openapi::v2_protobuf(registry));
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROTOBUF));
            Ok(response)
        }
        ["openapi", "v2"] => Ok(document(call, openapi::v2(registry))),
        // As in Kubernetes, which does not name the type of the index.
        ["openapi", "v3"] => Ok(text(200, &openapi::index(registry).to_string())),
        ["openapi", "v3", "api", version] => Ok(document(
            call,
            openapi::document(registry, "", version).ok_or_else(missing)?,
        )),
        ["openapi", "v3", "apis", group, version] => Ok(document(
            call,
            openapi::document(registry, group, version).ok_or_else(missing)?,
        )),
        _ => Err(missing()),
    }
}

fn resources(document: Bytes) -> Result<Response<Body>, Status> {
    Ok(with_type(200, "application/json", Body::full(document)))
}

fn aggregated(call: &Call, bytes: Bytes) -> Response<Body> {
    let mut response = tagged(call, Document::new(bytes));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(AGGREGATED));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("public"));
    response
}

/// Returns an OpenAPI document. A document that is requested by its hash can be cached forever.
fn document(call: &Call, document: Document) -> Response<Body> {
    const YEAR: SignedDuration = SignedDuration::from_hours(365 * 24);
    let by_hash = call.params.text("hash") == document.hash;
    let mut response = tagged(call, document);
    let expires = call.now.checked_add(YEAR).ok();
    let expires = expires.and_then(|time| DateTimePrinter::new().timestamp_to_rfc9110_string(&time).ok());
    if let Some(expires) = expires.and_then(|text| HeaderValue::try_from(text).ok())
        && by_hash
    {
        let headers = response.headers_mut();
        headers.insert(EXPIRES, expires);
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
    }
    response
}

/// Returns a document with its ETag, or 304 if the client has it.
fn tagged(call: &Call, document: Document) -> Response<Body> {
    let tag = format!("\"{}\"", document.hash);
    let known = call
        .known_tags
        .as_deref()
        .is_some_and(|tags| tags.split(',').any(|one| one.trim() == tag));
    let (code, bytes) = if known {
        (304, Bytes::new())
    } else {
        (200, document.bytes)
    };
    let mut response = with_type(code, "application/json", Body::full(bytes));
    let headers = response.headers_mut();
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    if let Ok(tag) = HeaderValue::try_from(tag) {
        headers.insert(ETAG, tag);
    }
    response
}
