//! The verdict on the rollout.

use starling_api::OnFailure;

use super::facts::CheckedState;
use super::member::CheckedMember;
use super::moment::Moment;
use super::violation::Violation;
use crate::plan::stages::{Direction, RolloutVerdict, StageWait, Stop};
use crate::plan::types::Reach;

impl Moment<'_> {
    pub(super) fn verdict_is_true(&self) -> Result<(), Violation> {
        let actual = &self.plan.verdict;
        let stops = self.stops();
        let goes_back = self.input.rollout.direction == Direction::Forward
            && self.input.strategy.on_failure == OnFailure::Rollback;
        let is_true = match actual {
            RolloutVerdict::Stopped(stop @ Stop::Aborted(_)) => stops.contains(stop),
            RolloutVerdict::Stopped(stop) => !goes_back && self.by_itself(&stops) && stops.contains(stop),
            RolloutVerdict::RollBack(stop) => goes_back && self.by_itself(&stops) && stops.contains(stop),
            // A rollout that succeeded and was aborted, or whose failed clusters left, may have either verdict.
            RolloutVerdict::Succeeded => {
                self.has_succeeded(false) && (stops.is_empty() || !self.by_itself(&stops))
            }
            RolloutVerdict::InProgress => !self.has_succeeded(true) && stops.is_empty(),
        };
        if is_true {
            return Ok(());
        }
        Err(Violation::WrongVerdict {
            actual: actual.clone(),
            stops,
        })
    }

    /// Reports whether no operator aborted the rollout.
    fn by_itself(&self, stops: &[Stop]) -> bool {
        !stops.iter().any(|stop| matches!(stop, Stop::Aborted(_)))
    }

    /// Returns everything that stops the rollout.
    fn stops(&self) -> Vec<Stop> {
        let person = self.input.operator.aborted.clone().map(Stop::Aborted);
        let budgets = self.overdrawn().map(|(stage, scope)| Stop::TooManyFailures {
            stage,
            failed: scope.tally.failed,
            allowed: scope.tally.failures_allowed,
        });
        let gates = self.stages.iter().enumerate().filter_map(|(stage, found)| {
            found.waits.iter().find_map(|wait| match wait {
                StageWait::GateFailed { message, .. } => Some(Stop::GateFailed {
                    stage,
                    message: message.clone(),
                }),
                _ => None,
            })
        });
        person.into_iter().chain(budgets).chain(gates).collect()
    }

    /// Reports whether every stage has passed and every cluster is done, skipped or unreachable, and none is missing;
    /// or there are no clusters. A cluster that was lost after its admission is unreachable and failed, and a skipped
    /// cluster may have work in progress: `strictly`, these count as not done. The rules allow both.
    fn has_succeeded(&self, strictly: bool) -> bool {
        let out_of_reach = |member: &CheckedMember<'_>| {
            let unreachable = matches!(member.view.reach, Reach::Unreachable { .. });
            let lost = !matches!(member.facts.state, CheckedState::Obstructed);
            unreachable && !self.rules.waits_for_unreachable && !(strictly && lost)
        };
        let settled = |member: &CheckedMember<'_>| {
            let stage = self.rules.skipped(self.input, member.stage);
            let passed_over = member.skipped.is_some() || stage.is_some();
            let skipped = passed_over && !(strictly && member.facts.admitted);
            matches!(member.facts.state, CheckedState::Done) || skipped || out_of_reach(member)
        };
        let passed = self.stages.iter().all(|stage| stage.record.passed_at.is_some());
        !self.input.membership_held && (self.fleet.is_empty() || passed) && self.fleet.iter().all(settled)
    }
}
