//! What a transition asks to be written, in order.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use starling_api::{DeletionPolicy, EntryRevision, SyncGroupStatus};

use super::snapshot::ReleaseSnapshot;
use crate::gate::webhook::Clusters;
use crate::gate::{Side, Task};
use crate::journal::Draft;
use crate::plan::LeavingCause;

/// The leadership that a decision was made under. Until leaders are elected there is one, [`Epoch::NONE`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl Epoch {
    /// No leader was elected.
    pub const NONE: Self = Self(0);
}

/// One write, and the leadership that asks for it.
#[derive(Clone, Debug)]
pub struct Effect {
    /// Whoever carries the effect out refuses it where a higher epoch is known.
    pub epoch: Epoch,
    /// What is written.
    pub action: Action,
}

/// What an effect writes. The order of the effects of a transition is part of its meaning: an effect is carried out
/// only after those before it, so each variant says what it has to come before.
#[derive(Clone, Debug)]
pub enum Action {
    /// Appends to the journal of the group. Before anything that the plan decides: nothing is done that the journal
    /// does not explain.
    AppendJournal {
        /// `status.rollout.id`.
        rollout: i64,
        /// The entry.
        draft: Box<Draft>,
    },
    /// Stores a release. Before status names it: what status names can be rolled.
    StoreRelease {
        /// The rollout that stores it.
        rollout: i64,
        /// The release.
        snapshot: Arc<ReleaseSnapshot>,
    },
    /// Records in the ledger that a rollout is about to begin, and how the previous one ends by that. Before status
    /// names the rollout: an intent that status never reached is taken over by the next rollout of that number.
    RecordRollout(RolloutIntent),
    /// Writes the status of the group.
    WriteStatus(Box<StatusWrite>),
    /// Records in the ledger how a rollout ended. After status says so; a crash in between is made good at the next
    /// start.
    EndRollout {
        /// `status.rollout.id`.
        rollout: i64,
        /// How it ended.
        outcome: Outcome,
    },
    /// Evaluates these gates, and ends those that nothing waits for any more.
    EvaluateGates(Vec<OpenGate>),
    /// Ends an admission in the ledger whose Sync never will: only the plan knows that its time is over.
    SettleAdmission {
        /// Which one.
        admission: AdmissionRef,
        /// Why it failed: one CamelCase word.
        reason: String,
    },
    /// Records in the ledger what is about to be admitted, in one transaction. Before any of it is admitted.
    RecordAdmissions(Vec<Admission>),
    /// Writes Syncs. A Sync that cannot be written does not keep another from being written.
    Admit(Vec<Admission>),
    /// Removes Syncs, in this order. One that cannot be removed does not keep another from being removed.
    RemoveSyncs(Vec<Removal>),
    /// Forgets what nothing refers to any more: releases that status does not name, and operator actions and approvals
    /// of rollouts that the ledger has forgotten.
    CollectGarbage {
        /// `status.rollout.id`.
        rollout: i64,
        /// Digests of the releases that status names.
        named: BTreeSet<String>,
    },
    /// Computes what the rollout renders to, where an approval needs it and it is not known.
    DigestRelease,
}

/// A gate that has begun, that another system decides, and that has no finding.
#[derive(Clone, Debug)]
pub struct OpenGate {
    /// The name of its stage.
    pub stage: String,
    /// Before or after the clusters of the stage.
    pub side: Side,
    /// Its index in the list of that side.
    pub index: usize,
    /// When it began.
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
    pub id: i64,
    /// Digest of the release.
    pub release: String,
    /// The revision of each entry.
    pub revisions: Vec<EntryRevision>,
    /// When it begins.
    pub started_at: Timestamp,
    /// How the rollout before it ends; `None`: there is none.
    pub previous: Option<Outcome>,
}

/// How a rollout ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every cluster that it waits for is done.
    Succeeded,
    /// Another release took its place first.
    Superseded,
    /// It failed, and was rolled back.
    Failed,
}

/// A write of the group's status.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusWrite {
    /// The whole status.
    pub status: SyncGroupStatus,
    /// Why it has to be durable before the effects that follow; `None`: they do not depend on it, and it comes last.
    pub durable: Option<Durable>,
}

/// Why a status has to be durable before the effects that follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durable {
    /// It names a new rollout: what is admitted refers to that, and its number must not be given to another release.
    RolloutBegan,
    /// It queues a release that the Sources may not offer any more by the next pass.
    ReleaseQueued,
    /// Times of stages and results of gates count from it: without it a crash would count them again.
    StagesRecorded,
}

/// One entry on one cluster that is admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Name of the Cluster.
    pub cluster: String,
    /// Name of the entry.
    pub entry: String,
    /// Digest of the release.
    pub release: String,
    /// `status.rollout.id`.
    pub rollout: i64,
    /// Digest of the target.
    pub target: String,
    /// The revision of the entry.
    pub revision: String,
    /// When it is admitted.
    pub at: Timestamp,
    /// The request that it is retried for; `None`: it is no retry.
    pub retried_for: Option<Timestamp>,
}

/// An admission that was made before.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AdmissionRef {
    /// Name of the Cluster.
    pub cluster: String,
    /// Name of the entry.
    pub entry: String,
    /// The rollout that admitted it, as its Sync tells.
    pub rollout: String,
    /// Digest of the target.
    pub target: String,
}

/// A Sync that is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// Name of the Sync.
    pub sync: String,
    /// Name of its Cluster.
    pub cluster: String,
    /// Name of its entry.
    pub entry: String,
    /// The admission that it stands for, which ends with it; `None`: it was never admitted.
    pub admission: Option<AdmissionRef>,
    /// What happens to its objects.
    pub policy: DeletionPolicy,
    /// Why it is removed. That a cluster is not selected is confirmed with the management cluster first: a cache may
    /// lack it.
    pub cause: LeavingCause,
}
