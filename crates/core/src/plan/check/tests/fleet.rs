//! One stage, and every kind of cluster.

use super::*;

fn problem() -> HealthProblem {
    HealthProblem {
        reason: "HealthCheckFailed".into(),
        message: "0/1".into(),
    }
}

fn broken(longest: u64) -> Progress {
    Progress::Applied(Applied {
        since: None,
        longest: Duration::from_secs(longest),
        problem: Some(problem()),
    })
}

fn failing() -> Progress {
    Progress::Failing {
        reason: "ApplyFailed".into(),
        message: "m".into(),
        retry_at: Some(t(90)),
    }
}

fn failed(reason: &str, message: &str, retry: Option<i64>) -> Decision {
    Decision::Failed {
        reason: FailureReason::AttemptFailed {
            reason: reason.into(),
            message: message.into(),
        },
        retry_at: retry.map(t),
    }
}

fn overdue() -> Decision {
    Decision::Failed {
        reason: FailureReason::ProgressDeadlineExceeded,
        retry_at: None,
    }
}

fn in_flight(deadline: i64, lost: bool) -> Decision {
    let deadline = Some(t(deadline));
    Decision::InFlight { deadline, lost }
}

fn soaking(until: i64) -> Decision {
    Decision::Soaking { until: t(until) }
}

/// Every kind of cluster at once, with four slots for the three clusters in flight, and two failures (limit 2); `idle`
/// starts.
fn good() -> (PlanInput, Plan) {
    let away = || HoldReason::ClusterUnreachable {
        reason: "Unreachable".into(),
        message: "no answer".into(),
        since: t(0),
    };
    let new = |progress: Progress| cluster(sync(NEW, progress));
    let fleet = [
        ("away", idle(), hold(away())),
        ("broken", new(broken(200)), Decision::Done),
        ("done", new(Progress::healthy_since(t(-40))), Decision::Done),
        ("failing", new(failing()), failed("ApplyFailed", "m", Some(90))),
        ("idle", idle(), start(&["app", "crds"])),
        (
            "invalid",
            idle(),
            hold(HoldReason::InvalidParameters {
                entry: "app".into(),
                message: "no label".into(),
            }),
        ),
        ("lost", new(Progress::Working), in_flight(900, true)),
        ("next", idle(), hold(HoldReason::NoSlot)),
        ("skipped", idle(), hold(HoldReason::Skipped(attribution()))),
        ("soaking", new(Progress::healthy_since(t(0))), soaking(100)),
        (
            "suspended",
            idle(),
            hold(HoldReason::SyncSuspended { entry: "app".into() }),
        ),
        (
            "unsound",
            new(broken(99)),
            failed("HealthCheckFailed", "0/1", None),
        ),
        ("working", new(Progress::Working), in_flight(900, false)),
    ];
    let (mut clusters, mut decisions) = (BTreeMap::new(), BTreeMap::new());
    for (name, view, decision) in fleet {
        clusters.insert(name.into(), view);
        decisions.insert(name.into(), decision);
    }
    let mut input = rollout(vec![stage(REST, &[], &[])], clusters);
    for name in ["lost", "away"] {
        view(&mut input, name).reach = unreachable();
    }
    let second = view(&mut input, "idle").entries["app"].clone();
    view(&mut input, "idle").entries.insert("crds".into(), second);
    view(&mut input, "invalid").entries.get_mut("app").unwrap().wanted =
        Err(UnresolvedTarget::parameter("no label"));
    observed(&mut input, "suspended").suspended = true;
    input.operator.skipped.insert("skipped".into(), attribution());
    input.rollout.stages.insert(REST.into(), opened());
    let tally = Tally {
        total: 13,
        done: 2,
        slots: Some(4),
        in_flight: 3,
        failed: 2,
        failures_allowed: 2,
        unavailable: 5,
        unavailable_allowed: 13,
    };
    let plan = plan_of(decisions, tally, 100);
    (input, plan)
}

#[test]
fn good_plans_pass() {
    accepted(
        good,
        &[
            ("as it is", |_, _| {}),
            ("next plan sooner", |_, plan| plan.recheck_at = Some(t(61))),
            ("no soak: applied is done", |input, plan| {
                input.strategy.limits.min_success_time = Duration::ZERO;
                for name in ["soaking", "unsound"] {
                    decide(plan, name, Decision::Done);
                }
                // The slot of the one that soaked is free.
                decide(plan, "next", start(&["app"]));
                plan.recheck_at = Some(t(900));
                for tally in [&mut plan.tally, &mut plan.stages[0].tally] {
                    (tally.done, tally.in_flight, tally.failed, tally.unavailable) = (4, 2, 1, 4);
                }
            }),
        ],
    );
}

#[test]
fn a_plan_with_one_wrong_decision_is_refused_for_it() {
    refused(
        good,
        &[
            ("old is done", |_, p| decide(p, "next", Decision::Done), "NotDone"),
            (
                "at work is done",
                |_, p| decide(p, "working", Decision::Done),
                "NotDone",
            ),
            (
                "failing is done",
                |_, p| decide(p, "failing", Decision::Done),
                "NotDone",
            ),
            (
                "invalid is done",
                |_, p| decide(p, "invalid", Decision::Done),
                "NotDone",
            ),
            (
                "not soaked is done",
                |_, p| decide(p, "soaking", Decision::Done),
                "NotDone",
            ),
            (
                "unsound is done",
                |_, p| decide(p, "unsound", Decision::Done),
                "NotDone",
            ),
            (
                "done is at work",
                |_, p| decide(p, "done", in_flight(900, false)),
                "DoneUnnoticed",
            ),
            (
                "done soaks",
                |_, p| decide(p, "done", soaking(100)),
                "DoneUnnoticed",
            ),
            (
                "done waits",
                |_, p| decide(p, "done", hold(HoldReason::NoSlot)),
                "DoneUnnoticed",
            ),
            (
                "broken has failed",
                |_, p| decide(p, "broken", failed("HealthCheckFailed", "0/1", None)),
                "DoneUnnoticed",
            ),
            (
                "another deadline",
                |_, p| decide(p, "working", in_flight(901, false)),
                "WrongDeadline",
            ),
            (
                "lost, but ready",
                |_, p| decide(p, "working", in_flight(900, true)),
                "WrongLost",
            ),
            (
                "ready, but lost",
                |_, p| decide(p, "lost", in_flight(900, false)),
                "WrongLost",
            ),
            (
                "at work waits",
                |_, p| decide(p, "working", hold(HoldReason::NoSlot)),
                "UnderWayUnnoticed",
            ),
            (
                "at work has failed",
                |_, p| decide(p, "working", overdue()),
                "NothingFailed",
            ),
            (
                "at work soaks",
                |_, p| decide(p, "working", soaking(100)),
                "NotSoaking",
            ),
            (
                "failing is at work",
                |_, p| decide(p, "failing", in_flight(900, false)),
                "FailureUnnoticed",
            ),
            (
                "failing waits",
                |_, p| decide(p, "failing", hold(HoldReason::NoSlot)),
                "FailureUnnoticed",
            ),
            (
                "unsound soaks",
                |_, p| decide(p, "unsound", soaking(100)),
                "NotSoaking",
            ),
            (
                "unsound is at work",
                |_, p| decide(p, "unsound", in_flight(900, false)),
                "FailureUnnoticed",
            ),
            (
                "soaks longer",
                |_, p| decide(p, "soaking", soaking(101)),
                "WrongSoak",
            ),
            (
                "soaks shorter",
                |_, p| decide(p, "soaking", soaking(99)),
                "WrongSoak",
            ),
            (
                "soaking is at work",
                |_, p| decide(p, "soaking", in_flight(900, false)),
                "SoakUnnoticed",
            ),
            (
                "soaking waits",
                |_, p| decide(p, "soaking", hold(HoldReason::NoSlot)),
                "SoakUnnoticed",
            ),
            (
                "nothing is at work",
                |_, p| decide(p, "next", in_flight(900, false)),
                "NothingUnderWay",
            ),
            (
                "nothing has failed",
                |_, p| decide(p, "next", overdue()),
                "NothingFailed",
            ),
            (
                "another failure",
                |_, p| decide(p, "failing", overdue()),
                "WrongFailure",
            ),
            (
                "another retry",
                |_, p| decide(p, "failing", failed("ApplyFailed", "m", Some(91))),
                "WrongFailure",
            ),
        ],
    );
}

#[test]
fn a_plan_with_a_wrong_reason_is_refused_for_it() {
    refused(
        good,
        &[
            (
                "probed",
                |_, p| decide(p, "next", hold(HoldReason::ClusterNotProbed)),
                "WrongHold",
            ),
            (
                "not suspended",
                |_, p| decide(p, "next", hold(HoldReason::ClusterSuspended)),
                "WrongHold",
            ),
            (
                "group not suspended",
                |_, p| decide(p, "next", hold(HoldReason::GroupSuspended)),
                "WrongHold",
            ),
            (
                "not paused",
                |_, p| decide(p, "next", hold(HoldReason::Paused(attribution()))),
                "WrongHold",
            ),
            (
                "not aborted",
                |_, p| decide(p, "next", hold(HoldReason::Aborted(attribution()))),
                "WrongHold",
            ),
            (
                "nobody left",
                |_, p| decide(p, "next", hold(HoldReason::MembershipHeld)),
                "WrongHold",
            ),
            (
                "not skipped",
                |_, p| decide(p, "next", hold(HoldReason::Skipped(attribution()))),
                "WrongHold",
            ),
            (
                "skipped by another",
                |_, p| {
                    let by = "joe@example.com".into();
                    decide(
                        p,
                        "skipped",
                        hold(HoldReason::Skipped(Attribution { by, ..attribution() })),
                    );
                },
                "WrongHold",
            ),
            (
                "within the failure limit",
                |_, p| decide(p, "next", hold(HoldReason::TooManyFailures { stage: None })),
                "WrongHold",
            ),
            (
                "within that of the stage",
                |_, p| decide(p, "next", hold(HoldReason::TooManyFailures { stage: Some(0) })),
                "WrongHold",
            ),
            (
                "no jitter",
                |_, p| decide(p, "next", hold_until(HoldReason::Jitter, 70)),
                "WrongHold",
            ),
            (
                "no window",
                |_, p| decide(p, "next", hold_until(HoldReason::WindowClosed, 70)),
                "WrongHold",
            ),
            (
                "no stage waits",
                |_, p| {
                    let wait = StageWait::Unproven;
                    decide(p, "next", hold(HoldReason::StageWaits { stage: 0, wait }));
                },
                "WrongHold",
            ),
            (
                "away, but not for want of a slot",
                |_, p| decide(p, "away", hold(HoldReason::NoSlot)),
                "NotTheFirstReason",
            ),
            (
                "invalid for want of a slot",
                |_, p| decide(p, "invalid", hold(HoldReason::NoSlot)),
                "NotTheFirstReason",
            ),
            (
                "another entry",
                |_, p| {
                    decide(
                        p,
                        "suspended",
                        hold(HoldReason::SyncSuspended { entry: "dns".into() }),
                    );
                },
                "WrongHold",
            ),
            (
                "suspended comes before invalid",
                |i, p| {
                    view(i, "suspended").entries.get_mut("app").unwrap().wanted =
                        Err(UnresolvedTarget::parameter("no label"));
                    let (entry, message) = ("app".into(), "no label".into());
                    decide(
                        p,
                        "suspended",
                        hold(HoldReason::InvalidParameters { entry, message }),
                    );
                },
                "NotTheFirstReason",
            ),
            (
                "an event ends it, not a time that is over",
                |_, p| decide(p, "next", hold_until(HoldReason::NoSlot, 59)),
                "WrongHoldRecheck",
            ),
            (
                "no cluster is unavailable",
                |_, p| decide(p, "next", hold(HoldReason::TooManyUnavailable)),
                "MayBeUnavailable",
            ),
            (
                "a slot is free",
                |_, p| decide(p, "idle", hold(HoldReason::NoSlot)),
                "IdleSlot",
            ),
            (
                "the installation has no limit",
                |_, p| decide(p, "next", hold(HoldReason::InstallationLimit)),
                "WrongHold",
            ),
            (
                "the installation has a slot",
                |i, p| {
                    i.installation_slots = Some(50);
                    decide(p, "next", hold(HoldReason::InstallationLimit));
                },
                "IdleSlot",
            ),
        ],
    );
}

#[test]
fn a_forbidden_start_is_refused() {
    refused(
        good,
        &[
            ("nothing", |_, p| decide(p, "idle", start(&[])), "StartsNothing"),
            (
                "unknown",
                |_, p| decide(p, "idle", start(&["app", "crds", "dns"])),
                "StartsUnknownEntry",
            ),
            (
                "twice",
                |_, p| decide(p, "idle", start(&["app", "app", "crds"])),
                "StartsEntryTwice",
            ),
            (
                "again",
                |_, p| decide(p, "done", start(&["app"])),
                "StartsEntryAgain",
            ),
            (
                "one left out",
                |_, p| decide(p, "idle", start(&["app"])),
                "LeavesEntryOut",
            ),
            (
                "invalid",
                |_, p| decide(p, "invalid", start(&["app"])),
                "StartsInvalid",
            ),
            (
                "suspended",
                |_, p| decide(p, "suspended", start(&["app"])),
                "StartsSuspendedSync",
            ),
            ("away", |_, p| decide(p, "away", start(&["app"])), "StartsUnready"),
            (
                "skipped",
                |_, p| decide(p, "skipped", start(&["app"])),
                "StartsSkipped",
            ),
            (
                "last known good, in an open stage",
                |_, p| decide(p, "idle", start_known_good(&["app"])),
                "StartsWithKnownGoodInOpenStage",
            ),
            (
                "before another cluster",
                |_, p| {
                    decide(p, "next", start(&["app"]));
                    decide(p, "idle", hold(HoldReason::NoSlot));
                },
                "OutOfTurn",
            ),
            (
                "one too many",
                |_, p| decide(p, "next", start(&["app"])),
                "TooManyInFlight",
            ),
            (
                "a suspended group",
                |i, _| i.suspended = true,
                "StartsWhileSuspended",
            ),
            (
                "a paused rollout",
                |i, _| i.operator.paused = Some(attribution()),
                "StartsWhilePaused",
            ),
            (
                "an aborted release",
                |i, _| i.operator.aborted = Some(attribution()),
                "StartsWhileAborted",
            ),
            (
                "too many left",
                |i, _| i.membership_held = true,
                "StartsWhileMembershipHeld",
            ),
            (
                "beyond the failure limit",
                |i, _| i.strategy.limits.max_failures = IntOrPercent::Percent(10),
                "StartsBeyondBudget",
            ),
            (
                "beyond that of the stage",
                |i, _| i.strategy.stages[0].max_failures = Some(IntOrPercent::Int(1)),
                "StartsBeyondBudget",
            ),
            (
                "before its jitter is over",
                |i, _| {
                    i.strategy.limits.jitter = Duration::from_secs(1_000_000);
                },
                "StartsBeforeJitter",
            ),
            (
                "more than the installation allows",
                |i, _| i.installation_slots = Some(0),
                "InstallationLimit",
            ),
            (
                "more in flight than slots",
                |i, _| i.strategy.limits.max_concurrency = IntOrPercent::Int(3),
                "TooManyInFlight",
            ),
            (
                "more than those of the stage",
                |i, _| i.strategy.stages[0].max_concurrency = Some(IntOrPercent::Percent(20)),
                "TooManyInFlight",
            ),
            (
                "more unavailable than may be",
                |i, _| i.strategy.limits.max_unavailable = IntOrPercent::Int(5),
                "TooManyUnavailable",
            ),
            (
                "more unavailable than may be in the stage",
                |i, _| i.strategy.stages[0].max_unavailable = Some(IntOrPercent::Int(1)),
                "TooManyUnavailable",
            ),
        ],
    );
}

/// The good plan is not good for another state of the group.
#[test]
fn a_plan_for_another_group_is_refused() {
    refused(
        good,
        &[
            (
                "no decision",
                |_, p| drop(p.decisions.remove("next")),
                "Undecided",
            ),
            (
                "not selected",
                |_, p| decide(p, "nobody", Decision::Done),
                "NotSelected",
            ),
            (
                "one slot more",
                |i, _| i.strategy.limits.max_concurrency = IntOrPercent::Percent(34),
                "IdleSlot",
            ),
            (
                "one failure more",
                |i, _| i.strategy.limits.max_failures = IntOrPercent::Int(3),
                "WrongTally",
            ),
            (
                "a longer soak",
                |i, _| {
                    i.strategy.limits.min_success_time = Duration::from_secs(201);
                    i.strategy.limits.max_failures = IntOrPercent::Int(3);
                },
                "NotDone",
            ),
            (
                "a longer deadline",
                |i, _| i.strategy.limits.progress_deadline = Duration::from_secs(901),
                "WrongDeadline",
            ),
            (
                "a deadline that is over",
                |i, _| {
                    i.strategy.limits.progress_deadline = Duration::from_secs(60);
                    i.strategy.limits.max_failures = IntOrPercent::Int(9);
                },
                "FailureUnnoticed",
            ),
            (
                "lost for long enough to fail",
                |i, _| {
                    i.strategy.limits.progress_deadline = Duration::from_secs(60);
                    i.strategy.limits.max_failures = IntOrPercent::Int(9);
                    observed(i, "working").admitted_at = Some(t(840));
                },
                "FailureUnnoticed",
            ),
        ],
    );
}

#[test]
fn wrong_counts_are_refused() {
    refused(
        good,
        &[
            ("total", |_, p| p.tally.total = 12, "WrongTally"),
            ("done", |_, p| p.tally.done = 3, "WrongTally"),
            ("slots", |_, p| p.tally.slots = Some(5), "WrongTally"),
            ("in flight", |_, p| p.tally.in_flight = 4, "WrongTally"),
            ("failed", |_, p| p.tally.failed = 1, "WrongTally"),
            (
                "failures allowed",
                |_, p| p.tally.failures_allowed = 3,
                "WrongTally",
            ),
            ("unavailable", |_, p| p.tally.unavailable = 4, "WrongTally"),
            (
                "unavailable allowed",
                |_, p| p.tally.unavailable_allowed = 12,
                "WrongTally",
            ),
            ("of the stage", |_, p| p.stages[0].tally.failed = 3, "WrongTally"),
            (
                "slots of a stage without a bound",
                |_, p| p.stages[0].tally.slots = Some(4),
                "WrongTally",
            ),
        ],
    );
}

#[test]
fn a_wrong_time_of_the_next_plan_is_refused() {
    refused(
        good,
        &[
            ("now", |_, p| p.recheck_at = Some(t(60)), "RecheckPast"),
            ("over", |_, p| p.recheck_at = Some(t(-1)), "RecheckPast"),
            (
                "after the soak",
                |_, p| p.recheck_at = Some(t(101)),
                "RecheckAfterDecision",
            ),
            ("never", |_, p| p.recheck_at = None, "RecheckAfterDecision"),
            // Older work ends at its own deadline, and a slot is free.
            (
                "after older work",
                |i, p| {
                    let older = observed(i, "invalid");
                    older.progress = Progress::Working;
                    older.admitted_at = Some(t(-820));
                    decide(p, "idle", hold(HoldReason::NoSlot));
                    for tally in [&mut p.tally, &mut p.stages[0].tally] {
                        (tally.in_flight, tally.unavailable) = (4, 6);
                    }
                },
                "RecheckLate",
            ),
        ],
    );
}

/// More clusters than slots are in flight for the older release. Each of them has a slot, but the new release must not
/// be in flight on all of them.
#[test]
fn a_release_that_spreads_wider_than_the_slots_is_refused() {
    let older = |input: &mut PlanInput, plan: &mut Plan| {
        for name in ["idle", "next"] {
            view(input, name).entries.remove("crds");
            observed(input, name).progress = Progress::Working;
        }
        for tally in [&mut plan.tally, &mut plan.stages[0].tally] {
            (tally.in_flight, tally.unavailable) = (5, 7);
        }
        decide(plan, "idle", start(&["app"]));
    };
    let (mut input, mut plan) = good();
    older(&mut input, &mut plan);
    assert_eq!(check(&input, &plan), Ok(()));
    decide(&mut plan, "next", start(&["app"]));
    let (stage, after, bound) = (None, 5, 4);
    assert_eq!(
        check(&input, &plan),
        Err(Violation::ReleaseTooWide { stage, after, bound })
    );
}

/// The last status of an unreachable cluster is valid until it became unreachable; the cluster has a full deadline to
/// return.
#[test]
fn a_cluster_that_is_lost_while_it_soaks_is_not_done() {
    let (mut input, mut plan) = good();
    let reach = Reach::Unreachable {
        reason: "Unreachable".into(),
        message: "no answer".into(),
        since: t(50),
    };
    view(&mut input, "soaking").reach = reach;
    input.now = t(200);
    decide(&mut plan, "soaking", in_flight(950, true));
    for tally in [&mut plan.tally, &mut plan.stages[0].tally] {
        tally.unavailable -= 1;
    }
    plan.recheck_at = Some(t(900));
    assert_eq!(check(&input, &plan), Ok(()));
    for wrong in [Decision::Done, soaking(100), in_flight(900, true)] {
        decide(&mut plan, "soaking", wrong.clone());
        assert!(check(&input, &plan).is_err(), "{wrong:?}");
    }
}

/// Failures of skipped clusters do not count; an aborted rollout stops.
#[test]
fn the_verdict_is_checked() {
    refused(
        good,
        &[
            (
                "succeeded",
                |_, p| p.verdict = RolloutVerdict::Succeeded,
                "WrongVerdict",
            ),
            (
                "stopped",
                |_, p| {
                    let (stage, failed, allowed) = (None, 2, 2);
                    p.verdict = RolloutVerdict::Stopped(Stop::TooManyFailures {
                        stage,
                        failed,
                        allowed,
                    });
                },
                "WrongVerdict",
            ),
            (
                "aborted",
                |_, p| p.verdict = RolloutVerdict::Stopped(Stop::Aborted(attribution())),
                "WrongVerdict",
            ),
            (
                "in progress, though aborted",
                |i, p| {
                    i.operator.aborted = Some(attribution());
                    for name in ["idle", "next"] {
                        decide(p, name, hold(HoldReason::Aborted(attribution())));
                    }
                },
                "WrongVerdict",
            ),
            (
                "a skipped failure counted",
                |i, _| {
                    i.operator.skipped.insert("failing".into(), attribution());
                },
                "WrongTally",
            ),
        ],
    );
}
