//! What was written last into the journal of each group.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use starling_core::journal::Recorder;

use super::cache::ObjectKey;

/// What is kept for all groups. A group is worked on by one worker at a time, so each has one user.
#[derive(Debug, Default)]
pub struct Journals(Mutex<HashMap<ObjectKey, (String, Recorder)>>);

impl Journals {
    /// Takes what is known of a group. `None`: the ledger has to be asked, because this process has not written yet, or could
    /// not, or because it is another group of that name.
    #[must_use]
    pub fn take(&self, group: &ObjectKey, uid: &str) -> Option<Recorder> {
        let (of, recorder) = self.lock().remove(group)?;
        (of == uid).then_some(recorder)
    }

    /// Keeps it for the next look.
    pub fn put(&self, group: &ObjectKey, uid: &str, recorder: Recorder) {
        self.lock().insert(group.clone(), (uid.to_owned(), recorder));
    }

    /// Forgets a group.
    pub fn forget(&self, group: &ObjectKey) {
        self.lock().remove(group);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ObjectKey, (String, Recorder)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
