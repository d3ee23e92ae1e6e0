//! The journal: every write of a cluster in order, for tests and for checkers that verify a history independently.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;

use crate::store::Stored;

/// How a write changed its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// The object is new, by a create, an update or an apply.
    Create,
    /// An update replaced the object.
    Update,
    /// A patch changed the object.
    Patch,
    /// A server-side apply changed the object.
    Apply,
    /// The deletion started; it waits for finalizers or for the grace period.
    DeleteBegins,
    /// The object was removed.
    Delete,
}

/// A committed write. Requests that failed, changed nothing or were dry runs have no entry.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The number of the write among those of all clusters of the server.
    pub number: u64,
    /// The time of the write.
    pub time: Timestamp,
    /// How the write changed the object.
    pub verb: Verb,
    /// The API group, empty for the core.
    pub group: Box<str>,
    /// The plural name of the resource.
    pub resource: Box<str>,
    /// The kind of the object.
    pub kind: Box<str>,
    /// The subresource that was written to; empty for the object itself.
    pub subresource: Box<str>,
    /// The user who sent the request.
    pub user: Box<str>,
    /// The field manager: the given name, or one derived from the user agent.
    pub manager: Box<str>,
    /// The object after the write, or its last version.
    pub object: Arc<Stored>,
}

impl Entry {
    /// Returns the revision of the write.
    pub fn revision(&self) -> u64 {
        self.object.revision
    }

    /// Returns `namespace/name`, or the name.
    pub fn key(&self) -> Box<str> {
        self.object.head.key()
    }
}

/// How many writes a journal keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Keep {
    /// No writes; the journal only counts them.
    #[default]
    Nothing,
    /// The last writes.
    Last(usize),
    /// All writes.
    Everything,
}

/// The writes of one cluster.
#[derive(Debug, Clone)]
pub struct Journal {
    entries: VecDeque<Entry>,
    keep: Keep,
    written: u64,
    /// The counter of the writes of all clusters.
    numbers: Arc<AtomicU64>,
}

impl Journal {
    /// Returns an empty journal; the clusters of one server share the counter.
    pub fn new(keep: Keep, numbers: Arc<AtomicU64>) -> Self {
        Self {
            entries: VecDeque::new(),
            keep,
            written: 0,
            numbers,
        }
    }

    /// Moves the journal out; what remains is an empty one.
    pub(crate) fn take(&mut self) -> Self {
        let empty = Self::new(self.keep, Arc::clone(&self.numbers));
        std::mem::replace(self, empty)
    }

    pub(crate) fn push(&mut self, entry: impl FnOnce(u64) -> Entry) {
        self.written += 1;
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let limit = match self.keep {
            Keep::Nothing => return,
            Keep::Last(limit) => limit,
            Keep::Everything => usize::MAX,
        };
        self.entries.push_back(entry(number));
        while self.entries.len() > limit {
            self.entries.pop_front();
        }
    }

    /// Returns the writes that the journal keeps, the oldest first.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// Returns the number of writes so far, kept or not.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Removes the entries; the count stays.
    pub fn clear(&mut self) {
        self.entries.clear();
    }
}
