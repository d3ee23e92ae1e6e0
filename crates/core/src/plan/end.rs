//! How a rollout ends: whether what comes next has to wait for it, and whether it is what one goes back to.

use super::report::{Bucket, bucket};
use super::stages::{StagePhase, StageWait, Verdict};
use super::types::{Decision, HoldReason, Plan};

impl Plan {
    /// Whether nothing of the rollout goes on by itself any more: it is through or stopped, or its clusters are done, have failed
    /// (their Syncs try again, for ever if need be), or are held by what concerns them alone, and no stage waits for anything but
    /// a proof that none of its clusters gives, or for clusters that are kept back by those that are not healthy (`maxUnavailable`).
    /// What comes next has no reason to wait for it, and may be what mends it.
    #[must_use]
    pub fn is_over(&self) -> bool {
        if self.verdict != Verdict::Rolls {
            return true;
        }
        let is_stuck = self.is_stuck();
        let stands = self.current_stage().is_none_or(|stage| match stage.phase {
            StagePhase::Waiting(StageWait::Unproven) => true,
            StagePhase::Open => is_stuck,
            _ => false,
        });
        stands
            && self
                .decisions
                .values()
                .all(|decision| is_at_rest(decision, is_stuck))
    }

    /// Whether clusters are kept back by others that are not healthy while nothing is under way, so that only a failed cluster that
    /// recovers lets them go.
    fn is_stuck(&self) -> bool {
        let mut decisions = self.decisions.values();
        let starts = |decision: &Decision| matches!(decision, Decision::Start { .. });
        let waits = |decision: &Decision| reason(decision) == Some(&HoldReason::TooManyUnavailable);
        self.tally.in_flight == 0 && !decisions.clone().any(starts) && decisions.any(waits)
    }

    /// Whether the release has succeeded on the whole group, so that it is one to go back to: every cluster that can be reached
    /// holds it, and one at least. What people passed over does not hold it, and they may have had a reason; a cluster that was
    /// out of reach all the time said nothing about it, and there is one in every large fleet.
    #[must_use]
    pub fn is_known_good(&self) -> bool {
        let buckets = || self.decisions.values().map(bucket);
        self.verdict == Verdict::Through
            && buckets().any(|bucket| bucket == Bucket::Updated)
            && buckets().all(|bucket| matches!(bucket, Bucket::Updated | Bucket::Unreachable))
    }
}

fn reason(decision: &Decision) -> Option<&HoldReason> {
    match decision {
        Decision::Hold { reason, .. } => Some(reason),
        _ => None,
    }
}

fn is_at_rest(decision: &Decision, is_stuck: bool) -> bool {
    match bucket(decision) {
        Bucket::Updated | Bucket::Failed | Bucket::Unreachable | Bucket::Held => true,
        Bucket::Progressing => false,
        Bucket::Pending => match reason(decision) {
            Some(HoldReason::StageWaits { wait, .. }) => match wait {
                StageWait::Unproven => true,
                StageWait::Clusters { .. } => is_stuck,
                StageWait::Gate { .. } | StageWait::GateFailed { .. } => false,
            },
            Some(HoldReason::TooManyUnavailable) => is_stuck,
            _ => false,
        },
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::plan::{FailureReason, Gate, StagePlan, StageRecord, Stop, Tally, To, Word};

    fn word() -> Word {
        Word {
            by: "jane".into(),
            reason: String::new(),
            at: Timestamp::UNIX_EPOCH,
        }
    }

    fn hold(reason: HoldReason) -> Decision {
        Decision::Hold {
            reason,
            recheck_at: None,
        }
    }

    fn unreachable() -> Decision {
        hold(HoldReason::ClusterUnreachable {
            reason: "Unreachable".into(),
            message: "no answer".into(),
            since: Timestamp::UNIX_EPOCH,
        })
    }

    fn failed() -> Decision {
        Decision::Failed {
            reason: FailureReason::ProgressDeadlineExceeded,
            retry_at: None,
        }
    }

    fn waits(wait: StageWait) -> Decision {
        hold(HoldReason::StageWaits { stage: 0, wait })
    }

    fn approval() -> StageWait {
        StageWait::Gate {
            gate: Gate::Approval,
            until: None,
        }
    }

    fn of(decisions: &[Decision], phase: StagePhase, verdict: Verdict) -> Plan {
        let named = decisions.iter().enumerate();
        Plan {
            decisions: named.map(|(n, one)| (format!("c{n}"), one.clone())).collect(),
            stages: vec![StagePlan {
                name: "canary".into(),
                phase,
                record: StageRecord::default(),
                tally: Tally::default(),
            }],
            tally: Tally::default(),
            verdict,
            recheck_at: None,
        }
    }

    #[test]
    fn a_rollout_is_over_when_nothing_of_it_goes_on_by_itself() {
        let in_flight = Decision::InFlight {
            deadline: None,
            lost: false,
        };
        let starts = Decision::Start {
            entries: Vec::new(),
            to: To::Release,
        };
        let soaks = Decision::Soaking {
            until: Timestamp::UNIX_EPOCH,
        };
        let sync = HoldReason::SyncSuspended { entry: "app".into() };
        let lacks = HoldReason::InvalidParameters {
            entry: "app".into(),
            message: "no label".into(),
        };
        let passed = || StagePhase::Passed;
        let unproven = || StagePhase::Waiting(StageWait::Unproven);
        for (rest, phase, over) in [
            (Decision::Done, passed(), true),
            (failed(), passed(), true),
            (unreachable(), passed(), true),
            (
                hold(HoldReason::Skipped(word())),
                StagePhase::Skipped(word()),
                true,
            ),
            (hold(HoldReason::ClusterSuspended), passed(), true),
            (hold(sync), passed(), true),
            (hold(lacks), passed(), true),
            (waits(StageWait::Unproven), unproven(), true),
            // What failed keeps the others back, and those behind its stage.
            (hold(HoldReason::TooManyUnavailable), StagePhase::Open, true),
            (hold(HoldReason::NoSlot), StagePhase::Open, false),
            (waits(approval()), StagePhase::Waiting(approval()), false),
            (waits(approval()), unproven(), false),
            (Decision::Done, StagePhase::Waiting(approval()), false),
            (failed(), StagePhase::Open, false),
            (in_flight, passed(), false),
            (starts, passed(), false),
            (soaks, passed(), false),
            (hold(HoldReason::ClusterNotProbed), passed(), false),
            (hold(HoldReason::GroupSuspended), passed(), false),
            (hold(HoldReason::MembershipHeld), passed(), false),
            (hold(HoldReason::WindowClosed), passed(), false),
            (hold(HoldReason::Jitter), passed(), false),
            (hold(HoldReason::NoSlot), passed(), false),
        ] {
            let plan = of(&[Decision::Done, rest.clone()], phase.clone(), Verdict::Rolls);
            assert_eq!(plan.is_over(), over, "{rest:?} {phase:?}");
        }
        let stopped = of(
            &[waits(approval())],
            StagePhase::Open,
            Verdict::Stopped(Stop::Aborted(word())),
        );
        assert!(stopped.is_over());
    }

    #[test]
    fn what_every_cluster_holds_that_can_be_reached_is_known_to_be_good() {
        for (decisions, good) in [
            (&[Decision::Done, Decision::Done][..], true),
            (&[Decision::Done, unreachable()], true),
            (&[unreachable()], false),
            (&[], false),
            (&[Decision::Done, hold(HoldReason::Skipped(word()))], false),
            (&[Decision::Done, hold(HoldReason::ClusterSuspended)], false),
            (&[Decision::Done, failed()], false),
        ] {
            let plan = of(decisions, StagePhase::Passed, Verdict::Through);
            assert_eq!(plan.is_known_good(), good, "{decisions:?}");
        }
        assert!(!of(&[Decision::Done], StagePhase::Passed, Verdict::Rolls).is_known_good());
    }
}
