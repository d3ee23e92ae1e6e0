//! Reading a request: the user, the endpoint, the verb and the options.

use std::sync::Arc;

use hyper::header::{IF_NONE_MATCH, USER_AGENT};
use hyper::{Method, Request};
use jiff::Timestamp;

use super::health;
use super::negotiate::Accept;
use super::params::Params;
use super::route::Route;
use super::{authorize, identity};
use crate::faults::RequestFacts;
use crate::managed::manager_of_user_agent;
use crate::server::{Cluster, Shared, User};
use crate::status::Status;

/// A request without its body.
pub(super) struct Call {
    pub(super) shared: Arc<Shared>,
    pub(super) cluster: Arc<Cluster>,
    pub(super) route: Route,
    pub(super) method: Method,
    pub(super) verb: &'static str,
    pub(super) params: Params,
    pub(super) accept: Accept,
    pub(super) user: User,
    /// The field manager: the given name, or one derived from the user agent.
    pub(super) manager: String,
    /// The ETags of the documents that the client has (`If-None-Match`).
    pub(super) known_tags: Option<String>,
    pub(super) facts: RequestFacts,
    pub(super) now: Timestamp,
}

impl Call {
    pub(super) fn read<B>(
        shared: &Arc<Shared>,
        cluster: &Arc<Cluster>,
        path: &str,
        request: &Request<B>,
    ) -> Result<Self, Status> {
        let now = shared.options.clock.now();
        let headers = request.headers();
        let user = identity::of_request(cluster, &shared.secret, headers, now)?;
        let user = identity::impersonated(cluster, headers, user)?;
        let params = Params::read(request.uri().query());
        // Before the path is looked up: who may do nothing does not learn what there is.
        authorize::check(cluster, &user, request.method(), path, &params)?;
        let route = Route::read(path).ok_or_else(Status::no_such_path)?;
        let is_openapi_v2 = matches!(&route, Route::Discovery(steps) if **steps == ["openapi", "v2"]);
        let verb = verb(request.method(), &route, &params);
        let accept = match Accept::read(headers, is_openapi_v2) {
            Err(_) if has_one_form(&route) => Accept::anything(),
            accept => accept?,
        };
        let manager = match params.text("fieldManager") {
            "" => manager_of_user_agent(
                headers
                    .get(USER_AGENT)
                    .and_then(|value| value.to_str().ok())
                    .unwrap_or_default(),
            ),
            given => given.to_owned(),
        };
        Ok(Self {
            shared: Arc::clone(shared),
            cluster: Arc::clone(cluster),
            facts: facts(verb, &route),
            known_tags: headers
                .get(IF_NONE_MATCH)
                .and_then(|value| value.to_str().ok())
                .map(str::to_owned),
            accept,
            method: request.method().clone(),
            route,
            verb,
            params,
            user,
            manager,
            now,
        })
    }
}

/// Reports whether the handler of a path looks at no `Accept`, as in Kubernetes: it has one form.
fn has_one_form(route: &Route) -> bool {
    match route {
        Route::Plain(steps) => steps.first().is_none_or(|first| health::is_check(first)),
        Route::Discovery(steps) => **steps == ["openapi", "v3"],
        Route::Resource { .. } => false,
    }
}

/// Returns the Kubernetes verb of a request.
fn verb(method: &Method, route: &Route, params: &Params) -> &'static str {
    let Route::Resource { name, .. } = route else {
        return "";
    };
    match (method.as_str(), name.is_empty()) {
        ("GET" | "HEAD", true) if params.flag("watch") => "watch",
        ("GET" | "HEAD", true) => "list",
        ("GET" | "HEAD", false) => "get",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", true) => "deletecollection",
        ("DELETE", false) => "delete",
        _ => "",
    }
}

/// Returns the path of a request without that of its cluster.
pub(super) fn path_in_cluster(path: &str) -> &str {
    match path.strip_prefix("/clusters/") {
        Some(rest) => rest.find('/').and_then(|at| rest.get(at..)).unwrap_or("/"),
        None => path,
    }
}

/// Returns the facts by which the switchboard selects faults.
fn facts(verb: &'static str, route: &Route) -> RequestFacts {
    match route {
        Route::Resource {
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
