//! What becomes of the rollout.

use starling_api::OnFailure;

use super::facts::State;
use super::member::Member;
use super::moment::Moment;
use super::violation::Violation;
use crate::plan::stages::{Direction, StageWait, Stop, Verdict};
use crate::plan::types::Reach;

impl Moment<'_> {
    pub(super) fn verdict_is_true(&self) -> Result<(), Violation> {
        let said = &self.plan.verdict;
        let stops = self.stops();
        let goes_back = self.input.rollout.direction == Direction::Forward
            && self.input.strategy.on_failure == OnFailure::Rollback;
        let is_so = match said {
            Verdict::Stopped(stop @ Stop::Aborted(_)) => stops.contains(stop),
            Verdict::Stopped(stop) => !goes_back && self.by_itself(&stops) && stops.contains(stop),
            Verdict::RollBack(stop) => goes_back && self.by_itself(&stops) && stops.contains(stop),
            // What is through and was given up, or lost what failed, may be called either.
            Verdict::Through => self.is_through(false) && (stops.is_empty() || !self.by_itself(&stops)),
            Verdict::Rolls => !self.is_through(true) && stops.is_empty(),
        };
        if is_so {
            return Ok(());
        }
        Err(Violation::WrongVerdict {
            said: said.clone(),
            stops,
        })
    }

    /// Whether no person gave it up.
    fn by_itself(&self, stops: &[Stop]) -> bool {
        !stops.iter().any(|stop| matches!(stop, Stop::Aborted(_)))
    }

    /// Everything that stops the rollout.
    fn stops(&self) -> Vec<Stop> {
        let person = self.input.steering.aborted.clone().map(Stop::Aborted);
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

    /// Every stage is passed and every cluster done, skipped, or out of reach, and none is missing; or there are none. One that was lost on
    /// the way is out of reach and has failed, and one that is passed over may have work to finish: `strictly`, they stand
    /// in the way, and otherwise not; the rules leave it open.
    fn is_through(&self, strictly: bool) -> bool {
        let out_of_reach = |member: &Member<'_>| {
            let unreachable = matches!(member.view.reach, Reach::Unreachable { .. });
            let lost = !matches!(member.facts.state, State::Obstructed);
            unreachable && !self.rules.waits_for_unreachable && !(strictly && lost)
        };
        let settled = |member: &Member<'_>| {
            let stage = self.rules.skipped(self.input, member.stage);
            let passed_over = member.skipped.is_some() || stage.is_some();
            let skipped = passed_over && !(strictly && member.facts.admitted);
            matches!(member.facts.state, State::Done) || skipped || out_of_reach(member)
        };
        let passed = self.stages.iter().all(|stage| stage.record.passed_at.is_some());
        !self.input.membership_held && (self.fleet.is_empty() || passed) && self.fleet.iter().all(settled)
    }
}
