//! Reading a request: the user, the endpoint, the verb and the options.

use std::sync::Arc;

use hyper::header::{AUTHORIZATION, HeaderMap, IF_NONE_MATCH, USER_AGENT};
use hyper::{Method, Request};
use jiff::Timestamp;

use super::health;
use super::negotiate::Accept;
use super::params::Params;
use super::route::Route;
use crate::faults::RequestFacts;
use crate::managed::manager_of_user_agent;
use crate::server::{Cluster, Shared, User};
use crate::status::{Status, qualified};

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

/// Returns the bearer token of a request.
pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

pub(super) fn constant_time_eq(given: &str, expected: &str) -> bool {
    crate::server::constant_time_eq(given.as_bytes(), expected.as_bytes())
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
        let user = user(shared, cluster, headers, now)?;
        let shown = path_in_cluster(request.uri().path());
        let route = Route::read(path);
        if user.name == User::anonymous().name && !is_public(request.method(), shown) {
            return Err(forbidden(&user, request, route.as_ref(), shown));
        }
        let route = route.ok_or_else(Status::no_such_path)?;
        let params = Params::read(request.uri().query());
        let is_openapi_v2 = matches!(&route, Route::Discovery(steps) if **steps == ["openapi", "v2"]);
        let verb = verb(request.method(), &route, &params);
        let accept = match Accept::read(headers, is_openapi_v2) {
            Err(_) if has_one_form(&route) => Accept::anything(),
            accept => accept?,
        };
        let user = impersonated(headers, user);
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
        _ => false,
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

fn user(shared: &Shared, cluster: &Cluster, headers: &HeaderMap, now: Timestamp) -> Result<User, Status> {
    let Some(token) = bearer(headers) else {
        return Ok(User::anonymous());
    };
    if constant_time_eq(token, &shared.secret.cluster_token(cluster.token_scope())) {
        return Ok(User::admin());
    }
    let claims = shared
        .secret
        .account_claims(cluster.token_scope(), token, now)
        .ok_or_else(Status::unauthorized)?;
    let of = &claims["kubernetes.io"];
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let (namespace, name, uid) = (
        text(&of["namespace"]),
        text(&of["serviceaccount"]["name"]),
        text(&of["serviceaccount"]["uid"]),
    );
    // A token is valid as long as its service account exists.
    let key = crate::object::head::key(&namespace, &name);
    let alive = cluster
        .state()
        .store
        .get("serviceaccounts", &key)
        .is_some_and(|stored| *stored.head.uid == *uid);
    if !alive {
        return Err(Status::unauthorized());
    }
    Ok(User::account(&namespace, &name, &uid))
}

/// Returns the impersonated user. Every user may impersonate any other, since every request is allowed.
fn impersonated(headers: &HeaderMap, user: User) -> User {
    let text = |value: &hyper::header::HeaderValue| value.to_str().unwrap_or_default().to_owned();
    let Some(name) = headers.get("impersonate-user").map(text) else {
        return user;
    };
    User {
        name,
        groups: headers.get_all("impersonate-group").iter().map(text).collect(),
        uid: headers.get("impersonate-uid").map(text).unwrap_or_default(),
    }
}

/// Returns the path of a request without that of its cluster.
pub(super) fn path_in_cluster(path: &str) -> &str {
    match path.strip_prefix("/clusters/") {
        Some(rest) => rest.find('/').and_then(|at| rest.get(at..)).unwrap_or("/"),
        None => path,
    }
}

/// Returns whether everybody may send a request, by the role `system:public-info-viewer`.
fn is_public(method: &Method, path: &str) -> bool {
    method == Method::GET && matches!(path, "/healthz" | "/livez" | "/readyz" | "/version" | "/version/")
}

fn forbidden<B>(user: &User, request: &Request<B>, route: Option<&Route>, path: &str) -> Status {
    let Some(
        route @ Route::Resource {
            group,
            plural,
            namespace,
            name,
            subresource,
            ..
        },
    ) = route
    else {
        let method = request.method().as_str().to_ascii_lowercase();
        let mut status = Status::new(
            403,
            "Forbidden",
            format!("forbidden: User {:?} cannot {method} path {path:?}", user.name),
        );
        status.details.empty = true;
        return status;
    };
    let verb = verb(request.method(), route, &Params::read(request.uri().query()));
    let namespace = if group.is_empty() && plural == "namespaces" {
        name
    } else {
        namespace
    };
    let scope = if namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace {namespace:?}")
    };
    let what = if name.is_empty() {
        String::new()
    } else {
        format!(" {name:?}")
    };
    let resource = if subresource.is_empty() {
        plural.clone()
    } else {
        format!("{plural}/{subresource}")
    };
    let mut status = Status::new(
        403,
        "Forbidden",
        format!(
            "{}{what} is forbidden: User {:?} cannot {verb} resource {resource:?} in API group {group:?} {scope}",
            qualified(plural, group),
            user.name
        ),
    );
    status.details.name.clone_from(name);
    status.details.group.clone_from(group);
    status.details.kind.clone_from(plural);
    status
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
