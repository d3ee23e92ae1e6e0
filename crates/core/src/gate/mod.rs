//! Gates that other systems decide: Webhook, Metric and Job.
//!
//! For `plan` such a gate is an effect with a result. This module defines the request, the meaning of each response,
//! and when to retry. `controller::gates` makes the requests.

mod error;
pub mod job;
pub mod metric;
pub mod webhook;

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use starling_api::{LocalRef, StageTask, StageTaskType, referenced};

use crate::backoff;
use crate::digest;
use crate::ids::{GroupId, RolloutNumber};

pub use self::error::TaskError;

/// The timeout of a Webhook or a Metric without one of its own.
const TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// The timeout of a Job without one of its own.
const JOB_TIMEOUT: Duration = Duration::from_secs(60 * 60);
/// The interval between two evaluations without one of its own.
const INTERVAL: Duration = Duration::from_secs(30);
/// The shortest interval: a gate must not be a load test of the system that decides it.
const LEAST_INTERVAL: Duration = Duration::from_secs(1);
/// The first wait after an error such as a refused connection.
const ERROR_WAIT: Duration = Duration::from_secs(1);
/// The first interval between two reads of a Job; it grows to [`JOB_INTERVAL_LONGEST`].
const JOB_INTERVAL: Duration = Duration::from_secs(1);
/// The longest interval between two reads of a Job.
const JOB_INTERVAL_LONGEST: Duration = Duration::from_secs(15);

/// Before or after the clusters of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// Before the first cluster.
    Before,
    /// After the last cluster.
    After,
}

impl Side {
    /// Both sides, in order.
    pub const ALL: [Self; 2] = [Self::Before, Self::After];

    /// Returns the field of the stage.
    #[must_use]
    pub fn list(self) -> &'static str {
        match self {
            Self::Before => "beforeStageTasks",
            Self::After => "afterStageTasks",
        }
    }

    /// Returns the name of the side.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Before => "Before",
            Self::After => "After",
        }
    }
}

/// The identity of a gate that has begun. It is stable across restarts, since status has all of its parts, and differs
/// after an operator had the gate evaluated again from the start.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GateId {
    /// The identity of the group ([`crate::identity`]).
    pub group_id: GroupId,
    /// The number of the rollout.
    pub rollout: RolloutNumber,
    /// The stage.
    pub stage: String,
    /// The side of the stage.
    pub side: Side,
    /// The index in the list.
    pub index: usize,
    /// Time at which the turn of the gate came.
    pub begun_at: Timestamp,
}

impl GateId {
    /// Returns a text that is unique to this gate: 64 hex digits.
    #[must_use]
    pub fn key(&self) -> String {
        let Self {
            group_id,
            rollout,
            stage,
            side,
            index,
            begun_at,
        } = self;
        let begun_at = begun_at.as_millisecond();
        let whole = digest::of(&(group_id, rollout, stage, side.as_str(), index, begun_at));
        whole.trim_start_matches("sha256:").to_owned()
    }
}

/// A task of the strategy that another system decides.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// The effect.
    pub effect: Effect,
    /// The time from its beginning to its failure.
    pub timeout: Duration,
    /// The time between two evaluations, and the longest wait after an error.
    pub interval: Duration,
}

/// The effect that evaluates a gate.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Call a webhook.
    Webhook {
        /// The URL.
        url: String,
        /// The Secret with the signing key.
        secret: String,
    },
    /// Query a Prometheus.
    Metric {
        /// The URL.
        url: String,
        /// The query.
        query: String,
        /// The condition for the response: an expression, which `starling-expression` evaluates.
        test: String,
        /// The Secret with the credentials.
        secret: Option<String>,
    },
    /// Run a Job.
    Job {
        /// The JobTemplateSpec.
        template: serde_json::Value,
    },
}

impl Effect {
    /// Returns the type of the task.
    #[must_use]
    pub fn kind(&self) -> StageTaskType {
        match self {
            Self::Webhook { .. } => StageTaskType::Webhook,
            Self::Metric { .. } => StageTaskType::Metric,
            Self::Job { .. } => StageTaskType::Job,
        }
    }
}

/// Checks the expression of a Metric. It is a parameter, since this package does not contain the expression language.
pub type CheckTest = dyn Fn(&str) -> Result<(), metric::TestError>;

impl Task {
    /// Parses a task of the strategy; `None`: no other system decides it.
    ///
    /// # Errors
    /// The first [`TaskError`].
    pub fn read(task: &StageTask, check: &CheckTest) -> Result<Option<Self>, TaskError> {
        let effect = match task.type_ {
            StageTaskType::TimedWait | StageTaskType::Approval => return Ok(None),
            StageTaskType::Webhook => read_webhook(task)?,
            StageTaskType::Metric => read_metric(task, check)?,
            StageTaskType::Job => {
                let part = parameters(task.job.as_ref(), task.type_)?;
                job::check(&part.template)?;
                Effect::Job {
                    template: part.template.clone(),
                }
            }
        };
        let usual = match effect {
            Effect::Webhook { .. } | Effect::Metric { .. } => TIMEOUT,
            Effect::Job { .. } => JOB_TIMEOUT,
        };
        let timeout = task.timeout.map_or(usual, |timeout| timeout.as_std());
        if timeout.is_zero() {
            return Err(TaskError::ZeroTimeout);
        }
        let interval = task.interval.map_or(INTERVAL, |interval| interval.as_std());
        if interval < LEAST_INTERVAL {
            return Err(TaskError::ShortInterval);
        }
        Ok(Some(Self {
            effect,
            timeout,
            interval,
        }))
    }
}

fn parameters<T>(given: Option<&T>, type_: StageTaskType) -> Result<&T, TaskError> {
    given.ok_or(TaskError::MissingParameters { type_ })
}

fn read_webhook(task: &StageTask) -> Result<Effect, TaskError> {
    let part = parameters(task.webhook.as_ref(), task.type_)?;
    let secret = referenced(Some(&part.secret_ref)).ok_or(TaskError::MissingSecret)?;
    Ok(Effect::Webhook {
        url: part.url.clone(),
        secret: secret.to_owned(),
    })
}

fn read_metric(task: &StageTask, check: &CheckTest) -> Result<Effect, TaskError> {
    let part = parameters(task.metric.as_ref(), task.type_)?;
    check(&part.test).map_err(TaskError::Test)?;
    let secret: Option<&LocalRef> = part.secret_ref.as_ref();
    Ok(Effect::Metric {
        url: part.url.clone(),
        query: part.query.clone(),
        test: part.test.clone(),
        secret: referenced(secret).map(str::to_owned),
    })
}

/// The result of one evaluation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evaluation {
    /// The gate passes.
    Passed,
    /// The gate fails, and no further evaluation would change that.
    Failed(String),
    /// The gate does not pass yet, for this reason.
    Pending(String),
    /// There is no result, for this reason.
    Error {
        /// The message.
        message: String,
        /// The wait that the other system requested.
        retry_after: Option<Duration>,
    },
}

impl Evaluation {
    /// Returns an error without a requested wait.
    pub fn error(message: impl Into<String>) -> Self {
        Self::Error {
            message: message.into(),
            retry_after: None,
        }
    }

    /// Returns the same with the wait that the response requested.
    #[must_use]
    pub fn with_retry_after(self, after: Option<Duration>) -> Self {
        match self {
            Self::Error { message, .. } => Self::Error {
                message,
                retry_after: after,
            },
            Self::Passed | Self::Failed(_) | Self::Pending(_) => self,
        }
    }
}

/// The result of an effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum GateResult {
    /// The stage may proceed.
    Passed,
    /// The stage may not proceed. A retry by an operator removes this record.
    Failed {
        /// The message.
        message: String,
    },
}

/// The next step after an evaluation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// The gate has this result.
    Finished(GateResult),
    /// Evaluate again after a wait, for this reason.
    Wait {
        /// The wait.
        wait: Duration,
        /// The reason.
        why: String,
    },
}

/// The evaluations of a gate so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evaluations {
    /// All evaluations.
    pub all: u32,
    /// Consecutive evaluations with an error.
    pub errors: u32,
}

/// Returns what follows from an evaluation. The last evaluation is made when the timeout is over, however long the wait
/// before it, so that a gate whose timeout ended while the controller was down is evaluated once.
#[must_use]
pub fn after(
    task: &Task,
    id: &GateId,
    tries: &mut Evaluations,
    evaluation: Evaluation,
    elapsed: Duration,
) -> NextStep {
    tries.all = tries.all.saturating_add(1);
    let errors = match &evaluation {
        Evaluation::Error { .. } => tries.errors.saturating_add(1),
        Evaluation::Passed | Evaluation::Failed(_) | Evaluation::Pending(_) => 0,
    };
    tries.errors = errors;
    let (wait, why) = match evaluation {
        Evaluation::Passed => return NextStep::Finished(GateResult::Passed),
        Evaluation::Failed(message) => return NextStep::Finished(GateResult::Failed { message }),
        Evaluation::Pending(message) => (usual_wait(task, id, tries.all), message),
        Evaluation::Error { message, retry_after } => {
            let wait = backoff::delay(ERROR_WAIT, errors, &id.key()).min(task.interval);
            (wait.max(retry_after.unwrap_or_default()), message)
        }
    };
    let left = task.timeout.saturating_sub(elapsed);
    if left.is_zero() {
        let message = format!("not within {}: {why}", starling_api::Duration::from(task.timeout));
        return NextStep::Finished(GateResult::Failed { message });
    }
    NextStep::Wait {
        wait: wait.min(left),
        why,
    }
}

fn usual_wait(task: &Task, id: &GateId, tries: u32) -> Duration {
    match task.effect {
        Effect::Webhook { .. } | Effect::Metric { .. } => task.interval,
        Effect::Job { .. } => backoff::delay(JOB_INTERVAL, tries, &id.key()).min(JOB_INTERVAL_LONGEST),
    }
}

#[cfg(test)]
pub(crate) mod tests;
