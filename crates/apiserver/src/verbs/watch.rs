//! Watch: where in the log somebody is, and what comes next for them.

use std::sync::Arc;

use super::{Selection, Target, check_reached};
use crate::state::State;
use crate::status::{Cause, Status};
use crate::store::{ChangeKind, Range, Stored};

/// How many changes are taken from the log at a time.
const BATCH: usize = 256;

/// What a client says about a watch.
#[derive(Debug, Clone, Default)]
pub struct WatchOptions {
    /// Which objects.
    pub selection: Selection,
    /// The revision after which it begins; none for now, after all that there is.
    pub revision: Option<u64>,
    /// Whether it begins with all that there is, and a bookmark at the end of that.
    pub initial_events: Option<bool>,
    /// Whether the revision is the least that is wanted.
    pub not_older_than: bool,
    /// Whether it wants bookmarks.
    pub bookmarks: bool,
}

/// Something that a watch tells.
#[derive(Debug, Clone)]
pub struct Event {
    /// Its type on the wire.
    pub kind: &'static str,
    /// What it is about.
    pub body: EventBody,
}

/// What an event is about.
#[derive(Debug, Clone)]
pub enum EventBody {
    /// An object.
    Object(Arc<Stored>),
    /// A revision, and whether it is the end of what there was at the beginning.
    Bookmark(u64, bool),
    /// The end.
    Error(Box<Status>),
}

/// A watch under way.
#[derive(Debug, Clone)]
pub struct Watching {
    /// Everything up to this revision has been told.
    at: u64,
    namespace: String,
    selection: Selection,
    resource: Arc<crate::kinds::Resource>,
}

impl Watching {
    /// Begins a watch: what it tells at once, and where it goes on.
    ///
    /// # Errors
    /// The answer of the API server.
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
            .filter(|stored| watching.selection.matches(stored))
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

    /// Everything up to this revision has been told.
    pub fn revision(&self) -> u64 {
        self.at
    }

    /// What has come since, and whether that is all. After an error nothing comes any more.
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
            let kind = match change.seen(|stored| self.selection.matches(stored)) {
                None => continue,
                Some(ChangeKind::Added) => "ADDED",
                Some(ChangeKind::Modified) => "MODIFIED",
                Some(ChangeKind::Deleted) => "DELETED",
            };
            let object = match &change.previous {
                // What goes out of sight is shown as it was last seen.
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

    /// Whether the resource is still the one that is watched.
    pub fn is_served(&self, state: &State) -> bool {
        let Some(definition) = &self.resource.custom else {
            return true;
        };
        state
            .registry
            .get(&self.resource.group, &self.resource.plural)
            .and_then(|resource| resource.custom.clone())
            .is_some_and(|now| now.uid == definition.uid)
    }
}

/// The event that ends a watch.
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
