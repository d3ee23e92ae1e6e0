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

const VALIDATION: &str = "validation of built-in kinds is a part of Kubernetes'";
const SHOWN: &str = "the message shows the object, with fields in another order";
const WARNINGS: &str = "built-in kinds do not warn of what is of no use";

static ACCEPTED: [Entry; 5] = [
    entry("/services", "spec.externalIPs[0]", VALIDATION),
    entry("/services", "spec.ipFamilyPolicy", VALIDATION),
    entry("/jobs", "spec.completionMode", VALIDATION),
    entry("PATCH-", r#"patch: Invalid value: \"{\\"apiVersion"#, SHOWN),
    entry("/services", r#"is ignored when spec.type is not"#, WARNINGS),
];

/// Whether differences of a step are meant; takes down that there were some.
pub(super) fn is_meant(step: &str, differences: &[String]) -> bool {
    let shows = |text: &str| differences.iter().any(|difference| difference.contains(text));
    let found = ACCEPTED
        .iter()
        .find(|entry| step.contains(entry.step) && shows(entry.difference));
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
