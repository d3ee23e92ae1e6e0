//! The simulated fleet of an estimate, as the rollout machine observes it.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use starling_api::conditions::ConditionUpdate;
use starling_api::{OnNewRevision, RollbackType, RolloutStatus, StageStatus, SyncGroupStatus};

use crate::durations::Durations;
use crate::ids::{ClusterName, RolloutNumber, SyncName};
use crate::plan::{
    ClusterView, LeavingSync, ObservedSync, PlanInput, Progress, Reach, ReadStrategy, StageRecord,
};
use crate::rollout::operator::OperatorActions;
use crate::rollout::{
    self, Admission, AdmissionRef, Epoch, Facts, Known, Loaded, Need, Observations, Offer, ReleaseSnapshot,
    Removal, Rolling, StepError, Transition,
};
use crate::simulate::carry::{Model, admitted};

/// The rollout that an estimate continues.
#[derive(Clone, Copy, Debug)]
pub struct CurrentRollout<'a> {
    /// The status of the group.
    pub status: &'a SyncGroupStatus,
    /// The rollout in status, and its release.
    pub rolling: &'a Rolling,
    /// The input of its next plan.
    pub input: &'a PlanInput,
    /// The strategy in force.
    pub strategy: &'a ReadStrategy,
    /// The policy for a newer release.
    pub on_new_revision: OnNewRevision,
    /// The type of a rollback.
    pub rollback: RollbackType,
}

impl CurrentRollout<'_> {
    /// Returns a stored release. An estimate ends when another rollout begins, so the content of its release does not
    /// matter. If the last known good release is not loaded although the strategy needs it, the release is lost.
    fn stored(&self, digest: &str) -> Option<Arc<ReleaseSnapshot>> {
        let is_it = |good: &&Arc<ReleaseSnapshot>| good.digest == digest;
        if let Some(good) = self.rolling.known_good.as_ref().filter(is_it) {
            return Some(good.clone());
        }
        let good = self.status.last_known_good.as_ref();
        let is_needed = self.strategy.strategy.stages.len() > 1;
        if is_needed && good.is_some_and(|good| good.release == digest) {
            return None;
        }
        Some(Arc::new(ReleaseSnapshot {
            digest: digest.into(),
            revisions: Vec::new(),
            entries: Vec::new(),
        }))
    }
}

/// The simulated fleet of an estimate.
pub(super) struct EstimateModel<'a> {
    rollout: CurrentRollout<'a>,
    durations: &'a Durations,
    /// The current time.
    pub(super) now: Timestamp,
    /// The newest release that is queued, or that of the rollout: the Sources offer nothing newer.
    offer: Offer,
    status: SyncGroupStatus,
    loaded: Loaded,
    /// The clusters. A step borrows them and gives them back.
    clusters: BTreeMap<ClusterName, ClusterView>,
    leaving: BTreeMap<SyncName, LeavingSync>,
    /// Time at which each cluster in progress is healthy.
    ends: BTreeMap<ClusterName, Timestamp>,
}

impl<'a> EstimateModel<'a> {
    pub(super) fn new(rollout: CurrentRollout<'a>, durations: &'a Durations) -> Self {
        let CurrentRollout {
            status,
            rolling,
            input,
            ..
        } = rollout;
        let newest = status.queue.last().map(|queued| &queued.release);
        let mut world = Self {
            rollout,
            durations,
            now: input.now,
            offer: Offer {
                release: newest.unwrap_or(&rolling.rollout.release).clone().into(),
                snapshot: Some(rolling.snapshot.clone()),
                settles_at: None,
            },
            status: status.clone(),
            loaded: Loaded::default(),
            clusters: input.clusters.clone(),
            leaving: input.leaving.clone(),
            ends: BTreeMap::new(),
        };
        // A removal takes no time: no duration of one is recorded. A removal that is under way on another cluster does
        // not end by itself, and the plan counts it until its deadline.
        world.leaving.retain(|_, sync| {
            let view = input.clusters.get(&sync.cluster);
            let is_ready = view.is_some_and(|view| view.reach == Reach::Ready);
            sync.removing_since.is_none() || sync.suspended || !is_ready
        });
        // An estimate assumes that no cluster becomes reachable.
        let ready = input
            .clusters
            .iter()
            .filter(|(_, view)| view.reach == Reach::Ready);
        for (name, view) in ready {
            let syncs = view.entries.values().filter_map(|entry| entry.observed.as_ref());
            let working = syncs.filter(|sync| is_at_work(sync) && sync.target.is_some());
            if let Some(since) = working.filter_map(|sync| sync.admitted_at).max() {
                world.work(name, since);
            }
        }
        world
    }

    /// Records that a cluster is in progress since a time. A cluster that takes longer than before counts as having
    /// begun now.
    fn work(&mut self, cluster: &str, since: Timestamp) {
        let now = self.now;
        let Some(takes) = self.durations.expected(cluster) else {
            return;
        };
        let ends = since.checked_add(takes).ok().filter(|ends| *ends > now);
        if let Some(ends) = ends.or_else(|| now.checked_add(takes).ok()) {
            self.ends.insert(cluster.into(), ends);
        }
    }

    /// Lets the machine decide at the current time. `None`: it cannot; since no journal is kept, that does not happen.
    pub(super) fn step(&mut self) -> Option<Transition> {
        let CurrentRollout {
            status,
            rolling,
            input,
            strategy,
            on_new_revision,
            rollback,
        } = self.rollout;
        let facts = Facts {
            now: self.now,
            clock_jumps: &input.clock_jumps,
            epoch: Epoch::NONE,
            strategy,
            on_new_revision,
            rollback,
            suspended: input.suspended,
            membership_held: input.membership_held,
            unselected: &status.unselected,
            kept_entries: &status.kept_entries,
            offer: &self.offer,
            identity: None,
            generation: status.observed_generation,
            requested_at: None,
            reported_at: None,
        };
        loop {
            let known = Known {
                status: &self.status,
                loaded: &self.loaded,
                recorder: None,
            };
            let mut observed = Observed {
                rolling,
                input,
                clusters: &mut self.clusters,
                leaving: &self.leaving,
            };
            match rollout::step(known, &facts, &mut observed) {
                Ok(transition) => return Some(transition),
                Err(StepError::Needs(Need::Release(digest))) => {
                    let found = self.rollout.stored(&digest);
                    self.loaded.take_release(digest, found);
                }
                Err(StepError::Needs(Need::Revision(revision))) => self.loaded.take_revision(revision, None),
                Err(StepError::Journal(_)) => return None,
            }
        }
    }

    /// Advances to the next time at which something happens. Returns whether there is one.
    pub(super) fn advance(&mut self, recheck_at: Option<Timestamp>) -> bool {
        let ends = self.ends.values().copied();
        let next = ends.chain(recheck_at).filter(|at| *at > self.now).min();
        let Some(next) = next else {
            return false;
        };
        self.now = next;
        self.recover();
        true
    }

    /// Makes the clusters healthy whose time has come.
    fn recover(&mut self) {
        let due = self.ends.iter().filter(|(_, ends)| **ends <= self.now);
        let due: Vec<ClusterName> = due.map(|(name, _)| name.clone()).collect();
        for name in due {
            let since = self.ends.remove(&name).unwrap_or(self.now);
            let entries = self.clusters.get_mut(&name).map(|view| &mut view.entries);
            let syncs = entries.into_iter().flat_map(BTreeMap::values_mut);
            for sync in syncs.filter_map(|entry| entry.observed.as_mut()) {
                if is_at_work(sync) {
                    sync.progress = Progress::healthy_since(since);
                }
            }
        }
    }
}

fn is_at_work(sync: &ObservedSync) -> bool {
    sync.progress == Progress::Working && !sync.suspended
}

impl Model for EstimateModel<'_> {
    fn write_status(&mut self, status: SyncGroupStatus) {
        self.status = status;
    }

    fn admit(&mut self, admission: &Admission) {
        let view = self.clusters.get_mut(&admission.cluster);
        if let Some(entry) = view.and_then(|view| view.entries.get_mut(&admission.entry)) {
            entry.observed = Some(admitted(admission));
            self.work(&admission.cluster, admission.at);
        }
    }

    fn remove(&mut self, removal: &Removal) {
        self.leaving.remove(&removal.sync);
    }
}

/// The observations of one step. Operators and gates do nothing more than they have done before the estimate.
struct Observed<'w> {
    rolling: &'w Rolling,
    input: &'w PlanInput,
    clusters: &'w mut BTreeMap<ClusterName, ClusterView>,
    leaving: &'w BTreeMap<SyncName, LeavingSync>,
}

impl Observations for Observed<'_> {
    fn operator_actions(&self, rollout: &RolloutStatus) -> OperatorActions {
        if rollout.id != self.rolling.rollout.id {
            return OperatorActions::default();
        }
        OperatorActions {
            input: self.input.operator.clone(),
            approvals: self.input.rollout.approvals.clone(),
            rollback: None,
            release: None,
        }
    }

    fn gate_results(&self, _: RolloutNumber, _: &mut BTreeMap<String, StageRecord>) {}

    fn gate_messages(&self, _: RolloutNumber, _: &mut [StageStatus]) {}

    fn release_digest(&self, _: &Rolling) -> Option<String> {
        None
    }

    fn is_stored(&self, _: &str) -> bool {
        true
    }

    fn clusters(&mut self, _: &Rolling) -> BTreeMap<ClusterName, ClusterView> {
        std::mem::take(self.clusters)
    }

    fn give_back(&mut self, clusters: BTreeMap<ClusterName, ClusterView>) {
        *self.clusters = clusters;
    }

    fn leaving(&self, _: &Rolling) -> BTreeMap<SyncName, LeavingSync> {
        self.leaving.clone()
    }

    /// The Syncs have the approval that they wait for already.
    fn approves_removals(&self, _: &str) -> bool {
        true
    }

    /// No ledger is kept.
    fn admission(&self, _: &str, _: &str) -> Option<AdmissionRef> {
        None
    }

    fn is_settled(&self, _: &AdmissionRef) -> bool {
        true
    }

    fn conditions(&self, _: &PlanInput) -> Vec<ConditionUpdate> {
        Vec::new()
    }
}
