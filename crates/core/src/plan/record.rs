//! The records of stages as `status.rollout.stages` has them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use starling_api::{RolloutStatus, StageStatus, StageTaskType, TaskResult, TaskStatus};

use super::stages::{Gate, GateRecord, GateResult, StagePhase, StagePlan, StageRecord, StageWait};
use super::types::Plan;
use crate::clock_jumps::{is_far_ahead, not_far_ahead};

/// Returns the records of the stages of a rollout in status, by name. What cannot be parsed was not written by Starling
/// and is left out.
#[must_use]
pub fn recorded(rollout: &RolloutStatus) -> BTreeMap<String, StageRecord> {
    let stages = rollout.stages.iter();
    stages.map(|stage| (stage.name.clone(), record(stage))).collect()
}

fn record(stage: &StageStatus) -> StageRecord {
    let gates = |tasks: &[TaskStatus]| tasks.iter().map_while(gate_record).collect();
    StageRecord {
        opened_at: stage.start_time.parse().ok(),
        completed_at: stage.completion_time.parse().ok(),
        passed_at: stage.pass_time.parse().ok(),
        before: gates(&stage.before_stage_tasks),
        after: gates(&stage.after_stage_tasks),
    }
}

/// Returns when a rollout started. A start that lies far ahead was written by a clock that was wrong, and is unknown:
/// then [`Timestamp::UNIX_EPOCH`], so that no jitter counts from it. It stays in status, since it identifies the
/// rollout.
#[must_use]
pub fn believed_start(start_time: &str, now: Timestamp) -> Timestamp {
    let started_at = start_time.parse().ok();
    started_at
        .filter(|at| !is_far_ahead(*at, now))
        .unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Replaces times that lie far ahead: a clock that was wrong wrote them, and timed gates, soak times and jitter would
/// count from them. The begin of a gate that another system decides stays, since it identifies the evaluation.
pub fn replace_future_times(stages: &mut BTreeMap<String, StageRecord>, now: Timestamp) {
    let replace = |time: &mut Timestamp| {
        *time = not_far_ahead(*time, now);
    };
    for record in stages.values_mut() {
        let times = [
            &mut record.opened_at,
            &mut record.completed_at,
            &mut record.passed_at,
        ];
        times.into_iter().flatten().for_each(replace);
        let gates = record.before.iter_mut().chain(&mut record.after);
        let own = gates.filter(|gate| !matches!(gate.gate, Gate::Effect(_)));
        own.map(|gate| &mut gate.begun_at).for_each(replace);
    }
}

fn gate_record(task: &TaskStatus) -> Option<GateRecord> {
    Some(GateRecord {
        gate: match (task.type_, task.wait_time) {
            (StageTaskType::TimedWait, wait) => Gate::TimedWait(wait?.as_std()),
            (StageTaskType::Approval, _) => Gate::Approval,
            (effect, _) => Gate::Effect(effect),
        },
        begun_at: task.start_time.parse().ok()?,
        result: task.result.map(|result| match result {
            TaskResult::Passed => GateResult::Passed,
            TaskResult::Failed => GateResult::Failed {
                message: task.message.clone(),
            },
        }),
    })
}

/// Returns the stages of a plan as status has them; `soaks` is that of its [`Report`](super::Report). A strategy
/// without stages has none in status: its implicit stage is the whole group.
#[must_use]
pub fn stage_statuses(plan: &Plan, soaks: &BTreeMap<String, Timestamp>) -> Vec<StageStatus> {
    if plan.stages.len() < 2 {
        return Vec::new();
    }
    let stages = plan.stages.iter();
    stages
        .map(|stage| stage_status(stage, soaks.get(&stage.name)))
        .collect()
}

fn stage_status(stage: &StagePlan, soaks: Option<&Timestamp>) -> StageStatus {
    let count = |clusters: usize| u32::try_from(clusters).unwrap_or(u32::MAX);
    let text = |at: Option<Timestamp>| at.map(|at| at.to_string()).unwrap_or_default();
    let (phase, until) = phase(&stage.phase, soaks.copied());
    let record = &stage.record;
    StageStatus {
        name: stage.name.clone(),
        total: count(stage.tally.total),
        updated: count(stage.tally.done),
        failed: count(stage.tally.failed),
        phase: phase.to_owned(),
        until: text(until),
        start_time: text(record.opened_at),
        completion_time: text(record.completed_at),
        pass_time: text(record.passed_at),
        before_stage_tasks: record.before.iter().map(task_status).collect(),
        after_stage_tasks: record.after.iter().map(task_status).collect(),
    }
}

fn task_status(record: &GateRecord) -> TaskStatus {
    let (type_, wait_time) = match record.gate {
        Gate::TimedWait(wait) => (StageTaskType::TimedWait, Some(wait.into())),
        Gate::Approval => (StageTaskType::Approval, None),
        Gate::Effect(effect) => (effect, None),
    };
    let (result, message) = match &record.result {
        None => (None, ""),
        Some(GateResult::Passed) => (Some(TaskResult::Passed), ""),
        Some(GateResult::Failed { message }) => (Some(TaskResult::Failed), message.as_str()),
    };
    TaskStatus {
        type_,
        wait_time,
        start_time: record.begun_at.to_string(),
        result,
        message: message.to_owned(),
    }
}

/// Returns the phase for status, and when time ends it. `soaks`: when the clusters of the stage have soaked, if nothing
/// else is in flight.
fn phase(phase: &StagePhase, soaks: Option<Timestamp>) -> (&'static str, Option<Timestamp>) {
    match phase {
        StagePhase::Pending => ("Pending", None),
        StagePhase::Open if soaks.is_some() => ("Soaking", soaks),
        StagePhase::Open => ("Progressing", None),
        StagePhase::Passed => ("Succeeded", None),
        StagePhase::Skipped(_) => ("Skipped", None),
        // A TimedWait after healthy clusters is a soak of the whole stage.
        StagePhase::Waiting(StageWait::Gate {
            gate: Gate::TimedWait(_),
            until,
        }) => ("Soaking", *until),
        StagePhase::Waiting(wait) => (wait.as_str(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{RolloutVerdict, Tally};
    use std::time::Duration;

    fn t(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        let gate = |gate, result| GateRecord {
            gate,
            begun_at: t(7),
            result,
        };
        let failed = GateResult::Failed {
            message: "no".to_owned(),
        };
        let record = StageRecord {
            opened_at: Some(t(1)),
            completed_at: Some(t(2)),
            passed_at: Some(t(3)),
            before: vec![
                gate(Gate::Effect(StageTaskType::Webhook), Some(GateResult::Passed)),
                gate(Gate::Effect(StageTaskType::Job), Some(failed)),
            ],
            after: vec![
                gate(Gate::TimedWait(Duration::from_secs(90)), None),
                gate(Gate::Approval, None),
            ],
        };
        let stage = |name: &str, record: StageRecord| StagePlan {
            name: name.to_owned(),
            phase: StagePhase::Passed,
            record,
            tally: Tally::default(),
        };
        let plan = Plan {
            removals: BTreeMap::new(),
            prunes: Default::default(),
            decisions: BTreeMap::new(),
            stages: vec![
                stage("canary", record.clone()),
                stage("*", StageRecord::default()),
            ],
            tally: Tally::default(),
            verdict: RolloutVerdict::InProgress,
            recheck_at: None,
        };
        let status = RolloutStatus {
            stages: stage_statuses(&plan, &BTreeMap::new()),
            ..RolloutStatus::default()
        };
        let json = serde_json::to_value(&status).unwrap();
        let read = recorded(&serde_json::from_value(json).unwrap());
        assert_eq!(read["canary"], record);
        assert_eq!(read["*"], StageRecord::default());
    }

    #[test]
    fn phases_and_the_end_of_waits_are_in_status() {
        let gate = |gate, until| StagePhase::Waiting(StageWait::Gate { gate, until });
        let attribution = crate::plan::Attribution {
            by: "jane".into(),
            reason: String::new(),
            at: t(0),
        };
        for (of, expected) in [
            (StagePhase::Pending, ("Pending", None)),
            (StagePhase::Open, ("Progressing", None)),
            (StagePhase::Passed, ("Succeeded", None)),
            (StagePhase::Skipped(attribution), ("Skipped", None)),
            (
                gate(Gate::TimedWait(Duration::ZERO), Some(t(4))),
                ("Soaking", Some(t(4))),
            ),
            (gate(Gate::Approval, None), ("AwaitingApproval", None)),
            (StagePhase::Waiting(StageWait::Unproven), ("StageUnproven", None)),
        ] {
            assert_eq!(phase(&of, None), expected);
        }
        assert_eq!(phase(&StagePhase::Open, Some(t(4))), ("Soaking", Some(t(4))));
        assert_eq!(phase(&StagePhase::Passed, Some(t(4))), ("Succeeded", None));
    }

    #[test]
    fn a_strategy_without_stages_has_none_in_status() {
        let stage = |name: &str| StagePlan {
            name: name.to_owned(),
            phase: StagePhase::Open,
            record: StageRecord::default(),
            tally: Tally::default(),
        };
        for (names, expected) in [(&["*"][..], 0), (&["canary", "*"], 2), (&["a", "b", "*"], 3)] {
            let plan = Plan {
                removals: BTreeMap::new(),
                prunes: Default::default(),
                decisions: BTreeMap::new(),
                stages: names.iter().map(|name| stage(name)).collect(),
                tally: Tally::default(),
                verdict: RolloutVerdict::InProgress,
                recheck_at: None,
            };
            assert_eq!(
                stage_statuses(&plan, &BTreeMap::new()).len(),
                expected,
                "{names:?}"
            );
        }
    }
}
