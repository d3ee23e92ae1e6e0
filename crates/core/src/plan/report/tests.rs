//! What status says of decisions, by tables.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use starling_api::StageTaskType;

use super::*;
use crate::plan::tests::input;
use crate::plan::{StageRecord, Tally, To, Word};

fn t(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + seconds).unwrap()
}

fn word() -> Word {
    Word {
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
fn decisions(script: &str) -> BTreeMap<String, Decision> {
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
    named.map(|(n, c)| (format!("c{n}"), decision(c))).collect()
}

fn stage(name: &str, phase: StagePhase) -> StagePlan {
    StagePlan {
        name: name.into(),
        phase,
        record: StageRecord::default(),
        tally: Tally::default(),
    }
}

fn of(decisions: BTreeMap<String, Decision>, phase: StagePhase, verdict: Verdict) -> Plan {
    Plan {
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
    let (open, rolls) = (StagePhase::Open, Verdict::Rolls);
    let stopped = || Verdict::Stopped(too_many());
    for (script, stage, verdict, direction, expected) in [
        (
            "d",
            open.clone(),
            Verdict::Through,
            Forward,
            RolloutPhase::Succeeded,
        ),
        (
            "dn",
            open.clone(),
            Verdict::Stopped(Stop::Aborted(word())),
            Forward,
            RolloutPhase::Failed,
        ),
        ("dfn", open.clone(), stopped(), Forward, RolloutPhase::Paused),
        ("dfW", open.clone(), stopped(), Forward, RolloutPhase::Paused),
        (
            "dfWW",
            open.clone(),
            Verdict::RollBack(too_many()),
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
fn what_people_hold_is_paused_while_somebody_waits() {
    let holds: [fn(&mut PlanInput); 3] = [
        |input| input.suspended = true,
        |input| input.membership_held = true,
        |input| input.steering.paused = Some(word()),
    ];
    for holds in holds {
        let mut input = input("", 1, 0);
        holds(&mut input);
        for (script, expected) in [("dn", RolloutPhase::Paused), ("dW", RolloutPhase::Progressing)] {
            let plan = of(decisions(script), StagePhase::Open, Verdict::Rolls);
            assert_eq!(plan.report(&input).phase, expected, "{script}");
        }
    }
}

/// Each reason for which clusters wait is told once, with their number and the first of their times.
#[test]
fn what_blocks_is_counted_and_says_what_it_waits_for() {
    let wait = |wait| HoldReason::StageWaits { stage: 0, wait };
    let gate = |gate, until| wait(StageWait::Gate { gate, until });
    let failed = |gate| {
        wait(StageWait::GateFailed {
            gate,
            message: "no".into(),
        })
    };
    for (reason, told) in [
        (HoldReason::NoSlot, "2 clusters wait for one of 3 slots"),
        (
            HoldReason::TooManyUnavailable,
            "5 of at most 4 clusters are in flight or not healthy; 2 clusters wait until fewer are (maxUnavailable of the group or their stage)",
        ),
        (
            HoldReason::TooManyFailures { stage: None },
            "2 of at most 1 allowed failures; 2 clusters wait",
        ),
        (
            HoldReason::TooManyFailures { stage: Some(0) },
            "0 of at most 0 allowed failures in stage canary; 2 clusters wait",
        ),
        (HoldReason::WindowClosed, "2 clusters wait for their window"),
        (
            HoldReason::Jitter,
            "2 clusters wait for their share of the jitter",
        ),
        (
            HoldReason::GroupSuspended,
            "the group is suspended; 2 clusters wait",
        ),
        (
            HoldReason::Paused(word()),
            "paused by jane (why not); 2 clusters wait",
        ),
        (
            HoldReason::Aborted(word()),
            "given up by jane (why not); 2 clusters wait",
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
            "no cluster of stage canary took this release",
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
        let decisions = decisions.map(|(name, decision)| (name.to_owned(), decision));
        let plan = of(decisions.into(), StagePhase::Open, Verdict::Rolls);
        let blocked = plan.report(&input("", 1, 0)).blocked_by;
        let [(word, message, Some(at))] = blocked.as_slice() else {
            panic!("{blocked:?}")
        };
        assert_eq!((*word, *at), (reason.as_str(), t(9)));
        assert!(message.contains(told), "{message}");
    }
}

/// An open stage of which clusters soak and none is at work says until when; so does whoever waits for it.
#[test]
fn a_stage_that_only_soaks_says_until_when() {
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
        // Who waits for a cluster that has not started cannot know.
        (vec![soaking(9), waits(1, 1)], StagePhase::Open, Some(ended), None),
        (vec![soaking(9), works, waits(1, 1)], StagePhase::Open, None, None),
        (vec![soaking(9), waits(0, 1)], StagePhase::Passed, None, None),
        (vec![Decision::Done, waits(0, 0)], StagePhase::Open, None, None),
    ] {
        let mut input = input(&"o".repeat(decisions.len()), 1, 0);
        let named = input.clusters.keys().cloned().zip(decisions.clone()).collect();
        // The last one is of the stage behind.
        input.clusters.values_mut().next_back().unwrap().stage = 1;
        let report = of(named, phase, Verdict::Rolls).report(&input);
        assert_eq!(report.soaks.get("canary").copied(), soaks, "{decisions:?}");
        assert_eq!(
            report.blocked_by.first().and_then(|blocker| blocker.2),
            at,
            "{decisions:?}"
        );
    }
}

#[test]
fn a_group_without_clusters_is_in_no_stage() {
    let nobody = of(BTreeMap::new(), StagePhase::Pending, Verdict::Through);
    let report = nobody.report(&input("", 1, 0));
    assert_eq!((report.stage.as_str(), report.blocked_by), ("", Vec::new()));
}

#[test]
fn where_nobody_waits_the_gate_of_the_stage_is_told_or_what_holds_the_rest() {
    let told = |script: &str, phase: StagePhase, verdict: Verdict, held: bool| {
        let mut input = input("", 1, 0);
        input.membership_held = held;
        let blocked = of(decisions(script), phase, verdict).report(&input).blocked_by;
        blocked
            .into_iter()
            .map(|(word, _, at)| (word, at))
            .collect::<Vec<_>>()
    };
    let soak = StagePhase::Waiting(StageWait::Gate {
        gate: Gate::TimedWait(Duration::from_secs(60)),
        until: Some(t(60)),
    });
    let rolls = || Verdict::Rolls;
    assert_eq!(
        told("dd", soak.clone(), rolls(), false),
        [("TimedWait", Some(t(60)))]
    );
    assert_eq!(told("dd", waiting(), rolls(), false), [("StageUnproven", None)]);
    assert_eq!(told("dW", StagePhase::Open, rolls(), false), []);
    assert_eq!(
        told("dW", StagePhase::Open, rolls(), true),
        [("MembershipHeld", None)]
    );
    assert_eq!(told("dn", StagePhase::Open, rolls(), true), [("NoSlot", None)]);
    assert_eq!(told("dn", soak, rolls(), false), [("NoSlot", None)]);
    assert_eq!(
        told("dxx", StagePhase::Open, rolls(), false),
        [("ClusterSuspended", None)]
    );
    assert_eq!(
        told("dx", StagePhase::Open, Verdict::Stopped(too_many()), false),
        []
    );
}

#[test]
fn the_worst_is_told_first() {
    let failed = |reason| Decision::Failed {
        reason,
        retry_at: None,
    };
    let lost = |deadline| Decision::InFlight { deadline, lost: true };
    let decisions = [
        ("a", hold(HoldReason::Skipped(word()))),
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
        // Not in trouble.
        ("h", lost(None)),
        ("i", Decision::Done),
        (
            "j",
            Decision::Start {
                entries: Vec::new(),
                to: To::Release,
            },
        ),
        ("k", hold(HoldReason::NoSlot)),
    ];
    let decisions = decisions.map(|(name, decision)| (name.to_owned(), decision));
    let problems = of(decisions.into(), StagePhase::Open, Verdict::Rolls)
        .report(&input("", 1, 0))
        .problems;
    let names: Vec<&str> = problems.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names, ["g", "f", "e", "d", "c", "b", "a"]);
}
