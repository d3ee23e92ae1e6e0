//! The artifacts that were pinned last; status may not name them yet.

use std::sync::atomic::{AtomicBool, Ordering};

use starling_core::revision::Revision;

use super::cache::ObjectKey;
use crate::controller::keyed::{Keyed, per_object};

/// The artifact that was pinned last for each Source, and whether unneeded pins were deleted since then.
#[derive(Debug, Default)]
pub struct Pins {
    /// Revisions that may not be in a status yet.
    newest: Keyed<Revision>,
    swept: AtomicBool,
}

per_object!(Pins, newest);

impl Pins {
    /// Records that a revision is about to be reported, and that its artifact is about to be pinned.
    pub fn record(&self, source: &ObjectKey, revision: Revision) {
        self.newest.set(source, revision);
        self.swept.store(false, Ordering::SeqCst);
    }

    /// Returns whether the pins have to be swept now. Until the next pin, further calls return false.
    pub(in crate::controller) fn begin_sweep(&self) -> bool {
        !self.swept.swap(true, Ordering::SeqCst)
    }

    /// Requests another sweep after a sweep that failed.
    pub(in crate::controller) fn retry_sweep(&self) {
        self.swept.store(false, Ordering::SeqCst);
    }

    /// Returns the revisions that were pinned last.
    pub(in crate::controller) fn newest(&self) -> Vec<Revision> {
        self.newest.lock().values().cloned().collect()
    }
}
