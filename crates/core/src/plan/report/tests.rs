//! Reports of plans in status, by tables.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use starling_api::StageTaskType;

use super::*;
use crate::plan::tests::input;
use crate::plan::{AdmittedRelease, Attribution, StageRecord, Tally};

fn t(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + seconds).unwrap()
}

fn attribution() -> Attribution {
    Attribution {
        by: "jane".into(),
        reason: "why not".into(),
        at: t(0),
    }
}

fn hold(reason: HoldReason) -> Decision {
    Decision::Hold {
        reason,
        recheck_at: None,
    }
}

/// Decisions of one character each: `d` done, `W` in flight, `n` no slot, `f` failed, `x` suspended, `u` unreachable.
fn decisions(script: &str) -> BTreeMap<ClusterName, Decision> {
    let decision = |c: char| match c {
        'd' => Decision::Done,
        'W' => Decision::InFlight {
            deadline: Some(t(900)),
            lost: false,
        },
        'n' => hold(HoldReason::NoSlot),
        'f' => Decision::Failed {
            reason: FailureReason::ProgressDeadlineExceeded,
            retry_at: None,
        },
        'x' => hold(HoldReason::ClusterSuspended),
        'u' => hold(HoldReason::ClusterUnreachable {
            reason: "Unreachable".into(),
            message: "no answer".into(),
            since: t(0),
        }),
        other => panic!("no such decision: {other}"),
    };
    let named = script.chars().enumerate();
    named
        .map(|(n, c)| (format!("c{n}").into(), decision(c)))
        .collect()
}

fn stage(name: &str, phase: StagePhase) -> StagePlan {
    StagePlan {
        name: name.into(),
        phase,
        record: StageRecord::default(),
        tally: Tally::default(),
    }
}

fn of(decisions: BTreeMap<ClusterName, Decision>, phase: StagePhase, verdict: RolloutVerdict) -> Plan {
    Plan {
        removals: BTreeMap::new(),
        prunes: Default::default(),
        decisions,
        stages: vec![stage("canary", phase), stage("*", StagePhase::Pending)],
        tally: Tally {
            slots: Some(3),
            failed: 2,
            failures_allowed: 1,
            unavailable: 5,
            unavailable_allowed: 4,
            ..Tally::default()
        },
        verdict,
        recheck_at: None,
    }
}

fn too_many() -> Stop {
    Stop::TooManyFailures {
        stage: None,
        failed: 2,
        allowed: 1,
    }
}

fn waiting() -> StagePhase {
    StagePhase::Waiting(StageWait::Unproven)
}

#[test]
fn the_phase_follows_from_verdict_counts_and_direction() {
    use Direction::{Back, BackAtOnce, Forward};
    let (open, rolls) = (StagePhase::Open, RolloutVerdict::InProgress);
    let stopped = || RolloutVerdict::Stopped(too_many());
    for (script, stage, verdict, direction, expected) in [
        (
            "d",
            open.clone(),
            RolloutVerdict::Succeeded,
            Forward,
            RolloutPhase::Succeeded,
        ),
        (
            "dn",
            open.clone(),
            RolloutVerdict::Stopped(Stop::Aborted(attribution())),
            Forward,
            RolloutPhase::Failed,
        ),
        ("dfn", open.clone(), stopped(), Forward, RolloutPhase::Paused),
        ("dfW", open.clone(), stopped(), Forward, RolloutPhase::Paused),
        (
            "dfWW",
            open.clone(),
            RolloutVerdict::RollBack(too_many()),
            Forward,
            RolloutPhase::Paused,
        ),
        ("df", open.clone(), stopped(), Forward, RolloutPhase::Failed),
        ("n", open.clone(), rolls.clone(), Forward, RolloutPhase::Pending),
        (
            "dn",
            open.clone(),
            rolls.clone(),
            Forward,
            RolloutPhase::Progressing,
        ),
        (
            "W",
            open.clone(),
            rolls.clone(),
            Forward,
            RolloutPhase::Progressing,
        ),
        (
            "fn",
            open.clone(),
            rolls.clone(),
            Forward,
            RolloutPhase::Progressing,
        ),
        (
            "dfn",
            open.clone(),
            rolls.clone(),
            Forward,
            RolloutPhase::Progressing,
        ),
        ("nu", open.clone(), rolls.clone(), Forward, RolloutPhase::Pending),
        ("n", open.clone(), rolls.clone(), Back, RolloutPhase::RollingBack),
        (
            "dW",
            open.clone(),
            rolls.clone(),
            BackAtOnce,
            RolloutPhase::RollingBack,
        ),
        ("dd", waiting(), rolls.clone(), Forward, RolloutPhase::Progressing),
        ("df", waiting(), rolls.clone(), Forward, RolloutPhase::Failed),
        ("dfx", waiting(), rolls.clone(), Forward, RolloutPhase::Failed),
        ("dx", waiting(), rolls.clone(), Forward, RolloutPhase::Paused),
        ("dx", open.clone(), rolls.clone(), Forward, RolloutPhase::Paused),
        ("df", open.clone(), rolls.clone(), Forward, RolloutPhase::Failed),
        ("du", open, rolls, Forward, RolloutPhase::Paused),
    ] {
        let mut input = input("", 1, 0);
        input.rollout.direction = direction;
        let plan = of(decisions(script), stage, verdict.clone());
        assert_eq!(
            plan.report(&input).phase,
            expected,
            "{script} {verdict:?} {direction:?}"
        );
    }
}

#[test]
fn a_rollout_that_an_operator_holds_is_paused_while_clusters_wait() {
    let holds: [fn(&mut PlanInput); 3] = [
        |input| input.suspended = true,
        |input| input.membership_held = true,
        |input| input.operator.paused = Some(attribution()),
    ];
    for holds in holds {
        let mut input = input("", 1, 0);
        holds(&mut input);
        for (script, expected) in [("dn", RolloutPhase::Paused), ("dW", RolloutPhase::Progressing)] {
            let plan = of(decisions(script), StagePhase::Open, RolloutVerdict::InProgress);
            assert_eq!(plan.report(&input).phase, expected, "{script}");
        }
    }
}

/// Each reason that blocks clusters is reported once, with their number and the earliest of their times.
#[test]
fn blockers_are_counted_and_say_what_they_wait_for() {
    let wait = |wait| HoldReason::StageWaits { stage: 0, wait };
    let gate = |gate, until| wait(StageWait::Gate { gate, until });
    let failed = |gate| {
        wait(StageWait::GateFailed {
            gate,
            message: "no".into(),
        })
    };
    for (reason, text) in [
        (HoldReason::NoSlot, "2 clusters wait for one of 3 slots"),
        (
            HoldReason::TooManyUnavailable,
            "5 clusters are in flight or not healthy (limit 4); 2 clusters wait (maxUnavailable of the group or their stage)",
        ),
        (
            HoldReason::TooManyFailures { stage: None },
            "2 failed (limit 1); 2 clusters wait",
        ),
        (
            HoldReason::TooManyFailures { stage: Some(0) },
            "0 failed in stage canary (limit 0); 2 clusters wait",
        ),
        (HoldReason::WindowClosed, "2 clusters wait for their window"),
        (HoldReason::Jitter, "2 clusters wait for their jitter"),
        (
            HoldReason::GroupSuspended,
            "the group is suspended; 2 clusters wait",
        ),
        (
            HoldReason::Paused(attribution()),
            "paused by jane (why not); 2 clusters wait",
        ),
        (
            HoldReason::Aborted(attribution()),
            "aborted by jane (why not); 2 clusters wait",
        ),
        (
            HoldReason::MembershipHeld,
            "too many clusters left the group at once; 2 clusters wait",
        ),
        (HoldReason::ClusterNotProbed, "2 clusters have not been probed"),
        (
            wait(StageWait::Clusters {
                working: 3,
                soaking: 1,
            }),
            "stage canary waits for 3 of its clusters, and 1 that soak; 2 clusters wait",
        ),
        (
            wait(StageWait::Unproven),
            "no cluster of stage canary is on this release",
        ),
        (
            gate(Gate::Approval, None),
            "stage canary waits for an approval; 2 clusters wait",
        ),
        (
            gate(Gate::TimedWait(Duration::MAX), None),
            "stage canary waits for ever",
        ),
        (
            gate(Gate::TimedWait(Duration::ZERO), Some(t(5))),
            &format!("stage canary waits until {}", t(5)),
        ),
        (
            gate(Gate::Effect(StageTaskType::Webhook), None),
            "stage canary waits for its Webhook",
        ),
        (
            failed(Gate::Effect(StageTaskType::Job)),
            "the Job of stage canary failed: no",
        ),
        (failed(Gate::Approval), "a task of stage canary failed: no"),
    ] {
        let held = |recheck_at| Decision::Hold {
            reason: reason.clone(),
            recheck_at,
        };
        let decisions = [("a", held(None)), ("b", held(Some(t(9)))), ("c", Decision::Done)];
        let decisions = decisions.map(|(name, decision)| (name.into(), decision));
        let plan = of(decisions.into(), StagePhase::Open, RolloutVerdict::InProgress);
        let blocked = plan.report(&input("", 1, 0)).blocked_by;
        let [blocker] = blocked.as_slice() else {
            panic!("{blocked:?}")
        };
        assert_eq!(
            (blocker.reason, blocker.recheck_at),
            (reason.as_str(), Some(t(9)))
        );
        assert!(blocker.message.contains(text), "{}", blocker.message);
    }
}

/// An open stage in which clusters soak and nothing else is in flight has the time of its end, and so have the clusters
/// that wait for it.
#[test]
fn a_stage_that_only_soaks_has_an_end() {
    let soaking = |until| Decision::Soaking { until: t(until) };
    let waits = |working, soaking| {
        hold(HoldReason::StageWaits {
            stage: 0,
            wait: StageWait::Clusters { working, soaking },
        })
    };
    let works = Decision::InFlight {
        deadline: None,
        lost: false,
    };
    let ended = t(9);
    for (decisions, phase, soaks, at) in [
        (
            vec![soaking(5), soaking(9), waits(0, 2)],
            StagePhase::Open,
            Some(ended),
            Some(ended),
        ),
        (
            vec![soaking(9), hold(HoldReason::NoSlot)],
            StagePhase::Open,
            Some(ended),
            None,
        ),
        // A cluster that waits for one that has not started has no time.
        (vec![soaking(9), waits(1, 1)], StagePhase::Open, Some(ended), None),
        (vec![soaking(9), works, waits(1, 1)], StagePhase::Open, None, None),
        (vec![soaking(9), waits(0, 1)], StagePhase::Passed, None, None),
        (vec![Decision::Done, waits(0, 0)], StagePhase::Open, None, None),
    ] {
        let mut input = input(&"o".repeat(decisions.len()), 1, 0);
        let named = input.clusters.keys().cloned().zip(decisions.clone()).collect();
        // The last one is of the next stage.
        input.clusters.values_mut().next_back().unwrap().stage = 1;
        let report = of(named, phase, RolloutVerdict::InProgress).report(&input);
        assert_eq!(report.soaks.get("canary").copied(), soaks, "{decisions:?}");
        assert_eq!(
            report.blocked_by.first().and_then(|blocker| blocker.recheck_at),
            at,
            "{decisions:?}"
        );
    }
}

#[test]
fn a_group_without_clusters_is_in_no_stage() {
    let empty = of(BTreeMap::new(), StagePhase::Pending, RolloutVerdict::Succeeded);
    let report = empty.report(&input("", 1, 0));
    assert_eq!((report.stage.as_str(), report.blocked_by), ("", Vec::new()));
}

#[test]
fn without_waiting_clusters_the_gate_or_the_clusters_on_hold_are_reported() {
    let blockers = |script: &str, phase: StagePhase, verdict: RolloutVerdict, held: bool| {
        let mut input = input("", 1, 0);
        input.membership_held = held;
        let blocked = of(decisions(script), phase, verdict).report(&input).blocked_by;
        blocked
            .into_iter()
            .map(|blocker| (blocker.reason, blocker.recheck_at))
            .collect::<Vec<_>>()
    };
    let soak = StagePhase::Waiting(StageWait::Gate {
        gate: Gate::TimedWait(Duration::from_secs(60)),
        until: Some(t(60)),
    });
    let rolls = || RolloutVerdict::InProgress;
    assert_eq!(
        blockers("dd", soak.clone(), rolls(), false),
        [("TimedWait", Some(t(60)))]
    );
    assert_eq!(
        blockers("dd", waiting(), rolls(), false),
        [("StageUnproven", None)]
    );
    assert_eq!(blockers("dW", StagePhase::Open, rolls(), false), []);
    assert_eq!(
        blockers("dW", StagePhase::Open, rolls(), true),
        [("MembershipHeld", None)]
    );
    assert_eq!(
        blockers("dn", StagePhase::Open, rolls(), true),
        [("NoSlot", None)]
    );
    assert_eq!(blockers("dn", soak, rolls(), false), [("NoSlot", None)]);
    assert_eq!(
        blockers("dxx", StagePhase::Open, rolls(), false),
        [("ClusterSuspended", None)]
    );
    assert_eq!(
        blockers("dx", StagePhase::Open, RolloutVerdict::Stopped(too_many()), false),
        []
    );
}

#[test]
fn the_worst_problem_comes_first() {
    let failed = |reason| Decision::Failed {
        reason,
        retry_at: None,
    };
    let lost = |deadline| Decision::InFlight { deadline, lost: true };
    let decisions = [
        ("a", hold(HoldReason::Skipped(attribution()))),
        ("b", hold(HoldReason::SyncSuspended { entry: "app".into() })),
        ("c", decisions("u").remove("c0").unwrap()),
        ("d", lost(Some(t(900)))),
        (
            "e",
            hold(HoldReason::InvalidParameters {
                entry: "app".into(),
                message: "no label".into(),
            }),
        ),
        ("f", failed(FailureReason::ProgressDeadlineExceeded)),
        ("g", failed(FailureReason::LostAfterAdmission)),
        // Without a problem.
        ("h", lost(None)),
        ("i", Decision::Done),
        (
            "j",
            Decision::Start {
                entries: Vec::new(),
                to: AdmittedRelease::Release,
            },
        ),
        ("k", hold(HoldReason::NoSlot)),
    ];
    let decisions = decisions.map(|(name, decision)| (name.into(), decision));
    let problems = of(decisions.into(), StagePhase::Open, RolloutVerdict::InProgress)
        .report(&input("", 1, 0))
        .problems;
    let names: Vec<&str> = problems.iter().map(|problem| problem.cluster.as_str()).collect();
    assert_eq!(names, ["g", "f", "e", "d", "c", "b", "a"]);
}
