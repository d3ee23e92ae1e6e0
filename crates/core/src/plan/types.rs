//! What the planner is told, and what it says.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::stages::{RolloutView, StagePlan, StageWait, Steering, Strategy, Verdict, Word};

/// Everything that a plan depends on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanInput {
    /// The present.
    pub now: Timestamp,
    /// The strategy in force: it governs the rollout under way, whatever it was when that began (ADR 5).
    pub strategy: Strategy,
    /// What rolls, and what was recorded of it.
    pub rollout: RolloutView,
    /// What people asked for.
    pub steering: Steering,
    /// The group is suspended: start nothing more.
    pub suspended: bool,
    /// Too many clusters left at once, and a person has to say whether that is meant: start nothing more.
    pub membership_held: bool,
    /// The selected clusters by name.
    pub clusters: BTreeMap<String, ClusterView>,
}

/// One selected cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterView {
    /// What its jitter is hashed from: the UID of the Cluster object, so that names may be reused.
    pub uid: String,
    /// Whether it can be worked on.
    pub reach: Reach,
    /// Its stage: a place in [`Strategy::stages`].
    pub stage: usize,
    /// The windows that are about it: places in [`Strategy::windows`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<usize>,
    /// The group's entries on it, by name.
    pub entries: BTreeMap<String, EntryView>,
}

/// Whether a cluster can be worked on, as the Cluster loop last found.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reach {
    /// Yes.
    Ready,
    /// Not looked at yet, or not since its Cluster changed.
    Unprobed,
    /// It does not answer, or refuses our credentials, or they are not usable: skipped, and caught up later.
    Unreachable {
        /// The reason of its Ready condition.
        reason: String,
        /// The message of it.
        message: String,
        /// Since when.
        since: Timestamp,
    },
    /// Its Cluster is suspended.
    Suspended,
}

/// One entry of the group on one cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EntryView {
    /// The target it shall hold, or why there is none (a parameter that this cluster lacks).
    pub wanted: Result<String, String>,
    /// The target by `lastKnownGood`: what the entry gets on a cluster that joins while its stage waits. `None`: there is
    /// no such release, it has no such entry, or this cluster lacks a parameter of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known_good: Option<String>,
    /// Its Sync, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed: Option<ObservedSync>,
}

/// A group's Sync as it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObservedSync {
    /// Target of its spec; `None` while it was never admitted.
    pub target: Option<String>,
    /// Release that admitted it.
    pub release: String,
    /// When it was admitted; `None` where nobody recorded it.
    pub admitted_at: Option<Timestamp>,
    /// How far it is with `target`.
    pub progress: Progress,
    /// Suspended by a person, or being deleted: nothing is written to it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspended: bool,
}

/// How far a Sync is with the target of its own spec.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Progress {
    /// Not there, and nothing has gone wrong that would count: queued, at work, or cut off.
    Working,
    /// The cluster holds it and, with `wait`, was healthy with it at least once.
    Held(Held),
    /// The last attempt at it failed, or it never became healthy: in backoff, or stalled.
    Failing {
        /// One CamelCase word.
        reason: String,
        /// For people.
        message: String,
        /// When it is tried again by itself.
        retry_at: Option<Timestamp>,
    },
}

/// How a target is held.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Held {
    /// Since when it is healthy with this target without a break, or, without `wait`, since when it is applied; `None`:
    /// it is not healthy now.
    pub since: Option<Timestamp>,
    /// The longest such span that has ended.
    #[serde(default, skip_serializing_if = "Duration::is_zero")]
    pub longest: Duration,
    /// What is wrong now: an object has failed, or was not healthy in time. A short break is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<Trouble>,
}

impl Held {
    /// Since when it is healthy: not while something is wrong with it, whatever is written about the time.
    #[must_use]
    pub fn healthy_since(&self) -> Option<Timestamp> {
        self.since.filter(|_| self.trouble.is_none())
    }
}

/// What is wrong with something that is held.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Trouble {
    /// One CamelCase word.
    pub reason: String,
    /// For people.
    pub message: String,
}

impl Progress {
    /// Held, and healthy since then.
    #[must_use]
    pub fn healthy_since(since: Timestamp) -> Self {
        Self::Held(Held {
            since: Some(since),
            longest: Duration::ZERO,
            trouble: None,
        })
    }
}

/// What happens to each cluster now, how the stages stand, and when to look again though nothing happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[must_use]
pub struct Plan {
    /// Exactly one decision for each selected cluster.
    pub decisions: BTreeMap<String, Decision>,
    /// How each stage of the strategy stands, in its order. What is new in the records is to be kept before anything of
    /// this plan is executed: time is counted from there.
    pub stages: Vec<StagePlan>,
    /// What was counted before anything is started.
    pub tally: Tally,
    /// What becomes of the rollout.
    pub verdict: Verdict,
    /// When time alone changes a decision or a stage, at the latest; `None`: only an event will.
    pub recheck_at: Option<Timestamp>,
}

/// Counts that starting depends on, of the group or of a stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tally {
    /// Clusters.
    pub total: usize,
    /// Of these, those that hold the release, soaked.
    pub done: usize,
    /// Clusters that may be in flight at once; `None`: as many as the group's bound leaves (a stage without one).
    pub slots: Option<usize>,
    /// Clusters that are, before this plan starts any.
    pub in_flight: usize,
    /// Clusters that count as failed. Those that people skipped do not.
    pub failed: usize,
    /// Clusters that may fail before starting stops.
    pub failures_allowed: usize,
    /// Reachable clusters that are in flight or not healthy.
    pub unavailable: usize,
    /// How many there may be; of a stage without a bound of its own as many as of the group.
    pub unavailable_allowed: usize,
}

impl Tally {
    /// Whether the failure budget is overdrawn.
    #[must_use]
    pub fn too_many_failures(&self) -> bool {
        self.failed > self.failures_allowed
    }
}

/// What happens to one cluster now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Decision {
    /// It holds what this release wants, and soaked.
    Done,
    /// Admit these entries now.
    Start {
        /// Names of the entries that are not yet admitted to their target.
        entries: Vec<String>,
        /// To which target.
        to: To,
    },
    /// Admitted and not healthy yet; holds a slot.
    InFlight {
        /// When it counts as failed; `None`: it was healthy already, is not for a moment, and its health check has a time of
        /// its own for that.
        deadline: Option<Timestamp>,
        /// It became unreachable on the way.
        lost: bool,
    },
    /// Healthy, and not for long enough; holds a slot.
    Soaking {
        /// When it is done, if it stays healthy.
        until: Timestamp,
    },
    /// Admitted, and failed for now. Holds no slot; what retries it is its Sync.
    Failed {
        /// Why.
        reason: FailureReason,
        /// When its Sync tries again.
        retry_at: Option<Timestamp>,
    },
    /// Not started.
    Hold {
        /// Why: the first of what stands in its way, in the order of [`HoldReason`].
        reason: HoldReason,
        /// When time changes that; `None`: an event does.
        recheck_at: Option<Timestamp>,
    },
}

/// What a cluster is admitted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum To {
    /// The release that rolls.
    Release,
    /// The last known good one: the cluster is new, and its stage has not begun.
    LastKnownGood,
}

impl Decision {
    /// When time alone changes this decision.
    #[must_use]
    pub fn recheck_at(&self) -> Option<Timestamp> {
        match self {
            Self::InFlight { deadline, .. } => *deadline,
            Self::Soaking { until } => Some(*until),
            Self::Hold { recheck_at, .. } => *recheck_at,
            // A failed cluster's own Sync retries it, and its status wakes the group.
            Self::Done | Self::Start { .. } | Self::Failed { .. } => None,
        }
    }
}

/// Why an admitted cluster counts as failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FailureReason {
    /// Its Sync's last attempt failed.
    AttemptFailed {
        /// Reason of that Sync.
        reason: String,
        /// Message of that Sync.
        message: String,
    },
    /// Not done by `progressDeadline`.
    ProgressDeadlineExceeded,
    /// Unreachable since it was admitted, until `progressDeadline`.
    LostAfterAdmission,
}

impl FailureReason {
    /// The word for status.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::AttemptFailed { reason, .. } => reason,
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

/// Why a cluster is not started. In this order: what concerns the cluster alone, what people hold, what the rollout waits
/// for, what time will change, what other clusters have to give.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HoldReason {
    /// A person took it out of this rollout.
    Skipped(Word),
    /// The Cluster is suspended.
    ClusterSuspended,
    /// A Sync of the group on this cluster is suspended, or being deleted.
    SyncSuspended {
        /// Its entry.
        entry: String,
    },
    /// A parameter cannot be resolved for this cluster.
    InvalidParameters {
        /// The entry.
        entry: String,
        /// What is wrong.
        message: String,
    },
    /// Not probed yet.
    ClusterNotProbed,
    /// Unreachable: skipped, and caught up later, or waited for (`onUnreachable`).
    ClusterUnreachable {
        /// The reason of its Ready condition.
        reason: String,
        /// The message of it.
        message: String,
        /// Since when.
        since: Timestamp,
    },
    /// The group is suspended.
    GroupSuspended,
    /// A person paused the rollout.
    Paused(Word),
    /// A person gave the rollout up.
    Aborted(Word),
    /// Too many clusters left the group at once.
    MembershipHeld,
    /// More clusters failed than `maxFailures` allows.
    TooManyFailures {
        /// Of this stage; `None`: of the whole group.
        stage: Option<usize>,
    },
    /// An earlier stage is not through with this release.
    StageWaits {
        /// The first that is not.
        stage: usize,
        /// What that stage waits for.
        wait: StageWait,
    },
    /// No window is open for the cluster.
    WindowClosed,
    /// Its share of the jitter is not over.
    Jitter,
    /// All slots of the group or of its stage are taken.
    NoSlot,
    /// As many clusters are not available as may be.
    TooManyUnavailable,
}

impl HoldReason {
    /// The word for status.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Skipped(_) => "Skipped",
            Self::ClusterSuspended => "ClusterSuspended",
            Self::SyncSuspended { .. } => "SyncSuspended",
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
        }
    }
}
