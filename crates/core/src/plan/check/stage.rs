//! The facts about one stage at one time, independent of a plan.

use jiff::Timestamp;
use starling_api::IntOrPercent;

use super::facts::CheckedState;
use super::member::CheckedMember;
use super::rules::{CheckedRules, share};
use crate::plan::stages::Tally;
use crate::plan::stages::{
    Attribution, Gate, GateRecord, GateResult, StagePhase, StageRecord, StageRules, StageWait,
};
use crate::plan::types::PlanInput;

/// The facts about a stage.
pub(super) struct CheckedStage {
    /// The record to store.
    pub(super) record: StageRecord,
    /// Other lists of gates that may be stored, because nothing depends on them any more, or not yet.
    pub(super) other_before: Vec<Vec<GateRecord>>,
    /// The same for the gates after the stage.
    pub(super) other_after: Vec<Vec<GateRecord>>,
    /// Time since which the stage is open; jitter counts from there.
    pub(super) opening: Option<Timestamp>,
    /// Whether the stage passes with this plan.
    pub(super) passes_now: bool,
    /// Each wait that applies. Empty: the stage has passed, or an earlier one has not.
    pub(super) waits: Vec<StageWait>,
    /// Each phase that applies.
    pub(super) phases: Vec<StagePhase>,
    /// The counts and limits of its clusters.
    pub(super) scope: CheckedScope,
    /// Clusters that were done and are no longer healthy. They count as failed until the stage has passed.
    pub(super) broken: usize,
}

/// The counts and limits of the group or of a stage.
pub(super) struct CheckedScope {
    /// The counts that the plan should have.
    pub(super) tally: Tally,
    /// Clusters in flight after the plan is executed.
    pub(super) in_flight_after: usize,
    /// Clusters with this release in flight before the plan is executed.
    pub(super) reached: usize,
    /// Clusters with this release in flight after the plan is executed.
    pub(super) reached_after: usize,
    /// Unavailable clusters after the plan is executed.
    pub(super) unavailable_after: usize,
}

impl CheckedScope {
    /// Counts the unavailable clusters again once it is known which stages are open.
    pub(super) fn count_unavailable<'m>(
        &mut self,
        members: &(impl Iterator<Item = &'m CheckedMember<'m>> + Clone),
    ) {
        self.tally.unavailable = members.clone().filter(|m| m.is_unavailable()).count();
        self.unavailable_after = members
            .clone()
            .filter(|m| m.starts() || m.is_unavailable())
            .count();
    }

    pub(super) fn is_overdrawn(&self) -> bool {
        self.tally.failed > self.tally.failures_allowed
    }

    pub(super) fn of<'m>(
        members: &(impl Iterator<Item = &'m CheckedMember<'m>> + Clone),
        slots: Option<IntOrPercent>,
        failures_allowed: usize,
        unavailable_allowed: usize,
    ) -> Self {
        let count = |wanted: fn(&CheckedMember<'_>) -> bool| members.clone().filter(|m| wanted(m)).count();
        let total = members.clone().count();
        let unavailable = |m: &CheckedMember<'_>| m.is_unavailable();
        Self {
            tally: Tally {
                total,
                done: count(|m| matches!(m.facts.state, CheckedState::Done)),
                slots: slots.map(|slots| share(slots, total, 99).max(1)),
                in_flight: count(|m| m.facts.holds_slot()),
                failed: count(|m| m.counts_as_failed()),
                failures_allowed,
                unavailable: count(unavailable),
                unavailable_allowed,
            },
            in_flight_after: count(|m| m.starts() || m.is_retried() || m.facts.holds_slot()),
            reached: count(|m| m.facts.is_reached()),
            reached_after: count(|m| m.starts_release() || m.is_retried() || m.facts.is_reached()),
            unavailable_after: count(|m| m.starts() || m.is_unavailable()),
        }
    }
}

/// The position of a stage, and what is known of it.
pub(super) struct StageContext<'a> {
    pub(super) input: &'a PlanInput,
    pub(super) rules: &'a CheckedRules<'a>,
    pub(super) index: usize,
    pub(super) stage: &'a StageRules,
    pub(super) at: Timestamp,
    /// The record in the input.
    pub(super) old: &'a StageRecord,
    /// The record in the plan.
    pub(super) planned: &'a StageRecord,
    /// Whether every earlier stage has passed.
    pub(super) is_next: bool,
    /// The failure limit of the group.
    pub(super) failures_allowed: usize,
    /// The limit of unavailable clusters of the group.
    pub(super) unavailable_allowed: usize,
}

impl StageContext<'_> {
    pub(super) fn stage(&self, fleet: &[CheckedMember<'_>]) -> CheckedStage {
        let members = || fleet.iter().filter(|member| member.stage == self.index);
        let total = members().count();
        let own = |bound: Option<IntOrPercent>| bound.map(|bound| share(bound, total, 0));
        let mut scope = CheckedScope::of(
            &members(),
            self.stage.max_concurrency,
            own(self.stage.max_failures).unwrap_or(self.failures_allowed),
            own(self.stage.max_unavailable).map_or(self.unavailable_allowed, |own| own.max(1)),
        );
        let is_waited_for = fleet.iter().any(|member| member.stage > self.index);
        let is_watched = is_waited_for || !self.stage.after.is_empty();
        let counts_as_broken = |m: &&CheckedMember<'_>| is_watched && m.facts.broken && m.skipped.is_none();
        let broken = members().filter(counts_as_broken).count();
        let within = self.rules.continues || scope.tally.failed + broken <= scope.tally.failures_allowed;
        let clusters = self.clusters(members());
        let through = matches!(
            clusters,
            StageWait::Clusters {
                working: 0,
                soaking: 0
            }
        );
        // A stage that was open with clusters and has none left proves nothing. A stage that was empty from the
        // beginning would be complete by now.
        let lost_all =
            members().next().is_none() && self.old.opened_at.is_some() && self.old.completed_at.is_none();
        let only_skipped = !lost_all && members().all(|member| member.skipped.is_some());
        let proven = only_skipped || scope.tally.done > 0 || self.rules.continues || !is_waited_for;

        let before = self.walk(&self.stage.before, &self.old.before, self.first_turn());
        let after = self.walk(&self.stage.after, &self.old.after, self.at);
        let held = self.input.membership_held || fleet.is_empty();
        let record = match held {
            false => self.record(&before, &after, through && proven && within),
            true => self.record_while_held(),
        };
        let steered = self.skipped().is_some() || self.is_promoted();
        let passed = record.passed_at.is_some();
        if !passed {
            scope.tally.failed += broken;
        }
        let (waits, phases) = if held && !passed && (self.is_next || record.opened_at.is_some()) {
            self.while_held(&record, clusters)
        } else {
            let waits = self.waits(&record, clusters, &before, &after, Evidence { proven, within });
            let phases = self.phases(&record, &waits, through);
            (waits, phases)
        };
        let fixed_before = held || (self.old.opened_at.is_none() && self.is_next && !steered && !passed);
        let fixed_after = held || (record.completed_at.is_some() && self.old.passed_at.is_none() && !steered);
        let others = |fixed: bool, old: &Vec<GateRecord>, walked: &Walk| match fixed {
            true => Vec::new(),
            false => vec![
                old.clone(),
                walked.records[..walked.kept].to_vec(),
                walked.records.clone(),
            ],
        };
        CheckedStage {
            other_before: others(fixed_before, &self.old.before, &before),
            other_after: others(fixed_after, &self.old.after, &after),
            opening: record.opened_at.or(record.passed_at),
            passes_now: passed && self.old.passed_at.is_none(),
            record,
            waits,
            phases,
            scope,
            broken,
        }
    }

    fn skipped(&self) -> Option<&Attribution> {
        self.rules.skipped(self.input, self.index)
    }

    fn is_promoted(&self) -> bool {
        self.rules.is_promoted(self.input, self.index)
    }

    /// Returns when the first gate before a stage begins: with the rollout, if it is the first stage. Whether that is
    /// the start of the rollout or the time of the plan is up to the plan.
    fn first_turn(&self) -> Timestamp {
        let started_at = self.input.rollout.started_at;
        let planned = self.planned.before.first().map(|record| record.begun_at);
        if self.index == 0 && planned == Some(started_at) {
            started_at
        } else {
            self.at
        }
    }

    /// Returns the wait for the clusters of the stage that are not done.
    fn clusters<'m>(&self, members: impl Iterator<Item = &'m CheckedMember<'m>>) -> StageWait {
        let (mut working, mut soaking) = (0, 0);
        for member in members.filter(|member| member.skipped.is_none()) {
            match member.facts.state {
                CheckedState::Soaking { .. } => soaking += 1,
                CheckedState::UnderWay { .. } | CheckedState::Startable { .. } => working += 1,
                CheckedState::Obstructed => working += usize::from(member.is_waited_for(self.rules)),
                CheckedState::Done | CheckedState::Failed(_) => {}
            }
        }
        StageWait::Clusters { working, soaking }
    }

    fn opens_with_rollout(&self) -> bool {
        self.index == 0 && self.stage.before.is_empty()
    }

    /// Returns the record to store. `sound`: the stage is complete, proven and within its failure limit.
    fn record(&self, before: &Walk, after: &Walk, sound: bool) -> StageRecord {
        let mut record = self.old.clone();
        if self.skipped().is_some() || self.is_promoted() {
            record.passed_at.get_or_insert(self.at);
            if self.opens_with_rollout() {
                record.opened_at.get_or_insert(self.input.rollout.started_at);
            }
        }
        if record.passed_at.is_some() {
            return record;
        }
        if record.opened_at.is_none() && self.is_next {
            record.before.clone_from(&before.records);
            if before.pending.is_none() {
                let with_rollout = self.opens_with_rollout();
                let started_at = self.input.rollout.started_at;
                record.opened_at = Some(if with_rollout { started_at } else { self.at });
            }
        }
        if record.opened_at.is_some() && sound {
            record.completed_at.get_or_insert(self.at);
        }
        if record.completed_at.is_some() {
            record.after.clone_from(&after.records);
        }
        if record.opened_at.is_some() && sound && after.pending.is_none() {
            record.passed_at = Some(self.at);
        }
        record
    }

    /// Returns the record while clusters are missing that vanished at once, or while there are none: only operators and
    /// approvals advance a stage then.
    fn record_while_held(&self) -> StageRecord {
        let mut record = self.old.clone();
        if self.skipped().is_some() || self.is_promoted() {
            record.passed_at.get_or_insert(self.at);
            if self.opens_with_rollout() {
                record.opened_at.get_or_insert(self.input.rollout.started_at);
            }
        }
        record
    }

    /// Returns the waits and phases meanwhile: the stage waits for a gate that has begun, or, without one, for its
    /// clusters.
    fn while_held(&self, record: &StageRecord, clusters: StageWait) -> (Vec<StageWait>, Vec<StagePhase>) {
        let is_open = record.opened_at.is_some();
        let (gates, begun, otherwise) = match is_open {
            true => (&self.stage.after, &record.after, StagePhase::Open),
            false => (&self.stage.before, &record.before, StagePhase::Pending),
        };
        let same = begun
            .iter()
            .zip(gates)
            .take_while(|(begun, gate)| begun.gate == **gate);
        match same.filter_map(|(begun, _)| self.pending(begun)).next() {
            Some(wait) => (vec![wait.clone()], vec![StagePhase::Waiting(wait)]),
            None => (vec![clusters], vec![otherwise]),
        }
    }

    fn waits(
        &self,
        record: &StageRecord,
        clusters: StageWait,
        before: &Walk,
        after: &Walk,
        evidence: Evidence,
    ) -> Vec<StageWait> {
        let Evidence { proven, within } = evidence;
        let through = matches!(
            clusters,
            StageWait::Clusters {
                working: 0,
                soaking: 0
            }
        );
        if record.passed_at.is_some() {
            return Vec::new();
        }
        if record.opened_at.is_none() {
            let gate = before.pending.clone().filter(|_| self.is_next);
            return gate.into_iter().collect();
        }
        let gate = after.pending.clone().filter(|_| record.completed_at.is_some());
        if !through {
            let failed = gate.filter(|wait| matches!(wait, StageWait::GateFailed { .. }));
            return failed.into_iter().chain([clusters]).collect();
        }
        let unproven = (!proven).then_some(StageWait::Unproven);
        let waits: Vec<StageWait> = unproven.into_iter().chain(gate).collect();
        // The remaining condition is the failure limit, which has no wait of its own.
        let overdrawn = (waits.is_empty() || !within).then_some(clusters);
        waits.into_iter().chain(overdrawn).collect()
    }

    fn phases(&self, record: &StageRecord, waits: &[StageWait], through: bool) -> Vec<StagePhase> {
        if let Some(attribution) = self.skipped() {
            return vec![StagePhase::Skipped(attribution.clone())];
        }
        if record.passed_at.is_some() {
            return vec![StagePhase::Passed];
        }
        if record.opened_at.is_none() && !self.is_next {
            return vec![StagePhase::Pending];
        }
        let only_clusters = waits
            .iter()
            .any(|wait| matches!(wait, StageWait::Clusters { .. }));
        let gates = waits
            .iter()
            .filter(|wait| through || !matches!(wait, StageWait::Clusters { .. }));
        let open = only_clusters.then_some(StagePhase::Open);
        open.into_iter()
            .chain(gates.cloned().map(StagePhase::Waiting))
            .collect()
    }

    /// Evaluates gates in order: those that have begun, and the first that is not passed.
    fn walk(&self, gates: &[Gate], records: &[GateRecord], first_turn: Timestamp) -> Walk {
        let mut walk = Walk {
            records: Vec::new(),
            kept: 0,
            pending: None,
        };
        let mut recorded = records.iter();
        for &gate in gates {
            let counts = recorded.next().filter(|record| record.gate == gate);
            let begun_at = if walk.records.is_empty() {
                first_turn
            } else {
                self.at
            };
            if counts.is_none() {
                recorded = [].iter();
            }
            walk.kept += usize::from(counts.is_some());
            let record = counts.cloned().unwrap_or(GateRecord {
                gate,
                begun_at,
                result: None,
            });
            walk.pending = self.pending(&record);
            walk.records.push(record);
            if walk.pending.is_some() {
                break;
            }
        }
        walk
    }

    /// Returns what a gate waits for; `None`: it has passed.
    fn pending(&self, record: &GateRecord) -> Option<StageWait> {
        let gate = record.gate;
        let wait = |until| Some(StageWait::Gate { gate, until });
        match (gate, &record.result) {
            (Gate::TimedWait(time), _) => {
                let until = self.input.clock_jumps.due(record.begun_at, time);
                if until.is_some_and(|until| until <= self.at) {
                    None
                } else {
                    wait(until)
                }
            }
            (Gate::Approval, _) => {
                let approved = self.input.rollout.approvals.contains_key(&self.stage.name);
                if approved { None } else { wait(None) }
            }
            (Gate::Effect(_), None) => wait(None),
            (Gate::Effect(_), Some(GateResult::Passed)) => None,
            (Gate::Effect(_), Some(GateResult::Failed { .. })) if self.rules.continues => None,
            (Gate::Effect(_), Some(GateResult::Failed { message })) => Some(StageWait::GateFailed {
                gate,
                message: message.clone(),
            }),
        }
    }
}

/// The evidence that the clusters of a stage provide.
#[derive(Clone, Copy)]
struct Evidence {
    /// The release works.
    proven: bool,
    /// No more clusters failed than the limit allows.
    within: bool,
}

/// The progress of a list of gates.
struct Walk {
    /// The gates that have begun.
    records: Vec<GateRecord>,
    /// The number of gates that had begun before.
    kept: usize,
    /// The first gate that has not passed.
    pending: Option<StageWait>,
}
