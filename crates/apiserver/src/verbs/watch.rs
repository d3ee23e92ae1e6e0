//! The verb `watch`: the position of a watch in the log, and its next events.

use std::sync::Arc;

use super::read::{Selection, check_reached};
use crate::kinds::{Form, Resource, Version};
use crate::state::State;
use crate::status::{Cause, Status};
use crate::store::{ChangeKind, Range, Stored};
use crate::target::Target;

/// The changes that one step reads from the log.
const BATCH: usize = 256;

/// The options of a watch.
#[derive(Debug, Clone, Default)]
pub struct WatchOptions {
    /// The selectors.
    pub selection: Selection,
    /// The resource version after which the watch begins; `None` for the newest.
    pub revision: Option<u64>,
    /// Whether the watch begins with the existing objects and a bookmark after them (`sendInitialEvents`).
    pub initial_events: Option<bool>,
    /// Whether the client set `resourceVersionMatch=NotOlderThan`.
    pub not_older_than: bool,
    /// Whether the client allows bookmarks.
    pub bookmarks: bool,
}

/// An event of a watch.
#[derive(Debug, Clone)]
pub struct Event {
    /// The event type on the wire.
    pub kind: &'static str,
    /// The content of the event.
    pub body: EventBody,
}

/// The content of an event.
#[derive(Debug, Clone)]
pub enum EventBody {
    /// An object.
    Object(Arc<Stored>),
    /// A resource version, and whether the bookmark ends the initial events.
    Bookmark(u64, bool),
    /// An error, after which the watch ends.
    Error(Box<Status>),
}

/// A running watch.
#[derive(Clone)]
pub struct Watching {
    /// The resource version up to which all events have been sent.
    at: u64,
    namespace: String,
    selection: Selection,
    resource: Arc<Resource>,
    version: Arc<Version>,
}

/// Whether the resource of a watch is served as it was when the watch began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// It is.
    Same,
    /// The definition has changed. Later events belong to a watch that shows them by the new schema.
    Changed,
    /// The resource is no longer served. The events of the deletion of its objects still belong to this watch.
    Gone,
}

impl Watching {
    /// Starts a watch; returns its initial events.
    ///
    /// # Errors
    /// The `Status` that the API server returns.
    pub fn begin(
        state: &State,
        target: &Target,
        options: &WatchOptions,
    ) -> Result<(Self, Vec<Event>), Status> {
        options.selection.check(target)?;
        check_options(options)?;
        let initial = options
            .initial_events
            .unwrap_or(matches!(options.revision, None | Some(0)));
        if options.initial_events == Some(true) {
            check_reached(state, options.revision)?;
        }
        let mut watching = Self {
            at: options.revision.unwrap_or_default(),
            namespace: target.namespace.clone(),
            selection: options.selection.clone(),
            resource: Arc::clone(&target.resource),
            version: Arc::clone(&target.version),
        };
        if !initial {
            if matches!(options.revision, None | Some(0)) {
                watching.at = state.store.revision();
            }
            return Ok((watching, Vec::new()));
        }
        watching.at = state.store.revision();
        let range = Range {
            namespace: watching.namespace(),
            start: "",
        };
        let mut events: Vec<Event> = state
            .store
            .list(&watching.resource.table, range)
            .filter(|stored| watching.matches(stored))
            .map(|stored| Event {
                kind: "ADDED",
                body: EventBody::Object(Arc::clone(stored)),
            })
            .collect();
        if options.initial_events == Some(true) && options.bookmarks {
            events.push(Event {
                kind: "BOOKMARK",
                body: EventBody::Bookmark(watching.at, true),
            });
        }
        Ok((watching, events))
    }

    fn namespace(&self) -> Option<&str> {
        (!self.namespace.is_empty()).then_some(self.namespace.as_str())
    }

    /// Returns the resource version up to which all events have been sent.
    pub fn revision(&self) -> u64 {
        self.at
    }

    /// Returns the next events, and whether they are all there are for now. No events follow an error.
    pub fn next(&mut self, state: &State) -> (Vec<Event>, bool) {
        let changes = match state.store.changes(&self.resource.table, self.at, BATCH) {
            Ok(changes) => changes,
            Err(compacted) => {
                let gone = Status::expired(format!(
                    "too old resource version: {} ({})",
                    self.at, compacted.oldest
                ));
                return (vec![error(gone)], true);
            }
        };
        let more = changes.len() == BATCH;
        let mut events = Vec::new();
        for change in &changes {
            self.at = change.revision;
            if self
                .namespace()
                .is_some_and(|namespace| *change.object.head.namespace != *namespace)
            {
                continue;
            }
            let kind = match change.kind_for(|stored| self.matches(stored)) {
                None => continue,
                Some(ChangeKind::Added) => "ADDED",
                Some(ChangeKind::Modified) => "MODIFIED",
                Some(ChangeKind::Deleted) => "DELETED",
            };
            let object = match &change.previous {
                // An object that the selector no longer matches is shown in its last matching version.
                Some(previous) if kind == "DELETED" && !change.removed => {
                    Arc::new(previous.at_revision(change.revision))
                }
                _ => Arc::clone(&change.object),
            };
            events.push(Event {
                kind,
                body: EventBody::Object(object),
            });
        }
        if !more {
            self.at = self.at.max(state.store.revision());
        }
        (events, !more)
    }

    fn matches(&self, stored: &Stored) -> bool {
        self.selection.matches(&self.resource, &self.version, stored)
    }

    /// Returns whether the watched resource is still served, and by the same definition.
    ///
    /// As in Kubernetes, each change of a definition ends the watches of its objects, so that no watch shows objects
    /// by an outdated schema. A change of the metadata of the definition is none.
    pub fn service(&self, state: &State) -> Service {
        let (Some(definition), Form::Custom(version)) = (&self.resource.custom, &self.version.form) else {
            return Service::Same;
        };
        let now = state
            .registry
            .get(&self.resource.group, &self.resource.plural)
            .filter(|now| now.custom.as_ref().is_some_and(|now| now.uid == definition.uid));
        let Some(now) = now else {
            return Service::Gone;
        };
        let same = now
            .version(&self.version.name)
            .is_some_and(|now| match &now.form {
                Form::Custom(now) => now.get().number() == version.get().number(),
                Form::Builtin(_) => false,
            });
        if same { Service::Same } else { Service::Changed }
    }
}

/// Returns the event that ends a watch with an error.
pub fn error(status: Status) -> Event {
    Event {
        kind: "ERROR",
        body: EventBody::Error(Box::new(status)),
    }
}

fn check_options(options: &WatchOptions) -> Result<(), Status> {
    let refuse = |why: &str| {
        let cause = Cause::forbidden("resourceVersionMatch", why);
        Err(Status::invalid("meta.k8s.io", "ListOptions", "", vec![cause]))
    };
    match options.initial_events {
        Some(_) if !options.not_older_than => {
            refuse("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
        }
        None if options.not_older_than => {
            refuse("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided")
        }
        _ => Ok(()),
    }
}
