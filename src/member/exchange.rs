//! One request and its answer, each part within a time and a size of its own.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::response::Parts;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::capture_connection;
use tokio::time::timeout;

use super::dial::{self, Body, Http};
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
    pub(super) head: Parts,
    /// `None`: more than may be read.
    pub(super) body: Option<Bytes>,
}

/// Sends a request and reads its answer. To connect has a limit of its own, in the client.
///
/// # Errors
/// There was no connection, no whole answer, or not in time.
pub(super) async fn exchange(
    http: &Http,
    request: Request<Body>,
    bounds: Bounds,
) -> Result<Exchanged, BoxError> {
    let (head, body) = head(http, request, bounds.head).await?.into_parts();
    let limit = if head.status.is_success() {
        bounds.success_bytes
    } else {
        bounds.refusal_bytes
    };
    let body = read(body, limit, bounds.idle).await?;
    Ok(Exchanged { head, body })
}

async fn head(
    http: &Http,
    mut request: Request<Body>,
    within: Duration,
) -> Result<Response<Incoming>, BoxError> {
    let mut connection = capture_connection(&mut request);
    let mut answer = std::pin::pin!(dial::send(http, request));
    let connected = async {
        connection.wait_for_connection_metadata().await;
    };
    tokio::select! {
        biased;
        answer = &mut answer => return Ok(answer?),
        () = connected => {}
    }
    match timeout(within, answer).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(format!("no answer began within {within:?}").into()),
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
