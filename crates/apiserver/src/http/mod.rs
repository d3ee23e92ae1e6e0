//! The HTTP layer: turns paths, queries and bodies into verbs, and their results into responses.

mod authorize;
mod body;
mod committed;
mod content;
mod discovery;
mod encode;
mod health;
mod identity;
mod negotiate;
mod options;
mod params;
mod plain;
mod protobuf;
mod request;
mod resources;
mod response;
mod reviews;
mod route;
mod shape;
mod table;
mod watch;

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Method, Request, Response};

pub use body::{Body, Broken};
use committed::Read;
use request::Call;
use response::{json, status_response, text, too_many};

use crate::faults::Effect;
use crate::server::{Cluster, Server, Shared};
use crate::status::Status;

/// A response, or a connection that is closed without one.
pub(crate) type Answer = Result<Response<Body>, Broken>;

/// Handles a request. The response to HEAD has no body: over HTTP/2, a frame of data is an error of the protocol.
pub(crate) async fn answer(server: &Server, shared: &Arc<Shared>, request: Request<Incoming>) -> Answer {
    let is_head = request.method() == Method::HEAD;
    let response = answer_with_body(server, shared, request).await?;
    Ok(if is_head {
        response.map(|_| Body::empty())
    } else {
        response
    })
}

async fn answer_with_body(server: &Server, shared: &Arc<Shared>, request: Request<Incoming>) -> Answer {
    let path = request.uri().path().to_owned();
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    match segments.as_slice() {
        ["clusters", name, ..] => match shared.cluster(name) {
            Some(cluster) => of_cluster(shared, &cluster, request::path_in_cluster(&path), request).await,
            None => Ok(status_response(&Status::new(
                404,
                "NotFound",
                format!("cluster {name:?} not found"),
            ))),
        },
        ["admin", rest @ ..] => {
            let answer = admin(server, shared, &request, rest);
            match server.durable().await {
                Ok(()) => Ok(answer),
                Err(error) => Ok(status_response(&Status::internal(error))),
            }
        }
        _ => match credential_cluster(shared, &request) {
            Some(cluster) => of_cluster(shared, &cluster, &path, request).await,
            None => Ok(of_no_cluster(&segments, &request)),
        },
    }
}

/// Returns the cluster that the token of a request belongs to. Clients that know only host and port, as those in Pods,
/// and those that drop the path of a kubeconfig's URL reach their cluster by it.
fn credential_cluster<B>(shared: &Shared, request: &Request<B>) -> Option<Arc<Cluster>> {
    let token = identity::bearer(request.headers())?;
    shared.cluster_of_token(token, shared.options.clock.now())
}

fn of_no_cluster<B>(path: &[&str], request: &Request<B>) -> Response<Body> {
    match path {
        ["healthz" | "livez" | "readyz"] => text(200, "ok"),
        _ if identity::bearer(request.headers()).is_some() => status_response(&Status::unauthorized()),
        _ => status_response(&Status::no_such_path()),
    }
}

fn admin(server: &Server, shared: &Shared, request: &Request<Incoming>, path: &[&str]) -> Response<Body> {
    let given = identity::bearer(request.headers()).unwrap_or_default();
    if !identity::constant_time_eq(given, &shared.secret.admin_token()) {
        return status_response(&Status::unauthorized());
    }
    match crate::server::admin_answer(server, request.method(), path) {
        Ok((code, value)) => json(code, value.to_string().into_bytes()),
        Err(status) => status_response(&status),
    }
}

async fn of_cluster(
    shared: &Arc<Shared>,
    cluster: &Arc<Cluster>,
    path: &str,
    request: Request<Incoming>,
) -> Answer {
    let mut call = match Call::read(shared, cluster, path, &request) {
        Ok(call) => call,
        Err(status) => return Ok(status_response(&status)),
    };
    cluster.requests().count(call.verb);
    let effects = cluster.faults().effects(&call.facts);
    if effects.is_empty() {
        return Ok(respond(call, request, &effects).await);
    }
    for effect in &effects {
        match effect {
            Effect::Latency(wait) => {
                tokio::time::sleep(*wait).await;
                // What is late is written late.
                call.now = shared.options.clock.now();
            }
            Effect::BlackHole => {
                // Wait until the client gives up or the cluster is removed.
                let _ = cluster.closed().wait_for(|closed| *closed).await;
                return Err(Broken("black hole"));
            }
            Effect::Refuse => return Err(Broken("refused")),
            Effect::TooMany(seconds) => return Ok(too_many(*seconds)),
            Effect::Error(code) => return Ok(status_response(&Status::of_fault(*code))),
            _ => {}
        }
    }
    let response = respond(call, request, &effects).await;
    for effect in &effects {
        match effect {
            Effect::LoseResponse => return Err(Broken("the response is lost")),
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
    if let Err(error) = cluster.check_writable()
        && !matches!(call.verb, "get" | "list" | "watch" | "")
    {
        return status_response(&Status::internal(error));
    }
    let preference = call
        .accept
        .protobuf
        .map(|fallback| (fallback, resources::is_builtin(&call)));
    let read = Read::of(&call);
    let outcome = match &call.route {
        route::Route::Resource { .. } => resources::answer(call, request, effects).await,
        route::Route::Plain(_) => plain::answer(&call),
        route::Route::Discovery(_) => discovery::answer(&call),
    };
    if let Err(error) = cluster.durable().await
        && !read.is_some_and(|read| read.is_committed(&cluster))
    {
        return status_response(&Status::internal(error));
    }
    let response = outcome.unwrap_or_else(|status| status_response(&status));
    match preference {
        Some((fallback, builtin)) => protobuf::preferred(response, fallback, builtin),
        None => response,
    }
}
