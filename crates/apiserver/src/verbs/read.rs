//! Get and list.

use std::sync::Arc;

use serde_json::Value;

use super::Target;
use crate::kinds::Form;
use crate::object::continuation::Continuation;
use crate::object::selector::field_value;
use crate::object::{FieldSelector, LabelSelector};
use crate::state::State;
use crate::status::Status;
use crate::store::{Compacted, Range, Stored};

/// Which objects of a collection a request is about.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// By labels.
    pub labels: LabelSelector,
    /// By fields.
    pub fields: FieldSelector,
}

/// How a revision that a client names is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RevisionMatch {
    /// That one.
    Exact,
    /// That one or a newer one.
    NotOlderThan,
}

/// What a client says about a list.
#[derive(Debug, Clone, Default)]
pub struct ListOptions {
    /// Which objects.
    pub selection: Selection,
    /// How many at most; 0 for all.
    pub limit: usize,
    /// Where an earlier list stopped.
    pub continuation: Option<String>,
    /// A revision; none for the newest.
    pub revision: Option<u64>,
    /// How the revision is meant.
    pub revision_match: Option<RevisionMatch>,
}

/// A list.
#[derive(Debug, Clone)]
pub struct Listing {
    /// The revision that it shows.
    pub revision: u64,
    /// The objects, in order.
    pub items: Vec<Arc<Stored>>,
    /// Where to go on; none at the end.
    pub next: Option<String>,
    /// How many are left, if that is known.
    pub remaining: Option<usize>,
}

/// Fields of built-in kinds that can be selected by, apart from name and namespace.
fn selectable(group: &str, kind: &str) -> &'static [&'static str] {
    match (group, kind) {
        ("", "Pod") => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        ("", "Namespace") => &["status.phase"],
        ("", "Secret") => &["type"],
        ("", "Node") => &["spec.unschedulable"],
        ("", "Service") => &["spec.clusterIP", "spec.type"],
        ("", "ReplicationController") | ("apps", "ReplicaSet") => &["status.replicas"],
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

impl Selection {
    /// Refuses fields that the kind cannot be selected by.
    pub(crate) fn check(&self, target: &Target) -> Result<(), Status> {
        for field in self.fields.fields() {
            let known = match field {
                "metadata.name" => true,
                "metadata.namespace" => target.resource.namespaced || target.resource.custom.is_none(),
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

    /// Whether it selects everything.
    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }

    /// Whether an object is selected.
    pub fn matches(&self, stored: &Stored) -> bool {
        if !self.labels.matches(&stored.head) {
            return false;
        }
        if self.fields.is_everything() {
            return true;
        }
        let body = if self.fields.needs_body() {
            stored.read()
        } else {
            Value::Null
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
            "source" => match field_value(&body, "source.component") {
                component if component.is_empty() => field_value(&body, "reportingComponent"),
                component => component,
            },
            field => field_value(&body, field),
        })
    }
}

/// The text of a number, of which nothing is zero.
fn number(value: &Value) -> String {
    value.as_i64().unwrap_or_default().to_string()
}

/// Gets an object, of a revision in the past if one is given.
///
/// # Errors
/// The answer of the API server.
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

/// Refuses a revision that is still to come.
///
/// # Errors
/// The answer of the API server.
pub(crate) fn check_reached(state: &State, revision: Option<u64>) -> Result<(), Status> {
    match revision {
        Some(revision) if revision > state.store.revision() => {
            Err(Status::too_large_revision(revision, state.store.revision()))
        }
        _ => Ok(()),
    }
}

/// Lists objects, of a revision in the past if the server is told to be stale.
///
/// # Errors
/// The answer of the API server.
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
        return Ok(cut(items.map(Arc::clone), state.store.revision(), options));
    };
    check_reached(state, Some(at))?;
    let items = state
        .store
        .list_at(table, range, at)
        .map_err(|Compacted { .. }| match &continuation {
            Some(token) => continue_anew(token),
            None => too_old(),
        })?;
    Ok(cut(items.into_iter(), at, options))
}

/// What the API server says when a continued list cannot be one of the same revision any more.
fn continue_anew(token: &Continuation) -> Status {
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

/// Takes what is selected, up to the limit.
fn cut(items: impl Iterator<Item = Arc<Stored>>, revision: u64, options: &ListOptions) -> Listing {
    let mut items = items
        .filter(|stored| options.selection.matches(stored))
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
