//! Differences that are meant.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A difference that is meant: texts in the step and in the difference, and why.
struct Entry {
    step: &'static str,
    difference: &'static str,
    why: &'static str,
    seen: AtomicUsize,
}

const fn entry(step: &'static str, difference: &'static str, why: &'static str) -> Entry {
    Entry {
        step,
        difference,
        why,
        seen: AtomicUsize::new(0),
    }
}

static ACCEPTED: [Entry; 0] = [];

/// Whether a difference is meant; takes down that there was one.
pub(super) fn is_meant(step: &str, difference: &str) -> bool {
    let found = ACCEPTED
        .iter()
        .find(|entry| step.contains(entry.step) && difference.contains(entry.difference));
    if let Some(entry) = found {
        entry.seen.fetch_add(1, Ordering::Relaxed);
    }
    found.is_some()
}

/// What was seen of each entry.
pub(super) fn seen() -> Vec<(usize, String)> {
    ACCEPTED
        .iter()
        .map(|entry| {
            let text = format!("{} {}: {}", entry.step, entry.difference, entry.why);
            (entry.seen.load(Ordering::Relaxed), text)
        })
        .collect()
}
