//! The rollout in status, with its plan, before it is decided whether that stays in force.

use starling_api::{RolloutPhase, SyncGroupStatus};

use super::observe::Rolling;
use super::operator::OperatorActions;
use crate::plan::{Plan, PlanInput, RolloutVerdict};

/// A rollout with its plan, as long as it is not decided whether that stays in force.
pub(super) struct Planned {
    pub(super) rolling: Rolling,
    /// The status that the plan starts from.
    pub(super) status: SyncGroupStatus,
    pub(super) actions: OperatorActions,
    pub(super) input: PlanInput,
    pub(super) plan: Plan,
}

impl Planned {
    /// Whether the rollout has succeeded, and status does not say so yet.
    pub(super) fn is_unreported_success(&self) -> bool {
        let release = &self.rolling.rollout.release;
        let good = self.status.last_known_good.as_ref().map(|good| &good.release);
        let is_reported = self.rolling.rollout.phase == RolloutPhase::Succeeded
            && (good == Some(release) || !self.plan.is_known_good());
        self.plan.verdict == RolloutVerdict::Succeeded && !is_reported
    }
}

/// The rollout in status.
pub(super) enum InStatus {
    /// There is none.
    None,
    /// Its release is not stored any more: what it would admit is not known.
    Lost(Box<OperatorActions>),
    /// It is planned.
    Planned(Box<Planned>),
}
