//! One client connection: reads requests, applies the rules, and forwards the other requests.

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::Mutex;

use super::Shared;
use super::record::RequestInfo;
use super::rule::{Fault, Rule, Stage};
use super::upstream::Channel;

type Body = BoxBody<Bytes, hyper::Error>;

/// Closes the connection instead of a response.
#[derive(Debug, thiserror::Error)]
#[error("connection cut")]
struct Cut {
    /// Bytes that are written before the close.
    final_bytes: Bytes,
}

/// The decision of the rules for a request.
enum Action {
    /// Forward the request to the server; the hooks are called after the response.
    Forward {
        hooks: Vec<Arc<Rule>>,
        cut_response: bool,
    },
    /// Send this response instead of the server's.
    Answer(Response<Body>),
    /// Close the connection without a response.
    Cut(Cut),
}

/// Serves a connection until the client disconnects or a fault closes it.
pub(super) async fn serve<S>(stream: S, shared: Arc<Shared>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let channel = Arc::new(Mutex::new(Channel::new(Arc::clone(&shared.dialer))));
    let final_bytes = Arc::new(std::sync::Mutex::new(Bytes::new()));
    let bytes = Arc::clone(&final_bytes);
    let service = service_fn(
        move |request| -> BoxFuture<'static, Result<Response<Body>, Cut>> {
            let (shared, channel, bytes) = (Arc::clone(&shared), Arc::clone(&channel), Arc::clone(&bytes));
            async move {
                // HTTP/1.1 has one request at a time, so this lock is never contended.
                let response = handle(request, &shared, &mut *channel.lock().await).await;
                if let Err(cut) = &response {
                    bytes
                        .lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner)
                        .clone_from(&cut.final_bytes);
                }
                response
            }
            .boxed()
        },
    );
    let mut connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let outcome = poll_fn(|cx| connection.poll_without_shutdown(cx)).await;
    let mut stream = connection.into_parts().io.into_inner();
    let bytes = std::mem::take(
        &mut *final_bytes
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner),
    );
    let ended = match outcome {
        Ok(()) => stream.shutdown().await,
        Err(error) => {
            tracing::debug!(%error, "client connection ended");
            // Without a shutdown, the client sees a broken connection, as if the server died.
            async { stream.write_all(&bytes).await.and(stream.flush().await) }.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "client disconnected");
    }
}

async fn handle(
    request: Request<Incoming>,
    shared: &Shared,
    channel: &mut Channel,
) -> Result<Response<Body>, Cut> {
    let (head, body) = request.into_parts();
    if head.headers.contains_key(UPGRADE) {
        return Ok(text_response(
            StatusCode::NOT_IMPLEMENTED,
            "this proxy does not upgrade connections",
        ));
    }
    // Requests to an API server are small and finite; only responses (watches) have to be streamed.
    let body = body.collect().await.map_err(|_| cut())?.to_bytes();
    let path = head.uri.path();
    let mut info = RequestInfo::new(head.method.clone(), path, head.uri.query().unwrap_or(""), body);
    info.headers.clone_from(&head.headers);
    let index = shared.record.add(info.clone());
    match apply_rules(shared, &info).await {
        Action::Cut(cut) => Err(cut),
        Action::Answer(response) => {
            shared
                .record
                .update(index, |request| request.status = Some(response.status().as_u16()));
            Ok(response)
        }
        Action::Forward { hooks, cut_response } => {
            info.forwarded = true;
            shared.record.update(index, |request| request.forwarded = true);
            let response = channel.send(outgoing(head, info.body.clone())).await;
            let response = response.map_err(|error| {
                tracing::debug!(error, "no response from the server");
                cut()
            })?;
            info.status = Some(response.status().as_u16());
            shared
                .record
                .update(index, |request| request.status = info.status);
            hooks.iter().for_each(|rule| rule.call(Stage::After, &info));
            if cut_response {
                Err(cut())
            } else {
                Ok(incoming(response))
            }
        }
    }
}

/// Applies the rules in order: delays and hooks accumulate, and the first other fault decides.
async fn apply_rules(shared: &Shared, info: &RequestInfo) -> Action {
    let mut hooks = Vec::new();
    for rule in shared.rules() {
        if !rule.applies(info) {
            continue;
        }
        match &rule.fault {
            Fault::Latency(delay) => tokio::time::sleep(*delay).await,
            Fault::Hook(_) => {
                rule.call(Stage::Before, info);
                hooks.push(Arc::clone(&rule));
            }
            Fault::Status { code, headers, body } => {
                let mut response = Response::new(full(body.clone()));
                *response.status_mut() = *code;
                response.headers_mut().extend(headers.iter().cloned());
                return Action::Answer(response);
            }
            Fault::CutBefore => return Action::Cut(cut()),
            Fault::CutAfter => {
                return Action::Forward {
                    hooks,
                    cut_response: true,
                };
            }
            // Ends when the client closes the connection, which drops this future.
            Fault::BlackHole => return std::future::pending().await,
            Fault::Garbage(bytes) => {
                return Action::Cut(Cut {
                    final_bytes: bytes.clone(),
                });
            }
        }
    }
    Action::Forward {
        hooks,
        cut_response: false,
    }
}

/// Returns the request for the server: unchanged but for a body of known length and the headers of the connection.
fn outgoing(mut head: Parts, body: Bytes) -> Request<Full<Bytes>> {
    for header in [CONNECTION, TRANSFER_ENCODING, CONTENT_LENGTH] {
        head.headers.remove(header);
    }
    head.version = http::Version::HTTP_11;
    Request::from_parts(head, Full::new(body))
}

/// Returns the response for the client: unchanged and streamed.
fn incoming(response: Response<Incoming>) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    for header in [CONNECTION, TRANSFER_ENCODING] {
        head.headers.remove(header);
    }
    Response::from_parts(head, body.boxed())
}

fn text_response(code: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(full(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = code;
    response
}

fn full(bytes: Bytes) -> Body {
    Full::new(bytes)
        .map_err(|never: Infallible| match never {})
        .boxed()
}

fn cut() -> Cut {
    Cut {
        final_bytes: Bytes::new(),
    }
}
