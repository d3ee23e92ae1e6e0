//! The effects of a transition, in order.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use starling_api::{DeletionPolicy, EntryRevision, SyncGroupStatus};

use super::snapshot::ReleaseSnapshot;
use crate::gate::webhook::Clusters;
use crate::gate::{Side, Task};
use crate::ids::{ClusterName, EntryName, ReleaseDigest, RolloutNumber, SyncName, TargetDigest};
use crate::journal::Draft;
use crate::plan::LeavingCause;

/// The leadership under which a decision was made. Until leaders are elected there is one, [`Epoch::NONE`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl Epoch {
    /// No leader was elected.
    pub const NONE: Self = Self(0);
}

/// A write, and the leadership that decided it.
#[derive(Clone, Debug)]
pub struct Effect {
    /// The epoch of the decision. With leader election, the interpreter will refuse an effect of a lower epoch than it
    /// knows; until then it does not compare epochs.
    pub epoch: Epoch,
    /// The write.
    pub action: Action,
}

/// The write of an effect. The order of the effects of a transition is part of its meaning: an effect is executed only
/// after those before it, so each variant names what it precedes.
#[derive(Clone, Debug)]
pub enum Action {
    /// Appends to the journal of the group. Precedes everything that the plan decides: nothing happens that the journal
    /// does not explain.
    AppendJournal {
        /// `status.rollout.id`.
        rollout: RolloutNumber,
        /// The entry.
        draft: Box<Draft>,
    },
    /// Stores a release. Precedes the status that names it: a release in status can be rolled out.
    StoreRelease {
        /// The rollout that stores it.
        rollout: RolloutNumber,
        /// The release.
        snapshot: Arc<ReleaseSnapshot>,
    },
    /// Records in the ledger that a rollout is about to begin, and the outcome of the previous one. Precedes the status
    /// that names the rollout: the next rollout of that number takes over an intent that status never reached.
    RecordRollout(RolloutIntent),
    /// Writes the status of the group.
    WriteStatus(Box<StatusWrite>),
    /// Records the outcome of a rollout in the ledger. Follows the status that reports it; after a crash in between,
    /// the next start records it.
    EndRollout {
        /// `status.rollout.id`.
        rollout: RolloutNumber,
        /// The outcome.
        outcome: Outcome,
    },
    /// Evaluates these gates, and cancels the tasks of all others.
    EvaluateGates(Vec<OpenGate>),
    /// Ends an admission in the ledger that its Sync cannot end: only the plan knows that its time is over. A Sync that
    /// fails is retried, and does not end its admission either.
    SettleAdmission {
        /// The admission.
        admission: AdmissionRef,
        /// The reason of the failure, in CamelCase.
        reason: String,
    },
    /// Records admissions in the ledger, in one transaction. Precedes all of them.
    RecordAdmissions(Vec<Admission>),
    /// Writes Syncs. A Sync that cannot be written does not block the others.
    Admit(Vec<Admission>),
    /// Removes Syncs, in this order, and ends in the ledger what is open of their entries on their clusters. A Sync
    /// that cannot be removed does not block the others.
    RemoveSyncs(Vec<Removal>),
    /// Allows prunes after the attempt that the group admitted, until their attempts have ended. Follows the entry of
    /// the journal: nothing is pruned that it does not explain. Nothing else is recorded: after a crash no prune is in
    /// progress, and each is requested again.
    AllowPrunes(Vec<SyncName>),
    /// Deletes unused objects: releases that status does not name, and operator actions and approvals of rollouts that
    /// the ledger no longer has.
    CollectGarbage {
        /// `status.rollout.id`.
        rollout: RolloutNumber,
        /// Digests of the releases that status names.
        named: BTreeSet<ReleaseDigest>,
    },
    /// Computes the release digest of the rollout, if an approval needs it and it is not known.
    DigestRelease,
    /// Prepares the objects of the group for a restore to another API server
    /// ([`Observations::awaits_marks`](super::Observations::awaits_marks)). Comes last: no decision of this pass
    /// depends on the marks.
    WriteMarks,
}

impl Action {
    pub(super) fn write_status(status: SyncGroupStatus, durable: Option<Durable>) -> Self {
        Self::WriteStatus(Box::new(StatusWrite { status, durable }))
    }
}

/// A gate that has begun, that another system decides, and that has no result.
#[derive(Clone, Debug)]
pub struct OpenGate {
    /// The name of its stage.
    pub stage: String,
    /// The side of the stage.
    pub side: Side,
    /// Its index in the list of that side.
    pub index: usize,
    /// The time at which it began.
    pub begun_at: Timestamp,
    /// The task of the strategy.
    pub task: Arc<Task>,
    /// The clusters of the stage.
    pub clusters: Clusters,
}

/// A rollout that is about to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutIntent {
    /// `status.rollout.id`.
    pub id: RolloutNumber,
    /// Digest of the release.
    pub release: ReleaseDigest,
    /// The revision of each entry.
    pub revisions: Vec<EntryRevision>,
    /// The time at which it begins.
    pub started_at: Timestamp,
    /// The outcome of the previous rollout; `None`: there is none.
    pub previous: Option<Outcome>,
}

/// The outcome of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every cluster that the rollout waits for is done.
    Succeeded,
    /// Another release replaced it first.
    Superseded,
    /// The rollout failed and was rolled back.
    Failed,
}

/// A write of the group's status.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusWrite {
    /// The whole status.
    pub status: SyncGroupStatus,
    /// Why the write must be durable before the effects that follow; `None`: they do not depend on it, and the write
    /// comes last.
    pub durable: Option<Durable>,
}

/// Why a status must be durable before the effects that follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durable {
    /// Status names a new rollout: admissions refer to the rollout, and its number must not be given to another
    /// release.
    RolloutBegan,
    /// Status queues a release that the Sources may no longer offer in the next pass.
    ReleaseQueued,
    /// Status has times of stages and results of gates: without it, a crash would count them from the start again.
    StagesRecorded,
}

/// The admission of one entry on one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Name of the Cluster.
    pub cluster: ClusterName,
    /// Name of the entry.
    pub entry: EntryName,
    /// Digest of the release.
    pub release: ReleaseDigest,
    /// `status.rollout.id`.
    pub rollout: RolloutNumber,
    /// Digest of the target.
    pub target: TargetDigest,
    /// The revision of the entry.
    pub revision: String,
    /// The time of the admission.
    pub at: Timestamp,
    /// The request that this is a retry for; `None`: it is not a retry.
    pub retried_for: Option<Timestamp>,
}

/// A reference to an earlier admission.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AdmissionRef {
    /// Name of the Cluster.
    pub cluster: ClusterName,
    /// Name of the entry.
    pub entry: EntryName,
    /// The rollout that admitted it, as the Sync names it.
    pub rollout: RolloutNumber,
    /// Digest of the target.
    pub target: TargetDigest,
}

/// A Sync to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// Name of the Sync.
    pub sync: SyncName,
    /// Name of its Cluster.
    pub cluster: ClusterName,
    /// Name of its entry.
    pub entry: EntryName,
    /// The deletion policy of its objects.
    pub policy: DeletionPolicy,
    /// The cause of the removal. The interpreter asks the management cluster for a deselected cluster first, because a
    /// cache may lack it.
    pub cause: LeavingCause,
}
