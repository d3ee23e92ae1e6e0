//! The rollout in status with its plan, before the choice of the release.

use starling_api::{RolloutPhase, SyncGroupStatus};

use super::observe::Rolling;
use super::operator::OperatorActions;
use crate::plan::{Plan, PlanInput, RolloutVerdict};

/// A rollout with its plan, before the choice of the release.
pub(super) struct Planned {
    pub(super) rolling: Rolling,
    /// The status before the plan.
    pub(super) status: SyncGroupStatus,
    pub(super) actions: OperatorActions,
    pub(super) input: PlanInput,
    pub(super) plan: Plan,
}

impl Planned {
    /// Whether the rollout has succeeded and status does not report it yet.
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
    /// No rollout has begun.
    None,
    /// The release of the rollout is no longer stored, so its admissions are unknown.
    Lost(Box<OperatorActions>),
    /// The rollout has a plan.
    Planned(Box<Planned>),
}
