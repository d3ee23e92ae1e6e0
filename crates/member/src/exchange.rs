//! One request and its response, with a time and size limit for each part.

use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::uri::Parts;
use http::{HeaderValue, Request, Response, Uri, response};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use starling_net::exchange::{Body, BodyError};
use tokio::time::timeout;

use super::connections::{self, Connection, Connections};
use super::error::BoxError;

/// The limits of a response.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// From the connection to the end of the head.
    pub(super) head: Duration,
    /// Between two parts of the body.
    pub(super) idle: Duration,
    /// Bytes of the body of a successful response.
    pub(super) success_bytes: usize,
    /// Bytes of the body of any other response.
    pub(super) refusal_bytes: usize,
}

/// A response.
pub(super) struct Exchanged {
    pub(super) head: response::Parts,
    /// `None`: larger than the limit.
    pub(super) body: Option<Bytes>,
}

/// Sends a request and reads its response. Connecting has a time limit of its own, in [`Connections`].
///
/// # Errors
/// No connection or no complete response in time.
pub(super) async fn exchange(
    connections: &Connections,
    mut request: Request<connections::Body>,
    bounds: Bounds,
) -> Result<Exchanged, BoxError> {
    let uri = request.uri().clone();
    set_host(&mut request)?;
    let (sender, response) = head(connections, &uri, request, bounds.head).await?;
    let (head, body) = response.into_parts();
    let limit = if head.status.is_success() {
        bounds.success_bytes
    } else {
        bounds.refusal_bytes
    };
    let body = read(body, limit, bounds.idle).await?;
    if body.is_some() {
        connections.release(sender).await;
    }
    Ok(Exchanged { head, body })
}

/// Sets the `Host` header and reduces the request target to the path, as HTTP/1.1 requires of a client without a proxy.
fn set_host(request: &mut Request<connections::Body>) -> Result<(), BoxError> {
    let Parts {
        authority,
        path_and_query,
        ..
    } = request.uri().clone().into_parts();
    let authority = authority.ok_or("the address has no host")?;
    let host = match authority.port_u16() {
        Some(443) | None => authority.host(),
        Some(_) => authority.as_str(),
    };
    let host = HeaderValue::from_str(host)?;
    request.headers_mut().insert(HOST, host);
    *request.uri_mut() = path_and_query.map_or_else(|| Uri::from_static("/"), Uri::from);
    Ok(())
}

/// Sends the request and waits for the head of its response. If the member closed the connection before it took the
/// request, the request is sent on the next connection.
async fn head(
    connections: &Connections,
    uri: &Uri,
    mut request: Request<connections::Body>,
    within: Duration,
) -> Result<(SendRequest<connections::Body>, Response<Incoming>), BoxError> {
    loop {
        let Connection { mut sender, used } = connections.get(uri).await?;
        match timeout(within, sender.try_send_request(request)).await {
            Ok(Ok(response)) => return Ok((sender, response)),
            Ok(Err(mut error)) => match error.take_message() {
                Some(unsent) if used => request = unsent,
                _ => return Err(error.into_error().into()),
            },
            Err(_) => return Err(format!("no response began within {within:?}").into()),
        }
    }
}

/// Reads a body. A body longer than `limit` is dropped together with its connection.
async fn read(body: Incoming, limit: usize, idle: Duration) -> Result<Option<Bytes>, BoxError> {
    match Body::new(body, limit as u64, Some(idle)).whole().await {
        Ok(whole) => Ok(Some(whole)),
        Err(BodyError::TooLong(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
