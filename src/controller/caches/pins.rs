//! The artifacts that were pinned last: no status may name them yet.

use std::sync::atomic::{AtomicBool, Ordering};

use starling_core::revision::Revision;

use super::cache::ObjectKey;
use crate::controller::keyed::{Keyed, per_object};

/// What was pinned last for each Source, and whether unneeded pins were ended since.
#[derive(Debug, Default)]
pub struct Pins {
    /// Not yet in any status, perhaps.
    newest: Keyed<Revision>,
    swept: AtomicBool,
}

per_object!(Pins, newest);

impl Pins {
    /// A revision is about to be offered, and its artifact to be pinned.
    pub fn offer(&self, source: &ObjectKey, revision: Revision) {
        self.newest.set(source, revision);
        self.swept.store(false, Ordering::SeqCst);
    }

    /// Whether the pins have to be swept now; the next caller need not.
    pub(in crate::controller) fn begin_sweep(&self) -> bool {
        !self.swept.swap(true, Ordering::SeqCst)
    }

    /// The pins were not swept after all.
    pub(in crate::controller) fn retry_sweep(&self) {
        self.swept.store(false, Ordering::SeqCst);
    }

    /// The revisions that were offered last.
    pub(in crate::controller) fn newest(&self) -> Vec<Revision> {
        self.newest.lock().values().cloned().collect()
    }
}
