//! The errors of tasks of a stage that cannot be carried out as written.

use starling_api::StageTaskType;

use super::metric::TestError;

/// An error in a task of `rolloutStrategy`. Each error names the field below the task.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskError {
    /// The field with the parameters of the type is missing.
    #[error("a {type_:?} needs {}", format!("{type_:?}").to_lowercase())]
    MissingParameters {
        /// The type of the task.
        type_: StageTaskType,
    },
    /// The template of a Job has no pod.
    #[error("job.template.spec.template.spec is missing: the pod of the Job")]
    MissingPod,
    /// The operator allows no Jobs.
    #[error(
        "Job gates are off; an administrator allows them with --job-gate-service-account of the controller"
    )]
    JobsOff,
    /// The Job would run as an account that the operator does not allow.
    #[error(
        "job.template.spec.template.spec.serviceAccountName is {account:?}; allowed by --job-gate-service-account: \
         {allowed}"
    )]
    JobAccount {
        /// The account of the template; empty if it has none.
        account: String,
        /// The allowed accounts.
        allowed: String,
    },
    /// The pod of a Job would get a Secret without a right on it.
    #[error(
        "job.template.spec.template.spec.{field}: the pod of a task may not name Secrets; let it read them with the \
         permissions of its ServiceAccount"
    )]
    JobSecret {
        /// The path of the field in the pod.
        field: String,
    },
    /// The pod of a Job would reach its node.
    #[error(
        "job.template.spec.template.spec.{field}: the pod of a task may not reach its node (Pod Security Standard baseline)"
    )]
    JobNode {
        /// The path of the field in the pod.
        field: String,
    },
    /// No Secret is named, and a webhook is not called without a signature.
    #[error("webhook.secretRef.name is empty; name a Secret with a token, which signs the request")]
    MissingSecret,
    /// The expression of a Metric is invalid.
    #[error("metric.test: {0}")]
    Test(#[source] TestError),
    /// The timeout is zero.
    #[error("timeout is 0s; the task would always fail")]
    ZeroTimeout,
    /// The interval would be a load.
    #[error("interval is less than 1s")]
    ShortInterval,
    /// A `TimedWait` without a time.
    #[error("a TimedWait needs waitTime, such as 1h")]
    MissingWaitTime,
    /// A time on a task that does not wait for it.
    #[error("waitTime belongs to a TimedWait")]
    MisplacedWaitTime,
    /// A stage with two approvals.
    #[error(
        "a stage has one Approval, since a RolloutApproval is for the whole stage; \
         give the other one a stage of its own"
    )]
    SecondApproval,
}
