//! What a step comes to.

use jiff::Timestamp;
use starling_api::SyncGroupStatus;

use super::effect::Effect;
use super::next::Cause;
use super::observe::{Need, Rolling};
use crate::plan::{Direction, Plan, PlanInput};

/// Why the machine cannot step yet.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// Something has to be loaded first. Nothing was decided; the caller loads it and steps again.
    #[error("{0:?} is not loaded")]
    Needs(Need),
    /// The plan cannot be written into the journal, so nothing of it may be carried out.
    #[error("the plan cannot be encoded for the journal")]
    Journal(#[source] serde_json::Error),
}

impl From<Need> for StepError {
    fn from(need: Need) -> Self {
        Self::Needs(need)
    }
}

/// What one pass does.
#[derive(Debug)]
#[must_use]
pub struct Transition {
    /// What is written, in this order.
    pub effects: Vec<Effect>,
    /// The status once all of it is written.
    pub status: SyncGroupStatus,
    /// The plan in force; `None`: nothing rolls, or another pass has to follow first.
    pub decided: Option<Decided>,
    /// The plan of the rollout that another one takes the place of, as it stood last.
    pub left: Option<Box<Plan>>,
    /// The rollout that begins.
    pub began: Option<Began>,
    /// The release that joins the queue.
    pub queued: Option<String>,
    /// A rollback is due that cannot be made, and why.
    pub stuck: Option<String>,
    /// Nothing can be planned, and why.
    pub blocked: Option<Blocked>,
    /// Another pass has to follow at once.
    pub again: bool,
    /// When the next pass is due though nothing happens; `None`: only an event brings one.
    pub recheck_at: Option<Timestamp>,
}

/// The rollout under way, and its plan.
#[derive(Clone, Debug)]
pub struct Decided {
    /// What rolls.
    pub rolling: Rolling,
    /// What happens.
    pub plan: Plan,
}

/// A rollout that begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Began {
    /// `status.rollout.id`.
    pub rollout: i64,
    /// Digest of its release.
    pub release: String,
    /// Its direction.
    pub direction: Direction,
    /// Why it begins.
    pub cause: Cause,
}

/// Why nothing can be planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// One CamelCase word.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

/// The rollout in status, as a preview shows it.
#[derive(Clone, Debug)]
pub enum Preview {
    /// No rollout has begun.
    NotBegun,
    /// Nothing can be planned, and why.
    Blocked(Blocked),
    /// The planner is given this.
    Planned(Box<PlannerInput>),
}

/// What the planner is given now.
#[derive(Clone, Debug)]
pub struct PlannerInput {
    /// What rolls.
    pub rolling: Rolling,
    /// What the planner is given.
    pub input: PlanInput,
}
