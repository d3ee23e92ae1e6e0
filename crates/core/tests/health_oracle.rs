//! Compares the health of objects with the results of kstatus, which `tests/oracle` recorded.

#![expect(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its own functions too"
)]

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use starling_core::health::{self, Status};
use starling_core::object::ObjectId;

#[derive(Deserialize)]
struct Corpus {
    library: String,
    written: Vec<Case>,
    random: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    #[serde(rename = "o")]
    object: Value,
    #[serde(rename = "s")]
    status: String,
    /// Empty if the library has no result.
    #[serde(rename = "m", default)]
    message: String,
}

fn corpus() -> Corpus {
    serde_json::from_str(include_str!("data/health.json")).unwrap()
}

/// Returns a time that is far from all times in the corpus.
fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn key(object: &Value) -> ObjectId {
    let text = |name: &str| object[name].as_str().unwrap_or_default().to_owned();
    let version = text("apiVersion");
    let group = version.split_once('/').map_or("", |(group, _)| group);
    ObjectId {
        group: group.to_owned(),
        kind: text("kind"),
        namespace: String::new(),
        name: String::new(),
    }
}

fn differences(cases: &[Case]) -> Vec<String> {
    let difference = |case: &Case| {
        let health = health::of(&key(&case.object), &case.object, now());
        let same = health.status.as_str() == case.status
            && (health.status == Status::Unknown || health.message == case.message);
        (!same).then(|| {
            format!(
                "{}: wanted {} ({}), got {health:?}",
                case.object, case.status, case.message
            )
        })
    };
    cases.iter().filter_map(difference).collect()
}

fn report(cases: &[Case]) {
    let differences = differences(cases);
    let shown = differences
        .iter()
        .take(20)
        .cloned()
        .collect::<Vec<_>>()
        .join("\n");
    assert!(
        differences.is_empty(),
        "{} of {} differ from the Go library:\n{shown}",
        differences.len(),
        cases.len()
    );
}

/// Returns counts by status: a one-sided corpus would show nothing.
fn counts(cases: &[Case]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for case in cases {
        *counts.entry(case.status.as_str()).or_default() += 1;
    }
    counts
}

#[test]
fn written_objects_have_the_health_of_kstatus() {
    let Corpus { library, written, .. } = corpus();
    assert!(library.starts_with("sigs.k8s.io/cli-utils v0.37."), "{library}");
    let counts = counts(&written);
    for (status, least) in [
        ("Current", 40),
        ("InProgress", 50),
        ("Failed", 10),
        ("Terminating", 3),
        ("Unknown", 10),
    ] {
        assert!(counts[status] >= least, "too few are {status}: {counts:?}");
    }
    report(&written);
}

#[test]
fn damaged_objects_have_the_health_of_kstatus() {
    let Corpus { random, .. } = corpus();
    let counts = counts(&random);
    for (status, least) in [
        ("Current", 400),
        ("InProgress", 400),
        ("Failed", 60),
        ("Terminating", 50),
        ("Unknown", 300),
    ] {
        assert!(counts[status] >= least, "too few are {status}: {counts:?}");
    }
    report(&random);
}

/// kstatus gives the scheduler 15 seconds; the library itself cannot be tested for that without waiting.
#[test]
fn a_pod_that_cannot_be_scheduled_fails_after_fifteen_seconds() {
    let pod = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"},
        ]},
    });
    for (second, status) in [
        (0, Status::InProgress),
        (14, Status::InProgress),
        (15, Status::Failed),
    ] {
        let at = now()
            .checked_add(jiff::SignedDuration::from_secs(second))
            .unwrap();
        assert_eq!(
            health::of(&key(&pod), &pod, at).status,
            status,
            "after {second} s"
        );
    }
}
