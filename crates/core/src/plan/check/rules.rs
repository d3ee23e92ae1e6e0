//! The strategy as it applies to the direction of a rollout.

use std::borrow::Cow;
use std::time::Duration;

use starling_api::{IntOrPercent, OnFailure, OnUnreachable};

use crate::plan::stages::{Attribution, Direction, Gate, REST, StageRules};
use crate::plan::types::{ClusterView, PlanInput};
use crate::window::Window;

/// The rules in force.
pub(super) struct CheckedRules<'a> {
    pub(super) stages: Cow<'a, [StageRules]>,
    /// The soak time.
    pub(super) soak: Duration,
    pub(super) jitter: Duration,
    /// Clusters that may be unavailable; `None`: any number.
    pub(super) unavailable: Option<IntOrPercent>,
    /// Whether the rollout continues despite failures, failed gates and unproven stages.
    pub(super) continues: bool,
    /// Whether a stage waits for unreachable clusters.
    pub(super) waits_for_unreachable: bool,
    windows: &'a [Window],
    at_once: bool,
}

impl<'a> CheckedRules<'a> {
    pub(super) fn of(input: &'a PlanInput) -> Self {
        let (strategy, limits) = (&input.strategy, &input.strategy.limits);
        let at_once = input.rollout.direction == Direction::BackAtOnce;
        let forward = input.rollout.direction == Direction::Forward;
        let stages = match input.rollout.direction {
            Direction::Forward => Cow::Borrowed(&*strategy.stages),
            Direction::Back => strategy.stages.iter().map(without_gates).collect(),
            Direction::BackAtOnce => Cow::Owned(vec![only_stage()]),
        };
        Self {
            stages,
            soak: if at_once {
                Duration::ZERO
            } else {
                limits.min_success_time
            },
            jitter: if at_once { Duration::ZERO } else { limits.jitter },
            unavailable: (!at_once).then_some(limits.max_unavailable),
            continues: forward && strategy.on_failure == OnFailure::Continue,
            waits_for_unreachable: !at_once && strategy.on_unreachable == OnUnreachable::Wait,
            windows: if at_once { &[] } else { &strategy.windows },
            at_once,
        }
    }

    /// Returns the index of the stage of a cluster.
    pub(super) fn stage_of(&self, view: &ClusterView) -> usize {
        if self.at_once { 0 } else { view.stage }
    }

    /// Returns the operator who skipped a stage. The only stage of an immediate rollback is not one of the strategy.
    pub(super) fn skipped<'i>(&self, input: &'i PlanInput, stage: usize) -> Option<&'i Attribution> {
        let stage = self.stages.get(stage).filter(|_| !self.at_once)?;
        input.operator.skipped_stages.get(&stage.name)
    }

    pub(super) fn is_promoted(&self, input: &PlanInput, stage: usize) -> bool {
        let stage = self.stages.get(stage).filter(|_| !self.at_once);
        stage.is_some_and(|stage| input.operator.promoted.contains_key(&stage.name))
    }

    /// Returns the windows that apply to a cluster.
    pub(super) fn windows_of(&self, view: &'a ClusterView) -> Vec<&'a Window> {
        let about = |place: &usize| self.windows.get(*place);
        view.windows.iter().filter_map(about).collect()
    }
}

/// Returns a stage without gates: a rollback needs no approval.
fn without_gates(stage: &StageRules) -> StageRules {
    let none: Vec<Gate> = Vec::new();
    StageRules {
        before: none.clone(),
        after: none,
        ..stage.clone()
    }
}

fn only_stage() -> StageRules {
    StageRules {
        name: REST.to_owned(),
        max_concurrency: None,
        max_unavailable: None,
        max_failures: None,
        before: Vec::new(),
        after: Vec::new(),
    }
}

/// Returns this number of clusters, or that percentage of `total` after `up` hundredths of a cluster were added.
pub(super) fn share(limit: IntOrPercent, total: usize, up: usize) -> usize {
    match limit {
        IntOrPercent::Int(clusters) => clusters as usize,
        IntOrPercent::Percent(percent) => (total * percent as usize + up) / 100,
    }
}
