//! A simulated group as the rollout machine observes it.

use std::collections::BTreeMap;

use starling_api::conditions::ConditionUpdate;
use starling_api::{RolloutStatus, StageStatus};

use super::{ENTRY, Request, World};
use crate::plan::{Attribution, ClusterView, EntryView, LeavingSync, PlanInput, StageRecord};
use crate::rollout::operator::{OperatorActions, RollbackRequest};
use crate::rollout::{AdmissionRef, Observations, Rolling};

/// The observed world.
pub(super) struct Observed<'w>(pub(super) &'w World);

impl Observed<'_> {
    /// Reports whether a rollout is the one in status, to which requests and results apply.
    fn is_current(&self, rollout: i64) -> bool {
        self.0
            .status
            .rollout
            .as_ref()
            .is_some_and(|current| current.id == rollout)
    }
}

impl Observations for Observed<'_> {
    fn operator_actions(&self, rollout: &RolloutStatus) -> OperatorActions {
        let world = self.0;
        if !self.is_current(rollout.id) {
            return OperatorActions::default();
        }
        let attribution = || Attribution {
            by: "operator".to_owned(),
            reason: String::new(),
            at: world.now,
        };
        let rollback = match &world.request {
            Some(Request::RollBack(to)) => Some(RollbackRequest {
                revision: to.clone(),
                attribution: attribution(),
            }),
            Some(Request::ResumeHeld) | None => None,
        };
        let release = matches!(world.request, Some(Request::ResumeHeld)).then(attribution);
        OperatorActions {
            input: world.operator.clone(),
            approvals: world.approvals.clone(),
            rollback,
            release,
        }
    }

    /// Gates are evaluated in order: a result is that of the last gate that has begun.
    fn gate_results(&self, rollout: i64, stages: &mut BTreeMap<String, StageRecord>) {
        if !self.is_current(rollout) {
            return;
        }
        for (name, result) in &self.0.gate_results {
            let Some(record) = stages.get_mut(name) else {
                continue;
            };
            let gates = if record.opened_at.is_none() {
                &mut record.before
            } else {
                &mut record.after
            };
            if let Some(last) = gates.last_mut() {
                last.result.get_or_insert_with(|| result.clone());
            }
        }
    }

    fn gate_messages(&self, _: i64, _: &mut [StageStatus]) {}

    fn release_digest(&self, _: i64) -> Option<String> {
        None
    }

    /// No ledger is kept.
    fn is_settled(&self, _: &AdmissionRef) -> bool {
        true
    }

    /// Every release stays.
    fn is_stored(&self, _: &str) -> bool {
        true
    }

    fn clusters(&mut self, rolling: &Rolling) -> BTreeMap<String, ClusterView> {
        let known_good = rolling.known_good.as_ref().map(|good| good.digest.clone());
        let clusters = self.0.members.iter().map(|(name, member)| {
            let place = self.0.strategy.place(&member.labels);
            let view = EntryView {
                wanted: Ok(rolling.snapshot.digest.clone()),
                known_good: known_good.clone(),
                observed: member.observed.clone(),
            };
            let cluster = ClusterView {
                id: member.uid.clone(),
                reach: member.reach.clone(),
                stage: place.stage,
                windows: place.windows,
                entries: [(ENTRY.to_owned(), view)].into(),
            };
            (name.clone(), cluster)
        });
        clusters.collect()
    }

    fn give_back(&mut self, _: BTreeMap<String, ClusterView>) {}

    /// Clusters that leave a simulated group are removed with their Syncs.
    fn leaving(&self, _: &Rolling) -> BTreeMap<String, LeavingSync> {
        BTreeMap::new()
    }

    /// There is no ledger.
    fn admission(&self, _: &str, _: &str) -> Option<AdmissionRef> {
        None
    }

    fn conditions(&self, _: &PlanInput) -> Vec<ConditionUpdate> {
        Vec::new()
    }
}
