//! Requests over HTTP: from paths, queries and bodies to verbs, and from what these come to, to answers.

mod body;
mod discovery;
mod negotiate;
mod params;
mod plain;
mod request;
mod resources;
mod route;
mod table;
mod watch;

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WARNING};
use hyper::{Request, Response};

pub use body::{Body, Broken};
pub(crate) use plain::VERSION;
use request::Call;

use crate::faults::{Effect, RequestFacts};
use crate::server::{Cluster, Server, Shared};
use crate::status::Status;

/// What a request comes to: an answer, or a connection that is closed without one.
pub(crate) type Answer = Result<Response<Body>, Broken>;

/// Answers a request.
pub(crate) async fn answer(server: &Server, shared: &Arc<Shared>, request: Request<Incoming>) -> Answer {
    let path = request.uri().path().to_owned();
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    match segments.as_slice() {
        ["clusters", name, rest @ ..] => match shared.cluster(name) {
            Some(cluster) => {
                let rest = rest.join("/");
                of_cluster(shared, &cluster, &rest, request).await
            }
            None => Ok(refuse(&Status::new(
                404,
                "NotFound",
                format!("there is no cluster {name:?} on this server"),
            ))),
        },
        ["admin", rest @ ..] => {
            let answer = admin(server, shared, &request, rest);
            match server.durable().await {
                Ok(()) => Ok(answer),
                Err(error) => Ok(refuse(&Status::internal(error))),
            }
        }
        ["healthz" | "livez" | "readyz"] => Ok(text(200, "ok")),
        _ => Ok(refuse(&Status::no_such_path())),
    }
}

fn admin(server: &Server, shared: &Shared, request: &Request<Incoming>, path: &[&str]) -> Response<Body> {
    let given = request::bearer(request.headers()).unwrap_or_default();
    if !request::is_same(given, &shared.secret.admin_token()) {
        return refuse(&Status::unauthorized());
    }
    match crate::server::admin_answer(server, request.method(), path) {
        Ok((code, value)) => json(code, value.to_string().into_bytes()),
        Err(status) => refuse(&status),
    }
}

async fn of_cluster(
    shared: &Arc<Shared>,
    cluster: &Arc<Cluster>,
    path: &str,
    request: Request<Incoming>,
) -> Answer {
    let call = match Call::read(shared, cluster, path, &request) {
        Ok(call) => call,
        Err(status) => return Ok(refuse(&status)),
    };
    cluster.requests().count(call.verb);
    let effects = cluster.faults().effects(&call.facts);
    if effects.is_empty() {
        return Ok(respond(call, request, &effects).await);
    }
    for effect in &effects {
        match effect {
            Effect::Latency(wait) => tokio::time::sleep(*wait).await,
            Effect::BlackHole => {
                // Until the client gives up, or the cluster is removed.
                let _ = cluster.closed().wait_for(|closed| *closed).await;
                return Err(Broken("black hole"));
            }
            Effect::Refuse => return Err(Broken("refused")),
            Effect::TooMany(seconds) => return Ok(too_many(*seconds)),
            Effect::Error(code) => return Ok(refuse(&Status::of_fault(*code))),
            _ => {}
        }
    }
    let response = respond(call, request, &effects).await;
    for effect in &effects {
        match effect {
            Effect::LoseAnswer => return Err(Broken("the answer is lost")),
            Effect::CutAnswer => return Ok(response.map(Body::cut)),
            Effect::Garbage => {
                return Ok(json(
                    200,
                    b"{\"kind\":\"ConfigMap\",\"api\x00<html>not JSON".to_vec(),
                ));
            }
            _ => {}
        }
    }
    Ok(response)
}

async fn respond(call: Call, request: Request<Incoming>, effects: &[Effect]) -> Response<Body> {
    let cluster = Arc::clone(&call.cluster);
    if let Err(error) = cluster.takes_writes()
        && !matches!(call.verb, "get" | "list" | "watch" | "")
    {
        return refuse(&Status::internal(error));
    }
    let outcome = match &call.route {
        route::Route::Resource { .. } => resources::answer(call, request, effects).await,
        route::Route::Plain(_) => plain::answer(&call),
        route::Route::Discovery(_) => discovery::answer(&call),
    };
    if let Err(error) = cluster.durable().await {
        return refuse(&Status::internal(error));
    }
    outcome.unwrap_or_else(|status| refuse(&status))
}

/// The answer of a server that has too much to do.
fn too_many(seconds: u32) -> Response<Body> {
    let mut status = Status::new(
        429,
        "TooManyRequests",
        "too many requests, please try again later",
    );
    status.details.retry_after = seconds;
    let mut response = refuse(&status);
    response
        .headers_mut()
        .insert(RETRY_AFTER, HeaderValue::from(seconds));
    response
}

/// The answer that is a [`Status`].
fn refuse(status: &Status) -> Response<Body> {
    if status.plain {
        return text(status.code, &status.message);
    }
    let mut response = json(status.code, status.to_value().to_string().into_bytes());
    warn(&mut response, &status.warnings);
    if status.details.retry_after > 0 {
        response
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from(status.details.retry_after));
    }
    response
}

fn json(code: u16, body: Vec<u8>) -> Response<Body> {
    with_type(code, "application/json", Body::full(body))
}

fn text(code: u16, body: &str) -> Response<Body> {
    with_type(
        code,
        "text/plain; charset=utf-8",
        Body::full(body.as_bytes().to_vec()),
    )
}

fn with_type(code: u16, content_type: &'static str, body: Body) -> Response<Body> {
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

/// Adds what the client is to be warned of.
fn warn(response: &mut Response<Body>, warnings: &[String]) {
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
    /// An error that somebody asked for.
    fn of_fault(code: u16) -> Self {
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
        Self::new(code, reason, "a fault that was asked for")
    }
}

/// What is said of a request to the switchboard of faults.
fn facts(verb: &'static str, route: &route::Route) -> RequestFacts {
    match route {
        route::Route::Resource {
            plural,
            namespace,
            name,
            subresource,
            ..
        } => RequestFacts {
            verb,
            resource: if subresource.is_empty() {
                plural.clone()
            } else {
                format!("{plural}/{subresource}")
            },
            namespace: namespace.clone(),
            name: name.clone(),
        },
        _ => RequestFacts::default(),
    }
}
