//! Runs the controller without further faults until the group is idle.

use jiff::SignedDuration;
use starling_core::ids::ClusterName;
use starling_core::membership::Deselection;
use starling_core::plan::{
    Decision, Gate, HoldReason, Plan, RemovalDecision, RemovalHold, RolloutVerdict, StagePhase, StageWait,
};

use crate::invariants::Violation;
use crate::machine::{Machine, PassOutcome, Updates};
use crate::marks;
use crate::world::Cluster;

/// Maximum passes of a run. Each pass but the last starts or ends something, or waits for a time, of which a small
/// fleet has a few for each cluster and stage.
const MAX_PASSES: usize = 2_000;
/// The wait after a failed pass.
const RETRY: SignedDuration = SignedDuration::from_secs(1);

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Succeeded,
    Stopped,
    /// The rollout waits for a user, or for a failed or unreachable cluster.
    Waits,
    /// The release of the rollout is not stored any more.
    ReleaseNotStored,
}

/// Runs passes until the group is idle. With `approving`, every stage that waits for an approval is approved.
pub(crate) async fn run_until_idle(machine: &mut Machine, approving: bool) -> Result<End, String> {
    for _ in 0..MAX_PASSES {
        machine.memory.end_prunes();
        machine.watch(Updates::ALL);
        let before = machine.world.writes;
        if machine.pass().await != PassOutcome::Completed {
            let later = machine.world.now + RETRY;
            machine.world.go_to(later);
            continue;
        }
        if !machine.world.violations.is_empty() {
            return Err(format!("{:?}", machine.world.violations));
        }
        if machine.memory.again || machine.world.writes != before {
            continue;
        }
        let Some(plan) = machine.plan_of_now() else {
            return release_not_stored(machine);
        };
        // The release digest may not be in the status yet.
        if let Some(stage) = waits_for_approval(&plan).filter(|_| approving)
            && machine.world.approve(&stage)
        {
            continue;
        }
        let now = machine.world.now;
        let clusters = machine.world.api.clusters.values();
        let next = clusters
            .filter_map(|cluster| cluster.next_time())
            .chain(machine.memory.recheck_at)
            .chain(machine.memory.gates.next_time(now))
            .filter(|at| *at > now)
            .min();
        match next {
            Some(next) => machine.world.go_to(next),
            None => {
                nothing_waits(machine, &plan)?;
                check_removed_clusters(machine, &plan)?;
                check_prunes(&plan)?;
                check_marks(machine)?;
                return end(&plan);
            }
        }
    }
    let plan = machine.plan_of_now();
    Err(format!(
        "not idle after {MAX_PASSES} passes: at {} with {plan:#?}",
        machine.world.now
    ))
}

fn waits_for_approval(plan: &Plan) -> Option<String> {
    let stage = plan.stages.iter().find(|stage| {
        matches!(
            &stage.phase,
            StagePhase::Waiting(StageWait::Gate {
                gate: Gate::Approval,
                ..
            })
        )
    });
    stage.map(|stage| stage.name.clone())
}

/// Returns the end, if there is a reason for it.
fn end(plan: &Plan) -> Result<End, String> {
    match &plan.verdict {
        RolloutVerdict::Succeeded => return Ok(End::Succeeded),
        RolloutVerdict::Stopped(_) | RolloutVerdict::RollBack(_) => return Ok(End::Stopped),
        RolloutVerdict::InProgress => {}
    }
    let unproven = plan
        .stages
        .iter()
        .any(|stage| matches!(&stage.phase, StagePhase::Waiting(StageWait::Unproven)));
    let waits = unproven
        || waits_for_approval(plan).is_some()
        || plan.decisions.values().any(waits_for_someone)
        || plan.removals.values().any(removal_waits_for_someone);
    if waits {
        Ok(End::Waits)
    } else {
        Err(format!("idle without a reason: {plan:#?}"))
    }
}

/// Returns the end if the release of the rollout is not stored any more.
fn release_not_stored(machine: &Machine) -> Result<End, String> {
    let status = &machine.world.api.status;
    let rolls = status.rollout.as_ref().map(|rollout| rollout.release.as_str());
    let is_lost = rolls.is_some_and(|release| !machine.world.api.stored.contains(release));
    let held = status.held_release.as_ref().map(|held| held.release.as_str());
    // Another offered release would have replaced it.
    let waits = held == Some(machine.world.api.offered.as_str());
    if is_lost && waits && machine.memory.blocked == Some("ReleaseNotFound") {
        return Ok(End::ReleaseNotStored);
    }
    Err(format!(
        "nothing rolls: {:?} beside {rolls:?}",
        machine.memory.blocked
    ))
}

/// Checks that clusters that left the group have no Sync any more, unless their deselection needs an approval, or an
/// operator paused the rollout.
fn check_removed_clusters(machine: &Machine, plan: &Plan) -> Result<(), String> {
    let api = &machine.world.api;
    let keeps_old = |(name, cluster): (&ClusterName, &Cluster)| {
        let is_done = matches!(plan.decisions.get(name), Some(Decision::Done));
        (is_done && cluster.old.is_some()).then(|| name.clone())
    };
    if let Some(name) = api.selected().find_map(keeps_old) {
        return Err(format!("{name} is done and has a Sync of a removed entry"));
    }
    let leaving = match api.deselection(machine.world.spec.max_unselected) {
        Deselection::Free(leaving) | Deselection::Approved(leaving) => leaving,
        Deselection::Held(_) => return Ok(()),
    };
    if leaving.is_empty() || plan.removals.values().all(removal_waits_for_someone) {
        return Ok(());
    }
    Err(format!("{leaving:?} left and keep their Syncs"))
}

/// Checks that no prune waits for what has happened: an open stage and a slot.
fn check_prunes(plan: &Plan) -> Result<(), String> {
    let waits = |decision: &RemovalDecision| match decision {
        RemovalDecision::Remove | RemovalDecision::Removing => false,
        RemovalDecision::Hold { reason, .. } => *reason != RemovalHold::NoSlot,
    };
    match plan.prunes.iter().find(|(_, decision)| !waits(decision)) {
        Some((sync, decision)) => Err(format!("the prune of {sync} is forgotten: {decision:?}")),
        None => Ok(()),
    }
}

/// Checks that every action and approval has the mark of its rollout.
fn check_marks(machine: &mut Machine) -> Result<(), String> {
    let api = &machine.world.api;
    let unmarked = marks::unmarked(api, &api.status);
    if unmarked.is_empty() {
        return Ok(());
    }
    let message = format!("{unmarked:?} have no mark");
    let violations = unmarked.into_iter().map(|object| Violation::NotMarked { object });
    machine.world.violations.extend(violations);
    Err(message)
}

/// Checks that the offered release rolls out or is held, once the current rollout is idle (I8).
fn nothing_waits(machine: &Machine, plan: &Plan) -> Result<(), String> {
    let status = &machine.world.api.status;
    let rolls = status.rollout.as_ref().map(|rollout| rollout.release.as_str());
    let held = status.held_release.as_ref().map(|held| held.release.as_str());
    let offered = Some(machine.world.api.offered.as_str());
    if !plan.is_over() || offered == rolls || offered == held {
        return Ok(());
    }
    Err(format!(
        "{offered:?} waits for {rolls:?}, which is over: {plan:#?}"
    ))
}

/// Whether only an operator or a cluster can end what a removal waits for. A stage may wait for an approval, a failed
/// cluster keeps what it has, and an unreachable one loses nothing.
fn removal_waits_for_someone(removal: &RemovalDecision) -> bool {
    match removal {
        RemovalDecision::Remove => false,
        RemovalDecision::Removing => true,
        RemovalDecision::Hold { reason, .. } => matches!(
            reason,
            RemovalHold::MembershipHeld
                | RemovalHold::Paused
                | RemovalHold::Aborted
                | RemovalHold::ClusterNotReady
                | RemovalHold::StageNotOpen
                | RemovalHold::ClusterNotDone
                | RemovalHold::ClusterWaits
        ),
    }
}

fn waits_for_someone(decision: &Decision) -> bool {
    match decision {
        Decision::Failed { .. } => true,
        Decision::Hold { reason, .. } => {
            matches!(
                reason,
                HoldReason::Paused(_) | HoldReason::ClusterUnreachable { .. } | HoldReason::MembershipHeld
            )
        }
        Decision::Done
        | Decision::Start { .. }
        | Decision::Retry { .. }
        | Decision::Remove { .. }
        | Decision::InFlight { .. }
        | Decision::Soaking { .. } => false,
    }
}
