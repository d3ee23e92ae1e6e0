//! The strategy, what is recorded of a rollout's stages, and what people asked for.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use starling_api::{IntOrPercent, OnFailure, OnUnreachable, StageTaskType};

use super::types::Tally;
use crate::window::Window;

/// `rolloutStrategy`, read and checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Strategy {
    /// The bounds.
    pub limits: Limits,
    /// What happens when more clusters fail than `maxFailures` allows, or a gate fails.
    pub on_failure: OnFailure,
    /// Whether a stage waits for clusters that cannot be reached.
    pub on_unreachable: OnUnreachable,
    /// Which windows there are; each cluster names those that are about it.
    pub windows: Vec<Window>,
    /// The stages in their order. The last is the implicit one, for clusters that no other selects; it may be empty.
    pub stages: Vec<StageRules>,
}

/// The bounds of `rolloutStrategy`. Percentages are of the selected clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// Clusters in flight at once; rounds up, at least 1.
    pub max_concurrency: IntOrPercent,
    /// Reachable clusters that are in flight or not healthy; rounds down, at least 1.
    pub max_unavailable: IntOrPercent,
    /// Failed clusters above which nothing more starts; rounds down.
    pub max_failures: IntOrPercent,
    /// How long a cluster has to be healthy to be done.
    pub min_success_time: Duration,
    /// From admission to healthy.
    pub progress_deadline: Duration,
    /// Over which eligibility is spread, from the opening of the stage.
    pub jitter: Duration,
}

/// A stage of the strategy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StageRules {
    /// Its name; `*` is the implicit one.
    pub name: String,
    /// Of its clusters, those in flight at once; rounds up, at least 1. `None`: only the group's bound.
    pub max_concurrency: Option<IntOrPercent>,
    /// Of its clusters, those that may be unavailable; rounds down, at least 1. `None`: only the group's bound.
    pub max_unavailable: Option<IntOrPercent>,
    /// Of its clusters, those that may fail; rounds down. `None`: as many as of the group.
    pub max_failures: Option<IntOrPercent>,
    /// What must be passed, one after the other, before its clusters start.
    pub before: Vec<Gate>,
    /// What must be passed, one after the other, after its clusters are through.
    pub after: Vec<Gate>,
}

/// The name of the implicit last stage. No stage can be called so.
pub const REST: &str = "*";

/// A task of a stage, as far as a plan knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Gate {
    /// Passed so long after it began.
    TimedWait(Duration),
    /// Passed once somebody approved this stage of this rollout, whenever that was.
    Approval,
    /// Passed or failed by what somebody else finds out and records: Webhook, Metric, Job.
    Effect(StageTaskType),
}

/// The rollout under way, and what was recorded of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutView {
    /// Digest of the release that rolls.
    pub release: String,
    /// Which way it goes.
    pub direction: Direction,
    /// When it started.
    pub started_at: Timestamp,
    /// What was recorded of its stages, by name. A stage that is new to the strategy has nothing here.
    pub stages: BTreeMap<String, StageRecord>,
    /// The stages that were approved, with those who did. Approvals of something else are not here (see
    /// [`crate::approval`]).
    pub approvals: BTreeMap<String, Word>,
}

/// Which way a rollout goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Direction {
    /// To what the Sources offer.
    Forward,
    /// Back to what was good, by the same stages, without their gates.
    Back,
    /// Back at once: of the strategy only `maxConcurrency`, `maxFailures` and `progressDeadline` count.
    BackAtOnce,
}

/// What is remembered of a stage in one rollout. What is set once is never taken back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StageRecord {
    /// Since when its clusters may start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened_at: Option<Timestamp>,
    /// When all its clusters were through for the first time, and its gates after that began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Timestamp>,
    /// When the next stage was let go. A stage that was passed stays so: who joins it later starts at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passed_at: Option<Timestamp>,
    /// Its gates before it, as far as they have begun.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<GateRecord>,
    /// Its gates after it, as far as they have begun.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<GateRecord>,
}

/// What is remembered of a gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GateRecord {
    /// Which gate. Where the strategy names another one at this place now, the record is void, and those after it.
    pub gate: Gate,
    /// When it became its turn.
    pub begun_at: Timestamp,
    /// What was found, for an effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<Finding>,
}

/// What became of an effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Finding {
    /// It may go on.
    Passed,
    /// It may not, and why. A person may have it tried again, which takes this record away.
    Failed {
        /// For people.
        message: String,
    },
}

/// What people asked for in this rollout. Each names who, why and when.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Steering {
    /// Start nothing more until resumed.
    pub paused: Option<Word>,
    /// Start nothing of this release any more.
    pub aborted: Option<Word>,
    /// Clusters that this rollout passes over. What was started there finishes, and counts neither as failure nor as
    /// success.
    pub skipped: BTreeMap<String, Word>,
    /// Stages that this rollout passes over, with their clusters.
    pub skipped_stages: BTreeMap<String, Word>,
    /// Stages that let the next one go without being through: their gates before and after count as passed.
    pub promoted: BTreeMap<String, Word>,
}

/// Who asked, why, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Word {
    /// The user.
    pub by: String,
    /// The reason that was given.
    pub reason: String,
    /// When.
    pub at: Timestamp,
}

/// How a stage stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StagePlan {
    /// Its name.
    pub name: String,
    /// What it is doing.
    pub phase: StagePhase,
    /// What is to be remembered of it.
    pub record: StageRecord,
    /// Its counts. Failed are also those that were done and broke, until the stage is passed.
    pub tally: Tally,
}

/// What a stage is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StagePhase {
    /// An earlier stage is not through.
    Pending,
    /// It waits, before or after its clusters.
    Waiting(StageWait),
    /// Its clusters start.
    Open,
    /// The next stage may go.
    Passed,
    /// A person had it passed over.
    Skipped(Word),
}

/// What a stage waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StageWait {
    /// So many of its clusters are not through.
    Clusters {
        /// Not through, and not only soaking.
        working: usize,
        /// Soaking.
        soaking: usize,
    },
    /// It has clusters, and none of them took the release: that proves nothing. Somebody has to look.
    Unproven,
    /// A gate.
    Gate {
        /// Which.
        gate: Gate,
        /// When time passes it.
        until: Option<Timestamp>,
    },
    /// A gate that failed.
    GateFailed {
        /// Which.
        gate: Gate,
        /// For people.
        message: String,
    },
}

impl StageWait {
    /// The word for status.
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

/// What becomes of a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// It goes on, by itself or when something happens that its decisions name.
    Rolls,
    /// Every stage is passed, every cluster that can be reached holds the release, and none of them vanished with too many others. Or
    /// there are no clusters, and nothing stopped it.
    Through,
    /// Nothing more starts, until somebody does something or what failed recovers.
    Stopped(Stop),
    /// As [`Verdict::Stopped`], and the strategy wants to go back.
    RollBack(Stop),
}

/// Why a rollout is stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Stop {
    /// More clusters failed than may.
    TooManyFailures {
        /// Of this stage; `None`: of the whole group.
        stage: Option<usize>,
        /// So many.
        failed: usize,
        /// Of so many that may.
        allowed: usize,
    },
    /// A gate failed.
    GateFailed {
        /// Whose.
        stage: usize,
        /// Why.
        message: String,
    },
    /// A person gave it up.
    Aborted(Word),
}
