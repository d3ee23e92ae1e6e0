//! The log of the last writes to a table.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{History, Stored};

/// A write.
#[derive(Debug, Clone)]
pub struct Change {
    /// The revision of the write.
    pub revision: u64,
    /// The object after the write, or its last version if the write removed it.
    pub object: Arc<Stored>,
    /// The object before the write; `None` if it did not exist.
    pub previous: Option<Arc<Stored>>,
    /// Whether the write removed the object.
    pub removed: bool,
}

/// How a watch with a selector sees a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// The object is new, or the selector matches it now.
    Added,
    /// The object changed.
    Modified,
    /// The object was removed, or the selector no longer matches it.
    Deleted,
}

/// The log no longer holds the writes after a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compacted {
    /// The oldest revision that the log reaches back to.
    pub oldest: u64,
}

#[derive(Debug, Default)]
pub(super) struct Log {
    changes: VecDeque<Change>,
    /// The revision of the last write that was removed from the log.
    compacted: u64,
    /// The size of the versions that only the log holds.
    bytes: usize,
}

impl Change {
    /// Returns how a watch sees the write, given its selector; `None` if the watch does not see it.
    pub fn kind_for(&self, sees: impl Fn(&Stored) -> bool) -> Option<ChangeKind> {
        let before = self.previous.as_deref().is_some_and(&sees);
        let after = !self.removed && sees(&self.object);
        match (before, after) {
            (false, false) => None,
            (false, true) => Some(ChangeKind::Added),
            (true, true) => Some(ChangeKind::Modified),
            (true, false) => Some(ChangeKind::Deleted),
        }
    }

    /// Returns the size of the versions that only the log holds.
    fn size(&self) -> usize {
        let last = if self.removed { self.object.size() } else { 0 };
        last + self.previous.as_ref().map_or(0, |previous| previous.size())
    }
}

impl Log {
    /// Returns an empty log that begins after a revision.
    pub(super) fn after_revision(compacted: u64) -> Self {
        Self {
            compacted,
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
            self.compacted = oldest.revision;
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
        self.compacted = self.compacted.max(revision);
    }

    /// Returns the writes after a revision.
    pub(super) fn after(&self, revision: u64) -> Result<impl DoubleEndedIterator<Item = &Change>, Compacted> {
        if revision < self.compacted {
            return Err(Compacted {
                oldest: self.compacted,
            });
        }
        let from = self.changes.partition_point(|change| change.revision <= revision);
        Ok(self.changes.range(from..))
    }
}
