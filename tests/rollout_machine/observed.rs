//! The group as the machine observes it, from caches that may lag behind.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use starling::controller::object_key::ObjectKey;
use starling_api::conditions::ConditionUpdate;
use starling_api::{DeletionPolicy, IntOrPercent, RolloutStatus, StageStatus, SyncGroupStatus};
use starling_core::gate::Side;
use starling_core::ids::{ClusterName, RolloutNumber, SyncName};
use starling_core::membership::{Deselection, HeldDeselection};
use starling_core::plan::{
    ClusterView, EntryView, LeavingCause, LeavingSync, PlanInput, PruneRequest, StageRecord,
};
use starling_core::rollout::operator::{OperatorActions, RolloutSubject, operator_actions};
use starling_core::rollout::{AdmissionRef, Observations, Rolling};

use crate::marks;
use crate::memory::{GateTasks, Memory};
use crate::world::{Api, Cluster, ENTRY, GROUP, OLD_ENTRY, World, sync_name};

/// How long the same clusters have to be deselected before they leave, as in the controller.
const SETTLE_TIME: Duration = Duration::from_secs(3);

/// The clusters that are about to leave, as far as the controller knows.
pub(crate) struct Leaving {
    clusters: BTreeSet<ClusterName>,
    pub(crate) held: Option<HeldDeselection>,
    settles_at: Timestamp,
}

impl Leaving {
    pub(crate) fn observe(cache: &Api, memory: &Memory, allowed: IntOrPercent, now: Timestamp) -> Self {
        let (clusters, held) = match cache.deselection(allowed) {
            Deselection::Free(clusters) | Deselection::Approved(clusters) => (clusters, None),
            Deselection::Held(held) => (BTreeSet::new(), Some(held)),
        };
        let group = ObjectKey::new("fleet", GROUP);
        let since = memory.deselections.since(&group, &clusters, now);
        Self {
            clusters,
            held,
            settles_at: since + SignedDuration::try_from(SETTLE_TIME).unwrap(),
        }
    }
}

/// The observations of a pass.
pub(crate) struct Observed<'m> {
    pub(crate) cache: &'m Api,
    pub(crate) memory: &'m Memory,
    pub(crate) leaving: &'m Leaving,
    pub(crate) when_unselected: DeletionPolicy,
    pub(crate) now: Timestamp,
    /// The input of the plan that remains in force.
    pub(crate) input: RefCell<Option<PlanInput>>,
    /// The number of borrowed views that were not returned.
    pub(crate) lent: isize,
}

impl<'m> Observed<'m> {
    pub(crate) fn new(cache: &'m Api, memory: &'m Memory, leaving: &'m Leaving, world: &World) -> Self {
        Self {
            cache,
            memory,
            leaving,
            when_unselected: world.spec.when_unselected,
            now: world.now,
            input: RefCell::default(),
            lent: 0,
        }
    }
}

impl Observations for Observed<'_> {
    fn operator_actions(&self, rollout: &RolloutStatus) -> OperatorActions {
        let digest = rollout.release_digest.as_str();
        let subject = RolloutSubject {
            digest: (!digest.is_empty()).then_some(digest),
            ..marks::subject(rollout)
        };
        operator_actions(subject, &self.cache.actions, &self.cache.approvals)
    }

    fn gate_results(&self, rollout: RolloutNumber, stages: &mut BTreeMap<String, StageRecord>) {
        for gate in self.memory.gates.decided(rollout.get(), self.now) {
            let Some(record) = stages.get_mut(&gate.stage) else {
                continue;
            };
            let gates = match gate.side {
                Side::Before => &mut record.before,
                Side::After => &mut record.after,
            };
            let found = gates.get_mut(gate.index);
            if let Some(known) = found.filter(|known| known.begun_at == gate.begun_at) {
                known.result.get_or_insert_with(|| GateTasks::result(gate));
            }
        }
    }

    fn gate_messages(&self, _: RolloutNumber, _: &mut [StageStatus]) {}

    fn release_digest(&self, rolling: &Rolling) -> Option<String> {
        let (id, digest) = self.memory.digested.as_ref()?;
        (*id == rolling.number().get()).then(|| digest.clone())
    }

    fn awaits_marks(&self, status: &SyncGroupStatus) -> bool {
        !marks::unmarked(self.cache, status).is_empty()
    }

    fn is_settled(&self, admission: &AdmissionRef) -> bool {
        self.memory.settled.contains(admission)
    }

    fn is_stored(&self, release: &str) -> bool {
        self.cache.stored.contains(release)
    }

    fn clusters(&mut self, rolling: &Rolling) -> BTreeMap<ClusterName, ClusterView> {
        self.lent += 1;
        let known_good = rolling
            .known_good
            .as_ref()
            .map(|good| good.digest.as_str().into());
        let view = |cluster: &Cluster| ClusterView {
            id: cluster.member.uid.clone(),
            reach: cluster.member.reach.clone(),
            stage: cluster.stage,
            windows: Vec::new(),
            entries: BTreeMap::from([(
                ENTRY.into(),
                EntryView {
                    wanted: Ok(rolling.snapshot.digest.as_str().into()),
                    known_good: known_good.clone(),
                    observed: cluster.member.observed.clone(),
                },
            )]),
        };
        let selected = self.cache.selected();
        selected
            .map(|(name, cluster)| (name.clone(), view(cluster)))
            .collect()
    }

    fn give_back(&mut self, _: BTreeMap<ClusterName, ClusterView>) {
        self.lent -= 1;
    }

    fn prunes(&self) -> BTreeMap<SyncName, PruneRequest> {
        let has_sync = |cluster: &ClusterName| {
            let known = self.cache.clusters.get(cluster);
            known.is_some_and(|known| known.member.observed.is_some())
        };
        let requests = self.memory.prunes.iter();
        requests
            .filter(|(_, request)| has_sync(&request.cluster))
            .map(|(sync, request)| (sync.clone(), request.clone()))
            .collect()
    }

    fn leaving(&self, _: &Rolling) -> BTreeMap<SyncName, LeavingSync> {
        let held = self.leaving.held.as_ref().map(|held| &held.lost);
        let mut leaving = BTreeMap::new();
        for (name, cluster) in &self.cache.clusters {
            let leaves = self.leaving.clusters.contains(name) || held.is_some_and(|lost| lost.contains(name));
            let removing = [
                cluster.removing_since,
                cluster.old.and_then(|old| old.removing_since),
            ];
            let goes = !cluster.is_selected && removing.iter().any(Option::is_some);
            let unselected = || LeavingCause::ClusterUnselected {
                settles_at: self.leaving.settles_at,
                stage: cluster.stage,
                windows: Vec::new(),
            };
            let mut add = |entry: &str, cause, policy, removing_since| {
                let sync = LeavingSync {
                    cluster: name.clone(),
                    entry: entry.into(),
                    cause,
                    policy,
                    depends_on: BTreeSet::new(),
                    removing_since,
                    suspended: false,
                    not_ready: false,
                    budget_until: None,
                    approval: None,
                };
                leaving.insert(sync_name(entry, name).into(), sync);
            };
            if cluster.member.observed.is_some() && (leaves || goes) {
                add(ENTRY, unselected(), self.when_unselected, cluster.removing_since);
            }
            if let Some(old) = cluster.old {
                if leaves || goes {
                    add(OLD_ENTRY, unselected(), self.when_unselected, old.removing_since);
                } else if cluster.is_selected {
                    let cause = LeavingCause::EntryRemoved;
                    add(OLD_ENTRY, cause, DeletionPolicy::Delete, old.removing_since);
                }
            }
        }
        leaving
    }

    fn admission(&self, cluster: &str, entry: &str) -> Option<AdmissionRef> {
        let admission = self.cache.admission(cluster)?;
        (admission.entry == entry).then_some(admission)
    }

    /// The plan that remains in force is reported, with its input.
    fn conditions(&self, input: &PlanInput) -> Vec<ConditionUpdate> {
        self.input.replace(Some(input.clone()));
        Vec::new()
    }
}
