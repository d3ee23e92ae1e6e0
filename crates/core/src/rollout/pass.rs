//! One pass of the machine: its input, and the parts that all steps share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use starling_api::{RolloutStatus, SyncGroupStatus};

use super::actions::without_retried;
use super::effect::{Action, Effect};
use super::observe::{Facts, Known, Need, Observations, Rolling};
use super::operator::OperatorActions;
use super::planned::{InStatus, Planned};
use super::snapshot::ReleaseSnapshot;
use super::transition::{Blocked, StepError, Transition};
use crate::digest;
use crate::ids::{ClusterName, RolloutNumber, SyncName};
use crate::plan::{
    ClusterView, LeavingCause, LeavingSync, Plan, PlanInput, RolloutView, in_flight_after, plan, record,
};

/// One pass of the machine.
pub(super) struct Pass<'a, 'o> {
    pub(super) known: Known<'a>,
    pub(super) facts: &'a Facts<'a>,
    pub(super) observed: &'o mut dyn Observations,
}

impl Pass<'_, '_> {
    /// Returns the rollout in status, with its plan.
    pub(super) fn in_status(&mut self, status: &SyncGroupStatus) -> Result<InStatus, Need> {
        let Some(rollout) = status.rollout.clone() else {
            return Ok(InStatus::None);
        };
        let Some(snapshot) = self.snapshot(&rollout.release)? else {
            let actions = self.observed.operator_actions(&rollout);
            return Ok(InStatus::Lost(Box::new(actions)));
        };
        let mut rolling = Rolling {
            known_good: self.known_good(status, &rollout.release)?,
            rollout,
            snapshot,
        };
        // Before the approvals: the digest that they name has to cover the values that these clusters have now.
        let clusters = self.observed.clusters(&rolling);
        if let Some(digest) = self.observed.release_digest(&rolling) {
            rolling.rollout.release_digest = digest;
        }
        let actions = self.observed.operator_actions(&rolling.rollout);
        let mut input = self.input(&rolling, &actions, clusters);
        let mut plan = plan(&input);
        // A limit that is not reached is no part of the input: it changes with other groups, and each change would be
        // recorded.
        if let Some(slots) = self.observed.installation_slots()
            && in_flight_after(&input, &plan).begun > slots
        {
            input.installation_slots = Some(slots);
            plan = crate::plan::plan(&input);
        }
        Ok(InStatus::Planned(Box::new(Planned {
            rolling,
            status: status.clone(),
            actions,
            input,
            plan,
        })))
    }

    fn input(
        &mut self,
        rolling: &Rolling,
        actions: &OperatorActions,
        clusters: BTreeMap<ClusterName, ClusterView>,
    ) -> PlanInput {
        let facts = self.facts;
        let mut stages = record::recorded(&rolling.rollout);
        record::replace_future_times(&mut stages, facts.now);
        self.observed.gate_results(rolling.number(), &mut stages);
        PlanInput {
            now: facts.now,
            clock_jumps: facts.clock_jumps.clone(),
            strategy: facts.strategy.strategy.clone(),
            rollout: RolloutView {
                release: rolling.rollout.release.clone().into(),
                direction: rolling.rollout.direction.into(),
                started_at: record::believed_start(&rolling.rollout.start_time, facts.now),
                stages: without_retried(stages, &actions.input.retries, facts.now),
                approvals: actions.approvals.clone(),
            },
            operator: actions.input.clone(),
            deleting: false,
            suspended: facts.suspended,
            membership_held: facts.membership_held,
            leaving: self.leaving(rolling),
            returned: self.observed.returned(rolling),
            prunes: self.observed.prunes(),
            installation_slots: None,
            clusters,
        }
    }

    /// Returns the Syncs that leave. An automatic rollback to a release without an entry takes away what nobody asked
    /// it to: these removals wait for a person.
    fn leaving(&self, rolling: &Rolling) -> BTreeMap<SyncName, LeavingSync> {
        let mut leaving = self.observed.leaving(rolling);
        if !rolling.rollout.automatic {
            return leaving;
        }
        let digest = removal_digest(
            self.facts.identity.map_or("", |group| &group.id),
            &rolling.rollout,
        );
        if self.observed.approves_removals(&digest) {
            return leaving;
        }
        let removed = leaving
            .values_mut()
            .filter(|sync| sync.cause == LeavingCause::EntryRemoved);
        for sync in removed {
            sync.approval = Some(digest.clone());
        }
        leaving
    }

    /// Returns a release, offered or stored; `None`: it is no longer stored.
    pub(super) fn snapshot(&self, digest: &str) -> Result<Option<Arc<ReleaseSnapshot>>, Need> {
        let offered = self.facts.offer.snapshot.as_ref();
        match offered.filter(|offered| offered.digest == digest) {
            Some(offered) => Ok(Some(offered.clone())),
            None => self.known.loaded.release(digest),
        }
    }

    /// Returns the release for clusters that join while their stage waits. Only a strategy with stages needs it.
    pub(super) fn known_good(
        &self,
        status: &SyncGroupStatus,
        rolling: &str,
    ) -> Result<Option<Arc<ReleaseSnapshot>>, Need> {
        let good = status
            .last_known_good
            .as_ref()
            .filter(|good| good.release != rolling);
        match good.filter(|_| self.facts.strategy.strategy.stages.len() > 1) {
            Some(good) => self.snapshot(&good.release),
            None => Ok(None),
        }
    }

    /// Returns a transition without effects.
    pub(super) fn nothing(&self, blocked: Option<Blocked>) -> Transition {
        Transition {
            effects: Vec::new(),
            status: self.known.status.clone(),
            decided: None,
            left: None,
            began: None,
            queued: None,
            dropped: BTreeSet::new(),
            withdrawn: BTreeSet::new(),
            stuck: None,
            blocked,
            again: false,
            recheck_at: self.facts.offer.settles_at,
        }
    }

    pub(super) fn journal(
        &self,
        rollout: RolloutNumber,
        input: &PlanInput,
        plan: &Plan,
    ) -> Result<Option<Action>, StepError> {
        let Some(recorder) = self.known.recorder else {
            return Ok(None);
        };
        let draft = recorder.draft(rollout, input, plan).map_err(StepError::Journal)?;
        Ok(draft.map(|draft| Action::AppendJournal {
            rollout,
            draft: Box::new(draft),
        }))
    }

    pub(super) fn effects(&self, actions: impl IntoIterator<Item = Action>) -> Vec<Effect> {
        let epoch = self.facts.epoch;
        actions
            .into_iter()
            .map(|action| Effect { epoch, action })
            .collect()
    }

    /// Returns the lent clusters before the runner loads an input.
    pub(super) fn needs(&mut self, need: Need, in_status: InStatus) -> StepError {
        if let InStatus::Planned(planned) = in_status {
            self.observed.give_back(planned.input.clusters);
        }
        need.into()
    }
}

/// Returns the digest that approves the removal of the entries that an automatic rollback lacks: of this rollout of
/// this group. Its number may be used again after the management cluster was set back; no two rollouts start at one
/// time.
#[must_use]
pub fn removal_digest(group: &str, rollout: &RolloutStatus) -> String {
    digest::of(&(
        "removals",
        group,
        rollout.id,
        &rollout.start_time,
        &rollout.release,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against an approval of a lost rollout, after the management cluster was set back.
    #[test]
    fn an_approval_of_a_removal_is_of_one_rollout_although_numbers_begin_again() {
        let rollout = |start_time: &str| RolloutStatus {
            id: 7,
            release: "sha256:11".into(),
            start_time: start_time.into(),
            ..RolloutStatus::default()
        };
        let first = removal_digest("shop", &rollout("2026-07-01T08:00:00Z"));
        assert_eq!(first, removal_digest("shop", &rollout("2026-07-01T08:00:00Z")));
        assert_ne!(first, removal_digest("shop", &rollout("2026-07-02T08:00:00Z")));
        assert_ne!(first, removal_digest("web", &rollout("2026-07-01T08:00:00Z")));
    }
}
