//! `rolloutStrategy`: how a release rolls out across the clusters of a group.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube_derive::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::duration::{YEAR, at_most};
use crate::{Duration, IntOrPercent, LocalRef, schema};

/// Strategy by which a release rolls out across the clusters of a group.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[x_kube(validation = Rule::new("type(self.maxConcurrency) == string ? self.maxConcurrency != '0%' : self.maxConcurrency > 0").message("maxConcurrency must be at least 1 or 1%"))]
#[serde(rename_all = "camelCase")]
pub struct RolloutStrategy {
    /// Maximum number of clusters in flight at the same time, as a number or as a percentage of the selected
    /// clusters. A percentage rounds up, to at least 1. Defaults to 25%.
    #[serde(default = "quarter")]
    pub max_concurrency: IntOrPercent,
    /// Maximum number of failed clusters, as a number or as a percentage of the selected clusters. A
    /// percentage rounds down. When more clusters have failed, `onFailure` applies. Defaults to 100%.
    #[serde(default = "all")]
    pub max_failures: IntOrPercent,
    /// Time that a cluster has to become healthy (without `wait`: to be applied) after its admission, not
    /// counting the soak time. After that the cluster counts as failed. Defaults to 15m.
    #[serde(default = "default_deadline")]
    #[schemars(extend("x-kubernetes-validations" = at_most(YEAR)))]
    pub progress_deadline: Duration,
    /// Time over which the starts of the clusters of a stage are spread. A cluster takes a slot only after
    /// its share of the jitter has passed. Defaults to 0s.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-validations" = at_most(YEAR)))]
    pub jitter: Duration,
    /// Minimum time for which a cluster must stay healthy without interruption before it is done (soak time).
    /// Defaults to 0s.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-validations" = at_most(YEAR)))]
    pub min_success_time: Duration,
    /// Maximum number of reachable clusters that are in flight or not healthy at the same time, as a number
    /// or as a percentage of the selected clusters. A percentage rounds down, to at least 1. Defaults to
    /// 100%.
    #[serde(default = "all")]
    pub max_unavailable: IntOrPercent,
    /// What to do with a new release while a rollout is in progress. Replace starts it and supersedes the
    /// current rollout; Finish completes the current rollout and then starts the latest release; Queue starts
    /// every release in order. Defaults to Replace.
    #[serde(default)]
    pub on_new_revision: OnNewRevision,
    /// What to do when more than `maxFailures` clusters have failed or a gate has failed. Pause stops starting
    /// clusters; Rollback rolls back to the last known good release; Continue continues the rollout and counts
    /// a failed gate as passed. Defaults to Pause.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// What to do with a cluster that is unreachable before its admission. Skip skips the cluster and admits it
    /// once it is reachable again; Wait blocks its stage. Defaults to Skip.
    #[serde(default)]
    pub on_unreachable: OnUnreachable,
    /// Time windows in which clusters may start. Clusters that have started finish outside a window, too.
    /// Defaults to any time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub windows: Vec<Window>,
    /// Stages of the rollout, in order. Clusters that no stage selects form an implicit last stage. Defaults
    /// to a single stage.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub stages: Vec<Stage>,
    /// Rollback strategy.
    #[serde(default)]
    pub rollback: Rollback,
}

/// Reaction to a new release while a rollout is in progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnNewRevision {
    /// Start the new release and supersede the current rollout.
    #[default]
    Replace,
    /// Complete the current rollout, then start the latest release.
    Finish,
    /// Start every release in order.
    Queue,
}

/// Reaction to more failed clusters than `maxFailures`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnFailure {
    /// Stop starting clusters.
    #[default]
    Pause,
    /// Roll back to the last release that succeeded on the whole group.
    Rollback,
    /// Continue the rollout; a failed gate counts as passed.
    Continue,
}

/// Reaction to an unreachable cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnUnreachable {
    /// Skip the cluster, and admit it to the latest release once it is reachable again.
    #[default]
    Skip,
    /// Block the stage until the cluster is reachable.
    Wait,
}

/// Time window in which clusters may start (`allow`) or may not start (`deny`). Exactly one of the two must
/// be set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Window {
    /// Days and times at which clusters may start, such as `Mon-Fri 09:00-16:00`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub allow: String,
    /// Days and times at which no cluster may start, such as `Sat,Sun 00:00-24:00`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub deny: String,
    /// IANA time zone of the window, such as Europe/Berlin. Defaults to UTC.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub time_zone: String,
    /// Label selector of the clusters that the window applies to. Defaults to all clusters of the group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::LabelSelector>")]
    pub cluster_selector: Option<LabelSelector>,
}

/// Part of a group that rolls out before the next stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Stage {
    /// Name of the stage, unique within the group. The name `*` is reserved for the implicit last stage.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Label selector of the clusters of the stage, among the clusters of the group. A cluster that several
    /// stages select belongs to the first of them.
    #[serde(default)]
    #[schemars(with = "schema::LabelSelector")]
    pub cluster_selector: LabelSelector,
    /// Maximum number of clusters of this stage in flight at the same time, as a number or as a percentage of
    /// the clusters of the stage. Applies in addition to `maxConcurrency` of the strategy. Defaults to no
    /// further limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrency: Option<IntOrPercent>,
    /// Maximum number of reachable clusters of this stage that are in flight or not healthy at the same time,
    /// as a number or as a percentage of the clusters of the stage. Applies in addition to `maxUnavailable`
    /// of the strategy. Defaults to no further limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrPercent>,
    /// Maximum number of failed clusters of this stage, as a number or as a percentage of the clusters of the
    /// stage. Applies in addition to `maxFailures` of the strategy. Defaults to the limit of the strategy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_failures: Option<IntOrPercent>,
    /// Gates that must pass before the first cluster of the stage starts. They run one after another, in
    /// order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20), extend("x-kubernetes-list-type" = "atomic"))]
    pub before_stage_tasks: Vec<StageTask>,
    /// Gates that must pass after the last cluster of the stage is done and before the next stage starts.
    /// They run one after another, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20), extend("x-kubernetes-list-type" = "atomic"))]
    pub after_stage_tasks: Vec<StageTask>,
}

/// Gate before or after a stage.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[x_kube(validation = Rule::new("has(self.waitTime) == (self.type == 'TimedWait')").message("waitTime is required for TimedWait and not allowed for other types"))]
#[x_kube(validation = Rule::new("has(self.webhook) == (self.type == 'Webhook')").message("webhook is required for Webhook and not allowed for other types"))]
#[x_kube(validation = Rule::new("has(self.metric) == (self.type == 'Metric')").message("metric is required for Metric and not allowed for other types"))]
#[x_kube(validation = Rule::new("has(self.job) == (self.type == 'Job')").message("job is required for Job and not allowed for other types"))]
#[x_kube(validation = Rule::new("!has(self.timeout) || self.type in ['Webhook', 'Metric', 'Job']").message("timeout is allowed for Webhook, Metric and Job only"))]
#[x_kube(validation = Rule::new("!has(self.interval) || self.type in ['Webhook', 'Metric']").message("interval is allowed for Webhook and Metric only"))]
#[serde(rename_all = "camelCase")]
pub struct StageTask {
    /// Type of the gate: TimedWait, Approval, Webhook, Metric or Job.
    #[serde(rename = "type")]
    pub type_: StageTaskType,
    /// Time to wait. Required for a TimedWait, not allowed for other types.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = at_most(YEAR)))]
    pub wait_time: Option<Duration>,
    /// Webhook to call. Required for a Webhook, not allowed for other types.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<WebhookTask>,
    /// Metric to query. Required for a Metric, not allowed for other types.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<MetricTask>,
    /// Job to run. Required for a Job, not allowed for other types.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobTask>,
    /// Time after which the gate fails, counted from its start. Allowed for a Webhook, a Metric and a Job.
    /// Defaults to 5m, or 1h for a Job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = at_most(YEAR)))]
    pub timeout: Option<Duration>,
    /// Interval between two attempts, at least 1s. Allowed for a Webhook and a Metric. Defaults to 30s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = at_most(YEAR)))]
    pub interval: Option<Duration>,
}

/// Gate that sends a signed POST request and passes or fails by the response.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct WebhookTask {
    /// URL of the webhook, http:// or https://, without credentials.
    #[x_kube(validation = Rule::new("self.matches('^https?://[^ /?#@]+([/?][^ #]*)?$')").message("url must be http://… or https://…, without credentials and fragment"))]
    #[schemars(length(max = 2048))]
    pub url: String,
    /// Secret whose key `token` signs the requests. Optionally, `ca.crt` holds the certificate authorities of
    /// the server.
    pub secret_ref: LocalRef,
}

/// Gate that queries Prometheus and passes once the result meets a test.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct MetricTask {
    /// Base URL of the Prometheus server, http:// or https://, without credentials and without /api/v1/query.
    #[x_kube(validation = Rule::new("self.matches('^https?://[^ /?#@]+(/[^ ?#]*)?$')").message("url must be http://… or https://…, without credentials, query and fragment"))]
    #[schemars(length(max = 2048))]
    pub url: String,
    /// PromQL query. Its result must be an instant vector or a scalar.
    #[schemars(length(min = 1, max = 4096))]
    pub query: String,
    /// CEL expression over the result. The gate passes once it is true. The variable `value` is the value of
    /// the series if there is exactly one; `result` is the list of all series, each with its labels
    /// (`metric`) and its `value`.
    #[schemars(length(min = 1, max = 4096))]
    pub test: String,
    /// Secret with the credentials of the server: either `username` and `password`, or `bearerToken`;
    /// optionally `ca.crt`. Defaults to no credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<LocalRef>,
}

/// Gate that runs a Job and passes once it has completed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobTask {
    /// Template of the Job, a JobTemplateSpec of batch/v1. The Job is created in the namespace of the group,
    /// on the management cluster.
    #[schemars(with = "schema::Anything")]
    pub template: serde_json::Value,
}

/// Type of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StageTaskType {
    /// Wait for a time.
    TimedWait,
    /// Wait for a RolloutApproval.
    Approval,
    /// Wait for the response of a webhook.
    Webhook,
    /// Wait for the result of a Prometheus query.
    Metric,
    /// Wait for a Job to complete.
    Job,
}

/// Settings of a rollback.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rollback {
    /// Pace of a rollback. Staged keeps the stages and limits of a rollout, without its gates; Immediate uses
    /// a single stage, without soak time, windows, jitter and `maxUnavailable`. Defaults to Staged.
    #[serde(default, rename = "type")]
    pub type_: RollbackType,
}

/// Pace of a rollback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RollbackType {
    /// The stages and limits of a rollout, without its gates.
    #[default]
    Staged,
    /// A single stage, limited by `maxConcurrency`.
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
