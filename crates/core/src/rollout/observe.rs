//! The input of the machine, and its interface to the runner.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use starling_api::conditions::ConditionUpdate;
use starling_api::{
    GroupDeletionHold, GroupIdentity, OnNewRevision, RollbackType, RolloutStatus, StageStatus,
    SyncGroupStatus, UnselectedClusters,
};

use super::effect::{AdmissionRef, Epoch};
use super::operator::OperatorActions;
use super::snapshot::ReleaseSnapshot;
use crate::clock_jumps::ClockJumps;
use crate::ids::{ClusterName, ReleaseDigest, RolloutNumber, SyncName};
use crate::journal::Recorder;
use crate::plan::{
    AdmittedRelease, ClusterView, LeavingSync, PlanInput, PruneRequest, ReadStrategy, StageRecord,
};

/// The recorded state, which outlives a pass.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// The status of the group, as of the last write.
    pub status: &'a SyncGroupStatus,
    /// The stored releases that were loaded.
    pub loaded: &'a Loaded,
    /// The head of the journal; `None`: no journal is kept.
    pub recorder: Option<&'a Recorder>,
}

/// Stored releases that were loaded because the machine needs them ([`Need`]).
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    releases: BTreeMap<ReleaseDigest, Option<Arc<ReleaseSnapshot>>>,
    revisions: BTreeMap<String, Option<ReleaseDigest>>,
}

/// An input that the machine needs before it can step. The runner loads it and steps again from the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// The stored release of this digest.
    Release(ReleaseDigest),
    /// The digest of the newest stored release in which an entry has this revision.
    Revision(String),
}

impl Loaded {
    /// Adds the release of a digest; `None`: it is not stored, or its content does not match the digest.
    pub fn take_release(&mut self, digest: ReleaseDigest, found: Option<Arc<ReleaseSnapshot>>) {
        self.releases.insert(digest, found);
    }

    /// Adds the digest of the release that a revision stands for; `None`: no stored release has it.
    pub fn take_revision(&mut self, revision: String, found: Option<ReleaseDigest>) {
        self.revisions.insert(revision, found);
    }

    pub(super) fn release(&self, digest: &str) -> Result<Option<Arc<ReleaseSnapshot>>, Need> {
        let found = self.releases.get(digest).cloned();
        found.ok_or_else(|| Need::Release(digest.into()))
    }

    pub(super) fn revision(&self, revision: &str) -> Result<Option<ReleaseDigest>, Need> {
        let found = self.revisions.get(revision).cloned();
        found.ok_or_else(|| Need::Revision(revision.to_owned()))
    }
}

/// The release that the Sources offer.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The digest of the offered release.
    pub release: ReleaseDigest,
    /// The offered release; `None`: the current release is offered, while another one settles.
    pub snapshot: Option<Arc<ReleaseSnapshot>>,
    /// The time at which the changes so far form a new release.
    pub settles_at: Option<Timestamp>,
}

/// The facts that are fixed during a pass.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The current time.
    pub now: Timestamp,
    /// The jumps of the clock since the process started.
    pub clock_jumps: &'a ClockJumps,
    /// The leadership that decides.
    pub epoch: Epoch,
    /// The strategy in force.
    pub strategy: &'a ReadStrategy,
    /// The policy for a newer release.
    pub on_new_revision: OnNewRevision,
    /// The type of a rollback.
    pub rollback: RollbackType,
    /// Whether the group is suspended.
    pub suspended: bool,
    /// Whether too many clusters left the group at once.
    pub membership_held: bool,
    /// The clusters that left the selection and still have Syncs.
    pub unselected: &'a [UnselectedClusters],
    /// The entries whose objects stay if the entry is removed, although their Syncs do not say so yet.
    pub kept_entries: &'a [String],
    /// The release that the Sources offer.
    pub offer: &'a Offer,
    /// The identity of the group, which every status records; `None`: that in status.
    pub identity: Option<&'a GroupIdentity>,
    /// `metadata.generation` of the group.
    pub generation: Option<i64>,
    /// The value of the annotation that requests a reconciliation.
    pub requested_at: Option<&'a str>,
    /// The time of the last status write of this process; `None`: none yet.
    pub reported_at: Option<Timestamp>,
}

/// The facts of a pass that every status records.
#[derive(Clone, Copy, Debug)]
pub struct PassFacts<'a> {
    /// The current time.
    pub now: Timestamp,
    /// `metadata.generation` of the group.
    pub generation: Option<i64>,
    /// The value of the annotation that requests a reconciliation.
    pub requested_at: Option<&'a str>,
}

impl<'a> Facts<'a> {
    pub(super) fn of_pass(&self) -> PassFacts<'a> {
        PassFacts {
            now: self.now,
            generation: self.generation,
            requested_at: self.requested_at,
        }
    }
}

/// The rollout that a plan is for.
#[derive(Clone, Debug)]
pub struct Rolling {
    /// The rollout in status.
    pub rollout: RolloutStatus,
    /// The release of the rollout.
    pub snapshot: Arc<ReleaseSnapshot>,
    /// The release for a cluster that joins while its stage waits; `None`: there is none, or it is the current release.
    pub known_good: Option<Arc<ReleaseSnapshot>>,
}

impl Rolling {
    /// Returns the release that a cluster is admitted to.
    #[must_use]
    pub fn snapshot_to(&self, to: AdmittedRelease) -> Option<&Arc<ReleaseSnapshot>> {
        match to {
            AdmittedRelease::Release => Some(&self.snapshot),
            AdmittedRelease::LastKnownGood => self.known_good.as_ref(),
        }
    }

    /// Returns the number of the rollout.
    #[must_use]
    pub fn number(&self) -> RolloutNumber {
        RolloutNumber::of(&self.rollout)
    }
}

/// The observations of a pass. Every response is immediate, and the same for the whole pass.
pub trait Observations {
    /// Returns the actions of operators on a rollout.
    fn operator_actions(&self, rollout: &RolloutStatus) -> OperatorActions;

    /// Adds the results of gates that status does not have yet to the records of the stages.
    fn gate_results(&self, rollout: RolloutNumber, stages: &mut BTreeMap<String, StageRecord>);

    /// Adds the message of the last evaluation of each open gate to the stages of status.
    fn gate_messages(&self, rollout: RolloutNumber, stages: &mut [StageStatus]);

    /// Returns the release digest of a rollout, if it was computed since the last status write; empty if the clusters
    /// that [`Self::clusters`] has returned have other values since.
    fn release_digest(&self, rolling: &Rolling) -> Option<String>;

    /// Whether a release is known to be stored. `false` costs one request: the release is stored again.
    fn is_stored(&self, release: &str) -> bool;

    /// Returns the selected clusters, with the targets of `rolling`. The machine returns them ([`Self::give_back`]).
    fn clusters(&mut self, rolling: &Rolling) -> BTreeMap<ClusterName, ClusterView>;

    /// Takes back the clusters that [`Self::clusters`] lent.
    fn give_back(&mut self, clusters: BTreeMap<ClusterName, ClusterView>);

    /// Returns the Syncs that the group no longer wants in the rollout `rolling`, by name.
    fn leaving(&self, rolling: &Rolling) -> BTreeMap<SyncName, LeavingSync>;

    /// Returns the names of the Syncs of entries that `rolling` lacks and that are in the group again.
    fn returned(&self, rolling: &Rolling) -> BTreeSet<SyncName> {
        let _ = rolling;
        BTreeSet::new()
    }

    /// Returns the prunes that are requested after the attempt that the group admitted, by the name of the Sync.
    fn prunes(&self) -> BTreeMap<SyncName, PruneRequest> {
        BTreeMap::new()
    }

    /// Returns how many clusters may begin to be in flight in this pass because of the limit of the installation;
    /// `None`: there is no limit.
    fn installation_slots(&self) -> Option<usize> {
        None
    }

    /// Reports whether a person approved the removal of the entries that an automatic rollback lacks, by its digest.
    fn approves_removals(&self, digest: &str) -> bool {
        let _ = digest;
        false
    }

    /// Returns the admission of the Sync of an entry on a cluster.
    fn admission(&self, cluster: &str, entry: &str) -> Option<AdmissionRef>;

    /// Whether this process has settled an admission.
    fn is_settled(&self, admission: &AdmissionRef) -> bool;

    /// Reports whether an operator action or approval lacks the mark of the rollout that it counts for, or a Sync the
    /// owner reference to the group: what a restore to another API server would lose.
    fn awaits_marks(&self, status: &SyncGroupStatus) -> bool {
        let _ = status;
        false
    }

    /// Returns the deletions of the group that wait for an approval.
    fn held_deletions(&self, input: &PlanInput) -> Vec<GroupDeletionHold> {
        let _ = input;
        Vec::new()
    }

    /// Returns the conditions of the group other than those of its rollout.
    fn conditions(&self, input: &PlanInput) -> Vec<ConditionUpdate>;
}
