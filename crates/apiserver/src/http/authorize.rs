//! Whether the user of a request may send it.

use hyper::Method;

use super::params::Params;
use super::route::decode;
use crate::object::{FieldSelector, names};
use crate::rbac::{Attributes, Decision, Requested};
use crate::server::{Cluster, User};
use crate::status::Status;

/// Rejects a request that its user may not send. `path` is that below the cluster.
pub(super) fn check(
    cluster: &Cluster,
    user: &User,
    method: &Method,
    path: &str,
    params: &Params,
) -> Result<(), Status> {
    if user.who().is_privileged() {
        return Ok(());
    }
    let attributes = attributes(method, path, params);
    let decision = decide(cluster, user, &attributes);
    if decision.allowed {
        Ok(())
    } else {
        Err(attributes.forbidden(&user.name, &decision.reason))
    }
}

/// Decides whether a user may do something. Where everything is allowed, a user without a token still has only what the
/// role `system:public-info-viewer` grants to everybody.
pub(super) fn decide(cluster: &Cluster, user: &User, attributes: &Attributes) -> Decision {
    let state = cluster.state();
    if state.policy().is_none() && user.name == User::anonymous().name && !is_public(attributes) {
        return Decision {
            allowed: false,
            reason: String::new(),
        };
    }
    state.authorize(user.who(), attributes)
}

fn is_public(attributes: &Attributes) -> bool {
    attributes.verb == "get"
        && matches!(&attributes.requested, Requested::Path(path)
            if matches!(&**path, "/healthz" | "/livez" | "/readyz" | "/version" | "/version/"))
}

/// Returns what a request asks for, whether or not there is such a path: the rules of Kubernetes' `RequestInfo`.
///
/// What the server then does follows from [`super::route::Route`], which serves no path with an empty step or an
/// escaped slash. So both read the same steps.
pub(super) fn attributes(method: &Method, path: &str, params: &Params) -> Attributes {
    let decoded = decode(path);
    let steps: Vec<&str> = decoded.trim_matches('/').split('/').collect();
    let (group, rest) = match steps.as_slice() {
        ["api", _, rest @ ..] if !rest.is_empty() => ("", rest),
        ["apis", group, _, rest @ ..] if !rest.is_empty() => (*group, rest),
        _ => {
            return Attributes {
                verb: method.as_str().to_ascii_lowercase(),
                requested: Requested::Path(decoded),
            };
        }
    };
    let (mut verb, rest) = match rest {
        [special @ ("proxy" | "watch"), rest @ ..] if !rest.is_empty() => (*special, rest),
        _ => (verb_of(method), rest),
    };
    let (namespace, rest) = match rest {
        ["namespaces", namespace, "status" | "finalize", ..] => (*namespace, rest),
        ["namespaces", namespace, inner @ ..] if !inner.is_empty() => (*namespace, inner),
        ["namespaces", namespace] => (*namespace, rest),
        _ => ("", rest),
    };
    let step = |place: usize| rest.get(place).copied().unwrap_or_default();
    let mut name = step(1).to_owned();
    let subresource = if verb == "proxy" { "" } else { step(2) };
    if name.is_empty() && verb == "get" {
        verb = if params.flag("watch") { "watch" } else { "list" };
        name = selected_name(params);
    }
    if name.is_empty() && verb == "delete" {
        verb = "deletecollection";
    }
    Attributes::resource(verb, group, step(0), namespace, &name).of(subresource)
}

fn verb_of(method: &Method) -> &'static str {
    match method.as_str() {
        "POST" => "create",
        "GET" | "HEAD" => "get",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "",
    }
}

/// Returns the name of the one object that a list or watch selects, so that a rule with names can allow it.
fn selected_name(params: &Params) -> String {
    let Ok(selector) = FieldSelector::parse(params.text("fieldSelector")) else {
        return String::new();
    };
    let name = selector.exact("metadata.name").unwrap_or_default();
    if names::path_segment(name).is_empty() && params.is_readable() {
        name.to_owned()
    } else {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(method: &str, path: &str) -> String {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let found = attributes(&method.parse().unwrap(), path, &Params::read(Some(query)));
        match found.requested {
            Requested::Path(path) => format!("{} {path}", found.verb),
            Requested::Resource {
                group,
                resource,
                subresource,
                namespace,
                name,
            } => format!(
                "{} {group}|{resource}|{subresource}|{namespace}|{name}",
                found.verb
            ),
        }
    }

    #[test]
    fn requests_are_read_as_kubernetes_reads_them() {
        for (method, path, expected) in [
            ("GET", "/api/v1/pods", "list |pods|||"),
            ("HEAD", "/api/v1/pods?watch", "watch |pods|||"),
            ("GET", "/api/v1/pods?watch=0", "list |pods|||"),
            ("GET", "/api/v1/namespaces", "list |namespaces|||"),
            ("GET", "/api/v1/namespaces/a", "get |namespaces||a|a"),
            (
                "PUT",
                "/api/v1/namespaces/a/finalize",
                "update |namespaces|finalize|a|a",
            ),
            ("GET", "/api/v1/namespaces/a/pods/b/log", "get |pods|log|a|b"),
            (
                "DELETE",
                "/api/v1/namespaces/a/pods",
                "deletecollection |pods||a|",
            ),
            (
                "POST",
                "/apis/apps/v1/namespaces/a/deployments/",
                "create apps|deployments||a|",
            ),
            (
                "PATCH",
                "/apis/x.io/v1/things/b/status",
                "patch x.io|things|status||b",
            ),
            ("OPTIONS", "/api/v1/pods", " |pods|||"),
            ("GET", "/api/v1/watch/namespaces/a/pods", "watch |pods||a|"),
            (
                "GET",
                "/api/v1/pods?fieldSelector=metadata.name%3Db,spec.nodeName=c",
                "list |pods|||b",
            ),
            (
                "GET",
                "/api/v1/pods?fieldSelector=metadata.name!%3Db",
                "list |pods|||",
            ),
            (
                "GET",
                "/api/v1/pods?fieldSelector=metadata.name%3D..",
                "list |pods|||",
            ),
            (
                "GET",
                "/api/v1/pods?fieldSelector=metadata.name%3Db&limit=x",
                "list |pods|||",
            ),
            (
                "DELETE",
                "/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Db",
                "deletecollection |pods||a|",
            ),
            ("GET", "/api/v1", "get /api/v1"),
            ("GET", "/api/v1/", "get /api/v1/"),
            ("GET", "/apis/apps/v1", "get /apis/apps/v1"),
            ("POST", "/healthz", "post /healthz"),
            ("GET", "/", "get /"),
            ("GET", "/a%2fb", "get /a/b"),
        ] {
            assert_eq!(read(method, path), expected, "{method} {path}");
        }
    }
}
