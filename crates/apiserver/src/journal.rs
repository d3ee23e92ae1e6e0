//! Every write of a cluster, in order: for tests, and for checks that trust nobody's word.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;

use crate::store::Stored;

/// What a write did to its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// The object is new, by a create, a replacement or an apply.
    Create,
    /// It was replaced.
    Update,
    /// It was changed by a patch.
    Patch,
    /// It was changed by a server-side apply.
    Apply,
    /// Its deletion began: it waits for finalizers or for its grace period.
    DeleteBegins,
    /// It is gone.
    Delete,
}

/// A write that was committed. What was refused, changed nothing or was a dry run is none.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its number among the writes of all clusters of the server.
    pub number: u64,
    /// When.
    pub time: Timestamp,
    /// What it did.
    pub verb: Verb,
    /// API group, empty for the core.
    pub group: Box<str>,
    /// Plural of the resource.
    pub resource: Box<str>,
    /// Kind of the object.
    pub kind: Box<str>,
    /// The subresource that was written to; empty for the object itself.
    pub subresource: Box<str>,
    /// Who wrote it.
    pub user: Box<str>,
    /// The field manager of the write, as given or made of the user agent.
    pub manager: Box<str>,
    /// The object after the write, or its last version.
    pub object: Arc<Stored>,
}

impl Entry {
    /// The revision of the write.
    pub fn revision(&self) -> u64 {
        self.object.revision
    }

    /// `namespace/name`, or the name.
    pub fn key(&self) -> Box<str> {
        self.object.head.key()
    }
}

/// How many writes a journal keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Keep {
    /// None; they are counted all the same.
    #[default]
    Nothing,
    /// The last ones.
    Last(usize),
    /// All.
    Everything,
}

/// The writes of one cluster.
#[derive(Debug, Clone)]
pub struct Journal {
    entries: VecDeque<Entry>,
    keep: Keep,
    written: u64,
    /// Numbers the writes of all clusters.
    numbers: Arc<AtomicU64>,
}

impl Journal {
    /// Returns an empty journal; clusters of one server share the numbers.
    pub fn new(keep: Keep, numbers: Arc<AtomicU64>) -> Self {
        Self {
            entries: VecDeque::new(),
            keep,
            written: 0,
            numbers,
        }
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

    /// The writes that are kept, the oldest first.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// How many writes there have been, kept or not.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Forgets the entries; the count stays.
    pub fn clear(&mut self) {
        self.entries.clear();
    }
}
