//! How the stages stand: one after the other, each with what was recorded of it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use starling_api::{OnFailure, OnUnreachable};

use super::stages::{
    Direction, Finding, Gate, GateRecord, REST, StagePhase, StagePlan, StageRecord, StageRules, StageWait,
    Word,
};
use super::standing::{Class, Standing};
use super::types::{HoldReason, PlanInput, Tally};

/// A stage in the middle of a plan.
pub(super) struct Stage {
    /// What the plan says of it.
    pub(super) plan: StagePlan,
    /// What keeps the next stage from opening, or this one; `None`: it is passed.
    pub(super) wait: Option<StageWait>,
    /// Clusters that this release has reached and is not through with.
    pub(super) reached: usize,
}

impl Stage {
    /// Since when its clusters may start.
    pub(super) fn open_since(&self) -> Option<Timestamp> {
        self.plan.record.opened_at.or(self.plan.record.passed_at)
    }

    /// Whether more of its clusters failed than may, while that still counts.
    pub(super) fn is_overdrawn(&self) -> bool {
        let counts = !matches!(self.plan.phase, StagePhase::Passed | StagePhase::Skipped(_));
        counts && self.plan.tally.too_many_failures()
    }
}

/// The strategy's stages; on the way back at once there is one.
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

/// Whether neither a budget nor a gate nor a stage that proves nothing stops the rollout. On the way back they do, so that
/// it ends.
pub(super) fn goes_on(input: &PlanInput) -> bool {
    input.strategy.on_failure == OnFailure::Continue && input.rollout.direction == Direction::Forward
}

/// Whether clusters that cannot be reached are waited for. On the way back at once nothing of that kind counts.
pub(super) fn waits_for_unreachable(input: &PlanInput) -> bool {
    input.strategy.on_unreachable == OnUnreachable::Wait && input.rollout.direction != Direction::BackAtOnce
}

/// The place of a cluster's stage among [`rules`].
pub(super) fn stage_of(input: &PlanInput, standing: &Standing<'_>) -> usize {
    match input.rollout.direction {
        Direction::Forward | Direction::Back => standing.cluster.stage,
        Direction::BackAtOnce => 0,
    }
}

/// Walks through the stages in their order: what is passed lets the next one open within the same plan.
pub(super) fn walk(input: &PlanInput, rules: &[StageRules], standings: &[Standing<'_>]) -> Vec<Stage> {
    let mut members: Vec<Vec<&Standing<'_>>> = vec![Vec::new(); rules.len()];
    for standing in standings {
        if let Some(stage) = members.get_mut(stage_of(input, standing)) {
            stage.push(standing);
        }
    }
    let mut behind: usize = standings.len();
    let mut may_open = true;
    let mut stages = Vec::with_capacity(rules.len());
    for (place, (rules, members)) in rules.iter().zip(&members).enumerate() {
        behind -= members.len();
        let view = View {
            input,
            rules,
            members,
            is_first: place == 0,
            is_last: behind == 0,
        };
        let mut stage = view.look(may_open);
        may_open &= stage.wait.is_none();
        let is_open = stage.open_since().is_some();
        let unavailable = members.iter().filter(|member| member.is_unavailable(is_open));
        stage.plan.tally.unavailable = unavailable.count();
        stages.push(stage);
    }
    stages
}

struct View<'a> {
    input: &'a PlanInput,
    rules: &'a StageRules,
    members: &'a [&'a Standing<'a>],
    is_first: bool,
    /// No stage behind it has a cluster.
    is_last: bool,
}

impl View<'_> {
    fn look(&self, may_open: bool) -> Stage {
        let mut record = self.recorded();
        let tally = self.tally(record.passed_at.is_some());
        let (phase, wait) = self.advance(&mut record, may_open, &tally);
        Stage {
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

    /// Takes the record as far as it goes now.
    fn advance(
        &self,
        record: &mut StageRecord,
        may_open: bool,
        tally: &Tally,
    ) -> (StagePhase, Option<StageWait>) {
        let (now, steering, name) = (self.input.now, &self.input.steering, &self.rules.name);
        if let Some(word) = self.word(&steering.skipped_stages) {
            record.passed_at.get_or_insert(now);
            return (StagePhase::Skipped(word.clone()), None);
        }
        if self.word(&steering.promoted).is_some() {
            record.opened_at.get_or_insert(self.opens_at());
            record.passed_at.get_or_insert(now);
        }
        if record.passed_at.is_some() {
            return (StagePhase::Passed, None);
        }
        let nobody_knows = self.input.membership_held || self.input.clusters.is_empty();
        if nobody_knows && (may_open || record.opened_at.is_some()) {
            return self.stand(record);
        }
        if record.opened_at.is_none() {
            if !may_open {
                // Who asks looks at the stage in front.
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

    /// Where it stays while clusters are missing that vanished all at once, or while there are none at all: nothing is concluded from
    /// the rest. A stage that seems to be empty has not proven anything, and no gate begins that would tell others of such a fleet.
    /// Otherwise the clusters of a group that was there before them would all find their stages passed.
    fn stand(&self, record: &StageRecord) -> (StagePhase, Option<StageWait>) {
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

    /// When it opens, if it does so now. Of a strategy without stages nothing is recorded, so that its one stage must not open
    /// when somebody looks: jitter that counts from there is never over.
    fn opens_at(&self) -> Timestamp {
        if self.is_first && self.rules.before.is_empty() {
            self.input.rollout.started_at
        } else {
            self.input.now
        }
    }

    /// What an open stage still waits for.
    fn close(&self, record: &mut StageRecord, tally: &Tally) -> (StagePhase, Option<StageWait>) {
        let overdrawn = tally.too_many_failures() && !goes_on(self.input);
        let through = !self.members.iter().any(|member| self.is_waited_for(member));
        let proven = self.is_proven(tally);
        if through && proven && !overdrawn {
            record.completed_at.get_or_insert(self.input.now);
        }
        let mut gate = None;
        if record.completed_at.is_some() {
            (record.after, gate) = self.gates(&self.rules.after, &record.after);
        }
        let wait = match gate {
            // It stops the rollout, whoever joined the stage since, and whatever became of its clusters.
            Some(failed @ StageWait::GateFailed { .. }) => failed,
            _ if !through || overdrawn => return (StagePhase::Open, Some(self.clusters())),
            _ if !proven => StageWait::Unproven,
            Some(wait) => wait,
            None => {
                record.passed_at = Some(self.input.now);
                return (StagePhase::Passed, None);
            }
        };
        (StagePhase::Waiting(wait.clone()), Some(wait))
    }

    /// Whether the stage is not through as long as this cluster is as it is.
    fn is_waited_for(&self, member: &Standing<'_>) -> bool {
        if member.skipped {
            return false;
        }
        match &member.class {
            Class::InFlight { .. } | Class::Soaking { .. } | Class::Startable { .. } => true,
            Class::Held(HoldReason::ClusterNotProbed) => true,
            Class::Held(HoldReason::ClusterUnreachable { .. }) => waits_for_unreachable(self.input),
            Class::Done | Class::Failed(_) | Class::Held(_) => false,
        }
    }

    /// Whether it says something about the release that lets clusters behind it follow.
    fn is_proven(&self, tally: &Tally) -> bool {
        self.is_last
            || tally.done > 0
            || goes_on(self.input)
            || (self.members.iter().all(|member| member.skipped) && !self.was_emptied())
    }

    /// Whether its clusters left it before it was through. One that is empty when it opens has nothing to prove.
    fn was_emptied(&self) -> bool {
        let recorded = self.input.rollout.stages.get(&self.rules.name);
        let is_under_way =
            recorded.is_some_and(|record| record.opened_at.is_some() && record.completed_at.is_none());
        is_under_way && self.members.is_empty()
    }

    /// Goes through gates, one after the other: what is recorded of them from now on, and the first that is not passed.
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
                found: None,
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
        match (gate, &record.found) {
            (Gate::TimedWait(wait), _) => match record.begun_at.checked_add(wait) {
                Ok(until) if until <= self.input.now => None,
                Ok(until) => waits(Some(until)),
                Err(_) => waits(None),
            },
            (Gate::Approval, _) => match self.word(&self.input.rollout.approvals) {
                Some(_) => None,
                None => waits(None),
            },
            (Gate::Effect(_), Some(Finding::Passed)) => None,
            (Gate::Effect(_), Some(Finding::Failed { message })) => {
                (!goes_on(self.input)).then(|| StageWait::GateFailed {
                    gate,
                    message: message.clone(),
                })
            }
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
        // Whoever waits for this stage shall see what breaks meanwhile; nobody else is helped by that (ADR 10).
        let is_waited_for = !passed && (!self.is_last || !self.rules.after.is_empty());
        let broken = |member: &Standing<'_>| member.broken && !member.skipped && is_waited_for;
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

    fn word<'w>(&self, words: &'w BTreeMap<String, Word>) -> Option<&'w Word> {
        // On the way back at once the one stage is none that anybody could name.
        (self.input.rollout.direction != Direction::BackAtOnce)
            .then(|| words.get(&self.rules.name))
            .flatten()
    }
}

/// The counts of the whole group.
pub(super) fn whole(input: &PlanInput, standings: &[Standing<'_>], stages: &[Stage]) -> Tally {
    Tally {
        unavailable: stages.iter().map(|stage| stage.plan.tally.unavailable).sum(),
        ..tally(input, standings.iter(), standings.len())
    }
}

/// The counts of some clusters but for what is unavailable, with the group's bounds; `whole` is the size of the group.
fn tally<'a>(input: &PlanInput, members: impl Iterator<Item = &'a Standing<'a>>, whole: usize) -> Tally {
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
