//! A history that runs once without a fault, and then with every fault at every effect: its outcome is the same.

use std::collections::BTreeMap;

use starling_api::RolloutPhase;
use starling_core::ids::{ClusterName, TargetDigest};
use starling_core::plan::Progress;

use crate::faults::{FAULTS, Faults};
use crate::idle::End;
use crate::invariants::Violation;
use crate::machine::Machine;
use crate::order::Order;
use crate::world::World;

/// The outcome of a history, without times.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    /// The target of each cluster, and whether it is applied.
    pub(crate) clusters: BTreeMap<ClusterName, (Option<TargetDigest>, bool)>,
    pub(crate) rollout: (i64, String, RolloutPhase),
    pub(crate) held: Option<String>,
    pub(crate) good: Option<String>,
    pub(crate) ends: Vec<End>,
}

/// Six clusters on which a release is applied.
pub(crate) fn all_on(release: &str) -> BTreeMap<ClusterName, (Option<TargetDigest>, bool)> {
    let clusters = (1..=6).map(|n| (format!("c{n}").into(), (Some(release.into()), true)));
    clusters.collect()
}

/// Returns the outcome of a history, if no invariant was violated.
async fn outcome(machine: &mut Machine, ends: Result<Vec<End>, String>) -> Result<Outcome, String> {
    let ends = ends?;
    machine.check_history().await;
    if !machine.world.violations.is_empty() {
        return Err(format!("{:?}", machine.world.violations));
    }
    let status = &machine.world.api.status;
    let rollout = status.rollout.clone().unwrap_or_default();
    let clusters = machine.world.api.clusters.iter().map(|(name, cluster)| {
        let sync = cluster.member.observed.as_ref();
        let is_applied = sync.is_some_and(|sync| matches!(sync.progress, Progress::Applied(_)));
        (
            name.clone(),
            (sync.and_then(|sync| sync.target.clone()), is_applied),
        )
    });
    Ok(Outcome {
        clusters: clusters.collect(),
        rollout: (rollout.id, rollout.release, rollout.phase),
        held: status.held_release.as_ref().map(|held| held.release.clone()),
        good: status.last_known_good.as_ref().map(|good| good.release.clone()),
        ends,
    })
}

/// Runs a history with every fault at every effect. Returns its outcome and its number of effects.
pub(crate) async fn with_every_fault(
    world: impl Fn() -> World,
    history: impl AsyncFn(&mut Machine) -> Result<Vec<End>, String>,
) -> (Outcome, usize) {
    let mut machine = Machine::start(world(), Order::Correct).await;
    let ends = history(&mut machine).await;
    let effects = machine.faults.reached();
    let expected = outcome(&mut machine, ends).await.unwrap();
    for effect in 0..effects {
        for fault in FAULTS {
            let mut machine = Machine::start(world(), Order::Correct).await;
            machine.faults = Faults::at(effect, fault);
            let ends = history(&mut machine).await;
            let outcome = outcome(&mut machine, ends).await;
            assert_eq!(outcome.as_ref(), Ok(&expected), "{fault:?} at effect {effect}");
            assert!(
                machine.faults.injected() == 1,
                "{fault:?} at effect {effect} did not happen"
            );
        }
    }
    (expected, effects)
}

/// Runs a history with a wrong order of effects, and returns the detected violations.
pub(crate) async fn violation_of(
    order: Order,
    world: World,
    history: impl AsyncFn(&mut Machine) -> Result<Vec<End>, String>,
) -> Vec<Violation> {
    let mut machine = Machine::start(world, order).await;
    let ends = history(&mut machine).await;
    let outcome = outcome(&mut machine, ends).await;
    assert!(outcome.is_err(), "{order:?} was not noticed: {outcome:?}");
    machine.world.violations
}
