//! A simulated group as the rollout machine observes it.

use std::collections::BTreeMap;

use starling_api::conditions::ConditionUpdate;
use starling_api::{RolloutStatus, StageStatus};

use super::{ENTRY, Request, World};
use crate::ids::{ClusterName, RolloutNumber, SyncName, TargetDigest};
use crate::plan::{Attribution, ClusterView, EntryView, LeavingSync, PlanInput, StageRecord};
use crate::rollout::operator::{OperatorActions, RollbackRequest};
use crate::rollout::{AdmissionRef, Observations, ReleaseSnapshot, Rolling};

/// The observed world.
pub(super) struct Observed<'w>(pub(super) &'w World);

impl Observed<'_> {
    /// Reports whether a rollout is the one in status, to which requests and results apply.
    fn is_current(&self, rollout: RolloutNumber) -> bool {
        self.0
            .status
            .rollout
            .as_ref()
            .is_some_and(|current| RolloutNumber::of(current) == rollout)
    }
}

impl Observations for Observed<'_> {
    fn operator_actions(&self, rollout: &RolloutStatus) -> OperatorActions {
        let world = self.0;
        if !self.is_current(RolloutNumber::of(rollout)) {
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
    fn gate_results(&self, rollout: RolloutNumber, stages: &mut BTreeMap<String, StageRecord>) {
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

    fn gate_messages(&self, _: RolloutNumber, _: &mut [StageStatus]) {}

    fn release_digest(&self, _: &Rolling) -> Option<String> {
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

    fn clusters(&mut self, rolling: &Rolling) -> BTreeMap<ClusterName, ClusterView> {
        // A simulated member applies whole releases.
        let target = |release: &ReleaseSnapshot| TargetDigest::new(release.digest.as_str());
        let known_good = rolling.known_good.as_deref().map(target);
        let clusters = self.0.members.iter().map(|(name, member)| {
            let place = self.0.strategy.place(&member.labels);
            let view = EntryView {
                wanted: Ok(target(&rolling.snapshot)),
                known_good: known_good.clone(),
                observed: member.observed.clone(),
            };
            let cluster = ClusterView {
                id: member.uid.clone(),
                reach: member.reach.clone(),
                stage: place.stage,
                windows: place.windows,
                entries: [(ENTRY.into(), view)].into(),
            };
            (name.into(), cluster)
        });
        clusters.collect()
    }

    fn give_back(&mut self, _: BTreeMap<ClusterName, ClusterView>) {}

    /// Clusters that leave a simulated group are removed with their Syncs.
    fn leaving(&self, _: &Rolling) -> BTreeMap<SyncName, LeavingSync> {
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
