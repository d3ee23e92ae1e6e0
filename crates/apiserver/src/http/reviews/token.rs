//! `TokenRequest`: tokens of service accounts, bound to them and to another object.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Facts;
use crate::http::identity::AUDIENCE;
use crate::kinds::codec;
use crate::object::{head, metadata, times};
use crate::state::State;
use crate::status::{Cause, Status};
use crate::verbs::{Outcome, Target, Write, check_kind, get};

/// The lifetime of a token, in seconds, if the request does not set one.
const DEFAULT_SECONDS: i64 = 3600;
/// The longest lifetime of a token, in seconds.
const MOST_SECONDS: i64 = 1 << 32;

/// Handles a `TokenRequest` with a token for the service account.
pub(super) fn token(
    facts: Facts<'_>,
    target: &Target,
    object: &Value,
    write: &Write<'_>,
) -> Result<Outcome, Status> {
    let mut request = read(target, object)?;
    check_name(target, &request)?;
    let account = {
        let state = facts.cluster.state();
        get(&state, target, None)?
    };
    check_account_uid(target, &request, &account.head.uid)?;
    let seconds = seconds(&request)?;
    let bound = bound_claims(&facts.cluster.state(), target, &request["spec"]["boundObjectRef"])?;
    let begins = facts.now.as_second();
    let ends = Timestamp::from_second(begins + seconds).unwrap_or(facts.now);
    let audiences = match request["spec"]["audiences"].as_array() {
        Some(list) if !list.is_empty() => json!(list),
        _ => json!([AUDIENCE]),
    };
    let id = facts.cluster.state().random.uuid();
    let mut claims = json!({
        "aud": audiences, "exp": ends.as_second(), "iat": begins, "nbf": begins, "jti": id,
        "iss": AUDIENCE,
        "sub": format!("system:serviceaccount:{}:{}", target.namespace, target.name),
        "kubernetes.io": {"namespace": target.namespace,
            "serviceaccount": {"name": target.name, "uid": &*account.head.uid}},
    });
    for (name, claim) in bound {
        claims["kubernetes.io"][name] = claim;
    }
    request["spec"]["audiences"] = audiences;
    request["spec"]["expirationSeconds"] = json!(seconds);
    request["metadata"] = json!({"name": target.name, "namespace": target.namespace,
        "uid": &*account.head.uid, "creationTimestamp": times::seconds(facts.now)});
    request["status"] = json!({
        "token": if write.dry_run { String::new() } else { facts.secret.account_token(facts.cluster.token_scope(), &claims) },
        "expirationTimestamp": times::seconds(ends),
    });
    Ok(Outcome::value(201, request))
}

/// Reads the request.
fn read(target: &Target, object: &Value) -> Result<Value, Status> {
    let mut request = object.clone();
    if let Some(map) = request.as_object_mut() {
        map.entry("apiVersion")
            .or_insert_with(|| json!("authentication.k8s.io/v1"));
        map.entry("kind").or_insert_with(|| json!("TokenRequest"));
    }
    let wrong = request["apiVersion"] != "authentication.k8s.io/v1" || request["kind"] != "TokenRequest";
    let Some(ty) = codec::go_type("authentication.k8s.io/v1", "TokenRequest").filter(|_| !wrong) else {
        check_kind(target, &mut request)?;
        return Err(Status::bad_request("the object is not a TokenRequest"));
    };
    ty.normalize(&mut request).map_err(|why| {
        Status::bad_request(format!(
            "TokenRequest in version \"v1\" cannot be handled as a TokenRequest: {why}"
        ))
    })?;
    Ok(request)
}

/// Returns the wanted lifetime in seconds.
fn seconds(request: &Value) -> Result<i64, Status> {
    let seconds = request["spec"]["expirationSeconds"]
        .as_i64()
        .unwrap_or(DEFAULT_SECONDS);
    let problem = match seconds {
        ..600 => "may not specify a duration less than 10 minutes",
        MOST_SECONDS.. if seconds > MOST_SECONDS => "may not specify a duration larger than 2^32 seconds",
        _ => return Ok(seconds),
    };
    let cause = Cause::invalid("spec.expirationSeconds", &json!(seconds), problem);
    Err(Status::invalid(
        "authentication.k8s.io",
        "TokenRequest",
        "",
        vec![cause],
    ))
}

/// Rejects a request for the token of an account that was deleted and created again.
fn check_account_uid(target: &Target, request: &Value, uid: &str) -> Result<(), Status> {
    let given = metadata::text(request, "uid");
    if given.is_empty() || given == uid {
        return Ok(());
    }
    Err(Status::conflict(
        "authentication.k8s.io",
        "TokenRequest",
        &target.name,
        format!(
            "the UID in the token request ({given}) does not match the UID of the service account ({uid})"
        ),
    ))
}

/// Rejects a `TokenRequest` that names another account than its path.
fn check_name(target: &Target, request: &Value) -> Result<(), Status> {
    let namespace = metadata::text(request, "namespace");
    if !namespace.is_empty() && namespace != target.namespace {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    let name = metadata::text(request, "name");
    if !name.is_empty() && name != target.name {
        let cause = Cause::invalid(
            "metadata.name",
            &json!(name),
            "must match the service account name if specified",
        );
        return Err(Status::invalid(
            "authentication.k8s.io",
            "TokenRequest",
            &target.name,
            vec![cause],
        ));
    }
    Ok(())
}

/// Returns the claims that bind a token to an object. Refuses an object of another kind, one that does not exist, and a
/// Pod of another account.
fn bound_claims(
    state: &State,
    target: &Target,
    reference: &Value,
) -> Result<Vec<(&'static str, Value)>, Status> {
    if !reference.is_object() {
        return Ok(Vec::new());
    }
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    let (version, kind, name) = (text("apiVersion"), text("kind"), text("name"));
    let (group, version) = version.rsplit_once('/').unwrap_or(("", version));
    let (claim, plural, namespace) = match (group, kind) {
        ("", "Pod") => ("pod", "pods", &*target.namespace),
        ("", "Secret") => ("secret", "secrets", &*target.namespace),
        ("", "Node") => ("node", "nodes", ""),
        _ => {
            return Err(Status::bad_request(format!(
                "cannot bind token to object of type {group}/{version}, Kind={kind}"
            )));
        }
    };
    let stored = state
        .store
        .get(plural, &head::key(namespace, name))
        .ok_or_else(|| Status::not_found("", plural, name))?;
    if kind == "Pod" && stored.read()["spec"]["serviceAccountName"] != *target.name {
        return Err(Status::bad_request(format!(
            "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name.",
            target.name
        )));
    }
    let uid = text("uid");
    if !uid.is_empty() && *uid != *stored.head.uid {
        return Err(Status::conflict(
            "",
            kind,
            name,
            format!(
                "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
            ),
        ));
    }
    let mut claims = vec![(claim, json!({"name": name, "uid": &*stored.head.uid}))];
    if kind == "Pod" {
        claims.extend(node_claim(state, &stored.read()));
    }
    Ok(claims)
}

/// Returns the claim about the node of a Pod, if it has one. The token does not depend on it.
fn node_claim(state: &State, pod: &Value) -> Option<(&'static str, Value)> {
    let name = pod["spec"]["nodeName"].as_str().filter(|name| !name.is_empty())?;
    let mut claim = json!({"name": name});
    if let Some(node) = state.store.get("nodes", name) {
        claim["uid"] = json!(&*node.head.uid);
    }
    Some(("node", claim))
}
