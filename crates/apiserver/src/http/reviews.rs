//! Requests that are handled without storing an object: access and token reviews, `TokenRequest`, `Eviction`.
//!
//! The server allows every request that has a valid token, and the reviews say so.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::kinds::codec;
use crate::object::{head, metadata, times};
use crate::server::{Cluster, Secret, User};
use crate::state::State;
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
/// The longest lifetime of a token, in seconds.
const MOST_SECONDS: i64 = 1 << 32;

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
    // As in Kubernetes, which clears the namespace of every object of a kind without namespaces.
    if !target.resource.namespaced {
        metadata::set(&mut review, "namespace", None);
    }
    check_metadata(target, &review)?;
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
    // As in Kubernetes, which answers with what each of these reviews happens to have there.
    review = match &*target.resource.kind {
        "SelfSubjectRulesReview" => json!({
            "kind": "SelfSubjectRulesReview",
            "apiVersion": &*target.version.api_version,
            "metadata": {},
            "spec": {},
        }),
        "SelfSubjectReview" => json!({
            "kind": "SelfSubjectReview",
            "apiVersion": &*target.version.api_version,
            "metadata": {"creationTimestamp": times::seconds(facts.now)},
        }),
        _ => review,
    };
    review["status"] = status;
    Ok(Outcome::value(201, review))
}

/// Rejects a review of access with metadata, as Kubernetes does.
fn check_metadata(target: &Target, review: &Value) -> Result<(), Status> {
    let empty = match &*target.resource.kind {
        "SelfSubjectAccessReview" | "SubjectAccessReview" => &[][..],
        "LocalSubjectAccessReview" => &["namespace"][..],
        _ => return Ok(()),
    };
    let is_empty = |name: &str, value: &Value| {
        matches!(name, "managedFields" | "creationTimestamp") && !value.is_string()
            || empty.contains(&name)
            || value.is_null()
    };
    let metadata = &review["metadata"];
    let found = metadata.as_object().into_iter().flatten();
    if found.into_iter().all(|(name, value)| is_empty(name, value)) {
        return Ok(());
    }
    let cause = Cause::invalid("metadata", metadata, "must be empty");
    Err(Status::invalid(&target.resource.group, "", "", vec![cause]))
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
        None => json!({"user": {}, "error": "invalid bearer token"}),
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
    check_name(target, &request)?;
    let account = {
        let state = facts.cluster.state();
        get(&state, target, None)?
    };
    let seconds = request["spec"]["expirationSeconds"]
        .as_i64()
        .unwrap_or(DEFAULT_SECONDS);
    let problem = match seconds {
        ..600 => Some("may not specify a duration less than 10 minutes"),
        MOST_SECONDS.. if seconds > MOST_SECONDS => {
            Some("may not specify a duration larger than 2^32 seconds")
        }
        _ => None,
    };
    if let Some(problem) = problem {
        let cause = Cause::invalid("spec.expirationSeconds", &json!(seconds), problem);
        return Err(Status::invalid(
            "authentication.k8s.io",
            "TokenRequest",
            "",
            vec![cause],
        ));
    }
    check_bound(&facts.cluster.state(), target, &request["spec"]["boundObjectRef"])?;
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

/// Rejects a reference to an object that a token cannot be bound to: one of another kind, one that does not exist, or
/// a Pod of another account.
fn check_bound(state: &State, target: &Target, reference: &Value) -> Result<(), Status> {
    if !reference.is_object() {
        return Ok(());
    }
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    let (version, kind, name) = (text("apiVersion"), text("kind"), text("name"));
    let (group, version) = version.rsplit_once('/').unwrap_or(("", version));
    let (plural, namespace) = match (group, kind) {
        ("", "Pod") => ("pods", &*target.namespace),
        ("", "Secret") => ("secrets", &*target.namespace),
        ("", "Node") => ("nodes", ""),
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
    Ok(())
}

/// Reads an `Eviction`. A body that is none must not delete a Pod.
fn eviction(target: &Target, object: &Value) -> Result<Value, Status> {
    let mut eviction = object.clone();
    let Some(map) = eviction.as_object_mut() else {
        return Err(Status::bad_request(
            "the object provided is unrecognized (must be of type Eviction): couldn't get version/kind; json parse error: the body is not an object",
        ));
    };
    for (field, value) in [("apiVersion", "policy/v1"), ("kind", "Eviction")] {
        if map.get(field).is_none_or(|found| found.is_null() || found == "") {
            map.insert(field.to_owned(), json!(value));
        }
    }
    let text = |field: &str| eviction[field].as_str().unwrap_or_default().to_owned();
    let (version, kind) = (text("apiVersion"), text("kind"));
    let cannot = |why: &dyn std::fmt::Display| {
        Status::bad_request(format!(
            "{kind} in version {:?} cannot be handled as a Eviction: {why}",
            version.rsplit('/').next().unwrap_or_default(),
        ))
    };
    let is_eviction = kind == "Eviction" && matches!(&*version, "policy/v1" | "policy/v1beta1");
    let Some(ty) = codec::go_type("policy/v1", "Eviction").filter(|_| is_eviction) else {
        let is_known = kind != "Eviction" && codec::go_type(&version, &kind).is_some();
        return Err(cannot(&if is_known {
            format!("converting (v1.{kind}) to (policy.Eviction): unknown conversion")
        } else {
            format!(
                "no kind {kind:?} is registered for version {version:?} in scheme \"pkg/runtime/scheme.go:111\""
            )
        }));
    };
    ty.normalize(&mut eviction).map_err(|why| cannot(&why))?;
    let namespace = metadata::text(&eviction, "namespace");
    if !namespace.is_empty() && namespace != target.namespace {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    if metadata::text(&eviction, "name") != target.name {
        return Err(Status::bad_request(
            "name in URL does not match name in Eviction object",
        ));
    }
    Ok(eviction)
}

/// Handles a `Eviction` by deleting the Pod; there are no disruption budgets to check, since workloads create no
/// Pods.
fn evict(
    facts: Facts<'_>,
    target: &mut Target,
    object: &Value,
    write: &Write<'_>,
) -> Result<Outcome, Status> {
    let eviction = eviction(target, object)?;
    let mut options = DeleteOptions::read(&eviction["deleteOptions"])?;
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
