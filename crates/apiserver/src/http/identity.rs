//! Who sends a request: tokens and impersonation.

use std::collections::BTreeMap;

use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::authorize::decide;
use super::route::decode;
use crate::object::{head, names};
use crate::rbac::Attributes;
use crate::server::{Cluster, Secret, User};
use crate::status::Status;

/// The audience of tokens for the API server itself.
pub(super) const AUDIENCE: &str = "https://kubernetes.default.svc.cluster.local";

/// How long a token stays valid while an object that it depends on is being deleted: the tolerance of Kubernetes for
/// clocks that differ.
const LEEWAY: SignedDuration = SignedDuration::from_mins(1);

/// The prefix of the user names of service accounts.
const ACCOUNT: &str = "system:serviceaccount:";

/// Returns the bearer token of a request.
pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

pub(super) fn constant_time_eq(given: &str, expected: &str) -> bool {
    crate::server::constant_time_eq(given.as_bytes(), expected.as_bytes())
}

/// Returns the user to whom the token of a request belongs; a request without one is anonymous.
pub(super) fn of_request(
    cluster: &Cluster,
    secret: &Secret,
    headers: &HeaderMap,
    now: Timestamp,
) -> Result<User, Status> {
    let Some(token) = bearer(headers) else {
        return Ok(User::anonymous());
    };
    of_token(cluster, secret, token, &[], now)
        .map(|(user, _)| user)
        .map_err(|_| Status::unauthorized())
}

/// Returns the user to whom a token belongs, and for which of the wanted audiences it is valid. No wanted audience
/// means that of the API server.
///
/// # Errors
/// Why the token is not valid, in the words of Kubernetes.
pub(super) fn of_token(
    cluster: &Cluster,
    secret: &Secret,
    token: &str,
    wanted: &[&str],
    now: Timestamp,
) -> Result<(User, Vec<String>), String> {
    let wanted = if wanted.is_empty() { &[AUDIENCE] } else { wanted };
    if constant_time_eq(token, &secret.cluster_token(cluster.token_scope())) {
        // As in Kubernetes, where such tokens are for the API server.
        return Ok((User::admin(), vec![AUDIENCE.to_owned()]));
    }
    let claims = secret
        .account_claims(cluster.token_scope(), token, now)
        .ok_or_else(|| "invalid bearer token".to_owned())?;
    let audiences = claims["aud"].as_array().map(Vec::as_slice).unwrap_or_default();
    let shared: Vec<String> = { audiences.iter() }
        .filter_map(Value::as_str)
        .filter(|audience| wanted.contains(audience))
        .map(str::to_owned)
        .collect();
    if shared.is_empty() {
        return Err("the token has another audience".to_owned());
    }
    let of = &claims["kubernetes.io"];
    let namespace = text(&of["namespace"]);
    let account = &of["serviceaccount"];
    check_alive(cluster, "serviceaccounts", namespace, account, now)?;
    for (claim, table, namespace) in [
        ("pod", "pods", namespace),
        ("secret", "secrets", namespace),
        ("node", "nodes", ""),
    ] {
        // The node of a Pod is named only to be shown.
        if of[claim].is_object() && (claim != "node" || of["pod"].is_null()) {
            check_alive(cluster, table, namespace, &of[claim], now)?;
        }
    }
    let mut user = User::account(namespace, text(&account["name"]), text(&account["uid"]));
    user.extra = extra(&claims);
    Ok((user, shared))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Checks that an object on which a token depends is still the one for which the token was issued.
fn check_alive(
    cluster: &Cluster,
    table: &str,
    namespace: &str,
    claim: &Value,
    now: Timestamp,
) -> Result<(), String> {
    let state = cluster.state();
    let stored = state
        .store
        .get(table, &head::key(namespace, text(&claim["name"])));
    let alive = stored.is_some_and(|stored| {
        let deleted = stored.head.deleting.is_some_and(|at| at + LEEWAY < now);
        *stored.head.uid == *text(&claim["uid"]) && !deleted
    });
    if alive {
        return Ok(());
    }
    Err("service account token has been invalidated".to_owned())
}

/// Returns what a token tells about its user besides name and groups.
fn extra(claims: &Value) -> BTreeMap<String, Vec<String>> {
    const PREFIX: &str = "authentication.kubernetes.io/";
    let of = &claims["kubernetes.io"];
    let known = [
        ("pod-name", text(&of["pod"]["name"]).to_owned()),
        ("pod-uid", text(&of["pod"]["uid"]).to_owned()),
        ("node-name", text(&of["node"]["name"]).to_owned()),
        ("node-uid", text(&of["node"]["uid"]).to_owned()),
        ("credential-id", format!("JTI={}", text(&claims["jti"]))),
    ];
    known
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| (format!("{PREFIX}{name}"), vec![value]))
        .collect()
}

/// What a request wants to be: the kind, the namespace and the name of an identity, as Kubernetes names them.
struct Wanted {
    kind: &'static str,
    namespace: String,
    name: String,
    /// The key of an extra field.
    key: String,
}

/// Returns the user as whom a request is to be handled: the one that its headers name, if the sender may impersonate
/// every part of that identity.
pub(super) fn impersonated(cluster: &Cluster, headers: &HeaderMap, sender: User) -> Result<User, Status> {
    let wanted = wanted(headers);
    let Some(first) = wanted.first() else {
        return Ok(sender);
    };
    if !matches!(first.kind, "User" | "ServiceAccount") {
        let all: Vec<String> = wanted.iter().map(Wanted::shown).collect();
        return Err(Status::bad_request(format!(
            "requested [{}] without impersonating a user",
            all.join(" ")
        )));
    }
    for one in &wanted {
        let attributes = one.attributes();
        let decision = decide(cluster, &sender, &attributes);
        if !decision.allowed {
            return Err(attributes.forbidden(&sender.name, &decision.reason));
        }
    }
    Ok(identity(wanted))
}

fn wanted(headers: &HeaderMap) -> Vec<Wanted> {
    const EXTRA: &str = "impersonate-extra-";
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let first = |name: &str| headers.get(name).map(text).filter(|text| !text.is_empty());
    let plain = |kind, name| Wanted {
        kind,
        namespace: String::new(),
        name,
        key: String::new(),
    };
    let mut wanted = Vec::new();
    if let Some(name) = first("impersonate-user") {
        wanted.push(match account(&name) {
            Some((namespace, account)) => Wanted {
                namespace: namespace.to_owned(),
                ..plain("ServiceAccount", account.to_owned())
            },
            None => plain("User", name),
        });
    }
    let groups = headers.get_all("impersonate-group").iter().map(text);
    wanted.extend(groups.map(|group| plain("Group", group)));
    // Sorted, since the headers have no order of their own.
    let mut keys: Vec<&str> = { headers.keys() }
        .filter_map(|name| name.as_str().strip_prefix(EXTRA))
        .collect();
    keys.sort_unstable();
    for key in keys {
        let values = headers.get_all(format!("{EXTRA}{key}")).iter().map(text);
        wanted.extend(values.map(|value| Wanted {
            key: decode(key),
            ..plain("UserExtra", value)
        }));
    }
    wanted.extend(first("impersonate-uid").map(|uid| plain("UID", uid)));
    wanted
}

/// Returns the namespace and the name of a service account, if a user name is one.
fn account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(ACCOUNT)?.split_once(':')?;
    let valid = names::dns_label(namespace).is_empty() && names::dns_subdomain(name).is_empty();
    valid.then_some((namespace, name))
}

impl Wanted {
    fn group(&self) -> &'static str {
        match self.kind {
            "UserExtra" | "UID" => "authentication.k8s.io",
            _ => "",
        }
    }

    fn attributes(&self) -> Attributes {
        let resource = match self.kind {
            "ServiceAccount" => "serviceaccounts",
            "User" => "users",
            "Group" => "groups",
            "UserExtra" => "userextras",
            _ => "uids",
        };
        Attributes::resource("impersonate", self.group(), resource, &self.namespace, &self.name).of(&self.key)
    }

    /// Writes the part as Go writes an `ObjectReference`.
    fn shown(&self) -> String {
        let version = match self.group() {
            "" => "",
            _ => "authentication.k8s.io/v1",
        };
        format!(
            "{{{} {} {}  {version}  {}}}",
            self.kind, self.namespace, self.name, self.key
        )
    }
}

/// Puts an identity together, with the groups that everybody has.
fn identity(wanted: Vec<Wanted>) -> User {
    let mut user = User::default();
    let has_groups = wanted.iter().any(|one| one.kind == "Group");
    for one in wanted {
        match one.kind {
            "ServiceAccount" => {
                user.name = format!("{ACCOUNT}{}:{}", one.namespace, one.name);
                if !has_groups {
                    user.groups = vec![
                        "system:serviceaccounts".to_owned(),
                        format!("system:serviceaccounts:{}", one.namespace),
                    ];
                }
            }
            "User" => user.name = one.name,
            "Group" => user.groups.push(one.name),
            "UserExtra" => user.extra.entry(one.key).or_default().push(one.name),
            _ => user.uid = one.name,
        }
    }
    let has = |group: &str| user.groups.iter().any(|one| one == group);
    let (authenticated, unauthenticated) = ("system:authenticated", "system:unauthenticated");
    if user.name == User::anonymous().name {
        if !has(unauthenticated) {
            user.groups.push(unauthenticated.to_owned());
        }
    } else if !has(authenticated) && !has(unauthenticated) {
        user.groups.push(authenticated.to_owned());
    }
    user
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn impersonated_users_have_the_groups_that_everybody_has() {
        let of = |pairs| identity(wanted(&headers(pairs)));
        let ann = of(&[
            ("impersonate-user", "ann"),
            ("impersonate-extra-scopes", "a"),
            ("impersonate-extra-scopes", "b"),
        ]);
        assert_eq!(ann.groups, ["system:authenticated"]);
        assert_eq!(ann.extra["scopes"], ["a", "b"]);
        let account = of(&[("impersonate-user", "system:serviceaccount:a:b")]);
        assert_eq!(
            account.groups,
            [
                "system:serviceaccounts",
                "system:serviceaccounts:a",
                "system:authenticated"
            ]
        );
        let account = of(&[
            ("impersonate-user", "system:serviceaccount:a:b"),
            ("impersonate-group", "g"),
        ]);
        assert_eq!(account.groups, ["g", "system:authenticated"]);
        let anonymous = of(&[("impersonate-user", "system:anonymous")]);
        assert_eq!(anonymous.groups, ["system:unauthenticated"]);
    }

    #[test]
    fn parts_of_an_identity_are_shown_as_go_shows_them() {
        let shown = |pairs| {
            wanted(&headers(pairs))
                .iter()
                .map(Wanted::shown)
                .collect::<Vec<_>>()
        };
        assert_eq!(shown(&[("impersonate-group", "g")]), ["{Group  g    }"]);
        assert_eq!(
            shown(&[("impersonate-extra-a%2fb", "v"), ("impersonate-user", "")]),
            ["{UserExtra  v  authentication.k8s.io/v1  a/b}"]
        );
    }
}
