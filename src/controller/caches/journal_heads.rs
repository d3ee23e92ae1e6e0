//! The newest entry of the journal of each group.

use starling_core::journal::Recorder;

use super::cache::ObjectKey;
use crate::controller::keyed::{Keyed, per_object};

/// The newest entry of each group's journal. At most one worker reconciles a group at a time, so each entry has one
/// user.
#[derive(Debug, Default)]
pub struct JournalHeads(Keyed<Head>);

per_object!(JournalHeads, 0);

/// The newest entry of a journal.
#[derive(Debug)]
struct Head {
    /// Identity of the group: another group with the same name has another journal.
    id: String,
    recorder: Recorder,
}

impl JournalHeads {
    /// Takes the recorder of a group. Returns `None` if the ledger has to be read: this process has not written to the
    /// journal, a write failed, or the recorder is of another group with this name.
    #[must_use]
    pub fn take(&self, group: &ObjectKey, id: &str) -> Option<Recorder> {
        let head = self.0.take(group)?;
        (head.id == id).then_some(head.recorder)
    }

    /// Keeps the recorder for the next reconcile.
    pub fn put(&self, group: &ObjectKey, id: &str, recorder: Recorder) {
        let id = id.to_owned();
        self.0.set(group, Head { id, recorder });
    }
}
