//! The HTTP layer: turns paths, queries and bodies into verbs, and their results into responses.

mod body;
mod discovery;
mod encode;
mod negotiate;
mod params;
mod plain;
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
use hyper::{Request, Response};

pub use body::{Body, Broken};
use request::Call;
use response::{json, status_response, text, too_many};

use crate::faults::Effect;
use crate::server::{Cluster, Server, Shared};
use crate::status::Status;

/// A response, or a connection that is closed without one.
pub(crate) type Answer = Result<Response<Body>, Broken>;

/// Handles a request.
pub(crate) async fn answer(server: &Server, shared: &Arc<Shared>, request: Request<Incoming>) -> Answer {
    let path = request.uri().path().to_owned();
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    match segments.as_slice() {
        ["clusters", name, rest @ ..] => match shared.cluster(name) {
            Some(cluster) => {
                let rest = rest.join("/");
                of_cluster(shared, &cluster, &rest, request).await
            }
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
        ["healthz" | "livez" | "readyz"] => Ok(text(200, "ok")),
        _ => Ok(status_response(&Status::no_such_path())),
    }
}

fn admin(server: &Server, shared: &Shared, request: &Request<Incoming>, path: &[&str]) -> Response<Body> {
    let given = request::bearer(request.headers()).unwrap_or_default();
    if !request::constant_time_eq(given, &shared.secret.admin_token()) {
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
    let call = match Call::read(shared, cluster, path, &request) {
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
            Effect::Latency(wait) => tokio::time::sleep(*wait).await,
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
    let outcome = match &call.route {
        route::Route::Resource { .. } => resources::answer(call, request, effects).await,
        route::Route::Plain(_) => plain::answer(&call),
        route::Route::Discovery(_) => discovery::answer(&call),
    };
    if let Err(error) = cluster.durable().await {
        return status_response(&Status::internal(error));
    }
    outcome.unwrap_or_else(|status| status_response(&status))
}
