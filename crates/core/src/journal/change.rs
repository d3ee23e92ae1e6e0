//! What changed from one look to the next.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Look;
use crate::plan::{
    ClusterView, Decision, Plan, PlanInput, RolloutView, StagePlan, Steering, Strategy, Tally, Verdict,
};

/// Why an entry cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReadable {
    /// It is not what a version of Starling writes.
    #[error("it cannot be read: {0}")]
    Form(String),
    /// It says what changed, and there is nothing before it.
    #[error("it says what changed since an entry that is not there")]
    NoWhole,
}

/// What changed since the entry before. What is not named is as it was; of clusters that are named as `null` there is
/// nothing any more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// The present.
    pub now: Timestamp,
    /// As [`PlanInput::strategy`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
    /// As [`PlanInput::rollout`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutView>,
    /// As [`PlanInput::steering`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steering: Option<Steering>,
    /// As [`PlanInput::suspended`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<bool>,
    /// As [`PlanInput::membership_held`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub membership_held: Option<bool>,
    /// As [`PlanInput::clusters`]: the whole views of those that changed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub clusters: BTreeMap<String, Option<ClusterView>>,
    /// As [`Plan::decisions`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub decisions: BTreeMap<String, Option<Decision>>,
    /// How many stages there are, where that changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage_count: Option<usize>,
    /// As [`Plan::stages`], by place.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub stages: BTreeMap<usize, StagePlan>,
    /// As [`Plan::tally`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tally: Option<Tally>,
    /// As [`Plan::verdict`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// As [`Plan::recheck_at`], whether it changed or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recheck_at: Option<Timestamp>,
}

/// All of an input but the present and the clusters.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Head {
    strategy: Strategy,
    rollout: RolloutView,
    steering: Steering,
    suspended: bool,
    membership_held: bool,
}

impl Head {
    pub(super) fn of(input: &PlanInput) -> Self {
        let PlanInput {
            now: _,
            strategy,
            rollout,
            steering,
            suspended,
            membership_held,
            clusters: _,
        } = input;
        Self {
            strategy: strategy.clone(),
            rollout: rollout.clone(),
            steering: steering.clone(),
            suspended: *suspended,
            membership_held: *membership_held,
        }
    }

    /// Whether this is all that `input` says beside the present and the clusters.
    pub(super) fn is_of(&self, input: &PlanInput) -> bool {
        self.strategy == input.strategy
            && self.rollout == input.rollout
            && self.steering == input.steering
            && self.suspended == input.suspended
            && self.membership_held == input.membership_held
    }
}

impl Change {
    /// From a look of which the head and the plan are known, to another one; `clusters` are the views that changed.
    pub(super) fn new(
        (head, before): (&Head, &Plan),
        input: &PlanInput,
        plan: &Plan,
        clusters: BTreeMap<String, Option<ClusterView>>,
    ) -> Self {
        let count = plan.stages.len();
        let stages = plan.stages.iter().enumerate();
        Self {
            now: input.now,
            strategy: changed(&head.strategy, &input.strategy),
            rollout: changed(&head.rollout, &input.rollout),
            steering: changed(&head.steering, &input.steering),
            suspended: changed(&head.suspended, &input.suspended),
            membership_held: changed(&head.membership_held, &input.membership_held),
            clusters,
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

    /// How things stand after it.
    pub(super) fn apply(self, before: Look) -> Look {
        let Look { input, mut plan } = before;
        let PlanInput {
            now: _,
            strategy,
            rollout,
            steering,
            suspended,
            membership_held,
            mut clusters,
        } = input;
        put(&mut clusters, self.clusters);
        put(&mut plan.decisions, self.decisions);
        plan.stages
            .truncate(self.stage_count.unwrap_or(plan.stages.len()));
        for (place, stage) in self.stages {
            match plan.stages.get_mut(place) {
                Some(known) => *known = stage,
                // They come in order, and a new one is always named.
                None => plan.stages.push(stage),
            }
        }
        plan.tally = self.tally.unwrap_or(plan.tally);
        plan.verdict = self.verdict.unwrap_or(plan.verdict);
        plan.recheck_at = self.recheck_at;
        Look {
            input: PlanInput {
                now: self.now,
                strategy: self.strategy.unwrap_or(strategy),
                rollout: self.rollout.unwrap_or(rollout),
                steering: self.steering.unwrap_or(steering),
                suspended: self.suspended.unwrap_or(suspended),
                membership_held: self.membership_held.unwrap_or(membership_held),
                clusters,
            },
            plan,
        }
    }
}

fn changed<T: Clone + PartialEq>(before: &T, now: &T) -> Option<T> {
    (before != now).then(|| now.clone())
}

/// What is new or other in `now`, and what is only in `before`.
fn differences<T: Clone + PartialEq>(
    before: &BTreeMap<String, T>,
    now: &BTreeMap<String, T>,
) -> BTreeMap<String, Option<T>> {
    let other = now
        .iter()
        .filter(|(name, value)| before.get(*name) != Some(*value));
    let gone = before.keys().filter(|name| !now.contains_key(*name));
    other
        .map(|(name, value)| (name.clone(), Some(value.clone())))
        .chain(gone.map(|name| (name.clone(), None)))
        .collect()
}

fn put<T>(known: &mut BTreeMap<String, T>, changes: BTreeMap<String, Option<T>>) {
    for (name, value) in changes {
        match value {
            Some(value) => drop(known.insert(name, value)),
            None => drop(known.remove(&name)),
        }
    }
}
