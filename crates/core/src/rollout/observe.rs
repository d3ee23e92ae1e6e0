//! What the machine starts from, and what it asks whoever runs it.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use starling_api::conditions::ConditionUpdate;
use starling_api::{OnNewRevision, RollbackType, RolloutStatus, StageStatus, SyncGroupStatus};

use super::effect::{AdmissionRef, Epoch};
use super::operator::OperatorActions;
use super::snapshot::ReleaseSnapshot;
use crate::journal::Recorder;
use crate::plan::{ClusterView, LeavingSync, PlanInput, ReadStrategy, StageRecord, To};

/// What outlives a pass.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// The status of the group, as of the last write.
    pub status: &'a SyncGroupStatus,
    /// Stored releases, as far as they were loaded.
    pub loaded: &'a Loaded,
    /// The head of the journal; `None`: no journal is kept.
    pub recorder: Option<&'a Recorder>,
}

/// Stored releases that were loaded because the machine needs them ([`Need`]).
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    releases: BTreeMap<String, Option<Arc<ReleaseSnapshot>>>,
    revisions: BTreeMap<String, Option<String>>,
}

/// Something that the machine needs before it can step. It is loaded, and the machine steps again from the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// The stored release of this digest.
    Release(String),
    /// The digest of the newest stored release in which an entry has this revision.
    Revision(String),
}

impl Loaded {
    /// Takes in the release of a digest; `None`: it is not stored, or its content is not what the digest names.
    pub fn take_release(&mut self, digest: String, found: Option<Arc<ReleaseSnapshot>>) {
        self.releases.insert(digest, found);
    }

    /// Takes in the digest of the release that a revision stands for; `None`: no stored release has it.
    pub fn take_revision(&mut self, revision: String, found: Option<String>) {
        self.revisions.insert(revision, found);
    }

    pub(super) fn release(&self, digest: &str) -> Result<Option<Arc<ReleaseSnapshot>>, Need> {
        let found = self.releases.get(digest).cloned();
        found.ok_or_else(|| Need::Release(digest.to_owned()))
    }

    pub(super) fn revision(&self, revision: &str) -> Result<Option<String>, Need> {
        let found = self.revisions.get(revision).cloned();
        found.ok_or_else(|| Need::Revision(revision.to_owned()))
    }
}

/// What the Sources offer.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The digest of the release that is offered.
    pub release: String,
    /// The release; `None`: what rolls is offered, while another release settles.
    pub snapshot: Option<Arc<ReleaseSnapshot>>,
    /// When what moved already forms a new release.
    pub settles_at: Option<Timestamp>,
}

/// What is fixed during a pass.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The present.
    pub now: Timestamp,
    /// The leadership that decides.
    pub epoch: Epoch,
    /// The strategy in force.
    pub strategy: &'a ReadStrategy,
    /// What happens to a newer release.
    pub on_new_revision: OnNewRevision,
    /// How a rollback proceeds.
    pub rollback: RollbackType,
    /// The group is suspended.
    pub suspended: bool,
    /// Too many clusters left the group at once.
    pub membership_held: bool,
    /// What the Sources offer.
    pub offer: &'a Offer,
    /// `metadata.generation` of the group.
    pub generation: Option<i64>,
    /// The value of the annotation that requests a reconciliation.
    pub requested_at: Option<&'a str>,
    /// When this process last wrote the status; `None`: not yet.
    pub reported_at: Option<Timestamp>,
}

/// The rollout that a plan is for.
#[derive(Clone, Debug)]
pub struct Rolling {
    /// As in status.
    pub rollout: RolloutStatus,
    /// What it rolls.
    pub snapshot: Arc<ReleaseSnapshot>,
    /// What a cluster gets that joins while its stage waits; `None`: nothing, or what rolls.
    pub known_good: Option<Arc<ReleaseSnapshot>>,
}

impl Rolling {
    /// The release that a cluster is admitted to.
    #[must_use]
    pub fn snapshot_to(&self, to: To) -> Option<&Arc<ReleaseSnapshot>> {
        match to {
            To::Release => Some(&self.snapshot),
            To::LastKnownGood => self.known_good.as_ref(),
        }
    }

    /// When it started. A status that lost it counts from the beginning: no jitter is waited for twice.
    #[must_use]
    pub fn started_at(&self) -> Timestamp {
        self.rollout.start_time.parse().unwrap_or(Timestamp::UNIX_EPOCH)
    }
}

/// What whoever runs the machine has observed. Every answer is immediate and the same for the whole pass.
pub trait Observations {
    /// What operators requested of a rollout.
    fn operator_actions(&self, rollout: &RolloutStatus) -> OperatorActions;

    /// Puts results of gates that status does not have yet into what it remembers of the stages.
    fn gate_results(&self, rollout: i64, stages: &mut BTreeMap<String, StageRecord>);

    /// Puts what the last try of each open gate came to into the stages as status reports them.
    fn gate_messages(&self, rollout: i64, stages: &mut [StageStatus]);

    /// What a rollout renders to, where that was computed since status was written.
    fn release_digest(&self, rollout: i64) -> Option<String>;

    /// Whether a release is known to be stored. `false` costs one request: the release is stored again.
    fn is_stored(&self, release: &str) -> bool;

    /// The selected clusters, with what `rolling` wants of them. They are given back ([`Self::give_back`]).
    fn clusters(&mut self, rolling: &Rolling) -> BTreeMap<String, ClusterView>;

    /// Gives back what [`Self::clusters`] lent.
    fn give_back(&mut self, clusters: BTreeMap<String, ClusterView>);

    /// The Syncs that the group no longer wants while `rolling` rolls, by name.
    fn leaving(&self, rolling: &Rolling) -> BTreeMap<String, LeavingSync>;

    /// The admission that the Sync of an entry on a cluster stands for.
    fn admission(&self, cluster: &str, entry: &str) -> Option<AdmissionRef>;

    /// Whether this process has settled an admission since it was made.
    fn is_settled(&self, admission: &AdmissionRef) -> bool;

    /// Conditions of the group beside those of its rollout.
    fn conditions(&self, input: &PlanInput) -> Vec<ConditionUpdate>;
}
