//! One request and its answer, each part within a time and a size of its own.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::HOST;
use http::uri::Parts;
use http::{HeaderValue, Request, Response, Uri, response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use tokio::time::timeout;

use super::connections::{Connection, Connections};
use super::dial::Body;
use super::error::BoxError;

/// What an answer may cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// From the moment there is a connection to the end of the head.
    pub(super) head: Duration,
    /// Between two parts of the body.
    pub(super) idle: Duration,
    /// Bytes of the body of a success.
    pub(super) success_bytes: usize,
    /// Bytes of the body of anything else.
    pub(super) refusal_bytes: usize,
}

/// An answer.
pub(super) struct Exchanged {
    pub(super) head: response::Parts,
    /// `None`: more than may be read.
    pub(super) body: Option<Bytes>,
}

/// Sends a request and reads its answer. To connect has a limit of its own, with the connections.
///
/// # Errors
/// There was no connection, no whole answer, or not in time.
pub(super) async fn exchange(
    connections: &Connections,
    mut request: Request<Body>,
    bounds: Bounds,
) -> Result<Exchanged, BoxError> {
    let uri = request.uri().clone();
    address(&mut request)?;
    let (sender, answer) = head(connections, &uri, request, bounds.head).await?;
    let (head, body) = answer.into_parts();
    let limit = if head.status.is_success() {
        bounds.success_bytes
    } else {
        bounds.refusal_bytes
    };
    let body = read(body, limit, bounds.idle).await?;
    if body.is_some() {
        connections.give_back(sender).await;
    }
    Ok(Exchanged { head, body })
}

/// Names the host in the head, and the path alone in the first line, as HTTP/1.1 wants it of who talks to the server itself.
fn address(request: &mut Request<Body>) -> Result<(), BoxError> {
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

/// Sends the request, and waits for the head of its answer. A connection that the member closed before it took the request is
/// no answer: the request goes out on the next one.
async fn head(
    connections: &Connections,
    uri: &Uri,
    mut request: Request<Body>,
    within: Duration,
) -> Result<(SendRequest<Body>, Response<Incoming>), BoxError> {
    loop {
        let Connection { mut sender, used } = connections.get(uri).await?;
        match timeout(within, sender.try_send_request(request)).await {
            Ok(Ok(answer)) => return Ok((sender, answer)),
            Ok(Err(mut error)) => match error.take_message() {
                Some(unsent) if used => request = unsent,
                _ => return Err(error.into_error().into()),
            },
            Err(_) => return Err(format!("no answer began within {within:?}").into()),
        }
    }
}

/// Reads a body; what is longer than `limit` is given up, and its connection with it.
async fn read(mut body: Incoming, limit: usize, idle: Duration) -> Result<Option<Bytes>, BoxError> {
    let mut bytes = BytesMut::new();
    loop {
        let Ok(frame) = timeout(idle, body.frame()).await else {
            return Err(format!("the answer stopped for {idle:?}").into());
        };
        let Some(frame) = frame else {
            return Ok(Some(bytes.freeze()));
        };
        // Trailers mean nothing in this API.
        let Ok(data) = frame?.into_data() else { continue };
        if bytes.len() + data.len() > limit {
            return Ok(None);
        }
        bytes.extend_from_slice(&data);
    }
}
