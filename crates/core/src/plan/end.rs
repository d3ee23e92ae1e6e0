//! The end of a rollout: whether the next release has to wait for it, and whether its release is known to be good.

use super::report::{Bucket, bucket};
use super::stages::{RolloutVerdict, StagePhase, StageWait};
use super::types::{Decision, HoldReason, Plan};

impl Plan {
    /// Reports whether nothing of the rollout proceeds by itself: it succeeded or stopped, or its clusters are done,
    /// failed (their Syncs keep retrying) or on hold, and no stage waits for anything but a proof that none of its
    /// clusters provides, or for clusters that `maxUnavailable` holds. The next release then does not wait for this
    /// rollout, and may be the fix.
    #[must_use]
    pub fn is_over(&self) -> bool {
        if self.verdict != RolloutVerdict::InProgress {
            return true;
        }
        let is_stuck = self.is_stuck();
        let is_stationary = self.current_stage().is_none_or(|stage| match stage.phase {
            StagePhase::Waiting(StageWait::Unproven) => true,
            StagePhase::Open => is_stuck,
            _ => false,
        });
        is_stationary
            && self
                .decisions
                .values()
                .all(|decision| is_at_rest(decision, is_stuck))
    }

    /// Reports whether nothing is in flight and `maxUnavailable` holds clusters, so that only the recovery of a failed
    /// cluster lets them start.
    fn is_stuck(&self) -> bool {
        let mut decisions = self.decisions.values();
        let waits = |decision: &Decision| reason(decision) == Some(&HoldReason::TooManyUnavailable);
        self.tally.in_flight == 0 && !decisions.clone().any(Decision::begins_work) && decisions.any(waits)
    }

    /// Reports whether the release succeeded on the whole group, so that a rollback may return to it: every reachable
    /// cluster is done with it, and at least one is. Skipped clusters are not, and there may be a reason for that.
    /// Clusters that were unreachable all the time prove nothing, and every large fleet has some.
    #[must_use]
    pub fn is_known_good(&self) -> bool {
        let buckets = || self.decisions.values().map(bucket);
        self.verdict == RolloutVerdict::Succeeded
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
        Bucket::Updated | Bucket::Failed | Bucket::Unreachable | Bucket::OnHold => true,
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
    use crate::plan::{
        AdmittedRelease, Attribution, FailureReason, Gate, StagePlan, StageRecord, Stop, Tally,
    };

    fn attribution() -> Attribution {
        Attribution {
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

    fn of(decisions: &[Decision], phase: StagePhase, verdict: RolloutVerdict) -> Plan {
        let named = decisions.iter().enumerate();
        Plan {
            removals: std::collections::BTreeMap::new(),
            prunes: Default::default(),
            decisions: named
                .map(|(n, one)| (format!("c{n}").into(), one.clone()))
                .collect(),
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
    fn a_rollout_is_over_when_nothing_proceeds_by_itself() {
        let in_flight = Decision::InFlight {
            deadline: None,
            lost: false,
        };
        let starts = Decision::Start {
            entries: Vec::new(),
            to: AdmittedRelease::Release,
        };
        let soaks = Decision::Soaking {
            until: Timestamp::UNIX_EPOCH,
        };
        let sync = HoldReason::SyncSuspended { entry: "app".into() };
        let unreadable = HoldReason::SyncUnreadable {
            entry: "app".into(),
            sync: "shop-c1".into(),
        };
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
                hold(HoldReason::Skipped(attribution())),
                StagePhase::Skipped(attribution()),
                true,
            ),
            (hold(HoldReason::ClusterSuspended), passed(), true),
            (hold(sync), passed(), true),
            (hold(unreadable), passed(), true),
            (hold(lacks), passed(), true),
            (waits(StageWait::Unproven), unproven(), true),
            // Failed clusters hold the others, and those of later stages.
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
            let plan = of(
                &[Decision::Done, rest.clone()],
                phase.clone(),
                RolloutVerdict::InProgress,
            );
            assert_eq!(plan.is_over(), over, "{rest:?} {phase:?}");
        }
        let stopped = of(
            &[waits(approval())],
            StagePhase::Open,
            RolloutVerdict::Stopped(Stop::Aborted(attribution())),
        );
        assert!(stopped.is_over());
    }

    #[test]
    fn a_release_on_every_reachable_cluster_is_known_to_be_good() {
        for (decisions, good) in [
            (&[Decision::Done, Decision::Done][..], true),
            (&[Decision::Done, unreachable()], true),
            (&[unreachable()], false),
            (&[], false),
            (&[Decision::Done, hold(HoldReason::Skipped(attribution()))], false),
            (&[Decision::Done, hold(HoldReason::ClusterSuspended)], false),
            (&[Decision::Done, failed()], false),
        ] {
            let plan = of(decisions, StagePhase::Passed, RolloutVerdict::Succeeded);
            assert_eq!(plan.is_known_good(), good, "{decisions:?}");
        }
        assert!(!of(&[Decision::Done], StagePhase::Passed, RolloutVerdict::InProgress).is_known_good());
    }
}
