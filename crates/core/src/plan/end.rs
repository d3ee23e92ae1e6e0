//! How a rollout ends: whether what comes next has to wait for it, and whether it is what one goes back to.

use super::stages::{StagePhase, StageWait, Verdict};
use super::types::{Decision, HoldReason, Plan};

impl Plan {
    /// Whether nothing of the rollout goes on by itself any more: it is through or stopped, or its clusters are done, have failed
    /// (their Syncs try again, for ever if need be), or are held by what concerns them alone, and no stage waits for anything but
    /// a proof that none of its clusters gives. What comes next has no reason to wait for it, and may be what mends it.
    #[must_use]
    pub fn is_over(&self) -> bool {
        if self.verdict != Verdict::Rolls {
            return true;
        }
        let stands = self
            .current_stage()
            .is_none_or(|stage| stage.phase == StagePhase::Waiting(StageWait::Unproven));
        stands && self.decisions.values().all(is_at_rest)
    }

    /// Whether the release has succeeded on the whole group, so that it is one to go back to: every cluster that can be reached
    /// holds it, and one at least. What people passed over does not hold it, and they may have had a reason; a cluster that was
    /// out of reach all the time said nothing about it, and there is one in every large fleet.
    #[must_use]
    pub fn is_known_good(&self) -> bool {
        let holds = |decision: &Decision| matches!(decision, Decision::Done);
        let says_nothing = |decision: &Decision| {
            matches!(
                decision,
                Decision::Hold {
                    reason: HoldReason::ClusterUnreachable { .. },
                    ..
                }
            )
        };
        let mut decisions = self.decisions.values();
        self.verdict == Verdict::Through
            && self.decisions.values().any(holds)
            && decisions.all(|decision| holds(decision) || says_nothing(decision))
    }
}

fn is_at_rest(decision: &Decision) -> bool {
    match decision {
        Decision::Done | Decision::Failed { .. } => true,
        Decision::Start { .. } | Decision::InFlight { .. } | Decision::Soaking { .. } => false,
        Decision::Hold { reason, .. } => match reason {
            HoldReason::Skipped(_)
            | HoldReason::ClusterSuspended
            | HoldReason::SyncSuspended { .. }
            | HoldReason::InvalidParameters { .. }
            | HoldReason::ClusterUnreachable { .. } => true,
            HoldReason::StageWaits { wait, .. } => *wait == StageWait::Unproven,
            HoldReason::ClusterNotProbed
            | HoldReason::GroupSuspended
            | HoldReason::Paused(_)
            | HoldReason::Aborted(_)
            | HoldReason::MembershipHeld
            | HoldReason::TooManyFailures { .. }
            | HoldReason::WindowClosed
            | HoldReason::Jitter
            | HoldReason::NoSlot
            | HoldReason::TooManyUnavailable => false,
        },
    }
}
