//! Requests that are handled without storing an object: access and token reviews, `TokenRequest`, `Eviction`.
//!
//! The server allows every request that has a valid token, and the reviews say so.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::kinds::codec;
use crate::object::{head, metadata, times};
use crate::server::{Cluster, Secret, User};
use crate::status::{Cause, Status};
use crate::verbs::{DeleteOptions, Outcome, Target, Write, check_kind, decode, delete, get};

/// The data that the responses depend on.
#[derive(Clone, Copy)]
pub(crate) struct Facts<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) secret: &'a Secret,
    pub(crate) user: &'a User,
    pub(crate) now: Timestamp,
}

/// The reason that access reviews report.
const REASON: &str = "the embedded API server allows everything";
/// The lifetime of a token, in seconds, if the request does not set one.
const DEFAULT_SECONDS: i64 = 3600;

/// Handles a `create` of such a kind; `None` for a `create` of any other kind.
pub(crate) fn answer(
    facts: Facts<'_>,
    target: &mut Target,
    object: &Value,
    write: &Write<'_>,
) -> Option<Result<Outcome, Status>> {
    let group = &*target.resource.group;
    match (&*target.resource.plural, &*target.subresource) {
        ("serviceaccounts", "token") if group.is_empty() => Some(token(facts, target, object, write)),
        ("pods", "eviction") if group.is_empty() => Some(evict(facts, target, object, write)),
        (_, "") if matches!(group, "authorization.k8s.io" | "authentication.k8s.io") => {
            Some(review(facts, target, object, write))
        }
        _ => None,
    }
}

fn review(facts: Facts<'_>, target: &Target, object: &Value, write: &Write<'_>) -> Result<Outcome, Status> {
    let mut review = decode(target, object.clone(), &[], write.validation)
        .map_err(|why| why.of_body(target))?
        .object;
    let spec = &review["spec"];
    let status = match &*target.resource.kind {
        "SelfSubjectAccessReview" | "SubjectAccessReview" | "LocalSubjectAccessReview" => {
            let both = spec["resourceAttributes"].is_object() == spec["nonResourceAttributes"].is_object();
            if both {
                let cause = Cause::invalid(
                    "spec.resourceAttributes",
                    &Value::Null,
                    "exactly one of nonResourceAttributes or resourceAttributes must be specified",
                );
                return Err(Status::invalid(&target.resource.group, "", "", vec![cause]));
            }
            json!({"allowed": true, "reason": REASON})
        }
        "SelfSubjectRulesReview" => json!({
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            "incomplete": false,
        }),
        "SelfSubjectReview" => json!({"userInfo": user_info(facts.user)}),
        _ => token_review(facts, spec),
    };
    review["status"] = status;
    metadata::set(
        &mut review,
        "creationTimestamp",
        Some(times::seconds(facts.now).into()),
    );
    Ok(Outcome::value(201, review))
}

fn user_info(user: &User) -> Value {
    let mut info = json!({"username": user.name, "groups": user.groups});
    if !user.uid.is_empty() {
        info["uid"] = json!(user.uid);
    }
    info
}

fn token_review(facts: Facts<'_>, spec: &Value) -> Value {
    let token = spec["token"].as_str().unwrap_or_default();
    if token == facts.secret.cluster_token(facts.cluster.token_scope()) {
        return json!({"authenticated": true, "user": user_info(&User::admin())});
    }
    match facts
        .secret
        .account_claims(facts.cluster.token_scope(), token, facts.now)
    {
        Some(claims) => {
            let of = &claims["kubernetes.io"];
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let user = User::account(
                &text(&of["namespace"]),
                &text(&of["serviceaccount"]["name"]),
                &text(&of["serviceaccount"]["uid"]),
            );
            json!({"authenticated": true, "user": user_info(&user), "audiences": claims["aud"]})
        }
        None => json!({"user": {}, "error": "[invalid bearer token]"}),
    }
}

/// Handles a `TokenRequest` with a token for the service account.
fn token(facts: Facts<'_>, target: &Target, object: &Value, write: &Write<'_>) -> Result<Outcome, Status> {
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
    let account = {
        let state = facts.cluster.state();
        get(&state, target, None)?
    };
    let seconds = request["spec"]["expirationSeconds"]
        .as_i64()
        .unwrap_or(DEFAULT_SECONDS);
    if seconds < 600 {
        let cause = Cause::invalid(
            "spec.expirationSeconds",
            &json!(seconds),
            "may not specify a duration less than 10 minutes",
        );
        return Err(Status::invalid(
            "authentication.k8s.io",
            "TokenRequest",
            "",
            vec![cause],
        ));
    }
    let begins = facts.now.as_second();
    let ends = Timestamp::from_second(begins + seconds).unwrap_or(facts.now);
    let audiences = match request["spec"]["audiences"].as_array() {
        Some(list) if !list.is_empty() => json!(list),
        _ => json!(["https://kubernetes.default.svc.cluster.local"]),
    };
    let id = facts.cluster.state().random.uuid();
    let claims = json!({
        "aud": audiences, "exp": ends.as_second(), "iat": begins, "nbf": begins, "jti": id,
        "iss": "https://kubernetes.default.svc.cluster.local",
        "sub": format!("system:serviceaccount:{}:{}", target.namespace, target.name),
        "kubernetes.io": {"namespace": target.namespace,
            "serviceaccount": {"name": target.name, "uid": &*account.head.uid}},
    });
    request["spec"]["audiences"] = audiences;
    request["spec"]["expirationSeconds"] = json!(seconds);
    request["metadata"] = json!({"name": target.name, "namespace": target.namespace,
        "creationTimestamp": times::seconds(facts.now)});
    request["status"] = json!({
        "token": if write.dry_run { String::new() } else { facts.secret.account_token(facts.cluster.token_scope(), &claims) },
        "expirationTimestamp": times::seconds(ends),
    });
    Ok(Outcome::value(201, request))
}

/// Handles a `Eviction` by deleting the Pod; there are no disruption budgets to check, since workloads create no
/// Pods.
fn evict(
    facts: Facts<'_>,
    target: &mut Target,
    object: &Value,
    write: &Write<'_>,
) -> Result<Outcome, Status> {
    let mut options = DeleteOptions::read(&object["deleteOptions"])?;
    options.dry_run |= write.dry_run;
    let mut state = facts.cluster.state();
    let key = head::key(&target.namespace, &target.name);
    if state.store.get(&target.resource.table, &key).is_none() {
        return Err(target.not_found());
    }
    target.subresource = String::new();
    let write = Write {
        dry_run: options.dry_run,
        ..*write
    };
    delete(&mut state, target, &options, &write)?;
    Ok(Outcome::value(
        201,
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
    ))
}
