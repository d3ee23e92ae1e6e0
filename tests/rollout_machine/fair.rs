//! What becomes of a world in which nothing goes wrong any more.

use jiff::SignedDuration;
use starling_core::plan::{Decision, Gate, HoldReason, Plan, StagePhase, StageWait, Verdict};

use crate::machine::{Looked, Machine, News};

/// Looks that a run may take. Each but the last starts or ends something, or waits for a time, of which a small fleet has a few
/// for each cluster and stage.
const LOOKS: usize = 2_000;
/// What the controller waits after something was not taken.
const RETRY: SignedDuration = SignedDuration::from_secs(1);

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Through,
    Stopped,
    /// A person, or a cluster that failed or cannot be reached, has to do something.
    Waits,
}

/// Runs until nothing happens by itself any more. With `approving`, a person approves whatever waits for that.
pub(crate) async fn settle(machine: &mut Machine, approving: bool) -> Result<End, String> {
    for _ in 0..LOOKS {
        machine.watch(News::ALL);
        let before = format!("{:?}", machine.world.api);
        if machine.look().await != Looked::Through {
            let later = machine.world.now + RETRY;
            machine.world.go_to(later);
            continue;
        }
        if !machine.world.broken.is_empty() {
            return Err(format!("{:?}", machine.world.broken));
        }
        if format!("{:?}", machine.world.api) != before {
            continue;
        }
        let plan = machine.plan_of_now().ok_or("nothing rolls")?;
        if let Some(stage) = waits_for_approval(&plan).filter(|_| approving) {
            machine.world.approve(&stage);
            continue;
        }
        let now = machine.world.now;
        let clusters = machine.world.api.clusters.values();
        let next = clusters
            .filter_map(|cluster| cluster.member.next_time())
            .chain(plan.recheck_at)
            .filter(|at| *at > now)
            .min();
        match next {
            Some(next) => machine.world.go_to(next),
            None => return end(&plan).and_then(|end| nothing_waits(machine, &plan).map(|()| end)),
        }
    }
    let plan = machine.plan_of_now();
    Err(format!(
        "still going on after {LOOKS} looks: at {} with {plan:#?}",
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

/// The end, if there is a reason for it.
fn end(plan: &Plan) -> Result<End, String> {
    match &plan.verdict {
        Verdict::Through => return Ok(End::Through),
        Verdict::Stopped(_) | Verdict::RollBack(_) => return Ok(End::Stopped),
        Verdict::Rolls => {}
    }
    let unproven = plan
        .stages
        .iter()
        .any(|stage| matches!(&stage.phase, StagePhase::Waiting(StageWait::Unproven)));
    let waits =
        unproven || waits_for_approval(plan).is_some() || plan.decisions.values().any(waits_for_someone);
    if waits {
        Ok(End::Waits)
    } else {
        Err(format!("it stands still for no reason: {plan:#?}"))
    }
}

/// Whatever is offered rolls or was left behind, once what rolled does not go on by itself (I8).
fn nothing_waits(machine: &Machine, plan: &Plan) -> Result<(), String> {
    let status = &machine.world.api.status;
    let rolls = status.rollout.as_ref().map(|rollout| &rollout.release);
    let held = status.held_release.as_ref().map(|held| &held.release);
    let offered = Some(&machine.world.api.offered);
    if !plan.is_over() || offered == rolls || offered == held {
        return Ok(());
    }
    Err(format!(
        "{offered:?} waits for {rolls:?}, which is over: {plan:#?}"
    ))
}

fn waits_for_someone(decision: &Decision) -> bool {
    match decision {
        Decision::Failed { .. } => true,
        Decision::Hold { reason, .. } => {
            matches!(
                reason,
                HoldReason::Paused(_) | HoldReason::ClusterUnreachable { .. }
            )
        }
        Decision::Done | Decision::Start { .. } | Decision::InFlight { .. } | Decision::Soaking { .. } => {
            false
        }
    }
}
