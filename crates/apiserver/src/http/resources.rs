//! Requests for resources.

use std::fmt;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap};
use hyper::{Method, Request, Response};
use serde_json::Value;

use super::body::Body;
use super::content::{PROTOBUF, yaml};
use super::request::Call;
use super::response::{add_warnings, json, status_response};
use super::route::Route;
use super::shape::{encode_list, encode_object, encode_value};
use super::{options, reviews, watch};
use crate::faults::Effect;
use crate::kinds::{Form, Registry, protobuf};
use crate::object::json as reader;
use crate::state::State;
use crate::status::{Cause, Status};
use crate::verbs::{self, Body as Content, Outcome, PatchBody, Target, Write, check_reached};

/// The largest request body, as in Kubernetes.
const BODY_LIMIT: usize = 3 * 1024 * 1024;

/// Handles a request for a resource.
pub(super) async fn answer(
    call: Call,
    request: Request<Incoming>,
    effects: &[Effect],
) -> Result<Response<Body>, Status> {
    let target = target(&call)?;
    check_patch(&call, &target, request.headers())?;
    check_verb(&call, &target)?;
    let warnings = deprecation(&target);
    let answer = match call.verb {
        "watch" => watch::answer(&call, target, effects),
        "list" => list(&call, &target, effects),
        "get" => get(&call, &target, effects),
        _ => write(&call, target, request).await,
    };
    // The response carries the deprecation warning whether the request succeeds or not.
    let mut response = answer.unwrap_or_else(|status| status_response(&status));
    add_warnings(&mut response, &warnings);
    Ok(response)
}

/// Returns whether a request is for a resource that this server encodes in protobuf. Definitions of resources and
/// `APIServices` are not.
pub(super) fn is_builtin(call: &Call) -> bool {
    match &call.route {
        Route::Resource { group, .. } => {
            let has_form = !matches!(&**group, "apiextensions.k8s.io" | "apiregistration.k8s.io");
            group.is_empty() || has_form && Registry::builtin_groups().any(|name| name == group)
        }
        _ => false,
    }
}

/// Returns the endpoint of a request, if it is served.
fn target(call: &Call) -> Result<Target, Status> {
    let Route::Resource {
        group,
        version,
        plural,
        namespace,
        name,
        subresource,
    } = &call.route
    else {
        return Err(Status::no_such_resource());
    };
    let (resource, known_group) = {
        let state = call.cluster.state();
        let known = group.is_empty() || Registry::builtin_groups().any(|name| name == group);
        (state.registry.get(group, plural), known)
    };
    let missing = || {
        if known_group {
            Status::no_such_resource()
        } else {
            Status::no_such_path()
        }
    };
    let resource = resource.ok_or_else(missing)?;
    let version = resource.version(version).cloned().ok_or_else(missing)?;
    let known = subresource.is_empty() || version.subresource(subresource).is_some();
    // Rejects a namespace for a cluster-scoped resource, and an object of a namespaced resource without a namespace.
    let placed = match (resource.namespaced, namespace.is_empty()) {
        (false, false) => false,
        (true, true) => name.is_empty() && matches!(call.verb, "list" | "watch"),
        _ => true,
    };
    let is_custom = matches!(version.form, Form::Custom(_));
    if known && !placed && is_custom {
        return Err(Status::no_such_path());
    }
    // The list over all namespaces is a path of its own, which has one method.
    if known && !placed && name.is_empty() && namespace.is_empty() {
        return Err(Status::method_not_allowed());
    }
    if !known || !placed {
        return Err(match (known, subresource.as_str()) {
            (
                false,
                "log" | "exec" | "attach" | "portforward" | "proxy" | "ephemeralcontainers" | "resize",
            ) => Status::not_implemented(format!("{plural}/{subresource}")),
            (false, _) if matches!(version.form, Form::Custom(_)) => Status::not_found(group, plural, name),
            _ => Status::no_such_resource(),
        });
    }
    Ok(Target {
        resource,
        version,
        namespace: namespace.clone(),
        name: name.clone(),
        subresource: subresource.clone(),
    })
}

/// Rejects a patch of a custom resource in a form that it does not take. As in Kubernetes, that comes before all else.
fn check_patch(call: &Call, target: &Target, headers: &HeaderMap) -> Result<(), Status> {
    const FORMS: [&str; 3] = [
        "application/json-patch+json",
        "application/merge-patch+json",
        "application/apply-patch+yaml",
    ];
    let is_custom = matches!(target.version.form, Form::Custom(_));
    if is_custom && call.verb == "patch" && !FORMS.contains(&&*content_type(headers)) {
        return Err(Status::unsupported_patch());
    }
    Ok(())
}

fn check_verb(call: &Call, target: &Target) -> Result<(), Status> {
    let named = !target.name.is_empty();
    let custom = matches!(target.version.form, Form::Custom(_));
    if custom && !named && matches!(call.verb, "update" | "patch") {
        return Err(Status::bad_request("name must be provided"));
    }
    // As in Kubernetes: the routes of built-in kinds have no HEAD; the handler of custom resources takes it for GET.
    if call.method == Method::HEAD && !custom {
        return Err(Status::method_not_allowed());
    }
    let fits = match call.verb {
        // As in Kubernetes, whose handler of custom resources checks only the HTTP method.
        "create" if custom => true,
        "create" => !named || !target.subresource.is_empty(),
        "update" | "patch" => named,
        "" => false,
        _ => true,
    };
    let can = match target.version.subresource(&target.subresource) {
        Some(subresource) => subresource.verbs.iter().any(|verb| **verb == *call.verb),
        None => target.version.can(call.verb),
    };
    if fits && can {
        Ok(())
    } else if custom {
        let Target { resource, .. } = target;
        Err(Status::verb_not_supported(
            &resource.group,
            &resource.plural,
            call.verb,
        ))
    } else {
        Err(Status::method_not_allowed())
    }
}

/// Returns the resource version that a fault makes the server show instead of the newest.
fn stale(state: &State, effects: &[Effect]) -> Option<u64> {
    effects.iter().find_map(|effect| match effect {
        Effect::Stale(writes) => Some(state.store.revision().saturating_sub(*writes)),
        _ => None,
    })
}

fn get(call: &Call, target: &Target, effects: &[Effect]) -> Result<Response<Body>, Status> {
    let stored = {
        let state = call.cluster.state();
        check_reached(&state, call.params.get_revision()?)?;
        verbs::get(&state, target, stale(&state, effects))?
    };
    if target.subresource == "scale" {
        let scale = verbs::show_scale(target, &stored)?;
        return Ok(json(200, encode_value(call, target, &scale)?));
    }
    Ok(json(200, encode_object(call, target, &stored)?))
}

/// Returns the deprecation warnings of a version.
fn deprecation(target: &Target) -> Vec<String> {
    match &target.version.form {
        Form::Custom(custom) => custom.deprecation_warning().into_iter().collect(),
        Form::Builtin(_) => match (&*target.resource.group, &*target.resource.kind) {
            ("", "Endpoints") => {
                vec!["v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice".to_owned()]
            }
            _ => Vec::new(),
        },
    }
}

fn list(call: &Call, target: &Target, effects: &[Effect]) -> Result<Response<Body>, Status> {
    let options = call.params.list()?;
    let listing = {
        let state = call.cluster.state();
        let stale = stale(&state, effects);
        verbs::list(&state, target, &options, stale)?
    };
    Ok(json(200, encode_list(call, target, &listing)?))
}

/// Returns the content type without its parameters.
fn content_type(headers: &HeaderMap) -> String {
    let given = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let given = given.and_then(|text| text.split(';').next()).unwrap_or_default();
    given.trim().to_ascii_lowercase()
}

/// Reads the content type and the body of a request.
async fn read(request: Request<Incoming>) -> Result<(String, Bytes), Status> {
    let content_type = content_type(request.headers());
    let body = Limited::new(request.into_body(), BODY_LIMIT)
        .collect()
        .await
        .map_err(|error| {
            if error.downcast_ref::<http_body_util::LengthLimitError>().is_some() {
                return Status::new(
                    413,
                    "RequestEntityTooLarge",
                    format!("Request entity too large: limit is {BODY_LIMIT}"),
                );
            }
            Status::bad_request(format!("the body could not be read: {error}"))
        })?;
    Ok((content_type, body.to_bytes()))
}

/// Reads an object and the fields that appear twice in it.
fn object(target: &Target, content_type: &str, bytes: &[u8]) -> Result<(Value, Vec<String>), Status> {
    match content_type {
        "" | "application/json" => reader::read(bytes).map_err(|error| unreadable(target, bytes, &error)),
        "application/yaml" => yaml(bytes)
            .map(|value| (value, Vec::new()))
            .map_err(|error| unreadable(target, bytes, &error)),
        PROTOBUF if matches!(target.version.form, Form::Builtin(_)) => {
            let (api_version, kind) = expected(target);
            protobuf::read_as(bytes, api_version, kind)
                .map(|value| (value, Vec::new()))
                .map_err(|error| unreadable(target, b"k8s", &error))
        }
        _ => Err(Status::unsupported_media_type()),
    }
}

/// Returns the version and the kind of an object whose body does not name them.
fn expected(target: &Target) -> (&str, &str) {
    match &*target.subresource {
        "scale" => ("autoscaling/v1", "Scale"),
        "eviction" => ("policy/v1", "Eviction"),
        "token" => ("authentication.k8s.io/v1", "TokenRequest"),
        _ => (&target.version.api_version, &target.resource.kind),
    }
}

fn unreadable(target: &Target, bytes: &[u8], error: &dyn fmt::Display) -> Status {
    let kind = match (&*target.subresource, &target.version.form) {
        ("scale", Form::Custom(_)) => {
            let why = "no kind is registered for the type v1.Scale in scheme \"pkg/runtime/scheme.go:111\"";
            return Status::bad_request(why);
        }
        ("scale", Form::Builtin(_)) => "Scale",
        ("eviction", _) => "Eviction",
        ("token", _) => "TokenRequest",
        _ => &target.resource.kind,
    };
    let start =
        format!("the object provided is unrecognized (must be of type {kind}): couldn't get version/kind;");
    if bytes.is_empty() {
        return Status::bad_request(format!(
            "{start} json parse error: unexpected end of JSON input (<empty>)"
        ));
    }
    let text = String::from_utf8_lossy(bytes);
    let shown: String = text.chars().take(30).collect();
    Status::bad_request(format!("{start} json parse error: {error} ({shown} ...)"))
}

async fn write(
    call: &Call,
    mut target: Target,
    request: Request<Incoming>,
) -> Result<Response<Body>, Status> {
    let (content_type, bytes) = read(request).await?;
    if matches!(call.verb, "delete" | "deletecollection") {
        return delete(call, &target, &content_type, &bytes);
    }
    let (options, verb) = match call.verb {
        "create" => ("CreateOptions", "create"),
        "update" => ("UpdateOptions", "update"),
        _ => ("PatchOptions", "patch"),
    };
    let causes = match verb {
        "patch" => patch_parameters(call, &content_type),
        _ => Vec::new(),
    };
    let (dry_run, validation) = call.params.write(options, causes)?;
    let write = Write {
        manager: &call.manager,
        user: &call.user.name,
        uid: &call.user.uid,
        groups: &call.user.groups,
        extra: &call.user.extra,
        dry_run,
        validation,
        force: call.params.flag("force"),
        now: call.now,
        subresource: &target.subresource.clone(),
    };
    let outcome = match verb {
        "create" => {
            let (object, duplicates) = object(&target, &content_type, &bytes)?;
            if let Some(answer) = reviews::answer(call_facts(call), &mut target, &object, &write) {
                return content(call, &target, answer?);
            }
            verbs::create(&mut call.cluster.state(), &target, object, &duplicates, &write)?
        }
        "update" => {
            let (object, duplicates) = object(&target, &content_type, &bytes)?;
            verbs::update(&mut call.cluster.state(), &target, object, &duplicates, &write)?
        }
        _ => {
            let (body, duplicates) = patch(&content_type, &bytes)?;
            verbs::patch(&mut call.cluster.state(), &target, body, &duplicates, &write)?
        }
    };
    if !dry_run {
        call.cluster.schedule();
    }
    content(call, &target, outcome)
}

fn call_facts(call: &Call) -> reviews::Facts<'_> {
    reviews::Facts {
        cluster: &call.cluster,
        secret: &call.shared.secret,
        user: &call.user,
        now: call.now,
    }
}

/// Returns what is wrong with the parameters of a patch.
fn patch_parameters(call: &Call, content_type: &str) -> Vec<Cause> {
    let applies = content_type == "application/apply-patch+yaml";
    let mut causes = Vec::new();
    if applies && call.params.text("fieldManager").is_empty() {
        causes.push(Cause::required("fieldManager", "is required for apply patch"));
    }
    if !applies && call.params.get("force").is_some() {
        causes.push(Cause::forbidden(
            "force",
            "may not be specified for non-apply patch",
        ));
    }
    causes
}

/// Reads the body of a patch.
fn patch(content_type: &str, bytes: &[u8]) -> Result<(PatchBody, Vec<String>), Status> {
    let value =
        || reader::read(bytes).map_err(|error| Status::bad_request(format!("error decoding patch: {error}")));
    match content_type {
        "application/apply-patch+yaml" => {
            // JSON is YAML, and most clients send JSON.
            let (config, duplicates) = match reader::read(bytes) {
                Ok(read) => read,
                Err(_) => {
                    let config = yaml(bytes)
                        .map_err(|error| Status::bad_request(format!("error decoding YAML: {error}")))?;
                    (config, Vec::new())
                }
            };
            Ok((PatchBody::Apply(config), duplicates))
        }
        "application/merge-patch+json" => value().map(|(patch, twice)| (PatchBody::Merge(patch), twice)),
        "application/json-patch+json" => value().map(|(patch, _)| (PatchBody::Json(patch), Vec::new())),
        "application/strategic-merge-patch+json" => {
            value().map(|(patch, twice)| (PatchBody::Strategic(patch), twice))
        }
        _ => Err(Status::unsupported_media_type()),
    }
}

fn delete(call: &Call, target: &Target, content_type: &str, bytes: &[u8]) -> Result<Response<Body>, Status> {
    let options = if bytes.is_empty() {
        call.params.delete()?
    } else {
        options::read(content_type, bytes)?
    };
    let write = Write {
        manager: &call.manager,
        user: &call.user.name,
        uid: &call.user.uid,
        groups: &call.user.groups,
        extra: &call.user.extra,
        dry_run: options.dry_run,
        validation: verbs::Validation::Ignore,
        force: false,
        now: call.now,
        subresource: "",
    };
    if call.verb == "deletecollection" {
        let list = call.params.list()?;
        let (listing, warnings) =
            verbs::delete_collection(&mut call.cluster.state(), target, &list, &options, &write)?;
        call.cluster.schedule();
        let mut response = json(200, encode_list(call, target, &listing)?);
        add_warnings(&mut response, &warnings);
        add_warnings(&mut response, &verbs::delete_warnings(target, &options));
        return Ok(response);
    }
    let outcome = verbs::delete(&mut call.cluster.state(), target, &options, &write);
    call.cluster.schedule();
    let answer = outcome.and_then(|outcome| content(call, target, outcome));
    let mut response = answer.unwrap_or_else(|status| status_response(&status));
    add_warnings(&mut response, &verbs::delete_warnings(target, &options));
    Ok(response)
}

/// Returns the response to a write.
fn content(call: &Call, target: &Target, outcome: Outcome) -> Result<Response<Body>, Status> {
    let bytes = match outcome.body {
        Content::Stored(stored) => encode_object(call, target, &stored)?,
        Content::Value(value) => encode_value(call, target, &value)?,
    };
    let mut response = json(outcome.code, bytes);
    add_warnings(&mut response, &outcome.warnings);
    Ok(response)
}
