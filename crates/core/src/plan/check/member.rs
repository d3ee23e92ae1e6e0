//! A cluster of the fleet, with what is true of it and the decision of the plan.

use std::time::Duration;

use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::facts::{CheckedFacts, CheckedState};
use super::rules::CheckedRules;
use crate::ids::ClusterName;
use crate::plan::stages::Attribution;
use crate::plan::types::{
    AdmittedRelease, ClusterView, Decision, HoldReason, PlanInput, Reach, UnresolvedTarget,
};

/// A cluster, what is true of it, and its decision.
pub(super) struct CheckedMember<'a> {
    pub(super) name: &'a ClusterName,
    pub(super) view: &'a ClusterView,
    pub(super) facts: CheckedFacts,
    pub(super) decision: &'a Decision,
    /// The index of its stage.
    pub(super) stage: usize,
    /// Whether its stage is open; unset while the stages are evaluated.
    pub(super) stage_is_open: bool,
    /// The operator who skipped it: on its own, or with its stage before this release was admitted there.
    pub(super) skipped: Option<&'a Attribution>,
}

impl<'a> CheckedMember<'a> {
    pub(super) fn of(
        input: &'a PlanInput,
        rules: &CheckedRules<'_>,
        name: &'a ClusterName,
        decision: &'a Decision,
        at: Timestamp,
    ) -> Option<Self> {
        let view = input.clusters.get(name)?;
        let stage = rules.stage_of(view);
        let facts = CheckedFacts::of(input, rules, name, at)?;
        let with_stage = rules.skipped(input, stage).filter(|_| !facts.admitted);
        Some(Self {
            name,
            view,
            facts,
            decision,
            stage,
            stage_is_open: false,
            skipped: input.operator.skipped.get(name).or(with_stage),
        })
    }

    /// Reports whether a start or the removal of entries begins there.
    pub(super) fn starts(&self) -> bool {
        matches!(self.decision, Decision::Start { .. } | Decision::Remove { .. })
    }

    pub(super) fn is_retried(&self) -> bool {
        matches!(self.decision, Decision::Retry { .. })
    }

    pub(super) fn starts_release(&self) -> bool {
        matches!(
            self.decision,
            Decision::Remove { .. }
                | Decision::Start {
                    to: AdmittedRelease::Release,
                    ..
                }
        )
    }

    /// Reports whether nothing may start there because it is skipped. What was started before is completed.
    pub(super) fn is_held_back(&self) -> bool {
        // A removal that has begun is part of the release as well.
        let has_begun = matches!(self.facts.state, CheckedState::Startable { interrupted: true });
        self.skipped.is_some() && !self.facts.admitted && !has_begun
    }

    pub(super) fn counts_as_failed(&self) -> bool {
        self.skipped.is_none() && matches!(self.facts.state, CheckedState::Failed(_))
    }

    /// Reports whether the cluster is reachable, and has work in progress or, in an open stage, something unhealthy
    /// that the rollout may repair.
    pub(super) fn is_unavailable(&self) -> bool {
        let unhealthy = self.facts.unhealthy && self.stage_is_open && self.skipped.is_none();
        self.view.reach == Reach::Ready && (unhealthy || self.facts.holds_slot())
    }

    /// Reports whether a stage waits for the cluster though it may not start.
    pub(super) fn is_waited_for(&self, rules: &CheckedRules<'_>) -> bool {
        match self.own_reason() {
            Some(HoldReason::ClusterNotProbed) => true,
            Some(HoldReason::ClusterUnreachable { .. }) => rules.waits_for_unreachable,
            _ => false,
        }
    }

    /// Returns the first reason about the cluster alone that blocks it.
    pub(super) fn own_reason(&self) -> Option<HoldReason> {
        let mut entries = self.view.entries.iter();
        if self.view.reach == Reach::Suspended {
            return Some(HoldReason::ClusterSuspended);
        }
        let suspended = entries.find(|(_, entry)| entry.observed.as_ref().is_some_and(|sync| sync.suspended));
        if let Some((entry, _)) = suspended {
            return Some(HoldReason::SyncSuspended { entry: entry.clone() });
        }
        if let Some(entry) = self
            .facts
            .removal
            .as_ref()
            .and_then(|removal| removal.suspended.first())
        {
            return Some(HoldReason::SyncSuspended { entry: entry.clone() });
        }
        for (entry, found) in &self.view.entries {
            if let Err(UnresolvedTarget::UnreadableSync { sync }) = &found.wanted {
                let (entry, sync) = (entry.clone(), sync.clone());
                return Some(HoldReason::SyncUnreadable { entry, sync });
            }
        }
        for (entry, found) in &self.view.entries {
            if let Err(UnresolvedTarget::Parameter { message }) = &found.wanted {
                let (entry, message) = (entry.clone(), message.clone());
                return Some(HoldReason::InvalidParameters { entry, message });
            }
        }
        match self.view.reach.clone() {
            Reach::Unprobed => Some(HoldReason::ClusterNotProbed),
            Reach::Unreachable {
                reason,
                message,
                since,
            } => Some(HoldReason::ClusterUnreachable {
                reason,
                message,
                since,
            }),
            Reach::Ready | Reach::Suspended => None,
        }
    }

    /// Returns when its jitter is over: the fraction of it that the hash of cluster and release gives.
    pub(super) fn eligible_at(
        &self,
        input: &PlanInput,
        rules: &CheckedRules<'_>,
        from: Timestamp,
    ) -> Timestamp {
        let share = share_of(rules.jitter, &self.view.id, &input.rollout.release);
        from.checked_add(share).unwrap_or(from)
    }
}

/// Returns a part of `jitter`. The fraction is the first eight bytes of the SHA-256 over cluster and release, each
/// preceded by its length, as a 64-bit number. The result is in whole nanoseconds, rounded down.
fn share_of(jitter: Duration, id: &str, release: &str) -> Duration {
    let text = [id, release].map(|part| [&(part.len() as u64).to_be_bytes(), part.as_bytes()].concat());
    let digest = Sha256::digest(text.concat());
    let mut first = [0; 8];
    first.iter_mut().zip(digest).for_each(|(byte, of)| *byte = of);
    // No jitter is longer than five centuries; an input that says so may be of anybody.
    let jitter = jitter.as_nanos().min(u64::MAX.into());
    let whole = jitter * u128::from(u64::from_be_bytes(first));
    let nanos = whole / (u128::from(u64::MAX) + 1);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}
