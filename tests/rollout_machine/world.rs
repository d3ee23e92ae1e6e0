//! The actual state of the management API and the clusters, which survives every crash.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use starling_api::{
    ActionType, DeletionPolicy, EntryRevision, IntOrPercent, OnNewRevision, RollbackType, RolloutAction,
    RolloutActionSpec, RolloutApproval, RolloutApprovalSpec, RolloutPhase, RolloutStatus, SyncEntry,
    SyncGroupStatus,
};
use starling_core::apply::ApprovedDigests;
use starling_core::deletion_budget::Left;
use starling_core::gate::Side;
use starling_core::ids::{ClusterName, GroupId, ReleaseDigest, RolloutNumber, SyncName};
use starling_core::journal::RecordedPlan;
use starling_core::membership::{Deselection, Members, MembersOf, deselection};
use starling_core::plan::{LeavingCause, Progress, Reach, Strategy};
use starling_core::rollout::{AdmissionRef, ReleaseSnapshot, Removal};
use starling_core::simulate::SimulatedMember;
use starling_ledger::AdmissionRecord;

use crate::invariants::{self, Violation};

/// The name of the group.
pub(crate) const GROUP: &str = "shop";
/// Its ID.
pub(crate) static ID: LazyLock<GroupId> = LazyLock::new(|| GroupId::new("id-of-shop"));
/// The only entry of its releases: their number is irrelevant here.
pub(crate) const ENTRY: &str = "app";
/// An entry that no release has any more.
pub(crate) const OLD_ENTRY: &str = "old";
/// The time that a member takes to delete the objects of a Sync.
const DELETION: Duration = Duration::from_secs(5);

/// The name of the Sync of an entry on a cluster.
pub(crate) fn sync_name(entry: &str, cluster: &str) -> String {
    format!("{GROUP}-{entry}-{cluster}")
}

/// A release. Its digest is its revision, and its target on every cluster: its content is irrelevant here.
pub(crate) fn snapshot(digest: &str) -> Arc<ReleaseSnapshot> {
    let entry = serde_json::json!({"name": ENTRY, "sourceRef": {"name": "s"}, "path": "./app"});
    let entry: SyncEntry = serde_json::from_value(entry).unwrap();
    Arc::new(ReleaseSnapshot {
        digest: digest.into(),
        revisions: vec![EntryRevision {
            sync: ENTRY.to_owned(),
            revision: digest.to_owned(),
        }],
        entries: vec![entry],
    })
}

/// The spec of the group.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) strategy: Strategy,
    pub(crate) on_new_revision: OnNewRevision,
    pub(crate) rollback: RollbackType,
    pub(crate) max_unselected: IntOrPercent,
    pub(crate) when_unselected: DeletionPolicy,
}

/// A cluster, with its Sync.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    pub(crate) member: SimulatedMember,
    /// Its stage, as an index in the strategy.
    pub(crate) stage: usize,
    /// The rollout in its Sync.
    pub(crate) rollout: i64,
    /// When the deletion of its Sync began.
    pub(crate) removing_since: Option<Timestamp>,
    /// Its Sync of the entry that no release has.
    pub(crate) old: Option<OldSync>,
    /// Whether the group selects it. A cluster that is not selected has no Cluster object any more.
    pub(crate) is_selected: bool,
}

/// A Sync of an entry that no release has any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OldSync {
    /// When its deletion began.
    pub(crate) removing_since: Option<Timestamp>,
}

impl Cluster {
    /// A selected cluster without a Sync.
    pub(crate) fn new(member: SimulatedMember, stage: usize) -> Self {
        Self {
            member,
            stage,
            rollout: 0,
            removing_since: None,
            old: None,
            is_selected: true,
        }
    }

    /// Adds a Sync of the entry that no release has.
    pub(crate) fn with_old(mut self) -> Self {
        self.old = Some(OldSync::default());
        self
    }

    /// Removes its Sync.
    pub(crate) fn drop_sync(&mut self) {
        self.member.observed = None;
        self.removing_since = None;
        self.rollout = 0;
    }

    /// Removes or begins to delete the Sync of an entry.
    fn remove(&mut self, entry: &str, policy: DeletionPolicy, now: Timestamp) {
        match (entry == OLD_ENTRY, policy) {
            (true, DeletionPolicy::Orphan) => self.old = None,
            (true, DeletionPolicy::Delete) => {
                if let Some(old) = &mut self.old {
                    old.removing_since.get_or_insert(now);
                }
            }
            (false, DeletionPolicy::Orphan) => self.drop_sync(),
            (false, DeletionPolicy::Delete) => {
                self.removing_since.get_or_insert(now);
            }
        }
    }

    /// Applies what happens by itself up to now.
    fn live(&mut self, now: Timestamp) {
        self.member.live(now);
        let is_gone = |since: Option<Timestamp>| since.is_some_and(|since| since + DELETION <= now);
        if self.member.reach != Reach::Ready {
            return;
        }
        if is_gone(self.removing_since) {
            self.drop_sync();
        }
        if self.old.is_some_and(|old| is_gone(old.removing_since)) {
            self.old = None;
        }
    }

    /// Whether it has a Sync that is not being deleted.
    fn has_staying_sync(&self) -> bool {
        let stays = self.member.observed.is_some() && self.removing_since.is_none();
        stays || self.old.is_some_and(|old| old.removing_since.is_none())
    }

    /// Returns when something happens by itself next.
    pub(crate) fn next_time(&self) -> Option<Timestamp> {
        let begun = [self.removing_since, self.old.and_then(|old| old.removing_since)];
        let is_ready = self.member.reach == Reach::Ready;
        let ends = begun.into_iter().flatten().filter(|_| is_ready);
        ends.map(|since| since + DELETION)
            .chain(self.member.next_time())
            .min()
    }
}

/// The objects of the management API.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    /// The revision of the Source.
    pub(crate) offered: ReleaseDigest,
    pub(crate) status: SyncGroupStatus,
    /// The approved deselection, an annotation of the group.
    pub(crate) approved_deselection: ApprovedDigests,
    /// Releases that are stored.
    pub(crate) stored: BTreeSet<ReleaseDigest>,
    pub(crate) clusters: BTreeMap<ClusterName, Cluster>,
    pub(crate) actions: Vec<RolloutAction>,
    pub(crate) approvals: Vec<RolloutApproval>,
}

impl Api {
    /// The clusters that are selected.
    pub(crate) fn selected(&self) -> impl Iterator<Item = (&ClusterName, &Cluster)> {
        self.clusters.iter().filter(|(_, cluster)| cluster.is_selected)
    }

    pub(crate) fn is_selected(&self, cluster: &str) -> bool {
        let known = self.clusters.get(cluster);
        known.is_some_and(|known| known.is_selected)
    }

    /// Returns the admission of the Sync on a cluster.
    pub(crate) fn admission(&self, cluster: &str) -> Option<AdmissionRef> {
        let known = self.clusters.get(cluster)?;
        Some(AdmissionRef {
            cluster: cluster.into(),
            entry: ENTRY.into(),
            rollout: RolloutNumber::new(known.rollout),
            target: known.member.observed.as_ref()?.target.clone()?,
        })
    }

    /// The clusters that leave the group.
    pub(crate) fn deselection(&self, allowed: IntOrPercent) -> Deselection {
        let with_sync = self
            .clusters
            .iter()
            .filter(|(_, cluster)| cluster.has_staying_sync());
        deselection(Members {
            previous: &with_sync.map(|(name, _)| name.clone()).collect(),
            selected: &self.selected().map(|(name, _)| name.clone()).collect(),
            unknown: &BTreeSet::new(),
            allowed,
            recent: Left::default(),
            going: &BTreeSet::new(),
            group: MembersOf {
                namespace: "fleet",
                name: "shop",
                identities: &BTreeMap::new(),
            },
            approved: &self.approved_deselection,
        })
    }

    /// Copies the Sync of a cluster from `other`.
    pub(crate) fn take_sync(&mut self, other: &Self, name: &str) {
        if let (Some(here), Some(there)) = (self.clusters.get_mut(name), other.clusters.get(name)) {
            here.member.observed.clone_from(&there.member.observed);
            here.rollout = there.rollout;
            here.removing_since = there.removing_since;
            here.old = there.old;
        }
    }

    /// Copies the Cluster objects from `other`.
    pub(crate) fn take_clusters(&mut self, other: &Self) {
        for (name, there) in &other.clusters {
            if let Some(here) = self.clusters.get_mut(name) {
                here.is_selected = there.is_selected;
                here.member.reach.clone_from(&there.member.reach);
            }
        }
    }
}

/// A gate of a rollout: its stage, its side, its index, and when it began.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GateKey {
    pub(crate) rollout: i64,
    pub(crate) stage: String,
    pub(crate) side: Side,
    pub(crate) index: usize,
    pub(crate) begun_at: Timestamp,
}

/// A Sync as the controller writes it.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) cluster: ClusterName,
    /// The digest of the release is the target.
    pub(crate) release: ReleaseDigest,
    pub(crate) rollout: i64,
    pub(crate) at: Timestamp,
    /// The request of the retry.
    pub(crate) retried_for: Option<Timestamp>,
}

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) now: Timestamp,
    pub(crate) spec: Spec,
    pub(crate) api: Api,
    /// Violated invariants so far.
    pub(crate) violations: Vec<Violation>,
    /// Rollouts that the status reported as succeeded.
    pub(crate) succeeded: BTreeSet<i64>,
    /// Every release that was ever stored.
    pub(crate) releases: BTreeSet<ReleaseDigest>,
    /// Successful writes of the controller to the management API.
    pub(crate) writes: usize,
    /// Whether a cluster has left the group, so that there may be fewer slots.
    pub(crate) has_shrunk: bool,
    /// The gates that other systems were asked to decide.
    pub(crate) evaluated_gates: BTreeSet<GateKey>,
    /// The clusters that left and were counted against the deletion budget.
    pub(crate) counted: BTreeSet<ClusterName>,
    /// The writes of these counts.
    pub(crate) count_writes: usize,
    serial: u32,
    offers: u32,
}

impl World {
    /// Creates a group without a rollout.
    pub(crate) fn new(now: Timestamp, spec: Spec, clusters: BTreeMap<ClusterName, Cluster>) -> Self {
        Self {
            now,
            spec,
            api: Api {
                offered: "r0".into(),
                status: SyncGroupStatus::default(),
                approved_deselection: ApprovedDigests::default(),
                stored: BTreeSet::new(),
                clusters,
                actions: Vec::new(),
                approvals: Vec::new(),
            },
            violations: Vec::new(),
            succeeded: BTreeSet::new(),
            releases: BTreeSet::new(),
            writes: 0,
            has_shrunk: false,
            evaluated_gates: BTreeSet::new(),
            counted: BTreeSet::new(),
            count_writes: 0,
            serial: 0,
            offers: 0,
        }
    }

    pub(crate) fn rollout(&self) -> Option<&RolloutStatus> {
        self.api.status.rollout.as_ref()
    }

    pub(crate) fn is_selected(&self, cluster: &str) -> bool {
        let cluster = self.api.clusters.get(cluster);
        cluster.is_some_and(|cluster| cluster.is_selected)
    }

    // ------------------------------------------------------------------ what the controller does

    pub(crate) fn store_release(&mut self, release: &str) {
        self.api.stored.insert(release.into());
        self.releases.insert(release.into());
    }

    /// `cache` is the state that the controller knew.
    pub(crate) fn write_status(&mut self, after: &SyncGroupStatus, cache: &Api) {
        self.writes += 1;
        self.violations.extend(invariants::of_status(self, after, cache));
        let before = std::mem::replace(&mut self.api.status, after.clone());
        if let Some(rollout) = after.rollout.as_ref()
            && rollout.phase == RolloutPhase::Succeeded
            && after.clusters.total > 0
        {
            self.succeeded.insert(rollout.id);
        }
        // It had succeeded when the next one started.
        if let Some(finished) = before.rollout
            && before.last_known_good != after.last_known_good
            && after
                .last_known_good
                .as_ref()
                .is_some_and(|good| good.release == finished.release)
        {
            self.succeeded.insert(finished.id);
        }
    }

    /// `intents` are those of this rollout in the ledger, `journal` is its newest entry, `cache` the state that the
    /// controller knew.
    pub(crate) fn write_sync(
        &mut self,
        written: &Written,
        intents: &[AdmissionRecord],
        journal: Option<&(i64, RecordedPlan)>,
        cache: &Api,
    ) {
        self.writes += 1;
        self.violations
            .extend(invariants::of_sync(self, written, intents, cache));
        self.violations.extend(invariants::of_journal(written, journal));
        let Some(cluster) = self.api.clusters.get_mut(&written.cluster) else {
            return;
        };
        cluster.rollout = written.rollout;
        let same = cluster
            .member
            .observed
            .as_mut()
            .filter(|sync| sync.target.as_deref() == Some(written.release.as_str()));
        match same {
            // The spec is unchanged, and so is its progress, unless it is retried.
            Some(sync) => {
                sync.admitted_at = Some(written.at);
                if written.retried_for.is_some() && matches!(sync.progress, Progress::Failing { .. }) {
                    sync.progress = Progress::Working;
                }
            }
            None => cluster.member.admit(&written.release, written.at),
        }
        if let Some(sync) = &mut cluster.member.observed {
            sync.retried_for = written.retried_for;
        }
        cluster.member.live(self.now);
        self.violations.extend(invariants::of_room(self, written, cache));
    }

    /// Counts the clusters that leave and lose their objects, as status does.
    pub(crate) fn count_removals(&mut self, removals: &[Removal]) {
        let loses = |removal: &&Removal| {
            removal.cause != LeavingCause::EntryRemoved && removal.policy == DeletionPolicy::Delete
        };
        let clusters = removals.iter().filter(loses).map(|removal| &removal.cluster);
        let before = self.counted.len();
        self.counted.extend(clusters.cloned());
        self.count_writes += usize::from(self.counted.len() > before);
    }

    /// `journal` is the newest entry of the journal.
    pub(crate) fn remove_sync(
        &mut self,
        removal: &Removal,
        journal: Option<&(i64, RecordedPlan)>,
        cache: &Api,
    ) {
        self.writes += 1;
        self.violations
            .extend(invariants::of_removal(self, removal, journal, cache));
        let now = self.now;
        if let Some(cluster) = self.api.clusters.get_mut(&removal.cluster) {
            cluster.remove(&removal.entry, removal.policy, now);
        }
    }

    /// `journal` is the newest entry of the journal.
    pub(crate) fn allow_prune(&mut self, sync: &SyncName, journal: Option<&(i64, RecordedPlan)>) {
        self.writes += 1;
        self.violations.extend(invariants::of_prune(self, sync, journal));
    }

    /// Asks other systems to decide gates.
    pub(crate) fn evaluate_gates(&mut self, open: &[GateKey]) {
        self.evaluated_gates.extend(open.iter().cloned());
    }

    /// Deletes releases that are not named.
    pub(crate) fn collect_garbage(&mut self, unique_name: &BTreeSet<ReleaseDigest>) {
        self.violations.extend(invariants::of_garbage(self, unique_name));
        self.api.stored.retain(|release| unique_name.contains(release));
    }

    // ------------------------------------------------------------------ what others do

    /// Advances the time.
    pub(crate) fn go_to(&mut self, now: Timestamp) {
        self.now = now;
        for cluster in self.api.clusters.values_mut() {
            cluster.live(now);
        }
    }

    /// Selects or deselects a cluster.
    pub(crate) fn select(&mut self, name: &str, is_selected: bool) {
        if let Some(cluster) = self.api.clusters.get_mut(name) {
            cluster.is_selected = is_selected;
            // One that returns counts again when it leaves again.
            if is_selected {
                self.counted.remove(name);
            }
            self.has_shrunk |= !is_selected;
            // A Sync that is being deleted goes before the group writes another one.
            if is_selected && cluster.removing_since.is_some() {
                cluster.drop_sync();
            }
        }
    }

    /// Approves the deselection of the deselected clusters.
    pub(crate) fn approve_deselection(&mut self) {
        if let Deselection::Held(held) = self.api.deselection(self.spec.max_unselected) {
            self.api.approved_deselection = [held.digest].into_iter().collect();
        }
    }

    /// Makes the next attempt of a cluster succeed.
    pub(crate) fn repair(&mut self, cluster: &str) {
        if let Some(cluster) = self.api.clusters.get_mut(cluster) {
            cluster.member.fates.clear();
        }
    }

    /// Deletes a stored release.
    pub(crate) fn delete_release(&mut self, release: &str) {
        self.api.stored.remove(release);
    }

    /// API servers use whole seconds as creation time.
    fn creation_time(&self) -> Time {
        Time(Timestamp::from_second(self.now.as_second()).unwrap())
    }

    fn unique_name(&mut self, what: &str) -> String {
        self.serial += 1;
        format!("{what}-{}", self.serial)
    }

    /// Creates an operator action for the current rollout.
    pub(crate) fn add_action(
        &mut self,
        action: ActionType,
        cluster: Option<ClusterName>,
        stage: Option<String>,
    ) {
        let Some(rollout) = self.rollout().map(|rollout| rollout.id) else {
            return;
        };
        let spec = RolloutActionSpec {
            group: GROUP.into(),
            rollout,
            action,
            cluster: cluster.map(String::from),
            stage,
            revision: None,
            by: "jane".into(),
            reason: "so".into(),
        };
        let mut action_object = RolloutAction::new(&self.unique_name("action"), spec);
        action_object.metadata.creation_timestamp = Some(self.creation_time());
        action_object.metadata.resource_version = Some(self.serial.to_string());
        self.api.actions.push(action_object);
    }

    /// Approves a stage of the current rollout, if its release digest is known. Returns whether it is.
    pub(crate) fn approve(&mut self, stage: &str) -> bool {
        let Some(rollout) = self
            .rollout()
            .filter(|rollout| !rollout.release_digest.is_empty())
        else {
            return false;
        };
        let spec = RolloutApprovalSpec {
            group: GROUP.into(),
            rollout: rollout.id,
            stage: stage.to_owned(),
            release_digest: rollout.release_digest.clone(),
            by: "jane".into(),
            reason: "seen".into(),
        };
        let mut action_object = RolloutApproval::new(&self.unique_name("approval"), spec);
        action_object.metadata.creation_timestamp = Some(self.creation_time());
        self.api.approvals.push(action_object);
        true
    }

    /// Offers a new release; returns its digest.
    pub(crate) fn offer_new(&mut self) -> ReleaseDigest {
        self.offers += 1;
        self.api.offered = format!("r{}", self.offers).into();
        self.api.offered.clone()
    }
}
