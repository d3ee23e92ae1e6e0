//! `rolloutStrategy`, parsed and validated.

use kube_core::{Selector, SelectorExt};
use std::collections::BTreeMap;
use std::sync::Arc;

use starling_api::{RolloutStrategy, Stage, StageTask, StageTaskType};

use super::stages::{Gate, REST, RolloutLimits, StageRules, Strategy};
use crate::expand::{self, SelectorError};
use crate::gate::job::JobAccounts;
use crate::gate::{CheckTest, Effect, Side, Task, TaskError};
use crate::window::{Window, WindowError};

/// An error in a strategy. Each error names the field below `spec.rolloutStrategy`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StrategyError {
    /// An invalid window.
    #[error("rolloutStrategy.windows[{place}].{source}")]
    Window {
        /// The index of the window.
        place: usize,
        /// The error in the window.
        #[source]
        source: WindowError,
    },
    /// An invalid selector.
    #[error("rolloutStrategy.{field}.clusterSelector: {source}")]
    Selector {
        /// The field of the selector.
        field: String,
        /// The error in the selector.
        #[source]
        source: SelectorError,
    },
    /// A stage with the name of the implicit stage.
    #[error("rolloutStrategy.stages: {REST:?} is the name of the implicit last stage")]
    ReservedStageName,
    /// Two stages with the same name.
    #[error("rolloutStrategy.stages: the name {name:?} occurs twice")]
    RepeatedStageName {
        /// The name.
        name: String,
    },
    /// An invalid task.
    #[error("rolloutStrategy.stages[{stage}].{list}[{place}]: {source}")]
    Task {
        /// The name of the stage.
        stage: String,
        /// The list of the task: before or after the stage.
        list: &'static str,
        /// The index of the task.
        place: usize,
        /// The error in the task.
        #[source]
        source: TaskError,
    },
}

/// A valid strategy, with the selectors of its stages and windows.
#[derive(Clone, Debug)]
pub struct ReadStrategy {
    /// The strategy as the planner uses it.
    pub strategy: Strategy,
    /// The tasks that other systems decide, by stage, side and index.
    effects: BTreeMap<(String, Side, usize), Arc<Task>>,
    stages: Vec<Selector>,
    windows: Vec<Option<Selector>>,
}

/// The stage and the windows of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The stage, as an index into [`Strategy::stages`].
    pub stage: usize,
    /// Later stages that select the cluster too. It belongs to the first one, and a condition reports the others.
    pub also: Vec<usize>,
    /// The windows that apply to the cluster, as indexes into [`Strategy::windows`].
    pub windows: Vec<usize>,
}

impl ReadStrategy {
    /// Returns the place of a cluster whose labels are not known: it is in the last stage.
    #[must_use]
    pub fn last_place(&self) -> Place {
        Place {
            stage: self.strategy.stages.len().saturating_sub(1),
            also: Vec::new(),
            windows: Vec::new(),
        }
    }

    /// Parses a strategy without checking the expressions of its Metrics, which only the gates use.
    ///
    /// # Errors
    /// The first [`StrategyError`].
    pub fn new(spec: &RolloutStrategy) -> Result<Self, StrategyError> {
        Self::checked(spec, &|_| Ok(()))
    }

    /// Parses a strategy and checks the expressions of its Metrics.
    ///
    /// # Errors
    /// The first [`StrategyError`].
    pub fn checked(spec: &RolloutStrategy, check: &CheckTest) -> Result<Self, StrategyError> {
        let mut windows = Vec::new();
        let mut window_selectors = Vec::new();
        for (place, window) in spec.windows.iter().enumerate() {
            windows.push(Window::new(window).map_err(|source| StrategyError::Window { place, source })?);
            let selector = window.cluster_selector.as_ref();
            window_selectors.push(
                selector
                    .map(|selector| read_selector(selector, || format!("windows[{place}]")))
                    .transpose()?,
            );
        }
        let mut stages: Vec<StageRules> = Vec::new();
        let mut stage_selectors = Vec::new();
        let mut effects = BTreeMap::new();
        for stage in &spec.stages {
            if stage.name == REST {
                return Err(StrategyError::ReservedStageName);
            }
            if stages.iter().any(|known| known.name == stage.name) {
                return Err(StrategyError::RepeatedStageName {
                    name: stage.name.clone(),
                });
            }
            stage_selectors.push(read_selector(&stage.cluster_selector, || {
                format!("stages[{}]", stage.name)
            })?);
            stages.push(rules(stage, check, &mut effects)?);
        }
        stages.push(StageRules {
            name: REST.to_owned(),
            max_concurrency: None,
            max_unavailable: None,
            max_failures: None,
            before: Vec::new(),
            after: Vec::new(),
        });
        let strategy = Strategy {
            limits: RolloutLimits {
                max_concurrency: spec.max_concurrency,
                max_unavailable: spec.max_unavailable,
                max_failures: spec.max_failures,
                min_success_time: spec.min_success_time.as_std(),
                progress_deadline: spec.progress_deadline.as_std(),
                jitter: spec.jitter.as_std(),
            },
            on_failure: spec.on_failure,
            on_unreachable: spec.on_unreachable,
            windows,
            stages,
        };
        Ok(Self {
            strategy,
            effects,
            stages: stage_selectors,
            windows: window_selectors,
        })
    }

    /// Checks whether the Jobs of the strategy may be created.
    ///
    /// # Errors
    /// [`StrategyError::Task`] for the first one that may not.
    pub fn check_jobs(&self, accounts: &JobAccounts) -> Result<(), StrategyError> {
        self.effects.iter().try_for_each(|((stage, side, place), task)| {
            let Effect::Job { template } = &task.effect else {
                return Ok(());
            };
            accounts.check(template).map_err(|source| StrategyError::Task {
                stage: stage.clone(),
                list: side.list(),
                place: *place,
                source,
            })
        })
    }

    /// Returns the task at this position of a stage, if another system decides it.
    #[must_use]
    pub fn effect(&self, stage: &str, side: Side, index: usize) -> Option<&Arc<Task>> {
        self.effects.get(&(stage.to_owned(), side, index))
    }

    /// Returns the stage and the windows of a cluster with these labels.
    #[must_use]
    pub fn place(&self, labels: &BTreeMap<String, String>) -> Place {
        let mut selecting = self
            .stages
            .iter()
            .enumerate()
            .filter(|(_, selector)| selector.matches(labels))
            .map(|(stage, _)| stage);
        let windows = self.windows.iter().enumerate();
        Place {
            stage: selecting.next().unwrap_or(self.stages.len()),
            also: selecting.collect(),
            windows: windows
                .filter(|(_, selector)| selector.as_ref().is_none_or(|selector| selector.matches(labels)))
                .map(|(window, _)| window)
                .collect(),
        }
    }
}

fn read_selector(
    selector: &k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector,
    field: impl Fn() -> String,
) -> Result<Selector, StrategyError> {
    expand::selector(selector).map_err(|source| StrategyError::Selector {
        field: field(),
        source,
    })
}

fn rules(
    stage: &Stage,
    check: &CheckTest,
    effects: &mut BTreeMap<(String, Side, usize), Arc<Task>>,
) -> Result<StageRules, StrategyError> {
    let mut gates = |side: Side, tasks: &[StageTask]| {
        let read = tasks.iter().enumerate().map(|(place, task)| {
            let (gate, effect) = gate(task, check).map_err(|source| StrategyError::Task {
                stage: stage.name.clone(),
                list: side.list(),
                place,
                source,
            })?;
            if let Some(effect) = effect {
                effects.insert((stage.name.clone(), side, place), Arc::new(effect));
            }
            Ok(gate)
        });
        read.collect::<Result<Vec<Gate>, _>>()
    };
    let rules = StageRules {
        name: stage.name.clone(),
        max_concurrency: stage.max_concurrency,
        max_unavailable: stage.max_unavailable,
        max_failures: stage.max_failures,
        before: gates(Side::Before, &stage.before_stage_tasks)?,
        after: gates(Side::After, &stage.after_stage_tasks)?,
    };
    one_approval(&rules)?;
    Ok(rules)
}

/// Rejects a second Approval in a stage. A RolloutApproval is for a stage and not for a task, so one approval would
/// pass both, which its author did not intend.
fn one_approval(rules: &StageRules) -> Result<(), StrategyError> {
    let sides = [(Side::Before, &rules.before), (Side::After, &rules.after)];
    let mut approvals = sides.into_iter().flat_map(|(side, gates)| {
        let places = gates.iter().enumerate();
        places
            .filter(|(_, gate)| **gate == Gate::Approval)
            .map(move |(place, _)| (side, place))
    });
    match approvals.nth(1) {
        None => Ok(()),
        Some((side, place)) => Err(StrategyError::Task {
            stage: rules.name.clone(),
            list: side.list(),
            place,
            source: TaskError::SecondApproval,
        }),
    }
}

fn gate(task: &StageTask, check: &CheckTest) -> Result<(Gate, Option<Task>), TaskError> {
    let effect = Task::read(task, check)?;
    let gate = match (task.type_, task.wait_time) {
        (StageTaskType::TimedWait, Some(wait)) => Gate::TimedWait(wait.as_std()),
        (StageTaskType::TimedWait, None) => return Err(TaskError::MissingWaitTime),
        (StageTaskType::Approval, None) => Gate::Approval,
        (kind @ (StageTaskType::Webhook | StageTaskType::Metric | StageTaskType::Job), None) => {
            Gate::Effect(kind)
        }
        (_, Some(_)) => return Err(TaskError::MisplacedWaitTime),
    };
    Ok((gate, effect))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(strategy: serde_json::Value) -> Result<ReadStrategy, StrategyError> {
        ReadStrategy::checked(
            &serde_json::from_value(strategy).unwrap(),
            &crate::gate::tests::check,
        )
    }

    fn labels(labels: &[(&str, &str)]) -> BTreeMap<String, String> {
        labels
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    #[test]
    fn a_task_that_another_system_decides_is_found_by_its_position() {
        let webhook = serde_json::json!({"type": "Webhook", "webhook": {"url": "https://gate.example.com", "secretRef": {"name": "s"}}});
        let tasks = serde_json::json!([{"type": "Approval"}, webhook]);
        let read = read(
            serde_json::json!({"stages": [{"name": "canary", "clusterSelector": {}, "afterStageTasks": tasks}]}),
        );
        let read = read.unwrap();
        assert!(read.effect("canary", Side::After, 1).is_some());
        for (stage, side, place) in [
            ("canary", Side::After, 0),
            ("canary", Side::Before, 1),
            ("*", Side::After, 1),
        ] {
            assert!(
                read.effect(stage, side, place).is_none(),
                "{stage} {side:?} {place}"
            );
        }
    }

    #[test]
    fn one_approval_passes_one_task() {
        let canary = |before: serde_json::Value, after: serde_json::Value| {
            serde_json::json!({"stages": [{"name": "canary", "clusterSelector": {},
                "beforeStageTasks": before, "afterStageTasks": after}]})
        };
        let approval = || serde_json::json!([{"type": "Approval"}]);
        let wait = || serde_json::json!([{"type": "TimedWait", "waitTime": "1h"}]);
        assert!(read(canary(approval(), wait())).is_ok());
        assert!(read(canary(wait(), approval())).is_ok());
        let both = read(canary(approval(), approval())).unwrap_err().to_string();
        assert!(
            both.starts_with("rolloutStrategy.stages[canary].afterStageTasks[0]: a stage has one Approval"),
            "{both}"
        );
    }

    #[test]
    fn a_cluster_belongs_to_the_first_stage_that_selects_it_or_to_the_implicit_last() {
        let read = read(serde_json::json!({
            "stages": [
                {"name": "canary", "clusterSelector": {"matchLabels": {"tier": "canary"}}},
                {"name": "eu", "clusterSelector": {"matchLabels": {"region": "eu"}}},
            ],
            "windows": [
                {"allow": "Mon-Fri 09:00-16:00", "clusterSelector": {"matchLabels": {"region": "eu"}}},
                {"deny": "Sat,Sun 00:00-24:00"},
            ],
        }))
        .unwrap();
        for (given, stage, also, windows) in [
            (
                &[("tier", "canary"), ("region", "eu")][..],
                0,
                vec![1],
                vec![0, 1],
            ),
            (&[("region", "eu")], 1, vec![], vec![0, 1]),
            (&[("region", "us")], 2, vec![], vec![1]),
        ] {
            assert_eq!(
                read.place(&labels(given)),
                Place { stage, also, windows },
                "{given:?}"
            );
        }
        let names: Vec<&str> = read
            .strategy
            .stages
            .iter()
            .map(|stage| stage.name.as_str())
            .collect();
        assert_eq!(names, ["canary", "eu", REST]);
    }

    #[test]
    fn an_error_names_its_field() {
        let stage = |stage: serde_json::Value| serde_json::json!({"stages": [stage]});
        for (strategy, expected) in [
            (
                serde_json::json!({"windows": [{"allow": "Mon"}]}),
                "rolloutStrategy.windows[0].allow: \"Mon\" is not a list of days and a time range",
            ),
            (
                serde_json::json!({"windows": [{"allow": "Mon 09:00-10:00", "timeZone": "Berlin"}]}),
                "rolloutStrategy.windows[0].timeZone: there is no zone \"Berlin\"",
            ),
            (
                serde_json::json!({"stages": [{"name": "a"}, {"name": "a"}]}),
                "rolloutStrategy.stages: the name \"a\" occurs twice",
            ),
            (
                stage(serde_json::json!({"name": "*"})),
                "\"*\" is the name of the implicit last stage",
            ),
            (
                stage(serde_json::json!({"name": "a", "afterStageTasks": [{"type": "TimedWait"}]})),
                "rolloutStrategy.stages[a].afterStageTasks[0]: a TimedWait needs waitTime",
            ),
            (
                stage(
                    serde_json::json!({"name": "a", "beforeStageTasks": [{"type": "Approval", "waitTime": "1h"}]}),
                ),
                "rolloutStrategy.stages[a].beforeStageTasks[0]: waitTime belongs to a TimedWait",
            ),
            (
                stage(
                    serde_json::json!({"name": "a", "afterStageTasks": [{"type": "Approval"}, {"type": "Metric",
                    "metric": {"url": "http://p", "query": "up", "test": "value <"}}]}),
                ),
                "rolloutStrategy.stages[a].afterStageTasks[1]: metric.test: ",
            ),
            (
                stage(
                    serde_json::json!({"name": "a", "clusterSelector": {"matchExpressions": [{"key": "x", "operator": "Like"}]}}),
                ),
                "rolloutStrategy.stages[a].clusterSelector: ",
            ),
        ] {
            let error = read(strategy).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
