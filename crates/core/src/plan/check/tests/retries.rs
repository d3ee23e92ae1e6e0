//! Failed clusters, requests to retry them, and one free slot.

use jiff::SignedDuration;

use super::*;

fn failing() -> ClusterView {
    let progress = Progress::Failing {
        reason: "ApplyFailed".into(),
        message: "m".into(),
        retry_at: None,
    };
    cluster(sync(NEW, progress))
}

fn failed() -> Decision {
    Decision::Failed {
        reason: FailureReason::AttemptFailed {
            reason: "ApplyFailed".into(),
            message: "m".into(),
        },
        retry_at: None,
    }
}

fn retry(entries: &[&str], at: i64) -> Decision {
    Decision::Retry {
        entries: entries.iter().map(|entry| (*entry).into()).collect(),
        requested_at: t(at),
    }
}

fn request(input: &mut PlanInput) -> &mut Retry {
    &mut input.operator.retries[0]
}

/// `busy` has one of two slots; `one` and `two` failed, and an operator requested a retry of everything ten seconds
/// ago.
fn good() -> (PlanInput, Plan) {
    let clusters = [
        ("busy", cluster(sync(NEW, Progress::Working))),
        ("one", failing()),
        ("two", failing()),
    ];
    let clusters = clusters.map(|(name, view)| (name.into(), view)).into();
    let mut input = rollout(vec![stage(REST, &[], &[])], clusters);
    input.strategy.limits.max_concurrency = IntOrPercent::Int(2);
    input.operator.retries.push(Retry {
        cluster: None,
        stage: None,
        attribution: Attribution {
            at: t(50),
            ..attribution()
        },
    });
    input.rollout.stages.insert(REST.into(), opened());
    let tally = Tally {
        total: 3,
        done: 0,
        slots: Some(2),
        in_flight: 1,
        failed: 2,
        failures_allowed: 2,
        unavailable: 3,
        unavailable_allowed: 3,
    };
    let busy = Decision::InFlight {
        deadline: Some(t(900)),
        lost: false,
    };
    let decisions = [("busy", busy), ("one", retry(&["app"], 50)), ("two", failed())];
    let decisions = decisions.map(|(name, decision)| (name.into(), decision));
    let plan = plan_of(decisions.into(), tally, 900);
    (input, plan)
}

#[test]
fn good_retries_pass() {
    accepted(
        good,
        &[
            ("as it is", |_, _| {}),
            ("the other one", |_, p| {
                decide(p, "one", failed());
                decide(p, "two", retry(&["app"], 50));
            }),
            ("requested of its stage", |i, _| {
                request(i).stage = Some(REST.into());
            }),
            ("requested of one cluster", |i, _| {
                request(i).cluster = Some("one".into());
            }),
            ("admitted within the second of the request", |i, _| {
                observed(i, "one").admitted_at = Some(t(50) + SignedDuration::from_millis(999));
            }),
            ("no recorded admission time", |i, _| {
                observed(i, "one").admitted_at = None;
            }),
            ("the newest of several requests", |i, p| {
                let mut newer = i.operator.retries[0].clone();
                newer.attribution.at = t(55);
                i.operator.retries.insert(0, newer);
                decide(p, "one", retry(&["app"], 55));
            }),
            ("both served, and failed again", |i, p| {
                for name in ["one", "two"] {
                    observed(i, name).retried_for = Some(t(50));
                }
                decide(p, "one", failed());
            }),
            ("no slot is free", |i, p| {
                i.strategy.limits.max_concurrency = IntOrPercent::Int(1);
                p.tally.slots = Some(1);
                decide(p, "one", failed());
            }),
            ("nothing may start", |i, p| {
                i.suspended = true;
                decide(p, "one", failed());
            }),
        ],
    );
}

#[test]
fn what_has_not_failed_is_not_retried() {
    refused(
        good,
        &[
            (
                "in flight",
                |_, p| decide(p, "busy", retry(&["app"], 50)),
                "RetriesNothingFailed",
            ),
            (
                "done",
                |i, _| observed(i, "one").progress = Progress::healthy_since(t(-100)),
                "RetriesNothingFailed",
            ),
            (
                "not at its target",
                |i, _| observed(i, "one").target = Some(OLD.into()),
                "RetriesNothingFailed",
            ),
        ],
    );
}

#[test]
fn nothing_is_retried_while_nothing_may_start() {
    refused(
        good,
        &[
            ("suspended", |i, _| i.suspended = true, "RetriesWhileStopped"),
            (
                "paused",
                |i, _| i.operator.paused = Some(attribution()),
                "RetriesWhileStopped",
            ),
            (
                "aborted",
                |i, _| i.operator.aborted = Some(attribution()),
                "RetriesWhileStopped",
            ),
            (
                "too many clusters left",
                |i, _| i.membership_held = true,
                "RetriesWhileStopped",
            ),
        ],
    );
}

#[test]
fn the_newest_request_for_a_cluster_is_served_once() {
    refused(
        good,
        &[
            (
                "nobody requested it",
                |i, _| i.operator.retries.clear(),
                "RetryNotRequested",
            ),
            (
                "another time",
                |_, p| decide(p, "one", retry(&["app"], 49)),
                "RetryNotRequested",
            ),
            (
                "an older request",
                |i, _| {
                    let mut newer = i.operator.retries[0].clone();
                    newer.attribution.at = t(55);
                    i.operator.retries.push(newer);
                },
                "RetryNotRequested",
            ),
            (
                "another entry",
                |_, p| decide(p, "one", retry(&["db"], 50)),
                "RetryNotRequested",
            ),
            (
                "no entry",
                |_, p| decide(p, "one", retry(&[], 50)),
                "RetryNotRequested",
            ),
            (
                "an entry twice",
                |_, p| decide(p, "one", retry(&["app", "app"], 50)),
                "RetryNotRequested",
            ),
            (
                "served already",
                |i, _| observed(i, "one").retried_for = Some(t(50)),
                "RetryNotRequested",
            ),
            (
                "admitted since",
                |i, _| observed(i, "one").admitted_at = Some(t(51)),
                "RetryNotRequested",
            ),
            (
                "of another cluster",
                |i, _| request(i).cluster = Some("two".into()),
                "RetryNotRequested",
            ),
            (
                "of another stage",
                |i, _| request(i).stage = Some("canary".into()),
                "RetryNotRequested",
            ),
        ],
    );
}

#[test]
fn a_retry_takes_a_slot_and_none_is_left_idle() {
    refused(
        good,
        &[
            ("forgotten", |_, p| decide(p, "one", failed()), "RetryForgotten"),
            (
                "more than there are slots",
                |_, p| decide(p, "two", retry(&["app"], 50)),
                "TooManyInFlight",
            ),
        ],
    );
}
