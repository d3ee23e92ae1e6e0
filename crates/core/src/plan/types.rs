//! What the planner is told, and what it says.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use starling_api::IntOrPercent;

/// Everything that a plan depends on.
#[derive(Clone, Debug)]
pub struct PlanInput {
    /// The present.
    pub now: Timestamp,
    /// The strategy's bounds.
    pub limits: Limits,
    /// The group is suspended: start nothing more.
    pub suspended: bool,
    /// Digest of the release that rolls.
    pub release: String,
    /// When its rollout started; jitter counts from here.
    pub started_at: Timestamp,
    /// The selected clusters by name.
    pub clusters: BTreeMap<String, ClusterView>,
}

/// The bounds of `rolloutStrategy`. Percentages are of the selected clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Clusters in flight at once; rounds up, at least 1.
    pub max_concurrency: IntOrPercent,
    /// Failed clusters above which nothing more starts; rounds down.
    pub max_failures: IntOrPercent,
    /// From admission to done.
    pub progress_deadline: Duration,
    /// Over which eligibility is spread.
    pub jitter: Duration,
}

/// One selected cluster.
#[derive(Clone, Debug)]
pub struct ClusterView {
    /// What its jitter is hashed from: the UID of the Cluster object, so that names may be reused.
    pub uid: String,
    /// Whether it can be worked on.
    pub reach: Reach,
    /// The group's entries on it, by name.
    pub entries: BTreeMap<String, EntryView>,
}

/// Whether a cluster can be worked on, as the Cluster loop last found.
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug)]
pub struct EntryView {
    /// The target it shall hold, or why there is none (a parameter that this cluster lacks).
    pub wanted: Result<String, String>,
    /// Its Sync, if there is one.
    pub observed: Option<ObservedSync>,
}

/// A group's Sync as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedSync {
    /// Target of its spec; `None` while it was never admitted.
    pub target: Option<String>,
    /// Release that admitted it.
    pub release: String,
    /// When it was admitted; `None` where nobody recorded it.
    pub admitted_at: Option<Timestamp>,
    /// How far it is with `target`.
    pub progress: Progress,
    /// Suspended by a person.
    pub suspended: bool,
}

/// How far a Sync is with the target of its own spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Not done, and nothing has gone wrong that would count: queued, at work, or cut off.
    Working,
    /// The cluster holds it and, with `wait`, was healthy with it.
    Done,
    /// Done, and not healthy any more: the rollout is through with it, its people are not.
    Degraded {
        /// One CamelCase word.
        reason: String,
        /// For people.
        message: String,
    },
    /// The last attempt at it failed, or it did not become healthy: in backoff, or stalled.
    Failing {
        /// One CamelCase word.
        reason: String,
        /// For people.
        message: String,
        /// When it is tried again by itself.
        retry_at: Option<Timestamp>,
    },
}

impl Progress {
    /// Whether a rollout is through with it.
    #[must_use]
    pub fn is_done(&self) -> bool {
        match self {
            Self::Done | Self::Degraded { .. } => true,
            Self::Working | Self::Failing { .. } => false,
        }
    }
}

/// What happens to each cluster now, and when to look again though nothing happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Plan {
    /// Exactly one decision for each selected cluster.
    pub decisions: BTreeMap<String, Decision>,
    /// What was counted before anything is started.
    pub tally: Tally,
    /// When time alone changes a decision; `None`: only an event will.
    pub recheck_at: Option<Timestamp>,
}

/// Counts that starting depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    /// Clusters that may be in flight at once.
    pub slots: usize,
    /// Clusters that are, before this plan starts any.
    pub in_flight: usize,
    /// Clusters that failed this release.
    pub failed: usize,
    /// Clusters that may fail before starting stops.
    pub failures_allowed: usize,
}

impl Tally {
    /// Whether the failure budget is overdrawn.
    #[must_use]
    pub fn too_many_failures(&self) -> bool {
        self.failed > self.failures_allowed
    }
}

/// What happens to one cluster now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It holds what this release wants.
    Done,
    /// Admit these entries now.
    Start {
        /// Names of the entries that are not yet admitted to their target.
        entries: Vec<String>,
    },
    /// Admitted and not done; holds a slot.
    InFlight {
        /// When it counts as failed.
        deadline: Option<Timestamp>,
        /// It became unreachable on the way.
        lost: bool,
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
        /// Why.
        reason: HoldReason,
        /// When time changes that; `None`: an event does.
        recheck_at: Option<Timestamp>,
    },
}

impl Decision {
    /// When time alone changes this decision.
    #[must_use]
    pub fn recheck_at(&self) -> Option<Timestamp> {
        match self {
            Self::InFlight { deadline, .. } => *deadline,
            Self::Hold { recheck_at, .. } => *recheck_at,
            // A failed cluster's own Sync retries it, and its status wakes the group.
            Self::Done | Self::Start { .. } | Self::Failed { .. } => None,
        }
    }
}

/// Why an admitted cluster counts as failed.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// The word for status, events and metrics.
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

/// Why a cluster is not started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HoldReason {
    /// The group is suspended.
    GroupSuspended,
    /// The Cluster is suspended.
    ClusterSuspended,
    /// A Sync of the group on this cluster is suspended.
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
    /// Unreachable: skipped, and caught up later.
    ClusterUnreachable {
        /// The reason of its Ready condition.
        reason: String,
        /// The message of it.
        message: String,
        /// Since when.
        since: Timestamp,
    },
    /// Its share of the jitter is not over.
    Jitter,
    /// More clusters failed than `maxFailures` allows.
    TooManyFailures,
    /// All slots are taken.
    NoSlot,
}

impl HoldReason {
    /// The word for status, events and metrics.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::GroupSuspended => "Suspended",
            Self::ClusterSuspended => "ClusterSuspended",
            Self::SyncSuspended { .. } => "SyncSuspended",
            Self::InvalidParameters { .. } => "InvalidParameters",
            Self::ClusterNotProbed => "ClusterNotProbed",
            Self::ClusterUnreachable { .. } => "ClusterUnreachable",
            Self::Jitter => "Jitter",
            Self::TooManyFailures => "TooManyFailures",
            Self::NoSlot => "NoSlot",
        }
    }
}
