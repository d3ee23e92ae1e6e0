//! The verbs `get` and `list`.

use std::sync::Arc;

use serde_json::Value;

use crate::kinds::{self, Form, Resource, Version};
use crate::object::continuation::Continuation;
use crate::object::selector::field_value;
use crate::object::{FieldSelector, LabelSelector};
use crate::state::State;
use crate::status::Status;
use crate::store::{Compacted, Range, Stored};
use crate::target::Target;

/// The label and field selectors of a request.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// The label selector.
    pub labels: LabelSelector,
    /// The field selector.
    pub fields: FieldSelector,
}

/// How a list uses the resource version that the client gives (`resourceVersionMatch`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RevisionMatch {
    /// The list shows exactly that version.
    Exact,
    /// The list shows that version or a newer one.
    NotOlderThan,
}

/// The options of a list.
#[derive(Debug, Clone, Default)]
pub struct ListOptions {
    /// The selectors.
    pub selection: Selection,
    /// The page size; 0 for no limit.
    pub limit: usize,
    /// The token of the page before.
    pub continuation: Option<String>,
    /// The resource version; `None` for the newest.
    pub revision: Option<u64>,
    /// How the list uses the resource version.
    pub revision_match: Option<RevisionMatch>,
}

/// One page of a list.
#[derive(Debug, Clone)]
pub struct Listing {
    /// The resource version that the list shows.
    pub revision: u64,
    /// The objects, in the order of their keys.
    pub items: Vec<Arc<Stored>>,
    /// The token of the next page; `None` on the last page.
    pub next: Option<String>,
    /// The number of objects on later pages, if it is known.
    pub remaining: Option<usize>,
}

/// The fields of built-in kinds that field selectors support, besides name and namespace.
fn selectable(group: &str, kind: &str) -> &'static [&'static str] {
    match (group, kind) {
        ("", "Pod") => &[
            "spec.nodeName",
            "spec.host",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ],
        ("", "Namespace") => &["status.phase"],
        ("", "Secret") => &["type"],
        ("", "Node") => &["spec.unschedulable"],
        ("", "Service") => &["spec.clusterIP", "spec.type"],
        ("", "ReplicationController") => &["status.replicas"],
        ("certificates.k8s.io", "CertificateSigningRequest") => &["spec.signerName"],
        ("events.k8s.io", "Event") => &[
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "regarding.resourceVersion",
            "regarding.fieldPath",
            "reason",
            "reportingController",
            "type",
        ],
        ("batch", "Job") => &["status.successful"],
        ("", "Event") => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        _ => &[],
    }
}

/// Returns whether a kind without namespaces has the field selector of the namespace all the same, as in Kubernetes
/// those built-in kinds have that name no fields of their own.
fn has_namespace_selector(target: &Target) -> bool {
    target.resource.custom.is_none() && selectable(&target.resource.group, &target.resource.kind).is_empty()
}

impl Selection {
    /// Rejects a field selector that the kind does not support.
    pub(crate) fn check(&self, target: &Target) -> Result<(), Status> {
        for field in self.fields.fields() {
            let known = match field {
                "metadata.name" => true,
                "metadata.namespace" => target.resource.namespaced || has_namespace_selector(target),
                field => match &target.version.form {
                    Form::Builtin(_) => {
                        selectable(&target.resource.group, &target.resource.kind).contains(&field)
                    }
                    Form::Custom(custom) => custom
                        .get()
                        .selectable_fields()
                        .iter()
                        .any(|path| path.trim_start_matches('.') == field),
                },
            };
            if known {
                continue;
            }
            let plain = matches!(target.version.form, Form::Builtin(_))
                && selectable(&target.resource.group, &target.resource.kind).is_empty();
            return Err(Status::bad_request(if plain {
                format!(
                    "{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
                )
            } else if *target.resource.kind == *"Job" {
                format!("field label {field:?} not supported for Job")
            } else {
                format!("field label not supported: {field}")
            }));
        }
        Ok(())
    }

    /// Returns whether the selection matches every object.
    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }

    /// Returns whether the selection matches an object as a version shows it.
    pub fn matches(&self, resource: &Resource, version: &Version, stored: &Stored) -> bool {
        if !self.labels.matches(&stored.head) {
            return false;
        }
        if self.fields.is_everything() {
            return true;
        }
        let body = match &version.form {
            _ if !self.fields.needs_body() => Value::Null,
            // The definition may have gained a field with a default, or lost a field, since the object was stored.
            Form::Custom(_) => kinds::read_as(resource, version, stored),
            Form::Builtin(_) => stored.read(),
        };
        self.fields.matches(|field| match field {
            "metadata.name" => stored.head.name.to_string(),
            "metadata.namespace" => stored.head.namespace.to_string(),
            "status.successful" => number(&body["status"]["succeeded"]),
            "status.replicas" => number(&body["status"]["replicas"]),
            "spec.unschedulable" | "spec.hostNetwork" => {
                let (holder, field) = field.split_once('.').unwrap_or_default();
                (body[holder][field] == true).to_string()
            }
            // The name of the field before the first release of Kubernetes.
            "spec.host" => field_value(&body, "spec.nodeName"),
            "source" => match field_value(&body, "source.component") {
                component if component.is_empty() => field_value(&body, "reportingComponent"),
                component => component,
            },
            // Events are stored in the form of the core group.
            "reportingController" => field_value(&body, "reportingComponent"),
            field => match field.strip_prefix("regarding.") {
                Some(field) => field_value(&body["involvedObject"], field),
                None => field_value(&body, field),
            },
        })
    }
}

/// Returns a number as text; a missing number is zero.
fn number(value: &Value) -> String {
    value.as_i64().unwrap_or_default().to_string()
}

/// Returns an object, or its version at an earlier resource version.
///
/// # Errors
/// The `Status` that the API server returns.
pub fn get(state: &State, target: &Target, at: Option<u64>) -> Result<Arc<Stored>, Status> {
    let table = &target.resource.table;
    let stored = match at {
        Some(at) => state
            .store
            .get_at(table, &target.key(), at)
            .map_err(|_| too_old())?,
        None => state.store.get(table, &target.key()).cloned(),
    };
    stored.ok_or_else(|| target.not_found())
}

fn too_old() -> Status {
    Status::expired("The resourceVersion for the provided list is too old.")
}

/// Rejects a resource version that the cluster has not reached.
///
/// # Errors
/// The `Status` that the API server returns.
pub(crate) fn check_reached(state: &State, revision: Option<u64>) -> Result<(), Status> {
    match revision {
        Some(revision) if revision > state.store.revision() => {
            Err(Status::too_large_revision(revision, state.store.revision()))
        }
        _ => Ok(()),
    }
}

/// Lists objects. `stale` is the resource version that a fault makes the server show instead of the newest.
///
/// # Errors
/// The `Status` that the API server returns.
pub fn list(
    state: &State,
    target: &Target,
    options: &ListOptions,
    stale: Option<u64>,
) -> Result<Listing, Status> {
    options.selection.check(target)?;
    let continuation = options
        .continuation
        .as_deref()
        .map(Continuation::decode)
        .transpose()
        .map_err(|why| Status::bad_request(format!("invalid continue token: {why}")))?;
    let namespace = (!target.namespace.is_empty()).then_some(target.namespace.as_str());
    let start = continuation.as_ref().map_or("", |token| &token.start);
    let range = Range { namespace, start };
    let table = &target.resource.table;
    let exact = match &continuation {
        Some(token) => token.revision,
        None if options.revision_match == Some(RevisionMatch::Exact) => options.revision,
        None => {
            check_reached(state, options.revision)?;
            stale
        }
    };
    let Some(at) = exact.filter(|at| *at != state.store.revision()) else {
        let items = state.store.list(table, range);
        return Ok(page(
            target,
            items.map(Arc::clone),
            state.store.revision(),
            options,
        ));
    };
    check_reached(state, Some(at))?;
    let items = state
        .store
        .list_at(table, range, at)
        .map_err(|Compacted { .. }| match &continuation {
            Some(token) => expired_continue(token),
            None => too_old(),
        })?;
    Ok(page(target, items.into_iter(), at, options))
}

/// Returns the response to a continued list whose resource version has been compacted.
fn expired_continue(token: &Continuation) -> Status {
    let mut status = Status::expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.",
    );
    let anew = Continuation {
        revision: None,
        start: token.start.clone(),
    };
    status.continuation = Some(anew.encode());
    status
}

/// Returns the page of selected objects.
fn page(
    target: &Target,
    items: impl Iterator<Item = Arc<Stored>>,
    revision: u64,
    options: &ListOptions,
) -> Listing {
    let mut items = items
        .filter(|stored| {
            options
                .selection
                .matches(&target.resource, &target.version, stored)
        })
        .peekable();
    let limit = if options.limit == 0 {
        usize::MAX
    } else {
        options.limit
    };
    let taken: Vec<_> = items.by_ref().take(limit).collect();
    let next = items.peek().map(|next| {
        Continuation {
            revision: Some(revision),
            start: next.head.key().into(),
        }
        .encode()
    });
    let remaining = (next.is_some() && options.selection.is_everything()).then(|| items.count());
    Listing {
        revision,
        items: taken,
        next,
        remaining,
    }
}
