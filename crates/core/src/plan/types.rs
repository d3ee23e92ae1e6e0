//! The input and the output of the planner.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::clock_jumps::ClockJumps;
use crate::expand::ParameterError;
use crate::ids::{ClusterName, EntryName, ReleaseDigest, SyncName, TargetDigest};

use super::leaving::{LeavingSync, RemovalDecision, RemovalHold};
use super::prune_request::PruneRequest;
use super::stages::{
    Attribution, OperatorInput, RolloutVerdict, RolloutView, StagePlan, StageWait, Strategy, Tally,
};

/// Everything that a plan depends on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanInput {
    /// The current time.
    pub now: Timestamp,
    /// The jumps of the clock since the process started: no wait is shorter for them.
    #[serde(default, skip_serializing_if = "ClockJumps::is_empty")]
    pub clock_jumps: ClockJumps,
    /// The current strategy. It applies to the rollout in progress even if it changed since the rollout began (ADR 5).
    pub strategy: Strategy,
    /// The current rollout and its recorded state.
    pub rollout: RolloutView,
    /// The requests of operators.
    pub operator: OperatorInput,
    /// Whether the group is being deleted: it selects no cluster, and all its Syncs leave
    /// ([`LeavingCause::GroupDeleted`](super::LeavingCause::GroupDeleted)).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleting: bool,
    /// Whether the group is suspended: nothing starts.
    pub suspended: bool,
    /// Whether too many clusters left at once and an approval is required: nothing starts.
    pub membership_held: bool,
    /// The selected clusters by name.
    pub clusters: BTreeMap<ClusterName, ClusterView>,
    /// The Syncs that the group no longer wants, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub leaving: BTreeMap<SyncName, LeavingSync>,
    /// The Syncs of entries that the release lacks and that are in the group again, by name: they stay as they are.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub returned: BTreeSet<SyncName>,
    /// The Syncs that have something to prune after the attempt that the group admitted, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub prunes: BTreeMap<SyncName, PruneRequest>,
    /// The number of clusters that may begin to be in flight with this plan because of the limit of the installation
    /// ([`crate::in_flight`]); `None`: it does not limit this plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installation_slots: Option<usize>,
}

impl PlanInput {
    /// Returns when work that began at a time gives its slot back at the latest.
    pub(super) fn slot_due(&self, since: Timestamp) -> Option<Timestamp> {
        let deadline = self.strategy.limits.progress_deadline;
        self.clock_jumps.due(since, deadline)
    }

    /// The same; `None` also if it has given it back.
    pub(super) fn slot_until(&self, since: Timestamp) -> Option<Timestamp> {
        self.slot_due(since).filter(|until| *until > self.now)
    }

    /// Returns why nothing is deleted anywhere: a person stopped the group.
    pub(super) fn stop(&self) -> Option<RemovalHold> {
        if self.suspended {
            return Some(RemovalHold::GroupSuspended);
        }
        self.operator.paused.is_some().then_some(RemovalHold::Paused)
    }
}

/// One selected cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterView {
    /// The cluster ID, from which the jitter is derived: names can be reused, and the UID of the Cluster object changes
    /// with a restore to another API server. The name of the Cluster until its member was probed.
    #[serde(alias = "uid")]
    pub id: String,
    /// The reachability of the cluster.
    pub reach: Reach,
    /// The stage of the cluster: an index into [`Strategy::stages`].
    pub stage: usize,
    /// The windows that apply to the cluster: indexes into [`Strategy::windows`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<usize>,
    /// The entries of the group on this cluster, by name.
    pub entries: BTreeMap<EntryName, EntryView>,
}

/// The reachability of a cluster, as the Cluster loop last reported it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reach {
    /// The cluster is reachable.
    Ready,
    /// The cluster was not probed yet, or not since its Cluster changed.
    Unprobed,
    /// The cluster does not respond, or rejects the credentials, or the credentials are not usable. It is skipped, and
    /// catches up later.
    Unreachable {
        /// The reason of the Ready condition.
        reason: String,
        /// The message of the Ready condition.
        message: String,
        /// The time since which it is unreachable.
        since: Timestamp,
    },
    /// The Cluster is suspended.
    Suspended,
}

/// One entry of the group on one cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EntryView {
    /// The target that the entry has to apply, or why there is none.
    pub wanted: Result<TargetDigest, UnresolvedTarget>,
    /// The target of `lastKnownGood`, for a cluster that joins while its stage waits. `None`: there is no such release,
    /// the release has no such entry, or this cluster lacks a parameter of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known_good: Option<TargetDigest>,
    /// The Sync of the entry, if it exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed: Option<ObservedSync>,
}

/// The reason why an entry on a cluster has no target to apply.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum UnresolvedTarget {
    /// A parameter cannot be resolved ([`ParameterError`]).
    #[error("{message}")]
    Parameter {
        /// The text of the error: the journal has no more.
        message: String,
    },
    /// The Sync of the entry exists and cannot be decoded, so its state is not known and it is not written.
    #[error(
        "Sync {sync} cannot be read, so it is not written; it may be of a newer version of Starling, and the log of \
         the controller has the error"
    )]
    UnreadableSync {
        /// Name of the Sync.
        sync: SyncName,
    },
}

impl From<ParameterError> for UnresolvedTarget {
    fn from(error: ParameterError) -> Self {
        Self::parameter(error.to_string())
    }
}

impl UnresolvedTarget {
    /// Returns the reason of a parameter that cannot be resolved.
    #[must_use]
    pub fn parameter(message: impl Into<String>) -> Self {
        Self::Parameter {
            message: message.into(),
        }
    }
}

/// The observed state of a Sync of the group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObservedSync {
    /// The target in the spec of the Sync; `None`: the Sync was never admitted.
    pub target: Option<TargetDigest>,
    /// The release that admitted it.
    pub release: ReleaseDigest,
    /// The time of its admission; `None`: not recorded.
    pub admitted_at: Option<Timestamp>,
    /// The time that the Sync has, if it lies further ahead than it can have been written: `admitted_at` is the time at
    /// which the process met it then, and another process meets it later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_admitted_at: Option<Timestamp>,
    /// The progress of the Sync with `target`.
    pub progress: Progress,
    /// The time of the last request that it was retried for; `None`: it was never retried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retried_for: Option<Timestamp>,
    /// Whether the Sync is suspended or being deleted: nothing is written to it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspended: bool,
}

/// The progress of a Sync with the target of its spec.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Progress {
    /// Not applied yet, without a failure: queued, in progress, or unreachable.
    Working,
    /// The target is applied to the member and, with `wait`, was healthy there at least once.
    Applied(Applied),
    /// The last attempt failed, or the target never became healthy: in backoff, or stalled.
    Failing {
        /// The reason, in CamelCase.
        reason: String,
        /// The message.
        message: String,
        /// Time at which the Sync retries by itself.
        retry_at: Option<Timestamp>,
    },
}

/// The state of a target that is applied.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Applied {
    /// Time since which the target is continuously healthy, or, without `wait`, applied; `None`: it is not healthy now.
    pub since: Option<Timestamp>,
    /// The longest such period that has ended.
    #[serde(default, skip_serializing_if = "Duration::is_zero")]
    pub longest: Duration,
    /// The current problem: an object failed, or was not healthy in time. A short interruption is not a problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<HealthProblem>,
}

impl Applied {
    /// Returns since when the target is healthy; `None` while there is a problem, whatever `since` says.
    #[must_use]
    pub fn healthy_since(&self) -> Option<Timestamp> {
        self.since.filter(|_| self.problem.is_none())
    }
}

/// The problem of a target that is applied.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthProblem {
    /// The reason, in CamelCase.
    pub reason: String,
    /// The message.
    pub message: String,
}

impl Progress {
    /// Returns the progress of a target that is applied and healthy since that time.
    #[must_use]
    pub fn healthy_since(since: Timestamp) -> Self {
        Self::Applied(Applied {
            since: Some(since),
            longest: Duration::ZERO,
            problem: None,
        })
    }
}

/// The decision for each cluster, the state of the stages, and the time of the next plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[must_use]
pub struct Plan {
    /// Exactly one decision for each selected cluster.
    pub decisions: BTreeMap<ClusterName, Decision>,
    /// Exactly one decision for each Sync that the group no longer wants.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub removals: BTreeMap<SyncName, RemovalDecision>,
    /// Exactly one decision for each prune that is requested. `Remove`: it is allowed and may begin. `Removing`: it is
    /// in progress.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub prunes: BTreeMap<SyncName, RemovalDecision>,
    /// The state of each stage of the strategy, in order. New records must be durable before the plan is executed:
    /// gates and jitter count from their times.
    pub stages: Vec<StagePlan>,
    /// The counts before this plan starts anything.
    pub tally: Tally,
    /// The verdict on the rollout.
    pub verdict: RolloutVerdict,
    /// The earliest time at which time alone changes a decision or a stage; `None`: only an event does.
    pub recheck_at: Option<Timestamp>,
}

/// The decision for one cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Decision {
    /// The targets of this release are applied and have soaked, and the cluster has no other entries of the group.
    Done,
    /// Admit these entries now.
    Start {
        /// The names of the entries that are not admitted to their target yet.
        entries: Vec<EntryName>,
        /// The release to admit them to.
        to: AdmittedRelease,
    },
    /// The cluster failed, and an operator requested a retry: admit these entries again to the same target.
    Retry {
        /// The names of the entries, which are at their target.
        entries: Vec<EntryName>,
        /// The time of the newest request.
        requested_at: Timestamp,
    },
    /// The entries of the release are done: remove the Syncs of these entries, which the release no longer has.
    Remove {
        /// The names of the removed entries.
        entries: Vec<EntryName>,
    },
    /// Admitted and not healthy yet, or losing removed entries. The cluster has a slot.
    InFlight {
        /// Time at which the cluster counts as failed; `None`: it was healthy before, and the timeout of its health
        /// check applies.
        deadline: Option<Timestamp>,
        /// Whether it became unreachable after its admission.
        lost: bool,
    },
    /// Healthy, but not for the soak time yet. The cluster has a slot.
    Soaking {
        /// Time at which the cluster is done, if it stays healthy.
        until: Timestamp,
    },
    /// Admitted and failed. The cluster has no slot; its Sync retries by itself.
    Failed {
        /// The reason.
        reason: FailureReason,
        /// Time at which the Sync retries.
        retry_at: Option<Timestamp>,
    },
    /// Not started.
    Hold {
        /// The first reason that applies, in the order of [`HoldReason`].
        reason: HoldReason,
        /// Time at which time alone ends the reason; `None`: only an event does.
        recheck_at: Option<Timestamp>,
    },
}

/// The release that a cluster is admitted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AdmittedRelease {
    /// The release of the rollout.
    Release,
    /// The last known good release: the cluster is new, and its stage has not opened.
    LastKnownGood,
}

impl Decision {
    /// Reports whether work begins on the cluster with this plan.
    #[must_use]
    pub fn begins_work(&self) -> bool {
        matches!(
            self,
            Self::Start { .. } | Self::Retry { .. } | Self::Remove { .. }
        )
    }

    /// Returns when time alone changes this decision.
    #[must_use]
    pub fn recheck_at(&self) -> Option<Timestamp> {
        match self {
            Self::InFlight { deadline, .. } => *deadline,
            Self::Soaking { until } => Some(*until),
            Self::Hold { recheck_at, .. } => *recheck_at,
            // The Sync of a failed cluster retries, and its status wakes the group.
            Self::Done
            | Self::Start { .. }
            | Self::Retry { .. }
            | Self::Remove { .. }
            | Self::Failed { .. } => None,
        }
    }
}

/// The reason why an admitted cluster counts as failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FailureReason {
    /// The last attempt of its Sync failed.
    AttemptFailed {
        /// The reason of the Sync.
        reason: String,
        /// The message of the Sync.
        message: String,
    },
    /// Not done by `progressDeadline`.
    ProgressDeadlineExceeded,
    /// Unreachable from after its admission until `progressDeadline`.
    LostAfterAdmission,
}

impl FailureReason {
    /// Returns the reason as in status.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::AttemptFailed { reason, .. } if !reason.is_empty() => reason,
            Self::AttemptFailed { .. } => "AttemptFailed",
            Self::ProgressDeadlineExceeded => "ProgressDeadlineExceeded",
            Self::LostAfterAdmission => "LostAfterAdmission",
        }
    }
}

impl fmt::Display for FailureReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AttemptFailed { message, .. } => f.write_str(message),
            Self::ProgressDeadlineExceeded => f.write_str("not done by progressDeadline"),
            Self::LostAfterAdmission => {
                f.write_str("unreachable since this revision was admitted; not back by progressDeadline")
            }
        }
    }
}

/// The reason why a cluster is not started. The order is that of precedence: reasons of the cluster alone, reasons
/// that an operator or an approval has to end, waits of the rollout, reasons that time ends, and reasons that other
/// clusters have to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HoldReason {
    /// An operator skipped the cluster in this rollout.
    Skipped(Attribution),
    /// The Cluster is suspended.
    ClusterSuspended,
    /// A Sync of the group on this cluster is suspended, or being deleted.
    SyncSuspended {
        /// The entry of the Sync.
        entry: EntryName,
    },
    /// A Sync of the group on this cluster cannot be decoded.
    SyncUnreadable {
        /// The entry of the Sync.
        entry: EntryName,
        /// Name of the Sync.
        sync: SyncName,
    },
    /// A parameter cannot be resolved for this cluster.
    InvalidParameters {
        /// The entry.
        entry: EntryName,
        /// The message.
        message: String,
    },
    /// The cluster was not probed yet.
    ClusterNotProbed,
    /// The cluster is unreachable. It is skipped and catches up later, or the rollout waits for it (`onUnreachable`).
    ClusterUnreachable {
        /// The reason of the Ready condition.
        reason: String,
        /// The message of the Ready condition.
        message: String,
        /// The time since which it is unreachable.
        since: Timestamp,
    },
    /// The group is suspended.
    GroupSuspended,
    /// An operator paused the rollout.
    Paused(Attribution),
    /// An operator aborted the rollout.
    Aborted(Attribution),
    /// Too many clusters left the group at once.
    MembershipHeld,
    /// More clusters failed than `maxFailures` allows.
    TooManyFailures {
        /// The stage; `None`: the whole group.
        stage: Option<usize>,
    },
    /// An earlier stage has not passed.
    StageWaits {
        /// The first such stage.
        stage: usize,
        /// The condition that this stage waits for.
        wait: StageWait,
    },
    /// No window is open for the cluster.
    WindowClosed,
    /// The jitter of the cluster is not over.
    Jitter,
    /// All slots of the group or of the stage are in use.
    NoSlot,
    /// As many clusters are unavailable as `maxUnavailable` allows.
    TooManyUnavailable,
    /// As many clusters of all groups are in flight as the installation allows, or as the group may have of them.
    InstallationLimit,
}

impl HoldReason {
    /// Returns the reason as in status.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Skipped(_) => "Skipped",
            Self::ClusterSuspended => "ClusterSuspended",
            Self::SyncSuspended { .. } => "SyncSuspended",
            Self::SyncUnreadable { .. } => "SyncUnreadable",
            Self::InvalidParameters { .. } => "InvalidParameters",
            Self::ClusterNotProbed => "ClusterNotProbed",
            Self::ClusterUnreachable { .. } => "ClusterUnreachable",
            Self::GroupSuspended => "Suspended",
            Self::Paused(_) => "Paused",
            Self::Aborted(_) => "Aborted",
            Self::MembershipHeld => "MembershipHeld",
            Self::TooManyFailures { .. } => "TooManyFailures",
            Self::StageWaits { wait, .. } => wait.as_str(),
            Self::WindowClosed => "WindowClosed",
            Self::Jitter => "Jitter",
            Self::NoSlot => "NoSlot",
            Self::TooManyUnavailable => "TooManyUnavailable",
            Self::InstallationLimit => "InstallationLimit",
        }
    }
}
