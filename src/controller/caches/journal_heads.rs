//! The newest entry of the journal of each group.

use starling_core::journal::Recorder;

use super::cache::ObjectKey;
use crate::controller::keyed::{Keyed, per_object};

/// What is kept for all groups. A group is worked on by one worker at a time, so each has one user.
#[derive(Debug, Default)]
pub struct JournalHeads(Keyed<Head>);

per_object!(JournalHeads, 0);

/// The newest entry, and whose journal it is of.
#[derive(Debug)]
struct Head {
    /// UID of the group: another one of its name has another journal.
    uid: String,
    recorder: Recorder,
}

impl JournalHeads {
    /// Takes what is known of a group. `None`: the ledger has to be asked, because this process has not written yet, or
    /// could not, or because it is another group of that name.
    #[must_use]
    pub fn take(&self, group: &ObjectKey, uid: &str) -> Option<Recorder> {
        let head = self.0.take(group)?;
        (head.uid == uid).then_some(head.recorder)
    }

    /// Keeps it for the next reconcile.
    pub fn put(&self, group: &ObjectKey, uid: &str, recorder: Recorder) {
        let uid = uid.to_owned();
        self.0.set(group, Head { uid, recorder });
    }
}
