//! One plan against the fleet at one time.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::facts::CheckedState;
use super::member::CheckedMember;
use super::rules::{CheckedRules, share};
use super::stage::{CheckedScope, CheckedStage, StageContext};
use super::violation::Violation;
use crate::plan::stages::{StagePhase, StageRecord, StageWait};
use crate::plan::types::{Decision, FailureReason, Plan, PlanInput, Reach};

/// One plan against the fleet at one time.
pub(super) struct Moment<'a> {
    pub(super) input: &'a PlanInput,
    pub(super) plan: &'a Plan,
    pub(super) rules: &'a CheckedRules<'a>,
    pub(super) at: Timestamp,
    pub(super) fleet: Vec<CheckedMember<'a>>,
    pub(super) stages: Vec<CheckedStage>,
    pub(super) group: CheckedScope,
}

impl<'a> Moment<'a> {
    /// Evaluates the fleet at a time; `records` are the records of the stages at that time.
    pub(super) fn at(
        input: &'a PlanInput,
        plan: &'a Plan,
        rules: &'a CheckedRules<'a>,
        at: Timestamp,
        records: &BTreeMap<String, StageRecord>,
    ) -> Self {
        let decided = plan.decisions.iter();
        let mut fleet: Vec<CheckedMember<'a>> = decided
            .filter_map(|(name, decision)| CheckedMember::of(input, rules, name, decision, at))
            .collect();
        let limits = &input.strategy.limits;
        let total = fleet.len();
        let unavailable = rules.unavailable.map_or(total, |limit| share(limit, total, 0));
        let failures = share(limits.max_failures, total, 0);
        let mut group = CheckedScope::of(
            &fleet.iter(),
            Some(limits.max_concurrency),
            failures,
            unavailable.max(1),
        );
        let mut stages: Vec<CheckedStage> = Vec::new();
        let (none, mut is_next) = (StageRecord::default(), true);
        for (index, stage) in rules.stages.iter().enumerate() {
            let context = StageContext {
                input,
                rules,
                index,
                stage,
                at,
                old: records.get(&stage.name).unwrap_or(&none),
                planned: plan.stages.get(index).map_or(&none, |planned| &planned.record),
                is_next,
                failures_allowed: failures,
                unavailable_allowed: unavailable.max(1),
            };
            let stage = context.stage(&fleet);
            is_next &= stage.record.passed_at.is_some();
            stages.push(stage);
        }
        for member in &mut fleet {
            let stage = stages.get(member.stage);
            member.stage_is_open = stage.is_some_and(|stage| stage.opening.is_some());
        }
        group.count_unavailable(&fleet.iter());
        for (index, stage) in stages.iter_mut().enumerate() {
            stage
                .scope
                .count_unavailable(&fleet.iter().filter(|member| member.stage == index));
        }
        Self {
            input,
            plan,
            rules,
            at,
            fleet,
            stages,
            group,
        }
    }

    /// Returns the scopes whose failure limit is exceeded: the group (`None`), and each stage that has not passed.
    pub(super) fn overdrawn(&self) -> impl Iterator<Item = (Option<usize>, &CheckedScope)> {
        let group = Some((None, &self.group));
        let stages = self.stages.iter().enumerate();
        let waiting = stages.filter(|(_, stage)| stage.record.passed_at.is_none());
        let all = group
            .into_iter()
            .chain(waiting.map(|(place, stage)| (Some(place), &stage.scope)));
        all.filter(|(_, scope)| !self.rules.continues && scope.is_overdrawn())
    }

    /// Returns the stages with a failed gate: each stops all starts.
    pub(super) fn failed_gates(&self) -> impl Iterator<Item = usize> {
        let failed = |stage: &CheckedStage| {
            let mut waits = stage.waits.iter();
            waits.any(|wait| matches!(wait, StageWait::GateFailed { .. }))
        };
        let stages = self.stages.iter().enumerate();
        stages
            .filter(move |(_, stage)| failed(stage))
            .map(|(place, _)| place)
    }

    /// Checks that every decision is true at this time, and that no cluster waits for what is available.
    pub(super) fn decisions_are_true(&self) -> Result<(), Violation> {
        self.fleet.iter().try_for_each(|member| match member.decision {
            Decision::Start { .. } | Decision::Retry { .. } | Decision::Remove { .. } => Ok(()),
            Decision::Done => done_is_true(member),
            _ if matches!(member.facts.state, CheckedState::Done) => Err(Violation::DoneUnnoticed {
                cluster: member.name.clone(),
            }),
            Decision::InFlight { deadline, lost } => in_flight_is_true(member, *deadline, *lost),
            Decision::Soaking { until } => soaking_is_true(member, *until),
            Decision::Failed { reason, retry_at } => failed_is_true(member, reason, *retry_at),
            Decision::Hold { reason, recheck_at } => self.hold_is_true(member, reason, *recheck_at),
        })
    }

    /// Checks that every stage has the planned phase, and that exactly what is new is recorded.
    pub(super) fn stages_are_true(&self) -> Result<(), Violation> {
        let names = self.rules.stages.iter().map(|stage| &stage.name);
        if !names.eq(self.plan.stages.iter().map(|stage| &stage.name)) {
            return Err(Violation::WrongStages);
        }
        for (stage, actual) in self.stages.iter().zip(&self.plan.stages) {
            self.record_is_true(stage, &actual.record, &actual.name)?;
            if !stage.phases.contains(&actual.phase) {
                return Err(Violation::WrongStagePhase {
                    stage: actual.name.clone(),
                    actual: actual.phase.clone(),
                    expected: stage.phases.clone(),
                });
            }
        }
        Ok(())
    }

    fn record_is_true(
        &self,
        stage: &CheckedStage,
        actual: &StageRecord,
        name: &str,
    ) -> Result<(), Violation> {
        let expected = &stage.record;
        let passed = expected.passed_at.is_some();
        // A stage that passes without having opened may be recorded as opened by that, and a stage whose clusters no
        // longer matter need not be recorded as complete.
        let may_begin = |actual: Option<Timestamp>, expected: Option<Timestamp>| {
            actual == expected || (passed && expected.is_none() && actual == Some(self.at))
        };
        let wrong = |what| {
            Err(Violation::WrongRecord {
                stage: name.to_owned(),
                what,
                actual: Box::new(actual.clone()),
                expected: Box::new(expected.clone()),
            })
        };
        if actual.passed_at != expected.passed_at {
            return wrong("passedAt");
        }
        if !may_begin(actual.opened_at, expected.opened_at) {
            return wrong("openedAt");
        }
        if !may_begin(actual.completed_at, expected.completed_at) {
            return wrong("completedAt");
        }
        if actual.before != expected.before && !stage.other_before.contains(&actual.before) {
            return wrong("before");
        }
        if actual.after != expected.after && !stage.other_after.contains(&actual.after) {
            return wrong("after");
        }
        Ok(())
    }

    /// Checks that the counts are those of the plan.
    pub(super) fn tallies_are_true(&self) -> Result<(), Violation> {
        let mut actual = self.plan.tally;
        if self.rules.unavailable.is_none() {
            actual.unavailable_allowed = self.group.tally.unavailable_allowed;
        }
        if actual != self.group.tally {
            return Err(Violation::WrongTally {
                stage: None,
                actual: self.plan.tally,
                expected: self.group.tally,
            });
        }
        for (stage, planned) in self.stages.iter().zip(&self.plan.stages) {
            let (mut actual, mut expected) = (planned.tally, stage.scope.tally);
            if self.rules.unavailable.is_none() {
                actual.unavailable_allowed = expected.unavailable_allowed;
            }
            // The plan that passes a stage may count its broken clusters for the last time.
            if stage.passes_now && actual.failed == expected.failed + stage.broken {
                expected.failed = actual.failed;
            }
            if actual != expected {
                return Err(Violation::WrongTally {
                    stage: Some(planned.name.clone()),
                    actual: planned.tally,
                    expected,
                });
            }
        }
        Ok(())
    }

    /// Checks that no more clusters than allowed are in flight or unavailable, unless as many were before.
    pub(super) fn bounds_hold(&self) -> Result<(), Violation> {
        let begun = self.begun();
        if let Some(bound) = self.input.installation_slots.filter(|bound| begun > *bound) {
            return Err(Violation::InstallationLimit { begun, bound });
        }
        let stages = self.stages.iter().zip(&self.plan.stages);
        let scopes = stages.map(|(stage, planned)| (Some(&planned.name), &stage.scope));
        for (stage, scope) in [(None, &self.group)].into_iter().chain(scopes) {
            let stage = || stage.cloned();
            let (after, bound) = (
                scope.unavailable_after,
                scope.tally.unavailable_allowed.max(scope.tally.unavailable),
            );
            if self.rules.unavailable.is_some() && after > bound {
                return Err(Violation::TooManyUnavailable {
                    stage: stage(),
                    after,
                    bound,
                });
            }
            let Some(slots) = scope.tally.slots else { continue };
            let (after, bound) = (scope.in_flight_after, slots.max(scope.tally.in_flight));
            if after > bound {
                return Err(Violation::TooManyInFlight {
                    stage: stage(),
                    after,
                    bound,
                });
            }
            let (after, bound) = (scope.reached_after, slots.max(scope.reached));
            if after > bound {
                return Err(Violation::ReleaseTooWide {
                    stage: stage(),
                    after,
                    bound,
                });
            }
        }
        Ok(())
    }

    pub(super) fn is_open(&self, stage: usize) -> bool {
        self.stages
            .get(stage)
            .is_some_and(|stage| stage.opening.is_some())
    }

    /// Returns the planned phase of a stage.
    pub(super) fn phase(&self, stage: usize) -> Option<&StagePhase> {
        self.plan.stages.get(stage).map(|stage| &stage.phase)
    }
}

fn done_is_true(member: &CheckedMember<'_>) -> Result<(), Violation> {
    match member.facts.state {
        CheckedState::Done => Ok(()),
        _ => Err(Violation::NotDone {
            cluster: member.name.clone(),
        }),
    }
}

fn in_flight_is_true(
    member: &CheckedMember<'_>,
    actual: Option<Timestamp>,
    lost: bool,
) -> Result<(), Violation> {
    let cluster = member.name.clone();
    match member.facts.state {
        CheckedState::UnderWay { deadline } if actual != deadline => Err(Violation::WrongDeadline {
            cluster,
            actual,
            expected: deadline,
        }),
        CheckedState::UnderWay { .. } if lost == (member.view.reach == Reach::Ready) => {
            Err(Violation::WrongLost {
                cluster,
                actual: lost,
            })
        }
        CheckedState::UnderWay { .. } => Ok(()),
        CheckedState::Failed(_) => Err(Violation::FailureUnnoticed { cluster }),
        CheckedState::Soaking { .. } => Err(Violation::SoakUnnoticed { cluster }),
        CheckedState::Done | CheckedState::Obstructed | CheckedState::Startable { .. } => {
            Err(Violation::NothingUnderWay { cluster })
        }
    }
}

fn soaking_is_true(member: &CheckedMember<'_>, actual: Timestamp) -> Result<(), Violation> {
    let cluster = member.name.clone();
    match member.facts.state {
        CheckedState::Soaking { until } if until == actual => Ok(()),
        CheckedState::Soaking { until: expected } => Err(Violation::WrongSoak {
            cluster,
            actual,
            expected,
        }),
        _ => Err(Violation::NotSoaking { cluster }),
    }
}

fn failed_is_true(
    member: &CheckedMember<'_>,
    reason: &FailureReason,
    retry_at: Option<Timestamp>,
) -> Result<(), Violation> {
    let cluster = member.name.clone();
    match &member.facts.state {
        CheckedState::Failed(causes) if causes.contains(&(reason.clone(), retry_at)) => Ok(()),
        CheckedState::Failed(_) => Err(Violation::WrongFailure { cluster }),
        _ => Err(Violation::NothingFailed { cluster }),
    }
}
