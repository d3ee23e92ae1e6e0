//! Gates that somebody else decides: what a webhook answers, what a query gives, what becomes of a Job.
//!
//! `plan` knows of such a gate only that it is an effect, and what was found of it. Here is what is to be done, what each answer
//! means, and when it is tried again. Who does it is `controller::gates`.

pub mod job;
pub mod metric;
pub mod webhook;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use starling_api::{LocalRef, StageTask, StageTaskType, referenced};

use crate::backoff;
use crate::digest;
use crate::plan::Finding;
use metric::Test;

/// How long a Webhook or a Metric has, where the task does not say.
const TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// How long a Job has, where the task does not say.
const JOB_TIMEOUT: Duration = Duration::from_secs(60 * 60);
/// The pause between two tries, where the task does not say.
const INTERVAL: Duration = Duration::from_secs(30);
/// The least pause: a gate is no load test of who decides it.
const LEAST_INTERVAL: Duration = Duration::from_secs(1);
/// The first wait after something that did not come about, such as a refused connection.
const TROUBLE: Duration = Duration::from_secs(1);
/// The first pause between two looks at a Job; it grows to [`JOB_LOOK_LONGEST`].
const JOB_LOOK: Duration = Duration::from_secs(1);
/// The longest pause between two looks at a Job.
const JOB_LOOK_LONGEST: Duration = Duration::from_secs(15);

/// Before or after the clusters of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// Before its first cluster.
    Before,
    /// After its last.
    After,
}

impl Side {
    /// Both, in the order in which they are passed.
    pub const ALL: [Self; 2] = [Self::Before, Self::After];

    /// The field of the stage.
    #[must_use]
    pub fn list(self) -> &'static str {
        match self {
            Self::Before => "beforeStageTasks",
            Self::After => "afterStageTasks",
        }
    }

    /// One word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Before => "Before",
            Self::After => "After",
        }
    }
}

/// A gate that has begun. It is the same after a restart, as all of this stands in status; and another one where the gate begins anew
/// because a person asked for it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GateId {
    /// The group's UID.
    pub group_uid: String,
    /// The number of the rollout.
    pub rollout: i64,
    /// The stage.
    pub stage: String,
    /// Before or after it.
    pub side: Side,
    /// Its place in the list.
    pub index: usize,
    /// When it became its turn.
    pub begun_at: Timestamp,
}

impl GateId {
    /// A text that stands for this gate and no other: 64 hex digits.
    #[must_use]
    pub fn key(&self) -> String {
        let Self {
            group_uid,
            rollout,
            stage,
            side,
            index,
            begun_at,
        } = self;
        let begun_at = begun_at.as_millisecond();
        let whole = digest::of(&(group_uid, rollout, stage, side.as_str(), index, begun_at));
        whole.trim_start_matches("sha256:").to_owned()
    }
}

/// A task that somebody else decides, as the strategy has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// What is to be done.
    pub effect: Effect,
    /// From its beginning to its failure.
    pub timeout: Duration,
    /// Between two tries; the longest wait after trouble.
    pub interval: Duration,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Ask a webhook.
    Webhook {
        /// Where.
        url: String,
        /// Secret with the key of the signature.
        secret: String,
    },
    /// Query a Prometheus.
    Metric {
        /// Where.
        url: String,
        /// What is asked.
        query: String,
        /// What the answer has to be.
        test: Test,
        /// Secret with what signs in there.
        secret: Option<String>,
    },
    /// Run a Job.
    Job {
        /// Its JobTemplateSpec.
        template: serde_json::Value,
    },
}

impl Effect {
    /// The type of the task.
    #[must_use]
    pub fn kind(&self) -> StageTaskType {
        match self {
            Self::Webhook { .. } => StageTaskType::Webhook,
            Self::Metric { .. } => StageTaskType::Metric,
            Self::Job { .. } => StageTaskType::Job,
        }
    }
}

impl Task {
    /// Reads the task of a strategy; `None` if it is one that nobody else decides.
    ///
    /// # Errors
    /// What is wrong with it: the field, and what would be right.
    pub fn read(task: &StageTask) -> Result<Option<Self>, String> {
        let effect = match task.type_ {
            StageTaskType::TimedWait | StageTaskType::Approval => return Ok(None),
            StageTaskType::Webhook => read_webhook(task)?,
            StageTaskType::Metric => read_metric(task)?,
            StageTaskType::Job => {
                let part = task.job.as_ref().ok_or("a Job needs job")?;
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
            return Err("timeout is 0s; with that it could only fail".to_owned());
        }
        let interval = task.interval.map_or(INTERVAL, |interval| interval.as_std());
        if interval < LEAST_INTERVAL {
            return Err("interval is less than 1s".to_owned());
        }
        Ok(Some(Self {
            effect,
            timeout,
            interval,
        }))
    }
}

fn read_webhook(task: &StageTask) -> Result<Effect, String> {
    let part = task.webhook.as_ref().ok_or("a Webhook needs webhook")?;
    let secret = referenced(Some(&part.secret_ref))
        .ok_or("webhook.secretRef.name is empty; name a Secret with a token, which signs the request")?;
    Ok(Effect::Webhook {
        url: part.url.clone(),
        secret: secret.to_owned(),
    })
}

fn read_metric(task: &StageTask) -> Result<Effect, String> {
    let part = task.metric.as_ref().ok_or("a Metric needs metric")?;
    let test = Test::new(&part.test).map_err(|problem| format!("metric.test: {problem}"))?;
    let secret: Option<&LocalRef> = part.secret_ref.as_ref();
    Ok(Effect::Metric {
        url: part.url.clone(),
        query: part.query.clone(),
        test,
        secret: referenced(secret).map(str::to_owned),
    })
}

/// What came of one try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tried {
    /// It may go on.
    Passed,
    /// It may not, and no further try would change that.
    Failed(String),
    /// It was found that it may not go on yet, and why.
    NotYet(String),
    /// Nothing was found, and why.
    Trouble {
        /// For people.
        message: String,
        /// What the other side asked for.
        retry_after: Option<Duration>,
    },
}

impl Tried {
    /// Nothing was found, and nobody said when to come back.
    pub fn trouble(message: impl Into<String>) -> Self {
        Self::Trouble {
            message: message.into(),
            retry_after: None,
        }
    }

    /// The same, of an answer that also said when to come back.
    #[must_use]
    pub fn asked_back(self, after: Option<Duration>) -> Self {
        match self {
            Self::Trouble { message, .. } => Self::Trouble {
                message,
                retry_after: after,
            },
            Self::Passed | Self::Failed(_) | Self::NotYet(_) => self,
        }
    }
}

/// What is done after a try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum After {
    /// Nothing: this was found.
    Found(Finding),
    /// It is tried again after a wait, and this is why.
    Wait {
        /// How long.
        wait: Duration,
        /// For people.
        why: String,
    },
}

/// How a gate is tried: in how many tries in a row nothing came about, and how many there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tries {
    /// All.
    pub all: u32,
    /// Trouble, in a row.
    pub in_trouble: u32,
}

/// What follows from a try. The last one is made when the time of the task is over, however long the wait before it, so that a
/// gate whose time went by while nobody looked is tried once.
#[must_use]
pub fn after(task: &Task, id: &GateId, tries: &mut Tries, tried: Tried, now: Timestamp) -> After {
    tries.all = tries.all.saturating_add(1);
    let in_trouble = match &tried {
        Tried::Trouble { .. } => tries.in_trouble.saturating_add(1),
        Tried::Passed | Tried::Failed(_) | Tried::NotYet(_) => 0,
    };
    tries.in_trouble = in_trouble;
    let (wait, why) = match tried {
        Tried::Passed => return After::Found(Finding::Passed),
        Tried::Failed(message) => return After::Found(Finding::Failed { message }),
        Tried::NotYet(message) => (usual_wait(task, id, tries.all), message),
        Tried::Trouble { message, retry_after } => {
            let wait = backoff::delay(TROUBLE, in_trouble, &id.key()).min(task.interval);
            (wait.max(retry_after.unwrap_or_default()), message)
        }
    };
    let left = left(task, id, now);
    if left.is_zero() {
        let message = format!("not within {}: {why}", starling_api::Duration::from(task.timeout));
        return After::Found(Finding::Failed { message });
    }
    After::Wait {
        wait: wait.min(left),
        why,
    }
}

fn usual_wait(task: &Task, id: &GateId, tries: u32) -> Duration {
    match task.effect {
        Effect::Webhook { .. } | Effect::Metric { .. } => task.interval,
        Effect::Job { .. } => backoff::delay(JOB_LOOK, tries, &id.key()).min(JOB_LOOK_LONGEST),
    }
}

/// The time that a task has left.
fn left(task: &Task, id: &GateId, now: Timestamp) -> Duration {
    let timeout = SignedDuration::try_from(task.timeout).unwrap_or(SignedDuration::MAX);
    let ends = id.begun_at.saturating_add(timeout).unwrap_or(Timestamp::MAX);
    ends.duration_since(now).try_into().unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests;
