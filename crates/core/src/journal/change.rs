//! The changes from one recorded plan to the next.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{RecordedPlan, VERSION};
use crate::clock_jumps::ClockJumps;
use crate::ids::{ClusterName, SyncName};
use crate::plan::{
    ClusterView, Decision, LeavingSync, OperatorInput, Plan, PlanInput, PruneRequest, RemovalDecision,
    RolloutVerdict, RolloutView, StagePlan, Strategy, Tally,
};

/// The reason why an entry cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReadable {
    /// The entry does not have the format of any version of Starling.
    #[error("cannot be read: {0}")]
    Form(String),
    /// The entry has another format version.
    #[error("has format version {0}; this program reads version {VERSION}")]
    Version(u32),
    /// The entry is a change, and the entry before it is missing.
    #[error("is a change of an entry that is missing")]
    NoWhole,
}

/// The changes since the previous entry. What is left out is unchanged; a cluster that is `null` was removed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanChange {
    /// The time of the plan.
    pub now: Timestamp,
    /// As [`PlanInput::clock_jumps`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_jumps: Option<ClockJumps>,
    /// As [`PlanInput::strategy`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
    /// As [`PlanInput::rollout`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutView>,
    /// As [`PlanInput::operator`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<OperatorInput>,
    /// As [`PlanInput::deleting`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleting: Option<bool>,
    /// As [`PlanInput::suspended`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<bool>,
    /// As [`PlanInput::membership_held`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub membership_held: Option<bool>,
    /// As [`PlanInput::clusters`]: the whole views of those that changed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub clusters: BTreeMap<ClusterName, Option<ClusterView>>,
    /// As [`PlanInput::leaving`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub leaving: BTreeMap<SyncName, Option<LeavingSync>>,
    /// As [`PlanInput::returned`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub returned: Option<BTreeSet<SyncName>>,
    /// As [`PlanInput::prunes`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub prunes: BTreeMap<SyncName, Option<PruneRequest>>,
    /// As [`PlanInput::installation_slots`]; the inner `None`: they limit the plan no more.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "slots")]
    pub installation_slots: Option<Option<usize>>,
    /// As [`Plan::removals`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub removals: BTreeMap<SyncName, Option<RemovalDecision>>,
    /// As [`Plan::prunes`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub decided_prunes: BTreeMap<SyncName, Option<RemovalDecision>>,
    /// As [`Plan::decisions`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub decisions: BTreeMap<ClusterName, Option<Decision>>,
    /// The number of stages, if it changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage_count: Option<usize>,
    /// As [`Plan::stages`], by index.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub stages: BTreeMap<usize, StagePlan>,
    /// As [`Plan::tally`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tally: Option<Tally>,
    /// As [`Plan::verdict`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<RolloutVerdict>,
    /// As [`Plan::recheck_at`], even if it did not change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recheck_at: Option<Timestamp>,
}

/// An input without the time and the clusters.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Head {
    clock_jumps: ClockJumps,
    strategy: Strategy,
    rollout: RolloutView,
    operator: OperatorInput,
    deleting: bool,
    suspended: bool,
    membership_held: bool,
    leaving: BTreeMap<SyncName, LeavingSync>,
    returned: BTreeSet<SyncName>,
    prunes: BTreeMap<SyncName, PruneRequest>,
    installation_slots: Option<usize>,
}

impl Head {
    pub(super) fn of(input: &PlanInput) -> Self {
        let PlanInput {
            now: _,
            clock_jumps,
            strategy,
            rollout,
            operator,
            deleting,
            suspended,
            membership_held,
            clusters: _,
            leaving,
            returned,
            prunes,
            installation_slots,
        } = input;
        Self {
            clock_jumps: clock_jumps.clone(),
            strategy: strategy.clone(),
            rollout: rollout.clone(),
            operator: operator.clone(),
            deleting: *deleting,
            suspended: *suspended,
            membership_held: *membership_held,
            leaving: leaving.clone(),
            returned: returned.clone(),
            prunes: prunes.clone(),
            installation_slots: *installation_slots,
        }
    }

    /// Reports whether `input` is the same, except for the time and the clusters.
    pub(super) fn is_of(&self, input: &PlanInput) -> bool {
        self.clock_jumps == input.clock_jumps
            && self.strategy == input.strategy
            && self.rollout == input.rollout
            && self.operator == input.operator
            && self.deleting == input.deleting
            && self.suspended == input.suspended
            && self.membership_held == input.membership_held
            && self.leaving == input.leaving
            && self.returned == input.returned
            && self.prunes == input.prunes
            && self.installation_slots == input.installation_slots
    }
}

/// The entry before a change.
#[derive(Clone, Copy)]
pub(super) struct Former<'a> {
    pub(super) head: &'a Head,
    pub(super) plan: &'a Plan,
}

impl PlanChange {
    /// Returns the changes from an entry to another plan; `clusters` are the views that changed.
    pub(super) fn new(
        entry: Former<'_>,
        input: &PlanInput,
        plan: &Plan,
        clusters: BTreeMap<ClusterName, Option<ClusterView>>,
    ) -> Self {
        let Former { head, plan: before } = entry;
        let count = plan.stages.len();
        let stages = plan.stages.iter().enumerate();
        Self {
            now: input.now,
            clock_jumps: changed(&head.clock_jumps, &input.clock_jumps),
            strategy: changed(&head.strategy, &input.strategy),
            rollout: changed(&head.rollout, &input.rollout),
            operator: changed(&head.operator, &input.operator),
            deleting: changed(&head.deleting, &input.deleting),
            suspended: changed(&head.suspended, &input.suspended),
            membership_held: changed(&head.membership_held, &input.membership_held),
            clusters,
            leaving: differences(&head.leaving, &input.leaving),
            returned: changed(&head.returned, &input.returned),
            prunes: differences(&head.prunes, &input.prunes),
            installation_slots: changed(&head.installation_slots, &input.installation_slots),
            removals: differences(&before.removals, &plan.removals),
            decided_prunes: differences(&before.prunes, &plan.prunes),
            decisions: differences(&before.decisions, &plan.decisions),
            stage_count: (count != before.stages.len()).then_some(count),
            stages: stages
                .filter(|(place, stage)| before.stages.get(*place) != Some(*stage))
                .map(|(place, stage)| (place, stage.clone()))
                .collect(),
            tally: changed(&before.tally, &plan.tally),
            verdict: changed(&before.verdict, &plan.verdict),
            recheck_at: plan.recheck_at,
        }
    }

    /// Returns the recorded plan after these changes.
    pub(super) fn apply(self, before: RecordedPlan) -> RecordedPlan {
        let RecordedPlan { input, mut plan } = before;
        let PlanInput {
            now: _,
            clock_jumps,
            strategy,
            rollout,
            operator,
            deleting,
            suspended,
            membership_held,
            mut clusters,
            mut leaving,
            returned,
            mut prunes,
            installation_slots,
        } = input;
        put(&mut clusters, self.clusters);
        put(&mut leaving, self.leaving);
        put(&mut prunes, self.prunes);
        put(&mut plan.removals, self.removals);
        put(&mut plan.prunes, self.decided_prunes);
        put(&mut plan.decisions, self.decisions);
        plan.stages
            .truncate(self.stage_count.unwrap_or(plan.stages.len()));
        for (place, stage) in self.stages {
            match plan.stages.get_mut(place) {
                Some(known) => *known = stage,
                // Stages come in order, and a new stage is always included.
                None => plan.stages.push(stage),
            }
        }
        plan.tally = self.tally.unwrap_or(plan.tally);
        plan.verdict = self.verdict.unwrap_or(plan.verdict);
        plan.recheck_at = self.recheck_at;
        RecordedPlan {
            input: PlanInput {
                now: self.now,
                clock_jumps: self.clock_jumps.unwrap_or(clock_jumps),
                strategy: self.strategy.unwrap_or(strategy),
                rollout: self.rollout.unwrap_or(rollout),
                operator: self.operator.unwrap_or(operator),
                deleting: self.deleting.unwrap_or(deleting),
                suspended: self.suspended.unwrap_or(suspended),
                membership_held: self.membership_held.unwrap_or(membership_held),
                clusters,
                leaving,
                returned: self.returned.unwrap_or(returned),
                prunes,
                installation_slots: self.installation_slots.unwrap_or(installation_slots),
            },
            plan,
        }
    }
}

/// Distinguishes a value that was removed, `null`, from one that did not change, which is left out.
mod slots {
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &Option<Option<usize>>, to: S) -> Result<S::Ok, S::Error> {
        value.flatten().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<usize>>, D::Error> {
        Option::deserialize(from).map(Some)
    }
}

fn changed<T: Clone + PartialEq>(before: &T, now: &T) -> Option<T> {
    (before != now).then(|| now.clone())
}

/// Returns the new and changed values of `now`, and `None` for the values that only `before` has.
fn differences<K: Clone + Ord, T: Clone + PartialEq>(
    before: &BTreeMap<K, T>,
    now: &BTreeMap<K, T>,
) -> BTreeMap<K, Option<T>> {
    let other = now
        .iter()
        .filter(|(name, value)| before.get(*name) != Some(*value));
    let gone = before.keys().filter(|name| !now.contains_key(*name));
    other
        .map(|(name, value)| (name.clone(), Some(value.clone())))
        .chain(gone.map(|name| (name.clone(), None)))
        .collect()
}

fn put<K: Ord, T>(known: &mut BTreeMap<K, T>, changes: BTreeMap<K, Option<T>>) {
    for (name, value) in changes {
        match value {
            Some(value) => drop(known.insert(name, value)),
            None => drop(known.remove(&name)),
        }
    }
}
