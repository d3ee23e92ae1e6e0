//! Accepted differences.

use std::sync::atomic::{AtomicUsize, Ordering};

/// An accepted difference: texts in the step and in the difference, and the reason.
struct Entry {
    step: &'static str,
    difference: &'static str,
    why: &'static str,
    matches: AtomicUsize,
}

const fn entry(step: &'static str, difference: &'static str, why: &'static str) -> Entry {
    Entry {
        step,
        difference,
        why,
        matches: AtomicUsize::new(0),
    }
}

const VALIDATION: &str = "validation of built-in kinds is a part of Kubernetes'";
const SHOWN: &str = "the message shows the object, with fields in another order";
const WARNINGS: &str = "built-in kinds do not warn of what is of no use";
const WRITTEN: &str =
    "the real server writes again what it had stored in a form that it would not give it now";
const GO: &str = "an empty map that is not nil differs from none";

static ACCEPTED: [Entry; 22] = [
    entry("/services", "spec.externalIPs[0]", VALIDATION),
    entry("/services", "spec.ipFamilyPolicy", VALIDATION),
    entry("/services", "spec.clusterIPs[0]", VALIDATION),
    entry("/services", "spec.ports[0].name", VALIDATION),
    entry("/jobs", "spec.completionMode", VALIDATION),
    entry("/jobs", "spec.parallelism", VALIDATION),
    entry("/jobs", "spec.selector", VALIDATION),
    entry("/deployments", ".resources.requests", VALIDATION),
    entry("/services", "spec.parentRef.name", VALIDATION),
    entry("/secrets", "tls: failed to find any PEM data", WARNINGS),
    entry("/statefulsets", ".activeDeadlineSeconds", VALIDATION),
    entry("/secrets", "data[.dockercfg]", VALIDATION),
    entry("PATCH-", r#"Invalid value: \"{\\\"apiVersion"#, SHOWN),
    entry("/services", r#".details: {"causes":[{"field":"spec."#, VALIDATION),
    entry(
        "/deployments",
        r#".details: {"causes":[{"field":"status."#,
        VALIDATION,
    ),
    entry("/jobs", "spec.template: Invalid value", SHOWN),
    entry("/services", "is ignored when spec.type is", WARNINGS),
    entry(
        "/gadgets",
        "failed to create manager for existing fields",
        "the real server cannot apply the scale of a custom resource",
    ),
    entry(
        "/gadgets",
        "no kind is registered for the type v1.Scale",
        "the real server says of another kind what does not fit a Scale of a custom resource",
    ),
    entry(
        "/gadgets",
        "should be a non-negative integer",
        "replicas below zero are refused as a Scale, and not as the custom resource",
    ),
    entry(
        "PATCH-STRATEGIC",
        "field is immutable when `immutable` is set",
        GO,
    ),
    entry("", REWRITTEN, WRITTEN),
];

/// The text for a response that differs only in the revision, which only the real server has increased.
const REWRITTEN: &str = "<rewritten>";

fn is_rewritten(differences: &[String]) -> bool {
    let number = |text: &str| {
        text.trim_matches(['"', '<', '>'])
            .strip_prefix("revision ")?
            .parse::<u32>()
            .ok()
    };
    let [only] = differences else { return false };
    only.strip_prefix(".metadata.resourceVersion: ")
        .and_then(|rest| rest.split_once(" and here "))
        .and_then(|(real, embedded)| Some((number(real)?, number(embedded)?)))
        .is_some_and(|(real, embedded)| real > embedded)
}

/// Whether differences of a step are accepted; counts them.
pub(super) fn is_accepted(step: &str, differences: &[String]) -> bool {
    let rewritten = is_rewritten(differences);
    let shows = |text: &str| {
        text == REWRITTEN && rewritten || differences.iter().any(|difference| difference.contains(text))
    };
    let found = ACCEPTED
        .iter()
        .find(|entry| step.contains(entry.step) && shows(entry.difference));
    if let Some(entry) = found {
        entry.matches.fetch_add(1, Ordering::Relaxed);
    }
    found.is_some()
}

/// Returns the number of matches of each entry.
pub(super) fn matches() -> Vec<(usize, String)> {
    ACCEPTED
        .iter()
        .map(|entry| {
            let text = format!("{} {}: {}", entry.step, entry.difference, entry.why);
            (entry.matches.load(Ordering::Relaxed), text)
        })
        .collect()
}
