//! One client connection: reads requests, lets the rules strike, forwards what is left.

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
use super::rule::{Fault, Hook, Stage};
use super::upstream::Channel;

type Body = BoxBody<Bytes, hyper::Error>;

/// Ends the connection in place of an answer.
#[derive(Debug, thiserror::Error)]
#[error("connection cut")]
struct Cut {
    /// Written before the end, as it is.
    last_words: Bytes,
}

/// What the rules leave of a request.
enum Verdict {
    /// The server shall see it; the hooks are called when it has answered.
    Forward { hooks: Vec<Hook>, cut_answer: bool },
    /// The answer in place of the server's.
    Answer(Response<Body>),
    /// No answer.
    Cut(Cut),
}

/// Serves a connection until the client leaves or a fault ends it.
pub(super) async fn serve<S>(stream: S, shared: Arc<Shared>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let channel = Arc::new(Mutex::new(Channel::new(Arc::clone(&shared.dialer))));
    let last_words = Arc::new(std::sync::Mutex::new(Bytes::new()));
    let words = Arc::clone(&last_words);
    let service = service_fn(
        move |request| -> BoxFuture<'static, Result<Response<Body>, Cut>> {
            let (shared, channel, words) = (Arc::clone(&shared), Arc::clone(&channel), Arc::clone(&words));
            async move {
                // HTTP/1.1 has one request at a time, so nobody waits for this lock.
                let answer = handle(request, &shared, &mut *channel.lock().await).await;
                if let Err(cut) = &answer {
                    words
                        .lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner)
                        .clone_from(&cut.last_words);
                }
                answer
            }
            .boxed()
        },
    );
    let mut connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let outcome = poll_fn(|cx| connection.poll_without_shutdown(cx)).await;
    let mut stream = connection.into_parts().io.into_inner();
    let words = std::mem::take(
        &mut *last_words
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner),
    );
    let ended = match outcome {
        Ok(()) => stream.shutdown().await,
        Err(error) => {
            tracing::debug!(%error, "client connection ended");
            // Without a shutdown the client sees the connection break, as it does when a server dies.
            async { stream.write_all(&words).await.and(stream.flush().await) }.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "client has gone");
    }
}

async fn handle(
    request: Request<Incoming>,
    shared: &Shared,
    channel: &mut Channel,
) -> Result<Response<Body>, Cut> {
    let (head, body) = request.into_parts();
    if head.headers.contains_key(UPGRADE) {
        return Ok(text_answer(
            StatusCode::NOT_IMPLEMENTED,
            "this proxy does not upgrade connections",
        ));
    }
    // Requests to an API server are small and end; only answers (watches) have to be streamed.
    let body = body.collect().await.map_err(|_| cut())?.to_bytes();
    let path = head.uri.path();
    let mut info = RequestInfo::new(head.method.clone(), path, head.uri.query().unwrap_or(""), body);
    info.headers.clone_from(&head.headers);
    let place = shared.record.add(info.clone());
    match judge(shared, &info).await {
        Verdict::Cut(cut) => Err(cut),
        Verdict::Answer(response) => {
            shared
                .record
                .update(place, |request| request.status = Some(response.status().as_u16()));
            Ok(response)
        }
        Verdict::Forward { hooks, cut_answer } => {
            info.forwarded = true;
            shared.record.update(place, |request| request.forwarded = true);
            let answer = channel.send(outgoing(head, info.body.clone())).await;
            let response = answer.map_err(|error| {
                tracing::debug!(error, "server gave no answer");
                cut()
            })?;
            info.status = Some(response.status().as_u16());
            shared
                .record
                .update(place, |request| request.status = info.status);
            hooks.iter().for_each(|hook| hook(Stage::After, &info));
            if cut_answer {
                Err(cut())
            } else {
                Ok(incoming(response))
            }
        }
    }
}

/// Lets the rules strike in their order: delays and hooks add up, the first other fault decides.
async fn judge(shared: &Shared, info: &RequestInfo) -> Verdict {
    let mut hooks = Vec::new();
    for rule in shared.rules() {
        if !rule.strikes(info) {
            continue;
        }
        match &rule.fault {
            Fault::Latency(delay) => tokio::time::sleep(*delay).await,
            Fault::Hook(hook) => {
                hook(Stage::Before, info);
                hooks.push(Arc::clone(hook));
            }
            Fault::Status { code, headers, body } => {
                let mut response = Response::new(full(body.clone()));
                *response.status_mut() = *code;
                response.headers_mut().extend(headers.iter().cloned());
                return Verdict::Answer(response);
            }
            Fault::CutBefore => return Verdict::Cut(cut()),
            Fault::CutAfter => {
                return Verdict::Forward {
                    hooks,
                    cut_answer: true,
                };
            }
            // Ends when the client gives up: its connection, and this with it, is dropped.
            Fault::BlackHole => return std::future::pending().await,
            Fault::Garbage(bytes) => {
                return Verdict::Cut(Cut {
                    last_words: bytes.clone(),
                });
            }
        }
    }
    Verdict::Forward {
        hooks,
        cut_answer: false,
    }
}

/// The request for the server: as it came, but with a body of known length and a connection of its own.
fn outgoing(mut head: Parts, body: Bytes) -> Request<Full<Bytes>> {
    for header in [CONNECTION, TRANSFER_ENCODING, CONTENT_LENGTH] {
        head.headers.remove(header);
    }
    head.version = http::Version::HTTP_11;
    Request::from_parts(head, Full::new(body))
}

/// The answer for the client: as it came, streamed.
fn incoming(response: Response<Incoming>) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    for header in [CONNECTION, TRANSFER_ENCODING] {
        head.headers.remove(header);
    }
    Response::from_parts(head, body.boxed())
}

fn text_answer(code: StatusCode, text: &'static str) -> Response<Body> {
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
        last_words: Bytes::new(),
    }
}
