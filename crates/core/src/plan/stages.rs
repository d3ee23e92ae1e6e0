//! The strategy, the recorded state of the stages of a rollout, and what operators requested.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use starling_api::{IntOrPercent, OnFailure, OnUnreachable, RolloutDirection, StageTaskType};

pub use crate::gate::GateResult;
use crate::ids::{ClusterName, ReleaseDigest};
use crate::window::Window;

/// `rolloutStrategy`, parsed and validated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Strategy {
    /// The limits.
    pub limits: RolloutLimits,
    /// The reaction to an exceeded failure limit or a failed gate.
    pub on_failure: OnFailure,
    /// The reaction to an unreachable cluster.
    pub on_unreachable: OnUnreachable,
    /// All windows; each cluster names those that apply to it.
    pub windows: Vec<Window>,
    /// The stages in order. The last is the implicit stage for clusters that no other stage selects; it may be empty.
    pub stages: Vec<StageRules>,
}

/// The limits of `rolloutStrategy`. Percentages are of the selected clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutLimits {
    /// Clusters that may be in flight at once; rounds up, at least 1.
    pub max_concurrency: IntOrPercent,
    /// Reachable clusters that may be in flight or not healthy; rounds down, at least 1.
    pub max_unavailable: IntOrPercent,
    /// Failed clusters above which nothing more starts; rounds down.
    pub max_failures: IntOrPercent,
    /// The soak time.
    pub min_success_time: Duration,
    /// The time from admission to healthy.
    pub progress_deadline: Duration,
    /// The time over which starts are spread, from the opening of the stage.
    pub jitter: Duration,
}

/// A stage of the strategy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StageRules {
    /// The name; `*` is the implicit stage.
    pub name: String,
    /// Clusters of the stage that may be in flight at once; rounds up, at least 1. `None`: only the limit of the group
    /// applies.
    pub max_concurrency: Option<IntOrPercent>,
    /// Clusters of the stage that may be unavailable; rounds down, at least 1. `None`: only the limit of the group
    /// applies.
    pub max_unavailable: Option<IntOrPercent>,
    /// Clusters of the stage that may fail; rounds down. `None`: as many as of the group.
    pub max_failures: Option<IntOrPercent>,
    /// The gates that have to pass, in order, before the clusters of the stage start.
    pub before: Vec<Gate>,
    /// The gates that have to pass, in order, after the clusters of the stage are done.
    pub after: Vec<Gate>,
}

/// The name of the implicit last stage. No other stage can have it.
pub const REST: &str = "*";

/// A gate as the planner knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Gate {
    /// Passes this time after it began.
    TimedWait(Duration),
    /// Passes once this stage of this rollout is approved, at any time.
    Approval,
    /// Passes or fails with a result that is evaluated and recorded elsewhere: Webhook, Metric, Job.
    Effect(StageTaskType),
}

/// The current rollout and its recorded state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutView {
    /// The digest of its release.
    pub release: ReleaseDigest,
    /// The direction of the rollout.
    pub direction: Direction,
    /// Time at which the rollout started.
    pub started_at: Timestamp,
    /// The records of its stages, by name. A stage that is new to the strategy has no record.
    pub stages: BTreeMap<String, StageRecord>,
    /// The approved stages, and who approved them. Approvals that do not apply to this rollout are left out.
    pub approvals: BTreeMap<String, Attribution>,
}

/// The direction of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Direction {
    /// To the latest release.
    Forward,
    /// Back to an earlier release, by the same stages, without their gates.
    Back,
    /// Back at once: of the strategy only `maxConcurrency`, `maxFailures` and `progressDeadline` apply.
    BackAtOnce,
}

impl From<RolloutDirection> for Direction {
    fn from(direction: RolloutDirection) -> Self {
        match direction {
            RolloutDirection::Forward => Self::Forward,
            RolloutDirection::Back => Self::Back,
            RolloutDirection::BackAtOnce => Self::BackAtOnce,
        }
    }
}

impl From<Direction> for RolloutDirection {
    fn from(direction: Direction) -> Self {
        match direction {
            Direction::Forward => Self::Forward,
            Direction::Back => Self::Back,
            Direction::BackAtOnce => Self::BackAtOnce,
        }
    }
}

/// The record of a stage in one rollout. A time that is set is never cleared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StageRecord {
    /// Time since which the clusters of the stage may start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened_at: Option<Timestamp>,
    /// Time at which the clusters of the stage were complete for the first time, and the gates after it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Timestamp>,
    /// Time at which the stage passed. A stage that has passed stays so: clusters that join it later start at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passed_at: Option<Timestamp>,
    /// The gates before the stage that have begun.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<GateRecord>,
    /// The gates after the stage that have begun.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<GateRecord>,
}

/// The record of a gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GateRecord {
    /// The gate. If the strategy has another gate at this position now, this record and the following ones are void.
    pub gate: Gate,
    /// Time at which the turn of the gate came.
    pub begun_at: Timestamp,
    /// The result of an effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<GateResult>,
}

/// The requests of operators in this rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OperatorInput {
    /// Start nothing until the rollout is resumed.
    pub paused: Option<Attribution>,
    /// Start nothing more of this release.
    pub aborted: Option<Attribution>,
    /// Clusters that this rollout skips. What was started there is completed, and counts neither as a failure nor as a
    /// success.
    pub skipped: BTreeMap<ClusterName, Attribution>,
    /// Stages that this rollout skips, with their clusters.
    pub skipped_stages: BTreeMap<String, Attribution>,
    /// Stages that let the next stage start before they are complete: their gates count as passed.
    pub promoted: BTreeMap<String, Attribution>,
    /// Requests to retry failures, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retries: Vec<Retry>,
}

/// A request of an operator to retry what failed before it: in the whole rollout, in a stage, or on a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Retry {
    /// Only this cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterName>,
    /// Only this stage, with its gates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// The user who requested the retry, the reason, and the time.
    pub attribution: Attribution,
}

/// The user who requested something, the reason, and the time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attribution {
    /// The user.
    pub by: String,
    /// The stated reason.
    pub reason: String,
    /// The time.
    pub at: Timestamp,
}

/// The state of a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StagePlan {
    /// The name.
    pub name: String,
    /// The phase.
    pub phase: StagePhase,
    /// The record to store.
    pub record: StageRecord,
    /// The counts. Until the stage has passed, clusters that broke after they were done count as failed.
    pub tally: Tally,
}

/// The phase of a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StagePhase {
    /// An earlier stage has not passed.
    Pending,
    /// The stage waits, before or after its clusters.
    Waiting(StageWait),
    /// The clusters of the stage start.
    Open,
    /// The stage has passed.
    Passed,
    /// An operator skipped it.
    Skipped(Attribution),
}

/// The condition that a stage waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StageWait {
    /// Clusters that are not done.
    Clusters {
        /// Clusters that are neither done nor soaking.
        working: usize,
        /// Clusters that soak.
        soaking: usize,
    },
    /// The stage has clusters, but none of them is done with the release, which proves nothing. An operator has to act.
    Unproven,
    /// A gate.
    Gate {
        /// The gate.
        gate: Gate,
        /// Time at which time alone passes the gate.
        until: Option<Timestamp>,
    },
    /// A gate that failed.
    GateFailed {
        /// The gate.
        gate: Gate,
        /// The message.
        message: String,
    },
}

impl StageWait {
    /// Returns the reason as in status.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Clusters { working: 0, .. } => "Soaking",
            Self::Clusters { .. } => "StageProgressing",
            Self::Unproven => "StageUnproven",
            Self::Gate { gate, .. } => match gate {
                Gate::TimedWait(_) => "TimedWait",
                Gate::Approval => "AwaitingApproval",
                Gate::Effect(StageTaskType::Webhook) => "AwaitingWebhook",
                Gate::Effect(StageTaskType::Metric) => "AwaitingMetric",
                Gate::Effect(_) => "AwaitingJob",
            },
            Self::GateFailed { .. } => "GateFailed",
        }
    }
}

/// The verdict of a plan on its rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RolloutVerdict {
    /// The rollout continues, by itself or with the events that its decisions name.
    InProgress,
    /// Every stage has passed, every reachable cluster is done with the release, and no clusters vanished at once. Or
    /// the group has no clusters, and nothing stopped the rollout.
    Succeeded,
    /// Nothing more starts until an operator acts or a failed cluster recovers.
    Stopped(Stop),
    /// As [`RolloutVerdict::Stopped`], and the strategy requires a rollback.
    RollBack(Stop),
}

/// The reason why a rollout is stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Stop {
    /// More clusters failed than the limit allows.
    TooManyFailures {
        /// The stage; `None`: the whole group.
        stage: Option<usize>,
        /// The number of failed clusters.
        failed: usize,
        /// The failure limit.
        allowed: usize,
    },
    /// A gate failed.
    GateFailed {
        /// The stage of the gate.
        stage: usize,
        /// The message.
        message: String,
    },
    /// An operator aborted it.
    Aborted(Attribution),
}

/// The counts of a group or a stage that decide what may start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tally {
    /// All clusters.
    pub total: usize,
    /// Clusters that are done.
    pub done: usize,
    /// Clusters that may be in flight at once; `None`: the stage has no limit of its own.
    pub slots: Option<usize>,
    /// Clusters that are in flight before this plan starts any.
    pub in_flight: usize,
    /// Clusters that count as failed. Skipped clusters do not.
    pub failed: usize,
    /// The failure limit.
    pub failures_allowed: usize,
    /// Reachable clusters that are in flight or not healthy.
    pub unavailable: usize,
    /// The limit of unavailable clusters; a stage without a limit of its own has that of the group.
    pub unavailable_allowed: usize,
}

impl Tally {
    /// Reports whether the failure limit is exceeded.
    #[must_use]
    pub fn too_many_failures(&self) -> bool {
        self.failed > self.failures_allowed
    }
}
