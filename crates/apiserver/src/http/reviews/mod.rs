//! Requests that are handled without storing an object: access and token reviews, `TokenRequest`, `Eviction`.

mod access;
mod eviction;
mod token;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::identity;
use crate::object::{metadata, times};
use crate::server::{Cluster, Secret, User};
use crate::status::Status;
use crate::verbs::{Outcome, Target, Write, check_names, decode, update_managed_fields};

/// The data that the responses depend on.
#[derive(Clone, Copy)]
pub(crate) struct Facts<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) secret: &'a Secret,
    pub(crate) user: &'a User,
    pub(crate) now: Timestamp,
}

/// Handles a `create` of such a kind; `None` for a `create` of any other kind.
pub(crate) fn answer(
    facts: Facts<'_>,
    target: &mut Target,
    object: &Value,
    write: &Write<'_>,
) -> Option<Result<Outcome, Status>> {
    let group = &*target.resource.group;
    match (&*target.resource.plural, &*target.subresource) {
        ("serviceaccounts", "token") if group.is_empty() => Some(token::token(facts, target, object, write)),
        ("pods", "eviction") if group.is_empty() => Some(eviction::evict(facts, target, object, write)),
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
    check_names(target, &mut review)?;
    let kind = &*target.resource.kind;
    let causes = match kind {
        "SelfSubjectAccessReview" | "SubjectAccessReview" | "LocalSubjectAccessReview" => {
            access::problems(target, &review)
        }
        _ => Vec::new(),
    };
    if !causes.is_empty() {
        return Err(Status::invalid(&target.resource.group, "", "", causes));
    }
    let status = match kind {
        "SelfSubjectAccessReview" | "SubjectAccessReview" | "LocalSubjectAccessReview" => {
            access::status(facts, target, &review["spec"])
        }
        "SelfSubjectRulesReview" => access::rules(facts, &review["spec"])?,
        "SelfSubjectReview" => json!({"userInfo": user_info(facts.user)}),
        _ => token_review(facts, &review["spec"])?,
    };
    // As in Kubernetes, which answers with what each of these reviews happens to have there.
    review = match kind {
        "SelfSubjectRulesReview" => json!({
            "kind": kind,
            "apiVersion": &*target.version.api_version,
            "metadata": {},
            "spec": {},
        }),
        "SelfSubjectReview" => json!({
            "kind": kind,
            "apiVersion": &*target.version.api_version,
            "metadata": {"creationTimestamp": times::seconds(facts.now)},
        }),
        _ => {
            let (mut review, managed) = update_managed_fields(target, None, review, write)?;
            metadata::set_managed(&mut review, &managed);
            review
        }
    };
    review["status"] = status;
    Ok(Outcome::value(201, review))
}

fn user_info(user: &User) -> Value {
    let mut info = json!({"username": user.name, "groups": user.groups});
    if !user.uid.is_empty() {
        info["uid"] = json!(user.uid);
    }
    if !user.extra.is_empty() {
        info["extra"] = json!(user.extra);
    }
    info
}

fn token_review(facts: Facts<'_>, spec: &Value) -> Result<Value, Status> {
    let token = spec["token"].as_str().unwrap_or_default();
    if token.is_empty() {
        return Err(Status::bad_request(
            "token is required for TokenReview in authentication",
        ));
    }
    let audiences = spec["audiences"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let wanted: Vec<&str> = audiences.iter().filter_map(Value::as_str).collect();
    Ok(
        match identity::of_token(facts.cluster, facts.secret, token, &wanted, facts.now) {
            Ok((user, audiences)) => {
                json!({"authenticated": true, "user": user_info(&user), "audiences": audiences})
            }
            Err(why) => json!({"user": {}, "error": why}),
        },
    )
}
