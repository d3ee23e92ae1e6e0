//! `rolloutStrategy`: at what pace and in what order a release goes through a group.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Duration, IntOrPercent, LocalRef, schema};

/// At what pace, in what order, and what to do when it goes wrong.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("type(self.maxConcurrency) == string ? self.maxConcurrency != '0%' : self.maxConcurrency > 0").message("maxConcurrency must be at least 1 or 1%"))]
#[serde(rename_all = "camelCase")]
pub struct RolloutStrategy {
    /// Clusters in flight at once; a percentage of the selected ones rounds up.
    #[serde(default = "quarter")]
    pub max_concurrency: IntOrPercent,
    /// Failed clusters above which nothing more starts; a percentage rounds down.
    #[serde(default = "all")]
    pub max_failures: IntOrPercent,
    /// A cluster that is not done so long after its admission counts as failed.
    #[serde(default = "default_deadline")]
    pub progress_deadline: Duration,
    /// Spreads the starts over this time, before a slot is taken.
    #[serde(default)]
    pub jitter: Duration,
    /// Soak: a cluster is done once it has been healthy for so long.
    #[serde(default)]
    pub min_success_time: Duration,
    /// Reachable clusters that may be not healthy at once; a percentage rounds down.
    #[serde(default = "all")]
    pub max_unavailable: IntOrPercent,
    /// A newer release while one is under way.
    #[serde(default)]
    pub on_new_revision: OnNewRevision,
    /// More than maxFailures.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// A cluster that cannot be reached.
    #[serde(default)]
    pub on_unreachable: OnUnreachable,
    /// When clusters may start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub windows: Vec<Window>,
    /// In what order; clusters that no stage selects form the last one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub stages: Vec<Stage>,
    /// How to go back.
    #[serde(default)]
    pub rollback: Rollback,
}

/// A newer release while one is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnNewRevision {
    /// It takes over; what it overtakes is skipped.
    #[default]
    Replace,
    /// It waits until the one under way is through, then the newest is taken.
    Finish,
    /// Each gets its turn.
    Queue,
}

/// More clusters failed than `maxFailures` allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnFailure {
    /// Start nothing more.
    #[default]
    Pause,
    /// Go back to the last release that succeeded on the whole group.
    Rollback,
    /// Go on.
    Continue,
}

/// A cluster that cannot be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnUnreachable {
    /// Pass over it, and catch up later, once, to the newest.
    #[default]
    Skip,
    /// The stage waits for it.
    Wait,
}

/// When clusters may start; exactly one of `allow` and `deny`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Window {
    /// Such as `Mon-Fri 09:00-16:00`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub allow: String,
    /// Such as `Sat,Sun 00:00-24:00`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub deny: String,
    /// IANA name; empty is UTC.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub time_zone: String,
    /// For which clusters; none means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::LabelSelector>")]
    pub cluster_selector: Option<LabelSelector>,
}

/// A part of the group that goes before the next one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Stage {
    /// Its name.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Its clusters, of those that the group selects.
    #[serde(default)]
    #[schemars(with = "schema::LabelSelector")]
    pub cluster_selector: LabelSelector,
    /// As in the strategy, for this stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrency: Option<IntOrPercent>,
    /// As in the strategy, for this stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrPercent>,
    /// As in the strategy, for this stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_failures: Option<IntOrPercent>,
    /// What must be done before its first cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20), extend("x-kubernetes-list-type" = "atomic"))]
    pub before_stage_tasks: Vec<StageTask>,
    /// What must be done after its last cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20), extend("x-kubernetes-list-type" = "atomic"))]
    pub after_stage_tasks: Vec<StageTask>,
}

/// A gate before or after a stage.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("has(self.waitTime) == (self.type == 'TimedWait')").message("waitTime belongs to a TimedWait, which needs it"))]
#[x_kube(validation = Rule::new("has(self.webhook) == (self.type == 'Webhook')").message("webhook belongs to a Webhook, which needs it"))]
#[x_kube(validation = Rule::new("has(self.metric) == (self.type == 'Metric')").message("metric belongs to a Metric, which needs it"))]
#[x_kube(validation = Rule::new("has(self.job) == (self.type == 'Job')").message("job belongs to a Job, which needs it"))]
#[x_kube(validation = Rule::new("!has(self.timeout) || self.type in ['Webhook', 'Metric', 'Job']").message("timeout belongs to a Webhook, a Metric or a Job"))]
#[x_kube(validation = Rule::new("!has(self.interval) || self.type in ['Webhook', 'Metric']").message("interval belongs to a Webhook or a Metric"))]
#[serde(rename_all = "camelCase")]
pub struct StageTask {
    /// What is waited for.
    #[serde(rename = "type")]
    pub type_: StageTaskType,
    /// TimedWait: how long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_time: Option<Duration>,
    /// Webhook: who is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<WebhookTask>,
    /// Metric: what is queried, and what it has to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<MetricTask>,
    /// Job: what is run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobTask>,
    /// Webhook, Metric and Job: when it counts as failed, from when it began; default 5m, of a Job 1h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// Webhook and Metric: the pause between two tries; default 30s, at least 1s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Duration>,
}

/// A signed POST whose answer decides.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WebhookTask {
    /// Where it goes: http:// or https://, without credentials.
    #[x_kube(validation = Rule::new("self.matches('^https?://[^ /?#@]+([/?][^ #]*)?$')").message("url must be http://… or https://…, without credentials and fragment"))]
    #[schemars(length(max = 2048))]
    pub url: String,
    /// Secret with token, the key of the signature; ca.crt.
    pub secret_ref: LocalRef,
}

/// A query of a Prometheus, and what its result has to be.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MetricTask {
    /// The Prometheus, without /api/v1/query: http:// or https://, without credentials.
    #[x_kube(validation = Rule::new("self.matches('^https?://[^ /?#@]+(/[^ ?#]*)?$')").message("url must be http://… or https://…, without credentials, query and fragment"))]
    #[schemars(length(max = 2048))]
    pub url: String,
    /// In PromQL: an instant vector or a scalar.
    #[schemars(length(min = 1, max = 4096))]
    pub query: String,
    /// In CEL, true once it may go on: `value` is the number of the only series, `result` the list of all, each with
    /// `metric`, its labels, and `value`.
    #[schemars(length(min = 1, max = 4096))]
    pub test: String,
    /// Secret with username and password, or bearerToken; ca.crt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<LocalRef>,
}

/// A Job that has to succeed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobTask {
    /// A JobTemplateSpec of batch/v1; the Job is made in the namespace of the group.
    #[schemars(with = "schema::Anything")]
    pub template: serde_json::Value,
}

/// What a gate waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StageTaskType {
    /// Time.
    TimedWait,
    /// A RolloutApproval.
    Approval,
    /// The answer to a signed POST.
    Webhook,
    /// The result of a query.
    Metric,
    /// The success of a Job.
    Job,
}

/// How to go back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rollback {
    /// By the same stages, or at once.
    #[serde(default, rename = "type")]
    pub type_: RollbackType,
}

/// By the same stages, or at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RollbackType {
    /// By the same stages.
    #[default]
    Staged,
    /// At once.
    Immediate,
}

impl Default for RolloutStrategy {
    fn default() -> Self {
        Self {
            max_concurrency: quarter(),
            max_failures: all(),
            progress_deadline: default_deadline(),
            jitter: Duration::default(),
            min_success_time: Duration::default(),
            max_unavailable: all(),
            on_new_revision: OnNewRevision::default(),
            on_failure: OnFailure::default(),
            on_unreachable: OnUnreachable::default(),
            windows: Vec::new(),
            stages: Vec::new(),
            rollback: Rollback::default(),
        }
    }
}

fn quarter() -> IntOrPercent {
    IntOrPercent::Percent(25)
}

fn all() -> IntOrPercent {
    IntOrPercent::Percent(100)
}

fn default_deadline() -> Duration {
    Duration::from_secs(15 * 60)
}
