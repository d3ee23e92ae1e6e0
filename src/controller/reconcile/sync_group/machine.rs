//! One pass of the rollout machine over a group: its inputs, and the releases that it loads on demand.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube::ResourceExt as _;
use starling_api::conditions::{
    ConditionStatus, ConditionUpdate, IMPLICIT_STAGE, POLICY_MISSING, STAGES_OVERLAP,
};
use starling_api::{
    GroupDeletionHold, REQUESTED_AT, RolloutStatus, StageStatus, SyncGroupStatus, UnselectedClusters,
};
use starling_core::clock_jumps::{ClockJumps, is_far_ahead};
use starling_core::ids::{ClusterName, RolloutNumber, SyncName};
use starling_core::journal::Recorder;
use starling_core::plan::{
    ClusterView, LeavingSync, PlanInput, PruneRequest, StageRecord, left_over, overlap,
};
use starling_core::rollout::operator::{OperatorActions, RolloutSubject, operator_actions};
use starling_core::rollout::{
    AdmissionRef, Epoch, Facts, Known, Loaded, Need, Observations, Offer, Rolling, StepError,
};
use starling_net::clock::Clock;

use super::leave::Leaving;
use super::observe::Group;
use super::{digest, held, leave, marks, sync, view};
use crate::controller::caches::plan_memo::PlanMemo;
use crate::controller::caches::prune_requests::PruneRequests;
use crate::controller::caches::release_snapshots::ReleaseSnapshots;
use crate::controller::caches::settled_admissions::SettledAdmissions;
use crate::controller::gates::GateTasks;
use crate::controller::hub::{Hub, HubError};
use crate::controller::policies::AdmissionPolicies;

/// The observations of a group for the machine.
pub(super) struct GroupObservations<'a> {
    pub(super) group: &'a Group,
    pub(super) gates: &'a GateTasks,
    pub(super) memo: &'a mut PlanMemo,
    pub(super) leaving: &'a Leaving,
    pub(super) store: Store<'a>,
    pub(super) settled: &'a SettledAdmissions,
    /// The prunes that the Syncs request; `None`: not known outside of the controller.
    pub(super) prunes: Option<&'a PruneRequests>,
    /// Whether marks of actions and approvals are missing ([`marks::are_missing`]).
    pub(super) awaits_marks: bool,
    /// Whether the admission policies are in force; `None`: not known.
    pub(super) policies: Option<&'a AdmissionPolicies>,
    /// How many clusters may begin to be in flight because of the limit of the installation; `None`: no limit.
    pub(super) installation_slots: Option<usize>,
    /// The clock, by which times of admissions are believed; `None`: as they are stored.
    pub(super) clock: Option<&'a Clock>,
    pub(super) now: Timestamp,
}

/// Returns whether approvals or operator actions matter to a group.
fn has_operators(group: &Group) -> bool {
    let is_empty =
        group.actions.is_empty() && group.approvals.is_empty() && group.deletion_approvals.is_empty();
    !is_empty || digest::is_needed(group)
}

impl Observations for GroupObservations<'_> {
    fn operator_actions(&self, rollout: &RolloutStatus) -> OperatorActions {
        let group = self.group;
        let digest = rollout.release_digest.as_str();
        let subject = RolloutSubject {
            digest: (!digest.is_empty()).then_some(digest),
            ..marks::subject(group, rollout)
        };
        let actions = group.actions.iter().map(|action| &**action);
        operator_actions(
            subject,
            actions,
            group.approvals.iter().map(|approval| &**approval),
        )
    }

    fn gate_results(&self, rollout: RolloutNumber, stages: &mut BTreeMap<String, StageRecord>) {
        self.gates
            .add_results(&self.group.key, &self.group.id, rollout, stages);
    }

    fn gate_messages(&self, rollout: RolloutNumber, stages: &mut [StageStatus]) {
        self.gates
            .report(&self.group.key, &self.group.id, rollout, stages);
    }

    fn release_digest(&self, rolling: &Rolling) -> Option<String> {
        let digested = self.memo.digested.as_ref()?;
        let rolls = self.group.object.status.as_ref()?.rollout.as_ref()?;
        let is_of_it = RolloutNumber::of(rolls) == rolling.number()
            && digested.is_of(&self.group.object, rolling.number(), &rolls.release);
        is_of_it.then(|| {
            let is_current = digested.over == self.memo.covered_by(&rolling.snapshot);
            if is_current {
                digested.digest.clone()
            } else {
                String::new()
            }
        })
    }

    fn is_settled(&self, admission: &AdmissionRef) -> bool {
        self.settled.contains(&self.group.key, &self.group.id, admission)
    }

    fn is_stored(&self, release: &str) -> bool {
        self.store.snapshots.is_known(&self.group.object, release)
    }

    fn clusters(&mut self, rolling: &Rolling) -> BTreeMap<ClusterName, ClusterView> {
        let mut clusters = view::clusters(self.group, rolling, self.memo);
        let Some(clock) = self.clock else {
            return clusters;
        };
        let entries = clusters.values_mut().flat_map(|view| view.entries.values_mut());
        let observed = entries.filter_map(|entry| entry.observed.as_mut());
        for sync in observed {
            // The clock is not read for each cluster of a large fleet.
            if let Some(stored) = sync.admitted_at.filter(|at| is_far_ahead(*at, self.now)) {
                sync.admitted_at = Some(clock.believed(stored));
                sync.stored_admitted_at = Some(stored);
            }
        }
        clusters
    }

    fn give_back(&mut self, clusters: BTreeMap<ClusterName, ClusterView>) {
        self.memo.views.put_back(clusters);
    }

    fn leaving(&self, rolling: &Rolling) -> BTreeMap<SyncName, LeavingSync> {
        leave::leaving(self.group, self.leaving, rolling, self.now)
    }

    fn returned(&self, rolling: &Rolling) -> BTreeSet<SyncName> {
        leave::returned(self.group, self.leaving, rolling)
    }

    fn prunes(&self) -> BTreeMap<SyncName, PruneRequest> {
        let Group { key, syncs, .. } = self.group;
        let of_group = |prunes: &PruneRequests| prunes.of_group(key, syncs, self.now);
        self.prunes.map(of_group).unwrap_or_default()
    }

    fn installation_slots(&self) -> Option<usize> {
        self.installation_slots
    }

    fn approves_removals(&self, digest: &str) -> bool {
        self.group.deletion_approvals().approve(digest)
    }

    fn admission(&self, cluster: &str, entry: &str) -> Option<AdmissionRef> {
        self.group
            .syncs
            .get(cluster, entry)
            .and_then(|sync| sync::admission_of(sync))
    }

    fn awaits_marks(&self, _: &SyncGroupStatus) -> bool {
        self.awaits_marks
    }

    fn held_deletions(&self, input: &PlanInput) -> Vec<GroupDeletionHold> {
        held::deletions(self.leaving.held.as_ref(), &input.leaving)
    }

    fn conditions(&self, input: &PlanInput) -> Vec<ConditionUpdate> {
        let mut conditions = held::conditions(self.group, self.leaving.held.as_ref(), &input.leaving);
        let present = |type_, reason: &str, message| ConditionUpdate {
            type_,
            status: ConditionStatus::True,
            reason: reason.into(),
            message,
        };
        let several = overlap(&input.strategy, &self.memo.overlaps);
        conditions.extend(several.map(|message| present(STAGES_OVERLAP, "ClusterInSeveralStages", message)));
        let none = left_over(&input.strategy, &input.clusters);
        let missing = self.policies.and_then(|policies| policies.missing());
        let missing = missing.filter(|_| has_operators(self.group));
        conditions.extend(missing.map(|why| {
            let message = format!("spec.by of approvals and operator actions is not verified: {why}");
            present(POLICY_MISSING, "PolicyMissing", message)
        }));
        conditions.extend(none.map(|message| present(IMPLICIT_STAGE, "ClustersInNoStage", message)));
        conditions
    }
}

/// The times of a pass.
#[derive(Clone, Copy)]
pub(super) struct PassTimes<'a> {
    pub(super) now: Timestamp,
    /// The jumps of the clock; none if only one reading is known.
    pub(super) clock_jumps: &'a ClockJumps,
    /// The time of the last status write of this process.
    pub(super) reported_at: Option<Timestamp>,
}

/// Returns the facts that do not change during a pass.
pub(super) fn facts<'a>(
    group: &'a Group,
    offer: &'a Offer,
    membership_held: bool,
    unselected: &'a [UnselectedClusters],
    kept_entries: &'a [String],
    times: PassTimes<'a>,
) -> Facts<'a> {
    let spec = &group.object.spec;
    Facts {
        now: times.now,
        clock_jumps: times.clock_jumps,
        epoch: Epoch::NONE,
        strategy: &group.strategy,
        on_new_revision: spec.rollout_strategy.on_new_revision,
        rollback: spec.rollout_strategy.rollback.type_,
        suspended: spec.suspend,
        membership_held,
        unselected,
        kept_entries,
        offer,
        identity: Some(&group.identity).filter(|identity| !identity.id.is_empty()),
        generation: group.object.metadata.generation,
        requested_at: group.object.annotations().get(REQUESTED_AT).map(String::as_str),
        reported_at: times.reported_at,
    }
}

/// The store of releases.
#[derive(Clone, Copy)]
pub(super) struct Store<'a> {
    pub(super) snapshots: &'a ReleaseSnapshots,
    pub(super) hub: &'a Hub,
}

/// A step of the machine: [`starling_core::rollout::step`] or [`starling_core::rollout::preview`].
type Machine<T> = fn(Known<'_>, &Facts<'_>, &mut dyn Observations) -> Result<T, StepError>;

/// Runs the machine, and loads releases until it can step.
///
/// # Errors
/// [`HubError`] if a stored release cannot be read. The inner error is that of a plan that cannot be encoded for the
/// journal.
pub(super) async fn drive<T>(
    machine: Machine<T>,
    facts: &Facts<'_>,
    recorder: Option<&Recorder>,
    observed: &mut GroupObservations<'_>,
) -> Result<Result<T, serde_json::Error>, HubError> {
    let (group, store) = (observed.group, observed.store);
    let empty = SyncGroupStatus::default();
    let mut loaded = Loaded::default();
    loop {
        let known = Known {
            status: group.object.status.as_ref().unwrap_or(&empty),
            loaded: &loaded,
            recorder,
        };
        match machine(known, facts, observed) {
            Ok(done) => return Ok(Ok(done)),
            Err(StepError::Journal(error)) => return Ok(Err(error)),
            Err(StepError::Needs(Need::Release(digest))) => {
                let found = store.snapshots.load(store.hub, group.stored(), &digest).await?;
                loaded.take_release(digest, found);
            }
            Err(StepError::Needs(Need::Revision(revision))) => {
                let found = store
                    .snapshots
                    .with_revision(store.hub, group.stored(), &revision)
                    .await?;
                loaded.take_revision(revision, found.map(|found| found.digest.clone()));
            }
        }
    }
}
