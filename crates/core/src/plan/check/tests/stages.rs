//! Three stages, gates before and after them, and their records.

use super::*;

const WAIT: Gate = Gate::TimedWait(Duration::from_secs(600));

fn gate(gate: Gate, at: i64) -> GateRecord {
    GateRecord {
        gate,
        begun_at: t(at),
        result: None,
    }
}

fn waits_for(gate: Gate, until: Option<i64>) -> StageWait {
    let until = until.map(t);
    StageWait::Gate { gate, until }
}

fn behind(stage: usize, wait: StageWait) -> HoldReason {
    HoldReason::StageWaits { stage, wait }
}

fn planned(name: &str, phase: StagePhase, record: StageRecord, tally: Tally) -> StagePlan {
    StagePlan {
        name: name.into(),
        phase,
        record,
        tally,
    }
}

/// `canary` is complete, and waits for its time and then an approval; `eu` waits for an approval of its own, with one
/// slot and no failure; of the rest, `fresh` is new and gets the last known good release.
fn good() -> (PlanInput, Plan) {
    let stages = vec![
        stage("canary", &[], &[WAIT, Gate::Approval]),
        StageRules {
            max_concurrency: Some(IntOrPercent::Int(1)),
            max_failures: Some(IntOrPercent::Int(0)),
            ..stage("eu", &[Gate::Approval], &[])
        },
        stage(REST, &[], &[]),
    ];
    let placed = |view: ClusterView, stage: usize| ClusterView { stage, ..view };
    let mut fresh = placed(idle(), 2);
    fresh.entries = [("app".into(), entry(None))].into();
    let first = cluster(sync(NEW, Progress::healthy_since(t(-100))));
    let clusters = [
        ("first", first),
        ("eu-1", placed(idle(), 1)),
        ("eu-2", placed(idle(), 1)),
        ("fresh", fresh),
        ("rest", placed(idle(), 2)),
    ];
    let clusters = clusters.map(|(name, view)| (name.into(), view)).into();
    let mut input = rollout(stages, clusters);
    let canary = StageRecord {
        opened_at: Some(t(0)),
        completed_at: Some(t(10)),
        passed_at: None,
        before: Vec::new(),
        after: vec![gate(WAIT, 10)],
    };
    input.rollout.stages.insert("canary".into(), canary.clone());

    let wait = || waits_for(WAIT, Some(610));
    let hold = || hold_until(behind(0, wait()), 610);
    let decisions = [
        ("first", Decision::Done),
        ("eu-1", hold()),
        ("eu-2", hold()),
        ("fresh", start_known_good(&["app"])),
        ("rest", hold()),
    ];
    let count = |total, done, slots, failures_allowed| Tally {
        total,
        done,
        slots,
        failures_allowed,
        unavailable_allowed: 5,
        ..Tally::default()
    };
    let nothing = StageRecord::default;
    let plan = Plan {
        removals: BTreeMap::new(),
        prunes: BTreeMap::new(),
        decisions: decisions.map(|(name, decision)| (name.into(), decision)).into(),
        stages: vec![
            planned(
                "canary",
                StagePhase::Waiting(wait()),
                canary,
                count(1, 1, None, 2),
            ),
            planned("eu", StagePhase::Pending, nothing(), count(2, 0, Some(1), 0)),
            planned(REST, StagePhase::Pending, nothing(), count(2, 0, None, 2)),
        ],
        tally: count(5, 1, Some(4), 2),
        verdict: RolloutVerdict::InProgress,
        recheck_at: Some(t(610)),
    };
    (input, plan)
}

/// The same when the wait is over and `canary` is approved: it passes, and `eu` waits for its approval.
fn passed() -> (PlanInput, Plan) {
    let (mut input, mut plan) = good();
    input.now = t(610);
    input.rollout.approvals.insert("canary".into(), attribution());
    let canary = &mut plan.stages[0];
    canary.phase = StagePhase::Passed;
    canary.record.after.push(gate(Gate::Approval, 610));
    canary.record.passed_at = Some(t(610));
    let eu = &mut plan.stages[1];
    eu.phase = StagePhase::Waiting(waits_for(Gate::Approval, None));
    eu.record.before.push(gate(Gate::Approval, 610));
    for name in ["eu-1", "eu-2", "rest"] {
        decide(&mut plan, name, hold(behind(1, waits_for(Gate::Approval, None))));
    }
    plan.recheck_at = None;
    (input, plan)
}

/// The same with that approval: `eu` opens, and one of its clusters starts.
fn open() -> (PlanInput, Plan) {
    let (mut input, mut plan) = passed();
    input.rollout.approvals.insert("eu".into(), attribution());
    plan.stages[1].phase = StagePhase::Open;
    plan.stages[1].record.opened_at = Some(t(610));
    decide(&mut plan, "eu-1", start(&["app"]));
    decide(&mut plan, "eu-2", hold(HoldReason::NoSlot));
    let (working, soaking) = (2, 0);
    let wait = StageWait::Clusters { working, soaking };
    decide(&mut plan, "rest", hold(behind(1, wait)));
    (input, plan)
}

fn effect() -> Gate {
    Gate::Effect(starling_api::StageTaskType::Webhook)
}

/// The second gate after `canary` is an effect, which failed.
fn gate_failed() -> (PlanInput, Plan) {
    let (mut input, mut plan) = good();
    input.now = t(700);
    input.strategy.stages[0].after[1] = effect();
    let failed = GateRecord {
        result: Some(GateResult::Failed {
            message: "500".into(),
        }),
        ..gate(effect(), 610)
    };
    input
        .rollout
        .stages
        .get_mut("canary")
        .unwrap()
        .after
        .push(failed.clone());
    let (gate, message) = (effect(), "500".to_owned());
    let wait = StageWait::GateFailed {
        gate,
        message: message.clone(),
    };
    plan.stages[0].phase = StagePhase::Waiting(wait.clone());
    plan.stages[0].record.after.push(failed);
    for name in ["eu-1", "eu-2", "fresh", "rest"] {
        decide(&mut plan, name, hold(behind(0, wait.clone())));
    }
    let stage = 0;
    plan.verdict = RolloutVerdict::Stopped(Stop::GateFailed { stage, message });
    plan.recheck_at = None;
    (input, plan)
}

#[test]
fn good_plans_pass() {
    for good in [good, passed, open, gate_failed] {
        accepted(good, &[("as it is", |_, _| {})]);
    }
    accepted(
        gate_failed,
        &[("for which the strategy rolls back", |input, plan| {
            input.strategy.on_failure = OnFailure::Rollback;
            let (stage, message) = (0, "500".into());
            plan.verdict = RolloutVerdict::RollBack(Stop::GateFailed { stage, message });
        })],
    );
}

#[test]
fn a_start_before_its_stage_is_refused() {
    refused(
        good,
        &[
            (
                "of the next stage",
                |_, p| decide(p, "eu-1", start(&["app"])),
                "StartsBeforeStage",
            ),
            (
                "of the last stage",
                |_, p| decide(p, "rest", start(&["app"])),
                "StartsBeforeStage",
            ),
            (
                "of a new cluster",
                |_, p| decide(p, "fresh", start(&["app"])),
                "StartsBeforeStage",
            ),
            (
                "last known good, where it is",
                |_, p| decide(p, "rest", start_known_good(&["app"])),
                "NotNew",
            ),
            (
                "last known good, on a cluster that is not new",
                |i, p| {
                    observed(i, "rest").target = Some("other".into());
                    decide(p, "rest", start_known_good(&["app"]));
                },
                "NotNew",
            ),
            (
                "another entry of the last known good release",
                |_, p| decide(p, "fresh", start_known_good(&["dns"])),
                "WrongKnownGoodEntries",
            ),
            (
                "a last known good entry, twice",
                |_, p| decide(p, "fresh", start_known_good(&["app", "app"])),
                "WrongKnownGoodEntries",
            ),
            (
                "no last known good entry",
                |_, p| decide(p, "fresh", start_known_good(&[])),
                "WrongKnownGoodEntries",
            ),
            (
                "last known good forgotten",
                |_, p| {
                    decide(p, "fresh", hold_until(behind(0, waits_for(WAIT, Some(610))), 610));
                },
                "KnownGoodForgotten",
            ),
            (
                "last known good, though paused",
                |i, _| i.operator.paused = Some(attribution()),
                "StartsWhilePaused",
            ),
        ],
    );
    refused(
        open,
        &[
            (
                "one more than the stage has slots",
                |_, p| decide(p, "eu-2", start(&["app"])),
                "TooManyInFlight",
            ),
            (
                "of the next stage",
                |_, p| decide(p, "rest", start(&["app"])),
                "StartsBeforeStage",
            ),
            (
                "before another cluster",
                |_, p| {
                    decide(p, "eu-2", start(&["app"]));
                    decide(p, "eu-1", hold(HoldReason::NoSlot));
                },
                "OutOfTurn",
            ),
            (
                "of a stage that was skipped",
                |i, p| {
                    i.operator.skipped_stages.insert("eu".into(), attribution());
                    p.stages[1].phase = StagePhase::Skipped(attribution());
                    p.stages[1].record.passed_at = Some(t(610));
                    p.stages[2].phase = StagePhase::Open;
                    p.stages[2].record.opened_at = Some(t(610));
                },
                "StartsSkipped",
            ),
        ],
    );
    refused(
        gate_failed,
        &[
            (
                "last known good",
                |_, p| decide(p, "fresh", start_known_good(&["app"])),
                "StartsBehindFailedGate",
            ),
            (
                "of an earlier stage",
                |i, p| {
                    i.clusters.insert("late".into(), idle());
                    let passed = StageRecord {
                        passed_at: Some(t(0)),
                        ..StageRecord::default()
                    };
                    i.strategy.stages.insert(0, stage("early", &[], &[]));
                    for name in ["first", "eu-1", "eu-2", "fresh", "rest"] {
                        view(i, name).stage += 1;
                    }
                    i.rollout.stages.insert("early".into(), passed.clone());
                    p.stages
                        .insert(0, planned("early", StagePhase::Passed, passed, Tally::default()));
                    decide(p, "late", start(&["app"]));
                },
                "StartsBehindFailedGate",
            ),
        ],
    );
}

#[test]
fn a_wrong_phase_or_wait_is_refused() {
    refused(
        good,
        &[
            (
                "open",
                |_, p| p.stages[0].phase = StagePhase::Open,
                "WrongStagePhase",
            ),
            (
                "passed",
                |_, p| p.stages[0].phase = StagePhase::Passed,
                "WrongStagePhase",
            ),
            (
                "skipped by nobody",
                |_, p| p.stages[0].phase = StagePhase::Skipped(attribution()),
                "WrongStagePhase",
            ),
            (
                "unproven",
                |_, p| p.stages[0].phase = StagePhase::Waiting(StageWait::Unproven),
                "WrongStagePhase",
            ),
            (
                "the gate behind",
                |_, p| {
                    p.stages[0].phase = StagePhase::Waiting(waits_for(Gate::Approval, None));
                },
                "WrongStagePhase",
            ),
            (
                "a gate that ends later",
                |_, p| {
                    p.stages[0].phase = StagePhase::Waiting(waits_for(WAIT, Some(611)));
                },
                "WrongStagePhase",
            ),
            (
                "a stage behind waits for its gate",
                |_, p| {
                    p.stages[1].phase = StagePhase::Waiting(waits_for(Gate::Approval, None));
                },
                "WrongStagePhase",
            ),
            (
                "a stage behind is open",
                |_, p| p.stages[1].phase = StagePhase::Open,
                "WrongStagePhase",
            ),
            (
                "stages in another order",
                |_, p| p.stages.swap(0, 1),
                "WrongStages",
            ),
            ("a stage left out", |_, p| drop(p.stages.pop()), "WrongStages"),
            (
                "for the wrong stage",
                |_, p| {
                    decide(p, "rest", hold(behind(1, waits_for(Gate::Approval, None))));
                },
                "WrongHold",
            ),
            (
                "for another wait",
                |_, p| decide(p, "rest", hold(behind(0, StageWait::Unproven))),
                "WrongHold",
            ),
            (
                "till another time",
                |_, p| {
                    decide(p, "rest", hold_until(behind(0, waits_for(WAIT, Some(610))), 609));
                },
                "WrongHoldRecheck",
            ),
            (
                "for want of a slot",
                |_, p| decide(p, "rest", hold(HoldReason::NoSlot)),
                "NotTheFirstReason",
            ),
            (
                "next plan after the gate",
                |_, p| p.recheck_at = Some(t(611)),
                "RecheckAfterDecision",
            ),
        ],
    );
    refused(
        open,
        &[(
            "a cluster fewer",
            |_, p| {
                let (working, soaking) = (1, 0);
                decide(
                    p,
                    "rest",
                    hold(behind(1, StageWait::Clusters { working, soaking })),
                );
            },
            "WrongHold",
        )],
    );
}

#[test]
fn a_wrong_record_is_refused() {
    refused(
        good,
        &[
            (
                "opening forgotten",
                |_, p| p.stages[0].record.opened_at = None,
                "WrongRecord",
            ),
            (
                "opened at another time",
                |_, p| p.stages[0].record.opened_at = Some(t(60)),
                "WrongRecord",
            ),
            (
                "completed at another time",
                |_, p| p.stages[0].record.completed_at = Some(t(60)),
                "WrongRecord",
            ),
            (
                "passed before its gates",
                |_, p| p.stages[0].record.passed_at = Some(t(60)),
                "WrongRecord",
            ),
            (
                "its gate begun anew",
                |_, p| p.stages[0].record.after = vec![gate(WAIT, 60)],
                "WrongRecord",
            ),
            (
                "its gate forgotten",
                |_, p| p.stages[0].record.after.clear(),
                "WrongRecord",
            ),
            (
                "both gates at once",
                |_, p| p.stages[0].record.after.push(gate(Gate::Approval, 60)),
                "WrongRecord",
            ),
            (
                "opened behind a stage that waits",
                |_, p| p.stages[1].record.opened_at = Some(t(60)),
                "WrongRecord",
            ),
            (
                "completed before it opened",
                |_, p| p.stages[1].record.completed_at = Some(t(60)),
                "WrongRecord",
            ),
        ],
    );
    refused(
        passed,
        &[
            (
                "passed in the past",
                |_, p| p.stages[0].record.passed_at = Some(t(600)),
                "WrongRecord",
            ),
            (
                "the second gate never begun",
                |_, p| drop(p.stages[0].record.after.pop()),
                "WrongRecord",
            ),
            (
                "opened before its gate",
                |_, p| p.stages[1].record.opened_at = Some(t(610)),
                "WrongRecord",
            ),
            (
                "its gate begun in the past",
                |_, p| p.stages[1].record.before[0] = gate(Gate::Approval, 600),
                "WrongRecord",
            ),
            (
                "not approved",
                |i, _| drop(i.rollout.approvals.remove("canary")),
                "WrongRecord",
            ),
            (
                "approved for another stage",
                |i, _| {
                    i.rollout.approvals.remove("canary");
                    i.rollout.approvals.insert("us".into(), attribution());
                },
                "WrongRecord",
            ),
            (
                "another wait in the meantime, so the old one is void",
                |i, _| {
                    i.strategy.stages[0].after[0] = Gate::TimedWait(Duration::from_secs(5));
                },
                "WrongRecord",
            ),
            ("a second before its time", |i, _| i.now = t(609), "WrongRecord"),
            (
                "one of its clusters soaks anew",
                |i, _| {
                    observed(i, "first").progress = Progress::healthy_since(t(600));
                },
                "WrongRecord",
            ),
            (
                "one of its clusters broke meanwhile",
                |i, _| {
                    i.strategy.limits.max_failures = IntOrPercent::Int(0);
                    let reason = "HealthCheckFailed".into();
                    let message = "0/1".into();
                    observed(i, "first").progress = Progress::Applied(Applied {
                        since: None,
                        longest: Duration::from_secs(100),
                        problem: Some(HealthProblem { reason, message }),
                    });
                },
                "WrongRecord",
            ),
        ],
    );
}

/// The first stage opens with the rollout; a stage without a cluster on the release does not pass.
#[test]
fn the_first_stage_and_an_unproven_one_are_checked() {
    refused(
        || {
            let (mut input, mut plan) = good();
            input.rollout.stages.clear();
            observed(&mut input, "first").suspended = true;
            observed(&mut input, "first").progress = Progress::Working;
            let reason = HoldReason::SyncSuspended { entry: "app".into() };
            decide(&mut plan, "first", hold(reason));
            let canary = &mut plan.stages[0];
            canary.record = StageRecord {
                opened_at: Some(t(0)),
                ..StageRecord::default()
            };
            canary.phase = StagePhase::Waiting(StageWait::Unproven);
            for tally in [&mut plan.tally, &mut plan.stages[0].tally] {
                (tally.done, tally.unavailable) = (0, 1);
            }
            for name in ["eu-1", "eu-2", "rest"] {
                decide(&mut plan, name, hold(behind(0, StageWait::Unproven)));
            }
            plan.recheck_at = None;
            (input, plan)
        },
        &[
            (
                "opened at the time of a plan",
                |_, p| p.stages[0].record.opened_at = Some(t(60)),
                "WrongRecord",
            ),
            (
                "completed",
                |_, p| p.stages[0].record.completed_at = Some(t(60)),
                "WrongRecord",
            ),
            (
                "passed",
                |_, p| p.stages[0].record.passed_at = Some(t(60)),
                "WrongRecord",
            ),
            (
                "promoted by nobody",
                |_, p| p.stages[0].phase = StagePhase::Passed,
                "WrongStagePhase",
            ),
            (
                "promoted, and not passed",
                |i, _| {
                    i.operator.promoted.insert("canary".into(), attribution());
                },
                "WrongRecord",
            ),
        ],
    );
}

#[test]
fn a_wrong_verdict_is_refused() {
    refused(
        gate_failed,
        &[
            (
                "in progress",
                |_, p| p.verdict = RolloutVerdict::InProgress,
                "WrongVerdict",
            ),
            (
                "another message",
                |_, p| {
                    let (stage, message) = (0, "404".into());
                    p.verdict = RolloutVerdict::Stopped(Stop::GateFailed { stage, message });
                },
                "WrongVerdict",
            ),
            (
                "rolls back without onFailure",
                |_, p| {
                    let (stage, message) = (0, "500".into());
                    p.verdict = RolloutVerdict::RollBack(Stop::GateFailed { stage, message });
                },
                "WrongVerdict",
            ),
            (
                "stops, where the strategy rolls back",
                |i, _| i.strategy.on_failure = OnFailure::Rollback,
                "WrongVerdict",
            ),
            (
                "stops, where the strategy continues",
                |i, _| i.strategy.on_failure = OnFailure::Continue,
                "WrongRecord",
            ),
        ],
    );
    refused(
        good,
        &[(
            "succeeded",
            |_, p| p.verdict = RolloutVerdict::Succeeded,
            "WrongVerdict",
        )],
    );
}
