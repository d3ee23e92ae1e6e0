//! The result of a step.

use std::collections::BTreeSet;

use jiff::Timestamp;
use starling_api::SyncGroupStatus;

use super::effect::Effect;
use super::next::Cause;
use super::observe::{Need, Rolling};
use crate::ids::{ReleaseDigest, RolloutNumber};
use crate::plan::{Direction, InFlightAfter, Plan, PlanInput};

/// Why the machine cannot step.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// An input must be loaded first. Nothing was decided; the runner loads it and steps again.
    #[error("{0:?} is not loaded")]
    Needs(Need),
    /// The plan cannot be written to the journal, so it must not be executed.
    #[error("the plan cannot be encoded for the journal")]
    Journal(#[source] serde_json::Error),
}

impl From<Need> for StepError {
    fn from(need: Need) -> Self {
        Self::Needs(need)
    }
}

/// The decisions of one pass.
#[derive(Debug)]
#[must_use]
pub struct Transition {
    /// The effects, in order.
    pub effects: Vec<Effect>,
    /// The status after all effects.
    pub status: SyncGroupStatus,
    /// The plan in force; `None`: there is no rollout, or another pass must follow first.
    pub decided: Option<Decided>,
    /// The last plan of the rollout that another one replaces.
    pub left: Option<Box<Plan>>,
    /// The rollout that begins.
    pub began: Option<Began>,
    /// The release that joins the queue.
    pub queued: Option<String>,
    /// The queued releases that left the queue because they are no longer stored.
    pub dropped: BTreeSet<String>,
    /// The queued releases that left the queue because the Sources went back to an earlier release.
    pub withdrawn: BTreeSet<String>,
    /// Why a due rollback, or another due transition, cannot be made.
    pub stuck: Option<Blocked>,
    /// Why nothing can be planned.
    pub blocked: Option<Blocked>,
    /// Whether another pass must follow at once.
    pub again: bool,
    /// The time of the next pass; `None`: only an event causes one.
    pub recheck_at: Option<Timestamp>,
}

/// The current rollout, and its plan.
#[derive(Clone, Debug)]
pub struct Decided {
    /// The rollout and its release.
    pub rolling: Rolling,
    /// The plan.
    pub plan: Plan,
    /// The clusters of the plan that the limit of the installation counts.
    pub in_flight: InFlightAfter,
}

/// A rollout that begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Began {
    /// `status.rollout.id`.
    pub rollout: RolloutNumber,
    /// Digest of its release.
    pub release: ReleaseDigest,
    /// Its direction.
    pub direction: Direction,
    /// The cause.
    pub cause: Cause,
}

/// A reason why nothing can be planned, or why a due transition cannot be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The reason, in CamelCase.
    pub reason: &'static str,
    /// The message.
    pub message: String,
}

impl Blocked {
    /// A rollback is due, and there is no release to roll back to.
    pub(super) fn nothing_to_go_back_to(message: impl Into<String>) -> Self {
        Self {
            reason: "NothingToGoBackTo",
            message: message.into(),
        }
    }

    /// A release is due that is neither offered nor stored.
    pub(super) fn release_not_found(release: &str) -> Self {
        Self {
            reason: "ReleaseNotFound",
            message: format!("release {release} is no longer stored"),
        }
    }
}

/// The rollout in status, for a preview.
#[derive(Clone, Debug)]
pub enum Preview {
    /// No rollout has begun.
    NotBegun,
    /// Nothing can be planned.
    Blocked(Blocked),
    /// The input of the planner.
    Planned(Box<PlannerInput>),
}

/// The input of the planner, with its rollout.
#[derive(Clone, Debug)]
pub struct PlannerInput {
    /// The rollout and its release.
    pub rolling: Rolling,
    /// The input of the planner.
    pub input: PlanInput,
}
