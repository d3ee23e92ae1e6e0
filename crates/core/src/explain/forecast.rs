//! Estimates the completion: runs the rollout machine ([`crate::rollout`]) forward in time, with clusters that take as
//! long as they took before.
//!
//! An estimate assumes that nothing else happens: no newer release, no operator action, no failure of a cluster in
//! progress, no recovery. If only an operator or a cluster can end a wait, or another rollout begins first, there is no
//! estimate.

use jiff::Timestamp;
use serde::{Serialize, Serializer};

use super::model::{CurrentRollout, EstimateModel};
use crate::durations::Durations;
use crate::plan::{Decision, Direction, Plan, RolloutVerdict};
use crate::rollout::Began;
use crate::simulate::carry::carry_out;

/// Cluster views that an estimate may evaluate: no limit for four clusters; a thousand plans of 5,000 clusters, which
/// takes seconds.
const VIEWS: usize = 5_000_000;
/// The most plans of one estimate.
const MOMENTS: usize = 20_000;

/// The estimated completion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Estimate {
    /// The time, if nothing else happens.
    At {
        /// Time at which the cluster starts; `None`: it has started, or the estimate is for a group.
        #[serde(skip_serializing_if = "Option::is_none")]
        starts_at: Option<Timestamp>,
        /// Time at which the cluster or group is done.
        done_at: Timestamp,
        /// Number of recorded durations that the estimate uses.
        recorded: usize,
    },
    /// No estimate.
    Unknown {
        /// The reason why there is no estimate.
        why: NoEstimate,
    },
}

/// The reason why there is no estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoEstimate {
    /// The plan has no such cluster.
    #[error("the group does not select this cluster")]
    NotSelected,
    /// No cluster has a recorded duration.
    #[error("no durations recorded yet")]
    NoDurations,
    /// Only a person or a cluster ends a wait.
    #[error("waiting for a person or a cluster")]
    WaitsForOthers,
    /// A rollback begins first.
    #[error("the rollout is rolled back first")]
    RolledBack,
    /// The next queued release begins first.
    #[error("the next queued release replaces the rollout first")]
    Replaced,
    /// The limit of plans is reached.
    #[error("completion is too far in the future")]
    TooFar,
}

/// Programs read the text.
impl Serialize for NoEstimate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl NoEstimate {
    /// Returns the reason if another rollout begins.
    fn after(began: &Began) -> Self {
        match began.direction {
            Direction::Forward => Self::Replaced,
            Direction::Back | Direction::BackAtOnce => Self::RolledBack,
        }
    }
}

/// Estimates when a cluster is done.
#[must_use]
pub fn estimate_cluster(rollout: CurrentRollout<'_>, durations: &Durations, name: &str) -> Estimate {
    let mut starts_at = None;
    let goal = |now: Timestamp, plan: &Plan| {
        let decision = plan.decisions.get(name)?;
        if decision.begins_work() {
            starts_at.get_or_insert(now);
        }
        Some(matches!(decision, Decision::Done))
    };
    let done = run(rollout, durations, goal);
    estimate(done, starts_at, durations)
}

/// Estimates when a group is done.
#[must_use]
pub fn estimate_group(rollout: CurrentRollout<'_>, durations: &Durations) -> Estimate {
    let done = run(rollout, durations, |_, plan| {
        Some(plan.verdict == RolloutVerdict::Succeeded)
    });
    estimate(done, None, durations)
}

fn estimate(
    done: Result<Timestamp, NoEstimate>,
    starts_at: Option<Timestamp>,
    durations: &Durations,
) -> Estimate {
    match done {
        Ok(done_at) => Estimate::At {
            starts_at,
            done_at,
            recorded: durations.len(),
        },
        Err(why) => Estimate::Unknown { why },
    }
}

/// Runs the machine forward until the goal is reached. The goal is `None` if the plan has no such cluster.
fn run(
    rollout: CurrentRollout<'_>,
    durations: &Durations,
    mut goal: impl FnMut(Timestamp, &Plan) -> Option<bool>,
) -> Result<Timestamp, NoEstimate> {
    let mut world = EstimateModel::new(rollout, durations);
    let moments = MOMENTS.min(VIEWS / rollout.input.clusters.len().max(1));
    for _ in 0..moments {
        let mut transition = world.step().ok_or(NoEstimate::WaitsForOthers)?;
        // When another rollout begins, the last plan of this one counts.
        let left = transition.left.as_deref();
        let decided = transition.decided.as_ref().map(|decided| &decided.plan);
        let plan = if transition.began.is_some() { left } else { decided };
        match plan.map(|plan| goal(world.now, plan)) {
            Some(None) => return Err(NoEstimate::NotSelected),
            Some(Some(true)) => return Ok(world.now),
            Some(Some(false)) | None => {}
        }
        if let Some(began) = &transition.began {
            return Err(NoEstimate::after(began));
        }
        if durations.is_empty() {
            return Err(NoEstimate::NoDurations);
        }
        if !carry_out(&mut world, &mut transition) && !world.advance(transition.recheck_at) {
            return Err(NoEstimate::WaitsForOthers);
        }
    }
    Err(NoEstimate::TooFar)
}
