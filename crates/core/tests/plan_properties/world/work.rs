//! What the group does: it plans, stores the records of the plan, and writes what the plan starts.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use starling_api::OnFailure;
use starling_core::ids::ClusterName;
use starling_core::plan::check::check;
use starling_core::plan::{
    AdmittedRelease, Decision, Direction, Gate, GateRecord, GateResult, ObservedSync, Plan, Progress, Reach,
    StageRecord, StageRules, plan,
};

use super::member::Member;
use super::{World, target};
use crate::events::Event;

impl World {
    /// Returns on how many clusters the group is in flight: they are ready, or were lost after their admission to the
    /// current release; their deadline is not over, and nothing that was admitted with it or later has failed, or broke
    /// before it had soaked.
    pub(crate) fn at_work(&self) -> usize {
        let members = self.members.values();
        members.filter(|member| self.is_at_work(member)).count()
    }

    fn is_at_work(&self, member: &Member) -> bool {
        let syncs = || member.syncs.values();
        let deadline = self.strategy.limits.progress_deadline;
        let fails: Vec<&ObservedSync> = member
            .syncs
            .iter()
            .filter(|(entry, sync)| self.fails(member, entry, sync))
            .map(|(_, sync)| sync)
            .collect();
        let work = syncs().filter(|sync| {
            let failed = |other: &&ObservedSync| {
                fails.contains(other)
                    && (other.release == sync.release || other.admitted_at >= sync.admitted_at)
            };
            sync.progress == Progress::Working
                && sync.admitted_at.is_some_and(|at| at + deadline > self.now)
                && syncs().find(failed).is_none()
        });
        let untouched = member.reach != Reach::Suspended && syncs().all(|sync| !sync.suspended);
        let ready = member.reach == Reach::Ready;
        untouched
            && work
                .into_iter()
                .any(|sync| ready || sync.release == self.rollout.release)
    }

    fn fails(&self, member: &Member, entry: &str, sync: &ObservedSync) -> bool {
        let wanted = target(self.release(), member, entry).ok();
        let soak = match self.rollout.direction {
            Direction::BackAtOnce => Duration::ZERO,
            Direction::Forward | Direction::Back => self.strategy.limits.min_success_time,
        };
        match &sync.progress {
            Progress::Failing { .. } => true,
            Progress::Applied(applied) => {
                applied.problem.is_some() && sync.target == wanted && applied.longest < soak
            }
            Progress::Working => false,
        }
    }

    /// Plans after `event` and executes the plan, up to the write after which a crash ends it. Returns the clusters
    /// that were admitted to this release.
    pub(crate) fn roll(&mut self, event: &Event) -> Result<Vec<ClusterName>, TestCaseError> {
        let writes = match event {
            Event::Crash(writes) => usize::from(*writes),
            _ => usize::MAX,
        };
        let (_, written) = self.plan_and_write(writes)?;
        Ok(written)
    }

    pub(crate) fn plan_and_execute(&mut self) -> Result<Plan, TestCaseError> {
        Ok(self.plan_and_write(usize::MAX)?.0)
    }

    fn plan_and_write(&mut self, mut writes: usize) -> Result<(Plan, Vec<ClusterName>), TestCaseError> {
        let input = self.input();
        let plan = plan(&input);
        prop_assert_eq!(check(&input, &plan), Ok(()), "{:#?} {:#?}", input, plan);
        // Gates and jitter count from recorded times, so records are stored first; a crash may come even before.
        if writes > 0 {
            let records = plan
                .stages
                .iter()
                .map(|stage| (stage.name.clone(), stage.record.clone()));
            let records: BTreeMap<String, StageRecord> = records.collect();
            self.rollout.stages.extend(records);
        }
        let before = self.at_work();
        let mut written = Vec::new();
        for (name, decision) in &plan.decisions {
            let Decision::Start { entries, to } = decision else {
                continue;
            };
            if writes == 0 {
                // Nothing is written any more, and the records that the plan depends on may not be stored either.
                break;
            }
            prop_assert!(
                *to == AdmittedRelease::LastKnownGood || self.may_start(name),
                "{} before what its stage waits for: {:#?}",
                name,
                plan
            );
            for entry in entries {
                if writes == 0 {
                    break;
                }
                writes -= 1;
                self.admit(name, entry, *to);
                if *to == AdmittedRelease::Release && written.last() != Some(name) {
                    written.push(name.clone());
                }
            }
        }
        let (after, bound) = (self.at_work(), before.max(self.bounds().0));
        prop_assert!(after <= bound, "at work on {} of {}: {:#?}", after, bound, plan);
        if plan.verdict == starling_core::plan::RolloutVerdict::Succeeded {
            self.good = Some(self.release().clone());
        }
        Ok((plan, written))
    }

    /// Whether everything before the stage of this cluster has passed: every earlier gate was approved, or has the
    /// result passed, in this rollout, or an operator promoted or skipped the stage. Other cases are not checked.
    fn may_start(&self, name: &str) -> bool {
        if self.irregular || self.rollout.direction != Direction::Forward {
            return true;
        }
        let stages = &self.strategy.stages;
        let own = self.members[name].stage % stages.len();
        let is_relinquished = |stage: &StageRules| {
            let operator = &self.operator;
            operator.promoted.contains_key(&stage.name) || operator.skipped_stages.contains_key(&stage.name)
        };
        let in_front = || stages.iter().take(own).filter(|stage| !is_relinquished(stage));
        is_relinquished(&stages[own])
            || (in_front().all(|stage| self.is_passed(stage, true)) && self.is_passed(&stages[own], false))
    }

    /// Whether the gates before a stage have passed, and those after it if requested.
    fn is_passed(&self, stage: &StageRules, after: bool) -> bool {
        let record = self.rollout.stages.get(&stage.name).cloned().unwrap_or_default();
        let passed =
            |gate: &Gate, recorded: Option<&GateRecord>| match (gate, recorded.map(|gate| &gate.result)) {
                (Gate::TimedWait(wait), _) => recorded.is_some_and(|gate| gate.begun_at + *wait <= self.now),
                (Gate::Approval, _) => self.rollout.approvals.contains_key(&stage.name),
                (Gate::Effect(_), Some(Some(GateResult::Passed))) => true,
                (Gate::Effect(_), Some(Some(GateResult::Failed { .. }))) => {
                    self.strategy.on_failure == OnFailure::Continue
                }
                (Gate::Effect(_), _) => false,
            };
        let all = |gates: &[Gate], records: &[GateRecord]| {
            let mut gates = gates.iter().enumerate();
            gates.all(|(place, gate)| passed(gate, records.get(place)))
        };
        all(&stage.before, &record.before) && (!after || all(&stage.after, &record.after))
    }

    fn admit(&mut self, name: &str, entry: &str, to: AdmittedRelease) {
        let release = match to {
            AdmittedRelease::Release => self.release().clone(),
            AdmittedRelease::LastKnownGood => self.good.clone().unwrap(),
        };
        let digest = super::name(&release);
        let sync = ObservedSync {
            stored_admitted_at: None,
            target: Some(target(&release, &self.members[name], entry).unwrap()),
            release: digest.into(),
            admitted_at: Some(self.now),
            progress: Progress::Working,
            retried_for: None,
            suspended: false,
        };
        let entry = self.entries.iter().find(|known| **known == entry).unwrap();
        self.members.get_mut(name).unwrap().syncs.insert(entry, sync);
    }
}
