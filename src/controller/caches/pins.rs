//! The artifacts that were pinned last, and those that stored releases need.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use starling_core::revision::Revision;

use crate::controller::keyed::{Keyed, PerObject};
use crate::controller::object_key::ObjectKey;

/// Number of passes of the housekeeping after which pins are swept without a new one: releases are stored after the
/// pins of their artifacts.
const SWEEP_AFTER: u32 = 10;

/// The known pins of each Source, and whether unneeded pins were deleted since the last pin.
#[derive(Debug, Default)]
pub struct KnownPins {
    /// Revisions that may not be in a status yet.
    newest: Keyed<Revision>,
    /// Revisions of stored releases, as of the last sweep.
    needed: Keyed<BTreeSet<Revision>>,
    searches: Keyed<LastSearch>,
    swept: AtomicBool,
    passes: AtomicU32,
}

/// A search for revisions that a Source needs and has not stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Search {
    /// The latest revision at the time of the search.
    pub latest: Revision,
    /// The revisions.
    pub absent: BTreeSet<Revision>,
}

/// The last search of a Source.
#[derive(Clone, Debug)]
struct LastSearch {
    search: Search,
    /// Whether everything that the origin offered was fetched.
    is_complete: bool,
}

impl KnownPins {
    /// Records that a revision is about to be reported, and that its artifact is about to be pinned.
    pub fn record(&self, source: &ObjectKey, revision: Revision) {
        self.newest.set(source, revision);
        self.swept.store(false, Ordering::SeqCst);
    }

    /// Returns whether the pins have to be swept in this pass of the housekeeping.
    pub(in crate::controller) fn begin_sweep(&self) -> bool {
        let passes = self.passes.fetch_add(1, Ordering::SeqCst) + 1;
        let is_due = !self.swept.swap(true, Ordering::SeqCst) || passes >= SWEEP_AFTER;
        if is_due {
            self.passes.store(0, Ordering::SeqCst);
        }
        is_due
    }

    /// Requests another sweep after a sweep that failed.
    pub(in crate::controller) fn retry_sweep(&self) {
        self.swept.store(false, Ordering::SeqCst);
    }

    /// Returns the revisions that were pinned last.
    pub(in crate::controller) fn newest(&self) -> Vec<Revision> {
        self.newest.lock().values().cloned().collect()
    }

    /// Sets the revisions of a Source that stored releases need. A search that failed is repeated.
    pub(in crate::controller) fn set_needed(&self, source: &ObjectKey, revisions: BTreeSet<Revision>) {
        self.needed.set(source, revisions);
        self.searches
            .lock()
            .retain(|of, last| of != source || last.is_complete);
    }

    /// Returns the revisions of a Source that stored releases need; `None` before the first sweep.
    pub(in crate::controller) fn needed(&self, source: &ObjectKey) -> Option<BTreeSet<Revision>> {
        self.needed.get(source)
    }

    /// Records a search, and whether everything that the origin offered was fetched.
    pub(in crate::controller) fn record_search(&self, source: &ObjectKey, search: Search, is_complete: bool) {
        self.searches.set(source, LastSearch { search, is_complete });
    }

    /// Returns whether this search was complete, if it was the last one of the Source: it is not repeated, because a
    /// repository may be large.
    pub(in crate::controller) fn searched(&self, source: &ObjectKey, search: &Search) -> Option<bool> {
        let last = self.searches.get(source)?;
        (last.search == *search).then_some(last.is_complete)
    }
}

impl PerObject for KnownPins {
    fn forget(&self, key: &ObjectKey) {
        for cache in self.all() {
            cache.forget(key);
        }
    }

    fn retain(&self, keep: &dyn Fn(&ObjectKey) -> bool) {
        for cache in self.all() {
            cache.retain(keep);
        }
    }

    #[cfg(test)]
    fn keys(&self) -> BTreeSet<ObjectKey> {
        self.all().into_iter().flat_map(PerObject::keys).collect()
    }
}

impl KnownPins {
    fn all(&self) -> [&dyn PerObject; 3] {
        let Self {
            newest,
            needed,
            searches,
            swept: _,
            passes: _,
        } = self;
        [newest, needed, searches]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_is_repeated_after_a_change_and_after_a_failure_with_the_next_sweep() {
        let (pins, source) = (KnownPins::default(), ObjectKey::new("shop", "app"));
        let revision = |n: u8| -> Revision { format!("main@sha1:{n:040}").parse().unwrap() };
        let search = |latest| Search {
            latest: revision(latest),
            absent: [revision(1)].into(),
        };
        assert_eq!(pins.searched(&source, &search(2)), None);
        for is_complete in [true, false] {
            pins.record_search(&source, search(2), is_complete);
            assert_eq!(pins.searched(&source, &search(2)), Some(is_complete));
            assert_eq!(pins.searched(&source, &search(3)), None);
            pins.set_needed(&source, [revision(1)].into());
            let expected = is_complete.then_some(true);
            assert_eq!(pins.searched(&source, &search(2)), expected);
        }
    }

    #[test]
    fn pins_are_swept_after_a_start_after_a_pin_and_from_time_to_time() {
        let pins = KnownPins::default();
        assert!(pins.begin_sweep());
        assert!(!pins.begin_sweep());
        let revision = format!("main@sha1:{}", "1".repeat(40)).parse().unwrap();
        pins.record(&ObjectKey::new("shop", "app"), revision);
        assert!(pins.begin_sweep());
        let passes = (1..).find(|_| pins.begin_sweep());
        assert_eq!(passes, Some(SWEEP_AFTER));
    }
}
