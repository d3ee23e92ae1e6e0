//! The state of the stages, in order, with what is recorded of each.

use std::collections::BTreeMap;

use jiff::Timestamp;
use starling_api::{OnFailure, OnUnreachable};

use super::stages::{
    Attribution, Direction, Gate, GateRecord, GateResult, REST, StagePhase, StagePlan, StageRecord,
    StageRules, StageWait, Tally,
};
use super::state::{Class, ClusterState};
use super::types::{HoldReason, PlanInput};

/// A stage while the plan is computed.
pub(super) struct StageState {
    /// The stage as the plan has it.
    pub(super) plan: StagePlan,
    /// The condition that the stage waits for, and with it the next one; `None`: the stage has passed.
    pub(super) wait: Option<StageWait>,
    /// Clusters that this release was admitted to, and that are neither done nor failed.
    pub(super) reached: usize,
}

impl StageState {
    /// Returns since when the clusters of the stage may start.
    pub(super) fn open_since(&self) -> Option<Timestamp> {
        self.plan.record.opened_at.or(self.plan.record.passed_at)
    }

    /// Reports whether more clusters failed than the limit of the stage allows, while that matters.
    pub(super) fn is_overdrawn(&self) -> bool {
        let counts = !matches!(self.plan.phase, StagePhase::Passed | StagePhase::Skipped(_));
        counts && self.plan.tally.too_many_failures()
    }
}

/// Returns the stages of the strategy; an immediate rollback has one.
pub(super) fn rules(input: &PlanInput) -> Vec<StageRules> {
    match input.rollout.direction {
        Direction::Forward => input.strategy.stages.clone(),
        Direction::Back => {
            let mut stages = input.strategy.stages.clone();
            for stage in &mut stages {
                stage.before.clear();
                stage.after.clear();
            }
            stages
        }
        Direction::BackAtOnce => vec![StageRules {
            name: REST.to_owned(),
            max_concurrency: None,
            max_unavailable: None,
            max_failures: None,
            before: Vec::new(),
            after: Vec::new(),
        }],
    }
}

/// Reports whether the rollout continues despite failures, failed gates and unproven stages. A rollback does not, so
/// that it ends.
pub(super) fn continues_on_failure(input: &PlanInput) -> bool {
    input.strategy.on_failure == OnFailure::Continue && input.rollout.direction == Direction::Forward
}

/// Reports whether the rollout waits for unreachable clusters. An immediate rollback does not.
pub(super) fn waits_for_unreachable(input: &PlanInput) -> bool {
    input.strategy.on_unreachable == OnUnreachable::Wait && input.rollout.direction != Direction::BackAtOnce
}

/// Returns the index of the stage of a cluster in [`rules`].
pub(super) fn stage_of(input: &PlanInput, state: &ClusterState<'_>) -> usize {
    match input.rollout.direction {
        Direction::Forward | Direction::Back => state.cluster.stage,
        Direction::BackAtOnce => 0,
    }
}

/// Evaluates the stages in order. A stage that passes opens the next one within the same plan.
pub(super) fn walk(input: &PlanInput, rules: &[StageRules], states: &[ClusterState<'_>]) -> Vec<StageState> {
    let mut members: Vec<Vec<&ClusterState<'_>>> = vec![Vec::new(); rules.len()];
    for state in states {
        if let Some(stage) = members.get_mut(stage_of(input, state)) {
            stage.push(state);
        }
    }
    let mut clusters_left: usize = states.len();
    let mut may_open = true;
    let mut stages = Vec::with_capacity(rules.len());
    for (place, (rules, members)) in rules.iter().zip(&members).enumerate() {
        clusters_left -= members.len();
        let view = StageView {
            input,
            rules,
            members,
            is_first: place == 0,
            is_last: clusters_left == 0,
        };
        let mut stage = view.evaluate(may_open);
        may_open &= stage.wait.is_none();
        let is_open = stage.open_since().is_some();
        let unavailable = members.iter().filter(|member| member.is_unavailable(is_open));
        stage.plan.tally.unavailable = unavailable.count();
        stages.push(stage);
    }
    stages
}

struct StageView<'a> {
    input: &'a PlanInput,
    rules: &'a StageRules,
    members: &'a [&'a ClusterState<'a>],
    is_first: bool,
    /// Whether no later stage has clusters.
    is_last: bool,
}

impl StageView<'_> {
    fn evaluate(&self, may_open: bool) -> StageState {
        let mut record = self.recorded();
        let tally = self.tally(record.passed_at.is_some());
        let (phase, wait) = self.advance(&mut record, may_open, &tally);
        StageState {
            reached: self.members.iter().filter(|member| member.is_reached()).count(),
            plan: StagePlan {
                name: self.rules.name.clone(),
                phase,
                record,
                tally,
            },
            wait,
        }
    }

    fn recorded(&self) -> StageRecord {
        let recorded = self.input.rollout.stages.get(&self.rules.name);
        recorded.cloned().unwrap_or_default()
    }

    /// Advances the record of the stage as far as possible now.
    fn advance(
        &self,
        record: &mut StageRecord,
        may_open: bool,
        tally: &Tally,
    ) -> (StagePhase, Option<StageWait>) {
        let (now, operator, name) = (self.input.now, &self.input.operator, &self.rules.name);
        if let Some(attribution) = self.of_stage(&operator.skipped_stages) {
            if self.opens_with_rollout() {
                record.opened_at.get_or_insert(self.opens_at());
            }
            record.passed_at.get_or_insert(now);
            return (StagePhase::Skipped(attribution.clone()), None);
        }
        if self.of_stage(&operator.promoted).is_some() {
            record.opened_at.get_or_insert(self.opens_at());
            record.passed_at.get_or_insert(now);
        }
        if record.passed_at.is_some() {
            return (StagePhase::Passed, None);
        }
        let is_unknown = self.input.membership_held || self.input.clusters.is_empty();
        if is_unknown && (may_open || record.opened_at.is_some()) {
            return self.freeze(record);
        }
        if record.opened_at.is_none() {
            if !may_open {
                // The wait of the earlier stage is reported.
                return (StagePhase::Pending, Some(self.clusters()));
            }
            let (records, wait) = self.gates(&self.rules.before, &record.before);
            record.before = records;
            if let Some(wait) = wait {
                return (StagePhase::Waiting(wait.clone()), Some(wait));
            }
            record.opened_at = Some(self.opens_at());
        }
        debug_assert!(record.opened_at.is_some(), "{name} is open");
        self.close(record, tally)
    }

    /// Keeps the stage as it is while clusters are missing that vanished at once, or while the group has none. Nothing
    /// follows from the remaining clusters: a stage that appears empty is not proven, and no new gate begins, since
    /// other systems would then evaluate that fleet. Otherwise the stages of a group that exists before its clusters
    /// would all be passed when the clusters arrive.
    fn freeze(&self, record: &StageRecord) -> (StagePhase, Option<StageWait>) {
        let (gates, recorded, phase) = match record.opened_at {
            None => (&self.rules.before, &record.before, StagePhase::Pending),
            Some(_) => (&self.rules.after, &record.after, StagePhase::Open),
        };
        let begun = gates.iter().zip(recorded);
        let mut begun = begun.take_while(|(gate, record)| record.gate == **gate);
        match begun.find_map(|(_, record)| self.wait_for(record)) {
            Some(wait) => (StagePhase::Waiting(wait.clone()), Some(wait)),
            None => (phase, Some(self.clusters())),
        }
    }

    /// Returns when the stage opens, if it opens now. A group without stages has no stage records, so its only stage
    /// opens with the rollout and not with each plan; otherwise jitter, which counts from there, would never be over.
    fn opens_at(&self) -> Timestamp {
        if self.opens_with_rollout() {
            self.input.rollout.started_at
        } else {
            self.input.now
        }
    }

    fn opens_with_rollout(&self) -> bool {
        self.is_first && self.rules.before.is_empty()
    }

    /// Returns the phase of an open stage, and what it still waits for.
    fn close(&self, record: &mut StageRecord, tally: &Tally) -> (StagePhase, Option<StageWait>) {
        let overdrawn = tally.too_many_failures() && !continues_on_failure(self.input);
        let complete = !self.members.iter().any(|member| self.is_waited_for(member));
        let proven = self.is_proven(tally);
        if complete && proven && !overdrawn {
            record.completed_at.get_or_insert(self.input.now);
        }
        let mut gate = None;
        if record.completed_at.is_some() {
            (record.after, gate) = self.gates(&self.rules.after, &record.after);
        }
        let wait = match gate {
            // A failed gate stops the rollout, even if clusters joined the stage or changed since.
            Some(failed @ StageWait::GateFailed { .. }) => failed,
            _ if !complete || overdrawn => return (StagePhase::Open, Some(self.clusters())),
            _ if !proven => StageWait::Unproven,
            Some(wait) => wait,
            None => {
                record.passed_at = Some(self.input.now);
                return (StagePhase::Passed, None);
            }
        };
        (StagePhase::Waiting(wait.clone()), Some(wait))
    }

    /// Reports whether the stage is not complete while this cluster is in this state.
    fn is_waited_for(&self, member: &ClusterState<'_>) -> bool {
        if member.skipped {
            return false;
        }
        match &member.class {
            Class::InFlight { .. } | Class::Soaking { .. } | Class::Startable { .. } => true,
            Class::Hold(HoldReason::ClusterNotProbed) => true,
            Class::Hold(HoldReason::ClusterUnreachable { .. }) => waits_for_unreachable(self.input),
            Class::Done | Class::Failed(_) | Class::Hold(_) => false,
        }
    }

    /// Reports whether the stage proves that the release works, so that later clusters may follow.
    fn is_proven(&self, tally: &Tally) -> bool {
        self.is_last
            || tally.done > 0
            || continues_on_failure(self.input)
            || (self.members.iter().all(|member| member.skipped) && !self.was_emptied())
    }

    /// Reports whether the clusters of the stage left it before it was complete. A stage that is empty when it opens
    /// has nothing to prove.
    fn was_emptied(&self) -> bool {
        let recorded = self.input.rollout.stages.get(&self.rules.name);
        let is_under_way =
            recorded.is_some_and(|record| record.opened_at.is_some() && record.completed_at.is_none());
        is_under_way && self.members.is_empty()
    }

    /// Evaluates gates in order. Returns their new records, and the first gate that is not passed.
    fn gates(&self, gates: &[Gate], recorded: &[GateRecord]) -> (Vec<GateRecord>, Option<StageWait>) {
        let mut records: Vec<GateRecord> = Vec::new();
        let mut known = recorded.iter();
        for gate in gates {
            let kept = known.next().filter(|record| record.gate == *gate).cloned();
            if kept.is_none() {
                known = [].iter();
            }
            let record = kept.unwrap_or(GateRecord {
                gate: *gate,
                begun_at: self.input.now,
                result: None,
            });
            let wait = self.wait_for(&record);
            records.push(record);
            if wait.is_some() {
                return (records, wait);
            }
        }
        (records, None)
    }

    fn wait_for(&self, record: &GateRecord) -> Option<StageWait> {
        let gate = record.gate;
        let waits = |until| Some(StageWait::Gate { gate, until });
        match (gate, &record.result) {
            (Gate::TimedWait(wait), _) => match self.input.clock_jumps.due(record.begun_at, wait) {
                Some(until) if until <= self.input.now => None,
                until => waits(until),
            },
            (Gate::Approval, _) => match self.of_stage(&self.input.rollout.approvals) {
                Some(_) => None,
                None => waits(None),
            },
            (Gate::Effect(_), Some(GateResult::Passed)) => None,
            (Gate::Effect(_), Some(GateResult::Failed { message })) => (!continues_on_failure(self.input))
                .then(|| StageWait::GateFailed {
                    gate,
                    message: message.clone(),
                }),
            (Gate::Effect(_), None) => waits(None),
        }
    }

    fn clusters(&self) -> StageWait {
        let waited = || self.members.iter().filter(|member| self.is_waited_for(member));
        let soaking = waited()
            .filter(|member| matches!(member.class, Class::Soaking { .. }))
            .count();
        StageWait::Clusters {
            working: waited().count() - soaking,
            soaking,
        }
    }

    fn tally(&self, passed: bool) -> Tally {
        let (total, whole) = (self.members.len(), self.input.clusters.len());
        let limits = &self.input.strategy.limits;
        // A stage that others wait for also counts clusters that broke after they were done (ADR 10).
        let is_waited_for = !passed && (!self.is_last || !self.rules.after.is_empty());
        let broken = |member: &ClusterState<'_>| member.broken && !member.skipped && is_waited_for;
        Tally {
            failed: self.members.iter().filter(|m| m.is_failed() || broken(m)).count(),
            failures_allowed: match self.rules.max_failures {
                Some(bound) => bound.of_rounded_down(total),
                None => limits.max_failures.of_rounded_down(whole),
            },
            unavailable_allowed: match self.rules.max_unavailable {
                Some(bound) => bound.of_rounded_down(total).max(1),
                None => limits.max_unavailable.of_rounded_down(whole).max(1),
            },
            slots: self
                .rules
                .max_concurrency
                .map(|bound| bound.of_rounded_up(total).max(1)),
            ..tally(self.input, self.members.iter().copied(), whole)
        }
    }

    fn of_stage<'m>(&self, by_stage: &'m BTreeMap<String, Attribution>) -> Option<&'m Attribution> {
        // The only stage of an immediate rollback is not one that an operator can name.
        (self.input.rollout.direction != Direction::BackAtOnce)
            .then(|| by_stage.get(&self.rules.name))
            .flatten()
    }
}

/// Returns the counts of the whole group.
pub(super) fn whole(input: &PlanInput, states: &[ClusterState<'_>], stages: &[StageState]) -> Tally {
    Tally {
        unavailable: stages.iter().map(|stage| stage.plan.tally.unavailable).sum(),
        ..tally(input, states.iter(), states.len())
    }
}

/// Returns the counts of some clusters without the unavailable ones, with the limits of the group; `whole` is the size
/// of the group.
fn tally<'a>(input: &PlanInput, members: impl Iterator<Item = &'a ClusterState<'a>>, whole: usize) -> Tally {
    let limits = &input.strategy.limits;
    let mut tally = Tally {
        slots: Some(limits.max_concurrency.of_rounded_up(whole).max(1)),
        failures_allowed: limits.max_failures.of_rounded_down(whole),
        unavailable_allowed: limits.max_unavailable.of_rounded_down(whole).max(1),
        ..Tally::default()
    };
    for member in members {
        tally.total += 1;
        tally.done += usize::from(matches!(member.class, Class::Done));
        tally.in_flight += usize::from(member.slot.is_some());
        tally.failed += usize::from(member.is_failed());
    }
    tally
}
