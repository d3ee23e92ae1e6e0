//! The last writes to a table.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{History, Stored};

/// One write.
#[derive(Debug, Clone)]
pub struct Change {
    /// Its revision.
    pub revision: u64,
    /// The object after it, or its last version if it was removed.
    pub object: Arc<Stored>,
    /// The object before it; none if there was none.
    pub previous: Option<Arc<Stored>>,
    /// Whether it was removed.
    pub removed: bool,
}

/// What a write is to somebody who sees only a part of the objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// It is new, or has come into sight.
    Added,
    /// It was there before.
    Modified,
    /// It is gone, or out of sight.
    Deleted,
}

/// The log does not reach back so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compacted {
    /// The oldest revision from which on everything is known.
    pub oldest: u64,
}

#[derive(Debug, Default)]
pub(super) struct Log {
    changes: VecDeque<Change>,
    /// The revision of the last write that was forgotten.
    forgotten: u64,
    /// Bytes of versions that only the log still holds.
    bytes: usize,
}

impl Change {
    /// What it is to somebody who sees the objects that a test accepts; none if nothing.
    pub fn seen(&self, sees: impl Fn(&Stored) -> bool) -> Option<ChangeKind> {
        let before = self.previous.as_deref().is_some_and(&sees);
        let after = !self.removed && sees(&self.object);
        match (before, after) {
            (false, false) => None,
            (false, true) => Some(ChangeKind::Added),
            (true, true) => Some(ChangeKind::Modified),
            (true, false) => Some(ChangeKind::Deleted),
        }
    }

    /// What only the log holds of it.
    fn size(&self) -> usize {
        let last = if self.removed { self.object.size() } else { 0 };
        last + self.previous.as_ref().map_or(0, |previous| previous.size())
    }
}

impl Log {
    /// A log that knows nothing of the writes up to a revision.
    pub(super) fn after_revision(forgotten: u64) -> Self {
        Self {
            forgotten,
            ..Self::default()
        }
    }

    pub(super) fn push(&mut self, change: Change, history: History) {
        self.bytes += change.size();
        self.changes.push_back(change);
        while self.changes.len() > history.changes.max(1)
            || self.bytes > history.bytes && self.changes.len() > 1
        {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some(oldest) = self.changes.pop_front() {
            self.bytes -= oldest.size();
            self.forgotten = oldest.revision;
        }
    }

    pub(super) fn compact(&mut self, revision: u64) {
        while self
            .changes
            .front()
            .is_some_and(|oldest| oldest.revision <= revision)
        {
            self.forget_oldest();
        }
        self.forgotten = self.forgotten.max(revision);
    }

    /// The writes after a revision.
    pub(super) fn after(&self, revision: u64) -> Result<impl DoubleEndedIterator<Item = &Change>, Compacted> {
        if revision < self.forgotten {
            return Err(Compacted {
                oldest: self.forgotten,
            });
        }
        let from = self.changes.partition_point(|change| change.revision <= revision);
        Ok(self.changes.range(from..))
    }
}
